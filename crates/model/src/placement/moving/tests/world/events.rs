//! What the driver does not decide in the world of a move: Kubernetes' controllers, recovery, kubelets and pods, the
//! movers, and users.

use super::*;

impl World {
    pub(in super::super) fn pv_controller_looks_at_pv(&mut self, number: usize) {
        let version = self.clock + 1;
        let volume = &mut self.volumes[number];
        let Some(pv) = &mut volume.pv else { return };
        let phase = if pv.held_by_claim && volume.claim.is_some() {
            Phase::Bound
        } else {
            Phase::Released
        };
        if pv.phase != phase {
            pv.phase = phase;
            pv.version = version;
            self.clock = version;
        }
        // The protection finalizer of Kubernetes is removed when it is not Bound; the one of csi-provisioner
        // remains as long as there is data to delete.
        let volume = &mut self.volumes[number];
        let is_free = |pv: &Pv| !pv.finalizer && pv.policy == ReclaimPolicy::Retain;
        let goes = |pv: &Pv| pv.deleting && is_free(pv) && pv.phase != Phase::Bound;
        if volume.pv.as_ref().is_some_and(goes) {
            volume.pv = None;
            self.tick();
        }
    }

    pub(in super::super) fn pv_controller_looks_at_claim(&mut self, number: usize) {
        let version = self.clock + 1;
        let volume = &mut self.volumes[number];
        let is_lost = !volume.pv.as_ref().is_some_and(|pv| pv.held_by_claim);
        if let Some(claim) = volume.claim.as_mut().filter(|claim| claim.lost != is_lost) {
            claim.lost = is_lost;
            claim.version = version;
            self.clock = version;
        }
        // The protection of claims in use.
        let volume = &mut self.volumes[number];
        let goes = |claim: &Claim| claim.deleting && !claim.locked;
        if volume.claim.as_ref().is_some_and(goes) && volume.pods.is_empty() {
            volume.claim = None;
            self.tick();
        }
    }

    /// The PV controller in the cluster of a remote source.
    pub(in super::super) fn pv_controller_there_looks_at_pv(&mut self, number: usize) {
        let version = self.clock + 1;
        let volume = &mut self.volumes[number];
        let is_open = volume.is_open_there();
        let Some(real) = &mut volume.real else { return };
        let is_bound =
            is_open || (real.names.is_some() && real.mover_claim.map(|(uid, _)| uid) == real.names);
        let phase = if is_bound { Phase::Bound } else { Phase::Released };
        if real.phase != phase {
            (real.phase, real.version) = (phase, version);
            self.clock = version;
        }
    }

    pub(in super::super) fn pv_controller_there_looks_at_claims(&mut self, number: usize) {
        let version = self.clock + 1;
        let volume = &mut self.volumes[number];
        let is_lost = !volume.is_open_there();
        // The protection of claims in use.
        let has_mover = volume.helpers[SOURCE];
        let is_used = !(volume.pods.is_empty() && volume.orphans.is_empty()) || (has_mover && !is_lost);
        let goes = |twin: &Twin| twin.deleting && !twin.finalizer && !is_used;
        if let (Some(real), Some(twin)) = (&mut volume.real, volume.source.take_if(|twin| goes(twin))) {
            (real.left, real.touched, real.twin_lost) = (twin.data, None, false);
            self.clock = version;
        }
        let Some(real) = &mut volume.real else { return };
        let Some(twin) = &mut volume.source else {
            // The garbage collector.
            if !has_mover && real.mover_claim.take().is_some() {
                self.clock = version;
            }
            return;
        };
        if real.twin_lost != is_lost {
            (real.twin_lost, twin.version) = (is_lost, version);
            self.clock = version;
        }
        let names = real.names;
        if let Some((uid, bound)) = &mut real.mover_claim
            && *bound != (names == Some(*uid))
        {
            *bound = !*bound;
            self.clock = version;
        }
    }

    /// The loops that recover the twin of a volume in use, and set the policy of its PV. They make one write.
    pub(in super::super) fn recovery_looks(&mut self, number: usize) {
        let clock = self.clock + 1;
        let move_exists = self.mv.is_some();
        let may_write = self.may_gate_there && !self.silent[SOURCE];
        let volume = &mut self.volumes[number];
        let (Some(pv), Some(real)) = (&volume.pv, volume.real.as_mut().filter(|_| may_write)) else {
            return;
        };
        let is_gated = pv.mark.as_ref().and_then(VolumeMark::note).is_some();
        if pv.serves != Side::Source || pv.epoch > 0 || is_gated {
            return;
        }
        let has_claim = volume.claim.as_ref().is_some_and(|claim| !claim.deleting);
        let is_in_use = pv.phase == Phase::Bound && has_claim;
        let is_left = pv.phase == Phase::Released && pv.policy == ReclaimPolicy::Retain && !pv.deleting;
        let is_of_move = |twin: &Twin| match twin.mark {
            Some(SourceMark::Superseded { .. }) => true,
            Some(SourceMark::Moving { .. }) => move_exists,
            Some(SourceMark::RolledBack { .. }) | None => false,
        };
        match &mut volume.source {
            Some(twin) if is_of_move(twin) => return,
            Some(twin) if twin.deleting && twin.finalizer && (is_in_use || is_left) => {
                if real.names(twin) {
                    real.retain();
                    real.version = clock;
                }
                (twin.finalizer, twin.version) = (false, clock);
            }
            Some(twin) if twin.deleting => return,
            Some(twin)
                if is_in_use
                    && !real.names(twin)
                    && real.names.is_none()
                    && real.policy == ReclaimPolicy::Retain =>
            {
                (real.twin, real.version) = (twin.uid, clock);
            }
            Some(twin) if real.names(twin) && real.phase == Phase::Bound => {
                match (pv.policy, real.policy_before) {
                    (ReclaimPolicy::Retain, _) if real.policy == ReclaimPolicy::Delete => {
                        real.retain();
                        real.version = clock;
                    }
                    (ReclaimPolicy::Delete, Some(before)) => {
                        (real.policy, real.policy_before, real.version) = (before, None, clock);
                    }
                    _ => return,
                }
            }
            None if is_in_use && real.names.is_none() && real.policy == ReclaimPolicy::Retain => {
                volume.source = Some(Twin {
                    version: clock,
                    uid: clock,
                    epoch: 0,
                    data: real.left,
                    mark: None,
                    handed_over: true,
                    retained: false,
                    deleting: false,
                    finalizer: true,
                });
            }
            _ => return,
        }
        self.clock = clock;
    }

    pub(in super::super) fn provisioner_looks(&mut self, number: usize) {
        let volume = &mut self.volumes[number];
        let goes_there = |real: &Real| real.phase == Phase::Released && real.policy == ReclaimPolicy::Delete;
        if volume.real.as_ref().is_some_and(goes_there) {
            (volume.source, volume.real) = (None, None);
            self.tick();
            return;
        }
        let goes = |pv: &Pv| pv.phase == Phase::Released && pv.policy == ReclaimPolicy::Delete;
        let Some(pv) = volume.pv.as_ref().filter(|pv| goes(pv)) else {
            return;
        };
        if volume.attached || self.silent[index(pv.serves)] {
            return;
        }
        match pv.serves {
            // Without the twin, what another client retains stays.
            Side::Source => {
                let is_deleted = |real: &Real| {
                    volume.source.is_some()
                        || real.policy == ReclaimPolicy::Delete
                        || real.policy_before.is_some()
                };
                if volume.real.as_ref().is_none_or(is_deleted) {
                    (volume.source, volume.real) = (None, None);
                }
            }
            Side::Target => volume.target = None,
        }
        if !pv.finalizer {
            volume.pv = None;
        }
        self.tick();
    }

    pub(in super::super) fn pod_is_scheduled(&mut self, number: usize) {
        let volume = &mut self.volumes[number];
        // The scheduler may not know yet that a claim is Lost.
        if volume.claim.as_ref().is_some_and(|claim| !claim.deleting) && volume.pods.len() < 2 {
            volume.pods.push(Pod {
                state: PodState::Scheduled,
                leaving: false,
                there: false,
            });
            self.tick();
        }
    }

    /// A pod with the twin starts in the cluster of a remote source; not with a superseded twin, which this driver does
    /// not prevent.
    pub(in super::super) fn pod_is_scheduled_there(&mut self, number: usize) {
        let volume = &mut self.volumes[number];
        let is_superseded = matches!(
            volume.source.as_ref().and_then(|twin| twin.mark.as_ref()),
            Some(SourceMark::Superseded { .. })
        );
        let has_data = volume.real.is_some() && volume.source.as_ref().is_some_and(|twin| !twin.deleting);
        if has_data && !is_superseded && !self.was_committed && volume.pods.len() < 2 {
            let is_lost = volume.real.as_ref().is_some_and(|real| real.twin_lost);
            volume.pods.push(Pod {
                state: if is_lost {
                    PodState::Unscheduled
                } else {
                    PodState::Scheduled
                },
                leaving: false,
                there: true,
            });
            self.tick();
        }
    }

    /// The kubelets take one step for each pod.
    pub(in super::super) fn pods_go_on(&mut self, number: usize) {
        let world = self.clone();
        let volume = &mut self.volumes[number];
        // Every kubelet in the cluster of a remote source verifies that its PV names the twin.
        let is_open = volume.is_open_there();
        // Without the twin it is not scheduled either.
        let is_lost = volume.source.is_none() || volume.real.as_ref().is_some_and(|real| real.twin_lost);
        for pod in volume.pods.iter_mut().filter(|pod| pod.there) {
            match pod.state {
                PodState::Unscheduled if !is_lost => pod.state = PodState::Scheduled,
                PodState::Scheduled if is_open => pod.state = PodState::Checked,
                PodState::Checked => {
                    pod.state = PodState::Running(Side::Source);
                    volume.attached = true;
                }
                PodState::Unscheduled | PodState::Scheduled | PodState::Running(_) => {}
            }
        }
        let Some(pv) = &volume.pv else { return };
        let is_open = is_open || pv.serves == Side::Target;
        let mut stale = false;
        for pod in volume.pods.iter_mut().filter(|pod| !pod.there) {
            match pod.state {
                PodState::Scheduled if is_open && pv.held_by_claim => pod.state = PodState::Checked,
                PodState::Checked if world.publishes(number, pv.serves, pv.epoch, &Caller::User) => {
                    pod.state = PodState::Running(pv.serves);
                    volume.attached = true;
                    let twin = match pv.serves {
                        Side::Source => &volume.source,
                        Side::Target => &volume.target,
                    };
                    stale |= twin.as_ref().is_none_or(|twin| twin.data != volume.newest);
                }
                _ => {}
            }
        }
        self.tick();
        if stale {
            self.broken.push("a pod was given a copy that lacks data".into());
        }
    }

    /// `ControllerPublish`, which reads the twin live.
    pub(super) fn publishes(&self, number: usize, side: Side, asked: u32, caller: &Caller) -> bool {
        let volume = &self.volumes[number];
        let Some(twin) = volume.twin(side) else {
            return false;
        };
        let highest = volume.target.as_ref().is_some_and(|twin| twin.handed_over) && !self.silent[TARGET];
        let made_by_move = side == Side::Target && !twin.handed_over;
        let facts = self.answers(
            side,
            AttachFacts {
                asked: epoch(asked),
                epoch: epoch(twin.epoch),
                source: twin.mark.clone(),
                target: made_by_move.then(|| crate::volume::moving::TargetMark {
                    by: uid(),
                    epoch: epoch(1),
                }),
                exists: self.mv.is_some(),
                highest: epoch(u32::from(highest)).max(epoch(asked)),
            },
        );
        attach_decision(&facts, caller) == AttachDecision::Allow
    }

    pub(in super::super) fn pods_write(&mut self, number: usize) {
        let volume = &mut self.volumes[number];
        let sides: Vec<Side> = [Side::Source, Side::Target]
            .into_iter()
            .filter(|side| volume.runs(*side))
            .collect();
        for side in &sides {
            volume.newest += 1;
            let newest = volume.newest;
            let twin = match side {
                Side::Source => &mut volume.source,
                Side::Target => &mut volume.target,
            };
            if let Some(twin) = twin {
                twin.data = newest;
            }
        }
        if !sides.is_empty() {
            volume.copied.converged = false;
            self.tick();
        }
    }

    pub(in super::super) fn pod_ends(&mut self, number: usize, only_leaving: bool) {
        let pods = &mut self.volumes[number].pods;
        let ends = pods.iter().position(|pod| pod.leaving || !only_leaving);
        if let Some(which) = ends {
            pods.remove(which);
            self.tick();
        }
    }

    /// A user deletes a pod by force: its container still runs, for its grace period or forever.
    pub(in super::super) fn pod_is_deleted_by_force(&mut self, number: usize) {
        let volume = &mut self.volumes[number];
        if volume.pods.is_empty() {
            return;
        }
        if let PodState::Running(side) = volume.pods.remove(0).state {
            volume.orphans.push(side);
        }
        self.tick();
    }

    pub(in super::super) fn orphan_ends(&mut self, number: usize) {
        if self.volumes[number].orphans.pop().is_some() {
            self.tick();
        }
    }

    /// A volume that the kubelet has mounted is not detached.
    pub(in super::super) fn attacher_detaches(&mut self, number: usize) {
        let volume = &mut self.volumes[number];
        let is_used = [Side::Source, Side::Target]
            .into_iter()
            .any(|side| volume.runs(side))
            || volume.helpers[SOURCE];
        let has_pv = volume.attached_for_mover || volume.pv.is_some();
        if volume.attached && !is_used && has_pv {
            (volume.attached, volume.attached_for_mover) = (false, false);
            self.tick();
        }
    }

    // Movers.

    pub(in super::super) fn movers_go_on(&mut self, number: usize) {
        let volume = &mut self.volumes[number];
        if let Some(Pass::Finish(gate)) = volume.copied.running {
            let is_there =
                volume.helpers[TARGET] && volume.target.as_ref().is_some_and(|twin| !twin.handed_over);
            if is_there && !self.silent[TARGET] {
                (volume.copied.running, volume.copied.journal_off) = (None, Some(gate));
                self.tick();
            }
            return;
        }
        let (Some(source), Some(target)) = (&volume.source, &mut volume.target) else {
            return;
        };
        // The mover needs a claim that is bound: its own one, or the twin, which may have been created again.
        let is_bound = |real: &Real| match real.names {
            Some(claim) => real.mover_claim.is_some_and(|(uid, _)| uid == claim),
            None => real.names(source),
        };
        if volume.real.as_ref().is_some_and(|real| !is_bound(real)) {
            return;
        }
        // A twin that was handed over is not attached for a mover.
        if volume.helpers != [true; 2] || self.silent != [false; 2] || target.handed_over {
            return;
        }
        match volume.copied.running.take() {
            None | Some(Pass::Finish(_)) => return,
            Some(Pass::Warm) => {
                target.data = volume.begun_with;
                volume.copied.converged = volume.begun_with == source.data;
            }
            Some(Pass::Final(gate)) => {
                target.data = volume.begun_with;
                volume.copied.finished = Some(gate);
            }
            Some(Pass::Verify(gate)) => {
                let roots = if target.data == source.data {
                    Roots::Equal
                } else {
                    Roots::Differ("file".into())
                };
                volume.copied.compared = Some((gate, roots));
            }
        }
        self.tick();
    }

    pub(in super::super) fn mover_dies(&mut self, number: usize, side: Side) {
        let volume = &mut self.volumes[number];
        volume.helpers[index(side)] = false;
        volume.copied.running = None;
        self.tick();
    }

    // Users and administrators.

    pub(in super::super) fn cancel(&mut self) {
        let version = self.tick();
        if let Some(mv) = &mut self.mv {
            mv.cancel = true;
            mv.version = version;
        }
    }

    /// The API server accepts it only after the commit.
    pub(in super::super) fn recover_source(&mut self) {
        let version = self.tick();
        if let Some(mv) = self.mv.as_mut().filter(|_| self.was_committed) {
            mv.recover = true;
            mv.version = version;
        }
    }

    /// The cluster of the target becomes unreachable, and an administrator declares it out of service.
    pub(in super::super) fn declare_target_off(&mut self) {
        (self.silent[TARGET], self.target_out_of_service) = (true, true);
        for volume in &mut self.volumes {
            volume.leave_target();
        }
        self.tick();
    }

    /// The target exists again, with its data.
    pub(in super::super) fn target_returns(&mut self) {
        (self.silent[TARGET], self.target_out_of_service) = (false, false);
        self.tick();
    }

    pub(in super::super) fn delete_move(&mut self, by_force: bool) {
        let version = self.tick();
        if let Some(mv) = &mut self.mv {
            mv.deleting = true;
            mv.finalizer &= !by_force;
            mv.version = version;
        }
        self.collect_move();
    }

    pub(in super::super) fn delete_claim(&mut self, number: usize) {
        let version = self.tick();
        let volume = &mut self.volumes[number];
        let Some(claim) = volume.claim.as_mut().filter(|claim| !claim.deleting) else {
            return;
        };
        let is_whole = volume.pv.as_ref().is_some_and(|pv| pv.held_by_claim) && !claim.lost;
        volume.waived |= is_whole;
        claim.deleting = true;
        claim.version = version;
        self.pv_controller_looks_at_claim(number);
    }

    pub(in super::super) fn delete_pv(&mut self, number: usize) {
        let version = self.tick();
        if let Some(pv) = &mut self.volumes[number].pv {
            pv.deleting = true;
            pv.version = version;
        }
        self.pv_controller_looks_at_pv(number);
    }

    /// The twin is deleted in the cluster of a remote source; by force also without the finalizer, while it is Lost or
    /// not needed any more.
    pub(in super::super) fn delete_twin_there(&mut self, number: usize, by_force: bool) {
        let version = self.clock + 1;
        let (was_committed, target_gone) = (self.was_committed, self.target_gone);
        let same_namespace = self.same_namespace;
        if self.mv.as_ref().is_some_and(|mv| mv.recover) {
            return;
        }
        let volume = &mut self.volumes[number];
        let is_kept = !target_gone && volume.is_safe(Side::Target);
        let is_gated = volume.real.as_ref().is_some_and(|real| real.note().is_some());
        let is_handed_over = volume.target.as_ref().is_some_and(|twin| twin.handed_over);
        let may_be = if was_committed {
            // Within one namespace only its PV is left by then.
            is_kept && !(same_namespace && is_handed_over)
        } else {
            !by_force || is_gated
        };
        let has_real = volume.real.is_some();
        let Some(twin) = volume.source.as_mut().filter(|_| has_real && may_be) else {
            return;
        };
        (twin.deleting, twin.version) = (true, version);
        twin.finalizer &= !by_force;
        self.clock = version;
    }

    /// The twin of the source and its data are destroyed.
    pub(in super::super) fn lose_source(&mut self, number: usize) {
        let volume = &mut self.volumes[number];
        (volume.source, volume.real) = (None, None);
        // Lost by that, not by a decision of the driver.
        volume.waived = true;
        self.tick();
    }

    /// The cluster of the target is destroyed while the source still has the data of the commit. Later writes
    /// are lost by that, not by a decision of the driver.
    pub(in super::super) fn lose_target(&mut self) {
        let was_committed = self.was_committed;
        let has_twin = |volume: &Volume| volume.source.is_some() || !was_committed;
        let is_left = |volume: &Volume| volume.waived || (volume.is_safe(Side::Source) && has_twin(volume));
        let is_kept = |volume: &Volume| was_committed && volume.source.is_some();
        if self
            .volumes
            .iter()
            .all(|volume| is_left(volume) || is_kept(volume))
        {
            self.target_gone = true;
            for volume in &mut self.volumes {
                if is_kept(volume) {
                    volume.newest = volume.source.as_ref().map_or(0, |twin| twin.data);
                }
                volume.target = None;
                volume.helpers[TARGET] = false;
                volume.copied = Copied::default();
                volume.leave_target();
            }
            self.tick();
        }
    }
}
