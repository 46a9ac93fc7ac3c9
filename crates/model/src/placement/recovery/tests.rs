//! Explores all states of a small model of recovery: others may act between each read and each write of ours,
//! any write of ours may be the last one before a crash, and a second leader acts late on early reads. No
//! data that was handed over to a user is lost, no twin is created for the data of another volume, and once
//! the others stop, recovery terminates with the twin restored.

use super::*;
use crate::placement::exploration;

/// An object in the version that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AsRead {
    uid: u8,
    /// Whether it still has that version.
    fresh: bool,
}

fn read(uid: u8) -> AsRead {
    AsRead { uid, fresh: true }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Ours,
    Copy,
    Foreign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
struct Claim {
    uid: u8,
    kind: Kind,
    deleting: bool,
    finalizer: bool,
    bound: bool,
    releasing: bool,
    of_move: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
struct Pv {
    uid: u8,
    /// The name of the volume's own PV is reused after its deletion.
    name: u8,
    /// The uid of the twin that it names. All have the name of the twin.
    claim: u8,
    marked: Option<bool>,
    retained: bool,
    /// Whether this driver replaced the policy by Retain.
    replaced: bool,
    deleting: bool,
    releasing: bool,
}

impl Pv {
    fn is_kept(self) -> bool {
        self.retained && !self.deleting && !self.releasing
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    goal: Goal,
    /// Whether the goal applied to the volume at the start: it never applies again later.
    is_its: bool,
    /// Whether its data was known to be retained and identified.
    seen_safe: bool,
    /// Whether two PVs were found without evidence for either.
    in_doubt: bool,
    facts: RecoveryFacts<AsRead, AsRead>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
struct World {
    remote: bool,
    /// Whether the PV of the volume is recorded.
    remembers: bool,
    moved_on: bool,
    offloaded: bool,
    claim: bool,
    outer: Option<VirtualVolume>,
    twin: Option<Claim>,
    /// The uid of the last twin of ours.
    last: u8,
    reals: Vec<Pv>,
    /// Whether this driver has the rights to change PVs, and to read and change twins.
    rights: bool,
    twin_rights: bool,
    /// The data may be deleted: users have deleted the claim, or the volume was moved, or never protected.
    waived: bool,
    /// How often users and fabrics still act.
    budget: u8,
    runs: [Option<Run>; 2],
}

/// The PV with the volume's data; others belong to other volumes.
const DATA: u8 = 1;
const FOREIGN: u8 = 60;
const FIRST: u8 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Start(usize, Goal),
    /// The recovery starts because the twin could not be read.
    StartUnread(usize),
    Crash(usize),
    GoOn(usize),
    TwinGoes,
    PvController,
    Bind,
    Upkeep,
    DeleteVolume,
    MoveEnds,
    ReleaseGoesOn,
    ReleaseEnds,
    // Events caused by users and fabrics.
    DeleteTwin,
    DeleteClaim,
    /// The virtual PV is deleted before its claim.
    DeleteVirtual,
    TouchReal,
    TouchTwin,
    RetainReal,
    DeleteReal,
    Rights,
    TwinRights,
    Move,
    /// The release of the volume starts; it marks the twin later.
    Release,
    ForeignClaim,
    CopyOfClaim,
}

const GOALS: [Goal; 4] = [Goal::Rescue, Goal::Restore, Goal::Reunite, Goal::Release];
const KUBERNETES: [Event; 5] = [
    Event::TwinGoes,
    Event::PvController,
    Event::Bind,
    Event::Upkeep,
    Event::DeleteVolume,
];
const USER_EVENTS: [Event; 13] = [
    Event::DeleteTwin,
    Event::DeleteClaim,
    Event::DeleteVirtual,
    Event::TouchReal,
    Event::TouchTwin,
    Event::RetainReal,
    Event::DeleteReal,
    Event::Rights,
    Event::TwinRights,
    Event::Move,
    Event::Release,
    Event::ForeignClaim,
    Event::CopyOfClaim,
];

impl World {
    /// A healthy volume in use.
    fn new(remote: bool, remembers: bool, wants_retain: bool, budget: u8) -> Self {
        Self {
            remote,
            remembers,
            moved_on: false,
            offloaded: true,
            claim: true,
            outer: Some(VirtualVolume {
                same: true,
                gated: false,
                bound: true,
                deleting: false,
                retained: wants_retain,
                releasing: false,
            }),
            twin: Some(Claim {
                uid: FIRST,
                kind: Kind::Ours,
                deleting: false,
                finalizer: true,
                bound: true,
                releasing: false,
                of_move: false,
            }),
            last: FIRST,
            reals: vec![Pv {
                uid: DATA,
                name: DATA,
                claim: FIRST,
                marked: None,
                retained: wants_retain,
                replaced: wants_retain,
                deleting: false,
                releasing: false,
            }],
            rights: true,
            twin_rights: true,
            waived: false,
            budget,
            runs: [None, None],
        }
    }

    /// A retained PV of another volume, whose twin had this name before.
    fn with_another(mut self, name: u8, marked: Option<bool>) -> Self {
        self.reals.push(Pv {
            uid: 2,
            name,
            claim: 50,
            marked,
            retained: true,
            replaced: false,
            deleting: false,
            releasing: false,
        });
        self
    }

    fn usage(&self) -> Usage {
        usage(self.claim, self.outer)
    }

    /// The object has changed: writes with an older version fail.
    fn changed(&mut self, uid: u8) {
        for run in self.runs.iter_mut().flatten() {
            if let Read::Known(FoundVolumes::Found(reals)) = &mut run.facts.reals {
                for real in reals.iter_mut().filter(|real| real.object.uid == uid) {
                    real.object.fresh = false;
                }
            }
            match &mut run.facts.twin {
                Read::Known(TwinNow::Ours(Twin { object, .. }) | TwinNow::Copy(object))
                    if object.uid == uid =>
                {
                    object.fresh = false;
                }
                _ => {}
            }
        }
    }

    fn change_twin(&mut self, change: impl FnOnce(&mut Claim)) {
        if let Some(twin) = &mut self.twin {
            let (uid, before) = (twin.uid, *twin);
            change(twin);
            if self.twin != Some(before) {
                self.changed(uid);
            }
        }
    }

    fn twin_is_gone(&mut self) {
        if let Some(twin) = self.twin.take() {
            self.changed(twin.uid);
        }
    }

    fn change_real(&mut self, uid: u8, change: impl FnOnce(&mut Pv)) {
        if let Some(real) = self.reals.iter_mut().find(|real| real.uid == uid) {
            let before = *real;
            change(real);
            if *real != before {
                self.changed(uid);
            }
        }
    }

    fn data(&self) -> Option<Pv> {
        self.reals.iter().find(|real| real.uid == DATA).copied()
    }

    /// Whether users have marked two PVs with the volume.
    fn is_doubtful(&self) -> bool {
        self.reals
            .iter()
            .any(|real| real.uid != DATA && real.marked == Some(true))
    }

    /// Whether its PV could be identified after the deletion of the twin.
    fn is_known(&self, real: Pv) -> bool {
        !self.remote || real.marked == Some(true) || (real.marked.is_none() && self.remembers)
    }

    // Reads of a leader.

    fn real(&self, real: Pv, twin: Option<u8>) -> RealVolume<AsRead> {
        RealVolume {
            object: read(real.uid),
            name: format!("real-{}", real.name),
            bound: twin == Some(real.claim),
            holder: holder(HolderFacts {
                names_twin: true,
                once: !self.remote,
                marked: real.marked,
                remembered: self.remembers.then_some(real.name == DATA),
            }),
            marked: !self.remote || real.marked == Some(true),
            retained: real.retained,
            deleting: real.deleting,
            releasing: real.releasing,
        }
    }

    fn reals(&self, facts: &RecoveryFacts<AsRead, AsRead>, name: Option<&str>) -> FoundVolumes<AsRead> {
        let twin = match &facts.twin {
            Read::Known(TwinNow::Ours(twin)) => Some(twin.object.uid),
            Read::Known(TwinNow::Unreadable(_)) => Some(self.last),
            _ => None,
        };
        let all = self.reals.iter().map(|real| self.real(*real, twin));
        FoundVolumes::Found(match name {
            Some(name) => all.filter(|real| real.name == name).collect(),
            None => all
                .filter(|real| real.bound || real.holder != Holder::Other)
                .collect(),
        })
    }

    fn twin_now(&self) -> TwinNow<AsRead> {
        let Some(twin) = self.twin else {
            return TwinNow::Absent;
        };
        match twin.kind {
            Kind::Copy if !twin.deleting => TwinNow::Copy(read(twin.uid)),
            Kind::Copy | Kind::Foreign => TwinNow::Foreign(Foreign::OtherClaim("another".into())),
            Kind::Ours => TwinNow::Ours(Twin {
                object: read(twin.uid),
                deleting: twin.deleting,
                releasing: twin.releasing,
                of_move: twin.of_move,
                finalizer: twin.finalizer,
                pending: !twin.bound,
                real: Some(format!("real-{DATA}")),
            }),
        }
    }

    fn start(&mut self, which: usize, goal: Goal, twin: Read<TwinNow<AsRead>>) {
        let outer = self.outer.filter(|outer| !outer.gated);
        let is_its = outer.is_some_and(|outer| match goal {
            // Its claim may still be deleted.
            Goal::Release => outer.retained && !outer.releasing && !outer.deleting,
            Goal::Rescue | Goal::Restore | Goal::Reunite => self.claim && outer.bound,
        });
        self.runs[which] = Some(Run {
            goal,
            is_its,
            seen_safe: false,
            in_doubt: false,
            facts: RecoveryFacts {
                epoch: Epoch::NEVER_MOVED,
                rights: self.rights,
                not_there: (!self.offloaded).then(|| "not offloaded".to_owned()),
                usage: Read::NotYet,
                twin,
                highest: Read::NotYet,
                reals: Read::NotYet,
            },
        });
    }

    /// One step of a leader, which results in an outcome, a failure, or a conflict.
    fn go_on(&mut self, which: usize) -> Result<(), String> {
        let Some(mut run) = self.runs[which].take() else {
            return Ok(());
        };
        let facts = run.facts.clone();
        let step = recovery_step(run.goal, &facts);
        let is_write = matches!(
            step,
            RecoveryStep::Keep(_)
                | RecoveryStep::RemoveFinalizer { .. }
                | RecoveryStep::CreateTwin(_)
                | RecoveryStep::PassOn { .. }
                | RecoveryStep::RemoveCopy(_)
        );
        if is_write && !run.is_its {
            return Err(format!("{step:?} for a volume that is none of its business"));
        }
        let then = match &step {
            RecoveryStep::RemoveFinalizer { then, .. } | RecoveryStep::Report(then) => Some(then),
            _ => None,
        };
        if run.seen_safe && matches!(then, Some(Rescue::Hopeless | Rescue::Doubtful(_))) {
            return Err(format!("reported {then:?}, although the data is retained"));
        }
        let goes_on = match step {
            RecoveryStep::ReadUsage
            | RecoveryStep::ReadTwin
            | RecoveryStep::ReadHighest
            | RecoveryStep::ReadReal { .. }
            | RecoveryStep::FindRemembered
            | RecoveryStep::FindReals => self.reads(&mut run, &step),
            write => self.writes(&mut run, &facts, write)?,
        };
        self.runs[which] = goes_on.then_some(run);
        Ok(())
    }

    /// False if the read fails.
    fn reads(&self, run: &mut Run, step: &RecoveryStep<'_, AsRead, AsRead>) -> bool {
        let is_known = |real: Pv| real.is_kept() && self.is_known(real);
        let (seen_safe, is_doubtful) = (self.data().is_some_and(is_known), self.is_doubtful());
        match *step {
            RecoveryStep::ReadUsage => run.facts.usage = Read::Known(self.usage()),
            RecoveryStep::ReadTwin if self.twin_rights => run.facts.twin = Read::Known(self.twin_now()),
            RecoveryStep::ReadTwin if run.goal == Goal::Rescue => {
                run.facts.twin = Read::Known(TwinNow::Unreadable("forbidden".into()));
            }
            RecoveryStep::ReadHighest => {
                let highest = if self.moved_on { "1" } else { "0" };
                run.facts.highest = Read::Known(highest.parse().unwrap());
            }
            RecoveryStep::ReadReal { name, .. } if self.rights => {
                run.facts.reals = Read::Known(self.reals(&run.facts, Some(name)));
                run.seen_safe = seen_safe && !is_doubtful;
            }
            RecoveryStep::ReadReal {
                name,
                or_out_of_reach: true,
            } => run.facts.reals = Read::Known(out_of_reach(name)),
            RecoveryStep::FindRemembered if self.rights => {
                let name = self.remembers.then(|| format!("real-{DATA}"));
                run.facts.reals = Read::Known(self.reals(&run.facts, name.as_deref()));
            }
            RecoveryStep::FindReals if self.rights => {
                run.facts.reals = Read::Known(self.reals(&run.facts, None));
                run.seen_safe = seen_safe && !is_doubtful;
                run.in_doubt = seen_safe && is_doubtful;
            }
            _ => return false,
        }
        true
    }

    /// False if the write fails, or was the last one.
    fn writes(
        &mut self,
        run: &mut Run,
        facts: &RecoveryFacts<AsRead, AsRead>,
        step: RecoveryStep<'_, AsRead, AsRead>,
    ) -> Result<bool, String> {
        match step {
            RecoveryStep::Keep(keep) if !self.rights && keep.or_out_of_reach => {
                run.facts.reals = Read::Known(out_of_reach(&keep.real.name));
            }
            RecoveryStep::Keep(keep) => {
                let real = keep.real.object;
                if !real.fresh || !self.rights {
                    return Ok(false);
                }
                if real.uid != DATA {
                    return Err("another's PV is written".into());
                }
                let is_retain = keep.write == KeepWrite::Retain;
                self.change_real(real.uid, |real| {
                    real.marked = Some(true);
                    real.retained |= is_retain;
                    real.replaced |= is_retain;
                });
                run.facts.reals = Read::Known(self.reals(facts, Some(&keep.real.name)));
            }
            RecoveryStep::RemoveFinalizer { twin, .. } => {
                if !twin.fresh || !self.twin_rights {
                    return Ok(false);
                }
                let now = self
                    .twin
                    .ok_or("the read object was deleted, but counted as unchanged")?;
                if now.kind != Kind::Ours || !now.deleting || now.releasing || now.of_move {
                    return Err(format!("its finalizer was removed: {now:?}"));
                }
                let is_safe = |real: Pv| real.retained && (!self.remote || real.marked == Some(true));
                if !self.waived && !self.data().is_some_and(is_safe) {
                    return Err("the finalizer was removed, and the data is not retained".into());
                }
                self.change_twin(|twin| twin.finalizer = false);
                return Ok(false);
            }
            RecoveryStep::RemoveCopy(copy) => {
                if copy.fresh && self.twin_rights {
                    if self.twin.map(|twin| twin.kind) != Some(Kind::Copy) {
                        return Err("what was deleted is no copy".into());
                    }
                    self.twin_is_gone();
                }
                run.facts.twin = Read::NotYet;
            }
            RecoveryStep::CreateTwin(real) => {
                if self.moved_on || !self.offloaded {
                    return Err("a twin was created where the volume was before its move".into());
                }
                if (real.uid != DATA && !self.is_doubtful()) || run.in_doubt {
                    return Err("a twin was created for data that may be another volume's".into());
                }
                let now = self.reals.iter().find(|now| now.uid == real.uid);
                if real.fresh && !now.is_some_and(|now| now.is_kept()) {
                    return Err("a twin was created for a PV that is being deleted".into());
                }
                if self.twin.is_some() || !self.twin_rights {
                    return Ok(false);
                }
                self.last += 1;
                self.twin = Some(Claim {
                    uid: self.last,
                    kind: Kind::Ours,
                    deleting: false,
                    finalizer: self.rights,
                    bound: false,
                    releasing: false,
                    of_move: false,
                });
                run.facts.twin = Read::Known(self.twin_now());
                run.goal = Goal::Reunite;
            }
            RecoveryStep::PassOn { real, twin } => {
                if real.fresh && self.rights {
                    let now = self.reals.iter().find(|now| now.uid == real.uid);
                    let now = now.ok_or("the read object was deleted, but counted as unchanged")?;
                    if (now.uid != DATA && !self.is_doubtful()) || !now.is_kept() {
                        return Err(format!("it was passed on: {now:?}"));
                    }
                    if twin.fresh && self.twin.is_some_and(|twin| twin.deleting || twin.of_move) {
                        return Err(format!("it was passed on to {:?}", self.twin));
                    }
                    self.change_real(real.uid, |real| real.claim = twin.uid);
                }
                return Ok(false);
            }
            RecoveryStep::Report(Rescue::Kept { real, .. }) => {
                let Read::Known(FoundVolumes::Found(found)) = &facts.reals else {
                    return Err(format!("{real} was not read"));
                };
                let is_kept = |it: &RealVolume<AsRead>| it.object.uid == DATA && it.retained && it.marked;
                if !self.is_doubtful() && !found.iter().any(|it| it.name == real && is_kept(it)) {
                    return Err(format!("{real} is not kept"));
                }
                return Ok(false);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    // Kubernetes, csi-provisioner, and other controllers of this driver.

    /// Releases an unclaimed PV and applies its policy.
    fn pv_controller(&mut self) -> Result<(), String> {
        if let Some(outer) = &mut self.outer {
            outer.bound &= self.claim;
        }
        let goes = |outer: &VirtualVolume| !outer.bound && outer.deleting && outer.retained;
        self.outer = self.outer.filter(|outer| !goes(outer));
        let twin = self.twin.map(|twin| twin.uid);
        let is_released = |real: &Pv| Some(real.claim) != twin;
        let goes = |real: &&Pv| is_released(real) && (!real.retained || real.deleting);
        for real in self.reals.clone().iter().filter(goes) {
            if real.uid == DATA && !self.waived {
                return Err("the data is lost".into());
            }
            self.reals.retain(|it| it.uid != real.uid);
            self.changed(real.uid);
        }
        Ok(())
    }

    fn upkeep(&mut self) {
        let (remote, wanted) = (self.remote, self.outer.is_some_and(|outer| outer.retained));
        let is_well = |twin: &Claim| twin.kind == Kind::Ours && twin.bound && !twin.deleting;
        let Some(twin) = self
            .twin
            .filter(is_well)
            .filter(|twin| !twin.of_move && !twin.releasing)
        else {
            return;
        };
        if self.usage() != Usage::InUse || !self.rights || !self.twin_rights {
            return;
        }
        self.change_twin(|twin| twin.finalizer = true);
        self.change_real(DATA, |real| {
            if real.claim != twin.uid || real.releasing {
                return;
            }
            if remote {
                real.marked = Some(true);
            }
            if wanted && !real.retained {
                (real.retained, real.replaced) = (true, true);
            } else if !wanted && real.replaced {
                (real.retained, real.replaced) = (false, false);
            }
        });
    }

    /// csi-provisioner deletes the volume and its data, according to the user's policy.
    fn delete_volume(&mut self) {
        let goes = |outer: VirtualVolume| !outer.bound && !outer.retained && !outer.gated && !outer.releasing;
        if !self.claim && self.outer.is_some_and(goes) {
            self.outer = None;
            if self.twin.is_some_and(|twin| twin.kind == Kind::Ours) {
                self.twin_is_gone();
            }
            self.change_real(DATA, |real| real.retained = false);
        }
    }

    /// A move or a release that takes care of the data itself.
    fn ends(&mut self, has_it: fn(&Claim) -> bool) {
        if self.twin.as_ref().is_some_and(has_it) {
            self.twin_is_gone();
            self.waived = true;
            self.outer = None;
        }
    }

    fn happens(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Start(which, goal) => self.start(which, goal, Read::NotYet),
            Event::StartUnread(which) if !self.twin_rights => {
                let unread = Read::Known(TwinNow::Unreadable("forbidden".into()));
                self.start(which, Goal::Rescue, unread);
            }
            Event::Crash(which) => self.runs[which] = None,
            Event::GoOn(which) => self.go_on(which)?,
            Event::TwinGoes if self.twin.is_some_and(|twin| twin.deleting && !twin.finalizer) => {
                self.twin_is_gone();
            }
            Event::PvController => self.pv_controller()?,
            Event::Bind => {
                let real = self.data().map(|real| real.claim);
                let is_for = |twin: &Claim| twin.kind == Kind::Ours && Some(twin.uid) == real;
                if self.twin.as_ref().is_some_and(is_for) {
                    self.change_twin(|twin| twin.bound = true);
                }
            }
            Event::Upkeep => self.upkeep(),
            Event::DeleteVolume => self.delete_volume(),
            Event::MoveEnds => self.ends(|twin| twin.of_move),
            Event::ReleaseGoesOn if self.outer.is_some_and(|outer| outer.releasing) => {
                self.change_twin(|twin| twin.releasing = twin.kind == Kind::Ours);
            }
            Event::ReleaseEnds => self.ends(|twin| twin.releasing),
            Event::DeleteTwin => {
                if self
                    .twin
                    .is_some_and(|twin| !twin.finalizer && twin.kind == Kind::Ours)
                {
                    // It was not protected (yet).
                    self.waived |= self.data().is_some_and(|real| !real.retained);
                }
                self.change_twin(|twin| twin.deleting = true);
            }
            Event::DeleteClaim => {
                self.claim = false;
                self.waived |= self.outer.is_some_and(|outer| !outer.retained);
            }
            Event::DeleteVirtual => {
                if let Some(outer) = &mut self.outer {
                    outer.deleting = true;
                }
            }
            Event::TouchReal => self.changed(DATA),
            Event::TouchTwin => self.changed(self.last),
            Event::RetainReal => self.change_real(DATA, |real| {
                (real.retained, real.replaced) = (true, false);
            }),
            Event::DeleteReal => {
                self.waived = true;
                self.change_real(DATA, |real| real.deleting = true);
            }
            Event::Rights => self.rights ^= true,
            Event::TwinRights => self.twin_rights ^= true,
            Event::Move
                if self
                    .twin
                    .is_some_and(|twin| twin.kind == Kind::Ours && !twin.deleting) =>
            {
                if let Some(outer) = &mut self.outer {
                    outer.gated = true;
                }
                self.change_twin(|twin| twin.of_move = true);
            }
            Event::Release
                if self
                    .twin
                    .is_some_and(|twin| twin.kind == Kind::Ours && !twin.deleting) =>
            {
                if let Some(outer) = &mut self.outer {
                    outer.releasing = true;
                }
                self.change_real(DATA, |real| {
                    (real.releasing, real.retained, real.replaced) = (true, true, false);
                });
            }
            Event::ForeignClaim | Event::CopyOfClaim if self.twin.is_none() && self.remote => {
                let kind = if event == Event::CopyOfClaim {
                    Kind::Copy
                } else {
                    Kind::Foreign
                };
                self.twin = Some(Claim {
                    uid: FOREIGN,
                    kind,
                    deleting: false,
                    finalizer: false,
                    bound: false,
                    releasing: false,
                    of_move: false,
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// The goal that `health` derives from its cache.
    fn diagnosed(&self) -> Option<Goal> {
        let twin = self.twin.filter(|twin| twin.kind == Kind::Ours);
        if twin.is_some_and(|twin| twin.releasing || twin.of_move) {
            return None;
        }
        match (self.usage(), twin) {
            (Usage::InUse, None) => Some(Goal::Restore),
            (Usage::InUse, Some(twin)) if twin.deleting => Some(Goal::Rescue),
            (Usage::InUse, Some(twin)) if !twin.bound => Some(Goal::Reunite),
            (Usage::Left, Some(twin)) if twin.deleting => Some(Goal::Release),
            _ => None,
        }
    }

    /// When the others stop and all rights exist, every run terminates successfully.
    fn comes_to_rest(mut self) -> Result<(), String> {
        (self.rights, self.twin_rights) = (true, true);
        for _ in 0..12 {
            let before = self.clone();
            for event in KUBERNETES {
                self.happens(event)?;
            }
            if let Some(goal) = self.diagnosed() {
                self.start(0, goal, Read::NotYet);
                for _ in 0..12 {
                    self.go_on(0)?;
                }
                if self.runs[0].take().is_some() {
                    return Err(format!("{goal:?} has no end"));
                }
            }
            if self == before {
                return self.is_well();
            }
        }
        Err("it never comes to rest".into())
    }

    fn is_well(&self) -> Result<(), String> {
        let twin = self.twin.filter(|twin| twin.kind == Kind::Ours);
        let is_held = |twin: &Claim| twin.deleting && !twin.of_move && !twin.releasing;
        let is_claimed = self.claim && self.outer.is_some_and(|outer| outer.bound && !outer.gated);
        if (is_claimed || self.usage() != Usage::Neither) && twin.as_ref().is_some_and(is_held) {
            return Err("our finalizer is left on a twin".into());
        }
        let is_occupied = self.twin.is_some_and(|twin| twin.kind == Kind::Foreign);
        let may_return = self.offloaded && !self.moved_on && !self.waived && !is_occupied;
        if !may_return || self.usage() != Usage::InUse {
            return Ok(());
        }
        let Some(data) = self.data().filter(|real: &Pv| !real.deleting && !real.releasing) else {
            return Ok(());
        };
        let is_back = |twin: &Claim| twin.bound && !twin.deleting && twin.uid == data.claim;
        let is_known = self.is_known(data) && !self.is_doubtful();
        if is_known && !twin.as_ref().is_some_and(|twin| twin.of_move || is_back(twin)) {
            return Err("the twin does not come back".into());
        }
        let wanted = self.outer.is_some_and(|outer| outer.retained);
        if twin.is_some_and(|twin| is_back(&twin)) && data.replaced && !wanted {
            return Err("the PV does not get its policy back".into());
        }
        Ok(())
    }
}

fn out_of_reach(real: &str) -> FoundVolumes<AsRead> {
    FoundVolumes::OutOfReach {
        real: real.to_owned(),
        why: "forbidden".into(),
    }
}

/// Explores every reachable state, and returns their number.
fn explore(start: World, leaders: usize) -> usize {
    let mut events: Vec<Event> = KUBERNETES.to_vec();
    events.extend([Event::MoveEnds, Event::ReleaseGoesOn, Event::ReleaseEnds]);
    for which in 0..leaders {
        events.extend(GOALS.map(|goal| Event::Start(which, goal)));
        events.extend([Event::StartUnread(which), Event::Crash(which), Event::GoOn(which)]);
    }
    exploration::explore(
        start,
        |world| {
            let is_possible = |event: &&Event| match event {
                Event::Start(which, _) | Event::StartUnread(which) => world.runs[*which].is_none(),
                _ => true,
            };
            let by_users = USER_EVENTS.iter().filter(|_| world.budget > 0);
            events
                .iter()
                .filter(is_possible)
                .chain(by_users)
                .copied()
                .collect()
        },
        |world, event| {
            let mut next = world.clone();
            next.budget -= u8::from(USER_EVENTS.contains(&event));
            next.happens(event)?;
            Ok(next)
        },
        |world| match world.runs {
            [None, None] => world.clone().comes_to_rest(),
            _ => Ok(()),
        },
    )
}

#[test]
fn model_data_is_kept_and_recovered() {
    for (remote, remembers) in [(false, true), (true, true), (true, false)] {
        for wants_retain in [false, true] {
            let start = World::new(remote, remembers, wants_retain, 3);
            assert!(explore(start, 1) > 10_000);
        }
    }
}

#[test]
fn no_twin_is_recreated_on_the_data_of_another_volume() {
    for marked in [None, Some(false), Some(true)] {
        for remembers in [true, false] {
            let start = World::new(true, remembers, false, 2).with_another(2, marked);
            assert!(explore(start, 1) > 5_000);
        }
    }
    // The volume's PV was deleted, and one of another volume has its name.
    for twin in [None, World::new(true, true, false, 0).twin] {
        let mut start = World::new(true, true, false, 2);
        (start.reals, start.twin, start.waived) = (Vec::new(), twin, true);
        start.change_twin(|twin| twin.bound = false);
        assert!(explore(start.with_another(DATA, Some(false)), 1) > 100);
    }
}

#[test]
fn no_twin_is_recreated_after_a_move_or_in_a_namespace_not_offloaded() {
    for (moved_on, offloaded) in [(true, true), (false, false)] {
        let mut start = World::new(true, true, false, 2);
        (start.moved_on, start.offloaded) = (moved_on, offloaded);
        assert!(explore(start, 1) > 1_000);
    }
}

#[test]
fn a_leader_that_acts_late_does_no_harm() {
    for remote in [false, true] {
        assert!(explore(World::new(remote, true, false, 1), 2) > 10_000);
    }
}
