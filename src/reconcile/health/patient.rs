//! A volume as it is seen in one round.

use std::sync::Arc;

use super::condition::Condition;
use crate::{
    cluster::{ApiError, slim::Twin},
    reconcile::watched::{Claim, VirtualVolume},
    twin::Site,
};

/// A volume as it is seen now.
pub(super) struct Patient {
    pub(super) volume: VirtualVolume,
    pub(super) claim: Option<Arc<Claim>>,
    /// Where its twin is, or why that cannot be asked.
    pub(super) site: Result<Site, String>,
    pub(super) twin: Option<Arc<Twin>>,
    pub(super) condition: Condition,
}

impl Patient {
    pub(super) fn is_remote(&self) -> bool {
        self.site
            .as_ref()
            .map_or(true, |site| site.remote_cluster().is_some())
    }

    /// What failed for one volume is no reason to let the others wait: only what may
    /// have hit them all, trouble with the home cluster, fails the round.
    pub(super) fn alone(&self, done: Result<(), ApiError>) -> Result<(), ApiError> {
        let Err(error) = done else { return Ok(()) };
        tracing::warn!(volume = self.volume.name, cluster = %self.volume.cluster, %error, "a volume could not be looked after");
        if self.is_remote() || !error.is_transient() {
            return Ok(());
        }
        Err(error)
    }

    /// Its claim is gone and its data is to stay; somebody deletes what is left.
    pub(super) fn is_left_behind(&self) -> bool {
        let dying = self.twin.as_ref().is_some_and(|twin| twin.deleting);
        dying && !self.volume.bound && self.volume.retain && !self.volume.deleting
    }
}
