//! Reports the state of a volume: by events, and by a condition of its claim.

use super::{Health, texts::describe_twin, volume_status::VolumeStatus};
use crate::{cluster::ApiError, mirror, twin_condition::TwinCondition};

impl Health<'_> {
    pub(super) async fn report(&mut self, volume_status: &VolumeStatus, note: &str) -> Result<(), ApiError> {
        if let Some(claim) = &volume_status.volume.claim {
            self.reports
                .warn(claim, volume_status.diagnosis.name(), note)
                .await;
        }
        self.update_condition(volume_status, note).await
    }

    /// Updates the condition of the claim.
    pub(super) async fn update_condition(
        &self,
        volume_status: &VolumeStatus,
        note: &str,
    ) -> Result<(), ApiError> {
        let (Some(claim), Some(mark)) = (&volume_status.claim, &volume_status.volume.claim) else {
            return Ok(());
        };
        mirror::condition(self.home, claim, mark, &condition(volume_status, note)).await
    }

    /// Sets the condition of the claim of a healthy volume.
    pub(super) async fn show_bound(
        &self,
        volume_status: &VolumeStatus,
        earlier_data: Option<&str>,
    ) -> Result<(), ApiError> {
        match bound_message(volume_status, earlier_data) {
            Some(message) => self.update_condition(volume_status, &message).await,
            None => Ok(()),
        }
    }

    /// Emits an event that pods do not find the twin of a healthy volume; or that the volume is healthy again, if it was
    /// reported as unhealthy.
    pub(super) async fn report_healthy(&mut self, volume_status: &VolumeStatus) {
        let Some(claim) = &volume_status.volume.claim else {
            return;
        };
        if let Some(why) = &volume_status.misplaced {
            self.reports.warn(claim, "TwinMisplaced", why).await;
        } else if self.reports.has_report(&claim.uid) {
            let note = "the volume has its twin again";
            self.reports.recovered(claim, "TwinRecovered", note).await;
        }
    }
}

/// Whether the claim of a healthy volume has the condition with this message already: it outlives this process, and
/// so shows that there was an event.
pub(super) fn shows_bound(volume_status: &VolumeStatus, earlier_data: Option<&str>) -> bool {
    let (Some(claim), Some(message)) = (&volume_status.claim, bound_message(volume_status, earlier_data))
    else {
        return false;
    };
    mirror::has_condition(claim, &condition(volume_status, &message))
}

fn condition<'a>(volume_status: &VolumeStatus, message: &'a str) -> TwinCondition<'a> {
    TwinCondition {
        status: volume_status.diagnosis.condition_status(),
        reason: volume_status.diagnosis.name(),
        message,
    }
}

/// The message of the condition of the claim of a healthy volume.
fn bound_message(volume_status: &VolumeStatus, earlier_data: Option<&str>) -> Option<String> {
    let site = volume_status.site.as_ref().ok()?;
    Some(match (&volume_status.misplaced, earlier_data) {
        (Some(why), Some(note)) => format!("it is bound, and {why}; {note}"),
        (Some(why), None) => format!("it is bound, and {why}"),
        (None, Some(note)) => note.to_owned(),
        (None, None) => format!("{} is bound", describe_twin(site)),
    })
}
