//! Which volumes a move is about: the claims by their uids, and the two twins of each. It is
//! settled once, before anything is done, and noted in the status: what the objects of a claim say
//! changes while it moves.

use super::{ClaimStatus, TwinReference, UnreadableMove, VolumeMove};
use crate::{
    placement::moving::Stage,
    volume::{ClaimName, ClusterId, Epoch, VolumeId, moving::MovedClaim},
};

/// A claim of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedClaim {
    /// The claim.
    pub claim: MovedClaim,
    /// Where its volume is before the move.
    pub source: PlannedTwin,
    /// Where it is to be.
    pub target: PlannedTwin,
}

/// One of its twins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTwin {
    /// What the PV says that leads there.
    pub id: VolumeId,
    /// The twin itself, in that cluster.
    pub place: ClaimName,
}

impl VolumeMove {
    /// The claims, in the order of the status; none as long as nothing is settled.
    pub fn plan(&self) -> Result<Vec<PlannedClaim>, UnreadableMove> {
        let claims = self.status.iter().flat_map(|status| &status.claims);
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let plan: Result<Vec<PlannedClaim>, UnreadableMove> =
            claims.map(|claim| planned(namespace, claim)).collect();
        let plan = plan?;
        let may_be_unsettled = matches!(
            self.stage()?,
            Stage::Checking | Stage::Back { .. } | Stage::Ended(_)
        );
        let is_whole = self
            .spec
            .claims
            .iter()
            .all(|name| plan.iter().any(|planned| planned.claim.name.name == *name));
        let has_others = plan.len() > self.spec.claims.len();
        let is_unsettled = plan.is_empty() && may_be_unsettled;
        if is_unsettled || (is_whole && !has_others) {
            return Ok(plan);
        }
        Err(UnreadableMove::Plan {
            claim: self.spec.claims.join(", "),
            why: "they are not those of the spec",
        })
    }
}

impl PlannedClaim {
    /// As it stands in the status, but for the classes and the nodes: those are noted for people and for
    /// the way back, and no step rests on them.
    #[must_use]
    pub fn to_status(&self) -> ClaimStatus {
        let twin = |twin: &PlannedTwin| TwinReference {
            cluster: twin.id.cluster.to_string(),
            namespace: twin.place.namespace.clone(),
            name: twin.place.name.clone(),
            ..TwinReference::default()
        };
        ClaimStatus {
            name: self.claim.name.name.clone(),
            uid: Some(self.claim.uid.clone()),
            volume_handle: Some(self.source.id.to_string()),
            epoch: Some(self.target.id.epoch),
            source: Some(twin(&self.source)),
            target: Some(twin(&self.target)),
            ..ClaimStatus::default()
        }
    }
}

fn planned(namespace: &str, claim: &ClaimStatus) -> Result<PlannedClaim, UnreadableMove> {
    let wrong = |why| UnreadableMove::Plan {
        claim: claim.name.clone(),
        why,
    };
    let (Some(uid), Some(handle), Some(epoch), Some(source), Some(target)) = (
        &claim.uid,
        &claim.volume_handle,
        claim.epoch,
        &claim.source,
        &claim.target,
    ) else {
        return Err(wrong("something of it is missing"));
    };
    let source_id: VolumeId = handle.parse().map_err(|_| wrong("its volumeHandle is none"))?;
    if source.cluster != source_id.cluster.as_str() || source_id.epoch.next() != Some(epoch) {
        return Err(wrong("its volumeHandle is that of another volume"));
    }
    let cluster: ClusterId = target
        .cluster
        .parse()
        .map_err(|_| wrong("the cluster of its target is none"))?;
    let place = |twin: &TwinReference| ClaimName {
        namespace: twin.namespace.clone(),
        name: twin.name.clone(),
    };
    Ok(PlannedClaim {
        claim: MovedClaim {
            name: ClaimName {
                namespace: namespace.to_owned(),
                name: claim.name.clone(),
            },
            uid: uid.clone(),
        },
        target: PlannedTwin {
            id: target_id(&source_id, cluster, epoch),
            place: place(target),
        },
        source: PlannedTwin {
            id: source_id,
            place: place(source),
        },
    })
}

fn target_id(source: &VolumeId, cluster: ClusterId, epoch: Epoch) -> VolumeId {
    VolumeId {
        cluster,
        name: source.name.clone(),
        epoch,
    }
}
