//! Recovers the data of a volume whose twin was deleted by another client.
//!
//! A deletion cannot be undone, but our finalizer keeps the twin until its PV is retained; where the rights
//! for that are missing it keeps the twin until they are granted (again). Each step can be the first one
//! after a crash:
//!
//! ```text
//! twin being deleted ── PV: mark with volume, Retain, record the old policy
//!                    ── twin: remove finalizer               (rescue)
//! twin deleted       ── create the twin again for that PV    (restore)
//! twin pending       ── PV: name the new twin, by uid        (reunite)
//! twin bound         ── PV: restore the policy               (`reclaim`)
//! ```
//!
//! The PV names a uid at all times, so no other claim can be bound to it. A claim with a PV that names
//! another uid stays Pending; it becomes Lost only if it was bound before.
//!
//! `T` and `V` are the objects of twins and PVs, in the version that was read. They are opaque here: a step
//! contains the version it was decided for, and the write is refused if the object has changed.

use crate::volume::{Epoch, Foreign};

const NO_RIGHT: &str = "this driver may not get, list and patch PersistentVolumes there";

/// A fact that is read live, and only once a decision needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Read<T> {
    #[default]
    NotYet,
    Known(T),
}

/// Whose data a PV holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// The data of this volume.
    Ours,
    /// The data of a claim with the name of this volume's twin; its volume is not recorded.
    Unknown,
    /// The data of another volume.
    Other,
}

/// The evidence for whose data a PV holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderFacts {
    /// Whether its `claimRef` has the namespace and the name of the twin.
    pub names_twin: bool,
    /// Whether such a name is used only once, as at home.
    pub once: bool,
    /// Whether its mark is that of the volume; `None` if it has no mark.
    pub marked: Option<bool>,
    /// Whether it is the PV that was recorded when the volume was handed over; `None` if none was.
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
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
pub struct RealVolume<V> {
    pub object: V,
    pub name: String,
    /// Whether it names the uid of the twin.
    pub bound: bool,
    pub holder: Holder,
    /// Whether it is marked with its volume, so that the data can be identified without the twin.
    pub marked: bool,
    pub retained: bool,
    pub deleting: bool,
    /// Whether it is being released: then it must not get a twin.
    pub releasing: bool,
}

impl<V> RealVolume<V> {
    /// A PV that is not retained is about to be deleted: binding it would be pointless.
    fn is_kept(&self) -> bool {
        self.retained && !self.deleting && !self.releasing
    }
}

/// The result of looking for PVs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FoundVolumes<V> {
    Found(Vec<RealVolume<V>>),
    /// This one may not be read or changed.
    OutOfReach {
        real: String,
        why: String,
    },
}

/// A write that protects the data of a PV.
#[derive(Debug, PartialEq, Eq)]
pub struct Keep<'a, V> {
    pub write: KeepWrite,
    pub real: &'a RealVolume<V>,
    /// Whether to treat a missing right as out of reach instead of as a failure.
    pub or_out_of_reach: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepWrite {
    /// Mark it with the volume.
    MarkHolder,
    /// Set it to Retain, and record the previous policy.
    Retain,
}

/// The next write that protects the PV; `None` if it is protected.
fn missing_protection<V>(real: &RealVolume<V>) -> Option<KeepWrite> {
    match (real.marked, real.retained) {
        (false, _) => Some(KeepWrite::MarkHolder),
        (true, false) => Some(KeepWrite::Retain),
        (true, true) => None,
    }
}

/// The protection of the PV of a twin that is being deleted.
pub(super) enum PvProtection<'a, V> {
    Read(&'a str),
    Write(Keep<'a, V>),
    Safe(&'a str),
    /// The twin never had a PV, or the PV was deleted or is that of another volume.
    Nothing,
    OutOfReach {
        real: &'a str,
        why: &'a str,
    },
}

/// Determines it for the PV that the twin names. `is_its` recognises one that no longer names the twin's uid;
/// `holds` is whether our finalizer keeps the twin while a right is missing.
pub(super) fn pv_protection<'a, V>(
    named: Option<&'a str>,
    rights: bool,
    reals: &'a Read<FoundVolumes<V>>,
    is_its: impl Fn(&RealVolume<V>) -> bool,
    holds: bool,
) -> PvProtection<'a, V> {
    let Some(name) = named else {
        return PvProtection::Nothing;
    };
    let found = match reals {
        _ if !rights => {
            return PvProtection::OutOfReach {
                real: name,
                why: NO_RIGHT,
            };
        }
        Read::NotYet => return PvProtection::Read(name),
        Read::Known(FoundVolumes::OutOfReach { real, why }) => return PvProtection::OutOfReach { real, why },
        Read::Known(FoundVolumes::Found(found)) => found,
    };
    let is_its = |real: &&RealVolume<V>| real.name == name && (real.bound || is_its(real));
    let Some(real) = found.iter().find(is_its) else {
        return PvProtection::Nothing;
    };
    match missing_protection(real) {
        Some(write) => PvProtection::Write(Keep {
            write,
            real,
            or_out_of_reach: holds || write == KeepWrite::MarkHolder,
        }),
        None => PvProtection::Safe(&real.name),
    }
}

/// The virtual PV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
pub struct VirtualVolume {
    /// Whether it refers to the same twin as when it was cached.
    pub same: bool,
    /// Whether a move has gated it.
    pub gated: bool,
    pub bound: bool,
    pub deleting: bool,
    pub retained: bool,
    pub releasing: bool,
}

/// How a volume is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Its claim exists.
    InUse,
    /// No claim any more, but the data is retained, so `DeleteVolume` is never called for it.
    Left,
    /// A CSI call or a move takes care of it, or it does not exist.
    Neither,
}

/// `claimed` is whether the claim of its uid exists and is not being deleted.
#[must_use]
pub fn usage(claimed: bool, volume: Option<VirtualVolume>) -> Usage {
    match volume.filter(|volume| volume.same && !volume.gated) {
        // Kubernetes keeps a PV that is deleted before its claim until the claim is deleted.
        Some(volume) if volume.bound && claimed => Usage::InUse,
        Some(volume) if !volume.bound && volume.retained && !volume.releasing && !volume.deleting => {
            Usage::Left
        }
        _ => Usage::Neither,
    }
}

/// What exists under the name of the twin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TwinNow<T> {
    /// It may not be read (any more), for this reason.
    Unreadable(String),
    Absent,
    /// A copy of the claim that a fabric created, without a PV.
    Copy(T),
    Foreign(Foreign),
    Ours(Twin<T>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
pub struct Twin<T> {
    pub object: T,
    pub deleting: bool,
    /// Whether it is being released: then it is deleted on purpose, and the release keeps its data.
    pub releasing: bool,
    /// Whether only a move may change it, or may be the only one.
    pub of_move: bool,
    pub finalizer: bool,
    pub pending: bool,
    /// The PV that it names.
    pub real: Option<String>,
}

/// What the recovery tries to achieve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// Retain the data of a twin that is being deleted, then remove our finalizer; never before. If the twin
    /// cannot be read its data is retained, whatever happens to the twin; if it turns out to be healthy its
    /// PV gets its policy back.
    Rescue,
    /// Create the twin again, if the PV of the old one still exists.
    Restore,
    /// Make the PV name the twin that was created again. Its `claimRef` is never empty: otherwise any claim
    /// of that name could get the data.
    Reunite,
    /// Remove our finalizer from a twin that another client deletes and no claim uses any more, but whose
    /// data must be retained.
    Release,
}

/// A volume with an unhealthy twin; the input of the decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecoveryFacts<T, V> {
    pub epoch: Epoch,
    /// Whether this driver may read and change PVs in the cluster of the twin.
    pub rights: bool,
    /// Why the twin is not created again there: its namespace is no longer offloaded to the cluster, so that the one
    /// of its name may be another user's, or it is another cluster.
    pub not_there: Option<String>,
    pub usage: Read<Usage>,
    pub twin: Read<TwinNow<T>>,
    /// The highest epoch of all twins that have the data.
    pub highest: Read<Epoch>,
    pub reals: Read<FoundVolumes<V>>,
}

/// Outcome of a recovery attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rescue {
    /// The data is retained, and the recovery continues.
    Underway,
    /// The data is retained on this PV, but the twin cannot be read, or its finalizer not removed, for this
    /// reason.
    Kept { real: String, why: String },
    /// This PV cannot be retained, for this reason, so our finalizer keeps the twin.
    Held { real: String, why: String },
    /// It could not be determined whether the data can be recovered, for this reason.
    Unknown(String),
    /// There is nothing to recover from.
    Hopeless,
    /// These PVs belonged to claims with the name of the twin, but none can be identified as that of the
    /// volume.
    Doubtful(Vec<String>),
    /// Another object has the name of the twin.
    Occupied(Foreign),
    /// A twin of this later epoch has the data.
    MovedOn(Epoch),
    /// The twin is healthy.
    FalseAlarm,
}

/// Something to read, something to write, or the result.
#[derive(Debug, PartialEq, Eq)]
pub enum RecoveryStep<'a, T, V> {
    ReadUsage,
    ReadTwin,
    ReadHighest,
    /// Read the PV of this name; if not permitted, it is out of reach or that is an error.
    ReadReal {
        name: &'a str,
        or_out_of_reach: bool,
    },
    /// Find the PV that is recorded as that of the twin, or else as `FindReals` does.
    FindRemembered,
    /// Find the PVs of claims with the name of the twin.
    FindReals,
    Keep(Keep<'a, V>),
    /// Remove our finalizer from the twin; the outcome is then `then`. If that is not permitted, the data is
    /// still retained on `kept`.
    RemoveFinalizer {
        twin: &'a T,
        then: Rescue,
        kept: Option<&'a str>,
    },
    RemoveCopy(&'a T),
    /// Create the twin again for this PV. If an object of the name exists by now, nothing is created.
    CreateTwin(&'a V),
    /// Make the PV name the uid of the twin.
    PassOn {
        real: &'a V,
        twin: &'a T,
    },
    Report(Rescue),
}

#[must_use]
pub fn recovery_step<T, V>(goal: Goal, facts: &RecoveryFacts<T, V>) -> RecoveryStep<'_, T, V> {
    let report = RecoveryStep::Report;
    if !facts.rights && matches!(facts.twin, Read::Known(TwinNow::Unreadable(_))) {
        return report(Rescue::Unknown(NO_RIGHT.to_owned()));
    }
    let wanted = match goal {
        Goal::Rescue | Goal::Restore | Goal::Reunite => Usage::InUse,
        Goal::Release => Usage::Left,
    };
    let twin = match (&facts.usage, &facts.twin) {
        (Read::NotYet, _) => return RecoveryStep::ReadUsage,
        (Read::Known(usage), _) if *usage != wanted => return report(Rescue::FalseAlarm),
        (Read::Known(_), Read::NotYet) => return RecoveryStep::ReadTwin,
        (Read::Known(_), Read::Known(twin)) => twin,
    };
    match (goal, twin) {
        (Goal::Rescue, TwinNow::Unreadable(why)) => keep_unread(facts, why),
        (Goal::Rescue | Goal::Release, TwinNow::Ours(twin))
            if twin.deleting && !twin.releasing && !twin.of_move =>
        {
            release_twin(goal, facts, twin)
        }
        (Goal::Restore, TwinNow::Absent) => restore(facts),
        (Goal::Restore, TwinNow::Copy(copy)) => RecoveryStep::RemoveCopy(copy),
        (Goal::Restore, TwinNow::Foreign(foreign)) => report(Rescue::Occupied(foreign.clone())),
        (Goal::Reunite, TwinNow::Ours(twin))
            if twin.pending && !twin.deleting && !twin.of_move && facts.rights =>
        {
            reunite(facts, twin)
        }
        _ => report(Rescue::FalseAlarm),
    }
}

fn release_twin<'a, T, V>(
    goal: Goal,
    facts: &'a RecoveryFacts<T, V>,
    twin: &'a Twin<T>,
) -> RecoveryStep<'a, T, V> {
    let is_its = |real: &RealVolume<V>| goal == Goal::Rescue && real.holder == Holder::Ours;
    let holds = goal == Goal::Rescue && twin.finalizer;
    let (then, kept) = match pv_protection(twin.real.as_deref(), facts.rights, &facts.reals, is_its, holds) {
        PvProtection::Read(name) => {
            return RecoveryStep::ReadReal {
                name,
                or_out_of_reach: true,
            };
        }
        PvProtection::Write(write) => return RecoveryStep::Keep(write),
        PvProtection::OutOfReach { real, why } if twin.finalizer || goal == Goal::Release => {
            let (real, why) = (real.to_owned(), why.to_owned());
            return RecoveryStep::Report(Rescue::Held { real, why });
        }
        // The twin does not have our finalizer.
        PvProtection::OutOfReach { .. } => return RecoveryStep::Report(Rescue::Hopeless),
        PvProtection::Safe(real) => (Rescue::Underway, (goal == Goal::Rescue).then_some(real)),
        PvProtection::Nothing if goal == Goal::Rescue => (Rescue::Hopeless, None),
        PvProtection::Nothing => (Rescue::Underway, None),
    };
    match (twin.finalizer, goal) {
        (true, _) => RecoveryStep::RemoveFinalizer {
            twin: &twin.object,
            then,
            kept,
        },
        (false, Goal::Release) => RecoveryStep::Report(Rescue::FalseAlarm),
        (false, _) => RecoveryStep::Report(then),
    }
}

fn keep_unread<'a, T, V>(facts: &'a RecoveryFacts<T, V>, why: &str) -> RecoveryStep<'a, T, V> {
    let Read::Known(FoundVolumes::Found(found)) = &facts.reals else {
        return RecoveryStep::FindRemembered;
    };
    let is_its = |real: &&RealVolume<V>| !real.deleting && (real.bound || real.holder == Holder::Ours);
    let Some(real) = found.iter().find(is_its) else {
        let why = format!("{why}; no PersistentVolume is known to belong to it");
        return RecoveryStep::Report(Rescue::Unknown(why));
    };
    match missing_protection(real) {
        Some(write) => RecoveryStep::Keep(Keep {
            write,
            real,
            or_out_of_reach: false,
        }),
        None => RecoveryStep::Report(Rescue::Kept {
            real: real.name.clone(),
            why: why.to_owned(),
        }),
    }
}

fn restore<T, V>(facts: &RecoveryFacts<T, V>) -> RecoveryStep<'_, T, V> {
    let report = RecoveryStep::Report;
    let Read::Known(highest) = facts.highest else {
        return RecoveryStep::ReadHighest;
    };
    if highest > facts.epoch {
        return report(Rescue::MovedOn(highest));
    }
    if let Some(why) = &facts.not_there {
        return report(Rescue::Unknown(why.clone()));
    }
    if !facts.rights {
        return report(Rescue::Unknown(NO_RIGHT.to_owned()));
    }
    let Read::Known(FoundVolumes::Found(found)) = &facts.reals else {
        return RecoveryStep::FindReals;
    };
    let kept = |holder| {
        let is_its = |real: &&RealVolume<V>| real.is_kept() && real.holder == holder;
        found.iter().filter(is_its).collect::<Vec<_>>()
    };
    match (&kept(Holder::Ours)[..], &kept(Holder::Unknown)[..]) {
        ([real], _) => RecoveryStep::CreateTwin(&real.object),
        ([], []) => report(Rescue::Hopeless),
        ([], several) | (several, _) => report(Rescue::Doubtful(
            several.iter().map(|real| real.name.clone()).collect(),
        )),
    }
}

fn reunite<'a, T, V>(facts: &'a RecoveryFacts<T, V>, twin: &'a Twin<T>) -> RecoveryStep<'a, T, V> {
    let Some(name) = twin.real.as_deref() else {
        return RecoveryStep::Report(Rescue::FalseAlarm);
    };
    let Read::Known(FoundVolumes::Found(found)) = &facts.reals else {
        return RecoveryStep::ReadReal {
            name,
            or_out_of_reach: false,
        };
    };
    match found.iter().find(|real| real.name == name) {
        // Kubernetes binds it.
        Some(real) if real.bound => RecoveryStep::Report(Rescue::FalseAlarm),
        Some(real) if real.holder == Holder::Ours && real.is_kept() => RecoveryStep::PassOn {
            real: &real.object,
            twin: &twin.object,
        },
        _ => RecoveryStep::Report(Rescue::Hopeless),
    }
}

#[cfg(test)]
mod tests;
