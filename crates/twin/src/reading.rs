//! Reads fields of claims, PVs and nodes.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Node as KubeNode, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

pub use crate::{
    cluster::facts::claim_class as class_name,
    volume::{twin_in, twin_volume_in},
};
use crate::{
    cluster::{ApiError, Cluster, slim::SELECTED_NODE},
    placement::Class,
    topology::Node,
    volume::{ClaimMark, mark},
};

pub(super) const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(super) const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";

pub fn claim_mark(claim: &PersistentVolumeClaim) -> ClaimMark {
    ClaimMark {
        namespace: claim.namespace().unwrap_or_default(),
        name: claim.name_any(),
        uid: claim.uid().unwrap_or_default(),
    }
}

/// The CSI driver of a PV; `None` if it is not a CSI volume.
pub fn driver(volume: &PersistentVolume) -> Option<&str> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    Some(&source.driver)
}

/// Whether the PV has phase Bound: before that Kubernetes may still act on its previous `claimRef`.
#[must_use]
pub fn is_bound(volume: &PersistentVolume) -> bool {
    let status = volume.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// The attributes in which the virtual PV records its twin.
pub fn attributes(virtual_pv: &PersistentVolume) -> Option<&BTreeMap<String, String>> {
    virtual_pv.spec.as_ref()?.csi.as_ref()?.volume_attributes.as_ref()
}

/// The twin's PV that a virtual PV records.
#[must_use]
pub fn real_volume_of(virtual_pv: &PersistentVolume) -> Option<String> {
    attributes(virtual_pv).and_then(twin_volume_in)
}

/// The provisioner of a twin, as annotated by Kubernetes or this driver.
pub fn provisioner(twin: &PersistentVolumeClaim) -> Option<&str> {
    let annotations = twin.annotations();
    [PROVISIONER, PROVISIONER_BETA]
        .iter()
        .find_map(|key| annotations.get(*key).map(String::as_str))
}

pub fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotations().get(SELECTED_NODE).map(String::as_str)
}

pub fn phase(claim: &PersistentVolumeClaim) -> &str {
    claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

/// The PV of a twin. Kubernetes writes its name to the twin last; until then, a PV that was created for
/// exactly this twin counts.
pub fn real_volume(cluster: &Cluster, twin: &PersistentVolumeClaim) -> Option<String> {
    if phase(twin) == "Bound" {
        return volume_name(twin).map(str::to_owned);
    }
    let uid = twin.uid()?;
    let seen = cluster.views().volumes.of_twin(&twin.name_any());
    let made = seen
        .iter()
        .find(|volume| volume.twin_uid == uid && !volume.deleting);
    made.map(|volume| volume.name.clone())
}

/// Whether the `claimRef` of a PV has the uid of this twin.
#[must_use]
pub fn is_bound_to(volume: &PersistentVolume, twin: &PersistentVolumeClaim) -> bool {
    let uid = holder_uid(volume);
    uid.is_some() && uid == twin.metadata.uid.as_deref()
}

/// Whether the volume of a twin is being released: only the command that releases it may change the twin.
#[must_use]
pub fn is_releasing(twin: &PersistentVolumeClaim) -> bool {
    twin.annotations().contains_key(mark::RELEASING)
}

/// The uid in the `claimRef` of a PV.
#[must_use]
pub fn holder_uid(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref()
}

/// All nodes, from the view.
pub fn nodes(home: &Cluster) -> Vec<Node> {
    home.views()
        .nodes
        .all()
        .iter()
        .map(|node| Node::clone(node))
        .collect()
}

/// A node from the view; read live if the view does not show it yet.
pub async fn node(home: &Cluster, name: &str) -> Result<Option<Node>, ApiError> {
    if let Some(node) = home.views().nodes.get(name) {
        return Ok(Some(Node::clone(&node)));
    }
    let found = home.all::<KubeNode>().get(name).await?;
    Ok(found.map(|node| home.node(node.metadata)))
}

/// The class of a claim in its cluster, if classes can be read there.
pub fn class(cluster: &Cluster, claim: &PersistentVolumeClaim) -> Option<Arc<Class>> {
    cluster.views().classes.get(class_name(claim)?)
}
