//! One move: its objects are read, then its status, then one decision is taken and carried out,
//! again and again until something has to be waited for. What is decided is
//! `placement::moving`'s; what is read and written of a claim is `gate`'s.

use std::time::Duration;

use futures::future::{join_all, try_join_all};
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
    evict::evict,
    preflight::preflight,
    progress::Copies,
    status::{self, Entered, entered, is_held_off},
    telling::tell,
    volumes::{recorded, records, volumes},
    waits::{Look, Since, look},
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
        BackTo, ClaimFacts, ClaimStep, Helpers, Live, MoveFacts, MoveStep, Outcome, Side, Stage,
        StatusChange, VolumeNow, Waiting, Why, move_step, policy_wanted,
    },
    rounds::Rounds,
    volume::{
        ClaimName, mark,
        moving::{CommitRecord, Condition, SourceRecord},
    },
};

/// Looks of one round. A move that goes on after that does so in the next one.
const LOOKS: usize = 50;
/// What Kubernetes does at once is looked at so soon, and so often.
const SOON: Duration = Duration::from_millis(100);
const SOON_LOOKS: usize = 20;
/// For what waits, between two looks that changes cause.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// Between two reports of what is not news.
const REPORT: Duration = Duration::from_secs(5);
/// Until what only people can mend is looked at again.
const TROUBLED: Duration = Duration::from_mins(1);
const REFUSED_EVICTION: Duration = Duration::from_secs(5);

/// Which `VolumeMove` this is. Names are used again.
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

/// The loop that follows one move.
pub(super) struct Following<'a, H> {
    context: &'a Context<'a, H>,
    key: MoveKey,
    /// Changes when the `VolumeMove` does.
    own: watch::Receiver<u64>,
    /// Until when other changes do not matter.
    quiet_until: Instant,
    due: Instant,
    /// Whether something failed that is tried again by itself.
    troubled: bool,
    since: Since,
    reported: Option<Instant>,
}

/// What came of a look.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// Something was done, or has changed meanwhile.
    Again,
    /// Something is waited for.
    Wait(Look),
    /// There is nothing to do.
    Over,
}

/// Why a move does not go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// An API server does not answer, or refuses.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// What is written somewhere cannot be read.
    #[error(transparent)]
    Unreadable(#[from] UnreadableMove),
    /// Objects of a claim cannot be read or written.
    #[error(transparent)]
    Objects(GateError),
    /// A remote cluster was not asked yet.
    #[error("{0}")]
    NotYet(String),
    /// The status cannot be written.
    #[error("the status cannot be written as JSON: {0}")]
    Unwritable(#[from] serde_json::Error),
}

impl From<GateError> for Trouble {
    fn from(error: GateError) -> Self {
        match error {
            GateError::Api(error) => Self::Api(error),
            other => Self::Objects(other),
        }
    }
}

impl From<RequestError> for Trouble {
    fn from(error: RequestError) -> Self {
        Self::Unreadable(error.into())
    }
}

/// A move as it was read, and what is known of its claims.
struct Seen {
    of: VolumeMove,
    request: MoveRequest,
    stage: Stage,
    moved: Vec<MovedVolume>,
    facts: Vec<ClaimFacts>,
    /// Where the sources are read.
    reads_on: Vec<Option<ReadsOn>>,
}

impl<'a, H: MoveHelpers> Following<'a, H> {
    pub(super) fn new(context: &'a Context<'a, H>, key: MoveKey) -> Self {
        let (namespace, name) = (key.namespace.clone(), key.name.clone());
        let is_it = move |seen: &SeenMove| seen.name.namespace == namespace && seen.name.name == name;
        Self {
            own: context.home.views().moves.changes_of(is_it),
            context,
            key,
            quiet_until: Instant::now(),
            due: Instant::now(),
            troubled: false,
            since: Since::now(),
            reported: None,
        }
    }

    async fn read(&self) -> Result<Option<VolumeMove>, ApiError> {
        let moves = self.context.home.within::<VolumeMove>(&self.key.namespace);
        let found = moves.get(&self.key.name).await?;
        Ok(found.filter(|found| found.uid().as_ref() == Some(&self.key.uid)))
    }

    /// One look, and what follows from it.
    pub(super) async fn look(&mut self) -> Result<Looked, Trouble> {
        let Some(first) = self.read().await? else {
            return Ok(Looked::Over);
        };
        if is_to_be_checked(&first)? {
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
            moved.target_off = self.is_off(&moved.target).await?;
        }
        let observed = moved.iter().map(|moved| self.observed(moved, &request, &stage));
        let observed = try_join_all(observed).await?;
        // Last of all: what this says was still true after all of that was read.
        let Some(of) = self.read().await? else {
            return Ok(Looked::Over);
        };
        if of.plan()? != plan || of.stage()? != stage {
            return Ok(Looked::Again);
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
        let seen = Seen {
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
        let status = seen.of.facts(now, is_held_off(&seen.of, now))?;
        match move_step(&status, &seen.facts) {
            MoveStep::Write { change, .. } => self.change(&seen, &status, change).await,
            MoveStep::Act(steps) => self.act(&seen, &steps).await,
            MoveStep::Wait(waiting) => self.wait(&seen, &waiting).await,
            MoveStep::Over => Ok(Looked::Over),
        }
    }

    /// Whether an administrator has declared out of service all nodes that stand for the cluster of a side.
    async fn is_off(&self, side: &MovedSide) -> Result<bool, ApiError> {
        let Context { home, registry, .. } = self.context;
        let nodes = home.all::<Node>().list(None).await?;
        let mut standing = nodes.into_iter().filter(|node| {
            let behind = registry.behind(&home.node(node.metadata.clone()));
            matches!(behind, NodeKind::Virtual(remote) if remote.id == side.id.cluster)
        });
        let is_off = |node: &Node| is_out_of_service(node) && !is_ready(node);
        Ok(standing.next().is_some_and(|node| is_off(&node)) && standing.all(|node| is_off(&node)))
    }

    async fn observed(
        &self,
        moved: &MovedVolume,
        request: &MoveRequest,
        stage: &Stage,
    ) -> Result<(ClaimObjects, Movers), GateError> {
        // The movers first: what they say of a pass is older then than what is seen of its users.
        let movers = self.context.helpers.observe(moved, request, stage).await?;
        Ok((moved.observe().await?, movers))
    }

    /// Changes the `VolumeMove`, in exactly the version that was decided on.
    async fn change(
        &mut self,
        seen: &Seen,
        status: &MoveFacts,
        change: StatusChange,
    ) -> Result<Looked, Trouble> {
        let change = match change {
            StatusChange::AddFinalizer => return self.hold(&seen.of, true).await,
            StatusChange::RemoveFinalizer => return self.hold(&seen.of, false).await,
            StatusChange::Enter(stage) => Entered::Stage(stage),
            StatusChange::OpenGate(gate) => {
                let Some(records) = self.source_records(seen).await? else {
                    return Ok(Looked::Again);
                };
                Entered::Gate(gate, records)
            }
            StatusChange::Recover(gate) => Entered::Recover(gate, records_now(seen)?),
            StatusChange::Commit(gate) => match commit_records(seen).await {
                Ok(records) => Entered::Commit(gate, records),
                Err(GateError::Api(error)) if !status.overdue.downtime => return Err(error.into()),
                // Nobody is kept away for what does not end by itself.
                Err(error) => Entered::Stage(Stage::Back {
                    gate: Some(gate),
                    to: BackTo::Start,
                    why: Why::Refused(vec![error.to_string()]),
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
        if let (Entered::Stage(Stage::Ended(Outcome::Done)), Some(left)) = (&change, sources_left(seen)) {
            let released = Condition::SourceReleased.to_string();
            let said = next.conditions.iter_mut().find(|said| said.type_ == released);
            if let Some(said) = said {
                said.message = left;
            }
        }
        self.since.happened();
        self.note(seen, &change, &next);
        self.write_status(&seen.of, &next).await
    }

    /// The PVs of all claims, none of which has changed since it was decided on. Whether they can
    /// be replaced is found out before anybody is kept away.
    async fn source_records(&self, seen: &Seen) -> Result<Option<Vec<SourceRecord>>, GateError> {
        let mut records = Vec::new();
        for (moved, facts) in seen.moved.iter().zip(&seen.facts) {
            let VolumeNow::There(volume) = &facts.volume else {
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

    async fn hold(&mut self, of: &VolumeMove, held: bool) -> Result<Looked, Trouble> {
        let mut finalizers = of.finalizers().to_vec();
        finalizers.retain(|one| one != mark::MOVE);
        if held {
            finalizers.push(mark::MOVE.to_owned());
        }
        let patch = json!({"metadata": {
            "uid": of.uid(),
            "resourceVersion": of.resource_version(),
            "finalizers": finalizers,
        }});
        let moves = self.context.home.within::<VolumeMove>(&self.key.namespace);
        let step = if held { Step::MoveHold } else { Step::MoveLetGo };
        let written = crash::around(step, moves.merge(&self.key.name, &patch)).await;
        unless_conflict(written)?;
        Ok(Looked::Again)
    }

    async fn write_status(&mut self, of: &VolumeMove, next: &VolumeMoveStatus) -> Result<Looked, Trouble> {
        let mut patch = status::patch(of.status.as_ref(), next)?;
        patch["metadata"] = json!({"uid": of.uid(), "resourceVersion": of.resource_version()});
        let moves = self.context.home.within::<VolumeMove>(&self.key.namespace);
        let written = crash::around(Step::MoveStatus, moves.merge_status(&self.key.name, &patch)).await;
        if let Some(written) = unless_conflict(written)? {
            tell(self.context.events, of, &written).await;
        }
        Ok(Looked::Again)
    }

    /// Takes steps, which are independent of each other.
    async fn act(&mut self, seen: &Seen, steps: &[(usize, ClaimStep)]) -> Result<Looked, Trouble> {
        let taken = steps.iter().map(async |(index, step)| {
            let moved = &seen.moved[*index];
            if let Some(why) = journal_left(seen, *index, step) {
                let (claim, by) = (&moved.claim.name, &moved.by);
                let note = format!(
                    "the journal of the move could not be taken off the new volume of the claim {claim}: {why}. Its data is \
                     complete; delete .liqo-move-{by} in its root when its pods run"
                );
                let events = self.context.events;
                events.tell_move(&seen.of, Weight::Warning, "MoveJournalLeft", &note).await;
            }
            match moved.apply(step).await? {
                Applied::NotHere => {}
                Applied::Done | Applied::ChangedMeanwhile => return Ok(Vec::new()),
            }
            if let ClaimStep::Evict(pods) = step {
                return Ok::<_, GateError>(evict(self.context.home, pods).await?);
            }
            self.context.helpers.apply(moved, &seen.request, step).await?;
            Ok(Vec::new())
        });
        let mut stay = Vec::new();
        for taken in join_all(taken).await {
            stay.extend(taken?);
        }
        if stay.is_empty() {
            return Ok(Looked::Again);
        }
        let waiting = vec![(0, Waiting::Users(stay))];
        self.wait(seen, &waiting).await?;
        Ok(Looked::Wait(Look::Within(REFUSED_EVICTION)))
    }

    /// Says what is waited for, where that is news.
    async fn wait(&mut self, seen: &Seen, waiting: &[(usize, Waiting)]) -> Result<Looked, Trouble> {
        let told = self.since.told(&seen.stage, waiting);
        let copies = self.copies(seen);
        let next = status::waiting(
            &seen.of,
            &seen.request,
            &seen.stage,
            &told,
            &copies,
            Timestamp::now(),
        );
        let is_news = seen.of.status.as_ref() != Some(&next);
        let is_due = self.reported.is_none_or(|when| when.elapsed() >= REPORT);
        if is_news && is_due {
            self.reported = Some(Instant::now());
            return self.write_status(&seen.of, &next).await;
        }
        Ok(Looked::Wait(look(&seen.stage, waiting)))
    }

    /// How far the copies are, as far as this replica was told.
    fn copies(&self, seen: &Seen) -> Copies {
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

    /// Goes on until something is waited for, and for how long.
    async fn go_on(&mut self) -> Result<Duration, Trouble> {
        let mut soon = 0;
        for _ in 0..LOOKS {
            match Box::pin(self.look()).await? {
                Looked::Again => {}
                Looked::Wait(Look::Soon) if soon < SOON_LOOKS => {
                    soon += 1;
                    sleep(SOON).await;
                }
                Looked::Wait(Look::Soon) => return Ok(LEAST_PAUSE),
                Looked::Wait(Look::Within(pause)) => return Ok(pause),
                Looked::Over => return Ok(Self::RESYNC),
            }
        }
        Ok(Duration::ZERO)
    }

    /// What only people can mend, they have to hear.
    async fn complain(&self, trouble: &Trouble) {
        let why = trouble.to_string();
        tracing::warn!(
            namespace = self.key.namespace,
            name = self.key.name,
            why,
            "a move does not go on"
        );
        if let Ok(Some(of)) = self.read().await {
            let events = self.context.events;
            events.tell_move(&of, Weight::Warning, "MoveStalled", &why).await;
        }
    }

    /// Left alone for so long, unless it is changed itself; what changes elsewhere is looked at a
    /// bit sooner.
    fn rest(&mut self, pause: Duration) {
        let now = Instant::now();
        self.due = now + pause;
        self.quiet_until = if pause > LEAST_PAUSE { now + pause / 4 } else { now };
    }

    /// Counts what is worth counting.
    fn note(&self, seen: &Seen, change: &Entered, next: &VolumeMoveStatus) {
        let metrics = self.context.metrics.moves();
        match change.stage() {
            Stage::Back { to, why, .. } => {
                if to == BackTo::Copying {
                    metrics.retried();
                }
                if matches!(why, Why::Differs(_)) {
                    metrics.differed();
                }
            }
            Stage::Retaining(_) => {
                let gated = seen.of.status.as_ref().and_then(|status| status.gated_at.clone());
                if let Some(gated) = gated {
                    metrics.kept_users_away(Timestamp::now().duration_since(gated.0));
                }
            }
            stage => tracing::info!(
                namespace = self.key.namespace,
                name = self.key.name,
                ?stage,
                phase = next.phase,
                "a move goes on"
            ),
        }
    }
}

impl<H: MoveHelpers> Rounds for Following<'_, H> {
    const NAME: &'static str = "moves";
    const RESYNC: Duration = Duration::from_mins(10);
    const GATHER: Duration = Duration::from_millis(10);

    fn due(&self) -> Option<Duration> {
        Some(self.due.saturating_duration_since(Instant::now()))
    }

    fn has_failed(&self) -> bool {
        self.troubled
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
            watched.outer.version(),
            home.twin_changes(),
            registry.all_twin_changes(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        if Instant::now() < self.quiet_until && !self.own.has_changed().unwrap_or_default() {
            return Ok(());
        }
        self.own.mark_unchanged();
        (self.troubled, self.due, self.quiet_until) = (false, Instant::now(), Instant::now());
        let pause = match self.go_on().await {
            Ok(pause) => pause,
            Err(Trouble::Api(error)) => return Err(error),
            Err(Trouble::NotYet(why)) => {
                let (namespace, name) = (&self.key.namespace, &self.key.name);
                tracing::info!(namespace, name, why, "a move waits");
                LEAST_PAUSE
            }
            Err(trouble) => {
                self.troubled = true;
                self.complain(&trouble).await;
                TROUBLED
            }
        };
        self.rest(pause);
        Ok(())
    }
}

/// Whether it has yet to be looked for what speaks against a move.
fn is_to_be_checked(of: &VolumeMove) -> Result<bool, Trouble> {
    let facts = of.facts(Timestamp::now(), false)?;
    let is_wanted = !facts.deleting && !facts.wishes.cancel && !facts.wishes.paused;
    Ok(facts.finalizer && is_wanted && facts.stage == Stage::Checking && facts.obstacles.is_none())
}

/// How large the volumes are, as far as they are recorded.
fn recorded_bytes(moved: &[MovedVolume]) -> u64 {
    let sizes = moved.iter().map(|moved| match &moved.records {
        Records::Nothing => 0,
        Records::Source(record) => record.source.bytes(),
        Records::Committed(record) => record.source().source.bytes(),
    });
    sizes.fold(0, u64::saturating_add)
}

/// What the move leaves in clusters that are no longer declared, where it can release nothing.
fn sources_left(seen: &Seen) -> Option<String> {
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
            "a cluster that is no longer declared keeps what the move left there: the claim {}, with its PersistentVolume and its \
             data. Declare the cluster again and delete the claim, or delete both there",
            sources.join(", ")
        )
    })
}

/// Why the mover of the target goes without having taken the journal off, if it has failed to.
fn journal_left<'s>(seen: &'s Seen, index: usize, step: &ClaimStep) -> Option<&'s str> {
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
        Live::Silent(why) if goes => Some(why),
        _ => None,
    }
}

/// What the status remembers of the PVs, with the reclaim policies that their user wants by now.
fn records_now(seen: &Seen) -> Result<Vec<CommitRecord>, GateError> {
    let records = seen.moved.iter().zip(&seen.facts).map(|(moved, facts)| {
        let Records::Committed(record) = &moved.records else {
            return Err(GateError::NoRecord(moved.source.id.name.clone()));
        };
        let record = CommitRecord::clone(record);
        Ok(match &facts.volume {
            VolumeNow::There(volume) => {
                record.with_policy(policy_wanted(volume.policy, volume.mark.as_ref()))
            }
            VolumeNow::Absent => record,
        })
    });
    records.collect()
}

async fn commit_records(seen: &Seen) -> Result<Vec<CommitRecord>, GateError> {
    let records = seen.moved.iter().map(async |moved| match &moved.records {
        Records::Source(record) => moved.commit_record(record).await,
        Records::Committed(_) | Records::Nothing => Err(GateError::NoRecord(moved.source.id.name.clone())),
    });
    try_join_all(records).await
}
