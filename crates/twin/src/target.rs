//! The claim and the nodes for which a volume is requested.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::{
    CreateRequest, Site,
    reading::{self, node, nodes},
};
use crate::{
    cluster::{ApiError, Cluster},
    fleet::{NodeKind, Registry},
    placement::{BindingMode, ClaimFact, Class, Target},
    topology::{CLUSTER_KEY, NODE_KEY, Node, Segments, node_value},
};

/// The claim of the request. A claim with another uid, or being deleted, counts as gone.
pub(super) async fn claim(
    home: &Cluster,
    request: &CreateRequest,
) -> Result<(ClaimFact, Option<PersistentVolumeClaim>), ApiError> {
    let Some(name) = &request.spec.parameters.claim else {
        return Ok((ClaimFact::NotGiven, None));
    };
    let found = home
        .within::<PersistentVolumeClaim>(&name.namespace)
        .get(&name.name)
        .await?;
    let expected = request.volume.claim_uid();
    let same = |claim: &PersistentVolumeClaim| {
        claim.metadata.deletion_timestamp.is_none()
            && expected.is_none_or(|uid| claim.metadata.uid.as_deref() == Some(uid))
    };
    Ok(match found.filter(same) {
        Some(claim) => (ClaimFact::Live, Some(claim)),
        None => (ClaimFact::Gone, None),
    })
}

/// The node, or the nodes, for which the volume is requested. The request names them by topology keys,
/// the claim by its selected node; if both do, they must agree. For a remote cluster any virtual node
/// that represents it will do.
pub(super) async fn target(
    site: &Site,
    registry: &Registry,
    request: &CreateRequest,
    claim: Option<&PersistentVolumeClaim>,
    virtual_class: Option<&Class>,
) -> Result<Target, ApiError> {
    let home = site.home();
    let disagrees = |selected: Option<&str>| {
        let places = request.requisite.iter().map(describe).collect::<Vec<_>>();
        Target::Disagrees {
            selected: selected.map(str::to_owned),
            requested: places.join(" or "),
        }
    };
    let Some(claim) = claim else {
        return Ok(requested(site, request));
    };
    if let Some(selected) = reading::selected_node(claim) {
        let here = match site.remote_cluster() {
            None => Segments::of_node(home.id(), selected),
            Some(remote) => {
                let standing = node(home, selected).await?.map(|node| registry.behind(&node));
                match standing {
                    Some(NodeKind::Virtual(behind)) if behind.id == remote.id => {}
                    // The pod was scheduled elsewhere in the meantime.
                    _ => return Ok(disagrees(Some(selected))),
                }
                Segments::of_cluster(&remote.id)
            }
        };
        let here = here.into_map();
        let agrees =
            request.requisite.is_empty() || request.requisite.iter().any(|place| place.admits(&here));
        return Ok(match site.remote_cluster() {
            _ if !agrees => disagrees(Some(selected)),
            None => Target::Node(selected.to_owned()),
            Some(_) => Target::Any,
        });
    }
    let waits = virtual_class.is_some_and(|class| class.binding == BindingMode::WaitForFirstConsumer);
    if waits && !request.requisite.is_empty() {
        // The scheduler has removed the selected node since the request was made.
        return Ok(disagrees(None));
    }
    Ok(requested(site, request))
}

/// The nodes that a request allows if its claim has no selected node: its class is `Immediate`, or there
/// is no claim. Only here `allowedTopologies` of the virtual class reach the driver.
fn requested(site: &Site, request: &CreateRequest) -> Target {
    let home = site.home();
    if site.remote_cluster().is_some() || request.requisite.is_empty() {
        return Target::Any;
    }
    let may = |node: &Node| request.requisite.iter().any(|place| place.admits(&node.labels));
    let nodes = nodes(home);
    let mut ours = nodes.iter().filter(|node| node.has_driver());
    if ours.all(may) && nodes.iter().any(may) {
        // All nodes are allowed, so the real class may choose.
        return Target::Any;
    }
    let names = nodes.iter().filter(|node| node.has_driver() && may(node));
    let names: BTreeSet<String> = names.map(|node| node.name.clone()).collect();
    match requested_node(home, request) {
        Some(only) if names.is_empty() => Target::Node(only),
        _ => Target::OneOf(names),
    }
}

fn requested_node(home: &Cluster, request: &CreateRequest) -> Option<String> {
    let [only] = request.requisite.as_slice() else {
        return None;
    };
    let elsewhere = |cluster: &str| cluster != home.id().as_str();
    if only.get(CLUSTER_KEY).is_some_and(elsewhere) {
        return None;
    }
    let value = only.get(NODE_KEY)?;
    let nodes = home.views().nodes.all();
    let node = nodes.iter().find(|node| node_value(&node.name) == value);
    // The view may not show the node yet; the value is its name unless that is very long.
    Some(node.map_or_else(|| value.to_owned(), |node| node.name.clone()))
}

fn describe(place: &Segments) -> String {
    match (place.get(NODE_KEY), place.get(CLUSTER_KEY)) {
        (Some(node), _) => format!("the node {node}"),
        (None, Some(cluster)) => format!("the cluster {cluster}"),
        (None, None) => "an unknown topology segment".to_owned(),
    }
}
