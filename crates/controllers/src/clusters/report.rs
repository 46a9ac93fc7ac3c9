//! Collects what the status of a remote cluster reports.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    Settings,
    access::TokenFacts,
    api::{remote_cluster::CredentialsStatus, volume_move::VolumeMove},
    cluster::{Cause, Cluster, slim::Twin},
    fleet::{AccessFacts, Link, Remote},
    offload::first_names,
    placement::Fabric,
    topology::Node,
    unserved::unserved,
    volume::{
        ClusterId,
        moving::{MoveUid, SourceMark},
    },
    watched::Watched,
};

/// The most volumes that a message names.
const NAMED: usize = 5;
/// The most classes, and nodes, in the status.
const MOST_NAMES: usize = 200;
/// The longest name of an object in Kubernetes.
const LONGEST_NAME: usize = 253;

/// The observed state of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterReport {
    pub(super) id: ClusterId,
    /// The fabric that declares it, if it is discovered.
    pub(super) fabric: Option<&'static Fabric>,
    /// The object that declares it.
    pub(super) object: String,
    pub(super) state: State,
    /// Why it is not ready.
    pub(super) message: String,
    pub(super) server_version: Option<String>,
    /// The nodes that represent it.
    pub(super) nodes: Vec<String>,
    /// The storage classes in the cluster.
    pub(super) classes: Vec<String>,
    /// The rights that the driver lacks there, and the consequences.
    pub(super) limits: Vec<String>,
    pub(super) credentials: Option<CredentialsStatus>,
    /// The uid of the cluster, if the driver may read it.
    pub(super) uid: Option<String>,
    /// The uid of the `RemoteCluster` whose kubeconfig led there, if one did.
    pub(super) object_uid: Option<String>,
}

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Twins can be created there.
    Ready,
    /// Not contacted yet.
    Connecting,
    /// The API server does not answer.
    Unreachable,
    /// It does not accept the credentials.
    Unauthorized,
    Refused,
}

/// Observes a declared cluster.
pub(super) fn report(home: &Cluster, remote: &Remote, settings: &Settings) -> ClusterReport {
    let nodes = home.views().nodes.all();
    let selected = nodes.iter().filter(|node| remote.nodes.admits(node));
    let (real, virtual_nodes): (Vec<_>, Vec<_>) = selected.partition(|node| node.has_driver());
    let mut report = connection(remote, names(&virtual_nodes));
    let unserved = unserved(home, remote, settings);
    report.limits.extend(unserved.into_iter().map(|one| one.message));
    if !real.is_empty() {
        report.limits.push(format!(
            "these nodes match the selector, but are real nodes and do not represent the cluster: {}. Narrow the selector",
            list_some(&names(&real))
        ));
    }
    report
}

fn names(nodes: &[&Arc<Node>]) -> Vec<String> {
    let mut names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    names.sort();
    names.truncate(MOST_NAMES);
    names
}

fn connection(remote: &Remote, nodes: Vec<String>) -> ClusterReport {
    let mut report = ClusterReport {
        id: remote.id.clone(),
        fabric: remote.fabric,
        object: remote.object.clone(),
        nodes,
        state: State::Connecting,
        message: String::new(),
        server_version: None,
        classes: Vec::new(),
        limits: Vec::new(),
        credentials: remote.access().map(credentials),
        uid: None,
        object_uid: remote.object_uid.clone(),
    };
    match remote.link() {
        Link::Connecting(why) => report.message = why,
        Link::Unreachable(cause) => {
            report.state = match cause {
                Cause::Unauthorized(_) => State::Unauthorized,
                _ => State::Unreachable,
            };
            report.message = format!("{cause}{}", refused(remote, report.state));
        }
        Link::Refused(why) | Link::Disputed(why) => (report.state, report.message) = (State::Refused, why),
        Link::Up(connected) => {
            report.state = State::Ready;
            report.server_version = Some(connected.version.clone());
            report.uid.clone_from(&connected.uid);
            let classes = connected.cluster.views().classes.all();
            let names = classes.iter().map(|class| class.name.clone());
            // The API server there is not trusted, and these names go into an object of the home cluster.
            report.classes = names.filter(|name| name.len() <= LONGEST_NAME).collect();
            report.classes.sort();
            report.classes.truncate(MOST_NAMES);
            let losses = connected.cluster.rights().losses();
            report.limits = losses.into_iter().map(str::to_owned).collect();
        }
    }
    report
}

/// Why an unreachable cluster does not accept the credentials, and the way out, if that is the cause.
fn refused(remote: &Remote, state: State) -> String {
    let ended = remote.access().and_then(|access| access.token.as_ref()?.expires);
    let ended = ended.filter(|at| *at <= jiff::Timestamp::now().as_second());
    let cause = match ended {
        Some(at) => format!("Its token expired at {}", moment(at)),
        None if state == State::Unauthorized => {
            "Its token or certificate was revoked, or is not of this cluster".to_owned()
        }
        None => return String::new(),
    };
    match &remote.fabric {
        None => format!(
            ". {cause}: liqo-csi connect {} --remote-context CONTEXT gives the driver another one",
            remote.id
        ),
        Some(fabric) => format!(". {cause}: {} has to renew it", fabric.name),
    }
}

fn credentials(access: &AccessFacts) -> CredentialsStatus {
    let token = access.token.as_ref();
    let renewed = token.filter(|token| token.is_renewed());
    CredentialsStatus {
        kubeconfig: access.seed.clone(),
        expires: token.and_then(|token| token.expires).map(moment),
        renews: renewed.and_then(TokenFacts::due).map(moment),
    }
}

/// Formats a time like Kubernetes.
fn moment(second: i64) -> String {
    let at = jiff::Timestamp::from_second(second).unwrap_or(jiff::Timestamp::MAX);
    at.strftime("%FT%TZ").to_string()
}

/// The first names, and how many more there are.
pub(super) fn list_some(claims: &[String]) -> String {
    first_names(claims, NAMED)
}

/// Claims of twins that are not handed over, or that a move has left.
pub(super) fn unfinished(twins: &[Arc<Twin>], moves: &Moves) -> Vec<String> {
    let unfinished = twins.iter().filter(|twin| moves.leave_unfinished(twin));
    let mut claims: Vec<String> = unfinished
        .filter_map(|twin| twin.claim.as_ref())
        .map(|claim| format!("{}/{}", claim.namespace, claim.name))
        .collect();
    claims.sort();
    claims
}

/// The existing moves, by whether their source or target is in a cluster. The same API server may also
/// contain twins of another `RemoteCluster`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Moves {
    pub(super) with_it: BTreeSet<MoveUid>,
    pub(super) without_it: BTreeSet<MoveUid>,
}

impl Moves {
    /// Sorts moves by the plan in their status. A move whose plan cannot be read may involve the cluster.
    pub(super) fn of(all: &[VolumeMove], id: &ClusterId) -> Self {
        let mut moves = Self::default();
        for one in all {
            let Ok(uid) = one.move_uid() else { continue };
            let leads_there = one.plan().map_or(true, |plan| {
                plan.iter()
                    .any(|planned| planned.source.id.cluster == *id || planned.target.id.cluster == *id)
            });
            if leads_there {
                moves.with_it.insert(uid);
            } else {
                moves.without_it.insert(uid);
            }
        }
        moves
    }

    fn leave_unfinished(&self, twin: &Twin) -> bool {
        match mover_of(twin) {
            Some(by) if twin.handed_over => self.with_it.contains(by),
            Some(by) => !self.without_it.contains(by),
            None => !twin.handed_over,
        }
    }
}

/// The move that is creating a twin, or has left it behind.
pub(super) fn mover_of(twin: &Twin) -> Option<&MoveUid> {
    let marks = twin.moves.as_ref().ok()?;
    match (&marks.target, &marks.source) {
        (Some(target), _) => Some(&target.by),
        (None, Some(SourceMark::Superseded { by, .. })) => Some(by),
        (None, Some(SourceMark::Moving { .. } | SourceMark::RolledBack { .. }) | None) => None,
    }
}

/// The volumes in a cluster, named by their claims.
pub(super) fn claims_in(watched: &Watched, cluster: &ClusterId) -> Vec<String> {
    let volumes = watched.volumes.virtual_volumes_in(cluster);
    let named = volumes.iter().map(|volume| match &volume.claim {
        Some(claim) => format!("{}/{}", claim.namespace, claim.name),
        None => volume.name.clone(),
    });
    let mut claims: Vec<String> = named.collect();
    claims.sort();
    claims
}
