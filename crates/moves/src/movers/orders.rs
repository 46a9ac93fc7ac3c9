//! Sends orders to the target's mover of each claim, and keeps the progress of the copies from its answers.
//! This is the only state of the movers in memory. If it is lost, one more pass is made, which finds few
//! changes.
//!
//! A result that is recorded for a gate is of an order that was sent after that gate was observed closed, and
//! for the volume as it was then. A late or repeated order therefore costs only time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mover::control::{Answer, Lost, LostKind, Order, Passed, Reason, Verified};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{
    GateError, HelperSettings, MoveRequest, MovedVolume,
    names::{Names, Role},
    pod::ORDERS_PORT,
};
use crate::{
    api::volume_move::{Loss, Route, Verify},
    gate::{Applied, Place},
    placement::moving::{Copied, Live, Pass, Roots, Side, Stage},
    relay::{End, Lines},
    volume::{
        VolumeName,
        moving::{GateNumber, MoveUid},
    },
};

/// How long to wait before a failed order is sent again.
const PAUSE: Duration = Duration::from_secs(10);
/// The same for a warm pass that only checks whether the users have removed what would be lost.
const LOSS_PAUSE: Duration = Duration::from_mins(1);
/// A mover reports every second on the order that it carries out, but not on an order that waits.
const REPORT_TIMEOUT: Duration = Duration::from_mins(5);
/// How many passes are made, one after the other, to find a source as the pass before did.
const LAST_PASSES: u32 = 3;
/// A pass of at most this length found few changes.
const SHORT_PASS: Duration = Duration::from_secs(10);
/// The result of a pass is valid for this many times its length, but at least for `VALID_AT_LEAST`.
const VALID_FOR_LENGTHS: u32 = 10;
const VALID_AT_LEAST: Duration = Duration::from_mins(1);

/// The progress of the copy of a claim, for users only: no decision is based on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyProgress {
    pub passes: u32,
    /// What the last pass found, and how long the one after the drain is expected to take.
    pub last: Option<(Passed, Duration)>,
    /// Losses that the passes have found.
    pub losses: Vec<Lost>,
    /// Why the last order failed, until one succeeds.
    pub failed: Option<String>,
    /// Bytes that all passes have received, also those that failed or whose connections broke.
    pub received: u64,
    /// Files that all passes have compared or fetched.
    pub compared_files: u64,
    /// The current pass, once its source is connected.
    pub running: Option<RunningPass>,
    /// The hashes of what the source sent, and of what is on the target's disk.
    pub roots: Option<(String, String)>,
    /// The current route of the data, or the last one.
    pub route: Option<Route>,
    /// Why everything is read back during the cut-over, although the move does not request that.
    pub reads_back_all: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningPass {
    pub since: Duration,
    /// Bytes that it has received on its current connection.
    pub received: u64,
    /// Bytes in the source's file system, which may be more than the volume; zero if unknown.
    pub expected: u64,
    /// Bytes of a device that are equal on both sides for certain.
    pub settled: Option<u64>,
}

#[derive(Default)]
pub(super) struct Orders(Mutex<BTreeMap<(MoveUid, VolumeName), ClaimCopy>>);

#[derive(Default)]
struct ClaimCopy {
    state: Arc<Mutex<State>>,
    /// The task that sends the orders; it ends when this is dropped.
    sender: Option<AbortOnDropHandle<()>>,
}

#[derive(Default)]
struct State {
    running: Option<Pass>,
    next: Option<Pass>,
    /// The highest gate of all orders so far.
    highest_gate: Option<GateNumber>,
    /// Until when the last warm pass counts as one that found few changes.
    converged: Option<Instant>,
    finished: Option<GateNumber>,
    compared: Option<(GateNumber, Roots)>,
    journal_off: Option<GateNumber>,
    /// When and why the last order failed, until one succeeds.
    failed: Option<(Instant, String)>,
    /// Why the data of the source does not fit into the target, as the target's mover reports it.
    too_small: Option<String>,
    last: Option<(Instant, Passed)>,
    losses: Vec<Lost>,
    /// How long the last pass is expected to take, with reading back.
    expected: Duration,
    /// Bytes that have arrived, without those of the current connection.
    received: u64,
    compared_files: u64,
    receiving: Option<Receiving>,
    passes: u32,
    roots: Option<(String, String)>,
    route: Option<Route>,
    /// Which pods and nodes use the target besides its mover, if any.
    target_users: Option<String>,
}

/// The current pass on its current connection with the source.
#[derive(Clone, Copy)]
struct Receiving {
    since: Instant,
    received: u64,
    expected: u64,
    settled: Option<u64>,
}

impl Orders {
    /// The state of the copy of a claim. Without a warm copy nothing has to be copied before the gate.
    pub(super) fn copied(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        stage: &Stage,
        is_warm: bool,
    ) -> Live<Copied> {
        let all = lock(&self.0);
        let Some(copy) = all.get(&key(moved)) else {
            return Live::Known(Copied {
                converged: !is_warm,
                ..Copied::default()
            });
        };
        let now = lock(&copy.state);
        if let Some(why) = &now.too_small {
            return Live::Known(Copied {
                too_small: Some(format!("the claim {}: {why}", moved.claim.name)),
                ..Copied::default()
            });
        }
        let lost = unaccepted(&now.losses, of);
        let is_due = matches!(
            stage,
            Stage::Preparing
                | Stage::Copying { .. }
                | Stage::Finishing(_)
                | Stage::Verifying(_)
                | Stage::Committed(_)
        );
        if let (true, None) = (is_due, now.running) {
            let failed = now.failed.as_ref();
            if let Some((_, why)) = failed.filter(|(at, _)| at.elapsed() < PAUSE) {
                return Live::Unknown(why.clone());
            }
            // While the claim is gated, users cannot remove the loss: the move needs their consent,
            // or has to roll back.
            let may_look = is_warm && matches!(stage, Stage::Preparing | Stage::Copying { .. });
            let is_recent = now.last.as_ref().is_some_and(|(at, _)| at.elapsed() < LOSS_PAUSE);
            if let Some(lost) = lost.as_ref().filter(|_| is_recent || !may_look) {
                return Live::Unknown(lost.clone());
            }
        }
        let is_accepted = lost.is_none();
        Live::Known(Copied {
            running: now.running,
            converged: is_accepted && (!is_warm || now.converged.is_some_and(|until| Instant::now() < until)),
            finished: now.finished.filter(|_| is_accepted),
            compared: now.compared.clone().filter(|_| is_accepted),
            journal_off: now.journal_off,
            too_small: None,
        })
    }

    /// Orders this pass from the target, after its current one.
    pub(super) fn start(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        pass: Pass,
        settings: &HelperSettings,
    ) -> Result<Applied, GateError> {
        Ok(self.begin(moved, of, pass, end(moved, settings)?))
    }

    /// The same for a target that takes orders at this end.
    pub(super) fn begin(&self, moved: &MovedVolume, of: &MoveRequest, pass: Pass, end: End) -> Applied {
        let mut all = lock(&self.0);
        let copy = all.entry(key(moved)).or_default();
        let mut state = lock(&copy.state);
        let gate = gate_of(pass);
        if gate < state.highest_gate && gate.is_some() {
            return Applied::ChangedMeanwhile;
        }
        state.highest_gate = state.highest_gate.max(gate);
        if state.running.is_some() {
            let is_known = state.running == Some(pass) || state.next == Some(pass);
            state.next = Some(pass).filter(|_| state.running != Some(pass));
            return if is_known {
                Applied::ChangedMeanwhile
            } else {
                Applied::Done
            };
        }
        state.running = Some(pass);
        drop(state);
        let sender = OrderSender {
            state: Arc::clone(&copy.state),
            end,
            reads_all: of.verify == Verify::Full,
            has_other_pods: matches!(&moved.target.place, Place::Site(site) if site.remote_cluster().is_some()),
            most_passes: of.max_passes,
            may_have_writers: moved.unwatched().is_some(),
        };
        copy.sender = Some(AbortOnDropHandle::new(tokio::spawn(sender.send_all(pass))));
        Applied::Done
    }

    /// Records which pods and nodes use the target besides its mover. Earlier ones stay recorded: they may have written.
    pub(super) fn record_users(&self, moved: &MovedVolume, others: &[String]) {
        if !others.is_empty() {
            let mut all = lock(&self.0);
            let copy = all.entry(key(moved)).or_default();
            lock(&copy.state).target_users = Some(crate::cluster::short(&others.join(", ")));
        }
    }

    /// Stops waiting for the current pass: its source is being deleted, and the next source gets another
    /// order.
    pub(super) fn stop_waiting(&self, moved: &MovedVolume) {
        if let Some(copy) = lock(&self.0).get_mut(&key(moved)) {
            copy.sender = None;
            let mut state = lock(&copy.state);
            state.disconnected();
            (state.running, state.next) = (None, None);
        }
    }

    /// Removes a copy and sends no more orders for it.
    pub(super) fn forget(&self, moved: &MovedVolume) {
        lock(&self.0).remove(&key(moved));
    }

    pub(super) fn forget_all(&self) {
        lock(&self.0).clear();
    }

    pub(super) fn progress(&self, moved: &MovedVolume) -> Option<CopyProgress> {
        let all = lock(&self.0);
        let state = lock(&all.get(&key(moved))?.state);
        let last = state.last.as_ref();
        let running = state.receiving.map(|receiving| RunningPass {
            since: receiving.since.elapsed(),
            received: receiving.received,
            expected: receiving.expected,
            settled: receiving.settled,
        });
        Some(CopyProgress {
            passes: state.passes,
            last: last.map(|(_, passed)| (passed.clone(), state.expected)),
            losses: state.losses.clone(),
            failed: state.failed.as_ref().map(|(_, why)| why.clone()),
            received: state
                .received
                .saturating_add(running.map_or(0, |running| running.received)),
            compared_files: state.compared_files,
            running,
            roots: state.roots.clone(),
            route: state.route,
            reads_back_all: state.target_users.as_ref().map(|users| {
                format!(
                    "the new volume was used by {users} before the move was committed: all of it is read back"
                )
            }),
        })
    }
}

/// Sends orders to the target of one claim, one after the other.
struct OrderSender {
    state: Arc<Mutex<State>>,
    end: End,
    reads_all: bool,
    /// Whether other pods may use the target's volume; at home this driver prevents it.
    has_other_pods: bool,
    most_passes: u32,
    /// Whether pods may write to the source during the last pass without being detected.
    may_have_writers: bool,
}

impl OrderSender {
    async fn send_all(self, first: Pass) {
        let mut next = Some(first);
        while let Some(pass) = next {
            let outcome = Box::pin(self.send(pass)).await;
            let mut state = lock(&self.state);
            state.failed = outcome.err().map(|why| (Instant::now(), why));
            if let Some((_, why)) = &state.failed {
                tracing::warn!(port = %self.end.port, ?pass, why, "an order to a mover failed");
            }
            next = state.next.take();
            state.running = next;
        }
    }

    async fn send(&self, pass: Pass) -> Result<(), String> {
        match pass {
            Pass::Warm => self.warm_pass().await,
            Pass::Final(gate) => self.last_pass(gate).await,
            Pass::Verify(gate) => {
                // A new leader does not know what the previous one has observed.
                if lock(&self.state).finished != Some(gate) {
                    self.last_pass(gate).await?;
                }
                let compared = self.compare(gate).await;
                if compared.is_err() {
                    // The target may have another mover now, which has no pass yet.
                    lock(&self.state).finished = None;
                }
                compared
            }
            Pass::Finish(gate) => {
                let Answer::Finished = self.request(Order::Finish).await? else {
                    return Err("unexpected answer from the mover".to_owned());
                };
                lock(&self.state).journal_off = Some(gate);
                Ok(())
            }
        }
    }

    /// Copies while pods use the volume, and reads back what was written, so that little is left to read
    /// during the cut-over.
    async fn warm_pass(&self) -> Result<(), String> {
        let began = Instant::now();
        let passed = self.pass(false, false).await?;
        let took = began.elapsed();
        // A device has no names, and its last pass is not repeated.
        let is_repeated = self.may_have_writers && passed.entries > 0;
        let is_little = {
            let mut state = lock(&self.state);
            let before = state.last.as_ref().map(|(_, before)| before);
            // What arrives in each pass is what the users have written meanwhile.
            let stays = |count: fn(&Passed) -> u64| {
                before.is_some_and(|before| count(&passed) / 4 >= count(before) / 5)
            };
            let has_little = took <= SHORT_PASS || stays(|passed| passed.received_bytes);
            // Files that changed while they were read are left to the next pass.
            let leaves_little = passed.unsteady == 0 || stays(|passed| passed.unsteady);
            let is_little = has_little && leaves_little;
            state.converged = None;
            state.record(passed, took);
            is_little || state.passes >= self.most_passes
        };
        if !self.reads_all {
            self.read_back().await?;
        }
        let with_reading = began.elapsed();
        let counts = (with_reading * VALID_FOR_LENGTHS).max(VALID_AT_LEAST);
        let mut state = lock(&self.state);
        state.expected = with_reading;
        if is_repeated {
            // The first pass after the drain finds what has changed since this one, the second one nothing.
            state.expected += took;
        }
        state.converged = is_little.then(|| Instant::now() + counts);
        Ok(())
    }

    /// Compares what the passes have written since the last comparison with the disk. Files that changed
    /// while they were read are unknown here, and part of the next pass.
    async fn read_back(&self) -> Result<(), String> {
        let read = self.verify(false, false).await?;
        if read.is_equal_as_sent() {
            return Ok(());
        }
        Err(format!(
            "the new volume does not return what was written to it: {}",
            crate::cluster::short(&read.differences.join(", "))
        ))
    }

    async fn verify(&self, all: bool, attributes: bool) -> Result<Verified, String> {
        match self.request(Order::Verify { all, attributes }).await? {
            Answer::Verified(verified) => Ok(verified),
            _ => Err("unexpected answer from the mover".to_owned()),
        }
    }

    /// A file that is renamed during a pass, from a directory that was not read yet into one that was, is not found, and
    /// its copy at the target is deleted. So if there may be writers, the last pass is one that has found no change.
    async fn last_pass(&self, gate: GateNumber) -> Result<(), String> {
        let (mut found, began) = (0, Instant::now());
        for earlier in 0..LAST_PASSES {
            let passed = self.pass(true, self.reads_all && earlier == 0).await?;
            found = passed.changed;
            let mut state = lock(&self.state);
            state.record(passed, began.elapsed());
            if found == 0 || !self.may_have_writers {
                state.finished = Some(gate);
                return Ok(());
            }
        }
        Err(format!(
            "the source is being changed: the last of {LAST_PASSES} passes has found {found} changes since the one before; stop \
             the pods and other clients that use the volume"
        ))
    }

    /// Only compares: the gate may have been opened since the order.
    async fn compare(&self, gate: GateNumber) -> Result<(), String> {
        // The attributes do not show a change of content that keeps the size and sets the time back.
        let reads_all = self.reads_all || lock(&self.state).target_users.is_some();
        let verified = self.verify(reads_all, self.has_other_pods).await?;
        let is_equal = verified.is_equal();
        let named = verified.differences.join(", ");
        if !is_equal && verified.is_equal_as_sent() {
            // Another last pass reads these files and directories again.
            return Err(format!(
                "the last pass is repeated: {}",
                crate::cluster::short(&named)
            ));
        }
        lock(&self.state).roots = Some((verified.expected, verified.found));
        let roots = if is_equal {
            Roots::Equal
        } else {
            let said = format!("{} differences: {named}", verified.different);
            Roots::Differ(crate::cluster::short(&said))
        };
        lock(&self.state).compared = Some((gate, roots));
        Ok(())
    }

    async fn pass(&self, last: bool, reread: bool) -> Result<Passed, String> {
        match self.request(Order::Pass { last, reread }).await? {
            Answer::Passed(passed) => Ok(passed),
            _ => Err("unexpected answer from the mover".to_owned()),
        }
    }

    /// Sends an order and waits for its result.
    async fn request(&self, order: Order) -> Result<Answer, String> {
        let answer = self.exchange(order).await;
        let mut state = lock(&self.state);
        let received = state.receiving.map_or(0, |last| last.received);
        match &answer {
            // The result is that of another connection, of which there was no report.
            Ok(Answer::Passed(passed)) if passed.received_bytes < received => state.disconnected(),
            // The result has the exact number.
            Ok(_) => state.receiving = None,
            Err(_) => state.disconnected(),
        }
        answer
    }

    async fn exchange(&self, order: Order) -> Result<Answer, String> {
        let text = serde_json::to_string(&order).map_err(|error| error.to_string())?;
        let mut lines = Lines::open(&self.end).await.map_err(|error| error.to_string())?;
        lines.write_line(&text).await.map_err(|error| error.to_string())?;
        let answer = loop {
            let line = timeout(REPORT_TIMEOUT, lines.read_line()).await;
            let line = line.map_err(|_| format!("the mover {} does not respond", self.end.port))?;
            let line = line.map_err(|error| error.to_string())?;
            let line =
                line.ok_or_else(|| format!("the mover {} has closed the connection", self.end.port))?;
            let answer = serde_json::from_str(&line);
            match answer.map_err(|error| {
                format!("the answer of the mover {} is unreadable: {error}", self.end.port)
            })? {
                Answer::Progress {
                    connected,
                    received_bytes,
                    expected_bytes,
                    direct,
                    settled_bytes,
                } => {
                    let mut state = lock(&self.state);
                    if connected {
                        state.route = Some(route_taken(direct));
                    }
                    let goes_on = |before: Receiving| connected && before.received <= received_bytes;
                    if !state.receiving.is_some_and(goes_on) {
                        state.disconnected();
                    }
                    let since = state.receiving.map_or_else(Instant::now, |before| before.since);
                    state.receiving = connected.then_some(Receiving {
                        since,
                        received: received_bytes,
                        expected: expected_bytes,
                        settled: settled_bytes,
                    });
                }
                answer => break answer,
            }
        };
        lines.close().await;
        match answer {
            Answer::Failed { reason, message } => {
                let why = crate::cluster::short(&message);
                if reason == Reason::TooSmall {
                    lock(&self.state).too_small = Some(why.clone());
                }
                Err(why)
            }
            answer => Ok(answer),
        }
    }
}

impl State {
    /// The connection with the source has ended. What has arrived is not sent again.
    fn disconnected(&mut self) {
        let received = self.receiving.take().map_or(0, |ended| ended.received);
        self.received = self.received.saturating_add(received);
    }

    fn record(&mut self, passed: Passed, took: Duration) {
        self.passes += 1;
        self.expected = took;
        self.received = self.received.saturating_add(passed.received_bytes);
        self.compared_files += passed.compared_files;
        self.route = Some(route_taken(passed.direct));
        self.update_losses(&passed);
        self.last = Some((Instant::now(), passed));
    }

    /// The target of the previous version reports only the losses among what that pass has listed: other
    /// losses may still exist.
    fn update_losses(&mut self, passed: &Passed) {
        let is_reported = |kind| passed.losses.iter().any(|lost| lost.kind == kind);
        self.losses
            .retain(|lost| !passed.losses_of_all && !is_reported(lost.kind));
        for lost in &passed.losses {
            if !self.losses.iter().any(|known| known.kind == lost.kind) {
                self.losses.push(lost.clone());
            }
        }
    }
}

fn route_taken(direct: bool) -> Route {
    if direct { Route::Direct } else { Route::ApiServer }
}

/// The first loss that was not accepted.
fn unaccepted(losses: &[Lost], of: &MoveRequest) -> Option<String> {
    let word = |kind| match kind {
        LostKind::Xattrs => (
            Loss::ExtendedAttributes,
            "extended attributes",
            "ExtendedAttributes",
        ),
        LostKind::Flags => (Loss::InodeFlags, "inode flags or project quotas", "InodeFlags"),
    };
    let lost = losses.iter().find(|lost| {
        let (loss, ..) = word(lost.kind);
        lost.count > 0 && !of.accept_loss.contains(&loss)
    })?;
    let (_, what, name) = word(lost.kind);
    Some(format!(
        "{} names have {what} that cannot be carried over, such as {}: remove them, or add {name} to spec.acceptLoss of the \
         VolumeMove",
        lost.count,
        crate::cluster::short(&lost.example)
    ))
}

fn gate_of(pass: Pass) -> Option<GateNumber> {
    match pass {
        Pass::Warm => None,
        Pass::Final(gate) | Pass::Verify(gate) | Pass::Finish(gate) => Some(gate),
    }
}

fn key(moved: &MovedVolume) -> (MoveUid, VolumeName) {
    (moved.by.clone(), moved.volume().clone())
}

/// The port where the target takes orders.
fn end(moved: &MovedVolume, settings: &HelperSettings) -> Result<End, GateError> {
    let site = moved.site(Side::Target)?;
    let is_home = site.remote_cluster().is_none();
    let namespace = if is_home {
        &settings.namespace
    } else {
        site.namespace()
    };
    let pod = Names::of(moved).of_role(Role::Mover(Side::Target));
    let port = format!("{namespace}/{pod}:{ORDERS_PORT}").parse();
    let port = port.map_err(|error: crate::relay::BadPodPort| GateError::Unreachable {
        side: "target",
        why: error.to_string(),
    })?;
    Ok(End {
        client: site.cluster().client().clone(),
        port,
    })
}

/// No code panics between two writes under these locks, so a poisoned lock is still consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
