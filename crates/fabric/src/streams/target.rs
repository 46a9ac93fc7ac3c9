//! Which remote pod stands behind a pod at home. Both are read live: a name says nothing about who
//! it is, and a stream into the pod of somebody else must never begin.

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

/// A remote pod that is the one meant, and how its API server is reached.
pub(super) struct Target {
    pub(super) cluster: ClusterId,
    pub(super) namespace: String,
    pub(super) client: Client,
}

/// Where pods run.
pub(super) struct Finder {
    home: Cluster,
    registry: Registry,
    /// By which remote pods know this cluster.
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

    /// The cluster of the pods that are asked for.
    pub(super) fn home(&self) -> &Cluster {
        &self.home
    }

    /// The pod at home, read live.
    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, ApiError> {
        self.home.within::<Pod>(namespace).get(name).await
    }

    /// The pod that runs for this one.
    pub(super) async fn target(&self, pod: &Pod) -> Result<Target, Refusal> {
        let name = pod.name_any();
        let told = |what: &str| pod.annotations().get(what).filter(|text| !text.is_empty());
        let missing = || {
            let namespace = pod.namespace().unwrap_or_default();
            Refusal::NoPod(format!(
                "the pod {namespace}/{name} was not given to a remote cluster (yet)"
            ))
        };
        let cluster: ClusterId = told(REMOTE_CLUSTER)
            .and_then(|id| id.parse().ok())
            .ok_or_else(missing)?;
        let namespace = told(REMOTE_NAMESPACE)
            .filter(|namespace| is_name(namespace))
            .ok_or_else(missing)?;
        let remote = self.registry.get(&cluster)?;
        let there = remote.reach()?;
        let own = pod.namespace().unwrap_or_default();
        let is_mapped = remote.namespaces.remote(&own, &cluster) == Ok(namespace.as_str());
        // Whoever makes a pod writes its annotations, and must not learn what is in the namespaces of
        // others there. That it has started only the fabric says.
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
                 belongs to an earlier one, or to somebody else"
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
    /// Where the API server is asked this.
    pub(super) fn uri(&self, path: &str) -> Result<Uri, Refusal> {
        path.parse().map_err(|error: http::uri::InvalidUri| {
            Refusal::Broken(self.cluster.to_string(), error.to_string())
        })
    }
}
