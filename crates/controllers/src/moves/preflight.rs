//! Finds everything that blocks a move, and plans its volumes, before anything is done. The result is one
//! write of the status; nothing else is changed here.
//!
//! `target` finds where the volumes shall be, `claims` where they are, `users` which pods use them, `places` whether
//! these could run at the target. The dry runs of the twins and movers are made by the code that creates them.

mod claims;
mod places;
mod target;
mod users;

use futures::future::try_join_all;
use itertools::Itertools;
use jiff::Timestamp;

pub(super) use self::claims::snapshots_left_behind;
use self::claims::{choose_nodes, read_claim};
use super::{Context, follow::FollowError, status::checked, volumes::side};
use crate::{
    api::volume_move::{ClaimStatus, MoveRequest, PlannedClaim, VolumeMove, VolumeMoveStatus},
    gate::{ClaimObjects, GateError, MovedVolume, Records},
    movers::{MoveHelpers, TargetError, target_class},
    placement::moving::{ClaimNow, HeldBy, Live, Lock, Quiesce, Serves, SourceTwin, TargetTwin, VolumeNow},
    twin::Policy,
    volume::moving::{SourceMark, VolumeMark},
};

/// The status with everything that blocks the move or, if nothing does, with its plan.
pub(super) async fn preflight<H: MoveHelpers>(
    context: &Context<'_, H>,
    of: &VolumeMove,
) -> Result<VolumeMoveStatus, FollowError> {
    let request = MoveRequest::try_from(of)?;
    let policy = Policy {
        allowed_classes: context.settings.allowed_classes.clone(),
        namespace: context.settings.namespace.clone(),
    };
    let mut findings = Vec::new();
    if let Some(movers) = &context.settings.movers {
        findings.extend(movers.excess(&request.mover));
    }
    let target = match target::find(context, &request).await? {
        Ok(target) => Some(target),
        Err(found) => {
            findings.extend(found);
            None
        }
    };
    let claims = request.claims.iter().map(|name| read_claim(context.home, name));
    let named = target.as_ref().zip(request.storage_class.as_ref());
    let missing = named.and_then(|(target, class)| target::class_missing(context.home, target, class));
    let has_class = missing.is_none();
    findings.extend(missing);
    let mut plan: Vec<(PlannedClaim, ClaimStatus)> = Vec::new();
    let mut remarks = String::new();
    for read in try_join_all(claims).await? {
        match (read, &target) {
            (Err(found), _) => findings.extend(found),
            (Ok(source), Some(target)) => {
                remarks.extend(source.policy_note(target));
                let (size, class, nodes) = (source.size(), source.class(), source.nodes(context).await);
                match source.planned(context, &request, target) {
                    Ok(planned) => {
                        let mut status = planned.to_status();
                        status.size = size;
                        if let Some(source) = &mut status.source {
                            (source.storage_class_name, source.nodes) = (class, nodes);
                        }
                        plan.push((planned, status));
                    }
                    Err(found) => findings.push(found),
                }
            }
            (Ok(_), None) => {}
        }
    }
    let mut sources: Vec<_> = plan
        .iter_mut()
        .filter_map(|(_, status)| Some(&mut status.source.as_mut()?.nodes))
        .collect();
    choose_nodes(&mut sources);
    for (planned, status) in &mut plan {
        let moved = moved(context, of, planned)?;
        let objects = moved.observe().await?;
        let mut blocking = object_findings(planned, &request, objects);
        let name = &planned.claim.name;
        let class = match target_class(&moved, &policy, &request).await {
            // The unreadable object is among the findings already.
            Err(GateError::Api(_)) if !blocking.is_empty() => None,
            class => class?,
        };
        match class {
            Some(Ok(class)) => {
                if let Some(target) = &mut status.target {
                    target.storage_class_name = Some(class);
                }
            }
            Some(Err(why @ TargetError::NotAllowed { .. })) => {
                blocking.push(format!("the claim {name}: {why}"));
            }
            // The dry run of the twin reports it, too.
            Some(Err(_)) | None => {}
        }
        if blocking.is_empty() && has_class {
            // The dry run shows whether the cluster accepts the twin and the mover.
            let refused = context.helpers.obstacles(&moved, &request).await?;
            findings.extend(refused.iter().map(|why| format!("the claim {name}: {why}")));
            let cold = context.helpers.cold(&moved, &request).await?;
            status.cold = cold.map(|why| why.to_string());
        }
        findings.extend(blocking);
    }
    let (plan, statuses): (Vec<PlannedClaim>, Vec<ClaimStatus>) = plan.into_iter().unzip();
    let (of_users, notes) = users::findings(context.home, &request, target.as_ref()).await?;
    findings.extend(of_users);
    remarks.extend(notes.iter().map(|note| format!("; {note}")));
    let sources = plan.iter().map(|planned| moved(context, of, planned));
    let sources: Vec<MovedVolume> = sources.try_collect()?;
    findings.extend(snapshots_left_behind(context.home, &request, &sources, false).await?);
    let findings: Vec<String> = findings.into_iter().unique().collect();
    Ok(checked(of, &findings, statuses, &remarks, Timestamp::now()))
}

fn moved<H>(
    context: &Context<'_, H>,
    of: &VolumeMove,
    planned: &PlannedClaim,
) -> Result<MovedVolume, FollowError> {
    Ok(MovedVolume {
        home: context.home.clone(),
        by: of.move_uid()?,
        claim: planned.claim.clone(),
        source: side(context.home, context.registry, &planned.source),
        target: side(context.home, context.registry, &planned.target),
        records: Records::Nothing,
        mover_node: None,
        recovers: false,
        target_out_of_service: false,
    })
}

/// What blocks the move according to the objects of a claim.
fn object_findings(planned: &PlannedClaim, request: &MoveRequest, objects: ClaimObjects) -> Vec<String> {
    let name = &planned.claim.name;
    let mut found = Vec::new();
    let mut find = |what: String| found.push(format!("the claim {name}: {what}"));
    if let ClaimNow::Exists { lock, changing, .. } = objects.claim {
        if let Lock::Theirs { by, counts: true } = lock {
            find(format!("the VolumeMove with the uid {by} is moving it"));
        }
        if changing {
            find("its size or its attributes are being changed: wait until that is done".to_owned());
        }
    }
    if let VolumeNow::Exists(volume) = objects.volume {
        if let Some(VolumeMark::Gated(note)) = &volume.mark {
            let by = &note.by;
            find(format!(
                "its PersistentVolume is gated by the VolumeMove with the uid {by}"
            ));
        } else if volume.held_by != HeldBy::Claim || volume.serves != Serves::Source || !volume.bound {
            find("its PersistentVolume is not bound to it".to_owned());
        }
        if volume.deleting {
            find("its PersistentVolume is being deleted".to_owned());
        }
    }
    match objects.source {
        Live::Unknown(why) => find(format!("its twin cannot be read: {why}")),
        Live::Known(SourceTwin::Gone { .. } | SourceTwin::Recovered) => {
            find("its twin does not exist".to_owned());
        }
        Live::Known(SourceTwin::Exists { deleting: true, .. }) => {
            find("its twin is being deleted".to_owned());
        }
        Live::Known(SourceTwin::Exists {
            mark: Some(SourceMark::Superseded { epoch, .. }),
            ..
        }) => find(format!(
            "its data has moved to epoch {epoch}: its PersistentVolume is from before that move, for example from a backup"
        )),
        Live::Known(SourceTwin::Exists { .. }) => {}
    }
    match objects.target {
        Live::Unknown(why) => find(format!("it is not known whether its new twin exists: {why}")),
        Live::Known(TargetTwin::Gone) => {
            find("the cluster of the target is not declared any more".to_owned());
        }
        Live::Known(TargetTwin::Foreign(what)) => find(format!("the name of its new twin is taken: {what}")),
        Live::Known(TargetTwin::Exists { .. } | TargetTwin::TakesName(_) | TargetTwin::Superseded) => {
            find("a twin of its next epoch exists already, which another move has left".to_owned());
        }
        Live::Known(TargetTwin::Absent) => {}
    }
    match objects.users {
        Live::Unknown(why) => find(format!("it is not known which pods use it: {why}")),
        Live::Known(users) => {
            if let (Some(set), Quiesce::Wait) = (users.deletes_claim, request.quiesce) {
                find(format!(
                    "{set} deletes it when it is scaled down: set whenScaled to Retain, or have its pods evicted"
                ));
            }
        }
    }
    found
}
