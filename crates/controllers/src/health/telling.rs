//! What people are told of a volume: by events, and by a condition of its claim.

use super::{Health, volume_status::VolumeStatus, words::name_of_twin};
use crate::{cluster::ApiError, mirror, twin_condition::TwinCondition, volume::ClaimMark};

impl Health<'_> {
    /// Tells the user: by an event, and by the condition of the claim.
    pub(super) async fn tell(&mut self, volume_status: &VolumeStatus, note: &str) -> Result<(), ApiError> {
        if let Some(claim) = &volume_status.volume.claim {
            self.reports
                .warn(claim, volume_status.diagnosis.name(), note)
                .await;
        }
        self.mirror(volume_status, note).await
    }

    /// Brings what the claim says of its twin up to date.
    pub(super) async fn mirror(&self, volume_status: &VolumeStatus, note: &str) -> Result<(), ApiError> {
        let (Some(claim), Some(mark)) = (&volume_status.claim, &volume_status.volume.claim) else {
            return Ok(());
        };
        let told = TwinCondition {
            status: volume_status.diagnosis.condition_status(),
            reason: volume_status.diagnosis.name(),
            message: note,
        };
        mirror::condition(self.home, claim, mark, &told).await
    }

    /// A volume that is well: its claim says so.
    pub(super) async fn show(&self, volume_status: &VolumeStatus) -> Result<(), ApiError> {
        let Ok(site) = &volume_status.site else {
            return Ok(());
        };
        let note = format!("{} is bound", name_of_twin(site));
        self.mirror(volume_status, &note).await
    }

    /// Who was told that a volume is ill is told that it is well again.
    pub(super) async fn recovered(&mut self, claim: &ClaimMark) {
        if self.reports.any(&claim.uid) {
            let note = "the volume has its twin again";
            self.reports.well(claim, "TwinRecovered", note).await;
        }
    }
}
