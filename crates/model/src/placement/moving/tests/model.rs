//! A model check: any event may happen at any time, then all actors run until nothing changes. After each
//! event, no data is lost and no two copies are written; in the end the move is done or rolled back, and
//! nothing is left over.

use proptest::{collection::vec, prelude::*, sample::select};

use super::{
    world::{Phase, Twin, World},
    *,
};

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A leader reads, decides and dies after this many writes.
    Lead(usize),
    LateObjects,
    LateDecides,
    LateActs,
    PvController(usize),
    PvControllerOnClaim(usize),
    Provisioner(usize),
    PodScheduled(usize),
    PodScheduledThere(usize),
    PvControllerThere(usize),
    PvControllerThereOnClaims(usize),
    DeleteTwinThere(usize, bool),
    Recovery(usize),
    PodsGoOn(usize),
    PodsWrite(usize),
    PodEnds(usize),
    EvictedPodEnds(usize),
    PodDeletedByForce(usize),
    OrphanEnds(usize),
    Detach(usize),
    MoversGoOn(usize),
    MoverDies(usize, Side),
    Cancel,
    DeleteMove,
    DeleteMoveByForce,
    DeleteClaim(usize),
    DeletePv(usize),
    Silence(Side),
    DrainOverdue,
    DowntimeOverdue,
    LoseTarget,
    TargetOff,
    TargetReturns,
    RecoverSource,
}

fn any_event() -> impl Strategy<Value = Event> {
    use Event::{
        Cancel, DeleteClaim, DeleteMove, DeleteMoveByForce, DeletePv, DeleteTwinThere, Detach,
        DowntimeOverdue, DrainOverdue, EvictedPodEnds, LateActs, LateDecides, LateObjects, Lead, LoseTarget,
        MoverDies, MoversGoOn, OrphanEnds, PodDeletedByForce, PodEnds, PodScheduled, PodScheduledThere,
        PodsGoOn, PodsWrite, Provisioner, PvController, PvControllerOnClaim, PvControllerThere,
        PvControllerThereOnClaims, RecoverSource, Recovery, Silence, TargetOff, TargetReturns,
    };
    let volume = || 0..2_usize;
    let side = || select(vec![Side::Source, Side::Target]);
    prop_oneof![
        60 => (1..4_usize).prop_map(Lead),
        4 => Just(LateObjects),
        4 => Just(LateDecides),
        4 => Just(LateActs),
        14 => volume().prop_map(PvController),
        14 => volume().prop_map(PvControllerOnClaim),
        8 => volume().prop_map(Provisioner),
        4 => volume().prop_map(PodScheduled),
        4 => volume().prop_map(PodScheduledThere),
        10 => volume().prop_map(PvControllerThere),
        10 => volume().prop_map(PvControllerThereOnClaims),
        2 => (volume(), any::<bool>()).prop_map(|(number, by_force)| DeleteTwinThere(number, by_force)),
        8 => volume().prop_map(Recovery),
        8 => volume().prop_map(PodsGoOn),
        8 => volume().prop_map(PodsWrite),
        3 => volume().prop_map(PodEnds),
        8 => volume().prop_map(EvictedPodEnds),
        3 => volume().prop_map(PodDeletedByForce),
        2 => volume().prop_map(OrphanEnds),
        10 => volume().prop_map(Detach),
        20 => volume().prop_map(MoversGoOn),
        1 => (volume(), side()).prop_map(|(volume, side)| MoverDies(volume, side)),
        1 => select(vec![
            Cancel, DeleteMove, DeleteMoveByForce, DeleteClaim(0), DeleteClaim(1), DeletePv(0), DeletePv(1),
            Silence(Side::Source), Silence(Side::Target), DrainOverdue, DowntimeOverdue, LoseTarget,
            TargetOff, TargetReturns, RecoverSource,
        ]),
    ]
}

fn happens(world: &mut World, event: Event) {
    let which = |number: usize| number % world.volumes.len();
    match event {
        Event::Lead(writes) => world.lead(writes),
        Event::LateObjects => world.late_leader_reads_objects(),
        Event::LateDecides => world.late_leader_decides(),
        Event::LateActs => world.late_leader_acts(),
        Event::PvController(number) => world.pv_controller_looks_at_pv(which(number)),
        Event::PvControllerOnClaim(number) => world.pv_controller_looks_at_claim(which(number)),
        Event::Provisioner(number) => world.provisioner_looks(which(number)),
        Event::PodScheduled(number) => world.pod_is_scheduled(which(number)),
        Event::PodScheduledThere(number) => world.pod_is_scheduled_there(which(number)),
        Event::PvControllerThere(number) => world.pv_controller_there_looks_at_pv(which(number)),
        Event::PvControllerThereOnClaims(number) => world.pv_controller_there_looks_at_claims(which(number)),
        Event::DeleteTwinThere(number, by_force) => world.delete_twin_there(which(number), by_force),
        Event::Recovery(number) => world.recovery_looks(which(number)),
        Event::PodsGoOn(number) => world.pods_go_on(which(number)),
        Event::PodsWrite(number) => world.pods_write(which(number)),
        Event::PodEnds(number) => world.pod_ends(which(number), false),
        Event::EvictedPodEnds(number) => world.pod_ends(which(number), true),
        Event::PodDeletedByForce(number) => world.pod_is_deleted_by_force(which(number)),
        Event::OrphanEnds(number) => world.orphan_ends(which(number)),
        Event::Detach(number) => world.attacher_detaches(which(number)),
        Event::MoversGoOn(number) => world.movers_go_on(which(number)),
        Event::MoverDies(number, side) => world.mover_dies(which(number), side),
        Event::Cancel => world.cancel(),
        Event::DeleteMove => world.delete_move(false),
        Event::DeleteMoveByForce => world.delete_move(true),
        Event::DeleteClaim(number) => world.delete_claim(which(number)),
        Event::DeletePv(number) => world.delete_pv(which(number)),
        Event::Silence(Side::Source) => world.silent[0] ^= true,
        Event::Silence(Side::Target) => world.silent[1] ^= true,
        Event::DrainOverdue => world.overdue.drain ^= true,
        Event::DowntimeOverdue => world.overdue.downtime ^= true,
        Event::LoseTarget => world.lose_target(),
        Event::TargetOff => world.declare_target_off(),
        Event::TargetReturns => world.target_returns(),
        Event::RecoverSource => world.recover_source(),
    }
}

/// All actors run until nothing changes.
fn come_to_rest(world: &mut World) -> Result<(), TestCaseError> {
    for _ in 0..200 {
        let before = world.clock;
        world.lead(usize::MAX);
        for number in 0..world.volumes.len() {
            world.pv_controller_looks_at_pv(number);
            world.pv_controller_looks_at_claim(number);
            world.pv_controller_there_looks_at_pv(number);
            world.pv_controller_there_looks_at_claims(number);
            world.recovery_looks(number);
            world.provisioner_looks(number);
            world.pod_ends(number, false);
            world.orphan_ends(number);
            world.attacher_detaches(number);
            world.movers_go_on(number);
        }
        world.check().map_err(TestCaseError::fail)?;
        if world.clock == before {
            return Ok(());
        }
    }
    Err(TestCaseError::fail(format!("it never comes to rest: {world:#?}")))
}

/// The invariants of a volume in the end.
fn in_the_end(world: &World, number: usize) -> Result<(), TestCaseError> {
    let volume = &world.volumes[number];
    let show = || format!("{volume:#?} {:?}", world.mv);
    prop_assert_eq!(volume.helpers, [false; 2], "{}", show());
    // Without a PV at home, a twin is not created again: its data is kept.
    let is_not_recovered = !volume.is_open_there() && volume.pv.is_none();
    if let Some(real) = &volume.real {
        let is_gated = real.mark.as_ref().and_then(VolumeMark::note).is_some();
        // After the commit it names the claim of the mover until it is deleted.
        let is_superseded = world.was_committed && !world.was_recovered;
        prop_assert!(!is_gated && (real.names.is_none() || is_superseded), "{}", show());
        let is_its = volume.pv.as_ref().is_some_and(|pv| pv.serves == Side::Source);
        if volume.claim.is_some() && is_its && !is_not_recovered {
            prop_assert!(volume.is_open_there() && !real.twin_lost, "{}", show());
            prop_assert_eq!(real.phase, Phase::Bound, "{}", show());
        }
        if !is_not_recovered {
            prop_assert_eq!(real.policy, volume.policy, "{}", show());
        }
        prop_assert!(real.mover_claim.is_none(), "{}", show());
    }
    let Some(claim) = &volume.claim else {
        // The claim was deleted: its data follows the reclaim policy of the user.
        let left = volume.source.is_some() || volume.target.is_some() || volume.pv.is_some();
        let is_right = !left || volume.policy == ReclaimPolicy::Retain;
        prop_assert!(is_right || world.target_gone, "leaked: {}", show());
        return Ok(());
    };
    prop_assert!(!claim.locked && !claim.lost, "{}", show());
    let pv = volume.pv.as_ref();
    prop_assert!(pv.is_some(), "{}", show());
    let Some(pv) = pv else { return Ok(()) };
    prop_assert!(pv.held_by_claim && pv.phase == Phase::Bound, "{}", show());
    prop_assert_eq!(pv.policy, volume.policy, "{}", show());
    prop_assert!(
        pv.mark.as_ref().and_then(VolumeMark::note).is_none(),
        "{}",
        show()
    );
    let is_moved = pv.serves == Side::Target;
    prop_assert_eq!(
        is_moved,
        world.was_committed && !world.was_recovered,
        "{}",
        show()
    );
    let other = if is_moved { &volume.source } else { &volume.target };
    // A target that returns is kept, and no pod uses it.
    let is_kept = |twin: &Twin| world.was_recovered && twin.mark.is_some();
    prop_assert!(
        other.as_ref().is_none_or(is_kept) || world.target_gone,
        "{}",
        show()
    );
    prop_assert!(
        world.publishes_to_users(number) || world.target_gone || is_not_recovered,
        "{}",
        show()
    );
    Ok(())
}

fn run(mut world: World, events: &[Event]) -> Result<World, TestCaseError> {
    for event in events {
        happens(&mut world, *event);
        if let Err(broken) = world.check() {
            return Err(TestCaseError::fail(format!("after {event:?}: {broken}")));
        }
    }
    world.silent = [false; 2];
    world.overdue = OverDue::default();
    come_to_rest(&mut world)?;
    // The user of a move that waits for its source cancels it.
    for number in 0..world.volumes.len() {
        if !world.was_committed && world.volumes[number].waits_for_source() {
            world.cancel();
        }
    }
    come_to_rest(&mut world)?;
    if world.target_gone {
        world.recover_source();
        come_to_rest(&mut world)?;
    }
    // What was deleted while it was Lost was kept until here.
    for volume in &mut world.volumes {
        volume.waived |= volume.claim.is_none();
    }
    world.overdue.retention = true;
    come_to_rest(&mut world)?;
    let has = |wanted: fn(&Event) -> bool| events.iter().any(wanted);
    let forced = has(|event| matches!(event, Event::DeleteMoveByForce));
    // Without its status a move cannot create a PV again, nor continue.
    let has_no_way = forced && (world.was_committed || has(|event| matches!(event, Event::DeletePv(_))));
    // A deleted claim cannot be recovered either.
    let has_lost = world.target_gone && world.was_committed && !world.was_recovered;
    if !(has_no_way || has_lost) {
        let is_over = world.mv.as_ref().is_none_or(|mv| {
            let ended = matches!(mv.stage, Stage::Ended(_));
            ended && !mv.finalizer
        });
        prop_assert!(is_over, "{:#?}", world);
        for number in 0..world.volumes.len() {
            // A user who deletes a move by force has to care for claims that were deleted during it.
            let is_kept = forced && world.volumes[number].claim.is_none();
            if !is_kept {
                in_the_end(&world, number)?;
            }
        }
    }
    Ok(world)
}

/// `PROPTEST_CASES` sets a higher number.
fn cases() -> ProptestConfig {
    ProptestConfig::with_cases(ProptestConfig::default().cases.max(1000))
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_data_is_lost_and_no_object_is_left_in_any_order_of_events(
        volumes in 1..3_usize,
        quiesce in select(vec![Quiesce::Wait, Quiesce::Evict]),
        policy in select(vec![ReclaimPolicy::Delete, ReclaimPolicy::Retain]),
        is_remote in any::<bool>(),
        same_namespace in any::<bool>(),
        events in vec(any_event(), 0..250),
    ) {
        let mut world = World::new(volumes, quiesce, policy);
        if is_remote {
            world = world.remote();
            world.same_namespace = same_namespace;
        }
        run(world, &events)?;
    }
}

/// All actors except leaders and pods take a step.
fn others_go_on(world: &mut World) {
    world.pv_controller_looks_at_pv(0);
    world.pv_controller_looks_at_claim(0);
    world.pv_controller_there_looks_at_pv(0);
    world.pv_controller_there_looks_at_claims(0);
    world.attacher_detaches(0);
    world.movers_go_on(0);
}

/// A move of a remote source. A pod starts with the twin of the source after this many decisions
/// and writes, and ends before the driver reads again.
fn visited(mut world: World, begins: usize) -> World {
    for led in 0..80 {
        if led == begins {
            world.pod_is_scheduled_there(0);
            for _ in 0..3 {
                world.pods_go_on(0);
                world.pods_write(0);
            }
            world.pod_ends(0, false);
            world.attacher_detaches(0);
        }
        world.lead(1);
        others_go_on(&mut world);
    }
    world
}

#[test]
fn no_write_of_a_pod_to_a_gated_remote_source_is_missed() {
    let remote = || World::new(1, Quiesce::Evict, ReclaimPolicy::Delete).remote();
    for begins in 0..80 {
        let world = visited(remote(), begins);
        assert!(world.was_committed, "{world:#?}");
        world.check().unwrap();
        run(world, &[]).unwrap();
    }
    // Without the rights for that, the user has to accept it. The comparison finds some of the writes, and fails.
    let is_missed = |begins| {
        let mut world = remote();
        world.may_gate_there = false;
        let world = visited(world, begins);
        world.was_committed && world.check().is_err()
    };
    assert!((0..80).any(is_missed));
}

/// A pod waits there for its twin while that is gated: it never gets the superseded copy.
#[test]
fn a_pod_that_waits_for_a_gated_source_does_not_start_with_it_after_the_commit() {
    for same_namespace in [false, true] {
        let mut world = World::new(1, Quiesce::Evict, ReclaimPolicy::Delete).remote();
        world.same_namespace = same_namespace;
        while !world.was_committed {
            let is_lost = world.volumes[0].real.as_ref().unwrap().twin_lost;
            if is_lost && world.volumes[0].pods.is_empty() {
                world.pod_is_scheduled_there(0);
            }
            world.lead(1);
            others_go_on(&mut world);
        }
        assert_eq!(world.volumes[0].pods.len(), 1);
        for led in 0..60 {
            world.overdue.retention = led > 30;
            world.lead(1);
            others_go_on(&mut world);
            world.pods_go_on(0);
            world.pods_write(0);
            assert!(!world.volumes[0].runs(Side::Source), "{world:#?}");
        }
        run(world, &[]).unwrap();
    }
}

/// Its twin was deleted after the commit: the data is kept as long as that of any source.
#[test]
fn a_source_without_its_twin_is_released() {
    for same_namespace in [false, true] {
        let mut world = World::new(1, Quiesce::Evict, ReclaimPolicy::Delete).remote();
        world.same_namespace = same_namespace;
        while !world.was_committed {
            world.lead(1);
            others_go_on(&mut world);
        }
        assert!(world.volumes[0].real.as_ref().unwrap().names.is_some());
        world.delete_twin_there(0, true);
        come_to_rest(&mut world).unwrap();
        assert!(world.volumes[0].source.is_none());
        let real = world.volumes[0].real.as_ref().expect("the data is gone");
        assert_eq!(real.policy, ReclaimPolicy::Retain);
        assert!(run(world, &[]).unwrap().volumes[0].real.is_none());
    }
}

/// The driver had set Retain, for example because the twin was deleted once, and not restored the policy yet.
#[test]
fn a_source_that_was_retained_before_the_gate_gets_its_policy_back_when_it_is_released() {
    for same_namespace in [false, true] {
        let mut world = World::new(1, Quiesce::Evict, ReclaimPolicy::Delete).remote();
        world.same_namespace = same_namespace;
        while !world.was_committed {
            if matches!(world.mv.as_ref().unwrap().stage, Stage::Gating(_)) {
                world.volumes[0].real.as_mut().unwrap().retain();
            }
            world.lead(1);
            others_go_on(&mut world);
        }
        assert!(run(world, &[]).unwrap().volumes[0].real.is_none());
    }
}

/// A gate in the remote cluster that another client opens does not count any more.
#[test]
fn a_remote_gate_opened_by_others_is_closed_again_before_the_commit() {
    let mut world = World::new(1, Quiesce::Evict, ReclaimPolicy::Delete).remote();
    for _ in 0..80 {
        if matches!(world.mv.as_ref().unwrap().stage, Stage::Verifying(_)) {
            break;
        }
        world.lead(1);
        others_go_on(&mut world);
    }
    let real = world.volumes[0].real.as_mut().unwrap();
    assert!(real.names.is_some() && real.twin_lost, "{real:?}");
    real.names = None;
    world.lead(1);
    let stage = &world.mv.as_ref().unwrap().stage;
    assert!(
        matches!(
            stage,
            Stage::Rollback {
                to: RollbackTo::Copying,
                why: RollbackReason::GateOpen,
                ..
            }
        ),
        "{stage:?}"
    );
    assert!(run(world, &[]).unwrap().was_committed);
}

/// A pod that started after the mover, on its node, is deleted by force, and its container still writes.
#[test]
fn a_container_that_outlives_its_pod_on_the_node_of_the_mover_is_waited_for() {
    let mut world = World::new(1, Quiesce::Evict, ReclaimPolicy::Delete);
    let until = |world: &mut World, is_there: fn(&World) -> bool| {
        for _ in 0..50 {
            if is_there(world) {
                return;
            }
            world.lead(1);
            world.pv_controller_looks_at_pv(0);
            world.pv_controller_looks_at_claim(0);
        }
        panic!("{world:#?}");
    };
    until(&mut world, |world| world.volumes[0].attached_for_mover);
    world.pod_is_scheduled(0);
    world.pods_go_on(0);
    world.pods_go_on(0);
    world.pods_write(0);
    for _ in 0..50 {
        world.lead(1);
        if matches!(world.mv.as_ref().unwrap().stage, Stage::Draining(_)) {
            break;
        }
        world.movers_go_on(0);
        world.pv_controller_looks_at_pv(0);
        world.pv_controller_looks_at_claim(0);
    }
    world.pod_is_deleted_by_force(0);
    for _ in 0..50 {
        world.lead(usize::MAX);
        world.attacher_detaches(0);
        world.movers_go_on(0);
        world.pods_write(0);
        world.check().unwrap();
    }
    let stage = &world.mv.as_ref().unwrap().stage;
    assert!(matches!(stage, Stage::Draining(_)), "{stage:?}");
    world.orphan_ends(0);
    let world = run(world, &[]).unwrap();
    assert!(world.was_committed);
}

/// The check proves nothing if the move never makes progress.
#[test]
fn an_undisturbed_move_completes() {
    for volumes in [1, 2] {
        for policy in [ReclaimPolicy::Delete, ReclaimPolicy::Retain] {
            let world = run(World::new(volumes, Quiesce::Evict, policy), &[]).unwrap();
            assert!(world.was_committed);
            assert_eq!(world.mv.unwrap().stage, Stage::Ended(Outcome::Done));
        }
    }
}

/// A committed move whose pods may have written at the target.
fn committed(volumes: usize, lead: usize, writes: bool) -> World {
    let mut world = World::new(volumes, Quiesce::Evict, ReclaimPolicy::Delete);
    for _ in 0..200 {
        let is_there = world
            .mv
            .as_ref()
            .is_some_and(|mv| matches!(mv.stage, Stage::Retaining(_)));
        if is_there || (world.was_committed && lead == 0) {
            break;
        }
        world.lead(1);
        for number in 0..volumes {
            world.pv_controller_looks_at_pv(number);
            world.pv_controller_looks_at_claim(number);
            world.attacher_detaches(number);
            world.movers_go_on(number);
        }
    }
    for number in (0..volumes).filter(|_| writes) {
        world.pod_is_scheduled(number);
        for _ in 0..3 {
            world.pods_go_on(number);
            world.pods_write(number);
        }
    }
    assert!(world.was_committed, "{world:#?}");
    world
}

/// The recovery of a source: the leader dies after every number of writes, another replica acts late on an
/// earlier decision, and the target returns at any time.
#[test]
fn a_source_is_recovered_despite_crashes_late_writes_and_returning_targets() {
    for (volumes, stage, writes) in [(1, 0, false), (1, 1, true), (2, 1, true)] {
        for after in 0..40 {
            for returns in [None, Some(after), Some(after / 2)] {
                let mut world = committed(volumes, stage, writes);
                if returns.is_some() {
                    world.declare_target_off();
                } else {
                    world.lose_target();
                }
                world.recover_source();
                let asked = (0..50).position(|_| {
                    world.late_leader_reads_objects();
                    world.lead(1);
                    world.pv_controller_looks_at_claim(0);
                    world.check().unwrap();
                    world.was_recovered
                });
                assert!(asked.is_some(), "{world:#?}");
                for led in 0..=after {
                    if returns == Some(led) {
                        world.target_returns();
                    }
                    if led % 3 == 0 {
                        world.late_leader_reads_objects();
                        world.late_leader_decides();
                    }
                    world.lead(1);
                    for number in 0..volumes {
                        world.pv_controller_looks_at_claim(number);
                        world.pv_controller_looks_at_pv(number);
                        world.provisioner_looks(number);
                        world.pod_ends(number, false);
                        world.attacher_detaches(number);
                    }
                    world.check().unwrap();
                }
                world.late_leader_acts();
                world.check().unwrap();
                let world = run(world, &[]).unwrap();
                assert!(world.was_recovered, "{world:#?}");
                assert_eq!(world.mv.unwrap().stage, Stage::Ended(Outcome::Recovered));
                assert_eq!(world.volumes[0].pv.as_ref().unwrap().epoch, 2);
            }
        }
    }
}

/// Without a request, or while the target may be in use, nothing changes.
#[test]
fn a_source_is_not_recovered_without_request_or_while_the_target_may_be_used() {
    let mut unasked = committed(1, 1, true);
    unasked.lose_target();
    let mut silent = committed(1, 1, true);
    silent.silent[1] = true;
    silent.recover_source();
    let mut there = committed(1, 1, true);
    there.recover_source();
    for mut world in [unasked, silent, there] {
        for _ in 0..50 {
            world.lead(usize::MAX);
            world.check().unwrap();
        }
        assert!(!world.was_recovered);
        assert_eq!(world.volumes[0].pv.as_ref().unwrap().epoch, 1);
    }
}

/// At any step before the commit, the source is lost: the move ends by itself, the claim is as
/// before, and what was copied is deleted only with the move.
#[test]
fn a_move_whose_source_is_lost_ends_and_keeps_the_copy_until_it_is_deleted() {
    for led in 0..50 {
        let mut world = World::new(2, Quiesce::Evict, ReclaimPolicy::Delete);
        for _ in 0..led {
            world.lead(1);
            for number in 0..2 {
                world.pv_controller_looks_at_pv(number);
                world.pv_controller_looks_at_claim(number);
                world.attacher_detaches(number);
                world.movers_go_on(number);
            }
        }
        if world.was_committed {
            assert!(led > 10, "{led} steps are too few");
            return;
        }
        let had_copy = world.volumes[0].target.is_some();
        world.lose_source(0);
        come_to_rest(&mut world).unwrap();
        let mv = world.mv.as_ref().unwrap();
        assert_eq!(mv.stage, Stage::Ended(Outcome::SourceGone));
        assert!(!mv.finalizer);
        for volume in &world.volumes {
            let (claim, pv) = (volume.claim.as_ref().unwrap(), volume.pv.as_ref().unwrap());
            assert!(!claim.locked && !claim.lost && pv.held_by_claim, "{volume:#?}");
            assert_eq!((pv.policy, pv.phase), (ReclaimPolicy::Delete, Phase::Bound));
            assert_eq!(volume.helpers, [false; 2]);
        }
        assert_eq!(world.volumes[0].target.is_some(), had_copy);
        assert!(world.volumes[1].target.is_none(), "its source exists");
        world.delete_move(false);
        come_to_rest(&mut world).unwrap();
        assert!(world.volumes[0].target.is_none());
    }
    panic!("it is never committed");
}
