//! Getting the data of a volume back when its twin was deleted behind our back.
//!
//! A deletion cannot be taken back, but our finalizer keeps the twin until its PV
//! is safe; where the rights for that are missing it keeps the twin until they are
//! given (back). Each step can be the first one after a crash:
//!
//! ```text
//! twin being deleted ── PV: whose it is, Retain, and remember what it was before
//!                    ── twin: finalizer off                 (rescue)
//! twin gone          ── make the twin again, onto that PV   (restore)
//! twin pending       ── PV: belongs to the new twin, by uid (reunite)
//! twin bound         ── PV: policy as before                (`reclaim`)
//! ```
//!
//! The PV names a uid all the time, so nobody else can be bound to it. A claim that
//! asks for a PV which names another uid waits; it is lost only if it was bound before.
//!
//! `T` and `V` are twins and PVs in the version that was read. Nothing is known of them here: a
//! step hands on the one that it was decided for, and writing it is refused if it has changed.

use crate::volume::{Epoch, Foreign};

const NO_RIGHT: &str = "this driver may not get, list and patch PersistentVolumes there";

/// What is read live, and only once a decision needs it. Until then nothing is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Read<T> {
    #[default]
    NotYet,
    Known(T),
}

/// Whose data a PV holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// This volume's.
    Ours,
    /// That of a claim with the name of this volume's twin; nothing says which.
    Unknown,
    /// Somebody else's.
    Other,
}

/// What says whose data a PV holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderFacts {
    /// Whether it names a claim with the namespace and the name of the twin.
    pub names_twin: bool,
    /// Whether such a name is used only once, as at home.
    pub once: bool,
    /// Whether it is marked as the volume's; `None` if it has no mark.
    pub marked: Option<bool>,
    /// Whether it is the PV that the volume had when it was answered for; `None` if that is not known.
    pub remembered: Option<bool>,
}

#[must_use]
pub fn holder(facts: HolderFacts) -> Holder {
    let ours = |is: bool| if is { Holder::Ours } else { Holder::Other };
    match facts.marked.or(facts.remembered) {
        _ if !facts.names_twin || facts.once => ours(facts.names_twin),
        Some(is) => ours(is),
        None => Holder::Unknown,
    }
}

/// A PV that is, or may be, that of the twin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts about one object, each seen by itself"
)]
pub struct RealVolume<V> {
    pub object: V,
    pub name: String,
    /// Whether it names the uid of the twin.
    pub bound: bool,
    pub holder: Holder,
    /// Whether it says whose it is, should the twin be gone.
    pub marked: bool,
    pub retained: bool,
    pub deleting: bool,
    /// Whether it is being released: then it is to have no twin any more.
    pub releasing: bool,
}

impl<V> RealVolume<V> {
    /// One that is not retained is being deleted: whoever binds it binds nothing.
    fn is_kept(&self) -> bool {
        self.retained && !self.deleting && !self.releasing
    }
}

/// The PVs that were looked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reals<V> {
    Found(Vec<RealVolume<V>>),
    /// This one may not be read or changed.
    OutOfReach {
        real: String,
        why: String,
    },
}

/// A write that keeps the data of a PV.
#[derive(Debug, PartialEq, Eq)]
pub struct Keep<'a, V> {
    pub write: KeepWrite,
    pub real: &'a RealVolume<V>,
    /// Whether a right that is missing for it puts the PV out of reach, or else is a failure.
    pub or_out_of_reach: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepWrite {
    /// Mark it with the volume.
    MarkHolder,
    /// Set it to Retain, and note what it was.
    Retain,
}

/// What is still to be written; `None` if its data is safe.
fn unsafe_yet<V>(real: &RealVolume<V>) -> Option<KeepWrite> {
    match (real.marked, real.retained) {
        (false, _) => Some(KeepWrite::MarkHolder),
        (true, false) => Some(KeepWrite::Retain),
        (true, true) => None,
    }
}

/// How it stands with the PV of a twin that is being deleted.
pub(super) enum Safety<'a, V> {
    Read(&'a str),
    Write(Keep<'a, V>),
    Safe(&'a str),
    /// The twin never had one, or it is gone or another's.
    Nothing,
    OutOfReach {
        real: &'a str,
        why: &'a str,
    },
}

/// Says so of the PV that the twin names. `is_its` recognises one that no longer names the twin's
/// uid; `holds` is whether the twin is held without the right to retain it.
pub(super) fn safety<'a, V>(
    named: Option<&'a str>,
    rights: bool,
    reals: &'a Read<Reals<V>>,
    is_its: impl Fn(&RealVolume<V>) -> bool,
    holds: bool,
) -> Safety<'a, V> {
    let Some(name) = named else {
        return Safety::Nothing;
    };
    let found = match reals {
        _ if !rights => {
            return Safety::OutOfReach {
                real: name,
                why: NO_RIGHT,
            };
        }
        Read::NotYet => return Safety::Read(name),
        Read::Known(Reals::OutOfReach { real, why }) => return Safety::OutOfReach { real, why },
        Read::Known(Reals::Found(found)) => found,
    };
    let is_its = |real: &&RealVolume<V>| real.name == name && (real.bound || is_its(real));
    let Some(real) = found.iter().find(is_its) else {
        return Safety::Nothing;
    };
    match unsafe_yet(real) {
        Some(write) => Safety::Write(Keep {
            write,
            real,
            or_out_of_reach: holds || write == KeepWrite::MarkHolder,
        }),
        None => Safety::Safe(&real.name),
    }
}

/// The PV that users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts about one object, each seen by itself"
)]
pub struct VirtualVolume {
    /// Whether it leads to where it led when it was seen.
    pub same: bool,
    /// Whether a move keeps its users away.
    pub gated: bool,
    pub bound: bool,
    pub deleting: bool,
    pub retained: bool,
    pub releasing: bool,
}

/// Who has a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Its claim.
    InUse,
    /// Nobody any more, but its data is to stay, so `DeleteVolume` is never called for it.
    Left,
    /// A call or a move is seeing to it, or it is gone.
    Neither,
}

/// Says so. `claimed` is whether there is the claim of its uid, and nobody deletes that.
#[must_use]
pub fn usage(claimed: bool, volume: Option<VirtualVolume>) -> Usage {
    match volume.filter(|volume| volume.same && !volume.gated && !volume.deleting) {
        Some(volume) if volume.bound && claimed => Usage::InUse,
        Some(volume) if !volume.bound && volume.retained && !volume.releasing => Usage::Left,
        _ => Usage::Neither,
    }
}

/// What is in the place of the twin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TwinNow<T> {
    /// It may not be read (any more), for this reason.
    Unreadable(String),
    Absent,
    /// A copy of the claim that a fabric made, without a PV.
    Copy(T),
    Foreign(Foreign),
    Ours(Twin<T>),
}

/// The twin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts about one object, each seen by itself"
)]
pub struct Twin<T> {
    pub object: T,
    pub deleting: bool,
    /// Whether it is released: then it is deleted on purpose, and its data is seen to.
    pub releasing: bool,
    /// Whether it is, or may be, nobody's but a move's.
    pub of_move: bool,
    pub finalizer: bool,
    pub pending: bool,
    /// The PV that it names.
    pub real: Option<String>,
}

/// What is done about a volume whose twin is in trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// Make the data of a twin that is being deleted safe, then let the twin go. What is not safe
    /// is not let go. Data of a twin that may not be read is kept, whatever becomes of the twin;
    /// if that turns out to be well its PV gets its policy back.
    Rescue,
    /// Make the twin again, if the PV of the old one is still there.
    Restore,
    /// Give a twin that was made again its PV. It never belongs to nobody: whoever has a claim of
    /// that name could have it then.
    Reunite,
    /// Let a twin go that somebody deletes and nobody uses any more, but whose data is to stay.
    Release,
}

/// Everything about a volume whose twin is in trouble.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecoveryFacts<T, V> {
    pub epoch: Epoch,
    /// Whether PVs may be read and changed where the twin is.
    pub rights: bool,
    /// Why what is under the name of the twin may be somebody else's: its namespace is not
    /// offloaded there any more.
    pub not_offloaded: Option<String>,
    pub usage: Read<Usage>,
    pub twin: Read<TwinNow<T>>,
    /// The highest epoch of a twin that has the data.
    pub highest: Read<Epoch>,
    pub reals: Read<Reals<V>>,
}

/// How it stands with the data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rescue {
    /// It is safe, and on its way back.
    Underway,
    /// It is safe on this PV, but the twin cannot be read or let go, for this reason.
    Kept { real: String, why: String },
    /// This PV cannot be retained, for this reason, so our finalizer holds the twin.
    Held { real: String, why: String },
    /// It is not known, for this reason, whether there is anything to get it back from.
    Unknown(String),
    /// There is nothing to get it back from.
    Hopeless,
    /// There are these PVs, of claims with the name of the twin, but nothing shows
    /// which one is its, if any.
    Doubtful(Vec<String>),
    /// Something that is not its twin is in the twin's place.
    Occupied(Foreign),
    /// A twin of this later epoch has the data.
    MovedOn(Epoch),
    /// Nothing is wrong after all.
    FalseAlarm,
}

/// Something to read, something to write, or the end.
#[derive(Debug, PartialEq, Eq)]
pub enum RecoveryStep<'a, T, V> {
    ReadUsage,
    ReadTwin,
    ReadHighest,
    /// The PV of this name, which may be out of reach, or else must be read.
    ReadReal {
        name: &'a str,
        or_out_of_reach: bool,
    },
    /// The PV that is remembered to be that of the twin, or else what `FindReals` finds.
    FindRemembered,
    /// The PVs of claims with the name of the twin.
    FindReals,
    Keep(Keep<'a, V>),
    /// Take our finalizer off the twin; that was all. Where that is not allowed, its data is safe
    /// on `kept` all the same.
    LetGo {
        twin: &'a T,
        then: Rescue,
        kept: Option<&'a str>,
    },
    RemoveCopy(&'a T),
    /// Make the twin again, onto this PV. Where something is by now, nothing is made.
    MakeTwin(&'a V),
    /// Have the PV name the uid of the twin.
    PassOn {
        real: &'a V,
        twin: &'a T,
    },
    Tell(Rescue),
}

/// Decides what is next.
#[must_use]
pub fn recovery_step<T, V>(goal: Goal, facts: &RecoveryFacts<T, V>) -> RecoveryStep<'_, T, V> {
    let tell = RecoveryStep::Tell;
    if !facts.rights && matches!(facts.twin, Read::Known(TwinNow::Unreadable(_))) {
        return tell(Rescue::Unknown(NO_RIGHT.to_owned()));
    }
    let wanted = match goal {
        Goal::Rescue | Goal::Restore | Goal::Reunite => Usage::InUse,
        Goal::Release => Usage::Left,
    };
    let twin = match (&facts.usage, &facts.twin) {
        (Read::NotYet, _) => return RecoveryStep::ReadUsage,
        (Read::Known(usage), _) if *usage != wanted => return tell(Rescue::FalseAlarm),
        (Read::Known(_), Read::NotYet) => return RecoveryStep::ReadTwin,
        (Read::Known(_), Read::Known(twin)) => twin,
    };
    match (goal, twin) {
        (Goal::Rescue, TwinNow::Unreadable(why)) => keep_unread(facts, why),
        (Goal::Rescue | Goal::Release, TwinNow::Ours(twin))
            if twin.deleting && !twin.releasing && !twin.of_move =>
        {
            let_go(goal, facts, twin)
        }
        (Goal::Restore, TwinNow::Absent) => restore(facts),
        (Goal::Restore, TwinNow::Copy(copy)) => RecoveryStep::RemoveCopy(copy),
        (Goal::Restore, TwinNow::Foreign(foreign)) => tell(Rescue::Occupied(foreign.clone())),
        (Goal::Reunite, TwinNow::Ours(twin))
            if twin.pending && !twin.deleting && !twin.of_move && facts.rights =>
        {
            reunite(facts, twin)
        }
        _ => tell(Rescue::FalseAlarm),
    }
}

fn let_go<'a, T, V>(goal: Goal, facts: &'a RecoveryFacts<T, V>, twin: &'a Twin<T>) -> RecoveryStep<'a, T, V> {
    let is_its = |real: &RealVolume<V>| goal == Goal::Rescue && real.holder == Holder::Ours;
    let holds = goal == Goal::Rescue && twin.finalizer;
    let (then, kept) = match safety(twin.real.as_deref(), facts.rights, &facts.reals, is_its, holds) {
        Safety::Read(name) => {
            return RecoveryStep::ReadReal {
                name,
                or_out_of_reach: true,
            };
        }
        Safety::Write(write) => return RecoveryStep::Keep(write),
        Safety::OutOfReach { real, why } if twin.finalizer || goal == Goal::Release => {
            let (real, why) = (real.to_owned(), why.to_owned());
            return RecoveryStep::Tell(Rescue::Held { real, why });
        }
        // Nothing of ours holds it.
        Safety::OutOfReach { .. } => return RecoveryStep::Tell(Rescue::Hopeless),
        Safety::Safe(real) => (Rescue::Underway, (goal == Goal::Rescue).then_some(real)),
        Safety::Nothing if goal == Goal::Rescue => (Rescue::Hopeless, None),
        Safety::Nothing => (Rescue::Underway, None),
    };
    match (twin.finalizer, goal) {
        (true, _) => RecoveryStep::LetGo {
            twin: &twin.object,
            then,
            kept,
        },
        (false, Goal::Release) => RecoveryStep::Tell(Rescue::FalseAlarm),
        (false, _) => RecoveryStep::Tell(then),
    }
}

fn keep_unread<'a, T, V>(facts: &'a RecoveryFacts<T, V>, why: &str) -> RecoveryStep<'a, T, V> {
    let Read::Known(Reals::Found(found)) = &facts.reals else {
        return RecoveryStep::FindRemembered;
    };
    let is_its = |real: &&RealVolume<V>| !real.deleting && (real.bound || real.holder == Holder::Ours);
    let Some(real) = found.iter().find(is_its) else {
        let why = format!("{why}; no PersistentVolume is known to be its");
        return RecoveryStep::Tell(Rescue::Unknown(why));
    };
    match unsafe_yet(real) {
        Some(write) => RecoveryStep::Keep(Keep {
            write,
            real,
            or_out_of_reach: false,
        }),
        None => RecoveryStep::Tell(Rescue::Kept {
            real: real.name.clone(),
            why: why.to_owned(),
        }),
    }
}

fn restore<T, V>(facts: &RecoveryFacts<T, V>) -> RecoveryStep<'_, T, V> {
    let tell = RecoveryStep::Tell;
    let Read::Known(highest) = facts.highest else {
        return RecoveryStep::ReadHighest;
    };
    if highest > facts.epoch {
        return tell(Rescue::MovedOn(highest));
    }
    if let Some(why) = &facts.not_offloaded {
        return tell(Rescue::Unknown(why.clone()));
    }
    if !facts.rights {
        return tell(Rescue::Unknown(NO_RIGHT.to_owned()));
    }
    let Read::Known(Reals::Found(found)) = &facts.reals else {
        return RecoveryStep::FindReals;
    };
    let kept = |holder| {
        let is_its = |real: &&RealVolume<V>| real.is_kept() && real.holder == holder;
        found.iter().filter(is_its).collect::<Vec<_>>()
    };
    match (&kept(Holder::Ours)[..], &kept(Holder::Unknown)[..]) {
        ([real], _) => RecoveryStep::MakeTwin(&real.object),
        ([], []) => tell(Rescue::Hopeless),
        ([], several) | (several, _) => tell(Rescue::Doubtful(
            several.iter().map(|real| real.name.clone()).collect(),
        )),
    }
}

fn reunite<'a, T, V>(facts: &'a RecoveryFacts<T, V>, twin: &'a Twin<T>) -> RecoveryStep<'a, T, V> {
    let Some(name) = twin.real.as_deref() else {
        return RecoveryStep::Tell(Rescue::FalseAlarm);
    };
    let Read::Known(Reals::Found(found)) = &facts.reals else {
        return RecoveryStep::ReadReal {
            name,
            or_out_of_reach: false,
        };
    };
    match found.iter().find(|real| real.name == name) {
        // Kubernetes does the rest.
        Some(real) if real.bound => RecoveryStep::Tell(Rescue::FalseAlarm),
        Some(real) if real.holder == Holder::Ours && real.is_kept() => RecoveryStep::PassOn {
            real: &real.object,
            twin: &twin.object,
        },
        _ => RecoveryStep::Tell(Rescue::Hopeless),
    }
}

#[cfg(test)]
mod tests;
