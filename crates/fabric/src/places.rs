//! Remote clusters whose identity was verified: another cluster may answer at the same address.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::json;
use tokio::sync::{OnceCell, watch};

use super::{
    reflect::{Copies, Source},
    remote::Owner,
};
use crate::{
    api::remote_cluster::RemoteCluster,
    cluster::{ApiError, Cause, Cluster, KUBE_SYSTEM, short},
    fleet::{Registry, Remote},
    observe::crash::{self, Step},
    offload::is_uid,
    volume::ClusterId,
};

/// A remote cluster that answers.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) cluster: Cluster,
    /// The uid of its namespace kube-system, when the connection was made.
    pub(super) uid: String,
}

/// The watched objects of offloaded namespaces at home, by namespace.
pub(super) type Sources = BTreeMap<String, Arc<Source>>;

/// The copies of the objects of a namespace in a cluster, by namespace and cluster.
pub(super) type AllCopies = BTreeMap<(String, String), Arc<Copies>>;

/// The home cluster, and all verified remote clusters.
pub(super) struct Places<'a> {
    pub(super) home: &'a Cluster,
    registry: &'a Registry,
    home_uid: OnceCell<String>,
    /// By name and uid of the `RemoteCluster`.
    known: Mutex<HashMap<(String, String), Place>>,
    sources: watch::Sender<Sources>,
    copies: Mutex<AllCopies>,
}

impl<'a> Places<'a> {
    pub(super) fn new(home: &'a Cluster, registry: &'a Registry) -> Self {
        Self {
            home,
            registry,
            home_uid: OnceCell::new(),
            known: Mutex::default(),
            sources: watch::Sender::default(),
            copies: Mutex::default(),
        }
    }

    pub(super) fn registry(&self) -> &'a Registry {
        self.registry
    }

    pub(super) fn sources(&self) -> watch::Receiver<Sources> {
        self.sources.subscribe()
    }

    pub(super) fn publish_sources(&self, now: &Sources) {
        self.sources.send_if_modified(|published| {
            let is_same = published.len() == now.len()
                && published
                    .iter()
                    .zip(now)
                    .all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(a.1, b.1));
            if !is_same {
                published.clone_from(now);
            }
            !is_same
        });
    }

    pub(super) fn publish_copies(&self, now: AllCopies) {
        *self.copies.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// The copies of the objects of this namespace in this cluster, while objects are copied.
    pub(super) fn copies(&self, namespace: &str, cluster: &ClusterId) -> Option<Arc<Copies>> {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let of = (namespace.to_owned(), cluster.to_string());
        copies.get(&of).cloned()
    }

    pub(super) async fn home_uid(&self) -> Result<&str, ApiError> {
        let uid = self.home_uid.get_or_try_init(|| identity(self.home)).await?;
        Ok(uid)
    }

    /// The verified cluster of this id, or why it cannot be used now.
    pub(super) async fn reach(&self, id: &ClusterId) -> Result<Place, String> {
        let remote = self.registry.get(id).map_err(|why| why.to_string())?;
        let cluster = remote.reach().map_err(|why| why.to_string())?;
        if let Some(place) = self.known(id).filter(|place| place.cluster.is_same(&cluster)) {
            return Ok(place);
        }
        let uid = identity(&cluster).await.map_err(|error| error.to_string())?;
        let place = Place { cluster, uid };
        if let Some(unrecorded) = self.admit(&remote, &place)? {
            // Before anything is written there.
            Box::pin(self.remember(&unrecorded, &place.uid)).await?;
        }
        Ok(place)
    }

    /// Accepts the cluster for its id, unless the id was another cluster's before or the cluster has another id.
    /// Returns its `RemoteCluster` if that does not record the uid yet.
    fn admit(&self, remote: &Remote, place: &Place) -> Result<Option<Arc<RemoteCluster>>, String> {
        let (id, uid) = (&remote.id, &place.uid);
        let clusters = self.home.views().remote_clusters.all();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = |cluster: &RemoteCluster| {
            let known = known.get(&key(cluster));
            cluster
                .cluster_uid()
                .or(known.map(|it| it.uid.as_str()))
                .map(str::to_owned)
        };
        let Some(this) = clusters.iter().find(|it| it.name_any() == id.as_str()) else {
            return Ok(None);
        };
        if remote.object_uid.is_some() && remote.object_uid != this.uid() {
            return Err(format!(
                "the RemoteCluster {id} was created again, and the connection is still that of the one before"
            ));
        }
        match before(this) {
            Some(before) if before != *uid => return Err(remote.another_cluster(uid)),
            Some(_) => {}
            // Nothing new starts in a cluster that is being deleted, and what is there has to be removed.
            None if this.metadata.deletion_timestamp.is_some() => {}
            None => {
                let is_other = |it: &RemoteCluster| it.spec.fabric.is_some() && it.name_any() != id.as_str();
                let mut others = clusters.iter().filter(|it| is_other(it));
                if let Some(other) = others.find(|it| before(it).as_ref() == Some(uid)) {
                    let name = other.name_any();
                    return Err(format!(
                        "the kubeconfig of {id} leads to the cluster of RemoteCluster {name}: delete one of them"
                    ));
                }
            }
        }
        known.insert(key(this), place.clone());
        let is_unrecorded = this.spec.fabric.is_some() && this.cluster_uid().is_none();
        Ok(is_unrecorded.then(|| Arc::clone(this)))
    }

    /// Records the uid of the cluster in its `RemoteCluster`.
    async fn remember(&self, object: &RemoteCluster, uid: &str) -> Result<(), String> {
        let all = self.home.all::<RemoteCluster>();
        let written = all.merge_status_of(object, json!({"status": {"virtualNode": {"clusterUid": uid}}}));
        let written = crash::around(Step::FabricNodeRemember, written).await;
        let name = object.name_any();
        let changed = || format!("the RemoteCluster {name} is being changed, or was replaced");
        let written = written
            .map_err(|error| error.to_string())
            .and_then(|it| it.ok_or_else(changed));
        if written.is_err() {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.retain(|(known, _), _| *known != name);
        }
        written.map(drop)
    }

    /// The owner of the remote namespaces of this one.
    pub(super) async fn owner(&self, namespace: &Namespace) -> Result<Owner, ApiError> {
        Ok(Owner {
            home: self.home.id().clone(),
            home_uid: self.home_uid().await?.to_owned(),
            namespace: namespace.name_any(),
            namespace_uid: namespace.uid().unwrap_or_default(),
        })
    }

    /// Drops clusters whose `RemoteCluster` was deleted, and with them their watches.
    pub(super) fn forget_deleted(&self) {
        let existing = self.home.views().remote_clusters.all();
        let existing: HashSet<_> = existing.iter().map(|it| key(it)).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|key, _| existing.contains(key));
    }

    fn known(&self, id: &ClusterId) -> Option<Place> {
        let object = self.home.views().remote_clusters.get(id.as_str())?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&key(&object)).cloned()
    }
}

fn key(cluster: &RemoteCluster) -> (String, String) {
    (cluster.name_any(), cluster.uid().unwrap_or_default())
}

impl Place {
    /// Reads live whether the cluster that answers has the expected uid, by default that of before.
    pub(super) async fn verify(&self, expected: Option<&str>) -> Result<(), String> {
        let now = identity(&self.cluster).await.map_err(|error| error.to_string())?;
        let expected = expected.unwrap_or(&self.uid);
        if now == expected {
            return Ok(());
        }
        Err(format!(
            "the kubeconfig of {} leads to another cluster than before (its namespace kube-system has the uid {now}, not \
             {expected}), so its answers are ignored",
            self.cluster.id()
        ))
    }
}

/// The uid of the cluster's namespace kube-system.
pub(super) async fn identity(cluster: &Cluster) -> Result<String, ApiError> {
    let wrong = |cause| {
        cluster
            .all::<Namespace>()
            .failure("identify the cluster by", cause)
    };
    let uid = cluster.uid().await?;
    let uid = uid.ok_or_else(|| wrong(Cause::NotFound(KUBE_SYSTEM.to_owned())))?;
    // The uid is written to every pod that runs in the cluster, so only a valid one is accepted.
    if !is_uid(&uid) {
        return Err(wrong(Cause::Malformed(format!("{} is no uid", short(&uid)))));
    }
    Ok(uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{Rights, testing::FakeApi},
        fleet::Link,
        placement::Declared,
    };

    const NAMESPACE: &str = "/api/v1/namespaces/kube-system";

    fn path(name: &str) -> String {
        format!("/apis/storage.liqo.io/v1alpha1/remoteclusters/{name}")
    }

    /// Home, and one cluster that two ids lead to.
    async fn two_ids() -> (FakeApi, FakeApi) {
        let (home, there) = (FakeApi::start().await, FakeApi::start().await);
        for api in [&home, &there] {
            api.put(NAMESPACE, json!({}));
        }
        for name in ["milan", "turin"] {
            home.put(
                &path(name),
                json!({"spec": {"kubeconfigSecretRef": {"name": name}, "fabric": {}}}),
            );
        }
        (home, there)
    }

    async fn reach_both(home: &FakeApi, there: &FakeApi) -> [Result<(), String>; 2] {
        let mut declared = Vec::new();
        for name in ["milan", "turin"] {
            declared.push((Declared::plain(name), Link::up(there, Rights::ALL).await));
        }
        let cluster = home.cluster_unwatched().await;
        let registry = Registry::fixed(declared);
        let places = Places::new(&cluster, &registry);
        let reach = async |name: &str| places.reach(&name.parse().unwrap()).await.map(drop);
        [reach("milan").await, reach("turin").await]
    }

    #[tokio::test]
    async fn only_the_first_of_two_remote_clusters_may_use_one_cluster() {
        let (home, there) = two_ids().await;
        for _ in 0..2 {
            let [milan, turin] = reach_both(&home, &there).await;
            assert_eq!(milan, Ok(()));
            assert!(turin.unwrap_err().contains("RemoteCluster milan"));
        }
        let uid = &home.object(&path("milan")).unwrap()["status"]["virtualNode"]["clusterUid"];
        assert_eq!(*uid, there.object(NAMESPACE).unwrap()["metadata"]["uid"]);
        home.remove(&path("milan"));
        assert_eq!(reach_both(&home, &there).await[1], Ok(()));
    }

    #[tokio::test]
    async fn the_connection_of_a_deleted_remote_cluster_is_not_used_for_its_successor() {
        let (home, there) = two_ids().await;
        let uid = home.object(&path("milan")).unwrap()["metadata"]["uid"].clone();
        for (declared_by, is_used) in [("deleted", false), (uid.as_str().unwrap(), true)] {
            let declared = Declared {
                object_uid: Some(declared_by.to_owned()),
                ..Declared::plain("milan")
            };
            let cluster = home.cluster_unwatched().await;
            let registry = Registry::fixed([(declared, Link::up(&there, Rights::ALL).await)]);
            let places = Places::new(&cluster, &registry);
            let reached = places.reach(&"milan".parse().unwrap()).await;
            assert_eq!(reached.is_ok(), is_used, "{:?}", reached.err());
            let recorded = &home.object(&path("milan")).unwrap()["status"]["virtualNode"]["clusterUid"];
            assert_eq!(recorded.is_string(), is_used);
        }
    }

    #[tokio::test]
    async fn recorded_and_deleted_remote_clusters_may_share_a_cluster() {
        let (home, there) = two_ids().await;
        let uid = there.object(NAMESPACE).unwrap()["metadata"]["uid"].clone();
        for name in ["milan", "turin"] {
            home.change(&path(name), |it| {
                it["status"]["virtualNode"]["clusterUid"] = uid.clone();
            });
        }
        assert_eq!(reach_both(&home, &there).await, [Ok(()), Ok(())]);
        home.change(&path("turin"), |it| {
            it["status"] = json!({});
            it["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
        assert_eq!(reach_both(&home, &there).await, [Ok(()), Ok(())]);
    }
}
