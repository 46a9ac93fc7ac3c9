//! A simulated world in which a volume moves: objects with versions, Kubernetes' PV controller, scheduler and
//! kubelet, csi-attacher, a csi-provisioner without safeguards, movers, and leaders, one of which may be
//! late. The invariants are checked after every event. This file has the objects, and what the driver reads,
//! decides and writes; `events` has everything else that happens.

mod events;

use super::*;

/// The phase of a PV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Pending,
    Bound,
    Released,
}

#[derive(Clone, Debug)]
pub(super) struct Pv {
    version: u64,
    uid: u64,
    pub(super) serves: Side,
    pub(super) epoch: u32,
    pub(super) held_by_claim: bool,
    pub(super) mark: Option<VolumeMark>,
    pub(super) policy: ReclaimPolicy,
    pub(super) phase: Phase,
    pub(super) deleting: bool,
    finalizer: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Claim {
    version: u64,
    pub(super) deleting: bool,
    pub(super) locked: bool,
    pub(super) lost: bool,
    touched: Option<Touch>,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Twin {
    version: u64,
    uid: u64,
    pub(super) epoch: u32,
    pub(super) data: u64,
    pub(super) mark: Option<SourceMark>,
    pub(super) handed_over: bool,
    retained: bool,
    pub(super) deleting: bool,
    /// Whether it has the finalizer of this driver.
    pub(super) finalizer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodState {
    /// The scheduler sees that the twin is Lost.
    Unscheduled,
    Scheduled,
    /// Its kubelet has verified that the PV names the claim.
    Checked,
    /// Its containers run and write.
    Running(Side),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pod {
    state: PodState,
    leaving: bool,
    /// Whether another client in the cluster of a remote source has started it with the twin.
    there: bool,
}

/// The PV of a remote source, and the claim of its mover.
#[derive(Clone, Debug)]
pub(super) struct Real {
    version: u64,
    /// The claim of a mover that it names; the twin if `None`.
    pub(super) names: Option<u64>,
    /// The uid of the twin that it names otherwise.
    twin: u64,
    pub(super) mark: Option<VolumeMark>,
    pub(super) policy: ReclaimPolicy,
    /// The policy in [`mark::POLICY_BEFORE`](crate::volume::mark::POLICY_BEFORE).
    policy_before: Option<ReclaimPolicy>,
    /// Its data, if the twin was deleted.
    left: u64,
    pub(super) phase: Phase,
    /// The claim of the mover by its uid, and whether it is bound.
    pub(super) mover_claim: Option<(u64, bool)>,
    /// The phase of the twin.
    pub(super) twin_lost: bool,
    touched: Option<Touch>,
}

/// One claim and its objects.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) policy: ReclaimPolicy,
    pub(super) claim: Option<Claim>,
    pub(super) pv: Option<Pv>,
    pub(super) source: Option<Twin>,
    /// The PV of the source, if that is in a remote cluster.
    pub(super) real: Option<Real>,
    pub(super) target: Option<Twin>,
    pub(super) helpers: [bool; 2],
    pub(super) copied: Copied,
    begun_with: u64,
    pub(super) pods: Vec<Pod>,
    /// Containers that still run and write after their pods were deleted by force.
    pub(super) orphans: Vec<Side>,
    /// Whether it is attached to its node: Kubernetes has one attachment per handle.
    pub(super) attached: bool,
    /// Whether the attachment names the PV of the mover, which was attached first.
    pub(super) attached_for_mover: bool,
    /// The number of writes that were confirmed to their writers.
    newest: u64,
    /// The user deleted the claim while it was Bound: its data may be deleted.
    pub(super) waived: bool,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Move {
    version: u64,
    pub(super) stage: Stage,
    pub(super) finalizer: bool,
    pub(super) deleting: bool,
    pub(super) cancel: bool,
    pub(super) recover: bool,
    recorded: Vec<Option<Recorded>>,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct World {
    pub(super) clock: u64,
    pub(super) volumes: Vec<Volume>,
    pub(super) mv: Option<Move>,
    pub(super) quiesce: Quiesce,
    pub(super) overdue: OverDue,
    pub(super) silent: [bool; 2],
    /// Whether the driver may change PVs in the cluster of a remote source.
    pub(super) may_gate_there: bool,
    /// Whether both twins are in one namespace of a remote cluster.
    pub(super) same_namespace: bool,
    pub(super) target_gone: bool,
    /// An administrator declared the target's cluster out of service, and nothing runs there.
    pub(super) target_out_of_service: bool,
    pub(super) was_committed: bool,
    pub(super) was_recovered: bool,
    pub(super) broken: Vec<String>,
    late_objects: Option<Vec<ClaimFacts>>,
    late_step: Option<Decided>,
}

/// The decision of a leader.
#[derive(Clone, Debug)]
enum Decided {
    Move(MoveStep),
    Leftovers(Vec<(usize, ClaimStep)>),
}

const SOURCE: usize = 0;
const TARGET: usize = 1;

fn index(side: Side) -> usize {
    match side {
        Side::Source => SOURCE,
        Side::Target => TARGET,
    }
}

fn read(uid: &str, version: u64) -> AsRead {
    AsRead::new(uid.to_owned(), version.to_string())
}

fn read_real(real: &Real) -> AsRead {
    read("real", real.version)
}

fn read_pv(pv: &Pv) -> AsRead {
    read(&format!("pv-{}", pv.uid), pv.version)
}

impl Real {
    fn names(&self, twin: &Twin) -> bool {
        self.names.is_none() && self.twin == twin.uid
    }

    fn note(&self) -> Option<&GateNote> {
        self.mark.as_ref().and_then(VolumeMark::note)
    }

    /// Whether the move finds this PV without its twin.
    fn is_of_move(&self) -> bool {
        self.note().is_some() || (self.mark.is_some() && self.policy_before.is_some())
    }

    pub(super) fn retain(&mut self) {
        if self.policy == ReclaimPolicy::Delete {
            (self.policy, self.policy_before) = (ReclaimPolicy::Retain, Some(ReclaimPolicy::Delete));
        }
    }
}

impl Volume {
    /// Whether the real PV is bound to an existing twin.
    pub(super) fn is_open_there(&self) -> bool {
        self.real
            .as_ref()
            .is_none_or(|real| self.source.as_ref().is_some_and(|twin| real.names(twin)))
    }

    /// Whether the twin of the source, which may have been created again, was ever bound.
    fn was_bound(&self, twin: &Twin) -> bool {
        self.real.as_ref().is_none_or(|real| real.twin == twin.uid)
    }

    pub(super) fn waits_for_source(&self) -> bool {
        self.source
            .as_ref()
            .is_none_or(|twin| twin.deleting || !self.was_bound(twin))
    }

    fn twin(&self, side: Side) -> Option<&Twin> {
        match side {
            Side::Source => self.source.as_ref(),
            Side::Target => self.target.as_ref(),
        }
    }

    /// Ends all pods and containers at the target.
    fn leave_target(&mut self) {
        self.pods
            .retain(|pod| pod.state != PodState::Running(Side::Target));
        self.orphans.retain(|side| *side != Side::Target);
    }

    /// One write in the cluster of a remote source; false if the object has changed.
    fn apply_there(&mut self, step: ClaimStep, clock: u64) -> bool {
        let Some(real) = &mut self.real else { return false };
        match step {
            ClaimStep::Touch { claim: at, touch } => {
                let Some(twin) = self
                    .source
                    .as_mut()
                    .filter(|twin| read("source", twin.version) == at)
                else {
                    return false;
                };
                (real.touched, twin.version) = (Some(touch), clock);
                return true;
            }
            ClaimStep::Gate { .. } if self.source.is_none() => return false,
            // Its leader may die before the second write.
            ClaimStep::Gate { volume: at, .. } if read_real(real) == at && real.mover_claim.is_none() => {
                real.mover_claim = Some((clock, false));
                return true;
            }
            ClaimStep::Gate { volume: at, note } if read_real(real) == at => {
                real.names = real.mover_claim.map(|(uid, _)| uid);
                (real.policy, real.mark) = (ReclaimPolicy::Retain, Some(VolumeMark::Gated(note)));
            }
            ClaimStep::RestoreClaimRef { volume: at, note } if read_real(real) == at => {
                (real.names, real.twin) = (None, note.claim_uid.parse().unwrap());
            }
            ClaimStep::RestorePolicy {
                volume: at,
                policy,
                mark,
            } if read_real(real) == at => {
                let before = real
                    .note()
                    .map(|note| note.policy)
                    .filter(|before| *before != policy);
                real.policy_before = match policy {
                    ReclaimPolicy::Delete => None,
                    ReclaimPolicy::Retain => before.or(real.policy_before),
                };
                (real.policy, real.mark) = (policy, Some(mark));
            }
            ClaimStep::RefuseGate { volume: at, mark } if read_real(real) == at => real.mark = Some(mark),
            _ => return false,
        }
        real.version = clock;
        true
    }

    /// Whether an attachment names its PV.
    fn names_the_pv(&self) -> bool {
        self.attached && !self.attached_for_mover
    }

    /// Whether a container writes to that side.
    pub(super) fn runs(&self, side: Side) -> bool {
        let runs = |pod: &Pod| pod.state == PodState::Running(side);
        self.pods.iter().any(runs) || self.orphans.contains(&side)
    }

    /// Whether there is a copy with all confirmed writes that will not be deleted.
    fn is_safe(&self, side: Side) -> bool {
        let real = self.real.as_ref().filter(|_| side == Side::Source);
        let data = self.twin(side).map(|twin| twin.data);
        let has_all = data.or_else(|| real.map(|real| real.left)) == Some(self.newest);
        let goes = self.pv.as_ref().is_some_and(|pv| {
            let seems_unclaimed = pv.phase == Phase::Released || !pv.held_by_claim || self.claim.is_none();
            pv.serves == side && pv.policy == ReclaimPolicy::Delete && seems_unclaimed
        });
        let goes_there = real.is_some_and(|real| {
            real.policy == ReclaimPolicy::Delete && (real.phase == Phase::Released || !self.is_open_there())
        });
        has_all && !goes && !goes_there
    }
}

impl World {
    pub(super) fn new(volumes: usize, quiesce: Quiesce, policy: ReclaimPolicy) -> Self {
        let volume = Volume {
            policy,
            claim: Some(Claim {
                version: 1,
                deleting: false,
                locked: false,
                lost: false,
                touched: None,
            }),
            pv: Some(Pv {
                version: 1,
                uid: 1,
                serves: Side::Source,
                epoch: 0,
                held_by_claim: true,
                mark: None,
                policy,
                phase: Phase::Bound,
                deleting: false,
                finalizer: false,
            }),
            source: Some(Twin {
                version: 1,
                uid: 1,
                epoch: 0,
                data: 1,
                mark: None,
                handed_over: true,
                retained: false,
                deleting: false,
                finalizer: true,
            }),
            real: None,
            target: None,
            helpers: [false; 2],
            copied: Copied::default(),
            begun_with: 0,
            pods: Vec::new(),
            orphans: Vec::new(),
            attached: false,
            attached_for_mover: false,
            newest: 1,
            waived: false,
        };
        Self {
            clock: 1,
            mv: Some(Move {
                version: 1,
                stage: Stage::Checking,
                finalizer: false,
                deleting: false,
                cancel: false,
                recover: false,
                recorded: vec![None; volumes],
            }),
            volumes: vec![volume; volumes],
            quiesce,
            overdue: OverDue::default(),
            silent: [false; 2],
            may_gate_there: true,
            same_namespace: false,
            target_gone: false,
            target_out_of_service: false,
            was_committed: false,
            was_recovered: false,
            broken: Vec::new(),
            late_objects: None,
            late_step: None,
        }
    }

    /// The source is in a remote cluster.
    pub(super) fn remote(mut self) -> Self {
        for volume in &mut self.volumes {
            volume.real = Some(Real {
                version: 1,
                names: None,
                twin: 1,
                mark: None,
                policy: volume.policy,
                policy_before: None,
                left: 0,
                phase: Phase::Bound,
                mover_claim: None,
                twin_lost: false,
                touched: None,
            });
        }
        self
    }

    /// The next resource version, for each write.
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    // The reads of a leader.

    fn objects(&self) -> Vec<ClaimFacts> {
        self.volumes.iter().map(|volume| self.facts(volume)).collect()
    }

    fn answers<T>(&self, side: Side, says: T) -> Live<T> {
        if self.silent[index(side)] {
            Live::Unknown("timeout".into())
        } else {
            Live::Known(says)
        }
    }

    fn facts(&self, volume: &Volume) -> ClaimFacts {
        let helpers = |side| {
            if volume.helpers[index(side)] {
                Helpers::Ready
            } else {
                Helpers::Absent
            }
        };
        ClaimFacts {
            claim: volume
                .claim
                .as_ref()
                .map_or(ClaimNow::Absent, |claim| ClaimNow::Exists {
                    at: read("claim", claim.version),
                    deleting: claim.deleting,
                    lock: if claim.locked { Lock::Ours } else { Lock::Free },
                    lost: claim.lost,
                    touched: claim.touched,
                    changing: false,
                }),
            volume: volume.pv.as_ref().map_or(VolumeNow::Absent, |pv| {
                VolumeNow::Exists(VirtualVolume {
                    at: read_pv(pv),
                    serves: match (pv.serves, pv.epoch) {
                        (Side::Source, 0) => Serves::Source,
                        (Side::Source, _) => Serves::Recovered,
                        (Side::Target, _) => Serves::Target,
                    },
                    held_by: if pv.held_by_claim {
                        HeldBy::Claim
                    } else {
                        HeldBy::Move
                    },
                    mark: pv.mark.clone(),
                    policy: pv.policy,
                    bound: pv.phase == Phase::Bound,
                    deleting: pv.deleting,
                    attached: volume
                        .names_the_pv()
                        .then(|| "node".to_owned())
                        .into_iter()
                        .collect(),
                })
            }),
            source: self.answers(
                Side::Source,
                match &volume.source {
                    None => SourceTwin::Gone {
                        for_good: volume
                            .real
                            .as_ref()
                            .is_none_or(|real| real.policy != ReclaimPolicy::Retain),
                    },
                    Some(twin) if twin.epoch > 0 => SourceTwin::Recovered,
                    Some(twin) => SourceTwin::Exists {
                        at: read("source", twin.version),
                        mark: twin.mark.clone(),
                        deleting: twin.deleting,
                        protected: twin.finalizer,
                        bound: volume.was_bound(twin),
                    },
                },
            ),
            there: self.there(volume),
            target: self.answers(
                Side::Target,
                match &volume.target {
                    _ if self.target_gone => TargetTwin::Gone,
                    None => TargetTwin::Absent,
                    Some(twin) if twin.mark.is_some() => TargetTwin::Superseded,
                    Some(twin) => TargetTwin::Exists {
                        at: read("target", twin.version),
                        handed_over: twin.handed_over,
                        retained: twin.retained,
                        deleting: false,
                    },
                },
            ),
            target_out_of_service: self.target_out_of_service && self.silent[TARGET],
            same_namespace: self.same_namespace,
            epoch: epoch(1),
            source_helpers: self.answers(Side::Source, helpers(Side::Source)),
            target_helpers: self.answers(Side::Target, helpers(Side::Target)),
            users: self.users(volume),
            unwatched: None,
            copied: self.answers(Side::Target, volume.copied.clone()),
            recorded: None,
        }
    }

    fn users(&self, volume: &Volume) -> Live<Users> {
        let pods = volume.pods.iter().map(|pod| UserPod {
            name: "pod".into(),
            has_node: pod.state != PodState::Unscheduled,
            leaving: pod.leaving,
            pending: !matches!(pod.state, PodState::Running(_)),
        });
        let node = UserNode {
            name: "node".into(),
            attached: volume.attached,
            detach_error: None,
            in_use: volume.attached,
            health: NodeHealth::Ready,
        };
        let (mover_nodes, nodes) = [node]
            .into_iter()
            .partition(|_| volume.attached && volume.attached_for_mover);
        let users = Users {
            pods: pods.collect(),
            nodes,
            mover_nodes,
            deletes_claim: None,
        };
        if volume.real.is_some() {
            self.answers(Side::Source, users)
        } else {
            Live::Known(users)
        }
    }

    fn there(&self, volume: &Volume) -> Option<RemoteVolume> {
        let real = volume.real.as_ref();
        let real = real.filter(|_| self.may_gate_there && !self.silent[SOURCE])?;
        let twin = volume.source.as_ref();
        if twin.is_some_and(|twin| twin.epoch > 0)
            || !(twin.is_some_and(|twin| real.names(twin)) || real.is_of_move())
        {
            return None;
        }
        let is_gated_one = real
            .note()
            .is_some_and(|note| note.claim_uid == real.twin.to_string());
        Some(RemoteVolume {
            twin: twin.map_or(ClaimNow::Absent, |twin| ClaimNow::Exists {
                at: read("source", twin.version),
                deleting: twin.deleting,
                lock: Lock::Free,
                lost: real.twin_lost,
                touched: real.touched,
                changing: false,
            }),
            twin_uid: twin.map(|twin| twin.uid.to_string()).unwrap_or_default(),
            volume: VirtualVolume {
                at: read_real(real),
                serves: Serves::Source,
                held_by: if real.names.is_some() {
                    HeldBy::Move
                } else if twin.is_none_or(|twin| real.names(twin)) || is_gated_one {
                    HeldBy::Claim
                } else {
                    HeldBy::Other("another twin".into())
                },
                mark: real.mark.clone(),
                policy: real.policy,
                bound: real.phase == Phase::Bound,
                deleting: false,
                attached: Vec::new(),
            },
            policy_before: real.policy_before,
            mover_claim: match real.mover_claim {
                None => MoverClaim::Absent,
                Some((uid, bound)) if real.names == Some(uid) => MoverClaim::Named { bound },
                Some((uid, _)) => MoverClaim::Unused(read("mover-claim", uid)),
            },
        })
    }

    fn status(&self) -> Option<MoveFacts> {
        self.mv.as_ref().map(|mv| MoveFacts {
            at: read("move", mv.version),
            uid: uid(),
            stage: mv.stage.clone(),
            finalizer: mv.finalizer,
            deleting: mv.deleting,
            requested: Requested {
                cancel: mv.cancel,
                recover: mv.recover,
                paused: false,
                cutover: true,
                quiesce: self.quiesce,
            },
            obstacles: Some(Vec::new()),
            overdue: self.overdue,
        })
    }

    /// Decides on these objects and the current status, which was read after them.
    fn decide(&self, mut objects: Vec<ClaimFacts>) -> Decided {
        if let (Some(of), Some(mv)) = (self.status(), &self.mv) {
            for (facts, recorded) in objects.iter_mut().zip(&mv.recorded) {
                facts.recorded.clone_from(recorded);
            }
            return Decided::Move(move_step(&of, &objects));
        }
        let steps = objects.iter().enumerate();
        let steps = steps.filter_map(|(number, facts)| match leftover_step(&uid(), facts) {
            ClaimDecision::Do(step) => Some((number, step)),
            _ => None,
        });
        Decided::Leftovers(steps.collect())
    }

    // Leaders.

    /// A single leader reads, decides, and dies after this many writes.
    pub(super) fn lead(&mut self, writes: usize) {
        let decided = self.decide(self.objects());
        self.carry_out(decided, writes);
    }

    pub(super) fn late_leader_reads_objects(&mut self) {
        self.late_objects = Some(self.objects());
    }

    pub(super) fn late_leader_decides(&mut self) {
        if let Some(objects) = self.late_objects.take() {
            self.late_step = Some(self.decide(objects));
        }
    }

    pub(super) fn late_leader_acts(&mut self) {
        if let Some(decided) = self.late_step.take() {
            self.carry_out(decided, usize::MAX);
        }
    }

    fn carry_out(&mut self, decided: Decided, writes: usize) {
        match decided {
            Decided::Move(MoveStep::Write { at, change }) if writes > 0 => self.write_status(&at, change),
            Decided::Move(MoveStep::Act(steps)) | Decided::Leftovers(steps) => {
                for (number, step) in steps.into_iter().take(writes) {
                    self.apply(number, step);
                }
            }
            Decided::Move(_) => {}
        }
    }

    fn write_status(&mut self, at: &AsRead, change: StatusChange) {
        let version = self.clock + 1;
        let Some(mv) = self.mv.as_mut().filter(|mv| read("move", mv.version) == *at) else {
            return;
        };
        match change {
            // The API server accepts no new finalizer on an object that is being deleted.
            StatusChange::AddFinalizer if mv.deleting => return,
            StatusChange::AddFinalizer => mv.finalizer = true,
            StatusChange::RemoveFinalizer => mv.finalizer = false,
            StatusChange::OpenGate(gate) => {
                mv.stage = Stage::Gating(gate);
                for (recorded, volume) in mv.recorded.iter_mut().zip(&self.volumes) {
                    if let Some(pv) = &volume.pv {
                        *recorded = Some(Recorded {
                            policy: policy_wanted(pv.policy, pv.mark.as_ref()),
                            claim_uid: "claim".into(),
                        });
                    }
                }
            }
            StatusChange::Commit(gate) => {
                mv.stage = Stage::Committed(gate);
                self.was_committed = true;
                for volume in &self.volumes {
                    let has_all =
                        |twin: &Option<Twin>| twin.as_ref().is_some_and(|twin| twin.data == volume.newest);
                    if !has_all(&volume.target) && !self.target_gone {
                        self.broken.push("committed without all data".into());
                    }
                }
            }
            StatusChange::Recover(gate) => {
                mv.stage = Stage::Recovering(gate);
                self.was_recovered = true;
                for (recorded, volume) in mv.recorded.iter_mut().zip(&mut self.volumes) {
                    if let (Some(recorded), Some(pv)) = (recorded, &volume.pv) {
                        recorded.policy = policy_wanted(pv.policy, pv.mark.as_ref());
                    }
                    // What was written at the target is lost, as reported to the user.
                    volume.newest = volume.source.as_ref().map_or(0, |twin| twin.data);
                }
            }
            StatusChange::Enter(stage) => mv.stage = stage,
        }
        mv.version = version;
        self.clock = version;
        self.collect_move();
    }

    fn collect_move(&mut self) {
        if self.mv.as_ref().is_some_and(|mv| mv.deleting && !mv.finalizer) {
            self.mv = None;
        }
    }

    /// One write, which fails if the object does not have the version of the step.
    #[allow(clippy::too_many_lines, reason = "one arm for each step")]
    fn apply(&mut self, number: usize, step: ClaimStep) {
        let clock = self.clock + 1;
        let mover = Caller::Mover {
            by: uid(),
            side: Side::Source,
        };
        let has_mover = self.publishes(number, Side::Source, 0, &mover);
        let silent = self.silent;
        let target_gone = self.target_gone;
        let recovering = self.mv.as_ref().is_some_and(|mv| mv.stage.is_recovered());
        let volume = &mut self.volumes[number];
        let claim = |volume: &Volume, at: &AsRead| {
            volume
                .claim
                .as_ref()
                .is_some_and(|claim| read("claim", claim.version) == *at)
        };
        let pv = |volume: &Volume, at: &AsRead| volume.pv.as_ref().is_some_and(|pv| read_pv(pv) == *at);
        let twin = |twin: &Option<Twin>, what: &str, at: &AsRead| {
            twin.as_ref().is_some_and(|twin| read(what, twin.version) == *at)
        };
        let mut gone_while_attached = false;
        let mut given_away = false;
        let same_namespace = self.same_namespace;
        // The model has no PVs of movers.
        let step = match step {
            ClaimStep::PauseSource => ClaimStep::RemoveHelpers(Side::Source),
            step => step,
        };
        match step {
            ClaimStep::Lock { claim: at, .. } if claim(volume, &at) => {
                if let Some(claim) = volume.claim.as_mut().filter(|claim| !claim.deleting) {
                    claim.locked = true;
                    claim.version = clock;
                }
            }
            ClaimStep::Unlock { claim: at } if claim(volume, &at) => {
                if let Some(claim) = &mut volume.claim {
                    claim.locked = false;
                    claim.version = clock;
                }
            }
            ClaimStep::Touch { claim: at, touch } if claim(volume, &at) => {
                if let Some(claim) = &mut volume.claim {
                    claim.touched = Some(touch);
                    claim.version = clock;
                }
            }
            ClaimStep::MakeTarget { .. } if volume.target.is_none() && !silent[TARGET] && !target_gone => {
                volume.target = Some(Twin {
                    version: clock,
                    uid: clock,
                    epoch: 1,
                    data: 0,
                    mark: None,
                    handed_over: false,
                    retained: false,
                    deleting: false,
                    finalizer: false,
                });
                volume.copied = Copied::default();
            }
            ClaimStep::MakeHelpers(side) if !silent[index(side)] => {
                // A late leader may create a mover, but the mover gets no volume.
                volume.helpers[index(side)] = true;
                if side == Side::Source && has_mover && !volume.attached {
                    (volume.attached, volume.attached_for_mover) = (true, true);
                }
            }
            ClaimStep::RemoveHelpers(side) if !silent[index(side)] => {
                volume.helpers[index(side)] = false;
                volume.copied.running = None;
            }
            ClaimStep::StartPass(pass @ Pass::Finish(_)) if volume.helpers[TARGET] => {
                volume.copied.running = Some(pass);
            }
            ClaimStep::StartPass(pass) if volume.helpers == [true; 2] => {
                volume.copied.running = Some(pass);
                volume.begun_with = volume.source.as_ref().map_or(0, |twin| twin.data);
            }
            ClaimStep::Evict(_) => {
                // Pods of other clusters cannot be evicted.
                for pod in volume.pods.iter_mut().filter(|pod| !pod.there) {
                    pod.leaving = true;
                }
            }
            ClaimStep::Gate { volume: at, note } if pv(volume, &at) => {
                // An object that is being deleted gets no new finalizer.
                if let Some(pv) = volume.pv.as_mut().filter(|pv| !pv.deleting || pv.finalizer) {
                    pv.held_by_claim = false;
                    pv.policy = ReclaimPolicy::Retain;
                    pv.finalizer = true;
                    pv.mark = Some(VolumeMark::Gated(note));
                    pv.version = clock;
                }
            }
            ClaimStep::MarkSource { source: at, mark } if twin(&volume.source, "source", &at) => {
                if let Some(twin) = volume.source.as_mut().filter(|_| !silent[SOURCE]) {
                    twin.mark = Some(mark);
                    twin.version = clock;
                }
            }
            ClaimStep::RestoreClaimRef { volume: at, .. } if pv(volume, &at) => {
                if let Some(pv) = &mut volume.pv {
                    pv.held_by_claim = true;
                    pv.version = clock;
                }
            }
            ClaimStep::RestorePolicy {
                volume: at,
                policy,
                mark,
            } if pv(volume, &at) => {
                if let Some(pv) = &mut volume.pv {
                    pv.policy = policy;
                    pv.mark = Some(mark);
                    pv.finalizer = false;
                    pv.version = clock;
                }
            }
            ClaimStep::RefuseGate { volume: at, mark } if pv(volume, &at) => {
                if let Some(pv) = &mut volume.pv {
                    pv.mark = Some(mark);
                    pv.version = clock;
                }
            }
            ClaimStep::Retain { volume: at } if pv(volume, &at) => {
                if let Some(pv) = &mut volume.pv {
                    pv.policy = ReclaimPolicy::Retain;
                    pv.version = clock;
                }
            }
            ClaimStep::DeleteVolume { volume: at } if pv(volume, &at) => {
                if let Some(pv) = &mut volume.pv {
                    pv.deleting = true;
                    pv.version = clock;
                }
            }
            ClaimStep::RemoveVolumeFinalizers { volume: at } if pv(volume, &at) => {
                gone_while_attached = volume.names_the_pv();
                volume.pv = None;
            }
            ClaimStep::MakeVolume { of, note } if volume.pv.is_none() => {
                volume.pv = Some(Pv {
                    version: clock,
                    uid: clock,
                    serves: of,
                    epoch: match of {
                        Side::Target => 1,
                        Side::Source if recovering => 2,
                        Side::Source => 0,
                    },
                    held_by_claim: true,
                    mark: Some(VolumeMark::Gated(note)),
                    policy: ReclaimPolicy::Retain,
                    phase: Phase::Pending,
                    deleting: false,
                    finalizer: true,
                });
            }
            ClaimStep::RetainTarget { target: at } if twin(&volume.target, "target", &at) => {
                if let Some(twin) = volume.target.as_mut().filter(|_| !silent[TARGET]) {
                    twin.retained = true;
                    twin.version = clock;
                }
            }
            ClaimStep::DeleteTarget { target: at } if twin(&volume.target, "target", &at) => {
                if !silent[TARGET] {
                    given_away = volume.target.as_ref().is_some_and(|twin| twin.handed_over);
                    volume.target = None;
                }
            }
            ClaimStep::HandOver { target: at, .. } if twin(&volume.target, "target", &at) => {
                // The source is then only its PV, which this world shows by its twin. A twin that another client deletes
                // is marked here.
                if let (true, Some(source), Some(real)) =
                    (same_namespace, &mut volume.source, &mut volume.real)
                {
                    let (by, epoch) = (uid(), epoch(1));
                    (source.mark, source.deleting) = (Some(SourceMark::Superseded { by, epoch }), false);
                    source.version = clock;
                    let policy = real.note().map_or(real.policy, |note| note.policy);
                    let before = (policy == ReclaimPolicy::Delete).then_some(policy);
                    real.policy_before = before.or(real.policy_before);
                    (real.policy, real.version) = (ReclaimPolicy::Retain, clock);
                    real.mark = real.note().map(|note| VolumeMark::Ungated {
                        by: note.by.clone(),
                        gate: note.gate,
                    });
                }
                if let Some(twin) = volume.target.as_mut().filter(|_| !silent[TARGET]) {
                    twin.handed_over = true;
                    twin.version = clock;
                }
            }
            ClaimStep::RecoverSource { source: at, .. } if twin(&volume.source, "source", &at) => {
                if let Some(twin) = volume.source.as_mut().filter(|_| !silent[SOURCE]) {
                    (twin.epoch, twin.mark, twin.version) = (2, None, clock);
                }
            }
            ClaimStep::SupersedeTarget { target: at } if twin(&volume.target, "target", &at) => {
                if let Some(twin) = volume.target.as_mut().filter(|_| !silent[TARGET]) {
                    let (by, epoch) = (uid(), epoch(2));
                    (twin.mark, twin.version) = (Some(SourceMark::Superseded { by, epoch }), clock);
                    twin.handed_over = true;
                }
            }
            ClaimStep::ReleaseSource { source: at, .. } if twin(&volume.source, "source", &at) => {
                if !silent[SOURCE] {
                    // The PV that is gated does not name the twin, and is retained.
                    let is_gated = |real: &&mut Real| real.note().is_some();
                    let real = volume.real.as_mut().filter(is_gated);
                    if let (Some(twin), Some(real)) = (volume.source.take(), real) {
                        (real.left, real.touched, real.twin_lost) = (twin.data, None, false);
                    } else {
                        volume.real = None;
                    }
                }
            }
            ClaimStep::There(step) if !silent[SOURCE] => {
                if !volume.apply_there(*step, clock) {
                    return;
                }
            }
            ClaimStep::RemoveMoverClaim { claim: at } if !silent[SOURCE] => {
                let is_it = |real: &&mut Real| {
                    real.mover_claim
                        .is_some_and(|(uid, _)| read("mover-claim", uid) == at)
                };
                let Some(real) = volume.real.as_mut().filter(is_it) else {
                    return;
                };
                real.mover_claim = None;
            }
            // The object has changed, or the cluster is unreachable.
            _ => return,
        }
        self.clock = clock;
        if gone_while_attached {
            self.broken.push("a PV went while it was attached".into());
        }
        if given_away {
            self.broken
                .push("a target was deleted that was handed over".into());
        }
    }

    // Kubernetes and the sidecars.

    /// What must be true after every event.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(broken) = self.broken.first() {
            return Err(broken.clone());
        }
        for volume in &self.volumes {
            if volume.runs(Side::Source) && volume.runs(Side::Target) {
                return Err("two copies are written".into());
            }
            let is_kept = volume.is_safe(Side::Source) || volume.is_safe(Side::Target);
            if !is_kept && !volume.waived {
                return Err(format!("the data is gone, or about to go: {volume:#?}"));
            }
        }
        Ok(())
    }

    pub(super) fn publishes_to_users(&self, number: usize) -> bool {
        let pv = self.volumes[number].pv.as_ref();
        pv.is_some_and(|pv| self.publishes(number, pv.serves, pv.epoch, &Caller::User))
    }
}
