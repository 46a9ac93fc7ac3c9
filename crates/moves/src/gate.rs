//! Reads and writes the objects of one claim that is being moved: the claim, its PV and both twins. The next
//! step is decided in `placement::moving`, on facts that `observe` and `users` read live. `apply` takes the
//! step, with `twins` for the twins, `name` for moves within one remote namespace, `recover` for a target that
//! is lost after the commit, and `remote` for the gate of a source in a remote cluster. `records` computes what
//! the status of the move records of the PV. The movers and the creation of the target twin are in
//! [`super::movers`]; evictions are in the crate `controllers`.

mod apply;
mod name;
mod observe;
mod records;
mod recover;
mod remote;
mod twins;
mod users;

pub use self::apply::unlocked;
pub(super) use self::{apply::outcome, observe::twins_volume};

#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::{
    cluster::{ApiError, Cluster, Objects},
    fleet::{Registry, Unreachable},
    movers::{HelperError, TargetError},
    placement::{
        DeleteRefusal,
        moving::{
            ClaimFacts, ClaimNow, Copied, Helpers, Live, Recorded, RemoteVolume, Side, SourceTwin,
            TargetTwin, Users, VolumeNow,
        },
    },
    topology::AffinityError,
    twin::Site,
    volume::{
        RecordError, VolumeId, VolumeName,
        moving::{
            CommitRecord, Manifest, MoveRecordError, MoveUid, MoveUidError, MovedClaim, SourceRecord,
            TwinMarkError,
        },
    },
};

/// A claim that is being moved.
pub struct MovedVolume {
    pub home: Cluster,
    /// The uid of the `VolumeMove`.
    pub by: MoveUid,
    pub claim: MovedClaim,
    pub source: MovedSide,
    pub target: MovedSide,
    /// The records in the status of the move.
    pub records: Records,
    /// The node where the source was read before the gate, from the status.
    pub mover_node: Option<String>,
    /// Whether the source is being recovered after the commit, or was.
    pub recovers: bool,
    /// Whether an administrator declared the cluster of the target out of service.
    pub target_out_of_service: bool,
}

/// One side of a move.
pub struct MovedSide {
    /// The volume id of the twin on this side.
    pub id: VolumeId,
    pub place: Place,
}

/// Where the twin of one side is.
pub enum Place {
    Site(Box<Site>),
    Unreachable(String),
    Gone,
}

/// What the status of a move records of a claim.
pub enum Records {
    Nothing,
    /// The PV as it was before the gate.
    Source(Box<SourceRecord>),
    /// Also the PV that replaces it.
    Committed(Box<CommitRecord>),
}

/// The objects of one claim, as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimObjects {
    pub claim: ClaimNow,
    pub too_small: Option<String>,
    pub volume: VolumeNow,
    pub source: Live<SourceTwin>,
    pub there: Option<RemoteVolume>,
    pub target: Live<TargetTwin>,
    pub users: Live<Users>,
}

/// The movers of one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Movers {
    pub source: Live<Helpers>,
    pub target: Live<Helpers>,
    pub copied: Live<Copied>,
    /// The node where the source is read, while its mover runs.
    pub reads_on: Option<ReadsOn>,
}

/// The node where a source is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadsOn {
    pub node: String,
    /// Why another mover could not start there, if known.
    pub unfit: Option<String>,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Done,
    /// The object was changed since the decision, or another object has its name. Nothing was written; the
    /// caller observes and decides again.
    ChangedMeanwhile,
    /// The step is not one of this module: it concerns movers or pods, or creates the target twin.
    NotHandled,
}

/// Why objects cannot be read, or a step fails.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The lock of a claim has a value that this driver does not write.
    #[error(
        "the annotation {key} of the claim {claim}: {error}. Remove it unless a VolumeMove of that namespace moves the claim",
        key = crate::volume::mark::MOVE
    )]
    Lock { claim: String, error: MoveUidError },
    #[error("the PersistentVolume {volume}: {error}")]
    Volume { volume: String, error: RecordError },
    #[error("the twin {twin} in cluster {cluster}: {error}")]
    Twin {
        twin: String,
        cluster: String,
        error: TwinMarkError,
    },
    #[error("the cluster of the {side} is unreachable: {why}")]
    Unreachable { side: &'static str, why: String },
    /// A PV must be created that is not recorded.
    #[error(
        "the status of the VolumeMove has no record of the PersistentVolume {0}, from which to create it again"
    )]
    NoRecord(VolumeName),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Helpers(#[from] HelperError),
    #[error("the PersistentVolume {volume} cannot be recorded in the status of the VolumeMove: {error}")]
    Record {
        volume: VolumeName,
        error: MoveRecordError,
    },
    #[error("the new twin {twin} in cluster {cluster} is not bound to a PersistentVolume yet")]
    Unbound { twin: String, cluster: String },
    #[error("the new twin {twin}: {error}")]
    Nowhere { twin: String, error: AffinityError },
    #[error("the source is not deleted: {0}")]
    SourceKept(DeleteRefusal),
    /// Another claim has the name of a twin.
    #[error(
        "the claim {twin} in the cluster {cluster} has the name that the twin of this move needs: delete it; the data is safe, and \
         the move continues then"
    )]
    NameTaken { twin: String, cluster: String },
    #[error("the PersistentVolume {volume} cannot be written as JSON: {error}")]
    Unwritable {
        volume: String,
        error: serde_json::Error,
    },
}

impl Place {
    /// The place of a site. An undeclared cluster counts as gone only if all declarations were read.
    #[must_use]
    pub fn of(found: Result<Site, Unreachable>, registry: &Registry) -> Self {
        match found {
            Ok(site) => Self::Site(Box::new(site)),
            Err(Unreachable::Unknown(_)) if registry.is_complete() => Self::Gone,
            Err(error) => Self::Unreachable(error.to_string()),
        }
    }
}

impl Records {
    /// The PV of this side, if recorded.
    fn manifest(&self, side: Side) -> Option<(&MovedClaim, &Manifest)> {
        match (self, side) {
            (Self::Source(record), Side::Source) => Some((&record.claim, &record.source)),
            (Self::Committed(record), Side::Source) => {
                Some((&record.source().claim, &record.source().source))
            }
            (Self::Committed(record), Side::Target) => Some((&record.source().claim, record.target())),
            (Self::Nothing, _) | (Self::Source(_), Side::Target) => None,
        }
    }
}

impl ClaimObjects {
    /// The facts for the decision. The caller reads `recorded` after the objects.
    #[must_use]
    pub fn facts(self, of: &MovedVolume, movers: Movers, recorded: Option<Recorded>) -> ClaimFacts {
        let copied = match movers.copied {
            Live::Known(copied) => Live::Known(Copied {
                too_small: copied.too_small.or(self.too_small),
                ..copied
            }),
            Live::Unknown(why) => Live::Unknown(why),
        };
        ClaimFacts {
            claim: self.claim,
            volume: self.volume,
            source: self.source,
            there: self.there,
            target: self.target,
            target_out_of_service: of.target_out_of_service,
            same_namespace: of.name_to_take().is_some(),
            epoch: of.target.id.epoch,
            source_helpers: movers.source,
            target_helpers: movers.target,
            users: self.users,
            unwatched: None,
            copied,
            recorded,
        }
    }
}

impl MovedVolume {
    /// The name of the volume and of its PV.
    pub(super) fn volume(&self) -> &VolumeName {
        &self.source.id.name
    }

    pub(super) fn claims(&self) -> Objects<PersistentVolumeClaim> {
        self.home.within(&self.claim.name.namespace)
    }

    pub(super) fn volumes(&self) -> Objects<PersistentVolume> {
        self.home.all()
    }

    /// The site of a side; an error if its cluster is unreachable.
    pub(super) fn site(&self, of: Side) -> Result<&Site, GateError> {
        let (name, side) = match of {
            Side::Source => ("source", &self.source),
            Side::Target => ("target", &self.target),
        };
        let unreachable = |why: &str| GateError::Unreachable {
            side: name,
            why: why.to_owned(),
        };
        match &side.place {
            Place::Site(found) => Ok(found),
            Place::Unreachable(why) => Err(unreachable(why)),
            Place::Gone => Err(unreachable("it is no longer declared")),
        }
    }
}
