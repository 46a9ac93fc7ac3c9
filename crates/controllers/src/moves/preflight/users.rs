//! The pods that use the claims of a move: whether a controller recreates them after an eviction, and
//! whether all volumes that they mount are accessible from one node then.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt;

use super::target::{ApiResult, TargetSite};
use crate::{
    api::volume_move::MoveRequest,
    cluster::{
        Cluster, Eviction, facts,
        slim::{claims_of, has_ended, is_ephemeral_claim},
    },
    placement::moving::Quiesce,
    volume::DRIVER_NAME,
};

/// What blocks the move according to the pods that use the claims.
pub(super) async fn findings(
    home: &Cluster,
    request: &MoveRequest,
    target: Option<&TargetSite>,
) -> ApiResult<Vec<String>> {
    let Some(namespace) = request.claims.first().map(|claim| claim.namespace.as_str()) else {
        return Ok(Vec::new());
    };
    let moved: BTreeSet<&str> = request.claims.iter().map(|claim| claim.name.as_str()).collect();
    let uses = |pod: &Pod| !has_ended(pod) && claims_of(pod).iter().any(|one| moved.contains(one.as_str()));
    let pods = home.within::<Pod>(namespace).find(uses).await?;
    let mut findings = Vec::new();
    if request.quiesce == Quiesce::Evict {
        let evictions = pods.iter().map(|pod| eviction(home, namespace, pod));
        findings.extend(try_join_all(evictions).await?.into_iter().flatten());
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
    Ok(findings)
}

/// What blocks the eviction of a pod.
async fn eviction(home: &Cluster, namespace: &str, pod: &Pod) -> ApiResult<Option<String>> {
    let name = pod.name_any();
    let controller = pod
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true));
    let stays_away = match controller {
        None => Some("no controller would create it again".to_owned()),
        Some(owner) if owner.kind == "Job" => {
            Some(format!("it would count as a failure of the Job {}", owner.name))
        }
        Some(_) => None,
    };
    if let Some(why) = stays_away {
        return Ok(Some(format!(
            "the pod {name} uses a claim, and must not be evicted, because {why}: stop it yourself, with quiesce.mode Wait"
        )));
    }
    let runs = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    if !runs || pod.metadata.deletion_timestamp.is_some() {
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
    let Some(found) = home.within::<PersistentVolumeClaim>(namespace).get(claim).await? else {
        return Ok(None);
    };
    let Some(volume) = found
        .spec
        .and_then(|spec| spec.volume_name)
        .filter(|name| !name.is_empty())
    else {
        return Ok(None);
    };
    let Some(volume) = home.all::<PersistentVolume>().get(&volume).await? else {
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
