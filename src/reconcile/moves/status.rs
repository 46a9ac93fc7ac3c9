//! The status of a `VolumeMove` after each change of its stage, and what is told of it meanwhile.
//! When it changes is decided in `placement::moving`; nothing is read or written here.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as Said, Time};
use serde_json::{Map, Value, json};

use super::progress::Copies;
use crate::{
    api::volume_move::{
        ClaimStatus, Downtime, MoveRequest, UNSEEN, UnreadableMove, VolumeMove, VolumeMoveStatus,
    },
    placement::moving::{Outcome, Stage, Why},
    volume::moving::{CommitRecord, Condition, GateNumber, SourceRecord},
};

/// After a cut-over that failed, the next one is not begun by itself for so long.
const HELD_OFF: SignedDuration = SignedDuration::from_mins(5);

/// A change of the stage, with what the status is to remember of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// `Gating` with this number, and the PVs of all claims.
    Gate(GateNumber, Vec<SourceRecord>),
    /// `Committed` with this number, and the PVs that replace them.
    Commit(GateNumber, Vec<CommitRecord>),
    /// This stage.
    Stage(Stage),
}

impl Entered {
    /// The stage.
    pub(super) fn stage(&self) -> Stage {
        match self {
            Self::Gate(gate, _) => Stage::Gating(*gate),
            Self::Commit(gate, _) => Stage::Committed(*gate),
            Self::Stage(stage) => stage.clone(),
        }
    }
}

/// What came of the look at what speaks against a move.
/// `claims` are those that it is about.
pub(super) fn checked(
    of: &VolumeMove,
    findings: &[String],
    claims: Vec<ClaimStatus>,
    now: Timestamp,
) -> VolumeMoveStatus {
    let mut next = Next::of(of, now);
    if findings.is_empty() {
        next.status.claims = claims;
        let away = next.status.claims.iter().filter_map(|claim| {
            let (name, why) = (&claim.name, claim.cold.as_ref()?);
            let most = &of.spec.cutover.max_downtime;
            Some(format!(
                "; nothing of the claim {name} is copied while its pods run, for {why}: they are away for the whole copy. If \
                 that takes longer than cutover.maxDowntime ({most}), they are given it back, and what was copied is not sent again"
            ))
        });
        let message = format!(
            "nothing speaks against it, as far as is seen: {UNSEEN}{}",
            away.collect::<String>()
        );
        next.say(Condition::Checked, true, "NothingFound", &message);
    } else {
        let message = findings.join("; ");
        next.say(Condition::Checked, false, "Refused", &message);
    }
    next.status.preflight = Some(findings.to_vec());
    next.status.enter(&Stage::Checking, false);
    next.status
}

/// The status in the next stage.
pub(super) fn entered(
    of: &VolumeMove,
    request: &MoveRequest,
    before: &Stage,
    change: &Entered,
    copies: &Copies,
    now: Timestamp,
) -> Result<VolumeMoveStatus, UnreadableMove> {
    let mut next = Next::of(of, now);
    copies.note(&mut next.status);
    next.status.waiting_for = None;
    match change {
        Entered::Gate(_, records) => {
            next.remember(records, |record| (&record.claim.name.name, record.to_text()))?;
        }
        Entered::Commit(_, records) => {
            next.remember(records, |record| {
                (&record.source().claim.name.name, record.to_text())
            })?;
        }
        Entered::Stage(_) => {}
    }
    let after = change.stage();
    next.times(request, before, &after);
    next.conditions(&after);
    next.status.enter(&after, false);
    Ok(next.status)
}

/// What is told of a move that waits.
pub(super) fn waiting(
    of: &VolumeMove,
    request: &MoveRequest,
    stage: &Stage,
    told: &Told,
    copies: &Copies,
    now: Timestamp,
) -> VolumeMoveStatus {
    let mut next = Next::of(of, now);
    copies.note(&mut next.status);
    next.status.waiting_for.clone_from(&told.waiting_for);
    if told.ready {
        next.converged();
    }
    match &told.stalled {
        Some(why) => next.say(Condition::Stalled, true, "NothingHappens", why),
        None => next.no_longer(Condition::Stalled, "GoesOn", "it goes on"),
    }
    let status = &mut next.status;
    if let (Some(committed), true) = (&status.committed_at, *stage != Stage::Ended(Outcome::Done)) {
        status.retained_until = Some(Time(later(committed.0, request.retain_source)));
    } else if told.kept {
        let since = status.gated_at.as_ref().map_or(now, |gated| gated.0);
        status.retained_until = Some(Time(later(since, request.retain_source)));
    }
    status.enter(stage, told.ready);
    next.status
}

/// What a move that waits tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// All is copied, and only the cut-over is waited for.
    pub(super) ready: bool,
    /// Both copies are kept, for a claim was deleted.
    pub(super) kept: bool,
    /// What is waited for.
    pub(super) waiting_for: Option<String>,
    /// Nothing has happened for a while, for this reason.
    pub(super) stalled: Option<String>,
}

/// Whether a cut-over has failed a moment ago.
pub(super) fn is_held_off(of: &VolumeMove, now: Timestamp) -> bool {
    let conditions = of.status.iter().flat_map(|status| &status.conditions);
    let mut gated = conditions.filter(|one| one.type_ == Condition::Gated.as_str() && one.status == "False");
    let opened = gated.next().map(|one| one.last_transition_time.0);
    opened.is_some_and(|opened| {
        let passed = now.duration_since(opened);
        passed >= SignedDuration::ZERO && passed < HELD_OFF
    })
}

/// The merge patch that makes the status this one: what it does not say is taken out.
pub(super) fn patch(
    before: Option<&VolumeMoveStatus>,
    after: &VolumeMoveStatus,
) -> Result<Value, serde_json::Error> {
    let before = before.map_or(Ok(json!({})), serde_json::to_value)?;
    let change = difference(&before, &serde_json::to_value(after)?);
    Ok(json!({"status": change.unwrap_or(json!({}))}))
}

/// What has changed, as RFC 7386 writes it; `None` if nothing has.
fn difference(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    let mut changes: Map<String, Value> = gone.map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in new {
        let change = difference(old.get(key).unwrap_or(&Value::Null), value);
        changes.extend(change.map(|change| (key.clone(), change)));
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// A status that is being written.
struct Next {
    status: VolumeMoveStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl Next {
    fn of(of: &VolumeMove, now: Timestamp) -> Self {
        let mut status = of.status.clone().unwrap_or_default();
        status.observed_generation = of.metadata.generation;
        Self {
            status,
            generation: of.metadata.generation,
            now,
        }
    }

    fn remember<'a, R>(
        &mut self,
        records: &'a [R],
        text: impl Fn(&'a R) -> (&'a String, Result<String, serde_json::Error>),
    ) -> Result<(), UnreadableMove> {
        for record in records {
            let (name, text) = text(record);
            let claim = self.status.claims.iter_mut().find(|claim| claim.name == *name);
            let (Some(claim), Ok(text)) = (claim, text) else {
                return Err(UnreadableMove::Plan {
                    claim: name.clone(),
                    why: "it is not in there",
                });
            };
            claim.record = Some(text);
        }
        Ok(())
    }

    /// When what has begun from which deadlines count.
    fn times(&mut self, request: &MoveRequest, before: &Stage, after: &Stage) {
        let (now, status) = (self.now, &mut self.status);
        match after {
            Stage::Gating(_) => {
                // A gate that follows another one at once does not give the users more time to go.
                if !is_gated(before) || status.gated_at.is_none() {
                    status.gated_at = Some(Time(now));
                }
                status.downtime = status.downtime.take().map(|downtime| Downtime {
                    predicted: downtime.predicted,
                    ..Downtime::default()
                });
            }
            Stage::Finishing(_) => {
                status.downtime = Some(Downtime {
                    since: Some(Time(now)),
                    ..status.downtime.take().unwrap_or_default()
                });
            }
            Stage::Committed(_) => {
                status.committed_at = Some(Time(now));
                status.retained_until = Some(Time(later(now, request.retain_source)));
            }
            Stage::Retaining(_) => {
                let downtime = status.downtime.take().unwrap_or_default();
                let since = status.gated_at.as_ref().map(|gated| now.duration_since(gated.0));
                status.downtime = Some(Downtime {
                    actual: since.map(|since| format!("{:.1}s", since.as_secs_f64())),
                    since: None,
                    ..downtime
                });
            }
            Stage::Copying { .. } | Stage::Ended(Outcome::Cancelled | Outcome::Failed) => {
                status.gated_at = None;
                status.downtime = None;
            }
            Stage::Checking
            | Stage::Preparing
            | Stage::Draining(_)
            | Stage::Verifying(_)
            | Stage::Back { .. }
            | Stage::Ended(Outcome::Done) => {}
        }
    }

    fn conditions(&mut self, after: &Stage) {
        self.no_longer(Condition::Stalled, "GoesOn", "it goes on");
        match after {
            Stage::Gating(gate) => {
                self.converged();
                let message = format!("the claims are being taken from their users, for the time {gate}");
                self.no_longer(Condition::Drained, "NotYet", &message);
                self.no_longer(Condition::Verified, "NotYet", &message);
            }
            Stage::Draining(gate) => {
                let message = format!(
                    "Kubernetes starts no pod with the claims (gate {gate}): it calls them Lost meanwhile, and the events \
                     ClaimMisbound and ClaimLost on them are expected. Do not delete the claims"
                );
                self.say(Condition::Gated, true, "Gated", &message);
            }
            Stage::Finishing(gate) => {
                let message = format!("nobody uses the claims (gate {gate}): what is left is copied");
                self.say(Condition::Drained, true, "Unused", &message);
            }
            Stage::Committed(gate) => {
                let message = format!("both sides hold the same (gate {gate})");
                self.say(Condition::Verified, true, "Equal", &message);
                self.say(
                    Condition::Committed,
                    true,
                    "Committed",
                    "the volumes are at the target",
                );
            }
            Stage::Retaining(_) => {
                let message = "the claims are bound to their volumes at the target";
                self.no_longer(Condition::Gated, "Bound", message);
            }
            Stage::Ended(Outcome::Done) => {
                let message = "what was left at the source is gone, or kept if that is its reclaim policy";
                self.say(Condition::SourceReleased, true, "Released", message);
            }
            Stage::Back { why, .. } => {
                let message = why.to_string();
                match why {
                    Why::Refused(_) => self.say(Condition::Checked, false, "Refused", &message),
                    Why::Differs(_) => self.say(Condition::Verified, false, "Differs", &message),
                    _ => {}
                }
            }
            Stage::Copying { last: Some(_) } | Stage::Ended(_) => {
                let message = "the claims are bound to their volumes at the source";
                for condition in [Condition::Gated, Condition::Drained, Condition::Verified] {
                    self.no_longer(condition, "GivenBack", message);
                }
            }
            Stage::Checking | Stage::Preparing | Stage::Copying { last: None } | Stage::Verifying(_) => {}
        }
    }

    /// There is nothing to be done any more as long as the users have their volumes.
    fn converged(&mut self) {
        let mut claims = self.status.claims.iter();
        let (reason, message) = if claims.any(|claim| claim.cold.is_some()) {
            let message = "what can be copied before the pods have gone is copied";
            ("RestLater", message)
        } else {
            ("LittleLeft", "the last pass found little to copy")
        };
        self.say(Condition::Converged, true, reason, message);
    }

    /// What was never so is not said not to be so.
    fn no_longer(&mut self, condition: Condition, reason: &str, message: &str) {
        let mut said = self.status.conditions.iter();
        if said.any(|one| one.type_ == condition.as_str() && one.status == "True") {
            self.say(condition, false, reason, message);
        }
    }

    /// A condition that says what it said keeps its age.
    fn say(&mut self, condition: Condition, is_so: bool, reason: &str, message: &str) {
        let status = if is_so { "True" } else { "False" };
        let conditions = &mut self.status.conditions;
        let known = conditions.iter().position(|one| one.type_ == condition.as_str());
        let since = known
            .map(|at| &conditions[at])
            .filter(|one| one.status == status)
            .map_or(Time(self.now), |one| one.last_transition_time.clone());
        let said = Said {
            type_: condition.as_str().to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: since,
            observed_generation: self.generation,
        };
        match known {
            Some(at) => conditions[at] = said,
            None => conditions.push(said),
        }
    }
}

/// Whether a gate is closed, or being closed.
pub(super) fn is_gated(stage: &Stage) -> bool {
    match stage {
        Stage::Gating(_) | Stage::Draining(_) | Stage::Finishing(_) | Stage::Verifying(_) => true,
        Stage::Checking
        | Stage::Preparing
        | Stage::Copying { .. }
        | Stage::Back { .. }
        | Stage::Committed(_)
        | Stage::Retaining(_)
        | Stage::Ended(_) => false,
    }
}

/// Whether users wait for their volumes in this stage.
pub(super) fn keeps_users_away(stage: &Stage) -> bool {
    is_gated(stage) || matches!(stage, Stage::Committed(_) | Stage::Back { gate: Some(_), .. })
}

/// A time that lies further away than there are times is the last one.
fn later(time: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by)
        .ok()
        .and_then(|by| time.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}
