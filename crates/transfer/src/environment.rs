//! Reads live what decides whether a claim can be imported or released: its users, its properties, the
//! classes that it can have, and the nodes on which its volume can be used.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Node as KubeNode, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{StorageClass, VolumeAttachment},
};
use kube::ResourceExt;

use super::observer::{is_virtual, phase, volume_name};
use crate::{
    cluster::{ApiError, Cause, Cluster, facts, snapshots::VolumeSnapshot},
    placement::transfer::{ImportedClaim, Obstacle, RealVolume, WantedBy, wanted_replica},
    topology::{CLUSTER_KEY, Node, accessible},
    twin::consumers::{ephemeral_of, uses},
    twin::{is_bound_to, unmountable},
    volume::{ClaimName, managed_by, mark},
};

/// Kubernetes' finalizer on every claim.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The storage classes: names and provisioners.
pub(super) async fn classes(cluster: &Cluster) -> Result<Vec<(String, String)>, ApiError> {
    let classes = cluster.all::<StorageClass>().list(None).await?;
    let known = classes
        .into_iter()
        .map(|class| (class.name_any(), class.provisioner));
    Ok(known.collect())
}

/// Pods that name a claim, and whether they have ended.
pub(super) async fn pods(cluster: &Cluster, name: &ClaimName) -> Result<Vec<(String, bool)>, ApiError> {
    let pods = cluster.within::<Pod>(&name.namespace);
    let found = pods.find(|pod| uses(pod, &name.name)).await?;
    let reported = found.into_iter().map(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        (pod.name_any(), matches!(phase, Some("Succeeded" | "Failed")))
    });
    Ok(reported.collect())
}

/// The `VolumeSnapshots` of a claim, as far as they may be listed.
pub(super) async fn snapshots(cluster: &Cluster, name: &ClaimName) -> Result<Vec<String>, ApiError> {
    let all = cluster.within::<VolumeSnapshot>(&name.namespace);
    let is_its =
        |one: &VolumeSnapshot| one.spec.source.persistent_volume_claim_name.as_ref() == Some(&name.name);
    match all.find(is_its).await {
        // The kinds of snapshots are not installed, or the user has no right to read them.
        Err(error) if error.is_forbidden() || matches!(error.cause, Cause::NotFound(_)) => Ok(Vec::new()),
        found => Ok(found?.iter().map(ResourceExt::name_any).collect()),
    }
}

/// The nodes that a PV is attached to.
pub(super) async fn attached(cluster: &Cluster, volume: &str) -> Result<Vec<String>, ApiError> {
    let attachments = cluster.all::<VolumeAttachment>();
    let is_its = |one: &VolumeAttachment| one.spec.source.persistent_volume_name.as_deref() == Some(volume);
    let found = attachments.find(is_its).await?;
    Ok(found.into_iter().map(|one| one.spec.node_name).collect())
}

async fn wanted_by(cluster: &Cluster, name: &ClaimName) -> Result<Vec<WantedBy>, ApiError> {
    let sets = cluster.within::<StatefulSet>(&name.namespace).list(None).await?;
    let wanting = sets.into_iter().filter_map(|set| {
        let spec = set.spec.as_ref()?;
        let templates = spec.volume_claim_templates.iter().flatten();
        let templates: Vec<String> = templates.map(ResourceExt::name_any).collect();
        let count =
            |number: Option<i32>, default| number.map_or(default, |it| u64::try_from(it).unwrap_or(default));
        let start = count(spec.ordinals.as_ref().and_then(|it| it.start), 0);
        let replicas = count(spec.replicas, 1);
        let ordinal = wanted_replica(&name.name, &set.name_any(), &templates, start, replicas)?;
        let kept = spec.persistent_volume_claim_retention_policy.as_ref();
        Some(WantedBy {
            set: set.name_any(),
            ordinal,
            deletes: kept.is_some_and(|policy| policy.when_scaled.as_deref() == Some("Delete")),
        })
    });
    Ok(wanting.collect())
}

/// The facts about a claim and its PV for the decision.
pub(super) async fn read(
    cluster: &Cluster,
    claim: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
    classes: &[(String, String)],
) -> Result<(ImportedClaim, Option<RealVolume>), ApiError> {
    let name = ClaimName {
        namespace: claim.namespace().unwrap_or_default(),
        name: claim.name_any(),
    };
    let (pods, wanted_by, ephemeral) = tokio::try_join!(
        pods(cluster, &name),
        wanted_by(cluster, &name),
        ephemeral_of(cluster, claim)
    )?;
    let seen = match volume {
        Some(volume) => Some(real_volume(cluster, volume).await?),
        None => None,
    };
    let read = ImportedClaim {
        ephemeral,
        ..imported_claim(name, claim, volume, classes, pods, wanted_by)
    };
    Ok((read, seen))
}

fn imported_claim(
    name: ClaimName,
    claim: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
    classes: &[(String, String)],
    pods: Vec<(String, bool)>,
    wanted_by: Vec<WantedBy>,
) -> ImportedClaim {
    let spec = claim.spec.clone().unwrap_or_default();
    let is_bound = volume.is_some_and(|volume| {
        volume_name(claim) == volume.metadata.name.as_deref() && is_bound_to(volume, claim)
    });
    let class = facts::claim_class(claim).and_then(|name| classes.iter().find(|(known, _)| known == name));
    let owners = claim.metadata.owner_references.iter().flatten();
    let controller = owners.clone().find(|owner| owner.controller == Some(true));
    ImportedClaim {
        name,
        bound: is_bound && phase(claim) == "Bound",
        deleting: claim.metadata.deletion_timestamp.is_some(),
        is_twin: mark::manager(claim.labels()) == Some(mark::MANAGED_BY_US),
        requested: facts::claim_size(claim).requested,
        mode: facts::volume_mode(spec.volume_mode.as_deref()),
        resizing: resizing(claim),
        modifying: claim
            .status
            .as_ref()
            .is_some_and(|status| status.modify_volume_status.is_some()),
        finalizers: claim
            .finalizers()
            .iter()
            .filter(|one| ![PROTECTION, mark::TWIN_FINALIZER].contains(&one.as_str()))
            .cloned()
            .collect(),
        managed: managed_by(claim.labels(), claim.annotations()),
        ephemeral: None,
        controller: controller.map(|owner| (owner.kind.clone(), owner.name.clone())),
        class: class.cloned(),
        pods,
        wanted_by,
    }
}

/// The resize in progress, if there is one.
fn resizing(claim: &PersistentVolumeClaim) -> Option<String> {
    let status = claim.status.as_ref()?;
    let stages = status.allocated_resource_statuses.iter().flatten();
    if let Some((_, stage)) = stages.clone().next() {
        return Some(stage.clone());
    }
    let under_way = ["Resizing", "FileSystemResizePending"];
    let conditions = status.conditions.iter().flatten();
    let named = conditions
        .map(|one| one.type_.as_str())
        .find(|one| under_way.contains(one));
    if let Some(named) = named {
        return Some(named.to_owned());
    }
    let size = facts::claim_size(claim);
    (size.capacity > 0 && size.requested > size.capacity)
        .then(|| "it requests more than its capacity".to_owned())
}

async fn real_volume(cluster: &Cluster, volume: &PersistentVolume) -> Result<RealVolume, ApiError> {
    let name = volume.name_any();
    let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    Ok(RealVolume {
        bytes: facts::volume_size(volume).unwrap_or_default(),
        mode: facts::volume_mode(mode),
        deleting: volume.metadata.deletion_timestamp.is_some(),
        is_ours: is_virtual(volume),
        unmountable: unmountable(volume),
        managed: managed_by(volume.labels(), volume.annotations()),
        attached: attached(cluster, &name).await?,
        importing: volume.annotations().contains_key(mark::IMPORT),
        releasing: volume.annotations().contains_key(mark::RELEASE),
        name,
    })
}

/// A node for the new claim: one that runs this driver and reaches the PV. Nodes that accept pods are
/// preferred.
pub(super) async fn node_for(
    cluster: &Cluster,
    volume: &PersistentVolume,
) -> Result<Result<String, Obstacle>, ApiError> {
    let found = cluster.all::<KubeNode>().list(None).await?;
    let mut nodes: Vec<(bool, Node)> = found
        .into_iter()
        .map(|node| (takes_pods(&node), facts::node(node.metadata, &[])))
        .filter(|(_, node)| node.has_driver())
        .collect();
    nodes.sort_by(|(a, node), (b, other)| b.cmp(a).then_with(|| node.name.cmp(&other.name)));
    let unreachable = |why: String| Ok(Err(Obstacle::NoNode(why)));
    let home = nodes
        .iter()
        .find_map(|(_, node)| node.labels.get(CLUSTER_KEY)?.parse().ok());
    let Some(home) = home else {
        return unreachable("no node has the labels of this driver".to_owned());
    };
    let affinity = facts::affinity(volume);
    let all: Vec<Node> = nodes.iter().map(|(_, node)| node.clone()).collect();
    if let Err(error) = accessible(&home, affinity.as_ref(), &all) {
        return unreachable(error.to_string());
    }
    let reaching = nodes
        .into_iter()
        .find(|(_, node)| affinity.as_ref().is_none_or(|affinity| affinity.admits(node)));
    Ok(reaching
        .map(|(_, node)| node.name)
        .ok_or_else(|| Obstacle::NoNode("no node matches its node affinity".to_owned())))
}

fn takes_pods(node: &KubeNode) -> bool {
    let cordoned = node
        .spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or(false);
    facts::is_ready(node) && !cordoned
}
