//! What speaks against a move, all of it at once, and which volumes it is about: looked for before
//! anything is done, and noted in the status in one write. Nothing here changes anything.
//!
//! Where the volumes are to be is found in `target`, where they are in `claims`, who uses them in
//! `users`. Whether the API servers would take twins and movers is asked by those who make them.

mod claims;
mod target;
mod users;

use std::collections::BTreeMap;

use futures::future::try_join_all;
use jiff::Timestamp;

use self::claims::look_at;
use super::{Context, follow::Trouble, status::checked, volumes::side};
use crate::{
    api::volume_move::{ClaimStatus, MoveRequest, PlannedClaim, VolumeMove, VolumeMoveStatus},
    placement::moving::{ClaimNow, HeldBy, Live, Lock, Quiesce, Serves, SourceTwin, TargetTwin, VolumeNow},
    twin::{
        gate::{ClaimObjects, MovedVolume, Records},
        movers::MoveHelpers,
    },
    volume::moving::{SourceMark, VolumeMark},
};

/// The status with everything that speaks against the move; or with its plan, if nothing does.
pub(super) async fn preflight<H: MoveHelpers>(
    context: &Context<'_, H>,
    of: &VolumeMove,
) -> Result<VolumeMoveStatus, Trouble> {
    let request = MoveRequest::try_from(of)?;
    let mut findings = Vec::new();
    let whereto = match target::find(context, &request).await? {
        Ok(whereto) => Some(whereto),
        Err(found) => {
            findings.extend(found);
            None
        }
    };
    let looks = request.claims.iter().map(|name| look_at(context.home, name));
    let (mut plan, mut sizes, mut colds) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for look in try_join_all(looks).await? {
        match (look, &whereto) {
            (Err(found), _) => findings.extend(found),
            (Ok(source), Some(whereto)) => {
                sizes.extend(source.size().map(|bytes| (source.claim().clone(), bytes)));
                match source.planned(context, &request, whereto) {
                    Ok(planned) => plan.push(planned),
                    Err(found) => findings.push(found),
                }
            }
            (Ok(_), None) => {}
        }
    }
    for planned in &plan {
        let moved = moved(context, of, planned)?;
        let objects = moved.observe().await?;
        let against = of_objects(planned, &request, objects);
        if against.is_empty() {
            // Who cannot have the twin or a mover says so to a trial of it.
            let refused = context.helpers.obstacles(&moved, &request).await?;
            let name = &planned.claim.name;
            findings.extend(refused.iter().map(|why| format!("the claim {name}: {why}")));
            let cold = context.helpers.cold(&moved, &request).await?;
            colds.extend(cold.map(|why| (name.clone(), why.to_string())));
        }
        findings.extend(against);
    }
    findings.extend(users::findings(context.home, &request, whereto.as_ref()).await?);
    findings.extend(claims::snapshots_left_behind(context.home, &request, &plan).await?);
    findings.dedup();
    let claims = plan.iter().map(|planned| ClaimStatus {
        size: sizes.get(&planned.claim.name).copied(),
        cold: colds.get(&planned.claim.name).cloned(),
        ..planned.to_status()
    });
    Ok(checked(of, &findings, claims.collect(), Timestamp::now()))
}

fn moved<H>(
    context: &Context<'_, H>,
    of: &VolumeMove,
    planned: &PlannedClaim,
) -> Result<MovedVolume, Trouble> {
    Ok(MovedVolume {
        home: context.home.clone(),
        by: of.move_uid()?,
        claim: planned.claim.clone(),
        source: side(context.home, context.registry, &planned.source),
        target: side(context.home, context.registry, &planned.target),
        records: Records::Nothing,
    })
}

/// What the objects of a claim have against it.
fn of_objects(planned: &PlannedClaim, request: &MoveRequest, objects: ClaimObjects) -> Vec<String> {
    let name = &planned.claim.name;
    let mut found = Vec::new();
    let mut find = |what: String| found.push(format!("the claim {name}: {what}"));
    if let ClaimNow::There { lock, changing, .. } = objects.claim {
        if let Lock::Theirs { by, counts: true } = lock {
            find(format!("the VolumeMove with the uid {by} is moving it"));
        }
        if changing {
            find("its size or its attributes are being changed: wait until that is done".to_owned());
        }
    }
    if let VolumeNow::There(volume) = objects.volume {
        if let Some(VolumeMark::Gated(note)) = &volume.mark {
            let by = &note.by;
            find(format!(
                "its PersistentVolume is gated by the VolumeMove with the uid {by}"
            ));
        } else if volume.held_by != HeldBy::Claim || volume.serves != Serves::Source || !volume.bound {
            find("its PersistentVolume is not bound to it".to_owned());
        }
        if volume.deleting {
            find("its PersistentVolume is being deleted".to_owned());
        }
    }
    match objects.source {
        Live::Silent(why) => find(format!("its twin cannot be read: {why}")),
        Live::Known(SourceTwin::Gone) => find("its twin is gone".to_owned()),
        Live::Known(SourceTwin::There { deleting: true, .. }) => find("its twin is being deleted".to_owned()),
        Live::Known(SourceTwin::There {
            mark: Some(SourceMark::Superseded { epoch, .. }),
            ..
        }) => find(format!(
            "its data is elsewhere by now, in epoch {epoch}: the cluster was restored from a backup"
        )),
        Live::Known(SourceTwin::There { .. }) => {}
    }
    match objects.target {
        Live::Silent(why) => find(format!("the place of its new twin cannot be read: {why}")),
        Live::Known(TargetTwin::Gone) => {
            find("the cluster of the target is not declared any more".to_owned());
        }
        Live::Known(TargetTwin::Foreign(what)) => find(format!("the place of its new twin is taken: {what}")),
        Live::Known(TargetTwin::There { .. }) => {
            find("there is a twin of its next epoch already, which another move has left".to_owned());
        }
        Live::Known(TargetTwin::Absent) => {}
    }
    match objects.users {
        Live::Silent(why) => find(format!("who uses it cannot be told: {why}")),
        Live::Known(users) => {
            if let (Some(set), Quiesce::Wait) = (users.deletes_claim, request.quiesce) {
                find(format!(
                    "{set} deletes it when it is scaled down: set whenScaled to Retain, or have its pods evicted"
                ));
            }
        }
    }
    found
}
