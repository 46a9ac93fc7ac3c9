//! A volume as it is seen in one round.

use std::sync::Arc;

use crate::{
    cluster::{ApiError, slim::Twin},
    placement::Diagnosis,
    twin::{Site, is_seen_of_move},
    watched::{Claim, VirtualVolume},
};

/// A volume as it is seen now.
pub(super) struct VolumeStatus {
    pub(super) volume: Arc<VirtualVolume>,
    pub(super) claim: Option<Arc<Claim>>,
    /// Whether its twin is in another cluster.
    pub(super) is_remote: bool,
    /// Where its twin is, or why that cannot be asked.
    pub(super) site: Result<Site, String>,
    pub(super) twin: Option<Arc<Twin>>,
    pub(super) diagnosis: Diagnosis,
    /// Whether the twin was seen too long ago to say anything of it.
    pub(super) is_outdated: bool,
}

impl VolumeStatus {
    /// What failed for one volume is no reason to let the others wait: only what may
    /// have hit them all, trouble with the home cluster, fails the round.
    pub(super) fn alone(&self, done: Result<(), ApiError>) -> Result<(), ApiError> {
        let Err(error) = done else { return Ok(()) };
        tracing::warn!(volume = self.volume.name, cluster = %self.volume.cluster, %error, "a volume could not be looked after");
        if self.is_remote || !error.is_transient() {
            return Ok(());
        }
        Err(error)
    }

    /// Its claim is gone and its data is to stay; somebody deletes what is left.
    pub(super) fn is_left_behind(&self) -> bool {
        self.may_be_left_behind()
            && self
                .twin
                .as_ref()
                .is_some_and(|twin| twin.deleting && !twin.releasing && !is_seen_of_move(twin))
    }

    /// Its claim is gone and its data is to stay.
    fn may_be_left_behind(&self) -> bool {
        !self.volume.bound && self.volume.retain && !self.volume.deleting
    }

    /// Whether its twin has to be read by itself, for what was seen of it is no news.
    pub(super) fn has_to_be_read(&self) -> bool {
        let matters = match self.diagnosis {
            Diagnosis::Ending => self.may_be_left_behind(),
            Diagnosis::Moving => false,
            _ => true,
        };
        self.site.is_ok() && self.is_outdated && matters
    }
}
