//! Twins that look forgotten. One that nobody was given, whose claim and PV are
//! gone, is collected after a grace period, by what is read live at that moment.
//! Everything else that looks so (a cluster restored from a backup, a retained PV
//! somebody removed) may be all that is left of somebody's data: it is reported.
//! So it is with twins in remote clusters, as far as they can be seen; and one
//! that was left behind when its claim was served elsewhere is collected too.
//!
//! Whoever deletes a reported twin is not held up, but its data is kept: it may be
//! a fabric that takes down a namespace, and the volume may be known to a backup of
//! this cluster, or to another cluster that has the same id by mistake.

use super::recovery::{Keep, Read, Reals, Safety, safety};

/// What a twin without a PV of its volume looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrphanState {
    /// On its way to its user.
    InTheMaking,
    /// Nobody was given it, and nobody will be.
    Collectable,
    /// Nobody was given it, but it is not known for whom it was made.
    Unclaimed,
    /// Somebody was given it, and it has no PV (any more).
    GivenAway,
    /// It has what its volume was before a move whose `VolumeMove` is gone.
    LeftByMove,
}

impl OrphanState {
    pub const REPORTED: [Self; 3] = [Self::Unclaimed, Self::GivenAway, Self::LeftByMove];

    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::InTheMaking => "in-the-making",
            Self::Collectable => "collectable",
            Self::Unclaimed => "unclaimed",
            Self::GivenAway => "given-away",
            Self::LeftByMove => "left-by-move",
        }
    }
}

/// What became of the claim a twin was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    Unknown,
    Live,
    Gone,
}

/// Where the data of the twin's volume is, according to the PV of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// It has no PV.
    Nowhere,
    /// On this twin.
    Here,
    /// In another cluster, or on a twin of another epoch.
    Elsewhere,
    /// Another version of this driver made the PV, and knows.
    Unreadable,
}

/// What moves have to do with a twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OfMove {
    No,
    /// It is, or may be, a move's to see to.
    Yes,
    /// A move has taken its data elsewhere, and there is no such move any more.
    Left,
}

/// A twin as it is seen, or was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OrphanTwin {
    pub handed_over: bool,
    pub deleting: bool,
    /// Whether the command that releases its volume sees to it.
    pub releasing: bool,
    pub of_move: OfMove,
}

/// Says how a twin looks by what is seen; `None` if it is not forgotten.
#[must_use]
pub fn seen_state(twin: OrphanTwin, place: Place, origin: Origin) -> Option<OrphanState> {
    let origin = origin_by(place, origin)?;
    match twin.of_move {
        _ if twin.releasing => None,
        OfMove::Yes => None,
        OfMove::Left if twin.deleting => Some(OrphanState::Collectable),
        OfMove::Left => Some(OrphanState::LeftByMove),
        OfMove::No => Some(state(twin, origin)),
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
        // Somebody deletes what was reported to them: our finalizer is not to be in the way.
        (true, _) | (_, Origin::Unknown) if twin.deleting => OrphanState::Collectable,
        (true, _) => OrphanState::GivenAway,
        (false, Origin::Live) => OrphanState::InTheMaking,
        (false, Origin::Gone) => OrphanState::Collectable,
        (false, Origin::Unknown) => OrphanState::Unclaimed,
    }
}

/// A twin that is to be collected, read live. `T` and `V` are it and its PV, in the version that was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OrphanFacts<T, V> {
    pub object: T,
    pub twin: OrphanTwin,
    /// The PV that it names.
    pub real: Option<String>,
    pub place: Read<Place>,
    pub origin: Read<Origin>,
    /// Whether PVs may be read and changed where it is.
    pub rights: bool,
    pub reals: Read<Reals<V>>,
}

/// Something to read, something to write, or the end.
#[derive(Debug, PartialEq, Eq)]
pub enum OrphanStep<'a, T, V> {
    ReadPlace,
    ReadOrigin,
    /// The PV of this name, which may be out of reach.
    ReadReal(&'a str),
    Keep(Keep<'a, V>),
    /// Let it go if it is being deleted, or delete it. If somebody may have been given it, its data
    /// is safe on `kept`.
    Withdraw {
        twin: &'a T,
        kept: Option<&'a str>,
    },
    /// Our finalizer, if it is there, holds the twin: this PV cannot be retained, for this reason.
    Hold {
        real: &'a str,
        why: &'a str,
    },
    Leave,
}

/// Decides what is next for a twin that was seen to be collectable.
#[must_use]
pub fn orphan_step<T, V>(facts: &OrphanFacts<T, V>) -> OrphanStep<'_, T, V> {
    let twin = facts.twin;
    let is_left = match twin.of_move {
        _ if twin.releasing => return OrphanStep::Leave,
        OfMove::No => false,
        OfMove::Left if twin.deleting => true,
        OfMove::Left | OfMove::Yes => return OrphanStep::Leave,
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
    match safety(
        facts.real.as_deref(),
        facts.rights,
        &facts.reals,
        |_| false,
        false,
    ) {
        Safety::Read(name) => OrphanStep::ReadReal(name),
        Safety::Write(write) => OrphanStep::Keep(write),
        Safety::Safe(real) => withdraw(Some(real)),
        Safety::Nothing => withdraw(None),
        Safety::OutOfReach { real, why } => OrphanStep::Hold { real, why },
    }
}

#[cfg(test)]
mod tests;
