//! Builds the volumes of a move from its status: where their twins are now, and how their clusters are
//! reached.

use std::sync::Arc;

use crate::{
    api::volume_move::{PlannedClaim, PlannedTwin, UnreadableMove, VolumeMove},
    cluster::Cluster,
    fleet::Registry,
    gate::{MovedSide, MovedVolume, Place, Records},
    placement::moving::Recorded,
    twin::Site,
};

/// The volumes of a move with this plan.
pub(super) fn volumes(
    home: &Cluster,
    registry: &Registry,
    of: &VolumeMove,
    plan: &[PlannedClaim],
) -> Result<Vec<MovedVolume>, UnreadableMove> {
    plan.iter()
        .map(|planned| {
            Ok(MovedVolume {
                home: home.clone(),
                by: of.move_uid()?,
                claim: planned.claim.clone(),
                source: side(home, registry, &planned.source),
                target: side(home, registry, &planned.target),
                records: records(of, &planned.claim.name.name)?,
                mover_node: of
                    .claim_status(&planned.claim.name.name)
                    .and_then(|claim| claim.mover_node.clone()),
                recovers: of.stage()?.is_recovered(),
                target_out_of_service: false,
            })
        })
        .collect()
}

/// The source or target of a volume, with the current connection to its cluster.
pub(super) fn side(home: &Cluster, registry: &Registry, twin: &PlannedTwin) -> MovedSide {
    let id = twin.id.clone();
    let place = if id.cluster == *home.id() {
        Place::Site(Box::new(Site::local(home, &id.name, id.epoch)))
    } else {
        let (namespace, name) = (twin.place.namespace.clone(), twin.place.name.clone());
        let found = registry
            .get(&id.cluster)
            .and_then(|remote| Site::recorded(home, Arc::clone(&remote), namespace, name, id.epoch));
        Place::of(found, registry)
    };
    MovedSide { id, place }
}

/// What the status records of the PV of a claim.
pub(super) fn records(of: &VolumeMove, claim: &str) -> Result<Records, UnreadableMove> {
    let Some(status) = of.claim_status(claim) else {
        return Ok(Records::Nothing);
    };
    let record = if of.stage()?.is_committed() {
        let record = status.commit_record()?;
        record.map(|record| Records::Committed(Box::new(record)))
    } else {
        let record = status.source_record()?;
        record.map(|record| Records::Source(Box::new(record)))
    };
    Ok(record.unwrap_or(Records::Nothing))
}

/// The recorded facts on which decisions are based.
pub(super) fn recorded(records: &Records) -> Option<Recorded> {
    let source = match records {
        Records::Nothing => return None,
        Records::Source(record) => record,
        Records::Committed(record) => record.source(),
    };
    Some(Recorded {
        policy: source.policy,
        claim_uid: source.claim.uid.clone(),
    })
}
