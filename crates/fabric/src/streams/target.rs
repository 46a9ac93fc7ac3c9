//! Finds the remote pod of a home pod. Both are read live and compared by uid: a name may belong to another pod, and a
//! stream into the pod of another user must never start.

use http::Uri;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use tokio::sync::OnceCell;

use super::Refusal;
use crate::{
    cluster::{ApiError, Cluster},
    fleet::Registry,
    marks::{HOME_POD_UID, HOME_UID, REMOTE_CLUSTER, REMOTE_NAMESPACE},
    offload::{is_name, pods::STARTED},
    places::identity,
    volume::ClusterId,
};

/// A verified remote pod, and the client of its API server.
pub(super) struct Target {
    pub(super) cluster: ClusterId,
    pub(super) namespace: String,
    pub(super) client: Client,
}

pub(super) struct Finder {
    home: Cluster,
    registry: Registry,
    /// The uid of this cluster in the annotations of remote pods.
    home_uid: OnceCell<String>,
}

impl Finder {
    pub(super) fn new(home: Cluster, registry: Registry) -> Self {
        Self {
            home,
            registry,
            home_uid: OnceCell::new(),
        }
    }

    pub(super) fn home(&self) -> &Cluster {
        &self.home
    }

    /// Reads the home pod live.
    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, ApiError> {
        self.home.within::<Pod>(namespace).get(name).await
    }

    /// The remote pod of this home pod.
    pub(super) async fn target(&self, pod: &Pod) -> Result<Target, Refusal> {
        let name = pod.name_any();
        let annotation = |key: &str| pod.annotations().get(key).filter(|text| !text.is_empty());
        let missing = || {
            let namespace = pod.namespace().unwrap_or_default();
            Refusal::NoPod(format!(
                "the pod {namespace}/{name} was not given to a remote cluster (yet)"
            ))
        };
        let cluster: ClusterId = annotation(REMOTE_CLUSTER)
            .and_then(|id| id.parse().ok())
            .ok_or_else(missing)?;
        let namespace = annotation(REMOTE_NAMESPACE)
            .filter(|namespace| is_name(namespace))
            .ok_or_else(missing)?;
        let remote = self.registry.get(&cluster)?;
        let there = remote.reach()?;
        let own = pod.namespace().unwrap_or_default();
        let is_mapped = remote.namespaces.remote(&own, &cluster) == Ok(namespace.as_str());
        // A user can write the annotations of a pod, and must not learn which pods are in the remote namespaces of
        // other users. Only the fabric writes the condition that the pod has started.
        let found = if is_mapped || has_started(pod) {
            there.within::<Pod>(namespace).get(&name).await?
        } else {
            None
        };
        let found = found.ok_or_else(|| {
            Refusal::NoPod(format!(
                "the cluster {cluster} has no pod {namespace}/{name} (yet, or no longer)"
            ))
        })?;
        let runs_for = |what: &str, uid: &str| {
            !uid.is_empty() && found.annotations().get(what).is_some_and(|it| it == uid)
        };
        let uid = pod.uid().unwrap_or_default();
        if !runs_for(HOME_POD_UID, &uid) || !runs_for(HOME_UID, self.home_uid().await?) {
            return Err(Refusal::Foreign(format!(
                "the pod {namespace}/{name} of the cluster {cluster} does not run for the pod of this name here: it \
                 belongs to an earlier or another pod"
            )));
        }
        let client = remote.stream_client(self.home.calls().timeout).await?;
        Ok(Target {
            cluster,
            namespace: namespace.clone(),
            client,
        })
    }

    async fn home_uid(&self) -> Result<&str, ApiError> {
        let read = || identity(&self.home);
        self.home_uid.get_or_try_init(read).await.map(String::as_str)
    }
}

fn has_started(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let mut conditions = status.into_iter().flat_map(|it| it.conditions.iter().flatten());
    conditions.any(|it| it.type_ == STARTED)
}

impl Target {
    pub(super) fn uri(&self, path: &str) -> Result<Uri, Refusal> {
        path.parse().map_err(|error: http::uri::InvalidUri| {
            Refusal::BadAnswer(self.cluster.to_string(), error.to_string())
        })
    }
}
