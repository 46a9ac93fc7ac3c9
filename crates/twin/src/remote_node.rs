//! Selects the node in a remote cluster for a twin that is waited for: the same node for all claims of a
//! pod, because the pod will have to run there. `CreateVolume` is called for each claim separately and in
//! parallel, so only facts that all these calls observe equally count.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node as KubeNode, PersistentVolumeClaim, Pod};
use kube::ResourceExt;

use super::{
    CreateRequest, Policy, Site,
    observation::Observation,
    reading, remote_class,
    surroundings::{self, ClassFacts},
};
use crate::{
    cluster::{ApiError, Cluster, facts, slim::PendingPod},
    fleet::Remote,
    placement::{ChosenClass, Class, KnownClasses, TwinRequest},
    topology::Node,
    volume::{DRIVER_NAME, digest},
};

/// How long to wait for the view to show the pod of a claim with a selected node.
const VIEW_LAG: Duration = Duration::from_millis(500);

/// A pod that waits for its volumes.
struct WaitingPod {
    name: String,
    /// The uid of the pod, which is the same for all its claims.
    uid: String,
    claims: Vec<PersistentVolumeClaim>,
}

/// The node, or why no node fits.
pub(super) async fn node(
    site: &Site,
    remote: &Remote,
    policy: &Policy,
    request: &CreateRequest,
    observation: &Observation,
    class: &Class,
) -> Result<Result<String, String>, ApiError> {
    let cluster = site.cluster();
    let known = ClassFacts::about(cluster, class, None).await?;
    let surroundings = known.surroundings(class);
    let ask = surroundings::ask(request);
    let takes_pods = &cluster.views().open_nodes;
    cluster.filled::<KubeNode, _>(takes_pods).await?;
    let mut open = reading::nodes(cluster);
    open.retain(|node| takes_pods.get(&node.name).is_some());
    let best = match surroundings.choose_node(&open, &ask) {
        Ok(node) => node.name.clone(),
        Err(none) => return Ok(Err(format!("in the cluster {} {none}", cluster.id()))),
    };
    let Some(pod) = pod_of(site, observation.claim.as_ref()).await? else {
        return Ok(Ok(best));
    };
    for claim in &pod.claims {
        let twin = site.twins().get(&claim.name_any()).await?;
        if let Some(selected) = twin.as_ref().and_then(reading::selected_node)
            && let Some(node) = open.iter().find(|node| node.name == selected)
        {
            let unfit = surroundings.unfit(node, &ask);
            return Ok(unfit.map_or_else(|| Ok(selected.to_owned()), |unfit| Err(unfit.to_string())));
        }
    }
    let mut fitting: Vec<&Node> = open.iter().collect();
    fitting.retain(|node| surroundings.unfit(node, &ask).is_none());
    for claim in pod.claims.iter().filter(|claim| !is_bound(claim)) {
        keep_fitting(site, remote, policy, request, claim, &mut fitting).await?;
    }
    // Not the node with most free capacity, which may differ from class to class.
    let chosen = fitting
        .into_iter()
        .min_by_key(|node| digest(16, [pod.uid.as_str(), node.name.as_str()]));
    Ok(chosen.map(|node| node.name.clone()).ok_or_else(|| {
        format!(
            "in the cluster {} no node can have the volumes of all claims of the pod {}",
            cluster.id(),
            pod.name
        )
    }))
}

/// Keeps the nodes where another claim of the pod can have its volume as well.
async fn keep_fitting(
    site: &Site,
    remote: &Remote,
    policy: &Policy,
    request: &CreateRequest,
    claim: &PersistentVolumeClaim,
    nodes: &mut Vec<&Node>,
) -> Result<(), ApiError> {
    let virtual_class = reading::class(site.home(), claim);
    let Some(virtual_class) = virtual_class.filter(|class| class.provisioner == DRIVER_NAME) else {
        return Ok(());
    };
    let classes = surroundings::classes(site.cluster());
    let listed = KnownClasses::Listed(&classes);
    let parameter = virtual_class.real_class();
    let Ok(ChosenClass::Known(class)) = remote_class::choose(remote, policy, parameter, Some(claim), listed)
    else {
        return Ok(());
    };
    let known = ClassFacts::about(site.cluster(), class, None).await?;
    let surroundings = known.surroundings(class);
    // A static PV is chosen when the pod arrives there.
    if !surroundings.is_static() {
        let ask = TwinRequest {
            size: size(claim),
            ..surroundings::ask(request)
        };
        nodes.retain(|node| surroundings.unfit(node, &ask).is_none());
    }
    Ok(())
}

/// A bound claim needs no more capacity.
fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some())
}

fn size(claim: &PersistentVolumeClaim) -> u64 {
    facts::storage_request(claim)
        .and_then(facts::bytes)
        .unwrap_or_default()
}

/// The pod that waits for this claim and for others that have the same selected node, or none yet.
async fn pod_of(site: &Site, claim: Option<&PersistentVolumeClaim>) -> Result<Option<WaitingPod>, ApiError> {
    let Some(claim) = claim else { return Ok(None) };
    let namespace = claim.namespace().unwrap_or_default();
    let pods = waiting_pods(site.home(), claim, &namespace).await?;
    let Some(pod) = pods.iter().find(|pod| pod.claims.len() > 1) else {
        return Ok(None);
    };
    let all = site.home().within::<PersistentVolumeClaim>(&namespace);
    let mut claims = Vec::new();
    for name in &pod.consumer.claims {
        // The scheduler annotates the claims of a pod one after the other.
        let same_place = |found: &PersistentVolumeClaim| {
            let node = reading::selected_node(found);
            node.is_none() || node == reading::selected_node(claim)
        };
        claims.extend(all.get(name).await?.filter(same_place));
    }
    Ok(Some(WaitingPod {
        name: pod.consumer.name.clone(),
        uid: pod.uid.clone(),
        claims,
    }))
}

/// The pods that wait for a claim, from a watch that starts with the first such claim. If the claim has a
/// selected node, its pod exists: the watch may lag behind the scheduler, so it is waited for.
async fn waiting_pods(
    home: &Cluster,
    claim: &PersistentVolumeClaim,
    namespace: &str,
) -> Result<Vec<Arc<PendingPod>>, ApiError> {
    let pods = &home.views().pending_pods;
    home.filled::<Pod, _>(pods).await?;
    let of_claim = format!("{namespace}/{}", claim.name_any());
    let mut changes = pods.subscribe(&of_claim);
    let waiting = pods.of_topic(&of_claim);
    if !waiting.is_empty() || reading::selected_node(claim).is_none() {
        return Ok(waiting);
    }
    changes.next(VIEW_LAG).await;
    Ok(pods.of_topic(&of_claim))
}
