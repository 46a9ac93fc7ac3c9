//! One claim whose volume is being moved, as its objects show it and as steps change it: the
//! claim, its PV, both twins, and who uses them. What is done next is decided in
//! `placement::moving`; here it is read live for that (`observe`, `users`), and one step is carried
//! out (`apply`, `twins`, `name` within one remote namespace, and `recover` if the target was lost after the
//! commit); and what the status of the move is to remember of its PV (`records`).
//! Movers and the making of the target's twin are in [`super::movers`]; evictions are not here.

mod apply;
mod name;
mod observe;
mod records;
mod recover;
mod twins;
mod users;

pub(super) use self::{apply::outcome, observe::twins_volume};

#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::{
    cluster::{ApiError, Cluster, Objects},
    fleet::{Registry, Unreachable},
    movers::{HelperError, TargetError},
    placement::moving::{
        ClaimFacts, ClaimNow, Copied, Helpers, Live, Recorded, Side, SourceTwin, TargetTwin, Users, VolumeNow,
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
    /// The cluster of the claim.
    pub home: Cluster,
    /// The move.
    pub by: MoveUid,
    /// The claim.
    pub claim: MovedClaim,
    /// Where its volume was.
    pub source: MovedSide,
    /// Where it is to be.
    pub target: MovedSide,
    /// What the status of the move remembers of it.
    pub records: Records,
    /// The node where the source was read before the gate, as the status remembers it.
    pub mover_node: Option<String>,
    /// Whether the source is being recovered after the commit, or was.
    pub recovers: bool,
    /// Whether an administrator declared the cluster of the target out of service.
    pub target_off: bool,
}

/// One side of a move.
pub struct MovedSide {
    /// What the PV says that leads there.
    pub id: VolumeId,
    /// Where the twin is.
    pub place: Place,
}

/// Where the twin of one side is.
pub enum Place {
    /// Here.
    Site(Box<Site>),
    /// In a cluster that does not answer, for this reason.
    Silent(String),
    /// In a cluster that nobody declares any more.
    Gone,
}

/// What the status of a move remembers of a claim.
pub enum Records {
    /// Nothing yet.
    Nothing,
    /// The PV as it was before the gate.
    Source(Box<SourceRecord>),
    /// The PV that replaces it, too.
    Committed(Box<CommitRecord>),
}

/// The objects of one claim, as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimObjects {
    /// The claim.
    pub claim: ClaimNow,
    /// Why the target will never be as large as it asks.
    pub too_small: Option<String>,
    /// Its PV.
    pub volume: VolumeNow,
    /// The twin at the source.
    pub source: Live<SourceTwin>,
    /// The twin at the target.
    pub target: Live<TargetTwin>,
    /// Who uses them.
    pub users: Live<Users>,
}

/// What is known of the movers of one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Movers {
    /// Those at the source.
    pub source: Live<Helpers>,
    /// Those at the target.
    pub target: Live<Helpers>,
    /// How far they are.
    pub copied: Live<Copied>,
    /// Where the source is read, while its mover runs.
    pub reads_on: Option<ReadsOn>,
}

/// The node where a source is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadsOn {
    /// Its name.
    pub node: String,
    /// Why no other mover would come up there, as far as that is known.
    pub unfit: Option<String>,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was done.
    Done,
    /// Somebody has changed the object since the decision, or made one of its name. Nothing was
    /// done; what is there now is looked at, and decided anew.
    ChangedMeanwhile,
    /// It is none of this module's: it is about movers or pods, or makes the target's twin.
    NotHere,
}

/// Why objects cannot be read, or a step cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// An API server does not answer, or refuses.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// Somebody has written the lock of a claim by hand.
    #[error(
        "the annotation {key} of the claim {claim}: {error}. Remove it if no VolumeMove of that namespace is about the claim",
        key = crate::volume::mark::MOVE
    )]
    Lock {
        /// The claim.
        claim: String,
        /// What is wrong with it.
        error: MoveUidError,
    },
    /// What a move has written on a PV cannot be read.
    #[error("the PersistentVolume {volume}: {error}")]
    Volume {
        /// The PV.
        volume: String,
        /// What is wrong with it.
        error: RecordError,
    },
    /// What a move has written on a twin cannot be read.
    #[error("the twin {twin} in cluster {cluster}: {error}")]
    Twin {
        /// The twin.
        twin: String,
        /// Its cluster.
        cluster: String,
        /// What is wrong with it.
        error: TwinMarkError,
    },
    /// A step is about a twin that cannot be reached.
    #[error("the cluster of the twin at the {side} cannot be reached: {why}")]
    Silent {
        /// Which twin, in a word.
        side: &'static str,
        /// Why not.
        why: String,
    },
    /// A PV is to be made that is recorded nowhere.
    #[error(
        "the status of the VolumeMove has no record of the PersistentVolume {0}, from which it could be made again"
    )]
    NoRecord(VolumeName),
    /// The target cannot have a twin.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Movers cannot be made.
    #[error(transparent)]
    Helpers(#[from] HelperError),
    /// A PV cannot be recorded, or not be replaced by one that leads to the target.
    #[error("the PersistentVolume {volume} cannot be noted in the status of the VolumeMove: {error}")]
    Record {
        /// The PV.
        volume: VolumeName,
        /// Why not.
        error: MoveRecordError,
    },
    /// It is not known from where the twin at the target can be used.
    #[error("the new twin {twin} in cluster {cluster} is not bound to a PersistentVolume yet")]
    Unbound {
        /// The twin.
        twin: String,
        /// Its cluster.
        cluster: String,
    },
    /// The twin at the target can be used from nowhere.
    #[error("the new twin {twin}: {error}")]
    Nowhere {
        /// The twin.
        twin: String,
        /// Why not.
        error: AffinityError,
    },
    /// Another claim has the name that a twin needs.
    #[error(
        "the claim {twin} in the cluster {cluster} has the name that the twin of this move needs: delete it; the data is safe, and \
         the move continues then"
    )]
    NameTaken {
        /// The claim.
        twin: String,
        /// Its cluster.
        cluster: String,
    },
    /// What is to be written is none.
    #[error("the PersistentVolume {volume} cannot be written as JSON: {error}")]
    Unwritable {
        /// The PV.
        volume: String,
        /// Why not.
        error: serde_json::Error,
    },
}

impl Place {
    /// Where a site is. A cluster that nobody declares counts as gone for good only when all
    /// declarations were read.
    #[must_use]
    pub fn of(found: Result<Site, Unreachable>, registry: &Registry) -> Self {
        match found {
            Ok(site) => Self::Site(Box::new(site)),
            Err(Unreachable::Unknown(_)) if registry.is_complete() => Self::Gone,
            Err(error) => Self::Silent(error.to_string()),
        }
    }
}

impl Records {
    /// The PV of this side, if it is known.
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
    /// The facts that decisions rest on. What the status has recorded is read after the objects.
    #[must_use]
    pub fn facts(self, of: &MovedVolume, movers: Movers, recorded: Option<Recorded>) -> ClaimFacts {
        let copied = match movers.copied {
            Live::Known(copied) => Live::Known(Copied {
                too_small: copied.too_small.or(self.too_small),
                ..copied
            }),
            Live::Silent(why) => Live::Silent(why),
        };
        ClaimFacts {
            claim: self.claim,
            volume: self.volume,
            source: self.source,
            target: self.target,
            target_off: of.target_off,
            within: of.name_to_take().is_some(),
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
    /// The volume, which is also the name of its PV.
    pub(super) fn volume(&self) -> &VolumeName {
        &self.source.id.name
    }

    pub(super) fn claims(&self) -> Objects<PersistentVolumeClaim> {
        self.home.within(&self.claim.name.namespace)
    }

    pub(super) fn volumes(&self) -> Objects<PersistentVolume> {
        self.home.all()
    }

    /// Where the twin of a side is, to change it.
    pub(super) fn site(&self, of: Side) -> Result<&Site, GateError> {
        let (name, side) = match of {
            Side::Source => ("source", &self.source),
            Side::Target => ("target", &self.target),
        };
        let silent = |why: &str| GateError::Silent {
            side: name,
            why: why.to_owned(),
        };
        match &side.place {
            Place::Site(found) => Ok(found),
            Place::Silent(why) => Err(silent(why)),
            Place::Gone => Err(silent("nobody declares it any more")),
        }
    }
}
