//! The volumes of a move: the claims by their uids, and the two twins of each. They are determined once,
//! before anything else, and recorded in the status, because the objects of a claim change during the move.

use super::{ClaimStatus, TwinReference, UnreadableMove, VolumeMove};
use crate::{
    placement::moving::Stage,
    volume::{ClaimName, ClusterId, Epoch, VolumeId, moving::MovedClaim},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedClaim {
    pub claim: MovedClaim,
    /// The twin of its volume before the move.
    pub source: PlannedTwin,
    /// The twin of its volume after the move.
    pub target: PlannedTwin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTwin {
    /// The volume id of its PV.
    pub id: VolumeId,
    /// The name of the twin in that cluster.
    pub place: ClaimName,
}

impl VolumeMove {
    /// The claims, in the order of the status; none until they are determined.
    pub fn plan(&self) -> Result<Vec<PlannedClaim>, UnreadableMove> {
        let claims = self.status.iter().flat_map(|status| &status.claims);
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let plan: Result<Vec<PlannedClaim>, UnreadableMove> =
            claims.map(|claim| planned(namespace, claim)).collect();
        let plan = plan?;
        let may_be_unsettled = matches!(
            self.stage()?,
            Stage::Checking | Stage::Rollback { .. } | Stage::Ended(_)
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
            why: "the claims are not those of the spec",
        })
    }
}

impl PlannedClaim {
    /// The status of the claim, without classes and nodes: those are recorded for users and for an undo, and
    /// no step depends on them.
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
        return Err(wrong("a required field is missing"));
    };
    let source_id: VolumeId = handle.parse().map_err(|_| wrong("its volumeHandle is invalid"))?;
    if source.cluster != source_id.cluster.as_str() || source_id.epoch.next() != Some(epoch) {
        return Err(wrong("its volumeHandle belongs to another volume"));
    }
    let cluster: ClusterId = target
        .cluster
        .parse()
        .map_err(|_| wrong("the cluster of its target is invalid"))?;
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
