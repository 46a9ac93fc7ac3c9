//! The observed state of a volume in one round.

use std::sync::Arc;

use crate::{
    cluster::{ApiError, slim::Twin},
    observe::log::OngoingOfEach,
    placement::Diagnosis,
    twin::{Site, is_seen_of_move},
    watched::{Claim, VirtualVolume},
};

/// The failures of checks, which are logged when they begin and when they change.
#[derive(Default)]
pub(super) struct Failures(OngoingOfEach);

impl Failures {
    /// Forgets the failures of other volumes.
    pub(super) fn keep(&self, is_kept: impl Fn(&str) -> bool) {
        self.0
            .keep(|key| key.split_once('/').is_some_and(|(_, volume)| is_kept(volume)));
    }
}

fn key(volume: &str, part: Part) -> String {
    format!("{part:?}/{volume}")
}

/// The observed state of a volume.
pub(super) struct VolumeStatus {
    pub(super) volume: Arc<VirtualVolume>,
    pub(super) claim: Option<Arc<Claim>>,
    pub(super) is_remote: bool,
    /// The site of the twin, or why the twin cannot be read.
    pub(super) site: Result<Site, String>,
    pub(super) twin: Option<Arc<Twin>>,
    pub(super) diagnosis: Diagnosis,
    /// Why pods with its claim do not find the twin, if it is healthy.
    pub(super) misplaced: Option<String>,
    /// Whether the state of the twin is too old to be trusted.
    pub(super) is_outdated: bool,
}

/// A part of the check of a volume.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Repair,
    Release,
    Upkeep,
}

impl VolumeStatus {
    /// The failure of one volume does not fail the round, so that the others are still checked; except
    /// for temporary errors of the home cluster, which may concern all of them.
    pub(super) fn tolerate(
        &self,
        failures: &Failures,
        part: Part,
        done: Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let Err(error) = done else {
            failures.0.is_over(&key(&self.volume.name, part));
            return Ok(());
        };
        if failures
            .0
            .is_news(&key(&self.volume.name, part), error.to_string())
        {
            tracing::warn!(volume = self.volume.name, cluster = %self.volume.cluster, %error, "failed to check a volume");
        }
        if self.is_remote || !error.is_transient() {
            return Ok(());
        }
        Err(error)
    }

    /// The claim is deleted, the data has to be retained, and another client is deleting the twin.
    pub(super) fn is_leftover(&self) -> bool {
        self.may_be_leftover()
            && self
                .twin
                .as_ref()
                .is_some_and(|twin| twin.deleting && !twin.releasing && !is_seen_of_move(twin))
    }

    /// The claim is deleted, and the data has to be retained.
    fn may_be_leftover(&self) -> bool {
        !self.volume.bound && self.volume.retain && !self.volume.deleting
    }

    /// Whether its twin has to be read live, because the view is outdated.
    pub(super) fn has_to_be_read(&self) -> bool {
        let matters = match self.diagnosis {
            Diagnosis::Ending => self.may_be_leftover(),
            Diagnosis::Moving => false,
            _ => true,
        };
        self.site.is_ok() && self.is_outdated && matters
    }
}
