//! Orphaned twins. One that was never handed over, and whose claim and PV were deleted, is deleted after a
//! grace period, based on a live read at that moment. Every other twin without a volume (the home cluster was
//! restored from a backup, a retained PV was deleted) may hold the only copy of a user's data: it is
//! reported. The same applies to twins in remote clusters, as far as they can be read; and a twin whose claim
//! was served in another cluster afterwards is deleted, too.
//!
//! A client that deletes a reported twin is not blocked, but the data is kept: the client may be a fabric
//! that deletes a namespace, and the volume may be known to a backup of the home cluster, or to another
//! cluster that has the same id by mistake.

use super::recovery::{FoundVolumes, Keep, PvProtection, Read, pv_protection};

/// The state of a twin whose volume has no PV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrphanState {
    /// Being created for its claim.
    BeingCreated,
    /// Never handed over, and never will be.
    Collectable,
    /// Never handed over, but the claim that it was created for is unknown.
    Unclaimed,
    /// Handed over, and it has no PV (any more).
    HandedOver,
    /// The source of a move whose `VolumeMove` was deleted.
    LeftByMove,
}

impl OrphanState {
    pub const REPORTED: [Self; 3] = [Self::Unclaimed, Self::HandedOver, Self::LeftByMove];

    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::BeingCreated => "in-the-making",
            Self::Collectable => "collectable",
            Self::Unclaimed => "unclaimed",
            Self::HandedOver => "given-away",
            Self::LeftByMove => "left-by-move",
        }
    }
}

/// The state of the claim that a twin was created for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    Unknown,
    Live,
    /// It was deleted, or has another volume: it never gets this one.
    Gone,
}

/// Where the data of the twin's volume is, according to the virtual PV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// There is no virtual PV.
    Nowhere,
    Here,
    /// In another cluster, or on a twin of another epoch.
    Elsewhere,
    /// Another version of this driver created the PV, so it is not interpreted.
    Unreadable,
}

/// Whether a twin belongs to a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoveRole {
    No,
    /// The twin belongs to a move, or may.
    Yes,
    /// It was the source of a move that no longer exists.
    Left,
}

/// A twin, from the cache or read live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OrphanTwin {
    pub handed_over: bool,
    pub deleting: bool,
    /// Whether a release of its volume is under way, which takes care of it.
    pub releasing: bool,
    pub of_move: MoveRole,
}

/// The state of a twin by cached facts; `None` if it is not orphaned.
#[must_use]
pub fn seen_state(twin: OrphanTwin, place: Place, origin: Origin) -> Option<OrphanState> {
    let origin = origin_by(place, origin)?;
    match twin.of_move {
        _ if twin.releasing => None,
        MoveRole::Yes => None,
        MoveRole::Left if twin.deleting => Some(OrphanState::Collectable),
        MoveRole::Left => Some(OrphanState::LeftByMove),
        MoveRole::No => Some(state(twin, origin)),
    }
}

/// The claim that may still get the twin; `None` if the volume uses the twin, or may use it. Once the
/// volume is elsewhere its claim never gets this twin.
fn origin_by(place: Place, origin: Origin) -> Option<Origin> {
    match (place, origin) {
        (Place::Here | Place::Unreadable, _) => None,
        (Place::Elsewhere, Origin::Live) => Some(Origin::Gone),
        (Place::Elsewhere | Place::Nowhere, origin) => Some(origin),
    }
}

fn state(twin: OrphanTwin, origin: Origin) -> OrphanState {
    match (twin.handed_over, origin) {
        // The reported twin is being deleted: our finalizer must not block that.
        (true, _) | (_, Origin::Unknown) if twin.deleting => OrphanState::Collectable,
        (true, _) => OrphanState::HandedOver,
        (false, Origin::Live) => OrphanState::BeingCreated,
        (false, Origin::Gone) => OrphanState::Collectable,
        (false, Origin::Unknown) => OrphanState::Unclaimed,
    }
}

/// A twin to collect, read live. `T` and `V` are the objects of the twin and its PV, in the version that was
/// read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OrphanFacts<T, V> {
    pub object: T,
    pub twin: OrphanTwin,
    /// The PV that it names.
    pub real: Option<String>,
    pub place: Read<Place>,
    pub origin: Read<Origin>,
    /// Whether this driver may read and change PVs in its cluster.
    pub rights: bool,
    pub reals: Read<FoundVolumes<V>>,
}

/// Something to read, something to write, or the result.
#[derive(Debug, PartialEq, Eq)]
pub enum OrphanStep<'a, T, V> {
    ReadPlace,
    ReadOrigin,
    /// Read the PV of this name, which may be out of reach.
    ReadReal(&'a str),
    Keep(Keep<'a, V>),
    /// Remove the finalizer if it is being deleted, otherwise delete it. If it may have been handed over,
    /// `kept` is the PV that retains its data.
    Withdraw {
        twin: &'a T,
        kept: Option<&'a str>,
    },
    /// Keep our finalizer on the twin, if it has one: this PV cannot be retained, for this reason.
    KeepFinalizer {
        real: &'a str,
        why: &'a str,
    },
    Leave,
}

/// Decides the next step for a twin that looked collectable.
#[must_use]
pub fn orphan_step<T, V>(facts: &OrphanFacts<T, V>) -> OrphanStep<'_, T, V> {
    let twin = facts.twin;
    let is_left = match twin.of_move {
        _ if twin.releasing => return OrphanStep::Leave,
        MoveRole::No => false,
        MoveRole::Left if twin.deleting => true,
        MoveRole::Left | MoveRole::Yes => return OrphanStep::Leave,
    };
    let Read::Known(place) = facts.place else {
        return OrphanStep::ReadPlace;
    };
    let Read::Known(origin) = facts.origin else {
        return OrphanStep::ReadOrigin;
    };
    let Some(origin) = origin_by(place, origin) else {
        return OrphanStep::Leave;
    };
    if !is_left && state(twin, origin) != OrphanState::Collectable {
        return OrphanStep::Leave;
    }
    let withdraw = |kept| OrphanStep::Withdraw {
        twin: &facts.object,
        kept,
    };
    if !is_left && !twin.handed_over && origin == Origin::Gone {
        return withdraw(None);
    }
    match pv_protection(
        facts.real.as_deref(),
        facts.rights,
        &facts.reals,
        |_| false,
        false,
    ) {
        PvProtection::Read(name) => OrphanStep::ReadReal(name),
        PvProtection::Write(write) => OrphanStep::Keep(write),
        PvProtection::Safe(real) => withdraw(Some(real)),
        PvProtection::Nothing => withdraw(None),
        PvProtection::OutOfReach { real, why } => OrphanStep::KeepFinalizer { real, why },
    }
}

#[cfg(test)]
mod tests;
