//! Whether each pod could use all its volumes from one node after the move, which is known only once the new volumes
//! exist: the classes of several claims may choose several nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node as KubeNode, PersistentVolume, PersistentVolumeClaim, Pod};

use crate::{
    api::volume_move::MoveRequest,
    cluster::{
        ApiError, Cluster, facts,
        slim::{claims_of, consumer, has_ended, is_ephemeral_claim},
    },
    gate::{MovedVolume, Place},
    placement::moving::Quiesce,
    topology::{Node, NodeSelector},
    twin::{Site, reading},
};

/// The pods that could not use all their volumes from one node, and why.
pub(super) async fn unreachable(
    home: &Cluster,
    request: &MoveRequest,
    moved: &[MovedVolume],
) -> Result<Vec<String>, ApiError> {
    let Some(namespace) = moved.first().map(|moved| moved.claim.name.namespace.as_str()) else {
        return Ok(Vec::new());
    };
    let (mut affinities, mut target) = (BTreeMap::new(), None);
    for moved in moved {
        let Place::Site(site) = &moved.target.place else {
            return Ok(Vec::new());
        };
        affinities.insert(moved.claim.name.name.clone(), affinity(site).await?);
        target = Some(site);
    }
    let Some(site) = target else { return Ok(Vec::new()) };
    let is_home = site.remote_cluster().is_none();
    let nodes = nodes(home, site).await?;
    let stays = |pod: &Pod| !has_ended(pod) && pod.metadata.deletion_timestamp.is_none();
    let uses = |pod: &Pod| stays(pod) && claims_of(pod).iter().any(|name| affinities.contains_key(name));
    let pods = home.within::<Pod>(namespace).find(uses).await?;
    let mut found = Vec::new();
    for pod in pods {
        let mut its = Vec::new();
        for name in claims_of(&pod) {
            let affinity = match affinities.get(&name) {
                Some(known) => known.clone(),
                // In a remote cluster, only the driver there knows the nodes.
                None if !is_home || is_ephemeral_claim(&pod, &name) => None,
                None => {
                    let volume = volume_of(home, namespace, &name).await?;
                    let affinity = volume.as_ref().and_then(facts::affinity);
                    affinities.insert(name, affinity.clone());
                    affinity
                }
            };
            its.extend(affinity);
        }
        // A volume that no node admits is reported elsewhere.
        let is_known = its.iter().all(|one| nodes.iter().any(|node| one.admits(node)));
        if its.is_empty() || !is_known {
            continue;
        }
        let pod = consumer(&pod);
        // Users who stop the pods themselves may start others.
        let is_recreated = is_home && request.quiesce == Quiesce::Evict;
        let admits = |node: &&Node| its.iter().all(|one| one.admits(node));
        let mut common = nodes.iter().filter(admits);
        if common.all(|node| is_recreated && !pod.selects(node)) {
            let way_out = if is_home {
                "name the node in spec.target.nodeName"
            } else {
                "choose a class whose volumes are accessible from all nodes"
            };
            found.push(format!(
                "the pod {} could not run at the target, because it may run on no node of the cluster {} from which all its volumes \
                 are accessible: {way_out}",
                pod.name,
                site.cluster_name()
            ));
        }
    }
    Ok(found)
}

/// The nodes of the cluster of a site, as far as the driver may read them.
async fn nodes(home: &Cluster, site: &Site) -> Result<Vec<Node>, ApiError> {
    if site.remote_cluster().is_none() {
        return Ok(reading::nodes(home)
            .into_iter()
            .filter(Node::has_driver)
            .collect());
    }
    if !site.cluster().rights().nodes {
        return Ok(Vec::new());
    }
    let node = |node: KubeNode| Some(facts::node(node.metadata, &[]));
    site.cluster().all::<KubeNode>().pick(None, None, node).await
}

/// From where the PV of a twin is accessible, if the driver may read it.
async fn affinity(site: &Site) -> Result<Option<NodeSelector>, ApiError> {
    if !site.shows_volumes() {
        return Ok(None);
    }
    let twin = site.twins().get(site.name()).await?;
    let Some(name) = twin.as_ref().and_then(reading::volume_name) else {
        return Ok(None);
    };
    let real = site.volumes().get(name).await?;
    Ok(real.as_ref().and_then(facts::affinity))
}

/// The PV of a claim.
pub(super) async fn volume_of(
    home: &Cluster,
    namespace: &str,
    claim: &str,
) -> Result<Option<PersistentVolume>, ApiError> {
    let claim = home.within::<PersistentVolumeClaim>(namespace).get(claim).await?;
    match claim.as_ref().and_then(reading::volume_name) {
        Some(volume) => home.all::<PersistentVolume>().get(volume).await,
        None => Ok(None),
    }
}
