//! Says how it is with each remote cluster, where people look: in the status of
//! the `RemoteCluster` that declares it, and for all fabrics alike in a `ConfigMap`
//! that `liqo-csi clusters` reads. Nothing is ever decided by what is written here.
//!
//! A `RemoteCluster` that is deleted while volumes live there, or twins that became
//! none, is held until they are gone, and says which they are: without it nobody
//! could delete their data.

mod status;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, api::ObjectMeta};
use serde_json::json;
use tokio::sync::watch;

use self::status::{Holdings, status, whole};
use super::{
    Metrics, Settings,
    rounds::{Rounds, each},
    unserved::unserved,
    watched::Watched,
};
use crate::{
    cluster::{
        ApiError, Cluster,
        registry::{Link, Registry, Remote},
        remote_cluster::RemoteCluster,
        report::{CONFIG_MAP, ClusterReport, REPORT, Report, State},
    },
    observe::crash::{self, Step},
    placement::Fabric,
    topology::Node,
    volume::ClusterId,
};

/// Keeps a `RemoteCluster` while something of ours is there.
const FINALIZER: &str = "storage.liqo.io/volumes";
/// As many volumes as a message names.
const NAMED: usize = 5;
/// As many classes as are shown.
const MOST_CLASSES: usize = 200;
/// Of an object in Kubernetes.
const LONGEST_NAME: usize = 253;

/// The loop that reports.
pub(super) struct Clusters<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    settings: &'a Settings,
    metrics: &'a Metrics,
    /// What was written last, so that nothing is written twice.
    written: Option<(Vec<ClusterReport>, BTreeSet<&'static str>)>,
}

impl<'a> Clusters<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        registry: &'a Registry,
        watched: &'a Watched,
        settings: &'a Settings,
        metrics: &'a Metrics,
    ) -> Self {
        Self {
            home,
            registry,
            watched,
            settings,
            metrics,
            written: None,
        }
    }

    fn reports(&self, volumes: &HashMap<ClusterId, Vec<String>>) -> Vec<ClusterReport> {
        let nodes = self.home.views().nodes.all();
        let remotes = self.registry.all();
        let report = |remote: &Arc<Remote>| {
            let selected = nodes.iter().filter(|node| remote.nodes.admits(node));
            let (real, standing): (Vec<_>, Vec<_>) = selected.partition(|node| node.has_driver());
            let names = |nodes: Vec<&Arc<Node>>| {
                let mut names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
                names.sort();
                names
            };
            let volumes = volumes.get(&remote.id).map_or(0, Vec::len);
            let mut report = report(remote, names(standing), volumes);
            let unserved = unserved(self.home, remote, self.settings);
            report.limits.extend(unserved.into_iter().map(|one| one.message));
            if !real.is_empty() {
                report.limits.push(format!(
                    "these nodes are selected, but are real and stand for nothing: {}. Narrow the selector",
                    some_of(&names(real))
                ));
            }
            report
        };
        let declared = |id: &ClusterId| remotes.iter().any(|remote| remote.id == *id);
        let mut lost: Vec<ClusterReport> = volumes
            .iter()
            .filter(|(id, _)| !declared(id))
            .map(|(id, claims)| undeclared(id, claims))
            .collect();
        lost.sort_by(|a, b| a.id.cmp(&b.id));
        remotes.iter().map(report).chain(lost).collect()
    }

    fn holdings(&self, name: &str, volumes: &HashMap<ClusterId, Vec<String>>) -> Holdings {
        let remotes = self.registry.all();
        let remote = remotes.iter().find(|remote| remote.id.as_str() == name);
        Holdings {
            volumes: remote
                .and_then(|remote| volumes.get(&remote.id))
                .cloned()
                .unwrap_or_default(),
            unfinished: remote.map_or_else(|| Ok(Vec::new()), |remote| unfinished(remote)),
            disputed: remote.is_some_and(|remote| matches!(remote.link(), Link::Disputed(_))),
        }
    }

    async fn publish(
        &mut self,
        reports: Vec<ClusterReport>,
        unread: BTreeSet<&'static str>,
    ) -> Result<(), ApiError> {
        let wanted = (reports, unread);
        if self.written.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let report = Report {
            version: 1,
            written: jiff::Timestamp::now().to_string(),
            by: self.settings.identity.clone(),
            clusters: wanted.0.clone(),
            unread: wanted.1.iter().map(|&group| group.to_owned()).collect(),
        };
        let text = serde_json::to_string_pretty(&report).unwrap_or_default();
        let maps = self.home.within::<ConfigMap>(&self.settings.namespace);
        let data = BTreeMap::from([(REPORT.to_owned(), text)]);
        let patch = json!({"data": data});
        let merged = crash::around(Step::ReportWrite, maps.merge(CONFIG_MAP, &patch)).await?;
        if merged.is_none() {
            let map = ConfigMap {
                metadata: ObjectMeta {
                    name: Some(CONFIG_MAP.to_owned()),
                    ..ObjectMeta::default()
                },
                data: Some(data),
                ..ConfigMap::default()
            };
            crash::around(Step::ReportWrite, maps.create(&map)).await?;
        }
        self.written = Some(wanted);
        Ok(())
    }

    /// Status and finalizer of one `RemoteCluster`.
    async fn tend(
        &self,
        object: &RemoteCluster,
        report: &ClusterReport,
        holdings: &Holdings,
    ) -> Result<(), ApiError> {
        let all = self.home.all::<RemoteCluster>();
        let held = object.finalizers().iter().any(|one| one == FINALIZER);
        let leaving = object.metadata.deletion_timestamp.is_some();
        if held != holdings.hold(held, leaving) && (held || !leaving) {
            let mut finalizers = object.finalizers().to_vec();
            finalizers.retain(|one| one != FINALIZER);
            if !held {
                finalizers.push(FINALIZER.to_owned());
            }
            let patch = json!({"metadata": {
                "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": finalizers,
            }});
            let changed = crash::around(Step::ClusterWrite, all.merge(&object.name_any(), &patch)).await;
            match changed {
                // The next round looks again.
                Err(error) if error.is_conflict() => return Ok(()),
                other => other?,
            };
            if held && leaving {
                return Ok(());
            }
        }
        let status = status(object, report, holdings);
        if object
            .status
            .as_ref()
            .map(serde_json::to_value)
            .and_then(Result::ok)
            == Some(status.clone())
        {
            return Ok(());
        }
        let written = crash::around(
            Step::ClusterWrite,
            all.merge_status(&object.name_any(), &json!({"status": whole(status)})),
        )
        .await;
        written.map(|_| ())
    }
}

fn report(remote: &Remote, nodes: Vec<String>, volumes: usize) -> ClusterReport {
    let mut report = ClusterReport {
        id: remote.id.to_string(),
        fabric: remote.fabric.to_string(),
        object: remote.object.clone(),
        policy: remote.policy.as_str().to_owned(),
        nodes,
        volumes,
        state: State::Connecting,
        message: String::new(),
        server_version: None,
        classes: Vec::new(),
        limits: Vec::new(),
    };
    match remote.link() {
        Link::Connecting(why) => report.message = why,
        Link::Unreachable(why) => (report.state, report.message) = (State::Unreachable, why),
        Link::Refused(why) | Link::Disputed(why) => (report.state, report.message) = (State::Refused, why),
        Link::Up(connected) => {
            report.state = State::Ready;
            report.server_version = Some(connected.version.clone());
            let classes = connected.cluster.views().classes.all();
            let names = classes.iter().map(|class| class.name.clone());
            // The API server there may say anything, and who reads this is an object of ours.
            report.classes = names.filter(|name| name.len() <= LONGEST_NAME).collect();
            report.classes.sort();
            report.classes.truncate(MOST_CLASSES);
            let losses = connected.cluster.rights().losses();
            report.limits = losses.into_iter().map(str::to_owned).collect();
        }
    }
    report
}

fn undeclared(id: &ClusterId, claims: &[String]) -> ClusterReport {
    ClusterReport {
        id: id.to_string(),
        fabric: String::new(),
        object: String::new(),
        policy: String::new(),
        nodes: Vec::new(),
        volumes: claims.len(),
        state: State::Undeclared,
        message: format!(
            "no declaration of this cluster is found, and volumes are there: {}. They can be neither used anew nor deleted until a \
             RemoteCluster or its fabric declares it again, under this very id",
            some_of(claims)
        ),
        server_version: None,
        classes: Vec::new(),
        limits: Vec::new(),
    }
}

fn some_of(claims: &[String]) -> String {
    let named: Vec<&str> = claims.iter().take(NAMED).map(String::as_str).collect();
    match claims.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Claims for which twins are in a cluster that nobody was given.
fn unfinished(remote: &Remote) -> Result<Vec<String>, String> {
    let cluster = remote.reach().map_err(|why| why.to_string())?;
    let twins = cluster.all_twins();
    let unfinished = twins.iter().filter(|twin| !twin.handed_over);
    let mut claims: Vec<String> = unfinished
        .filter_map(|twin| twin.claim.as_ref())
        .map(|claim| format!("{}/{}", claim.namespace, claim.name))
        .collect();
    claims.sort();
    Ok(claims)
}

/// What each remote cluster holds, as claims that people know.
fn volumes_by_cluster(watched: &Watched, home: &ClusterId) -> HashMap<ClusterId, Vec<String>> {
    let remote = watched.clusters_of_volumes().into_iter().filter(|id| id != home);
    let held = remote.map(|id| {
        let named = watched
            .virtual_volumes_in(&id)
            .into_iter()
            .map(|volume| match volume.claim {
                Some(claim) => format!("{}/{}", claim.namespace, claim.name),
                None => volume.name,
            });
        let mut claims: Vec<String> = named.collect();
        claims.sort();
        (id, claims)
    });
    held.collect()
}

impl Rounds for Clusters<'_> {
    const NAME: &'static str = "clusters";
    const RESYNC: Duration = Duration::from_mins(1);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        vec![
            self.registry.changes(),
            self.watched.volumes.version(),
            self.home.views().nodes.version(),
            self.home.views().classes.version(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let Some(unread) = self.registry.unread() else {
            return Ok(());
        };
        let volumes = volumes_by_cluster(self.watched, self.home.id());
        let reports = self.reports(&volumes);
        let reachable = reports
            .iter()
            .map(|report| (report.id.as_str(), report.state == State::Ready));
        self.metrics.reachable(reachable);
        let native: Vec<&ClusterReport> = reports
            .iter()
            .filter(|report| report.fabric == Fabric::Native.to_string())
            .collect();
        let mut outcome = Ok(());
        if !native.is_empty() {
            let objects = self.home.all::<RemoteCluster>().list(None).await?;
            let this = &*self;
            outcome = each(&objects, async |object: &RemoteCluster| {
                let name = object.name_any();
                let Some(report) = native.iter().find(|report| report.id == name) else {
                    return Ok(());
                };
                this.tend(object, report, &this.holdings(&name, &volumes)).await
            })
            .await;
        }
        outcome.and(self.publish(reports, unread).await)
    }
}

#[cfg(test)]
mod tests;
