//! Computes the status of a `VolumeMove` after each change of its stage, and while it waits. The stages
//! are decided in `placement::moving`; nothing is read or written here.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as StatusCondition, Time};
use serde_json::{Map, Value, json};

use super::progress::Copies;
use crate::{
    api::volume_move::{
        BackReason, ClaimStatus, Downtime, MoveRequest, Overruns, UNSEEN, UnreadableMove, VolumeMove,
        VolumeMoveSpec, VolumeMoveStatus,
    },
    offload::{LONGEST_MESSAGE, cut},
    placement::moving::{Outcome, RollbackReason, RollbackTo, Stage},
    volume::moving::{CommitRecord, Condition, GateNumber, SourceRecord},
};

/// How long after a rollback the next cut-over does not start on its own.
const CUTOVER_BACKOFF: SignedDuration = SignedDuration::from_mins(5);

/// A change of the stage, with what the status records about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StageEntry {
    /// `Gating` with this number, and the PVs of all claims.
    Gate(GateNumber, Vec<SourceRecord>),
    /// `Committed` with this number, and the PVs that replace them.
    Commit(GateNumber, Vec<CommitRecord>),
    /// `Recovering` with this number, and the records with the current reclaim policies.
    Recover(GateNumber, Vec<CommitRecord>),
    Stage(Stage),
}

impl StageEntry {
    pub(super) fn stage(&self) -> Stage {
        match self {
            Self::Gate(gate, _) => Stage::Gating(*gate),
            Self::Commit(gate, _) => Stage::Committed(*gate),
            Self::Recover(gate, _) => Stage::Recovering(*gate),
            Self::Stage(stage) => stage.clone(),
        }
    }
}

/// The status after the preflight, with its findings or, without findings, with the plan for the claims and notes about
/// it.
pub(super) fn checked(
    of: &VolumeMove,
    findings: &[String],
    claims: Vec<ClaimStatus>,
    notes: &str,
    now: Timestamp,
) -> VolumeMoveStatus {
    let mut next = NextStatus::of(of, now);
    next.status.waiting_for = None;
    next.clear_condition(Condition::Stalled, "Progressing", "the move continues");
    if findings.is_empty() {
        next.status.claims = claims;
        let cold = next.status.claims.iter().filter_map(|claim| {
            let (name, why) = (&claim.name, claim.cold.as_ref()?);
            let most = &of.spec.cutover.max_downtime;
            Some(format!(
                "; the data of the claim {name} is not copied while its pods run, because {why}: they are stopped for the whole copy. If \
                 that takes longer than cutover.maxDowntime ({most}), it is rolled back, and what was copied is not sent again"
            ))
        });
        let message = format!(
            "preflight found nothing that blocks the move; note that {UNSEEN}{}{notes}",
            cold.collect::<String>()
        );
        next.set_condition(Condition::Checked, true, "NothingFound", &message);
    } else {
        let message = findings.join("; ");
        next.set_condition(Condition::Checked, false, "Refused", &message);
    }
    next.status.preflight = Some(findings.to_vec());
    next.status.enter(&Stage::Checking, false);
    next.status
}

/// The status after a change of the stage.
pub(super) fn entered(
    of: &VolumeMove,
    request: &MoveRequest,
    before: &Stage,
    change: &StageEntry,
    copies: &Copies,
    now: Timestamp,
) -> Result<VolumeMoveStatus, UnreadableMove> {
    let mut next = NextStatus::of(of, now);
    copies.write(&mut next.status);
    next.status.waiting_for = None;
    match change {
        StageEntry::Gate(_, records) => {
            copies.record_nodes(&mut next.status);
            next.record(records, |record| (&record.claim.name.name, record.to_text()))?;
        }
        StageEntry::Commit(_, records) | StageEntry::Recover(_, records) => {
            next.record(records, |record| {
                (&record.source().claim.name.name, record.to_text())
            })?;
        }
        StageEntry::Stage(_) => {}
    }
    let after = change.stage();
    next.times(request, before, &after);
    next.overruns(&after);
    next.conditions(&after);
    next.status.enter(&after, false);
    Ok(next.status)
}

/// Why the cut-over is not tried again on its own, and what to do.
fn too_often(spec: &VolumeMoveSpec, overruns: &Overruns) -> String {
    let count = overruns.count;
    let by_hand = if spec.cutover.requested {
        "pause and resume the move"
    } else {
        "request it with liqo-csi move cutover"
    };
    if overruns.reason == BackReason::DrainDeadlineExceeded {
        let deadline = &spec.quiesce.deadline;
        return format!(
            "the pods did not terminate within spec.quiesce.deadline ({deadline}) {count} times, and can use their volumes again: the \
             cut-over is not tried again on its own. Stop the pods, and {by_hand}"
        );
    }
    let most = &spec.cutover.max_downtime;
    format!(
        "{count} times the last pass and the comparison took longer than spec.cutover.maxDowntime ({most}), and the pods can \
         use their volumes again: the cut-over is not tried again on its own. Raise spec.cutover.maxDowntime, or {by_hand}"
    )
}

/// The status of a waiting move.
pub(super) fn waiting(
    of: &VolumeMove,
    request: &MoveRequest,
    stage: &Stage,
    report: &WaitReport,
    copies: &Copies,
    now: Timestamp,
) -> VolumeMoveStatus {
    let mut next = NextStatus::of(of, now);
    copies.write(&mut next.status);
    let waiting_for = copies.and_failures(report.waiting_for.as_deref());
    next.status.waiting_for = waiting_for.map(|what| cut(&what, LONGEST_MESSAGE));
    if report.ready {
        next.converged();
    }
    let stopped = of.stopped_by().filter(|_| report.ready);
    match (stopped, &report.stalled) {
        (Some(overruns), _) => {
            let why = too_often(&of.spec, overruns);
            next.set_condition(Condition::Stalled, true, "CutoverOverruns", &why);
        }
        (None, Some(why)) => next.set_condition(Condition::Stalled, true, "NoProgress", why),
        (None, None) => next.clear_condition(Condition::Stalled, "Progressing", "the move continues"),
    }
    let status = &mut next.status;
    let keeps_source = !(stage.is_recovered() || *stage == Stage::Ended(Outcome::Done));
    if let (Some(committed), true) = (&status.committed_at, keeps_source) {
        status.retained_until = Some(Time(later(committed.0, request.retain_source)));
    } else if report.kept {
        let since = status.gated_at.as_ref().map_or(now, |gated| gated.0);
        status.retained_until = Some(Time(later(since, request.retain_source)));
    }
    status.enter(stage, report.ready);
    next.status
}

/// The status of a move whose last steps failed with this error.
pub(super) fn failing(of: &VolumeMove, why: &str, is_stalled: bool, now: Timestamp) -> VolumeMoveStatus {
    let mut next = NextStatus::of(of, now);
    next.status.waiting_for = Some(cut(why, LONGEST_MESSAGE));
    if is_stalled {
        next.set_condition(Condition::Stalled, true, "Error", why);
    }
    next.status
}

/// What a waiting move reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitReport {
    /// All is copied, and only the cut-over is missing.
    pub(super) ready: bool,
    /// Both copies are kept, because a claim was deleted.
    pub(super) kept: bool,
    pub(super) waiting_for: Option<String>,
    /// Why nothing has happened for a while.
    pub(super) stalled: Option<String>,
}

/// Whether a cut-over was rolled back a moment ago.
pub(super) fn backs_off_cutover(of: &VolumeMove, now: Timestamp) -> bool {
    let conditions = of.status.iter().flat_map(|status| &status.conditions);
    let mut gated = conditions.filter(|one| one.type_ == Condition::Gated.as_str() && one.status == "False");
    let opened = gated.next().map(|one| one.last_transition_time.0);
    opened.is_some_and(|opened| {
        let passed = now.duration_since(opened);
        passed >= SignedDuration::ZERO && passed < CUTOVER_BACKOFF
    })
}

/// The merge patch that sets this status: missing fields are removed.
pub(super) fn patch(
    before: Option<&VolumeMoveStatus>,
    after: &VolumeMoveStatus,
) -> Result<Value, serde_json::Error> {
    let before = before.map_or(Ok(json!({})), serde_json::to_value)?;
    let change = difference(&before, &serde_json::to_value(after)?);
    Ok(json!({"status": change.unwrap_or(json!({}))}))
}

/// The difference as a JSON merge patch (RFC 7386); `None` if there is none.
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

/// A status that is being computed.
struct NextStatus {
    status: VolumeMoveStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl NextStatus {
    fn of(of: &VolumeMove, now: Timestamp) -> Self {
        let mut status = of.status.clone().unwrap_or_default();
        status.observed_generation = of.metadata.generation;
        Self {
            status,
            generation: of.metadata.generation,
            now,
        }
    }

    fn record<'a, R>(
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
                    why: "the claim is not in the status",
                });
            };
            claim.record = Some(text);
        }
        Ok(())
    }

    /// Counts the overruns of the same deadline with the same spec.
    fn overruns(&mut self, after: &Stage) {
        let Stage::Rollback { why, .. } = after else {
            return;
        };
        let reason = match why {
            RollbackReason::DrainOverdue => BackReason::DrainDeadlineExceeded,
            RollbackReason::DowntimeOverdue => BackReason::MaxDowntimeExceeded,
            _ => return,
        };
        let generation = self.generation;
        let before = self.status.overruns.take();
        let before = before.filter(|before| before.reason == reason && before.generation == generation);
        self.status.overruns = Some(Overruns {
            reason,
            count: before.map_or(0, |before| before.count).saturating_add(1),
            generation,
        });
    }

    /// Sets the times from which deadlines count.
    fn times(&mut self, request: &MoveRequest, before: &Stage, after: &Stage) {
        let (now, status) = (self.now, &mut self.status);
        match after {
            Stage::Gating(_) => {
                // A gate that directly follows another one does not extend the users' deadline.
                if !is_gated(before) || status.gated_at.is_none() {
                    status.gated_at = Some(Time(now));
                }
                status.downtime = status.downtime.take().map(|downtime| Downtime {
                    predicted: downtime.predicted,
                    reason: downtime.reason,
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
            Stage::Recovering(_) => {
                status.gated_at = Some(Time(now));
                // The source is in use again; the copy at the target is not needed.
                status.retained_until = None;
            }
            Stage::Ended(Outcome::Recovered) => status.gated_at = None,
            Stage::Copying { .. }
            | Stage::Ended(Outcome::Cancelled | Outcome::Failed | Outcome::SourceGone) => {
                status.gated_at = None;
                status.downtime = None;
            }
            Stage::Checking
            | Stage::Preparing
            | Stage::Draining(_)
            | Stage::Verifying(_)
            | Stage::Rollback { .. }
            | Stage::Ended(Outcome::Done) => {}
        }
    }

    fn conditions(&mut self, after: &Stage) {
        self.clear_condition(Condition::Stalled, "Progressing", "the move continues");
        match after {
            Stage::Gating(gate) => {
                self.converged();
                let message = format!("the claims are being gated (gate {gate})");
                self.clear_condition(Condition::Drained, "NotYet", &message);
                self.clear_condition(Condition::Verified, "NotYet", &message);
            }
            Stage::Draining(gate) => {
                let message = format!(
                    "Kubernetes starts no pod with the claims (gate {gate}): it sets their phase to Lost until the gate is removed, and the \
                     events ClaimMisbound and ClaimLost on them are expected. Do not delete the claims"
                );
                self.set_condition(Condition::Gated, true, "Gated", &message);
            }
            Stage::Finishing(gate) => {
                let message = format!(
                    "no pod or node uses the claims (gate {gate}): the last changes are being copied"
                );
                self.set_condition(Condition::Drained, true, "Unused", &message);
            }
            Stage::Committed(gate) => {
                let message = format!("source and target are equal (gate {gate})");
                self.set_condition(Condition::Verified, true, "Equal", &message);
                self.set_condition(
                    Condition::Committed,
                    true,
                    "Committed",
                    "the volumes are at the target",
                );
            }
            Stage::Retaining(_) => {
                let message = "the claims are bound to their volumes at the target";
                self.clear_condition(Condition::Gated, "Bound", message);
            }
            Stage::Recovering(_) => {
                let committed = self.status.committed_at.as_ref();
                let since = committed.map_or_else(String::new, |committed| format!(" ({})", committed.0));
                for claim in &self.status.claims {
                    let lost = "what was written at the target since the commit";
                    self.status.lossy.push(format!("{}: {lost}{since}", claim.name));
                }
                self.status.lossy.sort();
                let message =
                    "the target is lost: the volumes are restored at the source, as they were at the commit";
                self.clear_condition(Condition::Committed, "SourceRecovered", message);
                let message = "Kubernetes starts no pod with the claims until then. Do not delete the claims";
                self.set_condition(Condition::Gated, true, "Gated", message);
            }
            Stage::Ended(Outcome::Recovered) => {
                let message = "the claims are bound to their volumes at the source";
                self.clear_condition(Condition::Gated, "GivenBack", message);
            }
            Stage::Ended(Outcome::Done) => {
                let message = "the source was deleted, or retained if that is its reclaim policy";
                self.set_condition(Condition::SourceReleased, true, "Released", message);
            }
            Stage::Rollback { why, to, .. } => {
                let message = why.to_string();
                match why {
                    RollbackReason::Refused(_) if *to == RollbackTo::Start => {
                        self.set_condition(Condition::Checked, false, "Refused", &message);
                    }
                    RollbackReason::Differs(_) => {
                        self.set_condition(Condition::Verified, false, "Differs", &message);
                    }
                    _ => {}
                }
            }
            Stage::Copying { last: Some(_) } | Stage::Ended(_) => {
                let message = "the claims are bound to their volumes at the source";
                for condition in [Condition::Gated, Condition::Drained, Condition::Verified] {
                    self.clear_condition(condition, "GivenBack", message);
                }
            }
            Stage::Checking | Stage::Preparing | Stage::Copying { last: None } | Stage::Verifying(_) => {}
        }
    }

    /// Nothing is left to copy while the users have their volumes.
    fn converged(&mut self) {
        let mut claims = self.status.claims.iter();
        let (reason, message) = if claims.any(|claim| claim.cold.is_some()) {
            let message = "all that can be copied while the pods run is copied";
            ("RestLater", message)
        } else {
            ("LittleLeft", "the last pass found few changes")
        };
        self.set_condition(Condition::Converged, true, reason, message);
    }

    /// Sets a condition to False only if it was True before.
    fn clear_condition(&mut self, condition: Condition, reason: &str, message: &str) {
        let mut said = self.status.conditions.iter();
        if said.any(|one| one.type_ == condition.as_str() && one.status == "True") {
            self.set_condition(condition, false, reason, message);
        }
    }

    /// A condition whose status is unchanged keeps its transition time.
    fn set_condition(&mut self, condition: Condition, is_so: bool, reason: &str, message: &str) {
        let status = if is_so { "True" } else { "False" };
        let conditions = &mut self.status.conditions;
        let known = conditions.iter().position(|one| one.type_ == condition.as_str());
        let since = known
            .map(|at| &conditions[at])
            .filter(|one| one.status == status)
            .map_or(Time(self.now), |one| one.last_transition_time.clone());
        let wanted = StatusCondition {
            type_: condition.as_str().to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: cut(message, LONGEST_MESSAGE),
            last_transition_time: since,
            observed_generation: self.generation,
        };
        match known {
            Some(at) => conditions[at] = wanted,
            None => conditions.push(wanted),
        }
    }
}

/// Whether the gate is closed or being closed.
pub(super) fn is_gated(stage: &Stage) -> bool {
    match stage {
        Stage::Gating(_)
        | Stage::Draining(_)
        | Stage::Finishing(_)
        | Stage::Verifying(_)
        | Stage::Recovering(_) => true,
        Stage::Checking
        | Stage::Preparing
        | Stage::Copying { .. }
        | Stage::Rollback { .. }
        | Stage::Committed(_)
        | Stage::Retaining(_)
        | Stage::Ended(_) => false,
    }
}

/// Whether users have no access to their volumes in this stage.
pub(super) fn blocks_users(stage: &Stage) -> bool {
    is_gated(stage) || matches!(stage, Stage::Committed(_) | Stage::Rollback { gate: Some(_), .. })
}

/// Adds to a time; the latest possible time on overflow.
fn later(time: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by)
        .ok()
        .and_then(|by| time.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of a move that waits for this.
    fn waits(of: &VolumeMove, report: &WaitReport) -> VolumeMoveStatus {
        let (request, stage) = (MoveRequest::try_from(of).unwrap(), of.stage().unwrap());
        waiting(of, &request, &stage, report, &Copies::default(), Timestamp::now())
    }

    fn read(generation: i64) -> VolumeMove {
        serde_json::from_value(json!({
            "apiVersion": "storage.liqo.io/v1alpha1", "kind": "VolumeMove",
            "metadata": {
                "namespace": "shop", "name": "m", "uid": "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222",
                "resourceVersion": "7", "generation": generation,
            },
            "spec": {"claims": ["data"], "target": {"nodeName": "n2"}},
        }))
        .unwrap()
    }

    /// Rolls the cut-over of the move back for this reason.
    fn overrun(of: &mut VolumeMove, why: RollbackReason) {
        let request = MoveRequest::try_from(&*of).unwrap();
        let gate = GateNumber::FIRST;
        let stages = [
            Stage::Finishing(gate),
            Stage::Rollback {
                gate: Some(gate),
                to: crate::placement::moving::RollbackTo::Copying,
                why,
            },
            Stage::Copying { last: Some(gate) },
        ];
        for stages in stages.windows(2) {
            let change = StageEntry::Stage(stages[1].clone());
            let next = entered(
                of,
                &request,
                &stages[0],
                &change,
                &Copies::default(),
                Timestamp::now(),
            );
            of.status = Some(next.unwrap());
        }
    }

    fn cuts_over(of: &VolumeMove) -> bool {
        of.facts(Timestamp::now(), false).unwrap().requested.cutover
    }

    #[test]
    fn after_three_overruns_pods_are_not_evicted_until_the_spec_changes() {
        for (why, field) in [
            (RollbackReason::DowntimeOverdue, "maxDowntime"),
            (RollbackReason::DrainOverdue, "quiesce.deadline"),
        ] {
            let mut of = read(1);
            for _ in 0..2 {
                overrun(&mut of, why.clone());
                assert!(cuts_over(&of));
            }
            overrun(&mut of, why.clone());
            assert!(!cuts_over(&of));
            let report = WaitReport {
                ready: true,
                ..WaitReport::default()
            };
            let said = waits(&of, &report);
            assert_eq!(said.phase.as_deref(), Some("Ready"));
            let mut said = said.conditions.into_iter();
            let stalled = said.find(|one| one.type_ == "Stalled").unwrap();
            assert_eq!(
                (stalled.status.as_str(), stalled.reason.as_str()),
                ("True", "CutoverOverruns")
            );
            assert!(stalled.message.contains(field), "{}", stalled.message);
            // A cut-over that is requested without a change of the spec does not begin either.
            of.spec.cutover.requested = true;
            assert!(!cuts_over(&of));
            of.metadata.generation = Some(2);
            assert!(cuts_over(&of));
            overrun(&mut of, why);
            assert!(cuts_over(&of), "the count starts again");
        }
    }

    /// The texts of movers in a remote cluster, for example.
    #[test]
    fn long_wait_messages_are_cut_in_the_status() {
        let of = read(1);
        let long = || Some("x".repeat(100_000));
        let report = WaitReport {
            waiting_for: long(),
            stalled: long(),
            ..WaitReport::default()
        };
        let said = waits(&of, &report);
        let longest = said.conditions.iter().map(|one| one.message.len()).max();
        for length in [said.waiting_for.map(|what| what.len()), longest] {
            assert!((4000..4200).contains(&length.unwrap()), "{length:?}");
        }
    }

    #[test]
    fn only_consecutive_overruns_of_one_kind_are_counted() {
        let mut of = read(1);
        overrun(&mut of, RollbackReason::DowntimeOverdue);
        overrun(&mut of, RollbackReason::DowntimeOverdue);
        overrun(&mut of, RollbackReason::GateOpen);
        overrun(&mut of, RollbackReason::DrainOverdue);
        overrun(&mut of, RollbackReason::DowntimeOverdue);
        assert!(cuts_over(&of));
        assert_eq!(of.status.unwrap().overruns.unwrap().count, 1);
    }
}
