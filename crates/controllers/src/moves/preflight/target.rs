//! The target of a move: a node of the home cluster, the home cluster, or a remote cluster.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node as KubeNode;

use crate::{
    api::volume_move::{MoveRequest, MoveTarget},
    cluster::{ApiError, Cluster, facts::is_ready},
    fleet::{NodeKind, Remote, Unreachable},
    moves::{Context, follow::FollowError},
    topology::Node,
    volume::ClusterId,
};

/// The target of the volumes.
pub(super) enum TargetSite {
    /// Accessible from this node of the home cluster; from any node if `None`.
    Home(Option<Node>),
    /// In this namespace of this remote cluster.
    Remote(Arc<Remote>, String),
}

impl TargetSite {
    pub(super) fn cluster<'a>(&'a self, home: &'a Cluster) -> &'a ClusterId {
        match self {
            Self::Home(_) => home.id(),
            Self::Remote(remote, _) => &remote.id,
        }
    }
}

/// Finds the target; or what blocks it.
pub(super) async fn find<H>(
    context: &Context<'_, H>,
    request: &MoveRequest,
) -> Result<Result<TargetSite, Vec<String>>, FollowError> {
    let home = context.home;
    Ok(match &request.target {
        MoveTarget::Cluster(id) if id == home.id() => Ok(TargetSite::Home(None)),
        MoveTarget::Cluster(id) => match context.registry.get(id) {
            Ok(remote) => of_remote(&remote, request)?,
            Err(error) if context.registry.is_complete() => Err(vec![error.to_string()]),
            Err(error) => return Err(FollowError::NotYet(error.to_string())),
        },
        MoveTarget::Node(name) => of_node(context, name, request).await?,
    })
}

async fn of_node<H>(
    context: &Context<'_, H>,
    name: &str,
    request: &MoveRequest,
) -> Result<Result<TargetSite, Vec<String>>, FollowError> {
    let Some(found) = context.home.all::<KubeNode>().get(name).await? else {
        return Ok(Err(vec![format!("the node {name} does not exist")]));
    };
    let is_ready = is_ready(&found);
    let node = context.home.node(found.metadata);
    let target = match context.registry.behind(&node) {
        NodeKind::Virtual(remote) => of_remote(&remote, request)?,
        NodeKind::Disputed(clusters) => Err(vec![format!(
            "the node {name} is claimed by several clusters ({clusters}): their node selectors must not overlap"
        )]),
        NodeKind::Real if !node.has_driver() => Err(vec![format!(
            "this driver is not registered on the node {name}: check whether its node plugin runs there or, for a virtual node, \
             whether its cluster is declared"
        )]),
        NodeKind::Real => Ok(TargetSite::Home(Some(node))),
    };
    Ok(match (target, is_ready) {
        (target, true) => target,
        (Ok(_), false) => Err(vec![format!("the node {name} is not Ready")]),
        (Err(mut found), false) => {
            found.push(format!("the node {name} is not Ready"));
            Err(found)
        }
    })
}

/// Waits for a cluster that is still being contacted.
fn of_remote(
    remote: &Arc<Remote>,
    request: &MoveRequest,
) -> Result<Result<TargetSite, Vec<String>>, FollowError> {
    let mut findings = Vec::new();
    if let Some(closed) = remote.closed() {
        findings.push(format!(
            "the cluster {} takes no new volumes: {closed}",
            remote.id
        ));
    }
    match remote.reach() {
        Ok(_) => {}
        Err(error @ Unreachable::Connecting { .. }) => return Err(FollowError::NotYet(error.to_string())),
        Err(error) => findings.push(error.to_string()),
    }
    // All claims are of the namespace of the move.
    let namespace = request
        .claims
        .first()
        .map(|claim| claim.namespace.as_str())
        .unwrap_or_default();
    let mapped = remote.namespaces.remote(namespace, &remote.id).map(str::to_owned);
    Ok(match mapped {
        Ok(namespace) if findings.is_empty() => Ok(TargetSite::Remote(Arc::clone(remote), namespace)),
        Ok(_) => Err(findings),
        Err(error) => {
            findings.push(error.to_string());
            Err(findings)
        }
    })
}

/// Why a named class cannot be the real class there, as far as classes may be read.
pub(super) fn class_missing(home: &Cluster, target: &TargetSite, class: &str) -> Option<String> {
    let cluster = match target {
        TargetSite::Home(_) => home.clone(),
        TargetSite::Remote(remote, _) => remote.reach().ok()?,
    };
    if !cluster.rights().classes && cluster.id() != home.id() {
        return None;
    }
    let id = cluster.id();
    match cluster.views().classes.get(class) {
        None => Some(format!(
            "the storage class {class:?} does not exist in the cluster {id}"
        )),
        Some(found) if found.is_loop() => Some(format!(
            "the storage class {class:?} of the cluster {id} is virtual itself: name a real one"
        )),
        Some(_) => None,
    }
}

/// The nodes of the home cluster from which a volume at the target is accessible.
pub(super) fn nodes(home: &Cluster, target: &TargetSite) -> Vec<Node> {
    match target {
        TargetSite::Home(Some(node)) => vec![node.clone()],
        TargetSite::Home(None) => seen(home).into_iter().filter(Node::has_driver).collect(),
        TargetSite::Remote(remote, _) => {
            let is_its = |node: &Node| remote.nodes.admits(node);
            seen(home).into_iter().filter(is_its).collect()
        }
    }
}

fn seen(home: &Cluster) -> Vec<Node> {
    let nodes = home.views().nodes.all();
    nodes.iter().map(|node| Node::clone(node)).collect()
}

/// The result of a request to the API.
pub(super) type ApiResult<T> = Result<T, ApiError>;
