//! Runs one move: reads its objects, then its status, decides, and carries out the decision, until it
//! has to wait. The decisions are in `placement::moving`; a claim is read and written through
//! `MovedVolume`.

use std::{
    mem::{Discriminant, discriminant},
    time::Duration,
};

use futures::future::{join_all, try_join, try_join_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    Context,
    events::emit_events,
    evict::evict,
    preflight::{preflight, snapshots_left_behind},
    progress::Copies,
    reachable::unreachable,
    status::{self, StageEntry, backs_off_cutover, entered},
    volumes::{recorded, records, volumes},
    waits::{NextCheck, REPORTED_AFTER, STALLED_AFTER, WaitClock, next_check},
};
use crate::{
    api::volume_move::{Loss, MoveRequest, RequestError, UnreadableMove, VolumeMove, VolumeMoveStatus},
    cluster::{
        ApiError,
        events::Weight,
        facts::{is_out_of_service, is_ready},
        slim::{SeenMove, Volume},
        unless_conflict,
    },
    fleet::NodeKind,
    gate::{Applied, ClaimObjects, GateError, MovedSide, MovedVolume, Movers, Place, ReadsOn, Records},
    movers::MoveHelpers,
    observe::crash::{self, Step},
    placement::moving::{
        ClaimFacts, ClaimStep, Helpers, Live, MoveFacts, MoveStep, Outcome, RollbackReason, RollbackTo, Side,
        Stage, StatusChange, VolumeNow, Waiting, move_step, policy_wanted,
    },
    rounds::Rounds,
    volume::{
        ClaimName, mark,
        moving::{CommitRecord, Condition, SourceRecord},
    },
    watched::NodeAttachment,
};

/// Steps of one round. A move with more steps continues in the next round.
const STEPS_PER_ROUND: usize = 50;
/// Pause, and number of pauses, before a re-read while Kubernetes takes a step that is usually fast.
const SOON: Duration = Duration::from_millis(100);
const SOON_STEPS: usize = 20;
/// The shortest pause of a waiting move between two rounds that changes trigger.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest time between two writes that only report progress.
const REPORT: Duration = Duration::from_secs(5);
/// How often a recovered move checks whether its lost target exists again. Changes within a quarter
/// of this time trigger no check.
const LOST_TARGET_PAUSE: Duration = Duration::from_mins(1);
/// The pause after an error that only a user can fix.
const ERROR_PAUSE: Duration = Duration::from_mins(1);
const REFUSED_EVICTION: Duration = Duration::from_secs(5);
/// More than the writes that any step takes, one after the other.
const MOST_REPEATS: u32 = 20;

/// Identifies a `VolumeMove`; the uid is needed because names are reused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MoveKey {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl MoveKey {
    pub(super) fn of(seen: &SeenMove) -> Self {
        let ClaimName { namespace, name } = seen.name.clone();
        Self {
            namespace,
            name,
            uid: seen.uid.clone(),
        }
    }
}

/// The loop that runs one move.
pub(super) struct MoveLoop<'a, H> {
    context: &'a Context<'a, H>,
    key: MoveKey,
    /// Changes when the `VolumeMove` does.
    own: watch::Receiver<u64>,
    /// Until when other changes are ignored.
    quiet_until: Instant,
    due: Instant,
    /// Whether a step failed and will be retried.
    failed: bool,
    /// Since when each round has failed.
    pub(super) failing: Option<Instant>,
    /// Whether the last reported error was one of a stalled move, and when.
    error_reported: Option<(bool, Instant)>,
    /// The last steps, and how often they have been repeated since.
    repeated: (Vec<(usize, Discriminant<ClaimStep>)>, u32),
    since: WaitClock,
    reported: Option<Instant>,
}

/// The result of one step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// Something was written, or has changed.
    Again,
    Wait(NextCheck),
    /// The move has ended; it is observed again after this time.
    Over(Duration),
}

/// Why a move cannot continue.
#[derive(Debug, thiserror::Error)]
pub(super) enum FollowError {
    /// An API server does not answer, or rejects a request.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The status or spec of the move cannot be read.
    #[error(transparent)]
    Unreadable(#[from] UnreadableMove),
    /// Objects of a claim cannot be read or written.
    #[error(transparent)]
    Objects(GateError),
    /// A remote cluster is still being contacted.
    #[error("{0}")]
    NotYet(String),
    /// Another client changes the same objects, or reverts what the driver writes.
    #[error(
        "the step {0} is repeated without effect: another client changes the same objects, or reverts what the driver writes"
    )]
    Repeated(String),
    #[error("the status cannot be written as JSON: {0}")]
    Unwritable(#[from] serde_json::Error),
}

impl From<GateError> for FollowError {
    fn from(error: GateError) -> Self {
        match error {
            GateError::Api(error) => Self::Api(error),
            other => Self::Objects(other),
        }
    }
}

impl From<RequestError> for FollowError {
    fn from(error: RequestError) -> Self {
        Self::Unreadable(error.into())
    }
}

/// A move as it was read, with the facts about its claims.
struct ObservedMove {
    of: VolumeMove,
    request: MoveRequest,
    stage: Stage,
    moved: Vec<MovedVolume>,
    facts: Vec<ClaimFacts>,
    /// The nodes where the sources are read.
    reads_on: Vec<Option<ReadsOn>>,
}

impl<'a, H: MoveHelpers> MoveLoop<'a, H> {
    pub(super) fn new(context: &'a Context<'a, H>, key: MoveKey) -> Self {
        let (namespace, name) = (key.namespace.clone(), key.name.clone());
        let is_it = move |seen: &SeenMove| seen.name.namespace == namespace && seen.name.name == name;
        Self {
            own: context.home.views().moves.changes_of(is_it),
            context,
            key,
            quiet_until: Instant::now(),
            due: Instant::now(),
            failed: false,
            failing: None,
            error_reported: None,
            repeated: (Vec::new(), 0),
            since: WaitClock::now(),
            reported: None,
        }
    }

    async fn read(&self) -> Result<Option<VolumeMove>, ApiError> {
        let moves = self.context.home.within::<VolumeMove>(&self.key.namespace);
        let found = moves.get(&self.key.name).await?;
        Ok(found.filter(|found| found.uid().as_ref() == Some(&self.key.uid)))
    }

    /// Observes, decides and takes one step.
    pub(super) async fn step(&mut self) -> Result<StepOutcome, FollowError> {
        let Some(first) = self.read().await? else {
            return Ok(StepOutcome::Over(Self::RESYNC));
        };
        if needs_preflight(&first)? {
            let status = preflight(self.context, &first).await?;
            return self.write_status(&first, &status).await;
        }
        let (plan, stage) = (first.plan()?, first.stage()?);
        let mut moved = volumes(self.context.home, self.context.registry, &first, &plan)?;
        let request = MoveRequest::try_from(&first)?;
        for moved in moved
            .iter_mut()
            .filter(|_| request.recover_source && !stage.is_recovered())
        {
            moved.target_out_of_service = self.is_out_of_service(&moved.target).await?;
        }
        let observed = moved.iter().map(|moved| self.observed(moved, &request, &stage));
        let observed = try_join_all(observed).await?;
        // Last: all facts above were read while this version of the status was current.
        let Some(of) = self.read().await? else {
            return Ok(StepOutcome::Over(Self::RESYNC));
        };
        if of.plan()? != plan || of.stage()? != stage {
            return Ok(StepOutcome::Again);
        }
        let request = MoveRequest::try_from(&of)?;
        let (mut facts, mut reads_on) = (Vec::new(), Vec::new());
        for (volume, (objects, movers)) in moved.iter_mut().zip(observed) {
            reads_on.push(movers.reads_on.clone());
            volume.records = records(&of, &volume.claim.name.name)?;
            let recorded = recorded(&volume.records);
            let unwatched = volume.unwatched();
            facts.push(ClaimFacts {
                unwatched: unwatched.filter(|_| !request.accept_loss.contains(&Loss::LiveWrites)),
                ..objects.facts(volume, movers, recorded)
            });
        }
        let now = Timestamp::now();
        let seen = ObservedMove {
            of,
            request,
            stage,
            moved,
            facts,
            reads_on,
        };
        self.context
            .metrics
            .moves()
            .seen(&seen.of, &seen.stage, recorded_bytes(&seen.moved));
        let status = seen.of.facts(now, backs_off_cutover(&seen.of, now))?;
        match move_step(&status, &seen.facts) {
            MoveStep::Write { change, .. } => self.change(&seen, &status, change).await,
            MoveStep::Act(steps) => self.act(&seen, &steps).await,
            MoveStep::Wait(waiting) => self.wait(&seen, &waiting).await,
            MoveStep::Over if seen.stage.is_recovered() => Ok(StepOutcome::Over(LOST_TARGET_PAUSE)),
            MoveStep::Over => Ok(StepOutcome::Over(Self::RESYNC)),
        }
    }

    /// Whether an administrator declared all virtual nodes of the cluster out of service.
    async fn is_out_of_service(&self, side: &MovedSide) -> Result<bool, ApiError> {
        let Context { home, registry, .. } = self.context;
        let nodes = home.all::<Node>().list(None).await?;
        let mut virtual_nodes = nodes.into_iter().filter(|node| {
            let behind = registry.behind(&home.node(node.metadata.clone()));
            matches!(behind, NodeKind::Virtual(remote) if remote.id == side.id.cluster)
        });
        let is_off = |node: &Node| is_out_of_service(node) && !is_ready(node);
        Ok(virtual_nodes.next().is_some_and(|node| is_off(&node)) && virtual_nodes.all(|node| is_off(&node)))
    }

    async fn observed(
        &self,
        moved: &MovedVolume,
        request: &MoveRequest,
        stage: &Stage,
    ) -> Result<(ClaimObjects, Movers), GateError> {
        // The movers first: what they report of a pass is then older than what is observed of the users.
        let movers = self.context.helpers.observe(moved, request, stage).await?;
        Ok((moved.observe().await?, movers))
    }

    /// Changes exactly the version of the `VolumeMove` on which the decision was based.
    async fn change(
        &mut self,
        seen: &ObservedMove,
        status: &MoveFacts,
        change: StatusChange,
    ) -> Result<StepOutcome, FollowError> {
        let change = match change {
            StatusChange::AddFinalizer => return self.set_finalizer(&seen.of, true).await,
            StatusChange::RemoveFinalizer => return self.set_finalizer(&seen.of, false).await,
            // Only now all new volumes exist.
            StatusChange::Enter(stage @ Stage::Copying { .. }) if seen.stage == Stage::Preparing => {
                let unreachable = unreachable(self.context.home, &seen.request, &seen.moved).await?;
                StageEntry::Stage(if unreachable.is_empty() {
                    stage
                } else {
                    Stage::Rollback {
                        gate: None,
                        to: RollbackTo::Start,
                        why: RollbackReason::Refused(unreachable),
                    }
                })
            }
            StatusChange::Enter(stage) => StageEntry::Stage(stage),
            StatusChange::OpenGate(gate) => {
                // Users create snapshots while the data are copied, too.
                let left = self.snapshots_left(seen, false).await?;
                if !left.is_empty() {
                    return self.wait(seen, &[(0, Waiting::Snapshots(left))]).await;
                }
                let Some(records) = self.source_records(seen).await? else {
                    return Ok(StepOutcome::Again);
                };
                StageEntry::Gate(gate, records)
            }
            StatusChange::Recover(gate) => StageEntry::Recover(gate, current_records(seen)?),
            StatusChange::Commit(gate) => match self.may_commit(seen).await {
                Ok((records, left)) if left.is_empty() => StageEntry::Commit(gate, records),
                // The move waits for the user's consent without a gate.
                Ok((_, left)) => StageEntry::Stage(Stage::Rollback {
                    gate: Some(gate),
                    to: RollbackTo::Copying,
                    why: RollbackReason::Refused(left),
                }),
                Err(GateError::Api(error)) if !status.overdue.downtime => return Err(error.into()),
                // Users must not wait for an error that does not resolve itself.
                Err(error) => StageEntry::Stage(Stage::Rollback {
                    gate: Some(gate),
                    to: RollbackTo::Start,
                    why: RollbackReason::Refused(vec![error.to_string()]),
                }),
            },
        };
        let copies = self.copies(seen);
        let mut next = entered(
            &seen.of,
            &seen.request,
            &seen.stage,
            &change,
            &copies,
            Timestamp::now(),
        )?;
        if let (StageEntry::Stage(Stage::Ended(Outcome::Done)), Some(left)) = (&change, sources_left(seen)) {
            let released = Condition::SourceReleased.to_string();
            let condition = next.conditions.iter_mut().find(|one| one.type_ == released);
            if let Some(condition) = condition {
                condition.message = left;
            }
        }
        self.since.reset();
        self.repeated = (Vec::new(), 0);
        self.count(seen, &change, &next);
        self.write_status(&seen.of, &next).await
    }

    /// The records of the commit, and the snapshots that were taken just when the gate was closed.
    async fn may_commit(&self, seen: &ObservedMove) -> Result<(Vec<CommitRecord>, Vec<String>), GateError> {
        let left = async { Ok(self.snapshots_left(seen, true).await?) };
        try_join(commit_records(seen), left).await
    }

    /// The snapshots that would stay at the source without the user's consent.
    async fn snapshots_left(&self, seen: &ObservedMove, taken: bool) -> Result<Vec<String>, ApiError> {
        snapshots_left_behind(self.context.home, &seen.request, &seen.moved, taken).await
    }

    /// The PVs of all claims, if none has changed since the decision. Checks that they can be replaced
    /// before any user loses access.
    async fn source_records(&self, seen: &ObservedMove) -> Result<Option<Vec<SourceRecord>>, GateError> {
        let mut records = Vec::new();
        for (moved, facts) in seen.moved.iter().zip(&seen.facts) {
            let VolumeNow::Exists(volume) = &facts.volume else {
                return Ok(None);
            };
            let Some(record) = moved.source_record(volume).await? else {
                return Ok(None);
            };
            moved.commit_record(&record).await?;
            records.push(record);
        }
        Ok(Some(records))
    }

    async fn set_finalizer(&mut self, of: &VolumeMove, present: bool) -> Result<StepOutcome, FollowError> {
        let mut finalizers = of.finalizers().to_vec();
        finalizers.retain(|one| one != mark::MOVE);
        if present {
            finalizers.push(mark::MOVE.to_owned());
        }
        let patch = json!({"metadata": {
            "uid": of.uid(),
            "resourceVersion": of.resource_version(),
            "finalizers": finalizers,
        }});
        let moves = self.context.home.within::<VolumeMove>(&self.key.namespace);
        let step = if present { Step::MoveHold } else { Step::MoveLetGo };
        let written = crash::around(step, moves.merge(&self.key.name, &patch)).await;
        unless_conflict(written)?;
        Ok(StepOutcome::Again)
    }

    async fn write_status(
        &mut self,
        of: &VolumeMove,
        next: &VolumeMoveStatus,
    ) -> Result<StepOutcome, FollowError> {
        let mut patch = status::patch(of.status.as_ref(), next)?;
        patch["metadata"] = json!({"uid": of.uid(), "resourceVersion": of.resource_version()});
        let moves = self.context.home.within::<VolumeMove>(&self.key.namespace);
        let written = crash::around(Step::MoveStatus, moves.merge_status(&self.key.name, &patch)).await;
        if let Some(written) = unless_conflict(written)? {
            emit_events(self.context.events, of, &written).await;
        }
        Ok(StepOutcome::Again)
    }

    /// Takes steps that are independent of each other.
    async fn act(
        &mut self,
        seen: &ObservedMove,
        steps: &[(usize, ClaimStep)],
    ) -> Result<StepOutcome, FollowError> {
        let taken = steps.iter().map(async |(index, step)| {
            let moved = &seen.moved[*index];
            if let Some(why) = journal_left(seen, *index, step) {
                let (claim, by) = (&moved.claim.name, &moved.by);
                let note = format!(
                    "the journal of the move could not be removed from the new volume of the claim {claim}: {why}. Its data is \
                     complete; delete .liqo-move-{by} in its root when its pods run"
                );
                let events = self.context.events;
                events.publish_on_move(&seen.of, Weight::Warning, "MoveJournalLeft", &note).await;
            }
            match moved.apply(step).await? {
                Applied::NotHandled => {}
                Applied::Done | Applied::ChangedMeanwhile => return Ok(()),
            }
            if !matches!(step, ClaimStep::Evict(_)) {
                self.context.helpers.apply(moved, &seen.request, step).await?;
            }
            Ok::<_, GateError>(())
        });
        for taken in join_all(taken).await {
            taken?;
        }
        let pods = steps.iter().filter_map(|(_, step)| match step {
            ClaimStep::Evict(pods) => Some(pods),
            _ => None,
        });
        // The pods of all claims together: a budget may count pods of several claims.
        let refused = evict(self.context.home, &pods.flatten().collect()).await?;
        if refused.is_empty() {
            return self.unless_repeated(steps);
        }
        let waiting = vec![(0, Waiting::NotEvicted(refused))];
        self.wait(seen, &waiting).await?;
        Ok(StepOutcome::Wait(NextCheck::Within(REFUSED_EVICTION)))
    }

    fn unless_repeated(&mut self, steps: &[(usize, ClaimStep)]) -> Result<StepOutcome, FollowError> {
        let kinds: Vec<_> = steps
            .iter()
            .map(|(claim, step)| (*claim, discriminant(step)))
            .collect();
        let is_repeated = self.repeated.0 == kinds;
        self.repeated = (kinds, if is_repeated { self.repeated.1 + 1 } else { 0 });
        let Some((_, step)) = steps.first().filter(|_| self.repeated.1 >= MOST_REPEATS) else {
            return Ok(StepOutcome::Again);
        };
        let name = format!("{step:?}");
        let end = name.find([' ', '(']).unwrap_or(name.len());
        Err(FollowError::Repeated(name[..end].to_owned()))
    }

    /// Writes to the status what the move waits for, if that has changed.
    async fn wait(
        &mut self,
        seen: &ObservedMove,
        waiting: &[(usize, Waiting)],
    ) -> Result<StepOutcome, FollowError> {
        self.repeated = (Vec::new(), 0);
        let mut report = self.since.report(&seen.stage, waiting);
        if report.kept {
            report.waiting_for = report
                .waiting_for
                .map(|what| format!("{what}. {}", both_copies(waiting, &seen.moved)));
        }
        let copies = self.copies(seen);
        let next = status::waiting(
            &seen.of,
            &seen.request,
            &seen.stage,
            &report,
            &copies,
            Timestamp::now(),
        );
        let is_news = seen.of.status.as_ref() != Some(&next);
        let is_due = self.reported.is_none_or(|when| when.elapsed() >= REPORT);
        if is_news && is_due {
            self.reported = Some(Instant::now());
            return self.write_status(&seen.of, &next).await;
        }
        Ok(StepOutcome::Wait(next_check(&seen.stage, waiting)))
    }

    /// The progress of the copies, as far as this replica knows it.
    fn copies(&self, seen: &ObservedMove) -> Copies {
        if seen.stage.is_recovered() {
            return Copies::default();
        }
        let helpers = self.context.helpers;
        let claims = seen.moved.iter().filter_map(|moved| {
            let progress = helpers.progress(moved)?;
            Some((moved.claim.name.name.clone(), progress))
        });
        let movers = seen.moved.iter().zip(&seen.reads_on);
        let movers = movers.filter_map(|(moved, on)| Some((moved.claim.name.name.clone(), on.clone()?)));
        let unwatched = seen.moved.iter().filter(|_| !seen.stage.is_committed());
        let unwatched = unwatched.filter_map(|moved| {
            let why = moved.unwatched()?;
            Some(format!("{}: {why}", moved.claim.name.name))
        });
        Copies {
            claims: claims.collect(),
            movers: movers.collect(),
            unwatched: unwatched.collect(),
        }
    }

    /// Takes steps until the move has to wait; returns for how long.
    async fn run_until_waiting(&mut self) -> Result<Duration, FollowError> {
        let mut soon = 0;
        for _ in 0..STEPS_PER_ROUND {
            match Box::pin(self.step()).await? {
                StepOutcome::Again => {}
                StepOutcome::Wait(NextCheck::Soon) if soon < SOON_STEPS => {
                    soon += 1;
                    sleep(SOON).await;
                }
                StepOutcome::Wait(NextCheck::Soon) => return Ok(LEAST_PAUSE),
                StepOutcome::Wait(NextCheck::Within(pause)) | StepOutcome::Over(pause) => return Ok(pause),
            }
        }
        Ok(Duration::ZERO)
    }

    /// Writes an error that keeps the move from continuing to its status, and to the condition Stalled: at once
    /// if only a user can fix it, otherwise if it lasts.
    async fn report_error(&mut self, error: &FollowError) {
        let lasts = self.failing.get_or_insert_with(Instant::now).elapsed();
        let is_final = match error {
            FollowError::Api(error) => error.is_refusal(),
            FollowError::NotYet(_) | FollowError::Repeated(_) => false,
            FollowError::Unreadable(_) | FollowError::Objects(_) | FollowError::Unwritable(_) => true,
        };
        let is_stalled = is_final || lasts >= STALLED_AFTER;
        if !is_stalled && lasts < REPORTED_AFTER {
            return;
        }
        // Each round may fail with another text, and each write of the status begins another round.
        let was_reported =
            |(stalled, when): &(bool, Instant)| *stalled == is_stalled && when.elapsed() < ERROR_PAUSE;
        if self.error_reported.as_ref().is_some_and(was_reported) {
            return;
        }
        self.error_reported = Some((is_stalled, Instant::now()));
        let why = error.to_string();
        let (namespace, name) = (&self.key.namespace, &self.key.name);
        tracing::warn!(namespace, name, why, "a move does not continue");
        let Ok(Some(of)) = self.read().await else { return };
        let next = status::failing(&of, &why, is_stalled, Timestamp::now());
        if of.status.as_ref() == Some(&next) {
            return;
        }
        // The status of a move that has ended is not written again.
        let is_over = matches!(of.stage(), Ok(Stage::Ended(_)));
        let is_written = !is_over && self.write_status(&of, &next).await.is_ok();
        if is_stalled && !is_written {
            let events = self.context.events;
            events
                .publish_on_move(&of, Weight::Warning, "MoveStalled", &why)
                .await;
        }
    }

    /// Pauses the loop, unless the `VolumeMove` itself changes; other changes wake it a bit earlier.
    fn pause(&mut self, pause: Duration) {
        let now = Instant::now();
        self.due = now + pause;
        self.quiet_until = if pause > LEAST_PAUSE { now + pause / 4 } else { now };
    }

    /// Updates the metrics.
    fn count(&self, seen: &ObservedMove, change: &StageEntry, next: &VolumeMoveStatus) {
        let metrics = self.context.metrics.moves();
        match change.stage() {
            Stage::Rollback { to, why, .. } => {
                if to == RollbackTo::Copying {
                    metrics.rolled_back();
                }
                if matches!(why, RollbackReason::Differs(_)) {
                    metrics.differed();
                }
            }
            Stage::Retaining(_) => {
                let gated = seen.of.status.as_ref().and_then(|status| status.gated_at.clone());
                if let Some(gated) = gated {
                    metrics.record_downtime(Timestamp::now().duration_since(gated.0));
                }
            }
            stage => tracing::info!(
                namespace = self.key.namespace,
                name = self.key.name,
                ?stage,
                phase = next.phase,
                "a move enters its next stage"
            ),
        }
    }
}

impl<H: MoveHelpers> Rounds for MoveLoop<'_, H> {
    const NAME: &'static str = "moves";
    const RESYNC: Duration = Duration::from_mins(10);
    const GATHER: Duration = Duration::from_millis(10);

    fn due(&self) -> Option<Duration> {
        Some(self.due.saturating_duration_since(Instant::now()))
    }

    fn has_failed(&self) -> bool {
        self.failed
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let Context {
            home,
            registry,
            watched,
            ..
        } = self.context;
        let namespace = self.key.namespace.clone();
        let of_claims = move |volume: &Volume| {
            let claim = volume.as_virtual().and_then(|volume| volume.claim.as_ref());
            claim.is_some_and(|claim| claim.namespace == namespace)
        };
        let namespace = self.key.namespace.clone();
        vec![
            self.own.clone(),
            watched
                .claims
                .changes_of(move |claim| claim.name.namespace == namespace),
            watched.volumes.changes_of(of_claims),
            watched.attachments.changes_of(NodeAttachment::is_virtual),
            home.twin_changes(),
            registry.all_twin_changes(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        if Instant::now() < self.quiet_until && !self.own.has_changed().unwrap_or_default() {
            return Ok(());
        }
        self.own.mark_unchanged();
        (self.failed, self.due, self.quiet_until) = (false, Instant::now(), Instant::now());
        let pause = match self.run_until_waiting().await {
            Ok(pause) => {
                (self.failing, self.error_reported) = (None, None);
                pause
            }
            Err(error) => {
                self.report_error(&error).await;
                match error {
                    FollowError::Api(error) => return Err(error),
                    FollowError::NotYet(_) | FollowError::Repeated(_) => LEAST_PAUSE,
                    FollowError::Unreadable(_) | FollowError::Objects(_) | FollowError::Unwritable(_) => {
                        self.failed = true;
                        ERROR_PAUSE
                    }
                }
            }
        };
        self.pause(pause);
        Ok(())
    }
}

/// Whether the preflight of a move is still to be run.
fn needs_preflight(of: &VolumeMove) -> Result<bool, FollowError> {
    let facts = of.facts(Timestamp::now(), false)?;
    let is_wanted = !facts.deleting && !facts.requested.cancel && !facts.requested.paused;
    Ok(facts.finalizer && is_wanted && facts.stage == Stage::Checking && facts.obstacles.is_none())
}

/// The total size of the volumes, as far as it is recorded.
fn recorded_bytes(moved: &[MovedVolume]) -> u64 {
    let sizes = moved.iter().map(|moved| match &moved.records {
        Records::Nothing => 0,
        Records::Source(record) => record.source.bytes(),
        Records::Committed(record) => record.source().source.bytes(),
    });
    sizes.fold(0, u64::saturating_add)
}

/// What the move leaves in clusters that are no longer declared, where it cannot release the source.
fn sources_left(seen: &ObservedMove) -> Option<String> {
    let claims = seen.of.status.iter().flat_map(|status| &status.claims);
    let sources = claims.zip(&seen.moved).filter_map(|(claim, moved)| {
        let source = claim.source.as_ref()?;
        matches!(moved.source.place, Place::Gone).then(|| {
            format!(
                "{}/{} in the cluster {}",
                source.namespace, source.name, source.cluster
            )
        })
    });
    let sources: Vec<String> = sources.collect();
    (!sources.is_empty()).then(|| {
        format!(
            "a cluster that is no longer declared still contains the source: the claim {}, with its PersistentVolume and its data. \
             Declare the cluster again and delete the claim, or delete both there",
            sources.join(", ")
        )
    })
}

/// Where both copies of the deleted claims are, and how to keep them longer.
fn both_copies(waiting: &[(usize, Waiting)], moved: &[MovedVolume]) -> String {
    let kept = waiting.iter().filter(|(_, what)| *what == Waiting::BothKept);
    let kept = kept.filter_map(|(index, _)| moved.get(*index)).map(|moved| {
        let twins = [&moved.source, &moved.target].map(|side| match &side.place {
            Place::Site(site) => format!("{} in the cluster {}", site.place(), side.id.cluster),
            Place::Unreachable(_) | Place::Gone => format!("one in the cluster {}", side.id.cluster),
        });
        format!(
            "The deleted claim {} had the PersistentVolume {}, whose copies are the twins {}",
            moved.claim.name,
            moved.source.id.name,
            twins.join(" and ")
        )
    });
    let kept: Vec<String> = kept.collect();
    format!(
        "{}. A longer spec.retainSource keeps them longer",
        kept.join(". ")
    )
}

/// Why the mover of the target failed to remove the journal, if this step removes that mover.
fn journal_left<'s>(seen: &'s ObservedMove, index: usize, step: &ClaimStep) -> Option<&'s str> {
    let facts = &seen.facts[index];
    let goes = matches!(
        (&seen.stage, step, &facts.target_helpers),
        (
            Stage::Committed(_),
            ClaimStep::RemoveHelpers(Side::Target),
            Live::Known(Helpers::Ready)
        )
    );
    match &facts.copied {
        Live::Unknown(why) if goes => Some(why),
        _ => None,
    }
}

/// The records in the status, with the reclaim policies that the user has set since.
fn current_records(seen: &ObservedMove) -> Result<Vec<CommitRecord>, GateError> {
    let records = seen.moved.iter().zip(&seen.facts).map(|(moved, facts)| {
        let Records::Committed(record) = &moved.records else {
            return Err(GateError::NoRecord(moved.source.id.name.clone()));
        };
        let record = CommitRecord::clone(record);
        Ok(match &facts.volume {
            VolumeNow::Exists(volume) => {
                record.with_policy(policy_wanted(volume.policy, volume.mark.as_ref()))
            }
            VolumeNow::Absent => record,
        })
    });
    records.collect()
}

async fn commit_records(seen: &ObservedMove) -> Result<Vec<CommitRecord>, GateError> {
    let records = seen.moved.iter().map(async |moved| match &moved.records {
        Records::Source(record) => moved.commit_record(record).await,
        Records::Committed(_) | Records::Nothing => Err(GateError::NoRecord(moved.source.id.name.clone())),
    });
    try_join_all(records).await
}
