//! What people are told of a volume: by events, and of one elsewhere on its claim.

use super::{Health, condition::Condition, patient::Patient};
use crate::{
    cluster::ApiError,
    reconcile::mirror::{self, Told},
    volume::ClaimMark,
};

impl Health<'_> {
    /// Tells the user: by an event, and for what is elsewhere on the claim as well.
    pub(super) async fn tell(&mut self, patient: &Patient, note: &str) -> Result<(), ApiError> {
        if let Some(claim) = &patient.volume.claim {
            self.reports.warn(claim, patient.condition.reason(), note).await;
        }
        self.mirror(patient, note).await
    }

    /// Brings what the claim says of a remote twin up to date.
    pub(super) async fn mirror(&self, patient: &Patient, note: &str) -> Result<(), ApiError> {
        let (Some(claim), Some(mark)) = (&patient.claim, &patient.volume.claim) else {
            return Ok(());
        };
        if !patient.is_remote {
            return Ok(());
        }
        let told = Told {
            status: match patient.condition {
                Condition::Healthy | Condition::Ending => "True",
                Condition::Unreachable => "Unknown",
                _ => "False",
            },
            reason: patient.condition.reason(),
            message: note,
        };
        mirror::condition(self.home, claim, mark, &told).await
    }

    /// A remote volume that is well: its claim says so, and how large it is.
    pub(super) async fn show(&self, patient: &Patient) -> Result<(), ApiError> {
        let (Ok(site), Some(twin)) = (&patient.site, &patient.twin) else {
            return Ok(());
        };
        let note = format!(
            "the twin {} in the cluster {} is bound",
            site.place(),
            site.cluster_name()
        );
        self.mirror(patient, &note).await?;
        match twin.bytes {
            Some(bytes) if bytes != patient.volume.bytes => {
                mirror::capacity(self.home, &patient.volume, bytes).await
            }
            _ => Ok(()),
        }
    }

    /// Who was told that a volume is ill is told that it is well again.
    pub(super) async fn recovered(&mut self, claim: &ClaimMark) {
        if self.reports.any(&claim.uid) {
            let note = "the volume has its twin again";
            self.reports.well(claim, "TwinRecovered", note).await;
        }
    }
}
