//! The node that a remote cluster is told for a volume that is waited for: the same
//! for all claims of a pod, because that is where it will have to run. Each claim is
//! asked for by itself and at the same time, so only what they all see alike decides.

use k8s_openapi::api::core::v1::{Node as KubeNode, PersistentVolumeClaim, Pod};
use kube::ResourceExt;

use super::{
    CreateRequest, Policy, Site,
    observation::Observation,
    reading, remote_class,
    surroundings::{self, Known},
};
use crate::{
    cluster::{ApiError, facts},
    fleet::Remote,
    placement::{Ask, ChosenClass, Class, KnownClasses},
    topology::Node,
    volume::{DRIVER_NAME, digest},
};

/// A pod that waits for its volumes.
struct Waiting {
    name: String,
    /// The same for all its claims.
    lot: String,
    claims: Vec<PersistentVolumeClaim>,
}

/// The node, or why there is none.
pub(super) async fn node(
    site: &Site,
    remote: &Remote,
    policy: &Policy,
    request: &CreateRequest,
    observation: &Observation,
    class: &Class,
) -> Result<Result<String, String>, ApiError> {
    let cluster = site.cluster();
    let known = Known::about(cluster, class, None).await?;
    let surroundings = known.surroundings(class);
    let ask = surroundings::ask(request);
    let open: Vec<Node> = cluster
        .all::<KubeNode>()
        .list(None)
        .await?
        .into_iter()
        .filter(takes_pods)
        .map(|node| facts::node(node.metadata))
        .collect();
    let roomiest = match surroundings.choose_node(&open, &ask) {
        Ok(node) => node.name.clone(),
        Err(none) => return Ok(Err(format!("in the cluster {} {none}", cluster.id()))),
    };
    let Some(pod) = pod_of(site, observation.claim.as_ref()).await? else {
        return Ok(Ok(roomiest));
    };
    for claim in &pod.claims {
        let twin = site.twins().get(&claim.name_any()).await?;
        if let Some(told) = twin.as_ref().and_then(reading::selected_node)
            && let Some(node) = open.iter().find(|node| node.name == told)
        {
            let unfit = surroundings.unfit(node, &ask);
            return Ok(unfit.map_or_else(|| Ok(told.to_owned()), |unfit| Err(unfit.to_string())));
        }
    }
    let mut fitting: Vec<&Node> = open.iter().collect();
    fitting.retain(|node| surroundings.unfit(node, &ask).is_none());
    for claim in pod.claims.iter().filter(|claim| !has_its_volume(claim)) {
        keep_fitting(site, remote, policy, request, claim, &mut fitting).await?;
    }
    // Not the one with most room, which may be another one for each class.
    let drawn = fitting
        .into_iter()
        .min_by_key(|node| digest(16, [pod.lot.as_str(), node.name.as_str()]));
    Ok(drawn.map(|node| node.name.clone()).ok_or_else(|| {
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
    let known = Known::about(site.cluster(), class, None).await?;
    let surroundings = known.surroundings(class);
    // Made beforehand, it is chosen when the pod is there.
    if !surroundings.is_static() {
        let ask = Ask {
            size: size(claim),
            ..surroundings::ask(request)
        };
        nodes.retain(|node| surroundings.unfit(node, &ask).is_none());
    }
    Ok(())
}

/// It needs no more room.
fn has_its_volume(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some())
}

fn size(claim: &PersistentVolumeClaim) -> u64 {
    let spec = claim.spec.as_ref();
    let requests = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let storage = requests.and_then(|requests| requests.get("storage"));
    storage.and_then(facts::bytes).unwrap_or_default()
}

/// Whether an ordinary pod may be sent to a node.
fn takes_pods(node: &KubeNode) -> bool {
    let Some(spec) = &node.spec else { return true };
    let closed = spec
        .taints
        .iter()
        .flatten()
        .any(|taint| taint.effect != "PreferNoSchedule");
    !closed && spec.unschedulable != Some(true)
}

/// The pod that waits for this claim and others that go, or may go, to the same place.
async fn pod_of(site: &Site, claim: Option<&PersistentVolumeClaim>) -> Result<Option<Waiting>, ApiError> {
    let Some(claim) = claim else { return Ok(None) };
    let namespace = claim.namespace().unwrap_or_default();
    let waiting = site
        .home()
        .within::<Pod>(&namespace)
        .select(None, Some("status.phase=Pending"))
        .await?;
    let Some((pod, names)) = waiting
        .iter()
        .map(|pod| (pod, claims_of(pod)))
        .find(|(_, names)| names.len() > 1 && names.contains(&claim.name_any()))
    else {
        return Ok(None);
    };
    let all = site.home().within::<PersistentVolumeClaim>(&namespace);
    let mut claims = Vec::new();
    for name in names {
        // The scheduler notes its node on one after the other.
        let same_place = |found: &PersistentVolumeClaim| {
            let node = reading::selected_node(found);
            node.is_none() || node == reading::selected_node(claim)
        };
        claims.extend(all.get(&name).await?.filter(same_place));
    }
    Ok(Some(Waiting {
        name: pod.name_any(),
        lot: pod.uid().unwrap_or_default(),
        claims,
    }))
}

fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone()))
        .collect()
}
