//! The state of the driver in the status of a `VolumeMove`, converted from and to the types of the model. A
//! move without a status is at its beginning.

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    ClaimStatus, MoveRequest, MoveStage, Overruns, UnreadableStage, VolumeMove, VolumeMoveStatus,
    request::RequestError,
};
use crate::{
    placement::moving::{AsRead, MoveFacts, Recorded, Requested, Stage},
    volume::{
        mark,
        moving::{CommitRecord, MoveRecordError, MoveUid, MoveUidError, SourceRecord},
    },
};

/// After this many overruns of the same limit, the driver does not retry automatically.
const MOST_OVERRUNS: i32 = 3;

/// A `VolumeMove` that cannot be reconciled. Nothing is done for it, and nothing undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableMove {
    /// Its metadata does not come from an API server.
    #[error("the VolumeMove has no uid or no resourceVersion that the API server writes: {0}")]
    Identity(MoveUidError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the status of the VolumeMove cannot be read: {0}. Use the liqo-csi that began the move")]
    Stage(#[from] UnreadableStage),
    #[error("the status of the VolumeMove, claim {claim}: {why}. Use the liqo-csi that began the move")]
    Plan { claim: String, why: &'static str },
    /// The record of a claim.
    #[error("the status of the VolumeMove, claim {claim}: {error}")]
    Record { claim: String, error: MoveRecordError },
    /// The record is that of another claim.
    #[error("the status of the VolumeMove has a record of the claim {found} where that of {claim} should be")]
    OtherClaim {
        claim: String,
        /// The claim in the record.
        found: String,
    },
}

impl VolumeMove {
    pub fn move_uid(&self) -> Result<MoveUid, UnreadableMove> {
        let uid = self.uid().unwrap_or_default();
        uid.parse().map_err(UnreadableMove::Identity)
    }

    pub fn stage(&self) -> Result<Stage, UnreadableMove> {
        let stage = self.status.as_ref().and_then(|status| status.stage.as_ref());
        Ok(stage.map_or(Ok(Stage::Checking), Stage::try_from)?)
    }

    /// Why the move does not start a cut-over automatically any more: with this spec, the limit was exceeded
    /// each time.
    #[must_use]
    pub fn stopped_by(&self) -> Option<&Overruns> {
        let overruns = self.status.as_ref()?.overruns.as_ref()?;
        let is_of_now = overruns.generation == self.metadata.generation;
        (is_of_now && overruns.count >= MOST_OVERRUNS).then_some(overruns)
    }

    /// The facts for decisions, at this time. `held_off` says that a cut-over has failed recently.
    pub fn facts(&self, now: Timestamp, held_off: bool) -> Result<MoveFacts, UnreadableMove> {
        let uid = self.move_uid()?;
        let request = MoveRequest::try_from(self)?;
        let none = VolumeMoveStatus::default();
        let status = self.status.as_ref().unwrap_or(&none);
        let requested = request.requested(held_off);
        Ok(MoveFacts {
            at: AsRead::new(uid.to_string(), self.resource_version().unwrap_or_default()),
            uid,
            stage: self.stage()?,
            finalizer: self.finalizers().iter().any(|one| one == mark::MOVE),
            deleting: self.metadata.deletion_timestamp.is_some(),
            requested: Requested {
                // A dry run is complete once the result of its preflight checks is known.
                cancel: request.cancel || (request.dry_run && status.preflight.is_some()),
                cutover: requested.cutover && self.stopped_by().is_none(),
                ..requested
            },
            obstacles: status.preflight.clone(),
            overdue: request.overdue(status, now),
        })
    }

    /// The status of a claim; `None` if there is none.
    #[must_use]
    pub fn claim_status(&self, name: &str) -> Option<&ClaimStatus> {
        let mut claims = self.status.iter().flat_map(|status| &status.claims);
        claims.find(|claim| claim.name == name)
    }
}

impl VolumeMoveStatus {
    /// Records the stage of the move, for the next leader and for users. `ready` says that everything is
    /// copied and only the cut-over is missing.
    pub fn enter(&mut self, stage: &Stage, ready: bool) {
        self.phase = Some(stage.phase(ready).to_string());
        self.stage = Some(MoveStage::from(stage));
    }
}

impl ClaimStatus {
    /// Records the PV before the gate.
    pub fn note_source(&mut self, record: &SourceRecord) -> Result<(), serde_json::Error> {
        self.record = Some(record.to_text()?);
        Ok(())
    }

    /// Records the PV that replaces it: the commit.
    pub fn note_commit(&mut self, record: &CommitRecord) -> Result<(), serde_json::Error> {
        self.record = Some(record.to_text()?);
        Ok(())
    }

    /// The PV before the gate; `None` before that was recorded.
    pub fn source_record(&self) -> Result<Option<SourceRecord>, UnreadableMove> {
        let record = self.read(SourceRecord::from_text)?;
        record
            .map(|record| self.is_its(&record).map(|()| record))
            .transpose()
    }

    /// The PV that replaces it, and the one before; an error before the commit.
    pub fn commit_record(&self) -> Result<Option<CommitRecord>, UnreadableMove> {
        let record = self.read(CommitRecord::from_text)?;
        record
            .map(|record| self.is_its(record.source()).map(|()| record))
            .transpose()
    }

    /// The record, as a fact for decisions.
    pub fn recorded(&self) -> Result<Option<Recorded>, UnreadableMove> {
        let record = self.source_record()?;
        Ok(record.map(|record| Recorded {
            policy: record.policy,
            claim_uid: record.claim.uid,
        }))
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&str) -> Result<T, MoveRecordError>,
    ) -> Result<Option<T>, UnreadableMove> {
        let read = self.record.as_deref().map(read).transpose();
        read.map_err(|error| UnreadableMove::Record {
            claim: self.name.clone(),
            error,
        })
    }

    fn is_its(&self, record: &SourceRecord) -> Result<(), UnreadableMove> {
        let found = &record.claim.name;
        if found.name == self.name {
            return Ok(());
        }
        Err(UnreadableMove::OtherClaim {
            claim: self.name.clone(),
            found: found.to_string(),
        })
    }
}
