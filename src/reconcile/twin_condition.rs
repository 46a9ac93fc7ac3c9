//! What a claim says about its twin, and how it is recognised that nothing new is to be said.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::volume::{digest, mark::TWIN_READY};

/// The condition of a claim that tells of its twin.
pub(super) struct TwinCondition<'a> {
    pub(super) status: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

impl TwinCondition<'_> {
    /// The same as long as it says the same.
    pub(super) fn digest(&self) -> String {
        digest(16, [self.status, self.reason, self.message])
    }
}

/// Stands for what a claim says now; empty if it says nothing.
pub(super) fn said(claim: &PersistentVolumeClaim) -> String {
    let conditions = claim
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let ours = conditions.into_iter().find(|one| one.type_ == TWIN_READY);
    ours.map_or_else(String::new, |one| {
        let told = TwinCondition {
            status: &one.status,
            reason: one.reason.as_deref().unwrap_or_default(),
            message: one.message.as_deref().unwrap_or_default(),
        };
        told.digest()
    })
}
