//! What the status of a `VolumeMove` remembers for the driver, read into and written from the
//! types that decisions rest on. Without its status a move is at its beginning.

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    ClaimStatus, MoveRequest, MoveStage, Overruns, UnreadableStage, VolumeMove, VolumeMoveStatus,
    request::RequestError,
};
use crate::{
    placement::moving::{AsRead, MoveFacts, Recorded, Stage, Wishes},
    volume::{
        mark,
        moving::{CommitRecord, MoveRecordError, MoveUid, MoveUidError, SourceRecord},
    },
};

/// After so many times in which the same thing took too long, it is not tried again by itself.
const MOST_OVERRUNS: i32 = 3;

/// A `VolumeMove` that cannot be followed. Nothing is done for it, and nothing undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableMove {
    /// The API server has not written it.
    #[error("the VolumeMove has no uid or no resourceVersion that the API server writes: {0}")]
    Identity(MoveUidError),
    /// Its spec.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Its stage.
    #[error("the status of the VolumeMove cannot be read: {0}. Use the liqo-csi that began the move")]
    Stage(#[from] UnreadableStage),
    /// Which volume it is about.
    #[error("the status of the VolumeMove, claim {claim}: {why}. Use the liqo-csi that began the move")]
    Plan {
        /// The claim.
        claim: String,
        /// What is wrong.
        why: &'static str,
    },
    /// What it remembers of a claim.
    #[error("the status of the VolumeMove, claim {claim}: {error}")]
    Record {
        /// The claim.
        claim: String,
        /// What is wrong.
        error: MoveRecordError,
    },
    /// What it remembers of a claim is about another one.
    #[error("the status of the VolumeMove has a record of the claim {found} where that of {claim} should be")]
    OtherClaim {
        /// The claim.
        claim: String,
        /// Whose record it is.
        found: String,
    },
}

impl VolumeMove {
    /// Its uid.
    pub fn move_uid(&self) -> Result<MoveUid, UnreadableMove> {
        let uid = self.uid().unwrap_or_default();
        uid.parse().map_err(UnreadableMove::Identity)
    }

    /// How far it is.
    pub fn stage(&self) -> Result<Stage, UnreadableMove> {
        let stage = self.status.as_ref().and_then(|status| status.stage.as_ref());
        Ok(stage.map_or(Ok(Stage::Checking), Stage::try_from)?)
    }

    /// What has made the move stop to send the pods away by itself: with this spec it has taken too long
    /// each time.
    #[must_use]
    pub fn stopped_by(&self) -> Option<&Overruns> {
        let overruns = self.status.as_ref()?.overruns.as_ref()?;
        let is_of_now = overruns.generation == self.metadata.generation;
        (is_of_now && overruns.count >= MOST_OVERRUNS).then_some(overruns)
    }

    /// The facts that decisions rest on, at this time. `held_off` says that a cut-over has failed
    /// a moment ago.
    pub fn facts(&self, now: Timestamp, held_off: bool) -> Result<MoveFacts, UnreadableMove> {
        let uid = self.move_uid()?;
        let request = MoveRequest::try_from(self)?;
        let none = VolumeMoveStatus::default();
        let status = self.status.as_ref().unwrap_or(&none);
        let wishes = request.wishes(held_off);
        Ok(MoveFacts {
            at: AsRead::new(uid.to_string(), self.resource_version().unwrap_or_default()),
            uid,
            stage: self.stage()?,
            finalizer: self.finalizers().iter().any(|one| one == mark::MOVE),
            deleting: self.metadata.deletion_timestamp.is_some(),
            wishes: Wishes {
                // When it is known what speaks against it, a trial has served its purpose.
                cancel: request.cancel || (request.dry_run && status.preflight.is_some()),
                cutover: wishes.cutover && self.stopped_by().is_none(),
                ..wishes
            },
            obstacles: status.preflight.clone(),
            overdue: request.overdue(status, now),
        })
    }

    /// What is remembered of a claim; `None` if nothing is.
    #[must_use]
    pub fn claim_status(&self, name: &str) -> Option<&ClaimStatus> {
        let mut claims = self.status.iter().flat_map(|status| &status.claims);
        claims.find(|claim| claim.name == name)
    }
}

impl VolumeMoveStatus {
    /// Notes how far the move is, for the next leader and for people. `ready` says that all is
    /// copied and only the cut-over is waited for.
    pub fn enter(&mut self, stage: &Stage, ready: bool) {
        self.phase = Some(stage.phase(ready).to_string());
        self.stage = Some(MoveStage::from(stage));
    }
}

impl ClaimStatus {
    /// Notes the PV as it is before the gate.
    pub fn note_source(&mut self, record: &SourceRecord) -> Result<(), serde_json::Error> {
        self.record = Some(record.to_text()?);
        Ok(())
    }

    /// Notes the PV that replaces it: the commit.
    pub fn note_commit(&mut self, record: &CommitRecord) -> Result<(), serde_json::Error> {
        self.record = Some(record.to_text()?);
        Ok(())
    }

    /// The PV as it was before the gate; `None` before that was noted.
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

    /// The fact that decisions rest on.
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
