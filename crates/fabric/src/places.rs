//! Remote clusters as the fabric reaches them: which cluster it is that answers, and not another
//! one under its address.

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
    cluster::{ApiError, Cause, Cluster, short},
    fleet::Registry,
    observe::crash::{self, Step},
    offload::{is_uid, reflection::Kind},
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

/// What is read of offloaded namespaces at home, by namespace.
pub(super) type Sources = BTreeMap<String, Arc<Source>>;

/// The copies of the objects of a namespace in a cluster, by both.
pub(super) type AllCopies = BTreeMap<(String, String), Arc<Copies>>;

/// All of them, and home.
pub(super) struct Places<'a> {
    pub(super) home: &'a Cluster,
    registry: &'a Registry,
    home_uid: OnceCell<String>,
    /// By `RemoteCluster`: name and uid.
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

    /// What is read of offloaded namespaces at home.
    pub(super) fn sources(&self) -> watch::Receiver<Sources> {
        self.sources.subscribe()
    }

    /// Shows it to others.
    pub(super) fn show_sources(&self, now: &Sources) {
        self.sources.send_if_modified(|shown| {
            let is_same = shown.len() == now.len()
                && shown
                    .iter()
                    .zip(now)
                    .all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(a.1, b.1));
            if !is_same {
                shown.clone_from(now);
            }
            !is_same
        });
    }

    pub(super) fn show_copies(&self, now: AllCopies) {
        *self.copies.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Whether a pod of this namespace finds in this cluster what it would find here.
    pub(super) fn serve(&self, namespace: &str, cluster: &ClusterId, named: &[(Kind, String)]) -> bool {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let of = (namespace.to_owned(), cluster.to_string());
        copies.get(&of).is_some_and(|it| it.serve(named))
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
        let is_new = self.take(id, &place)?;
        if is_new {
            self.remember(id, &place.uid)
                .await
                .map_err(|error| error.to_string())?;
        }
        Ok(place)
    }

    /// Notes that this cluster is the one of this id, if it may be: what ran in another one is not
    /// looked for in it, and no two ids lead to one. Whether that is to be remembered yet.
    fn take(&self, id: &ClusterId, place: &Place) -> Result<bool, String> {
        let uid = &place.uid;
        let clusters = self.home.views().remote_clusters.all();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = |cluster: &RemoteCluster| {
            let known = known.get(&key(cluster));
            remembered(cluster).or_else(|| known.map(|it| it.uid.clone()))
        };
        let Some(this) = clusters.iter().find(|it| it.name_any() == id.as_str()) else {
            return Ok(false);
        };
        match before(this) {
            Some(before) if before != *uid => {
                return Err(format!(
                    "the kubeconfig of {id} leads to another cluster than before (its namespace kube-system has the uid \
                     {uid}): nothing is concluded from what it says. If it replaces the one before, delete the \
                     RemoteCluster {id} and make it again"
                ));
            }
            Some(_) => {}
            // Nothing begins there any more, and what has begun is to end.
            None if this.metadata.deletion_timestamp.is_some() => {}
            None => {
                let mut others = clusters.iter().filter(|it| it.name_any() != id.as_str());
                if let Some(other) = others.find(|it| before(it).as_ref() == Some(uid)) {
                    let name = other.name_any();
                    return Err(format!(
                        "the kubeconfig of {id} leads to the cluster that RemoteCluster {name} stands for: delete one of \
                         them"
                    ));
                }
            }
        }
        known.insert(key(this), place.clone());
        Ok(this.spec.fabric.is_some() && remembered(this).is_none())
    }

    /// Writes down which cluster it is, before anything is done there.
    async fn remember(&self, id: &ClusterId, uid: &str) -> Result<(), ApiError> {
        let all = self.home.all::<RemoteCluster>();
        let patch = json!({"status": {"virtualNode": {"clusterUid": uid}}});
        let written = all.merge_status(id.as_str(), &patch);
        let written = crash::around(Step::FabricNodeRemember, written).await;
        if written.is_err() {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.retain(|(name, _), _| name != id.as_str());
        }
        written.map(drop)
    }

    /// For whom a namespace is made in remote clusters.
    pub(super) async fn owner(&self, namespace: &Namespace) -> Result<Owner, ApiError> {
        Ok(Owner {
            home: self.home.id().clone(),
            home_uid: self.home_uid().await?.to_owned(),
            namespace: namespace.name_any(),
            namespace_uid: namespace.uid().unwrap_or_default(),
        })
    }

    /// Lets go of clusters whose `RemoteCluster` is no more, and with them of their watches.
    pub(super) fn forget_gone(&self) {
        let there = self.home.views().remote_clusters.all();
        let there: HashSet<_> = there.iter().map(|it| key(it)).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|key, _| there.contains(key));
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

/// The uid of the cluster that a `RemoteCluster` stands for, once it was reached.
fn remembered(cluster: &RemoteCluster) -> Option<String> {
    let node = cluster.status.as_ref()?.virtual_node.as_ref()?;
    node.cluster_uid.clone()
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
    let wrong = |cause| all.failure("identify the cluster by", cause);
    let uid = found.and_then(|it| it.uid());
    let uid = uid.ok_or_else(|| wrong(Cause::NotFound(ETERNAL.to_owned())))?;
    // It is written on every pod that is given to the cluster.
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

    const SYSTEM: &str = "/api/v1/namespaces/kube-system";

    fn path(name: &str) -> String {
        format!("/apis/storage.liqo.io/v1alpha1/remoteclusters/{name}")
    }

    /// Two ids, both of which lead to one cluster.
    async fn of_one() -> (FakeApi, FakeApi) {
        let (home, there) = (FakeApi::start().await, FakeApi::start().await);
        for api in [&home, &there] {
            api.put(SYSTEM, json!({}));
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
    async fn the_first_of_two_for_one_cluster_has_it_for_good() {
        let (home, there) = of_one().await;
        for _ in 0..2 {
            let [milan, turin] = reach_both(&home, &there).await;
            assert_eq!(milan, Ok(()));
            assert!(turin.unwrap_err().contains("RemoteCluster milan"));
        }
        let uid = &home.object(&path("milan")).unwrap()["status"]["virtualNode"]["clusterUid"];
        assert_eq!(*uid, there.object(SYSTEM).unwrap()["metadata"]["uid"]);
        home.remove(&path("milan"));
        assert_eq!(reach_both(&home, &there).await[1], Ok(()));
    }

    #[tokio::test]
    async fn two_that_had_it_already_and_one_that_leaves_go_on() {
        let (home, there) = of_one().await;
        let uid = there.object(SYSTEM).unwrap()["metadata"]["uid"].clone();
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
