//! What users hear of a move: each condition that becomes so, or no longer is, and its end; on the
//! `VolumeMove` and on its claims.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition as Said;

use crate::{
    api::volume_move::{BackReason, StageName, VolumeMove},
    cluster::events::{Events, Weight},
    volume::{ClaimMark, moving::Condition},
};

/// Something to tell.
struct News {
    weight: Weight,
    reason: &'static str,
    note: String,
}

/// Tells what a write of the status has changed.
pub(super) async fn tell(events: &Events, before: &VolumeMove, after: &VolumeMove) {
    for News { weight, reason, note } in news(before, after) {
        tracing::info!(
            namespace = after.metadata.namespace,
            name = after.metadata.name,
            reason,
            "{note}"
        );
        events.tell_move(after, weight, reason, &note).await;
        for claim in claims(after) {
            events.tell(&claim, weight, reason, &note).await;
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

fn news(before: &VolumeMove, after: &VolumeMove) -> Vec<News> {
    let known = conditions(before);
    let changed = conditions(after).iter().filter(|said| {
        let before = known.iter().find(|one| one.type_ == said.type_);
        before.map(|one| &one.status) != Some(&said.status)
    });
    let mut news: Vec<News> = changed.filter_map(of_condition).collect();
    let (old, new) = (stage(before), stage(after));
    if old != new {
        news.extend(of_stage(after, new));
    }
    news
}

fn conditions(of: &VolumeMove) -> &[Said] {
    of.status.as_ref().map_or(&[], |status| &status.conditions)
}

fn stage(of: &VolumeMove) -> Option<StageName> {
    Some(of.status.as_ref()?.stage.as_ref()?.name)
}

fn of_condition(said: &Said) -> Option<News> {
    let condition: Condition = said.type_.parse().ok()?;
    let (weight, reason) = match (condition, said.status == "True") {
        (Condition::Checked, true) => (Weight::Normal, "MoveChecked"),
        (Condition::Checked, false) => (Weight::Warning, "MoveRefused"),
        (Condition::Converged, true) => (Weight::Normal, "MoveConverged"),
        (Condition::Gated, true) => (Weight::Normal, "MoveGated"),
        (Condition::Gated, false) => (Weight::Normal, "MoveUngated"),
        (Condition::Drained, true) => (Weight::Normal, "MoveDrained"),
        (Condition::Verified, true) => (Weight::Normal, "MoveVerified"),
        (Condition::Verified, false) if said.reason == "Differs" => (Weight::Warning, "MoveDiffers"),
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
    Some(News {
        weight,
        reason,
        note: said.message.clone(),
    })
}

fn of_stage(of: &VolumeMove, stage: Option<StageName>) -> Option<News> {
    let why = of
        .status
        .as_ref()
        .and_then(|status| status.stage.as_ref()?.why.as_ref());
    let (weight, reason, note) = match stage? {
        StageName::Returning => {
            let cause = why?;
            // What was refused is told by the condition.
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
                "the claims are given back where they were: {:?}{details}",
                cause.reason
            );
            (weight, "MoveReturns", note)
        }
        StageName::Recovering => {
            let lost = &of.status.as_ref()?.lossy;
            let note = format!(
                "the target is lost: the claims are given back where they were, as they were at the commit. Lost: {}",
                lost.join("; ")
            );
            (Weight::Warning, "MoveRecovers", note)
        }
        StageName::Recovered => {
            let note = "the claims have their volumes where they were, as they were at the commit".to_owned();
            (Weight::Normal, "MoveRecovered", note)
        }
        StageName::Done => (Weight::Normal, "MoveDone", "the move is done".to_owned()),
        StageName::Cancelled => {
            let note = "the move was cancelled: the volumes are where they were".to_owned();
            (Weight::Normal, "MoveCancelled", note)
        }
        StageName::Failed => {
            let note = "the move has failed: the volumes are where they were".to_owned();
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
    Some(News { weight, reason, note })
}
