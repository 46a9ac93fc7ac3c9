//! Where the volumes of a move are to be: a node of this cluster, this cluster, or a remote one.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node as KubeNode;

use crate::{
    api::volume_move::{MoveRequest, MoveTarget},
    cluster::{ApiError, Cluster, facts::is_ready},
    fleet::{NodeKind, Remote, Unreachable},
    moves::{Context, follow::Trouble},
    topology::Node,
    volume::ClusterId,
};

/// Where volumes are to be.
pub(super) enum Whereto {
    /// Where this node of the home cluster can use them, or any if none is named.
    Home(Option<Node>),
    /// In this remote cluster, in this namespace.
    Remote(Arc<Remote>, String),
}

impl Whereto {
    /// The cluster.
    pub(super) fn cluster<'a>(&'a self, home: &'a Cluster) -> &'a ClusterId {
        match self {
            Self::Home(_) => home.id(),
            Self::Remote(remote, _) => &remote.id,
        }
    }
}

/// Finds it; or what speaks against it.
pub(super) async fn find<H>(
    context: &Context<'_, H>,
    request: &MoveRequest,
) -> Result<Result<Whereto, Vec<String>>, Trouble> {
    let home = context.home;
    Ok(match &request.target {
        MoveTarget::Cluster(id) if id == home.id() => Ok(Whereto::Home(None)),
        MoveTarget::Cluster(id) => match context.registry.get(id) {
            Ok(remote) => of_remote(&remote, request)?,
            Err(error) if context.registry.is_complete() => Err(vec![error.to_string()]),
            Err(error) => return Err(Trouble::NotYet(error.to_string())),
        },
        MoveTarget::Node(name) => of_node(context, name, request).await?,
    })
}

async fn of_node<H>(
    context: &Context<'_, H>,
    name: &str,
    request: &MoveRequest,
) -> Result<Result<Whereto, Vec<String>>, Trouble> {
    let Some(found) = context.home.all::<KubeNode>().get(name).await? else {
        return Ok(Err(vec![format!("there is no node {name}")]));
    };
    let is_ready = is_ready(&found);
    let node = context.home.node(found.metadata);
    let whereto = match context.registry.behind(&node) {
        NodeKind::Virtual(remote) => of_remote(&remote, request)?,
        NodeKind::Disputed(clusters) => Err(vec![format!(
            "the node {name} is claimed by several clusters ({clusters}): their node selectors must not overlap"
        )]),
        NodeKind::Real if !node.has_driver() => Err(vec![format!(
            "this driver is not registered on the node {name}: see whether its node plugin runs there, or whether the cluster \
             that the node stands for is declared"
        )]),
        NodeKind::Real => Ok(Whereto::Home(Some(node))),
    };
    Ok(match (whereto, is_ready) {
        (whereto, true) => whereto,
        (Ok(_), false) => Err(vec![format!("the node {name} is not Ready")]),
        (Err(mut found), false) => {
            found.push(format!("the node {name} is not Ready"));
            Err(found)
        }
    })
}

/// A cluster that was not asked yet is waited for.
fn of_remote(remote: &Arc<Remote>, request: &MoveRequest) -> Result<Result<Whereto, Vec<String>>, Trouble> {
    let mut findings = Vec::new();
    if let Some(closed) = remote.closed() {
        findings.push(format!(
            "the cluster {} takes no new volumes: {closed}",
            remote.id
        ));
    }
    match remote.reach() {
        Ok(_) => {}
        Err(error @ Unreachable::Connecting { .. }) => return Err(Trouble::NotYet(error.to_string())),
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
        Ok(namespace) if findings.is_empty() => Ok(Whereto::Remote(Arc::clone(remote), namespace)),
        Ok(_) => Err(findings),
        Err(error) => {
            findings.push(error.to_string());
            Err(findings)
        }
    })
}

/// Whether a class that is named can be the real one there, as far as classes may be read.
pub(super) fn class_missing(home: &Cluster, whereto: &Whereto, class: &str) -> Option<String> {
    let cluster = match whereto {
        Whereto::Home(_) => home.clone(),
        Whereto::Remote(remote, _) => remote.reach().ok()?,
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

/// The nodes of the home cluster from which a volume there can be used.
pub(super) fn nodes(home: &Cluster, whereto: &Whereto) -> Vec<Node> {
    match whereto {
        Whereto::Home(Some(node)) => vec![node.clone()],
        Whereto::Home(None) => seen(home).into_iter().filter(Node::has_driver).collect(),
        Whereto::Remote(remote, _) => {
            let is_its = |node: &Node| remote.nodes.admits(node);
            seen(home).into_iter().filter(is_its).collect()
        }
    }
}

fn seen(home: &Cluster) -> Vec<Node> {
    let nodes = home.views().nodes.all();
    nodes.iter().map(|node| Node::clone(node)).collect()
}

/// What could not be asked is an error of the API.
pub(super) type Asked<T> = Result<T, ApiError>;
