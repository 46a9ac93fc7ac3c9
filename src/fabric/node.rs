//! The virtual node of a cluster: it is made, kept as it should be, says how its cluster is, and
//! goes when its `RemoteCluster` does. Of what is on it, only what the fabric itself has put
//! there is written: cordons, labels and taints of others stay.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{Node, Pod},
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{ResourceExt, api::ObjectMeta};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::places::{Place, Places};
use crate::{
    api::{
        fabric::{CapacitySource, Fabric},
        namespace_offloading::READY,
        remote_cluster::RemoteCluster,
    },
    cluster::{ApiError, Cause, Precondition, has_finalizer, short, unless_conflict},
    fleet::Link,
    observe::crash::{self, Step},
    offload::{Amounts, pods::FINALIZER as POD_FINALIZER, share_of, stated},
    reconcile::Rounds,
    topology::FABRIC_NODE,
    volume::ClusterId,
};

/// Keeps a `RemoteCluster` until its node is gone.
pub(super) const FINALIZER: &str = "fabric.storage.liqo.io/virtual-node";
/// Where kubelets have their leases.
const LEASES: &str = "kube-node-lease";
/// How many seconds a node may be silent, as with kubelets.
const LEASE_SECONDS: i32 = 40;
/// The status is written so often even if nothing has changed.
const HEARTBEAT: Duration = Duration::from_mins(1);
/// What the nodes there offer is looked at so often.
const RECOUNT: Duration = Duration::from_mins(1);
const TAINT: &str = "virtual-node.liqo.io/not-allowed";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const KIND: &str = "liqo.io/type";
const VIRTUAL: &str = "virtual-node";

/// Where the API server finds the logs of its pods.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    /// The address of this process.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

/// The loop for one node.
pub(super) struct NodeKeeper<'a> {
    places: &'a Places<'a>,
    cluster: ClusterId,
    name: String,
    endpoint: Option<Endpoint>,
    swept: watch::Receiver<bool>,
    written: Mutex<Option<Instant>>,
    counted: Mutex<Option<(Instant, Counted)>>,
}

/// What the nodes there are and offer.
#[derive(Clone, Debug, Default)]
struct Counted {
    amounts: Amounts,
    /// Labels that all of them have alike: operating system and architecture.
    uniform: BTreeMap<String, String>,
    /// Why they cannot be counted, if they cannot.
    trouble: Option<String>,
}

/// How the cluster is.
struct Health {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl<'a> NodeKeeper<'a> {
    pub(super) fn new(
        places: &'a Places<'a>,
        cluster: ClusterId,
        name: String,
        endpoint: Option<Endpoint>,
        swept: watch::Receiver<bool>,
    ) -> Self {
        Self {
            places,
            cluster,
            name,
            endpoint,
            swept,
            written: Mutex::default(),
            counted: Mutex::default(),
        }
    }

    fn object(&self) -> Option<Arc<RemoteCluster>> {
        self.places
            .home
            .views()
            .remote_clusters
            .get(self.cluster.as_str())
    }

    async fn keep(&self, object: &RemoteCluster, fabric: &Fabric) -> Result<(), ApiError> {
        if !has_finalizer(object, FINALIZER) {
            self.hold(object, true).await?;
        }
        let place = self.places.reach(&self.cluster).await;
        // Without it Kubernetes evicts the pods of a cluster that is well.
        let node = self.node(&self.labels(fabric, &self.last_counted())).await?;
        self.renew_lease(&node).await?;
        let counted = self.counted(fabric, place.as_ref().ok()).await;
        let labels = self.labels(fabric, &counted);
        let health = self.health(&place, &node).await;
        self.write(&node, &labels, &self.status(&node, &counted, &health))
            .await
    }

    fn last_counted(&self) -> Counted {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted
            .as_ref()
            .map(|(_, counted)| counted.clone())
            .unwrap_or_default()
    }

    /// The node, made if it is not there.
    async fn node(&self, labels: &BTreeMap<String, String>) -> Result<Node, ApiError> {
        let nodes = self.places.home.all::<Node>();
        let taken = || {
            nodes.failure("make", Cause::Conflict(format!(
                "the node {} is there already and is not the fabric's: set spec.fabric.nodeName of RemoteCluster {} to \
                 another name, or delete that node",
                self.name, self.cluster
            )))
        };
        let node = if let Some(node) = nodes.get(&self.name).await? {
            node
        } else {
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": self.name, "labels": labels},
                "spec": {"taints": [{"key": TAINT, "value": "true", "effect": "NoExecute"}]},
            });
            let wrong = |error: serde_json::Error| nodes.failure("make", Cause::Malformed(error.to_string()));
            let node: Node = serde_json::from_value(node).map_err(wrong)?;
            tracing::info!(node = self.name, cluster = %self.cluster, "making a virtual node");
            crash::around(Step::FabricNodeMake, nodes.create(&node))
                .await?
                .ok_or_else(taken)?
        };
        if node.labels().get(FABRIC_NODE).map(String::as_str) != Some(self.cluster.as_str()) {
            return Err(taken());
        }
        Ok(node)
    }

    fn labels(&self, fabric: &Fabric, counted: &Counted) -> BTreeMap<String, String> {
        let own = [
            ("kubernetes.io/hostname", self.name.as_str()),
            ("kubernetes.io/role", "agent"),
            ("type", "virtual-kubelet"),
            (KIND, VIRTUAL),
            ("liqo.io/remote-cluster-id", self.cluster.as_str()),
            ("node.kubernetes.io/exclude-from-external-load-balancers", "true"),
            ("alpha.service-controller.kubernetes.io/exclude-balancer", "true"),
            ("node.kubernetes.io/exclude-disruption", "true"),
            (FABRIC_NODE, self.cluster.as_str()),
        ];
        let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut labels = fabric.labels.clone();
        labels.extend(counted.uniform.clone());
        labels.extend(own);
        labels
    }

    async fn health(&self, place: &Result<Place, String>, node: &Node) -> Health {
        match place {
            // Names were freed: what still runs there is to be ended first.
            Ok(_) if is_out_of_service(node) => Health {
                status: "False",
                reason: "OutOfService",
                message: "the remote cluster answers; take the taint node.kubernetes.io/out-of-service off"
                    .to_owned(),
            },
            Ok(place) => match place.is_cluster(None).await {
                Ok(()) if *self.swept.borrow() => Health {
                    status: "True",
                    reason: "RemoteClusterReady",
                    message: "the remote cluster answers".to_owned(),
                },
                Ok(()) => Health {
                    status: "False",
                    reason: "RemotePodsUnknown",
                    message: "the pods of the remote cluster are being looked at".to_owned(),
                },
                Err(message) => Health {
                    status: "Unknown",
                    reason: "RemoteClusterUnreachable",
                    message,
                },
            },
            Err(message) => {
                let link = self
                    .places
                    .registry()
                    .get(&self.cluster)
                    .map(|remote| remote.link());
                let is_silent = matches!(link, Ok(Link::Unreachable(_) | Link::Connecting(_)));
                Health {
                    status: if is_silent { "Unknown" } else { "False" },
                    reason: if is_silent {
                        "RemoteClusterUnreachable"
                    } else {
                        "RemoteClusterUnusable"
                    },
                    message: message.clone(),
                }
            }
        }
    }

    fn status(&self, node: &Node, counted: &Counted, health: &Health) -> Value {
        let now = format!("{:.0}", Timestamp::now());
        let trouble = counted
            .trouble
            .iter()
            .map(|why| format!("; its capacity is not known: {why}"));
        let message = [health.message.clone()]
            .into_iter()
            .chain(trouble)
            .collect::<String>();
        let condition = |kind: &str, status: &str, reason: &str, message: &str| {
            let before = node.status.iter().flat_map(|it| it.conditions.iter().flatten());
            let before = before
                .into_iter()
                .find(|it| it.type_ == kind && it.status == status);
            let since = before.and_then(|it| it.last_transition_time.as_ref());
            let since = since.map_or_else(|| now.clone(), |it| format!("{:.0}", it.0));
            json!({
                "type": kind, "status": status, "reason": reason, "message": short(message),
                "lastHeartbeatTime": now, "lastTransitionTime": since,
            })
        };
        let fine = |kind| condition(kind, "False", "RemoteCluster", "it stands for a cluster");
        let mut status = json!({
            "capacity": counted.amounts,
            "allocatable": counted.amounts,
            "conditions": [
                condition("Ready", health.status, health.reason, &message),
                fine("MemoryPressure"), fine("DiskPressure"), fine("PIDPressure"), fine("NetworkUnavailable"),
            ],
            "nodeInfo": {
                "operatingSystem": counted.uniform.get("kubernetes.io/os").map_or("linux", String::as_str),
                "architecture": counted.uniform.get("kubernetes.io/arch").map_or("", String::as_str),
                "kubeletVersion": self.version().unwrap_or_default(),
                "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "machineID": "", "osImage": "", "systemUUID": "",
            },
        });
        if let Some(endpoint) = &self.endpoint {
            // A host name would come first where the API server looks for the address.
            status["addresses"] = json!([{"type": "InternalIP", "address": endpoint.address}]);
            status["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": endpoint.port}});
        }
        status
    }

    fn version(&self) -> Option<String> {
        match self.places.registry().get(&self.cluster).ok()?.link() {
            Link::Up(connected) => Some(connected.version.clone()),
            _ => None,
        }
    }

    /// Writes what has changed, and the status now and then although nothing has.
    async fn write(
        &self,
        node: &Node,
        labels: &BTreeMap<String, String>,
        status: &Value,
    ) -> Result<(), ApiError> {
        let nodes = self.places.home.all::<Node>();
        let missing: BTreeMap<_, _> = labels
            .iter()
            .filter(|(key, value)| node.labels().get(*key) != Some(*value))
            .collect();
        if !missing.is_empty() {
            let patch = json!({"metadata": {"uid": node.uid(), "labels": missing}});
            crash::around(Step::FabricNodeWrite, nodes.merge(&self.name, &patch)).await?;
        }
        let taints = node.spec.iter().flat_map(|it| it.taints.iter().flatten());
        if !taints.clone().any(|it| it.key == TAINT) {
            let ours = json!({"key": TAINT, "value": "true", "effect": "NoExecute"});
            let all: Vec<Value> = taints.map(|it| json!(it)).chain([ours]).collect();
            let exactly = json!({"uid": node.uid(), "resourceVersion": node.resource_version()});
            let patch = json!({"metadata": exactly, "spec": {"taints": all}});
            let written = crash::around(Step::FabricNodeWrite, nodes.merge(&self.name, &patch)).await;
            unless_conflict(written)?;
        }
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_recent = written.is_some_and(|when| when.elapsed() < HEARTBEAT);
        if !is_recent || differs(node, status) {
            let patch = json!({"metadata": {"uid": node.uid()}, "status": status});
            crash::around(
                Step::FabricNodeWrite,
                nodes.merge_status_lists(&self.name, &patch),
            )
            .await?;
            written = Some(Instant::now());
        }
        *self.written.lock().unwrap_or_else(PoisonError::into_inner) = written;
        Ok(())
    }

    async fn renew_lease(&self, node: &Node) -> Result<(), ApiError> {
        let leases = self.places.home.within::<Lease>(LEASES);
        let renewed = MicroTime(Timestamp::now());
        let patch = json!({"spec": {
            "holderIdentity": self.name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed,
        }});
        if crash::around(Step::FabricNodeLease, leases.merge(&self.name, &patch))
            .await?
            .is_some()
        {
            return Ok(());
        }
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": node.uid()}]);
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                owner_references: serde_json::from_value(owner).ok(),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.name.clone()),
                lease_duration_seconds: Some(LEASE_SECONDS),
                renew_time: Some(renewed),
                ..LeaseSpec::default()
            }),
        };
        crash::around(Step::FabricNodeLease, leases.create(&lease))
            .await
            .map(drop)
    }

    /// What the nodes there offer, counted a moment ago at most; what was counted before, while
    /// nobody answers.
    async fn counted(&self, fabric: &Fabric, place: Option<&Place>) -> Counted {
        let before = self
            .counted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let is_recent = before.as_ref().is_some_and(|(when, _)| when.elapsed() < RECOUNT);
        let counted = match place {
            Some(place) if !is_recent => count(place, fabric).await,
            _ => before
                .as_ref()
                .map(|(_, counted)| counted.clone())
                .unwrap_or_default(),
        };
        if place.is_some() && !is_recent {
            let mut kept = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
            *kept = Some((Instant::now(), counted.clone()));
        }
        match fabric.capacity.source {
            CapacitySource::Nodes => counted,
            CapacitySource::Static => Counted {
                amounts: stated(&fabric.capacity.amounts),
                trouble: None,
                ..counted
            },
        }
    }

    /// The `RemoteCluster` is being deleted: nothing new comes, and when nothing is there any
    /// more the node goes.
    async fn leave(&self, object: &RemoteCluster) -> Result<(), ApiError> {
        let nodes = self.places.home.all::<Node>();
        if let Some(node) = nodes.get(&self.name).await? {
            let is_ours = node.labels().get(FABRIC_NODE).map(String::as_str) == Some(self.cluster.as_str());
            if is_ours
                && !node
                    .spec
                    .as_ref()
                    .and_then(|it| it.unschedulable)
                    .unwrap_or_default()
            {
                let patch = json!({"metadata": {"uid": node.uid()}, "spec": {"unschedulable": true}});
                crash::around(Step::FabricNodeWrite, nodes.merge(&self.name, &patch)).await?;
            }
            if is_ours {
                self.renew_lease(&node).await?;
                if self.is_used().await? {
                    return Ok(());
                }
                let exactly = Precondition {
                    uid: node.uid().unwrap_or_default(),
                    resource_version: None,
                };
                crash::around(Step::FabricNodeDelete, nodes.delete(&self.name, exactly)).await?;
                tracing::info!(node = self.name, "deleted a virtual node");
            }
        }
        self.hold(object, false).await
    }

    /// Whether namespaces are there, or pods that may run there.
    async fn is_used(&self) -> Result<bool, ApiError> {
        let offloadings = self.places.home.views().offloadings.all();
        if offloadings
            .iter()
            .any(|one| one.condition(self.cluster.as_str(), READY).is_some())
        {
            return Ok(true);
        }
        let of_node = format!("spec.nodeName={}", self.name);
        let pods = self.places.home.all::<Pod>();
        let held = pods.pick(None, Some(&of_node), |pod| {
            pod.finalizers()
                .iter()
                .any(|it| it == POD_FINALIZER)
                .then_some(())
        });
        Ok(!held.await?.is_empty())
    }

    async fn hold(&self, object: &RemoteCluster, wanted: bool) -> Result<(), ApiError> {
        if has_finalizer(object, FINALIZER) == wanted {
            return Ok(());
        }
        let all = self.places.home.all::<RemoteCluster>();
        let changed = all.set_finalizer(object, FINALIZER, wanted);
        unless_conflict(crash::around(Step::FabricHold, changed).await).map(drop)
    }
}

impl Rounds for NodeKeeper<'_> {
    const NAME: &'static str = "virtual-node";
    const RESYNC: Duration = Duration::from_secs(10);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let views = self.places.home.views();
        let name = self.name.clone();
        vec![
            self.places.registry().changes(),
            views.remote_clusters.version(),
            views.nodes.changes_of(move |node| node.name == name),
        ]
    }

    fn due(&self) -> Option<Duration> {
        // The pods are looked at in a moment.
        (!*self.swept.borrow()).then_some(Duration::from_secs(1))
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let Some(object) = self.object() else {
            return Ok(());
        };
        match &object.spec.fabric {
            _ if object.metadata.deletion_timestamp.is_some() => self.leave(&object).await,
            Some(fabric) => self.keep(&object, fabric).await,
            None => Ok(()),
        }
    }
}

/// Whether the status says anything else but when it was written.
fn differs(node: &Node, status: &Value) -> bool {
    let timeless = |status: Value| {
        let mut status = status;
        if let Some(conditions) = status["conditions"].as_array_mut() {
            for condition in conditions {
                condition["lastHeartbeatTime"] = Value::Null;
                condition["lastTransitionTime"] = Value::Null;
            }
        }
        status
    };
    let now = timeless(json!(node.status));
    let wanted = timeless(status.clone());
    let fields = wanted.as_object().into_iter().flatten();
    fields.into_iter().any(|(field, value)| match field.as_str() {
        "conditions" => {
            let has = now["conditions"].as_array().cloned().unwrap_or_default();
            value
                .as_array()
                .into_iter()
                .flatten()
                .any(|one| !has.contains(one))
        }
        _ => now[field] != *value,
    })
}

/// Counts the nodes there that take pods of anybody.
async fn count(place: &Place, fabric: &Fabric) -> Counted {
    let nodes = place.cluster.all::<Node>();
    let open = match nodes
        .pick(None, None, |node| takes_pods(&node).then(|| offer(&node)))
        .await
    {
        Ok(open) => open,
        Err(error) => {
            let trouble = format!("{error}; set spec.fabric.capacity.source to Static");
            return Counted {
                trouble: Some(trouble),
                ..Counted::default()
            };
        }
    };
    let mut uniform = open.first().map(|(labels, _)| labels.clone()).unwrap_or_default();
    uniform.retain(|key, value| open.iter().all(|(labels, _)| labels.get(key) == Some(value)));
    Counted {
        amounts: share_of(open.iter().map(|(_, amounts)| amounts), fabric.capacity.share),
        uniform,
        trouble: None,
    }
}

/// Whether an administrator swears that nothing runs on a node any more (KEP 2268).
pub(super) fn is_out_of_service(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|it| it.taints.iter().flatten());
    taints.any(|it| it.key == OUT_OF_SERVICE)
}

pub(super) fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|it| it.conditions.iter().flatten());
    conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

fn takes_pods(node: &Node) -> bool {
    let labels = node.labels();
    let is_virtual = labels.get(KIND).map(String::as_str) == Some(VIRTUAL)
        || labels.get("type").map(String::as_str) == Some("virtual-kubelet");
    let spec = node.spec.as_ref();
    let is_closed = spec.and_then(|it| it.unschedulable).unwrap_or_default();
    let mut taints = spec.into_iter().flat_map(|it| it.taints.iter().flatten());
    let is_tainted = taints.any(|it| it.effect != "PreferNoSchedule");
    is_ready(node) && !is_virtual && !is_closed && !is_tainted
}

/// What one node is and offers.
fn offer(node: &Node) -> (BTreeMap<String, String>, Amounts) {
    let shared = ["kubernetes.io/os", "kubernetes.io/arch"];
    let labels = node
        .labels()
        .iter()
        .filter(|(key, _)| shared.contains(&key.as_str()));
    let labels = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
    let amounts = node.status.iter().flat_map(|it| it.allocatable.iter().flatten());
    let amounts = amounts
        .map(|(name, amount)| (name.clone(), amount.0.clone()))
        .collect();
    (labels, amounts)
}
