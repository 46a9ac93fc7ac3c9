//! Emits the events of a move, on the `VolumeMove` and on its claims: for each condition that becomes
//! True or False, and for its end.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition as StatusCondition;

use crate::{
    api::volume_move::{BackReason, StageName, VolumeMove},
    cluster::events::{Events, Weight},
    placement::moving::RollbackReason,
    volume::{ClaimMark, moving::Condition},
};

/// An event to emit.
struct MoveEvent {
    weight: Weight,
    reason: &'static str,
    note: String,
}

/// Emits events for the changes of a write of the status.
pub(super) async fn emit_events(events: &Events, before: &VolumeMove, after: &VolumeMove) {
    for MoveEvent { weight, reason, note } in events_of(before, after) {
        tracing::info!(
            namespace = after.metadata.namespace,
            name = after.metadata.name,
            reason,
            "{note}"
        );
        events.publish_on_move(after, weight, reason, &note).await;
        for claim in claims(after) {
            events.publish_on_claim(&claim, weight, reason, &note).await;
        }
    }
}

fn claims(of: &VolumeMove) -> Vec<ClaimMark> {
    let namespace = of.metadata.namespace.clone().unwrap_or_default();
    let claims = of.status.iter().flat_map(|status| &status.claims);
    let marks = claims.filter_map(|claim| {
        Some(ClaimMark {
            namespace: namespace.clone(),
            name: claim.name.clone(),
            uid: claim.uid.clone()?,
        })
    });
    marks.collect()
}

fn events_of(before: &VolumeMove, after: &VolumeMove) -> Vec<MoveEvent> {
    let known = conditions(before);
    let changed = conditions(after).iter().filter(|condition| {
        let before = known.iter().find(|one| one.type_ == condition.type_);
        before.map(|one| &one.status) != Some(&condition.status)
    });
    let mut found: Vec<MoveEvent> = changed.filter_map(condition_event).collect();
    let (old, new) = (stage(before), stage(after));
    if old != new {
        found.extend(stage_event(after, new));
    }
    found
}

fn conditions(of: &VolumeMove) -> &[StatusCondition] {
    of.status.as_ref().map_or(&[], |status| &status.conditions)
}

fn stage(of: &VolumeMove) -> Option<StageName> {
    Some(of.status.as_ref()?.stage.as_ref()?.name)
}

fn condition_event(condition: &StatusCondition) -> Option<MoveEvent> {
    let kind: Condition = condition.type_.parse().ok()?;
    let (weight, reason) = match (kind, condition.status == "True") {
        (Condition::Checked, true) => (Weight::Normal, "MoveChecked"),
        (Condition::Checked, false) => (Weight::Warning, "MoveRefused"),
        (Condition::Converged, true) => (Weight::Normal, "MoveConverged"),
        (Condition::Gated, true) => (Weight::Normal, "MoveGated"),
        (Condition::Gated, false) => (Weight::Normal, "MoveUngated"),
        (Condition::Drained, true) => (Weight::Normal, "MoveDrained"),
        (Condition::Verified, true) => (Weight::Normal, "MoveVerified"),
        (Condition::Verified, false) if condition.reason == "Differs" => (Weight::Warning, "MoveDiffers"),
        (Condition::Committed, true) => (Weight::Normal, "MoveCommitted"),
        (Condition::SourceReleased, true) => (Weight::Normal, "MoveSourceReleased"),
        (Condition::Stalled, true) => (Weight::Warning, "MoveStalled"),
        (
            Condition::Converged
            | Condition::Drained
            | Condition::Verified
            | Condition::Committed
            | Condition::SourceReleased
            | Condition::Stalled,
            false,
        ) => return None,
    };
    Some(MoveEvent {
        weight,
        reason,
        note: condition.message.clone(),
    })
}

fn stage_event(of: &VolumeMove, stage: Option<StageName>) -> Option<MoveEvent> {
    let why = of
        .status
        .as_ref()
        .and_then(|status| status.stage.as_ref()?.why.as_ref());
    let (weight, reason, note) = match stage? {
        StageName::Returning => {
            let cause = why?;
            // The condition Checked reports the reason.
            if cause.reason == BackReason::Refused {
                return None;
            }
            let weight = if cause.reason == BackReason::Cancelled {
                Weight::Normal
            } else {
                Weight::Warning
            };
            let details = if cause.details.is_empty() {
                String::new()
            } else {
                format!(" ({})", cause.details.join(", "))
            };
            let note = format!(
                "the move is rolling back to the source: {:?}{details}",
                cause.reason
            );
            (weight, "MoveRollingBack", note)
        }
        StageName::Recovering => {
            let lost = &of.status.as_ref()?.lossy;
            let note = format!(
                "the target is lost: the volumes are restored at the source, as they were at the commit. Lost: {}",
                lost.join("; ")
            );
            (Weight::Warning, "MoveRecovers", note)
        }
        StageName::Recovered => {
            let note = "the volumes are at the source, as they were at the commit".to_owned();
            (Weight::Normal, "MoveRecovered", note)
        }
        StageName::Done => (Weight::Normal, "MoveDone", "the move is done".to_owned()),
        StageName::Cancelled => {
            let note = "the move was cancelled: the volumes are at the source".to_owned();
            (Weight::Normal, "MoveCancelled", note)
        }
        StageName::Failed => {
            let note = match why {
                Some(cause) if cause.reason == BackReason::SourceGone => {
                    format!("the move has failed: {}", RollbackReason::SourceGone)
                }
                _ => "the move has failed: the volumes are at the source".to_owned(),
            };
            (Weight::Warning, "MoveFailed", note)
        }
        StageName::Checking
        | StageName::Preparing
        | StageName::Copying
        | StageName::Gating
        | StageName::Draining
        | StageName::Finishing
        | StageName::Verifying
        | StageName::Committed
        | StageName::Retaining => return None,
    };
    Some(MoveEvent { weight, reason, note })
}
