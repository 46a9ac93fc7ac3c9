//! The controller of the virtual node of a cluster: creates it, keeps its labels, taints, lease and status, and deletes
//! it with its `RemoteCluster`. Labels, taints and cordons that others set stay.

mod count;
mod object;

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
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
use kube::{Resource, ResourceExt, api::ObjectMeta};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use self::{
    count::{AtHome, Counter},
    object::{Health, Marks, differs, status, status_patch},
};
use super::{
    places::{Place, Places},
    ports::{Endpoints, port_of},
};
use crate::{
    api::{
        fabric::Fabric,
        namespace_offloading::{NamespaceOffloading, READY},
        remote_cluster::{RemoteCluster, VirtualNodeStatus},
    },
    cluster::{
        ApiError, Cause, Precondition, events::Events, facts::is_out_of_service, has_finalizer,
        unless_conflict, view::View,
    },
    fleet::Link,
    observe::crash::{self, Step},
    offload::{Port, pods::FINALIZER as POD_FINALIZER},
    refused::{self, WRITE_REFUSED},
    rounds::Rounds,
    seen::SeenPod,
    topology::FABRIC_NODE,
    volume::ClusterId,
};

/// Keeps a `RemoteCluster` until its node is gone.
pub(super) const FINALIZER: &str = "fabric.storage.liqo.io/virtual-node";
/// The namespace of the leases of nodes.
const LEASES: &str = "kube-node-lease";
/// The value of kubelets.
const LEASE_SECONDS: i32 = 40;
/// The status is written at this interval even if nothing has changed.
const HEARTBEAT: Duration = Duration::from_mins(1);
/// Fields that the API server dropped are written again after this time: the CRD of `RemoteClusters` may have been
/// updated meanwhile.
const DROPPED_AGAIN: Duration = Duration::from_mins(1);

/// The address of the node's kubelet API for the API server.
#[derive(Clone, Copy, Debug)]
struct Endpoint {
    address: IpAddr,
    port: u16,
}

/// A written status, and the part of it that the API server has kept.
struct Dropped {
    wanted: VirtualNodeStatus,
    kept: VirtualNodeStatus,
    when: Instant,
}

pub(super) struct NodeKeeper<'a> {
    places: &'a Places<'a>,
    cluster: ClusterId,
    name: String,
    endpoints: Endpoints,
    events: Events,
    pods: View<SeenPod>,
    swept: watch::Receiver<bool>,
    written: Mutex<Option<Instant>>,
    lacks_port: AtomicBool,
    lacks_right: AtomicBool,
    has_old_definition: AtomicBool,
    dropped: Mutex<Option<Dropped>>,
    /// Created in the first round, from the labels in the status.
    counter: tokio::sync::Mutex<Option<Counter>>,
}

impl<'a> NodeKeeper<'a> {
    pub(super) fn new(
        places: &'a Places<'a>,
        cluster: ClusterId,
        name: String,
        endpoints: Endpoints,
        pods: View<SeenPod>,
        swept: watch::Receiver<bool>,
    ) -> Self {
        Self {
            places,
            cluster,
            name,
            endpoints,
            events: Events::new(places.home.client().clone()),
            pods,
            swept,
            written: Mutex::default(),
            lacks_port: AtomicBool::default(),
            lacks_right: AtomicBool::default(),
            has_old_definition: AtomicBool::default(),
            dropped: Mutex::default(),
            counter: tokio::sync::Mutex::default(),
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
            self.set_finalizer(object, true).await?;
        }
        self.refresh(object, fabric).await
    }

    /// Brings the node into its desired state: lease, status, labels and taints.
    async fn refresh(&self, object: &RemoteCluster, fabric: &Fabric) -> Result<(), ApiError> {
        let place = self.places.reach(&self.cluster).await;
        let mut counter = self.counter.lock().await;
        let kept = kept(object);
        let counter = counter.get_or_insert_with(|| Counter::after(kept.cluster_labels.clone()));
        let marks = self.marks(fabric, &counter.known(fabric));
        let node = self.node(&marks, &kept).await?;
        // Before the slow requests to the cluster: when the lease expires, Kubernetes evicts the pods of the node.
        self.renew_lease(&node).await?;
        if object.metadata.deletion_timestamp.is_some() {
            self.cordon(&node).await?;
        }
        let at_home = AtHome {
            pods: &self.pods,
            uid: self.places.home_uid().await?,
        };
        let capacity = counter.count(fabric, place.as_ref().ok(), &at_home).await;
        self.warn_of_right(object, capacity.refused.as_deref()).await;
        let health = self.health(&place, &node).await;
        let port = self.port(object).await;
        let status = status(
            &node,
            self.endpoint(port).as_ref(),
            &capacity,
            &health,
            self.version(),
        );
        let marks = self.marks(fabric, &capacity);
        let now = VirtualNodeStatus {
            cluster_uid: kept.cluster_uid.clone(),
            port: port.map(Port::number),
            cluster_labels: capacity.labels(),
            ..marks.of_others(&node)
        };
        // If the status cannot be written, the rest is written all the same.
        let written = self.write_status(&node, &status).await;
        self.remember(object, &kept, &now).await?;
        self.write_marks(&node, &marks).await?;
        written
    }

    /// The port of the node. Emits an event if there is none left.
    async fn port(&self, object: &RemoteCluster) -> Option<Port> {
        let (clusters, ports) = (
            self.places.home.views().remote_clusters.all(),
            &self.endpoints.ports,
        );
        let port = port_of(&clusters, ports, self.cluster.as_str());
        let had_none = self.lacks_port.swap(port.is_none(), Ordering::Relaxed);
        if port.is_none() && !had_none {
            let why = format!(
                "the fabric has {} ports for virtual nodes, and none is left for the node {}. Raise fabric.streams.ports of \
                 the chart",
                ports.len(),
                self.name
            );
            self.warn_of_port(object, "NoPortLeft", &why).await;
        }
        port
    }

    /// Emits an event if the node has no capacity because a right is missing, unless it was emitted already.
    async fn warn_of_right(&self, object: &RemoteCluster, refused: Option<&str>) {
        let was_emitted = self.lacks_right.swap(refused.is_some(), Ordering::Relaxed);
        if let Some(why) = refused.filter(|_| !was_emitted) {
            tracing::warn!(cluster = %self.cluster, why, "the capacity of a virtual node is unknown");
            self.events
                .warn_object(object.object_ref(&()), "CapacityUnknown", why)
                .await;
        }
    }

    async fn warn_of_port(&self, object: &RemoteCluster, reason: &'static str, why: &str) {
        let note = format!("Pods there have no logs, exec, attach, port-forward and metrics: {why}");
        tracing::warn!(cluster = %self.cluster, note, "a virtual node has no port");
        self.events
            .warn_object(object.object_ref(&()), reason, &note)
            .await;
    }

    /// Emits an event if a policy or webhook of this cluster refuses a write: the node may not exist yet.
    async fn report_refused(&self, object: &RemoteCluster, error: &ApiError) {
        let note = refused::note(&format!("the virtual node {}", self.name), error);
        let about = object.object_ref(&());
        self.events.warn_object(about, WRITE_REFUSED, &note).await;
    }

    /// Where the API server reaches the node. `None` until the port is recorded: other replicas would not know it.
    fn endpoint(&self, port: Option<Port>) -> Option<Endpoint> {
        match (self.endpoints.address, port) {
            (Some(address), Some(Port::Recorded(port))) => Some(Endpoint { address, port }),
            _ => None,
        }
    }

    fn marks(&self, fabric: &Fabric, counted: &count::Counted) -> Marks {
        Marks::of(&self.name, self.cluster.as_str(), fabric, counted)
    }

    /// Records in the `RemoteCluster` what other clients have set on the node, and the labels of
    /// the cluster, so that they survive the deletion of the node.
    async fn remember(
        &self,
        object: &RemoteCluster,
        kept: &VirtualNodeStatus,
        now: &VirtualNodeStatus,
    ) -> Result<(), ApiError> {
        if kept == now || self.was_dropped(kept, now) {
            return Ok(());
        }
        let mut patch_status = json!({"port": null, "clusterLabels": null, "labels": null, "taints": null, "unschedulable": null});
        if let (Some(patch_status), Ok(Value::Object(fields))) =
            (patch_status.as_object_mut(), serde_json::to_value(now))
        {
            patch_status.extend(fields);
            // Recorded before the node is created.
            patch_status.remove("clusterUid");
        }
        // A merge patch removes a label only with an explicit null.
        for (field, before, now) in [
            ("labels", &kept.labels, &now.labels),
            ("clusterLabels", &kept.cluster_labels, &now.cluster_labels),
        ] {
            for key in before.keys().filter(|key| !now.contains_key(*key)) {
                patch_status[field][key] = Value::Null;
            }
        }
        let all = self.places.home.all::<RemoteCluster>();
        let written = all.merge_status_of(object, json!({"status": {"virtualNode": patch_status}}));
        let Some(object) = crash::around(Step::FabricNodeRemember, written).await? else {
            return Ok(());
        };
        // Helm does not upgrade CRDs, and the API server drops fields that they lack.
        let kept = self::kept(&object);
        let is_old = kept.port != now.port;
        let dropped = (kept != *now).then(|| Dropped {
            wanted: now.clone(),
            kept,
            when: Instant::now(),
        });
        *self.dropped.lock().unwrap_or_else(PoisonError::into_inner) = dropped;
        if is_old && !self.has_old_definition.swap(true, Ordering::Relaxed) {
            let why = "the CustomResourceDefinition remoteclusters.storage.liqo.io is older than this driver and keeps no \
                       port of the node. Apply those of the chart's folder crds (liqo-csi crds prints them)";
            self.warn_of_port(&object, "DefinitionOutdated", why).await;
        }
        Ok(())
    }

    /// Whether this status was written a moment ago, and the API server kept only this part of it.
    fn was_dropped(&self, kept: &VirtualNodeStatus, now: &VirtualNodeStatus) -> bool {
        let dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped
            .as_ref()
            .is_some_and(|it| it.wanted == *now && it.kept == *kept && it.when.elapsed() < DROPPED_AGAIN)
    }

    /// The node, created if it does not exist.
    async fn node(&self, marks: &Marks, kept: &VirtualNodeStatus) -> Result<Node, ApiError> {
        let nodes = self.places.home.all::<Node>();
        let taken = || {
            nodes.failure("create", Cause::Conflict(format!(
                "the node {} exists already and is not the fabric's: set spec.fabric.nodeName of RemoteCluster {} to \
                 another name, or delete that node",
                self.name, self.cluster
            )))
        };
        let node = if let Some(node) = nodes.get(&self.name).await? {
            node
        } else {
            let node = marks.new_node(&self.name, kept);
            let wrong =
                |error: serde_json::Error| nodes.failure("create", Cause::Malformed(error.to_string()));
            let node: Node = serde_json::from_value(node).map_err(wrong)?;
            tracing::info!(node = self.name, cluster = %self.cluster, "creating a virtual node");
            crash::around(Step::FabricNodeMake, nodes.create(&node))
                .await?
                .ok_or_else(taken)?
        };
        if node.labels().get(FABRIC_NODE).map(String::as_str) != Some(self.cluster.as_str()) {
            return Err(taken());
        }
        Ok(node)
    }

    async fn health(&self, place: &Result<Place, String>, node: &Node) -> Health {
        match place {
            // Home pods were deleted without their remote pods, which have to end first.
            Ok(_) if is_out_of_service(node) => Health {
                status: "False",
                reason: "OutOfService",
                message: "the remote cluster answers; remove the taint node.kubernetes.io/out-of-service"
                    .to_owned(),
            },
            Ok(place) => match place.verify(None).await {
                Ok(()) if *self.swept.borrow() => Health {
                    status: "True",
                    reason: "RemoteClusterReady",
                    message: "the remote cluster answers".to_owned(),
                },
                Ok(()) => Health {
                    status: "False",
                    reason: "RemotePodsUnknown",
                    message: "reading the pods of the remote cluster".to_owned(),
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
                let is_unreachable = matches!(link, Ok(Link::Unreachable(_) | Link::Connecting(_)));
                Health {
                    status: if is_unreachable { "Unknown" } else { "False" },
                    reason: if is_unreachable {
                        "RemoteClusterUnreachable"
                    } else {
                        "RemoteClusterUnusable"
                    },
                    message: message.clone(),
                }
            }
        }
    }

    fn version(&self) -> Option<String> {
        match self.places.registry().get(&self.cluster).ok()?.link() {
            Link::Up(connected) => Some(connected.version.clone()),
            _ => None,
        }
    }

    /// Writes the labels and taints that differ.
    async fn write_marks(&self, node: &Node, marks: &Marks) -> Result<(), ApiError> {
        let Some(patch) = marks.changes(node) else {
            return Ok(());
        };
        let nodes = self.places.home.all::<Node>();
        let written = crash::around(Step::FabricNodeWrite, nodes.merge(&self.name, &patch)).await;
        unless_conflict(written).map(drop)
    }

    /// Writes the status if it has changed or the heartbeat is due.
    async fn write_status(&self, node: &Node, status: &Value) -> Result<(), ApiError> {
        let nodes = self.places.home.all::<Node>();
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_recent = written.is_some_and(|when| when.elapsed() < HEARTBEAT);
        if !is_recent || differs(node, status) {
            let patch = status_patch(node, status);
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
        // A policy lets the fabric write only leases with this label.
        let labels = json!({FABRIC_NODE: self.cluster.as_str()});
        let patch = json!({"metadata": {"labels": labels}, "spec": {
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
                labels: serde_json::from_value(labels).ok(),
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

    /// The `RemoteCluster` is being deleted: cordons the node, and deletes it once it is not used any more.
    async fn leave(&self, object: &RemoteCluster) -> Result<(), ApiError> {
        let is_used = self.is_used().await?;
        if let (true, Some(fabric)) = (is_used, &object.spec.fabric) {
            // Pods that still run need logs; and a node without status cannot be declared out of service.
            return self.refresh(object, fabric).await;
        }
        let nodes = self.places.home.all::<Node>();
        let node = nodes.get(&self.name).await?;
        let is_ours =
            |it: &Node| it.labels().get(FABRIC_NODE).map(String::as_str) == Some(self.cluster.as_str());
        if let Some(node) = node.filter(is_ours) {
            self.cordon(&node).await?;
            if is_used {
                return self.renew_lease(&node).await;
            }
            let exactly = Precondition {
                uid: node.uid().unwrap_or_default(),
                resource_version: None,
            };
            crash::around(Step::FabricNodeDelete, nodes.delete(&self.name, exactly)).await?;
            tracing::info!(node = self.name, "deleted a virtual node");
        }
        self.set_finalizer(object, false).await
    }

    async fn cordon(&self, node: &Node) -> Result<(), ApiError> {
        if node
            .spec
            .as_ref()
            .is_some_and(|it| it.unschedulable == Some(true))
        {
            return Ok(());
        }
        let nodes = self.places.home.all::<Node>();
        let patch = json!({"metadata": {"uid": node.uid()}, "spec": {"unschedulable": true}});
        crash::around(Step::FabricNodeWrite, nodes.merge(&self.name, &patch))
            .await
            .map(drop)
    }

    /// Whether the cluster has remote namespaces, or the node has pods that may run there.
    async fn is_used(&self) -> Result<bool, ApiError> {
        // Live reads: the views of a new leader may not be complete.
        let offloadings = self.places.home.all::<NamespaceOffloading>();
        let is_there = |one: NamespaceOffloading| one.condition(self.cluster.as_str(), READY).map(drop);
        match offloadings.pick(None, None, is_there).await {
            // The kind is not defined.
            Err(error) if matches!(error.cause, Cause::NotFound(_)) => {}
            found if found.as_ref().is_ok_and(Vec::is_empty) => {}
            found => return found.map(|_| true),
        }
        let of_node = format!("spec.nodeName={}", self.name);
        let pods = self.places.home.all::<Pod>();
        let claimed = pods.pick(None, Some(&of_node), |pod| {
            pod.finalizers()
                .iter()
                .any(|it| it == POD_FINALIZER)
                .then_some(())
        });
        Ok(!claimed.await?.is_empty())
    }

    async fn set_finalizer(&self, object: &RemoteCluster, wanted: bool) -> Result<(), ApiError> {
        if has_finalizer(object, FINALIZER) == wanted {
            return Ok(());
        }
        let all = self.places.home.all::<RemoteCluster>();
        let changed = all.set_finalizer(object, FINALIZER, wanted);
        unless_conflict(crash::around(Step::FabricHold, changed).await).map(drop)
    }
}

/// What the `RemoteCluster` has recorded of the node.
fn kept(object: &RemoteCluster) -> VirtualNodeStatus {
    let node = object.status.as_ref().and_then(|it| it.virtual_node.clone());
    node.unwrap_or_default()
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
        // The first reconciliation of the pods takes a moment.
        (!*self.swept.borrow()).then_some(Duration::from_secs(1))
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let Some(object) = self.object() else {
            return Ok(());
        };
        let outcome = match &object.spec.fabric {
            _ if object.metadata.deletion_timestamp.is_some() => self.leave(&object).await,
            Some(fabric) => self.keep(&object, fabric).await,
            None => Ok(()),
        };
        if let Err(error) = &outcome
            && error.is_refusal()
        {
            self.report_refused(&object, error).await;
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
