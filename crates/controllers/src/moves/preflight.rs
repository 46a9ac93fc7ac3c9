//! What speaks against a move, all of it at once, and which volumes it is about: looked for before
//! anything is done, and noted in the status in one write. Nothing here changes anything.
//!
//! Where the volumes are to be is found in `target`, where they are in `claims`, who uses them in
//! `users`. Whether the API servers would take twins and movers is asked by those who make them.

mod claims;
mod target;
mod users;

use futures::future::try_join_all;
use jiff::Timestamp;

use self::claims::{choose_nodes, look_at};
use super::{Context, follow::Trouble, status::checked, volumes::side};
use crate::{
    api::volume_move::{ClaimStatus, MoveRequest, PlannedClaim, VolumeMove, VolumeMoveStatus},
    gate::{ClaimObjects, GateError, MovedVolume, Records},
    movers::{MoveHelpers, TargetError, target_class},
    placement::moving::{ClaimNow, HeldBy, Live, Lock, Quiesce, Serves, SourceTwin, TargetTwin, VolumeNow},
    twin::Policy,
    volume::moving::{SourceMark, VolumeMark},
};

/// The status with everything that speaks against the move; or with its plan, if nothing does.
pub(super) async fn preflight<H: MoveHelpers>(
    context: &Context<'_, H>,
    of: &VolumeMove,
) -> Result<VolumeMoveStatus, Trouble> {
    let request = MoveRequest::try_from(of)?;
    let policy = Policy {
        allowed_classes: context.settings.allowed_classes.clone(),
        namespace: context.settings.namespace.clone(),
    };
    let mut findings = Vec::new();
    let whereto = match target::find(context, &request).await? {
        Ok(whereto) => Some(whereto),
        Err(found) => {
            findings.extend(found);
            None
        }
    };
    let looks = request.claims.iter().map(|name| look_at(context.home, name));
    let named = whereto.as_ref().zip(request.storage_class.as_ref());
    let missing = named.and_then(|(whereto, class)| target::class_missing(context.home, whereto, class));
    let has_class = missing.is_none();
    findings.extend(missing);
    let mut plan: Vec<(PlannedClaim, ClaimStatus)> = Vec::new();
    for look in try_join_all(looks).await? {
        match (look, &whereto) {
            (Err(found), _) => findings.extend(found),
            (Ok(source), Some(whereto)) => {
                let (size, class, nodes) = (source.size(), source.class(), source.nodes(context).await);
                match source.planned(context, &request, whereto) {
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
        let mut against = of_objects(planned, &request, objects);
        let name = &planned.claim.name;
        let class = match target_class(&moved, &policy, &request).await {
            // What cannot be read is among the findings already.
            Err(GateError::Api(_)) if !against.is_empty() => None,
            class => class?,
        };
        match class {
            Some(Ok(class)) => {
                if let Some(target) = &mut status.target {
                    target.storage_class_name = Some(class);
                }
            }
            Some(Err(why @ TargetError::NotAllowed { .. })) => {
                against.push(format!("the claim {name}: {why}"));
            }
            // Whoever tries to make the twin says it, too.
            Some(Err(_)) | None => {}
        }
        if against.is_empty() && has_class {
            // Who cannot have the twin or a mover says so to a trial of it.
            let refused = context.helpers.obstacles(&moved, &request).await?;
            findings.extend(refused.iter().map(|why| format!("the claim {name}: {why}")));
            let cold = context.helpers.cold(&moved, &request).await?;
            status.cold = cold.map(|why| why.to_string());
        }
        findings.extend(against);
    }
    let (plan, statuses): (Vec<PlannedClaim>, Vec<ClaimStatus>) = plan.into_iter().unzip();
    findings.extend(users::findings(context.home, &request, whereto.as_ref()).await?);
    findings.extend(claims::snapshots_left_behind(context.home, &request, &plan).await?);
    findings.dedup();
    Ok(checked(of, &findings, statuses, Timestamp::now()))
}

fn moved<H>(
    context: &Context<'_, H>,
    of: &VolumeMove,
    planned: &PlannedClaim,
) -> Result<MovedVolume, Trouble> {
    Ok(MovedVolume {
        home: context.home.clone(),
        by: of.move_uid()?,
        claim: planned.claim.clone(),
        source: side(context.home, context.registry, &planned.source),
        target: side(context.home, context.registry, &planned.target),
        records: Records::Nothing,
        mover_node: None,
        recovers: false,
        target_off: false,
    })
}

/// What the objects of a claim have against it.
fn of_objects(planned: &PlannedClaim, request: &MoveRequest, objects: ClaimObjects) -> Vec<String> {
    let name = &planned.claim.name;
    let mut found = Vec::new();
    let mut find = |what: String| found.push(format!("the claim {name}: {what}"));
    if let ClaimNow::There { lock, changing, .. } = objects.claim {
        if let Lock::Theirs { by, counts: true } = lock {
            find(format!("the VolumeMove with the uid {by} is moving it"));
        }
        if changing {
            find("its size or its attributes are being changed: wait until that is done".to_owned());
        }
    }
    if let VolumeNow::There(volume) = objects.volume {
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
        Live::Silent(why) => find(format!("its twin cannot be read: {why}")),
        Live::Known(SourceTwin::Gone | SourceTwin::Recovered) => find("its twin is gone".to_owned()),
        Live::Known(SourceTwin::There { deleting: true, .. }) => find("its twin is being deleted".to_owned()),
        Live::Known(SourceTwin::There {
            mark: Some(SourceMark::Superseded { epoch, .. }),
            ..
        }) => find(format!(
            "its data is elsewhere by now, in epoch {epoch}: the cluster was restored from a backup"
        )),
        Live::Known(SourceTwin::There { .. }) => {}
    }
    match objects.target {
        Live::Silent(why) => find(format!("the place of its new twin cannot be read: {why}")),
        Live::Known(TargetTwin::Gone) => {
            find("the cluster of the target is not declared any more".to_owned());
        }
        Live::Known(TargetTwin::Foreign(what)) => find(format!("the place of its new twin is taken: {what}")),
        Live::Known(TargetTwin::There { .. } | TargetTwin::TakesName(_) | TargetTwin::Superseded) => {
            find("there is a twin of its next epoch already, which another move has left".to_owned());
        }
        Live::Known(TargetTwin::Absent) => {}
    }
    match objects.users {
        Live::Silent(why) => find(format!("it is not known who uses it: {why}")),
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
