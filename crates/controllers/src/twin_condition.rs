//! The condition of a claim that reports the state of its twin, and how to tell whether it has changed.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::unserved::REASONS;
use crate::{
    cluster::facts,
    volume::{digest, mark::TWIN_READY},
};

/// The condition to write.
pub(super) struct TwinCondition<'a> {
    pub(super) status: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

impl TwinCondition<'_> {
    /// Equal digests mean equal conditions.
    fn digest(&self) -> String {
        digest(16, [self.status, self.reason, self.message])
    }
}

/// The condition that a claim has, as far as it is needed to detect a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CurrentCondition {
    status: String,
    digest: String,
    /// Whether the condition reports that a cluster does not serve the claim.
    pub(super) says_unserved: bool,
}

impl CurrentCondition {
    /// Whether it equals the condition to write.
    pub(super) fn equals(&self, other: &TwinCondition<'_>) -> bool {
        self.digest == other.digest()
    }

    /// Whether it has the same status, possibly for another reason.
    pub(super) fn has_status_of(&self, other: &TwinCondition<'_>) -> bool {
        self.status == other.status
    }
}

/// The condition of a claim, if it has one.
pub(super) fn current(claim: &PersistentVolumeClaim) -> Option<CurrentCondition> {
    let ours = facts::condition(claim, TWIN_READY)?;
    let condition = TwinCondition {
        status: &ours.status,
        reason: ours.reason.as_deref().unwrap_or_default(),
        message: ours.message.as_deref().unwrap_or_default(),
    };
    Some(CurrentCondition {
        digest: condition.digest(),
        status: ours.status.clone(),
        says_unserved: condition.status == "False" && REASONS.contains(&condition.reason),
    })
}
