//! Explores all states of a small model of orphaned twins: others may act between each read and each write of
//! ours, and any write of ours may be the last one before a crash. No data that was handed over to a user is
//! lost, no twin that is still being created is deleted, and once the others stop, no finalizer blocks a twin
//! and every twin that was never handed over is deleted.

use super::*;
use crate::placement::{
    exploration,
    recovery::{Holder, KeepWrite, RealVolume},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
struct Claim {
    handed_over: bool,
    deleting: bool,
    finalizer: bool,
    releasing: bool,
    /// Its data has moved.
    superseded: bool,
    /// A move is creating it.
    target: bool,
    /// Whether it names its PV.
    bound: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pv {
    /// Whether it belongs to the twin.
    its: bool,
    marked: bool,
    retained: bool,
}

/// Whether an object still has the version that was read.
type Fresh = bool;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Run {
    Deciding(OrphanFacts<Fresh, Fresh>),
    /// Waiting for the deletion of the twin.
    Withdrawing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
struct World {
    remote: bool,
    /// Whether the twin records its claim.
    named: bool,
    twin: Option<Claim>,
    real: Option<Pv>,
    /// Whether its claim exists.
    claim: bool,
    place: Place,
    /// Whether the `VolumeMove` of its marks exists.
    mv: bool,
    rights: bool,
    /// Whether a user may have written to it.
    given: bool,
    /// Whether the user, or a request of the user, has allowed the deletion of the data.
    waived: bool,
    budget: u8,
    run: Option<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Start,
    Crash,
    GoOn,
    TwinGoes,
    PvController,
    CreateVolume,
    Provisioner,
    DeleteVolume,
    CommandEnds,
    // Events caused by users and fabrics.
    DeleteTwin,
    DeleteClaim,
    /// Home is restored from a backup, or its etcd is lost.
    HomeGoesBack,
    /// Home is restored from a backup that contains the volume.
    HomeComesBack,
    DeleteVirtualVolume,
    ServeElsewhere,
    Upgrade,
    Commit,
    DeleteMove,
    Release,
    Rights,
    TouchTwin,
    TouchReal,
    OthersReal,
}

const OTHERS: [Event; 6] = [
    Event::TwinGoes,
    Event::PvController,
    Event::CreateVolume,
    Event::Provisioner,
    Event::DeleteVolume,
    Event::CommandEnds,
];
const USER_EVENTS: [Event; 14] = [
    Event::DeleteTwin,
    Event::DeleteClaim,
    Event::HomeGoesBack,
    Event::HomeComesBack,
    Event::DeleteVirtualVolume,
    Event::ServeElsewhere,
    Event::Upgrade,
    Event::Commit,
    Event::DeleteMove,
    Event::Release,
    Event::Rights,
    Event::TouchTwin,
    Event::TouchReal,
    Event::OthersReal,
];

impl World {
    fn new(remote: bool, handed_over: bool, named: bool, budget: u8) -> Self {
        Self {
            remote,
            named,
            twin: Some(Claim {
                handed_over,
                deleting: false,
                finalizer: true,
                releasing: false,
                superseded: false,
                target: false,
                bound: true,
            }),
            real: Some(Pv {
                its: true,
                marked: !remote,
                retained: false,
            }),
            claim: named,
            place: if handed_over { Place::Here } else { Place::Nowhere },
            mv: false,
            rights: true,
            given: handed_over,
            waived: false,
            budget,
            run: None,
        }
    }

    fn change_twin(&mut self, change: impl FnOnce(&mut Claim)) {
        if let Some(twin) = &mut self.twin {
            let before = *twin;
            change(twin);
            if self.twin != Some(before) {
                self.touch_twin();
            }
        }
    }

    fn touch_twin(&mut self) {
        if let Some(Run::Deciding(facts)) = &mut self.run {
            facts.object = false;
        }
    }

    fn twin_is_gone(&mut self) {
        self.twin = None;
        self.touch_twin();
    }

    fn change_real(&mut self, change: impl FnOnce(&mut Option<Pv>)) {
        let before = self.real;
        change(&mut self.real);
        if self.real != before {
            self.touch_real();
        }
    }

    fn touch_real(&mut self) {
        if let Some(Run::Deciding(facts)) = &mut self.run
            && let Read::Known(FoundVolumes::Found(reals)) = &mut facts.reals
        {
            for real in reals {
                real.object = false;
            }
        }
    }

    fn of_move(&self, twin: Claim, live: bool) -> MoveRole {
        match twin.superseded {
            true if self.mv => MoveRole::Yes,
            true => MoveRole::Left,
            // The cached move may still exist.
            false if twin.target && (self.mv || !live) => MoveRole::Yes,
            false => MoveRole::No,
        }
    }

    fn orphan(&self, twin: Claim, live: bool) -> OrphanTwin {
        OrphanTwin {
            handed_over: twin.handed_over,
            deleting: twin.deleting,
            releasing: twin.releasing,
            of_move: self.of_move(twin, live),
        }
    }

    fn origin(&self) -> Origin {
        match (self.named, self.claim) {
            (false, _) => Origin::Unknown,
            (true, true) => Origin::Live,
            (true, false) => Origin::Gone,
        }
    }

    fn reals(&self) -> FoundVolumes<Fresh> {
        let real = self.real.map(|real| RealVolume {
            object: true,
            name: "real".into(),
            bound: real.its,
            holder: Holder::Ours,
            marked: real.marked,
            retained: real.retained,
            deleting: false,
            releasing: false,
        });
        FoundVolumes::Found(real.into_iter().collect())
    }

    fn start(&mut self) {
        let Some(twin) = self.twin else { return };
        self.run = Some(Run::Deciding(OrphanFacts {
            object: true,
            twin: self.orphan(twin, true),
            real: twin.bound.then(|| "real".to_owned()),
            place: Read::NotYet,
            origin: Read::NotYet,
            rights: self.rights,
            reals: Read::NotYet,
        }));
    }

    fn go_on(&mut self) -> Result<(), String> {
        let mut facts = match self.run.take() {
            None => return Ok(()),
            Some(Run::Withdrawing) => {
                if self.twin.is_some_and(|twin| twin.deleting) {
                    self.change_twin(|twin| twin.finalizer = false);
                    self.run = Some(Run::Withdrawing);
                }
                return Ok(());
            }
            Some(Run::Deciding(facts)) => facts,
        };
        let now = facts.clone();
        match orphan_step(&now) {
            OrphanStep::ReadPlace => facts.place = Read::Known(self.place),
            OrphanStep::ReadOrigin => facts.origin = Read::Known(self.origin()),
            OrphanStep::ReadReal(_) if self.rights => facts.reals = Read::Known(self.reals()),
            OrphanStep::ReadReal(_) => facts.reals = Read::Known(out_of_reach()),
            OrphanStep::Keep(keep) if !self.rights && keep.or_out_of_reach => {
                facts.reals = Read::Known(out_of_reach());
            }
            OrphanStep::Keep(keep) => {
                if !keep.real.object || !self.rights {
                    return Ok(());
                }
                self.may_keep(&now)?;
                self.change_real(|real| {
                    if let Some(real) = real {
                        real.marked = true;
                        real.retained |= keep.write == KeepWrite::Retain;
                    }
                });
                facts.reals = Read::Known(self.reals());
            }
            OrphanStep::Withdraw { twin: fresh, .. } => {
                if *fresh {
                    self.may_withdraw()?;
                    self.change_twin(|twin| {
                        twin.finalizer &= !twin.deleting;
                        twin.deleting = true;
                    });
                    self.run = Some(Run::Withdrawing);
                }
                return Ok(());
            }
            OrphanStep::KeepFinalizer { .. } | OrphanStep::Leave => return Ok(()),
        }
        self.run = Some(Run::Deciding(facts));
        Ok(())
    }

    fn may_keep(&self, facts: &OrphanFacts<Fresh, Fresh>) -> Result<(), String> {
        if !self.real.is_some_and(|real| real.its) {
            return Err("another's PV is written".into());
        }
        if !facts.twin.deleting {
            return Err("the PV of a living twin is written".into());
        }
        Ok(())
    }

    /// The facts may be outdated, except for the twin, if they can only have changed towards deletion.
    fn may_withdraw(&self) -> Result<(), String> {
        let Some(twin) = self.twin else {
            return Err("the read object was deleted, but counted as unchanged".into());
        };
        if twin.releasing || (self.mv && (twin.target || twin.superseded)) {
            return Err(format!("it belongs to a move or a release: {twin:?}"));
        }
        let is_somebodys = twin.handed_over || twin.superseded || !self.named;
        if !twin.deleting && is_somebodys {
            return Err(format!("it was collected: {twin:?}"));
        }
        if !twin.handed_over && !twin.superseded && self.claim && self.place == Place::Nowhere {
            return Err(format!("it was still being created: {twin:?}"));
        }
        let is_safe = |real: Pv| !real.its || (real.retained && real.marked);
        if self.given && !self.waived && !self.real.is_none_or(is_safe) {
            return Err(format!("its data is not safe: {twin:?}"));
        }
        // A reported twin has an event that says this.
        if !self.named && !self.waived && !self.real.is_none_or(is_safe) {
            return Err(format!("its PV is not retained: {twin:?}"));
        }
        Ok(())
    }

    /// Whether the twin records that it may have been handed over: without its PV nothing else would.
    fn says_so(&self) -> bool {
        !self.named || self.twin.is_none_or(|twin| twin.handed_over)
    }

    fn happens(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Start => self.start(),
            Event::Crash => self.run = None,
            Event::GoOn => self.go_on()?,
            Event::TwinGoes if self.twin.is_some_and(|twin| twin.deleting && !twin.finalizer) => {
                self.twin_is_gone();
            }
            Event::PvController
                if self.twin.is_none() && self.real.is_some_and(|real| real.its && !real.retained) =>
            {
                if self.given && !self.waived {
                    return Err("the data is lost".into());
                }
                self.change_real(|real| *real = None);
            }
            Event::CreateVolume => {
                let is_its = |twin: &Claim| !twin.handed_over && !twin.target && !twin.superseded;
                let is_asked = self.claim && !matches!(self.place, Place::Here | Place::Unreadable);
                let Some(twin) = self.twin.filter(|_| is_asked).filter(is_its) else {
                    return Ok(());
                };
                if twin.deleting {
                    self.change_twin(|twin| twin.finalizer = false);
                } else if self.place == Place::Nowhere {
                    self.change_twin(|twin| twin.handed_over = true);
                    self.given = true;
                }
            }
            Event::Provisioner => {
                let is_given = self.twin.is_some_and(|twin| twin.handed_over && !twin.deleting);
                if is_given && self.claim && self.place == Place::Nowhere {
                    self.place = Place::Here;
                }
            }
            Event::DeleteVolume if self.waived && self.place == Place::Here => {
                self.twin_is_gone();
                self.change_real(|real| *real = None);
                self.place = Place::Nowhere;
            }
            // A moved or released volume has its data in another place.
            Event::CommandEnds => {
                let is_its = |twin: &Claim| twin.releasing || (twin.superseded && self.mv);
                if self.twin.as_ref().is_some_and(is_its) {
                    self.twin_is_gone();
                    self.waived = true;
                }
            }
            Event::DeleteTwin => self.change_twin(|twin| twin.deleting = true),
            Event::DeleteClaim if self.claim => {
                self.claim = false;
                self.waived |= self.place == Place::Here;
            }
            Event::HomeGoesBack if self.given && self.says_so() => {
                (self.claim, self.place) = (false, Place::Nowhere);
            }
            Event::HomeComesBack if self.given && self.place == Place::Nowhere => {
                (self.claim, self.place) = (self.named, Place::Here);
            }
            Event::DeleteVirtualVolume if self.place == Place::Here && self.says_so() => {
                self.place = Place::Nowhere;
            }
            Event::ServeElsewhere if !self.given && self.place == Place::Nowhere => {
                self.place = Place::Elsewhere;
            }
            Event::Upgrade if self.place != Place::Nowhere => self.place = Place::Unreadable,
            Event::Commit if self.place == Place::Here => {
                (self.mv, self.place) = (true, Place::Elsewhere);
                self.change_twin(|twin| twin.superseded = true);
            }
            Event::DeleteMove => self.mv = false,
            Event::Release if self.place == Place::Here => {
                self.change_twin(|twin| twin.releasing = true);
            }
            Event::Rights => self.rights ^= true,
            Event::TouchTwin => self.touch_twin(),
            Event::TouchReal => self.touch_real(),
            // The PV of this name is that of another claim now.
            Event::OthersReal if self.waived || !self.given => self.change_real(|real| {
                if let Some(real) = real {
                    *real = Pv { its: false, ..*real };
                }
            }),
            _ => {}
        }
        Ok(())
    }

    fn seen(&self) -> Option<OrphanState> {
        let twin = self.twin?;
        seen_state(self.orphan(twin, false), self.place, self.origin())
    }

    fn comes_to_rest(mut self) -> Result<(), String> {
        self.rights = true;
        for _ in 0..12 {
            let before = self.clone();
            for event in OTHERS {
                self.happens(event)?;
            }
            if self.seen() == Some(OrphanState::Collectable) {
                self.start();
                for _ in 0..12 {
                    self.go_on()?;
                    self.happens(Event::TwinGoes)?;
                }
                if self.run.take().is_some() {
                    return Err("it has no end".into());
                }
            }
            if self == before {
                return self.is_well();
            }
        }
        Err("it never comes to rest".into())
    }

    fn is_well(&self) -> Result<(), String> {
        let is_ours = matches!(self.place, Place::Nowhere | Place::Elsewhere);
        let Some(twin) = self
            .twin
            .filter(|twin| is_ours && !twin.target && !twin.releasing)
        else {
            return Ok(());
        };
        if twin.deleting {
            return Err(format!("our finalizer is left: {twin:?}"));
        }
        let is_nobodys = !twin.handed_over && !twin.superseded && self.named;
        if is_nobodys && (!self.claim || self.place == Place::Elsewhere) {
            return Err(format!(
                "it is not deleted, and will never be handed over: {twin:?}"
            ));
        }
        // Everything else is reported.
        let state = self.seen();
        let is_told = state.is_some_and(|state| OrphanState::REPORTED.contains(&state));
        let is_made = state == Some(OrphanState::BeingCreated);
        if is_told || is_made || self.of_move(twin, false) == MoveRole::Yes {
            return Ok(());
        }
        Err(format!("it is not reported: {twin:?}"))
    }
}

fn out_of_reach() -> FoundVolumes<Fresh> {
    FoundVolumes::OutOfReach {
        real: "real".into(),
        why: "forbidden".into(),
    }
}

/// Explores every reachable state, and returns their number.
fn explore(start: World) -> usize {
    exploration::explore(
        start,
        |world| {
            let ours: &[Event] = if world.run.is_none() {
                &[Event::Start]
            } else {
                &[Event::GoOn, Event::Crash]
            };
            let by_users = USER_EVENTS.iter().filter(|_| world.budget > 0);
            OTHERS.iter().chain(ours).chain(by_users).copied().collect()
        },
        |world, event| {
            let mut next = world.clone();
            next.budget -= u8::from(USER_EVENTS.contains(&event));
            next.happens(event)?;
            Ok(next)
        },
        |world| match world.run {
            None => world.clone().comes_to_rest(),
            Some(_) => Ok(()),
        },
    )
}

#[test]
fn model_only_twins_never_handed_over_are_deleted() {
    for remote in [false, true] {
        for (handed_over, named) in [(false, true), (false, false), (true, true), (true, false)] {
            let start = World::new(remote, handed_over, named, 4);
            assert!(explore(start) > 1_000);
        }
    }
}

/// Holds as long as the PV of its volume shows it, and for a twin that has lost everything.
#[test]
fn a_twin_that_has_lost_its_handed_over_mark_is_kept() {
    for (remote, named) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut start = World::new(remote, true, named, 4);
        start.change_twin(|twin| twin.handed_over = false);
        assert!(explore(start) > 1_000);
    }
}

#[test]
fn the_target_of_a_running_move_is_left_alone() {
    for remote in [false, true] {
        let mut start = World::new(remote, false, true, 3);
        start.place = Place::Elsewhere;
        start.mv = true;
        start.change_twin(|twin| twin.target = true);
        assert!(explore(start) > 100);
    }
}
