//! How far the copy of each claim is: what the target's program was told to do, and what it has
//! answered. This is the only memory of the movers, and it may be lost at any time: then a pass is
//! made once more, which finds that little has changed.
//!
//! What is noted for a gate was begun after somebody saw that gate closed, and on the volume as it
//! was then: an order that is given late, or twice, costs time and nothing else.

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

/// Before an order is given again that could not be carried out.
const PAUSE: Duration = Duration::from_secs(10);
/// Before another pass beside the users looks whether they have removed what would be lost.
const LOSS_PAUSE: Duration = Duration::from_mins(1);
/// Whoever carries out an order says so each second; one that waits for the order of somebody
/// else says nothing.
const SILENCE: Duration = Duration::from_mins(5);
/// A pass that took no longer found little.
const SHORT: Duration = Duration::from_secs(10);
/// How long what a pass has found counts, in times of its own length, and at least.
const COUNTS_FOR: u32 = 10;
const COUNTS_AT_LEAST: Duration = Duration::from_mins(1);

/// How far the copy of a claim is, for people. What is decided does not rest on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyProgress {
    /// How many passes were made.
    pub passes: u32,
    /// What the last of them found, and how long it took.
    pub last: Option<(Passed, Duration)>,
    /// What of the volume is not carried over, as far as passes have found it.
    pub losses: Vec<Lost>,
    /// Bytes of content that all passes have received.
    pub received: u64,
    /// Files that they have compared or fetched.
    pub compared_files: u64,
    /// The pass that is under way and has its source.
    pub running: Option<RunningPass>,
    /// The hashes over what the source said and over what is on the target's disk.
    pub roots: Option<(String, String)>,
    /// How the data travels, or did last.
    pub route: Option<Route>,
}

/// A pass that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningPass {
    /// For how long.
    pub since: Duration,
    /// Bytes of content that it has received.
    pub received: u64,
    /// Bytes that the source's file system holds, which may be more than the volume; zero if that
    /// is not known.
    pub expected: u64,
    /// Of a device, bytes that it has made sure to be the same on both sides.
    pub settled: Option<u64>,
}

/// The copies of all claims.
#[derive(Default)]
pub(super) struct Orders(Mutex<BTreeMap<(MoveUid, VolumeName), Copying>>);

struct Copying {
    state: Arc<Mutex<State>>,
    /// Whoever gives the orders. It ends with this.
    giver: Option<AbortOnDropHandle<()>>,
}

#[derive(Default)]
struct State {
    running: Option<Pass>,
    next: Option<Pass>,
    /// The highest gate that was heard of.
    heard: Option<GateNumber>,
    /// Until when the last warm pass counts as one that found little.
    converged: Option<Instant>,
    finished: Option<GateNumber>,
    compared: Option<(GateNumber, Roots)>,
    journal_off: Option<GateNumber>,
    failed: Option<(Instant, String)>,
    /// What the target said that can never have what the source has.
    too_small: Option<String>,
    last: Option<(Instant, Passed)>,
    losses: Vec<Lost>,
    took: Duration,
    /// Of passes that have ended.
    received: u64,
    compared_files: u64,
    receiving: Option<Receiving>,
    passes: u32,
    roots: Option<(String, String)>,
    route: Option<Route>,
}

/// The pass that runs and has its source.
#[derive(Clone, Copy)]
struct Receiving {
    since: Instant,
    received: u64,
    expected: u64,
    settled: Option<u64>,
}

impl Orders {
    /// How far the copy of a claim is. Without a warm copy nothing is waited for before the gate.
    pub(super) fn copied(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        stage: &Stage,
        is_warm: bool,
    ) -> Live<Copied> {
        let all = lock(&self.0);
        let Some(copying) = all.get(&key(moved)) else {
            return Live::Known(Copied {
                converged: !is_warm,
                ..Copied::default()
            });
        };
        let now = lock(&copying.state);
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
                return Live::Silent(why.clone());
            }
            // While users are kept away nobody removes it: only consent helps, or that they get their
            // volumes back.
            let may_look = is_warm && matches!(stage, Stage::Preparing | Stage::Copying { .. });
            let is_recent = now.last.as_ref().is_some_and(|(at, _)| at.elapsed() < LOSS_PAUSE);
            if let Some(lost) = lost.as_ref().filter(|_| is_recent || !may_look) {
                return Live::Silent(lost.clone());
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

    /// Has the target begin this pass, as soon as it has ended the one that it makes.
    pub(super) fn start(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        pass: Pass,
        settings: &HelperSettings,
    ) -> Result<Applied, GateError> {
        Ok(self.begin(moved, of, pass, end(moved, settings)?))
    }

    /// The same, where the target takes its orders here.
    pub(super) fn begin(&self, moved: &MovedVolume, of: &MoveRequest, pass: Pass, end: End) -> Applied {
        let mut all = lock(&self.0);
        let copying = all.entry(key(moved)).or_insert_with(|| Copying {
            state: Arc::default(),
            giver: None,
        });
        let mut state = lock(&copying.state);
        let gate = gate_of(pass);
        if gate < state.heard && gate.is_some() {
            return Applied::ChangedMeanwhile;
        }
        state.heard = state.heard.max(gate);
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
        state.failed = None;
        drop(state);
        let giver = Giver {
            state: Arc::clone(&copying.state),
            end,
            reads_all: of.verify == Verify::Full,
            has_others: matches!(&moved.target.place, Place::Site(site) if site.remote_cluster().is_some()),
            most_passes: of.max_passes,
        };
        copying.giver = Some(AbortOnDropHandle::new(tokio::spawn(giver.give(pass))));
        Applied::Done
    }

    /// Waits no longer for the pass that is under way: its source goes, and what is copied from the
    /// next one is for another order.
    pub(super) fn give_up(&self, moved: &MovedVolume) {
        if let Some(copying) = lock(&self.0).get_mut(&key(moved)) {
            copying.giver = None;
            let mut state = lock(&copying.state);
            (state.running, state.next, state.receiving) = (None, None, None);
        }
    }

    /// Forgets a copy, and gives no more orders for it.
    pub(super) fn forget(&self, moved: &MovedVolume) {
        lock(&self.0).remove(&key(moved));
    }

    /// Forgets all copies.
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
            last: last.map(|(_, passed)| (passed.clone(), state.took)),
            losses: state.losses.clone(),
            received: state.received + running.map_or(0, |running| running.received),
            compared_files: state.compared_files,
            running,
            roots: state.roots.clone(),
            route: state.route,
        })
    }
}

/// Gives orders to the target of one claim, one after the other.
struct Giver {
    state: Arc<Mutex<State>>,
    end: End,
    reads_all: bool,
    /// Whether others may have pods with the target's volume: at home this driver keeps them away.
    has_others: bool,
    most_passes: u32,
}

impl Giver {
    async fn give(self, first: Pass) {
        let mut next = Some(first);
        while let Some(pass) = next {
            let outcome = Box::pin(self.carry_out(pass)).await;
            let mut state = lock(&self.state);
            state.receiving = None;
            if let Err(why) = outcome {
                tracing::warn!(port = %self.end.port, ?pass, why, "a mover did not carry out an order");
                state.failed = Some((Instant::now(), why));
            }
            next = state.next.take();
            state.running = next;
        }
    }

    async fn carry_out(&self, pass: Pass) -> Result<(), String> {
        match pass {
            Pass::Warm => self.warm_pass().await,
            Pass::Final(gate) => self.last_pass(gate).await,
            Pass::Verify(gate) => {
                // Whoever takes over does not know what the one before him had seen.
                if lock(&self.state).finished != Some(gate) {
                    self.last_pass(gate).await?;
                }
                let compared = self.compare(gate).await;
                if compared.is_err() {
                    // Its mover may be another one by now, which knows of no pass.
                    lock(&self.state).finished = None;
                }
                compared
            }
            Pass::Finish(gate) => {
                let Answer::Finished = self.ask(Order::Finish).await? else {
                    return Err("the mover has answered something else than it was asked for".to_owned());
                };
                lock(&self.state).journal_off = Some(gate);
                Ok(())
            }
        }
    }

    /// Copies beside the users, and reads back what was written, so that little is left to be read
    /// while they are kept away.
    async fn warm_pass(&self) -> Result<(), String> {
        let began = Instant::now();
        let passed = self.pass(false).await?;
        let took = began.elapsed();
        let is_little = {
            let mut state = lock(&self.state);
            let before = state.last.as_ref().map(|(_, before)| before.received_bytes);
            // What comes in each time is what users write meanwhile.
            let stays = before.is_some_and(|before| passed.received_bytes / 4 >= before / 5);
            state.converged = None;
            state.note(passed, took);
            took <= SHORT || stays || state.passes >= self.most_passes
        };
        if !self.reads_all {
            self.read_back().await?;
        }
        let took = began.elapsed();
        let counts = (took * COUNTS_FOR).max(COUNTS_AT_LEAST);
        let mut state = lock(&self.state);
        state.took = took;
        state.converged = is_little.then(|| Instant::now() + counts);
        Ok(())
    }

    /// Compares what passes have written since the last time with what the disk returns. What users
    /// changed while it was read is not known, and part of the next pass.
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
        match self.ask(Order::Verify { all, attributes }).await? {
            Answer::Verified(verified) => Ok(verified),
            _ => Err("the mover has answered something else than it was asked for".to_owned()),
        }
    }

    async fn last_pass(&self, gate: GateNumber) -> Result<(), String> {
        let began = Instant::now();
        let passed = self.pass(true).await?;
        let mut state = lock(&self.state);
        state.finished = Some(gate);
        state.note(passed, began.elapsed());
        Ok(())
    }

    /// Compares, and changes nothing: whoever gave the order may have opened the gate meanwhile.
    async fn compare(&self, gate: GateNumber) -> Result<(), String> {
        let verified = self.verify(self.reads_all, self.has_others).await?;
        let is_equal = verified.is_equal();
        lock(&self.state).roots = Some((verified.expected, verified.found));
        let roots = if is_equal {
            Roots::Equal
        } else {
            let named = verified.differences.join(", ");
            let said = format!("{} differences: {named}", verified.different);
            Roots::Differ(crate::cluster::short(&said))
        };
        lock(&self.state).compared = Some((gate, roots));
        Ok(())
    }

    async fn pass(&self, last: bool) -> Result<Passed, String> {
        let reread = last && self.reads_all;
        match self.ask(Order::Pass { last, reread }).await? {
            Answer::Passed(passed) => Ok(passed),
            _ => Err("the mover has answered something else than it was asked for".to_owned()),
        }
    }

    /// Gives an order and waits for what it comes to.
    async fn ask(&self, order: Order) -> Result<Answer, String> {
        let text = serde_json::to_string(&order).map_err(|error| error.to_string())?;
        let mut lines = Lines::open(&self.end).await.map_err(|error| error.to_string())?;
        lines.say(&text).await.map_err(|error| error.to_string())?;
        let answer = loop {
            let line = timeout(SILENCE, lines.hear()).await;
            let line = line.map_err(|_| format!("the mover {} says nothing", self.end.port))?;
            let line = line.map_err(|error| error.to_string())?;
            let line = line.ok_or_else(|| format!("the mover {} is gone", self.end.port))?;
            let answer = serde_json::from_str(&line);
            match answer.map_err(|error| format!("the mover {} is not understood: {error}", self.end.port))? {
                Answer::Progress {
                    connected,
                    received_bytes,
                    expected_bytes,
                    direct,
                    settled_bytes,
                } => {
                    let mut state = lock(&self.state);
                    if connected {
                        state.route = Some(taken(direct));
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
    fn note(&mut self, passed: Passed, took: Duration) {
        self.passes += 1;
        self.took = took;
        self.received += passed.received_bytes;
        self.compared_files += passed.compared_files;
        self.route = Some(taken(passed.direct));
        self.lose(&passed);
        self.last = Some((Instant::now(), passed));
    }

    /// A target of the version before tells the losses of what that pass has listed: what it does
    /// not name may still be there.
    fn lose(&mut self, passed: &Passed) {
        let is_told = |kind| passed.losses.iter().any(|lost| lost.kind == kind);
        self.losses
            .retain(|lost| !passed.losses_of_all && !is_told(lost.kind));
        for lost in &passed.losses {
            if !self.losses.iter().any(|known| known.kind == lost.kind) {
                self.losses.push(lost.clone());
            }
        }
    }
}

fn taken(direct: bool) -> Route {
    if direct { Route::Direct } else { Route::ApiServer }
}

/// What would be lost, and was not accepted.
fn unaccepted(losses: &[Lost], of: &MoveRequest) -> Option<String> {
    let word = |kind| match kind {
        LostKind::Xattrs => (
            Loss::ExtendedAttributes,
            "extended attributes",
            "ExtendedAttributes",
        ),
        LostKind::Flags => (Loss::InodeFlags, "inode flags", "InodeFlags"),
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

/// Where the target takes orders.
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
    let port = port.map_err(|error: crate::relay::BadPodPort| GateError::Silent {
        side: "target",
        why: error.to_string(),
    })?;
    Ok(End {
        client: site.cluster().client().clone(),
        port,
    })
}

/// A panic elsewhere leaves nothing half done in what these locks hold.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
