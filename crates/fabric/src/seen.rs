//! The fields of pods that views keep: what identifies them, and digests of the rest. A pod with a
//! few containers has 15 KiB, several times that when parsed, and there are thousands. Decisions
//! and writes use the full object, read live ([`RawPod`]).

use std::{
    borrow::Cow,
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use jiff::Timestamp;
use kube::{Resource, ResourceExt, api::ObjectMeta, core::NamespaceResourceScope};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    cluster::view::Slim,
    marks::{HOME_POD_UID, HOME_UID},
    offload::{
        Labels, is_name, is_uid,
        pods::{GATE, HomePod, STARTED},
        requests::{Requesting, Requests, beyond},
    },
    raw::{RawPod, has_our_finalizer, home_key, home_pod, place},
};

/// Containers that are kept of one pod.
const MOST_CONTAINERS: usize = 100;

/// A pod as it is received: only the fields that are kept get parsed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SentPod {
    metadata: ObjectMeta,
    spec: Option<Box<RawValue>>,
    status: Option<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    containers: Vec<Named>,
    ephemeral_containers: Vec<Named>,
    init_containers: Vec<Named>,
    scheduling_gates: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: Box<str>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
    start_time: Option<String>,
    conditions: Vec<Condition>,
    container_statuses: Vec<Container>,
    ephemeral_container_statuses: Vec<Container>,
    init_container_statuses: Vec<Container>,
}

#[derive(Deserialize)]
struct Condition {
    r#type: String,
    message: Option<Box<str>>,
}

#[derive(Deserialize)]
struct Container {
    name: Box<str>,
    #[serde(default)]
    state: State,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct State {
    running: Option<Running>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Running {
    started_at: Option<String>,
}

/// Amounts in billionths, by resource.
type BoxedRequests = Box<[(Box<str>, i128)]>;

/// A pod as views keep it.
#[derive(Debug, PartialEq)]
pub(super) struct SeenPod {
    /// `namespace/name`.
    key: Box<str>,
    uid: Box<str>,
    pub(super) state: HomePod,
    pub(super) runs: bool,
    gated: bool,
    /// Cluster and namespace, of a home pod that has our finalizer.
    place: Option<(Box<str>, Box<str>)>,
    /// The uid of the remote pod that has started for it.
    started: Option<Box<str>>,
    /// The annotations of a remote pod about its home pod: uid of the home cluster, key and uid of the pod.
    home_uid: Option<Box<str>>,
    home_key: Option<Box<str>>,
    home_pod_uid: Option<Box<str>>,
    /// Only of a claimed home pod, like the next two fields.
    pub(super) labels: Labels,
    pub(super) containers: Box<[Box<str>]>,
    /// `None` if it has ended.
    pub(super) requests: Option<BoxedRequests>,
    /// The running containers of a remote pod, and when they started, in milliseconds.
    pub(super) since: Box<[(Box<str>, i64)]>,
    pub(super) digests: Digests,
}

/// Digests of the parts of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Digests {
    pub(super) metadata: u64,
    pub(super) spec: u64,
    pub(super) status: u64,
}

/// Parses a part of a pod; a malformed one counts as empty, and shows when the pod is read live.
fn read<T: Default + for<'de> Deserialize<'de>>(part: Option<&RawValue>) -> T {
    part.and_then(|it| serde_json::from_str(it.get()).ok())
        .unwrap_or_default()
}

pub(super) fn digest(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

impl SentPod {
    /// The node of a pod of another cluster.
    pub(super) fn node(&self) -> Option<Box<str>> {
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Assigned {
            node_name: Option<Box<str>>,
        }
        read::<Assigned>(self.spec.as_deref()).node_name
    }

    /// The requests of a remote pod that exceed those of its home pod.
    pub(super) fn requests_beyond(&self, home: Option<&SeenPod>) -> Requests {
        let mut requests = read::<Requesting>(self.spec.as_deref()).requests();
        let of_home = home.and_then(|it| it.requests.as_deref()).unwrap_or_default();
        beyond(
            &mut requests,
            of_home.iter().map(|(resource, amount)| (&**resource, *amount)),
        );
        requests
    }
}

impl SeenPod {
    pub(super) fn at_home(pod: &SentPod) -> Self {
        let (spec, status): (Spec, Status) = (read(pod.spec.as_deref()), read(pod.status.as_deref()));
        let mut seen = Self::of(pod, &status);
        // Other pods are not reported anywhere: their details are not needed.
        if has_our_finalizer(&pod.metadata) {
            let lists = [spec.containers, spec.ephemeral_containers, spec.init_containers];
            let names = lists.into_iter().flatten().map(|it| it.name);
            seen.containers = names.take(MOST_CONTAINERS).collect();
            let requests = || {
                read::<Requesting>(pod.spec.as_deref())
                    .requests()
                    .into_iter()
                    .collect()
            };
            seen.requests = (!seen.state.ended).then(requests);
            seen.labels = pod.metadata.labels.clone().unwrap_or_default();
            let place = place(&pod.metadata);
            seen.place = place.map(|(cluster, namespace)| (cluster.into(), namespace.into()));
        }
        seen
    }

    /// A pod of a remote cluster; `None` if its name or uid is malformed.
    pub(super) fn remote(pod: &SentPod) -> Option<Self> {
        let (name, uid) = (pod.metadata.name.as_deref()?, pod.metadata.uid.as_deref()?);
        if !is_name(name) || !is_uid(uid) {
            return None;
        }
        let (spec, status): (Spec, Status) = (read(pod.spec.as_deref()), read(pod.status.as_deref()));
        let mut seen = Self::of(pod, &status);
        // Only home pods have this condition.
        seen.started = None;
        let annotation = |key: &str| {
            let all = pod.metadata.annotations.as_ref()?;
            all.get(key).filter(|it| is_uid(it)).map(|it| it.as_str().into())
        };
        seen.home_uid = annotation(HOME_UID);
        seen.home_pod_uid = annotation(HOME_POD_UID);
        seen.home_key = home_key(&pod.metadata).map(Into::into);
        seen.gated = spec.scheduling_gates.iter().any(|it| *it.name == *GATE);
        let lists = [
            status.container_statuses,
            status.ephemeral_container_statuses,
            status.init_container_statuses,
        ];
        let since = lists
            .into_iter()
            .flatten()
            .filter(|it| is_name(&it.name))
            .filter_map(|it| {
                let at: Timestamp = it.state.running?.started_at?.parse().ok()?;
                Some((it.name, at.as_millisecond()))
            });
        seen.since = since.take(MOST_CONTAINERS).collect();
        Some(seen)
    }

    fn of(pod: &SentPod, status: &Status) -> Self {
        let meta = &pod.metadata;
        let started = status.conditions.iter().find(|it| it.r#type == STARTED);
        let started = started.and_then(|it| it.message.clone());
        let text = |part: &Option<Box<RawValue>>| digest(part.as_ref().map(|it| it.get()));
        Self {
            key: format!(
                "{}/{}",
                meta.namespace.as_deref().unwrap_or_default(),
                pod.name_any()
            )
            .into(),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            state: home_pod(
                meta,
                status.start_time.is_some() || started.is_some(),
                matches!(status.phase.as_str(), "Succeeded" | "Failed"),
            ),
            runs: status.phase == "Running" && meta.deletion_timestamp.is_none(),
            gated: false,
            place: None,
            started,
            home_uid: None,
            home_key: None,
            home_pod_uid: None,
            labels: BTreeMap::new(),
            containers: Box::default(),
            requests: None,
            since: Box::default(),
            digests: Digests {
                metadata: digest((
                    (&meta.uid, &meta.labels, &meta.annotations, &meta.finalizers),
                    meta.owner_references
                        .iter()
                        .flatten()
                        .map(|it| (&it.uid, it.controller))
                        .collect::<Vec<_>>(),
                    meta.deletion_timestamp.as_ref().map(|it| it.0),
                    meta.deletion_grace_period_seconds,
                )),
                spec: text(&pod.spec),
                status: text(&pod.status),
            },
        }
    }

    /// `namespace/name`.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub(super) fn name(&self) -> &str {
        self.key.split_once('/').map_or("", |(_, name)| name)
    }

    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    /// Cluster and namespace in which a home pod may run.
    pub(super) fn place(&self) -> Option<(&str, &str)> {
        self.place
            .as_ref()
            .map(|(cluster, namespace)| (&**cluster, &**namespace))
    }

    /// The home pod in the annotation of a remote pod, as `namespace/name`.
    pub(super) fn home_key(&self) -> Option<&str> {
        self.home_key.as_deref()
    }

    pub(super) fn home_pod_uid(&self) -> Option<&str> {
        self.home_pod_uid.as_deref()
    }

    /// Whether this pod has the place and the name of the remote pod of `home` in this cluster, and
    /// names `home` in its annotations.
    pub(super) fn is_remote_of(&self, home: &Self, cluster: &str) -> bool {
        home.place() == Some((cluster, self.namespace()))
            && self.name() == home.name()
            && self.home_key() == Some(home.key())
            && self.home_pod_uid() == Some(home.uid())
    }

    /// Whether this is the remote pod that runs the containers of `home`, of the home cluster with this uid.
    pub(super) fn runs_for(&self, home: &Self, home_uid: &str) -> bool {
        self.home_uid.as_deref() == Some(home_uid)
            && self.home_key() == Some(home.key())
            && self.home_pod_uid() == Some(home.uid())
            && home.started.as_ref().is_none_or(|uid| *uid == self.uid)
            && !self.gated
            && !self.state.ended
    }
}

impl Slim for SeenPod {
    fn topic(&self) -> &str {
        self.namespace()
    }

    fn text(&self) -> usize {
        let optional = [&self.started, &self.home_uid, &self.home_key, &self.home_pod_uid];
        let optional = optional.into_iter().flatten().map(|it| it.len());
        let place = self
            .place
            .iter()
            .map(|(cluster, namespace)| cluster.len() + namespace.len());
        // A map takes about twice the size of its keys and values.
        let labels = self
            .labels
            .iter()
            .map(|(key, value)| 2 * (48 + key.len() + value.len()));
        let containers = self.containers.iter().map(|it| 16 + it.len());
        let since = self.since.iter().map(|(name, _)| 24 + name.len());
        let requests = self.requests.iter().flatten().map(|(name, _)| 32 + name.len());
        let parts: usize = optional
            .chain(place)
            .chain(labels)
            .chain(containers)
            .chain(requests)
            .chain(since)
            .sum();
        self.key.len() + self.uid.len() + parts
    }
}

impl Resource for SentPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        RawPod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        RawPod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        RawPod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        RawPod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        marks::{REMOTE_CLUSTER, REMOTE_CLUSTER_UID, REMOTE_NAMESPACE},
        offload::pods::FINALIZER,
    };

    const UID: &str = "0b7c8f9e-3a54-4f0e-9d4e-5f1d8a2b3c4d";
    /// The pods of each cluster.
    const PODS: usize = 1000;
    const CLUSTERS: usize = 10;

    /// A pod with two sidecars, of 15 KiB.
    fn with_sidecars(number: usize) -> Value {
        let env = |at: usize| json!({"name": format!("VARIABLE_{at}"), "value": "v".repeat(100)});
        let container = |name: &str| {
            json!({
                "name": name, "image": format!("registry.example.org/team/{name}:v1.2.3"),
                "env": (0..28).map(env).collect::<Vec<_>>(),
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            })
        };
        let state = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let status = |name: &str| json!({"name": name, "ready": true, "state": state, "imageID": "sha256:".repeat(10), "image": "i".repeat(60)});
        let names = ["app", "proxy", "log-shipper"];
        json!({
            "metadata": {
                "name": format!("checkout-7d9c5b8f64-{number:05}"), "namespace": "shop-production", "uid": UID,
                "labels": {"app": "checkout", "pod-template-hash": "7d9c5b8f64", "team": "payments", "tier": "backend"},
                "finalizers": [FINALIZER],
                "annotations": {
                    REMOTE_CLUSTER: "milan", REMOTE_CLUSTER_UID: UID, REMOTE_NAMESPACE: "shop-production-home",
                    HOME_UID: UID, HOME_POD_UID: UID,
                    "fabric.storage.liqo.io/home-pod": format!("shop-production/checkout-7d9c5b8f64-{number:05}"),
                    "sidecar.example.org/status": "s".repeat(2000),
                },
            },
            "spec": {"containers": names.map(container)},
            "status": {
                "phase": "Running", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": names.map(status),
                "conditions": [{"type": STARTED, "status": "True", "message": UID}],
            },
        })
    }

    fn seen(number: usize) -> [SeenPod; 2] {
        let text = with_sidecars(number).to_string();
        assert!((14 << 10..17 << 10).contains(&text.len()), "{} bytes", text.len());
        let sent: SentPod = serde_json::from_str(&text).unwrap();
        [SeenPod::at_home(&sent), SeenPod::remote(&sent).unwrap()]
    }

    /// The memory of a pod: its size in a view, the view's overhead, and the same overhead again
    /// for other maps whose keys are pods.
    fn weight(pod: &SeenPod) -> usize {
        3 * pod.key().len() + size_of::<SeenPod>() + pod.text() + 2 * 256
    }

    #[test]
    fn ten_thousand_pods_take_less_than_64_mebibytes() {
        let pods = seen(0);
        assert!(pods[0].runs && pods[0].place().is_some() && !pods[0].labels.is_empty());
        assert_eq!((pods[0].containers.len(), pods[1].since.len()), (3, 3));
        let each: usize = pods.iter().map(weight).sum();
        let all = each * PODS * CLUSTERS;
        assert!(
            all < 64 << 20,
            "{each} bytes for a pod, {} MiB for all",
            all >> 20
        );
    }

    /// It measures the resident set size of the process: run it alone.
    #[test]
    #[ignore = "measures its process"]
    fn resident_memory_of_ten_thousand_pods() {
        let pages = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
        };
        let before = pages();
        let all: Vec<_> = (0..PODS * CLUSTERS)
            .flat_map(|number| seen(number).map(Arc::new))
            .collect();
        let kib = (pages() - before) * 4;
        println!("{kib} KiB for {} pods here and there", all.len() / 2);
        assert!(kib < 64 << 10, "{kib} KiB");
    }

    #[test]
    fn of_pods_without_our_finalizer_no_details_are_kept() {
        let mut pod = with_sidecars(0);
        pod["metadata"]["finalizers"] = json!([]);
        let sent: SentPod = serde_json::from_str(&pod.to_string()).unwrap();
        let seen = SeenPod::at_home(&sent);
        assert!(seen.labels.is_empty() && seen.containers.is_empty() && seen.place().is_none());
        assert_eq!((seen.uid(), seen.namespace()), (UID, "shop-production"));
    }

    #[test]
    fn each_change_changes_a_digest() {
        let [before, _] = seen(0);
        for path in [
            "/metadata/labels/app",
            "/spec/containers/0/image",
            "/status/phase",
        ] {
            let mut pod = with_sidecars(0);
            *pod.pointer_mut(path).unwrap() = json!("other");
            let sent: SentPod = serde_json::from_str(&pod.to_string()).unwrap();
            assert_ne!(SeenPod::at_home(&sent).digests, before.digests, "{path}");
        }
    }
}
