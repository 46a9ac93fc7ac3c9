//! What a claim says about its twin, and how it is recognised that nothing new is to be said.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::{
    cluster::facts,
    volume::{digest, mark::TWIN_READY},
};

/// The condition of a claim that tells of its twin.
pub(super) struct TwinCondition<'a> {
    pub(super) status: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

impl TwinCondition<'_> {
    /// The same as long as it says the same.
    fn digest(&self) -> String {
        digest(16, [self.status, self.reason, self.message])
    }
}

/// What a claim says about its twin now, as far as it matters to whoever may say more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    status: String,
    digest: String,
}

impl Said {
    /// Whether that is what is to be said.
    pub(super) fn is(&self, told: &TwinCondition<'_>) -> bool {
        self.digest == told.digest()
    }

    /// Whether it has the same status, be it for another reason.
    pub(super) fn is_of_status(&self, told: &TwinCondition<'_>) -> bool {
        self.status == told.status
    }
}

/// What a claim says; `None` if it says nothing.
pub(super) fn said(claim: &PersistentVolumeClaim) -> Option<Said> {
    let ours = facts::condition(claim, TWIN_READY)?;
    let told = TwinCondition {
        status: &ours.status,
        reason: ours.reason.as_deref().unwrap_or_default(),
        message: ours.message.as_deref().unwrap_or_default(),
    };
    Some(Said {
        digest: told.digest(),
        status: ours.status.clone(),
    })
}
