//! Describes a move for the user from its object: its line in the table, its current step, the
//! progress of the copying, and its end.

use kube::ResourceExt;

use crate::{
    api::volume_move::{BackReason, CutoverMode, Progress, QuiesceMode, VolumeMove},
    placement::moving::{RollbackReason, Stage},
    volume::moving::Phase,
};

/// How a move has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The volumes are at the target.
    Moved,
    /// Nothing blocks a move that was a dry run.
    Possible,
    /// Something blocks it. Nothing was changed.
    Refused,
    /// A user cancelled it.
    Cancelled,
    /// It failed.
    Failed,
    /// The target was lost, and the source was recovered.
    Recovered,
}

impl End {
    /// The exit status.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Moved | Self::Possible => 0,
            Self::Refused => 2,
            Self::Cancelled | Self::Recovered => 3,
            Self::Failed => 4,
        }
    }
}

/// The phase; `None` before the controller has seen it, or if a later version wrote it.
pub(super) fn phase(of: &VolumeMove) -> Option<Phase> {
    of.status.as_ref()?.phase.as_ref()?.parse().ok()
}

/// Whether the move has ended, so that its claims are not locked any more.
pub(super) fn is_over(of: &VolumeMove) -> bool {
    matches!(
        phase(of),
        Some(Phase::Done | Phase::Cancelled | Phase::Failed | Phase::Recovered | Phase::Retaining)
    )
}

/// How the move has ended, if it has. A source that is still retained is not waited for.
pub(super) fn end(of: &VolumeMove) -> Option<End> {
    let status = of.status.as_ref()?;
    let found = status.preflight.as_ref();
    if of.spec.dry_run
        && let Some(found) = found
    {
        return Some(if found.is_empty() {
            End::Possible
        } else {
            End::Refused
        });
    }
    match phase(of)? {
        // The recovery begins when the driver has found that the target is lost.
        Phase::Retaining if of.spec.recover_source => None,
        Phase::Retaining | Phase::Done => Some(End::Moved),
        Phase::Cancelled => Some(End::Cancelled),
        Phase::Recovered => Some(End::Recovered),
        Phase::Failed if refusal(of).is_some() => Some(End::Refused),
        Phase::Failed if found.is_some_and(|found| !found.is_empty()) => Some(End::Refused),
        Phase::Failed => Some(End::Failed),
        _ => None,
    }
}

fn why(of: &VolumeMove) -> Option<BackReason> {
    let stage = of.status.as_ref()?.stage.as_ref()?;
    Some(stage.why.as_ref()?.reason)
}

/// What the preflight, or a later step, has found.
fn refusal(of: &VolumeMove) -> Option<&str> {
    let mut conditions = of.status.as_ref()?.conditions.iter();
    let refused =
        conditions.find(|one| one.type_ == "Checked" && one.status == "False" && one.reason == "Refused")?;
    Some(&refused.message)
}

/// Its current step or its result, as a sentence.
pub(super) fn sentence(of: &VolumeMove) -> String {
    let Some(phase) = phase(of) else {
        return "the controller has not seen it yet".to_owned();
    };
    let status = of.status.clone().unwrap_or_default();
    let is_paused = of.spec.paused && matches!(phase, Phase::Preparing | Phase::Copying | Phase::Ready);
    if is_paused {
        return "it is paused: liqo-csi move resume continues it".to_owned();
    }
    match phase {
        Phase::Checking => "preflight checks are running".to_owned(),
        Phase::Preparing => "creating the twins at the target and the movers".to_owned(),
        Phase::Copying => match cold(of).count() {
            0 => "the data is copied while its pods run".to_owned(),
            _ => "what can be copied while its pods run is copied".to_owned(),
        },
        Phase::Ready => ready(of).to_owned(),
        Phase::Draining => {
            "no new pod starts with the volumes; waiting for those that use them to end".to_owned()
        }
        Phase::Finishing => "copying and comparing the rest".to_owned(),
        Phase::Committing => "the volumes are at the target; their claims are being bound to them".to_owned(),
        Phase::Retaining if of.spec.recover_source => {
            "the recovery of the source is requested, and begins if the target is lost".to_owned()
        }
        Phase::Retaining | Phase::Done => {
            let downtime = status.downtime.and_then(|downtime| downtime.actual);
            let kept = status.retained_until.filter(|_| phase == Phase::Retaining);
            let away = downtime.map(|downtime| format!("; they were unavailable for {downtime}"));
            let kept = kept.map(|until| format!("; the source is kept until {}", until.0));
            let more: String = [away, kept].into_iter().flatten().collect();
            format!("the volumes have moved{more}")
        }
        Phase::Returning => format!(
            "rolling back: pods get their volumes where they were{}",
            because(of)
        ),
        Phase::Recovering => {
            "the target is lost: the volumes are restored where they were, as they were at the commit"
                .to_owned()
        }
        Phase::Recovered => {
            "the target was lost; the volumes are where they were, as they were at the commit".to_owned()
        }
        Phase::Cancelled => "it was cancelled; the volumes are where they were".to_owned(),
        Phase::Failed if why(of) == Some(BackReason::SourceGone) => {
            format!("it has failed: {}", RollbackReason::SourceGone)
        }
        Phase::Failed => {
            // The findings of the preflight are listed.
            let found = status.preflight.is_some_and(|found| !found.is_empty());
            let why = refusal(of).filter(|_| !found);
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            format!("it has failed; the volumes are where they were{why}")
        }
    }
}

fn ready(of: &VolumeMove) -> &'static str {
    if of.stopped_by().is_some() {
        return "little is left to copy, but each cut-over took too long: the condition Stalled says what to do";
    }
    let is_asked = of.spec.cutover.mode == CutoverMode::Auto || of.spec.cutover.requested;
    match (is_asked, of.spec.quiesce.mode) {
        (false, _) => "little is left to copy: liqo-csi move cutover starts the cut-over",
        (true, QuiesceMode::Wait) => "little is left to copy: stop the pods that use the volumes",
        (true, QuiesceMode::Evict) => "little is left to copy: the pods are evicted",
    }
}

/// The claims that cannot be copied while their pods run, and why.
pub(super) fn cold(of: &VolumeMove) -> impl Iterator<Item = (&str, &str)> {
    let claims = of.status.iter().flat_map(|status| &status.claims);
    claims.filter_map(|claim| Some((claim.name.as_str(), claim.cold.as_deref()?)))
}

/// Why the move rolls back.
fn because(of: &VolumeMove) -> String {
    let stage = of.status.as_ref().and_then(|status| status.stage.as_ref());
    match stage.map(Stage::try_from) {
        Some(Ok(Stage::Rollback { why, .. })) => format!(": {why}"),
        _ => String::new(),
    }
}

/// How many bytes of all claims are copied, if that is known for each.
pub(super) fn copied(of: &VolumeMove) -> Option<Progress> {
    let claims = &of.status.as_ref()?.claims;
    let each: Option<Vec<_>> = claims.iter().map(|claim| claim.bytes).collect();
    let each = each.filter(|each| !each.is_empty())?;
    Some(each.iter().fold(Progress::default(), |sum, one| Progress {
        total: sum.total + one.total,
        done: sum.done + one.done,
        sent: sum.sent + one.sent,
    }))
}

/// Its line in the table.
pub(super) fn row(of: &VolumeMove) -> [String; 7] {
    let status = of.status.clone().unwrap_or_default();
    let target = of.spec.target.node_name.clone();
    let target = target.or_else(|| of.spec.target.cluster.clone());
    let share = |progress: Progress| match progress.total {
        0 => "100 %".to_owned(),
        total => format!("{} %", progress.done.saturating_mul(100) / total),
    };
    let downtime = status.downtime.and_then(|downtime| downtime.actual);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        of.name_any(),
        or_none(status.phase),
        of.spec.claims.join(","),
        or_none(target),
        or_none(copied(of).map(share)),
        or_none(status.time_left),
        or_none(downtime),
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    /// The move `shop/data-1` to the cluster milan.
    pub(in crate::cli::moves) fn with(spec: &Value, status: &Value) -> VolumeMove {
        let mut whole = json!({"claims": ["data"], "target": {"cluster": "milan"}});
        for (key, value) in spec.as_object().unwrap() {
            whole[key] = value.clone();
        }
        from_value(json!({
            "apiVersion": "storage.liqo.io/v1alpha1", "kind": "VolumeMove",
            "metadata": {"name": "data-1", "namespace": "shop"}, "spec": whole, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn each_outcome_of_a_move_has_its_exit_code() {
        let refused = json!({"name": "Failed"});
        for (spec, status, expected) in [
            (json!({}), json!({"phase": "Retaining"}), Some(0)),
            (
                json!({"recoverSource": true}),
                json!({"phase": "Retaining"}),
                None,
            ),
            (
                json!({"recoverSource": true}),
                json!({"phase": "Recovered"}),
                Some(3),
            ),
            (json!({}), json!({"phase": "Done"}), Some(0)),
            (json!({}), json!({"phase": "Copying"}), None),
            (json!({}), json!({"phase": "Cancelled"}), Some(3)),
            (json!({}), json!({"phase": "Failed"}), Some(4)),
            (json!({}), json!({"phase": "Recovered"}), Some(3)),
            (json!({}), json!({"phase": "Recovering"}), None),
            (
                json!({}),
                json!({"phase": "Failed", "stage": refused, "preflight": ["it is there already"]}),
                Some(2),
            ),
            (
                json!({}),
                json!({"phase": "Failed", "preflight": [], "conditions": [{
                    "type": "Checked", "status": "False", "reason": "Refused", "message": "the target is too small",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }]}),
                Some(2),
            ),
            (
                json!({"dryRun": true}),
                json!({"phase": "Checking", "preflight": []}),
                Some(0),
            ),
            (json!({"dryRun": true}), json!({"phase": "Checking"}), None),
            (
                json!({"dryRun": true}),
                json!({"phase": "Checking", "preflight": ["no room"]}),
                Some(2),
            ),
        ] {
            let ended = end(&with(&spec, &status));
            assert_eq!(ended.map(End::code), expected, "{spec} {status}");
        }
    }

    #[test]
    fn copying_in_use_is_reported_only_if_it_happens() {
        let copying = |claim: Value| with(&json!({}), &json!({"phase": "Copying", "claims": [claim]}));
        let warm = copying(json!({"name": "data"}));
        assert_eq!(cold(&warm).count(), 0);
        assert!(sentence(&warm).contains("while its pods run"));
        let away = copying(json!({"name": "data", "cold": "it is of mode Block"}));
        assert_eq!(cold(&away).collect::<Vec<_>>(), [("data", "it is of mode Block")]);
        assert!(sentence(&away).starts_with("what can be copied"));
    }

    #[test]
    fn a_line_sums_up_all_claims() {
        let claim =
            |name: &str, done: i64| json!({"name": name, "bytes": {"total": 100, "done": done, "sent": 0}});
        let of = with(
            &json!({}),
            &json!({"phase": "Copying", "claims": [claim("data", 100), claim("log", 50)], "timeLeft": "5m"}),
        );
        let expected = ["data-1", "Copying", "data", "milan", "75 %", "5m", "-"];
        assert_eq!(row(&of), expected);
        let unknown = with(
            &json!({}),
            &json!({"phase": "Copying", "claims": [{"name": "data"}]}),
        );
        assert_eq!(row(&unknown)[4], "-");
    }

    #[test]
    fn the_output_says_what_the_move_waits_for() {
        for (spec, part) in [
            (json!({"cutover": {"mode": "Manual"}}), "move cutover"),
            (json!({}), "stop the pods"),
            (json!({"quiesce": {"mode": "Evict"}}), "are evicted"),
            (json!({"paused": true}), "move resume"),
        ] {
            let said = sentence(&with(&spec, &json!({"phase": "Ready"})));
            assert!(said.contains(part), "{said}");
        }
    }
}
