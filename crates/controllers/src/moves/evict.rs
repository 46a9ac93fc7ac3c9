//! Evicts the pods that use the volumes, so that every `PodDisruptionBudget` counts. The pods that replace
//! them wait until the volumes are at the target.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    core::v1::Pod,
    policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
};
use kube::ResourceExt;

use crate::{
    cluster::{ApiError, Cluster, Eviction, facts},
    observe::crash::{self, Step},
};

/// Evicts these pods, given as `namespace/name`; returns why some cannot be evicted. If it is known before that not all
/// of them can be, none is: the volumes are gated only when all pods stop, and until then those that replace the evicted
/// pods would start with them again. Pods in other clusters end together with their home pods.
pub(super) async fn evict(home: &Cluster, pods: &BTreeSet<&String>) -> Result<Vec<String>, ApiError> {
    let mut running = Vec::new();
    for pod in pods {
        let Some((namespace, name)) = pod.split_once('/').filter(|(_, name)| !name.contains(' ')) else {
            continue;
        };
        let found = home.within::<Pod>(namespace).get(name).await?;
        // A replacement pod without a node waits for the volume, as intended.
        running.extend(found.filter(may_be_evicted));
    }
    let Some(namespace) = running.first().and_then(ResourceExt::namespace) else {
        return Ok(Vec::new());
    };
    let allowed = |budget: &PodDisruptionBudgetStatus| budget.disruptions_allowed;
    let mut refused = over_budget(home, &namespace, &running, allowed).await?;
    // Pods that started after the preflight. What has not started is evicted: with a gated claim it never starts.
    refused.extend(running.iter().filter(|pod| !is_pending(pod)).filter_map(|pod| {
        let why = stays_away(pod)?;
        Some(format!(
            "the pod {namespace}/{} must not be evicted, because {why}: stop it yourself",
            pod.name_any()
        ))
    }));
    if !refused.is_empty() {
        return Ok(refused);
    }
    for pod in running {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let eviction = home.evict(&namespace, &name, &uid, false);
        if let Eviction::Refused(why) = crash::around(Step::MoveEvict, eviction).await? {
            refused.push(format!("the pod {namespace}/{name}: {why}"));
        }
    }
    Ok(refused)
}

/// Whether a pod has a node, and is not being deleted.
pub(super) fn may_be_evicted(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    node.is_some() && pod.metadata.deletion_timestamp.is_none()
}

/// Why the pod would not run again after an eviction, if so.
pub(super) fn stays_away(pod: &Pod) -> Option<String> {
    let mut controllers = pod.owner_references().iter();
    match controllers.find(|owner| owner.controller == Some(true)) {
        None => Some("no controller would create it again".to_owned()),
        Some(owner) if owner.kind == "Job" => {
            Some(format!("it would count as a failure of the Job {}", owner.name))
        }
        Some(_) => None,
    }
}

/// The budgets that do not allow all of these pods of a namespace to be evicted together, by how many evictions each
/// allows. Kubernetes counts only pods that are ready.
pub(super) async fn over_budget(
    home: &Cluster,
    namespace: &str,
    pods: &[Pod],
    allowed: impl Fn(&PodDisruptionBudgetStatus) -> i32,
) -> Result<Vec<String>, ApiError> {
    let ready: Vec<&Pod> = pods
        .iter()
        .filter(|pod| may_be_evicted(pod) && is_ready(pod))
        .collect();
    if ready.is_empty() {
        return Ok(Vec::new());
    }
    let budgets = match home.within::<PodDisruptionBudget>(namespace).list(None).await {
        // The API server checks each eviction.
        Err(error) if error.is_forbidden() => return Ok(Vec::new()),
        budgets => budgets?,
    };
    let exceeded = budgets.iter().filter_map(|budget| {
        let status = budget.status.as_ref()?;
        let selector = facts::label_selector(budget.spec.as_ref()?.selector.as_ref()?);
        let its = ready.iter().filter(|pod| selector.admits(pod.labels()));
        let its: Vec<String> = its.map(|pod| pod.name_any()).collect();
        let allowed = usize::try_from(allowed(status)).unwrap_or_default();
        (its.len() > allowed).then(|| {
            format!(
                "the PodDisruptionBudget {namespace}/{} allows {allowed} evictions, and {} pods have to be evicted together: {}",
                budget.name_any(),
                its.len(),
                its.join(", ")
            )
        })
    });
    Ok(exceeded.collect())
}

fn is_pending(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Pending")
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|one| one.type_ == "Ready");
    ready.any(|one| one.status == "True")
}
