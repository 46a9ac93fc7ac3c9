//! The pods that use the claims of a move: whether they can be evicted, whether a controller recreates them then, and
//! whether they could run at the target, with all volumes that they mount.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudgetStatus};
use kube::ResourceExt;

use super::{
    places::{self, Unfit},
    target::{ApiResult, TargetSite},
};
use crate::{
    api::volume_move::MoveRequest,
    cluster::{
        Cluster, Eviction, facts,
        slim::{claims_of, has_ended, is_ephemeral_claim},
    },
    moves::{
        evict::{may_be_evicted, over_budget, stays_away},
        reachable::volume_of,
    },
    placement::moving::Quiesce,
    volume::DRIVER_NAME,
};

/// What blocks the move according to the pods that use the claims; and what users have to know of these pods.
pub(super) async fn findings(
    home: &Cluster,
    request: &MoveRequest,
    target: Option<&TargetSite>,
) -> ApiResult<(Vec<String>, Vec<String>)> {
    let Some(namespace) = request.claims.first().map(|claim| claim.namespace.as_str()) else {
        return Ok((Vec::new(), Vec::new()));
    };
    let moved: BTreeSet<&str> = request.claims.iter().map(|claim| claim.name.as_str()).collect();
    let uses = |pod: &Pod| !has_ended(pod) && claims_of(pod).iter().any(|one| moved.contains(one.as_str()));
    let pods = home.within::<Pod>(namespace).find(uses).await?;
    let mut findings = Vec::new();
    if request.quiesce == Quiesce::Evict {
        let evictions = pods.iter().map(|pod| eviction(home, namespace, pod));
        findings.extend(try_join_all(evictions).await?.into_iter().flatten());
        // If all its pods are healthy, as they may be by the time of the evictions.
        let most = |budget: &PodDisruptionBudgetStatus| budget.expected_pods - budget.desired_healthy;
        findings.extend(over_budget(home, namespace, &pods, most).await?);
    }
    let mut notes = Vec::new();
    if let Some(target) = target {
        let Unfit { certain, possible } = places::unfit(home, &pods, target).await?;
        if request.quiesce == Quiesce::Evict {
            let way_out = "change its template, or the offloading strategy, and restart it first, or stop it yourself, with \
                           quiesce.mode Wait";
            findings.extend(certain.iter().map(|why| format!("{why}: {way_out}")));
        } else {
            let way_out = "change its template before you start it again";
            notes.extend(certain.iter().map(|why| format!("{why}: {way_out}")));
        }
        notes.extend(
            possible
                .iter()
                .map(|why| format!("{why}, and new pods may not either")),
        );
    }
    let mut others: BTreeSet<(String, String, bool)> = BTreeSet::new();
    for pod in &pods {
        let names = claims_of(pod)
            .into_iter()
            .filter(|name| !moved.contains(name.as_str()));
        others.extend(names.map(|name| {
            let is_ephemeral = is_ephemeral_claim(pod, &name);
            (name, pod.name_any(), is_ephemeral)
        }));
    }
    let siblings = others
        .iter()
        .map(|(claim, pod, is_ephemeral)| sibling(home, namespace, claim, pod, *is_ephemeral, target));
    findings.extend(try_join_all(siblings).await?.into_iter().flatten());
    Ok((findings, notes))
}

/// What blocks the eviction of a pod.
async fn eviction(home: &Cluster, namespace: &str, pod: &Pod) -> ApiResult<Option<String>> {
    let name = pod.name_any();
    if let Some(why) = stays_away(pod) {
        return Ok(Some(format!(
            "the pod {name} uses a claim, and must not be evicted, because {why}: stop it yourself, with quiesce.mode Wait"
        )));
    }
    if !may_be_evicted(pod) {
        return Ok(None);
    }
    let uid = pod.uid().unwrap_or_default();
    Ok(match home.evict(namespace, &name, &uid, true).await? {
        Eviction::Accepted => None,
        Eviction::Refused(why) => Some(format!("the pod {name} cannot be evicted now: {why}")),
    })
}

/// What blocks the move because another claim of a pod is not accessible at the target.
async fn sibling(
    home: &Cluster,
    namespace: &str,
    claim: &str,
    pod: &str,
    is_ephemeral: bool,
    target: Option<&TargetSite>,
) -> ApiResult<Option<String>> {
    if is_ephemeral && matches!(target, Some(TargetSite::Home(_))) {
        // The claim is deleted with this pod; the next pod gets a new one on its node.
        return Ok(None);
    }
    let Some(volume) = volume_of(home, namespace, claim).await? else {
        return Ok(None);
    };
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    let is_ours = csi.is_some_and(|csi| csi.driver == DRIVER_NAME);
    let stays = match (facts::affinity(&volume), target) {
        (None, _) | (_, None) => false,
        (Some(affinity), Some(target)) => !super::target::nodes(home, target)
            .iter()
            .any(|node| affinity.admits(node)),
    };
    Ok(stays.then(|| {
        let way_out = if is_ephemeral {
            ": it is a generic ephemeral volume, which the pod cannot have there: use a claim that you create yourself"
        } else if is_ours {
            ": move it together with the others"
        } else {
            ""
        };
        format!("the pod {pod} also mounts the claim {claim}, which is not accessible at the target{way_out}")
    }))
}
