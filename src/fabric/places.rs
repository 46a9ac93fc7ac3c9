//! Remote clusters as the fabric reaches them: which cluster it is that answers, and not another
//! one under its address.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use tokio::sync::OnceCell;

use crate::{
    api::remote_cluster::RemoteCluster,
    cluster::{ApiError, Cause, Cluster},
    fleet::Registry,
    volume::ClusterId,
};

/// The namespace that lives as long as its cluster.
const ETERNAL: &str = "kube-system";

/// A remote cluster that answers.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) cluster: Cluster,
    /// The uid of its namespace kube-system, when it was connected to.
    pub(super) uid: String,
}

/// All of them, and home.
pub(super) struct Places<'a> {
    pub(super) home: &'a Cluster,
    registry: &'a Registry,
    home_uid: OnceCell<String>,
    known: Mutex<HashMap<ClusterId, Place>>,
}

impl<'a> Places<'a> {
    pub(super) fn new(home: &'a Cluster, registry: &'a Registry) -> Self {
        Self {
            home,
            registry,
            home_uid: OnceCell::new(),
            known: Mutex::default(),
        }
    }

    pub(super) fn registry(&self) -> &'a Registry {
        self.registry
    }

    /// The uid of this cluster.
    pub(super) async fn home_uid(&self) -> Result<&str, ApiError> {
        let uid = self.home_uid.get_or_try_init(|| identity(self.home)).await?;
        Ok(uid)
    }

    /// The cluster of this id, or why nothing can be done there now.
    pub(super) async fn reach(&self, id: &ClusterId) -> Result<Place, String> {
        let remote = self.registry.get(id).map_err(|why| why.to_string())?;
        let cluster = remote.reach().map_err(|why| why.to_string())?;
        if let Some(place) = self.known(id).filter(|place| place.cluster.is_same(&cluster)) {
            return Ok(place);
        }
        let uid = identity(&cluster).await.map_err(|error| error.to_string())?;
        let place = Place { cluster, uid };
        self.is_expected(id, &place.uid)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(id.clone(), place.clone());
        Ok(place)
    }

    /// Whether a cluster of this uid may be the one of this id: what ran in another one is not
    /// looked for in it, and no two ids lead to one.
    fn is_expected(&self, id: &ClusterId, uid: &str) -> Result<(), String> {
        let kept = |cluster: &RemoteCluster| {
            let node = cluster.status.as_ref()?.virtual_node.as_ref()?;
            node.cluster_uid.clone()
        };
        let clusters = self.home.views().remote_clusters.all();
        for cluster in clusters {
            let name = cluster.name_any();
            let (is_this, is_same) = (name == id.as_str(), kept(&cluster).as_deref() == Some(uid));
            if is_this && kept(&cluster).is_some() && !is_same {
                return Err(format!(
                    "the kubeconfig of {id} leads to another cluster than before (its namespace kube-system has the uid \
                     {uid}): nothing is concluded from what it says. If it replaces the one before, delete the \
                     RemoteCluster {id} and make it again"
                ));
            }
            if !is_this && is_same {
                return Err(format!(
                    "the kubeconfig of {id} leads to the cluster that RemoteCluster {name} stands for: delete one of them"
                ));
            }
        }
        Ok(())
    }

    fn known(&self, id: &ClusterId) -> Option<Place> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(id).cloned()
    }
}

impl Place {
    /// Whether it is still that cluster that answers, and the cluster that is meant; why not, if
    /// it is another one.
    pub(super) async fn is_cluster(&self, meant: Option<&str>) -> Result<(), String> {
        let now = identity(&self.cluster).await.map_err(|error| error.to_string())?;
        let meant = meant.unwrap_or(&self.uid);
        if now == meant {
            return Ok(());
        }
        Err(format!(
            "the kubeconfig of {} leads to another cluster than before (its namespace kube-system has the uid {now}, not \
             {meant}): nothing is concluded from what it says",
            self.cluster.id()
        ))
    }
}

/// The uid by which a cluster is known: that of its namespace kube-system.
pub(super) async fn identity(cluster: &Cluster) -> Result<String, ApiError> {
    let all = cluster.all::<Namespace>();
    let found = all.get(ETERNAL).await?;
    let missing = || all.failure("identify the cluster by", Cause::NotFound(ETERNAL.to_owned()));
    found.and_then(|it| it.uid()).ok_or_else(missing)
}
