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
        let wanted = TwinCondition {
            status: volume_status.diagnosis.condition_status(),
            reason: volume_status.diagnosis.name(),
            message: note,
        };
        mirror::condition(self.home, claim, mark, &wanted).await
    }

    /// Sets the condition of the claim of a healthy volume.
    pub(super) async fn show_bound(
        &self,
        volume_status: &VolumeStatus,
        earlier_data: Option<&str>,
    ) -> Result<(), ApiError> {
        let Ok(site) = &volume_status.site else {
            return Ok(());
        };
        let note = match (&volume_status.misplaced, earlier_data) {
            (Some(why), _) => format!("it is bound, and {why}"),
            (None, Some(note)) => note.to_owned(),
            (None, None) => format!("{} is bound", describe_twin(site)),
        };
        self.update_condition(volume_status, &note).await
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
