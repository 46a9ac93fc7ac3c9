//! The loop against two fake API servers: this cluster, and the cluster `milan`.

use std::{cell::Cell, time::Duration};

use serde_json::{Value, json};
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    cluster::{
        Rights,
        testing::{Act, FakeApi, Fault, Life},
    },
    fleet::Link,
    placement::Declared,
    volume::mark,
};

const OFFLOADING: &str = "/apis/offloading.liqo.io/v1beta1/namespaces/shop/namespaceoffloadings/offloading";
const CLUSTER: &str = "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan";
const NODE: &str = "/api/v1/nodes/to-milan";
const THERE: &str = "/api/v1/namespaces/shop-home";
const CLAIM: &str = "/api/v1/namespaces/shop-home/persistentvolumeclaims/data";
const VOLUME: &str = "/api/v1/persistentvolumes/pv-data";
const MOST_WRITES: usize = 20;

struct World {
    home: FakeApi,
    there: FakeApi,
    /// Another cluster, `turin`, if there is one.
    other: Option<FakeApi>,
}

impl World {
    async fn new() -> Self {
        let world = Self {
            home: FakeApi::start().await,
            there: FakeApi::start().await,
            other: None,
        };
        let home = &world.home;
        for namespace in ["kube-system", "shop"] {
            home.put(&format!("/api/v1/namespaces/{namespace}"), json!({}));
        }
        world.there.put("/api/v1/namespaces/kube-system", json!({}));
        home.put(
            NODE,
            json!({"metadata": {"labels": {"to": "milan", "region": "europe"}}}),
        );
        let spec = json!({
            "kubeconfigSecretRef": {"name": "milan"},
            "nodeSelector": {"matchLabels": {"to": "milan"}},
            "fabric": {},
        });
        home.put(CLUSTER, json!({"spec": spec}));
        world
    }

    /// In which the namespace is asked for like this.
    async fn asked(spec: Value) -> Self {
        let world = Self::new().await;
        world.home.put(OFFLOADING, json!({ "spec": spec }));
        world
    }

    /// In which there is a second cluster that answers nothing, once it is connected.
    async fn with_a_cluster_that_hangs(mut self) -> Self {
        for (path, from) in [(CLUSTER, "milan"), (NODE, "to-milan")] {
            let object = self.home.object(path).unwrap();
            let spec = object["spec"].to_string().replace("milan", "turin");
            let labels = object["metadata"]["labels"].to_string().replace("milan", "turin");
            let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            let copy = json!({"metadata": {"labels": parsed(&labels)}, "spec": parsed(&spec)});
            self.home
                .put(&path.replace(from, &from.replace("milan", "turin")), copy);
        }
        let other = FakeApi::start().await;
        other.fault(Fault::new("GET", "/api/v1/namespaces", Act::Hang));
        self.other = Some(other);
        self
    }

    /// In which the namespace is there.
    async fn offloaded() -> Self {
        let world = Self::asked(json!({})).await;
        world.run_until(|world| world.phase() == "Ready").await;
        world
    }

    async fn run(&self, idle: &Idle) {
        let home = self.home.cluster_unwatched().await;
        let mut declared = Vec::new();
        for (id, api) in [("milan", Some(&self.there)), ("turin", self.other.as_ref())] {
            let Some(api) = api else { continue };
            let nodes = crate::placement::NodeRule::Labels(crate::topology::LabelSelector(vec![
                crate::topology::Requirement::is_in("to", [id]),
            ]));
            let one = Declared {
                nodes,
                ..Declared::plain(id)
            };
            declared.push((one, Link::up(api, Rights::ALL).await));
        }
        let registry = Registry::fixed(declared);
        let places = Places::new(&home, &registry);
        let reserved = ["liqo-csi".to_owned()].into();
        let metrics = LoopMetrics::default();
        tokio::join!(
            namespaces::run(&places, idle, &reserved, &metrics),
            drive(scheduling::ForgottenLabels::new(&home, idle), &metrics),
        );
    }

    /// Lets the loop run until this is so.
    async fn run_until(&self, condition: impl Fn(&Self) -> bool) {
        let idle = watch::Sender::new(None);
        let until = async {
            while !condition(self) {
                time::sleep(Duration::from_millis(20)).await;
            }
        };
        let outcome = time::timeout(Duration::from_secs(40), async {
            tokio::select! {
                () = self.run(&idle) => unreachable!("it runs for ever"),
                () = until => {}
            }
        });
        let came = outcome.await.is_ok();
        assert!(came, "it never came true: {:#}", self.status());
    }

    /// Lets the loop look at the offloading so many times, each time to the end.
    async fn look_again(&self, times: usize) {
        let look = format!("GET {OFFLOADING}");
        let looks = || self.home.requests().iter().filter(|it| **it == look).count();
        let (before, seen) = (looks(), Cell::new(0));
        self.run_until(|world| {
            let begun = looks() - before;
            if begun > seen.replace(begun) {
                world.home.change(OFFLOADING, |it| {
                    it["metadata"]["annotations"]["look"] = json!(begun.to_string());
                });
            }
            begun > times
        })
        .await;
    }

    /// Lets the loop run until it dies before the write after so many, or this is so; whether it
    /// died.
    async fn die_after(&self, writes: usize, done: impl Fn(&Self) -> bool) -> bool {
        let life = Life::of_writes(writes);
        for api in [&self.home, &self.there] {
            api.live(Some(life.clone()));
        }
        let died = tokio::select! {
            () = self.run_until(done) => false,
            () = life.over() => true,
        };
        for api in [&self.home, &self.there] {
            api.live(None);
        }
        died
    }

    fn status(&self) -> Value {
        self.home.object(OFFLOADING).unwrap_or_default()["status"].clone()
    }

    fn phase(&self) -> String {
        self.status()["offloadingPhase"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// What the status says under this condition of the cluster.
    fn condition(&self, type_: &str) -> Value {
        let all = self.status()["remoteNamespacesConditions"]["milan"].clone();
        let found = all
            .as_array()
            .into_iter()
            .flatten()
            .find(|it| it["type"] == type_);
        found.cloned().unwrap_or_default()
    }

    fn ready(&self) -> (String, String) {
        let ready = self.condition("Ready");
        let text = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
        (text("reason"), text("message"))
    }

    fn unoffload(&self) {
        let finalizers = self.home.object(OFFLOADING).unwrap()["metadata"]["finalizers"].clone();
        if finalizers.as_array().is_none_or(Vec::is_empty) {
            self.home.remove(OFFLOADING);
        } else {
            self.home.change(OFFLOADING, |it| {
                it["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            });
        }
        // The notice that is given before a namespace is deleted is over.
        self.let_time_pass();
    }

    /// As if what the status says had been there for long.
    fn let_time_pass(&self) {
        self.home.change(OFFLOADING, |it| {
            let all = it.pointer_mut("/status/remoteNamespacesConditions/milan");
            for condition in all.and_then(Value::as_array_mut).into_iter().flatten() {
                condition["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
            }
        });
    }

    fn is_gone(&self) -> bool {
        self.home.object(OFFLOADING).is_none() && self.there.object(THERE).is_none()
    }
}

#[tokio::test]
async fn a_namespace_is_made_and_said_to_be_there() {
    let world = World::offloaded().await;
    let status = world.status();
    assert_eq!(status["remoteNamespaceName"], "shop-home");
    assert_eq!(world.condition("OffloadingRequired")["reason"], "ClusterSelected");
    assert_eq!(world.ready().0, "NamespaceCreated");
    let made = world.there.object(THERE).unwrap();
    assert_eq!(made["metadata"]["labels"]["fabric.storage.liqo.io/home"], "home");
    assert_eq!(
        made["metadata"]["labels"]["fabric.storage.liqo.io/home-namespace"],
        "shop"
    );
    let held = |path| world.home.object(path).unwrap()["metadata"]["finalizers"].clone();
    assert_eq!(
        held(OFFLOADING),
        json!(["fabric.storage.liqo.io/remote-namespaces"])
    );
    assert_eq!(held(CLUSTER), json!(["fabric.storage.liqo.io/remote-namespaces"]));
}

#[tokio::test]
async fn a_namespace_is_labelled_for_pod_security_unless_that_is_refused() {
    let label = |world: &World| {
        let made = world.there.object(THERE).unwrap();
        made["metadata"]["labels"]["pod-security.kubernetes.io/enforce"].clone()
    };
    assert_eq!(label(&World::offloaded().await), "baseline");
    let world = World::asked(json!({})).await;
    world.home.change(CLUSTER, |it| {
        it["spec"]["fabric"]["podSecurity"] = "restricted".into()
    });
    world.run_until(|world| world.phase() == "Ready").await;
    assert_eq!(label(&world), "restricted");
    // The policies of an older chart there admit no such label.
    let world = World::asked(json!({})).await;
    let refused = Act::Forbid("no labels but those of its fabric");
    world.there.fault(
        Fault::new("POST", "/api/v1/namespaces", refused)
            .at_the_end()
            .times(1),
    );
    world.run_until(|world| world.phase() == "Ready").await;
    assert_eq!(label(&world), Value::Null);
}

#[tokio::test]
async fn a_cluster_that_hangs_delays_no_other() {
    let world = World::asked(json!({})).await.with_a_cluster_that_hangs().await;
    world
        .run_until(|world| world.ready().0 == "NamespaceCreated")
        .await;
    let said = &world.status()["remoteNamespacesConditions"]["turin"];
    assert_eq!(
        said.as_array().map(Vec::len),
        Some(1),
        "it was waited for: {said}"
    );
    assert_eq!(world.phase(), "InProgress");
    // Nor is it waited for where nothing was ever said to be.
    world.unoffload();
    world
        .run_until(|world| {
            world.let_time_pass();
            world.is_gone()
        })
        .await;
}

#[tokio::test]
async fn clusters_are_avoided_until_their_time_has_passed() {
    let world = World::offloaded().await;
    let avoided = |until: &str| json!({"controller": "web", "cluster": "milan", "since": "2026-01-01T00:00:00Z", "until": until});
    let soon = (jiff::Timestamp::now() + Duration::from_secs(2)).to_string();
    world.home.change(OFFLOADING, |it| {
        it["status"]["avoidedClusters"] = json!([
            avoided("2026-01-01T00:02:00Z"),
            avoided(&soon),
            avoided("2999-01-01T00:00:00Z"),
        ]);
    });
    let left = |world: &World| {
        let status = world.status();
        status["avoidedClusters"].as_array().map_or(0, Vec::len)
    };
    let before = std::cell::Cell::new(3);
    world
        .run_until(|world| {
            assert!(left(world) <= before.replace(left(world)), "nothing is added");
            left(world) == 1
        })
        .await;
    assert_eq!(
        world.status()["avoidedClusters"][0]["until"],
        "2999-01-01T00:00:00Z"
    );
    world.home.change(OFFLOADING, |it| {
        it["status"]["avoidedClusters"] = json!([avoided("2026-01-01T00:02:00Z")]);
    });
    world
        .run_until(|world| world.status()["avoidedClusters"].is_null())
        .await;
}

#[tokio::test]
async fn each_strategy_has_its_name() {
    for (spec, name) in [
        (json!({"namespaceMappingStrategy": "EnforceSameName"}), "shop"),
        (
            json!({"namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "else"}),
            "else",
        ),
    ] {
        let world = World::asked(spec).await;
        world.run_until(|world| world.phase() == "Ready").await;
        assert_eq!(world.status()["remoteNamespaceName"], name);
        assert!(
            world
                .there
                .object(&format!("/api/v1/namespaces/{name}"))
                .is_some()
        );
    }
}

#[tokio::test]
async fn a_cluster_that_is_not_selected_is_not_asked() {
    let selector = |region: &str| {
        let expression = json!({"key": "region", "operator": "In", "values": [region]});
        json!({"clusterSelector": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}})
    };
    let world = World::asked(selector("asia")).await;
    world
        .run_until(|world| world.phase() == "NoClusterSelected")
        .await;
    assert_eq!(
        world.condition("OffloadingRequired")["reason"],
        "ClusterNotSelected"
    );
    assert_eq!(world.there.writes(), 0);
    let world = World::asked(selector("europe")).await;
    world.run_until(|world| world.phase() == "Ready").await;
}

#[tokio::test]
async fn foreign_namespaces_are_never_adopted_and_never_deleted() {
    let labels = |home: &str, namespace: &str| {
        json!({
            "fabric.storage.liqo.io/home": home,
            "fabric.storage.liqo.io/home-namespace": namespace,
        })
    };
    for (metadata, who) in [
        (json!({}), "which this driver did not make"),
        (
            json!({"labels": labels("rome", "shop")}),
            "another home cluster (rome)",
        ),
        // An id may be chosen: the other one has chosen the same.
        (
            json!({"labels": labels("home", "shop")}),
            "another home cluster (home)",
        ),
    ] {
        let world = World::asked(json!({})).await;
        world.there.put(THERE, json!({ "metadata": metadata }));
        world.run_until(|world| world.phase() == "AllFailed").await;
        let (reason, message) = world.ready();
        assert_eq!(reason, "CreationLoopBackOff");
        assert!(message.contains(who), "{message}");
        world.unoffload();
        world
            .run_until(|world| world.home.object(OFFLOADING).is_none())
            .await;
        assert!(world.there.object(THERE).is_some(), "{who}");
        assert_eq!(world.there.writes(), 0);
    }
}

#[tokio::test]
async fn however_much_a_cluster_says_little_of_it_is_in_the_status() {
    let world = World::asked(json!({})).await;
    let labels = json!({"fabric.storage.liqo.io/home": "h".repeat(1 << 20)});
    world.there.put(THERE, json!({"metadata": {"labels": labels}}));
    world.run_until(|world| world.phase() == "AllFailed").await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "CreationLoopBackOff");
    assert!(message.len() < 1100, "{} bytes", message.len());
    assert!(message.contains("another home cluster"));
}

#[tokio::test]
async fn what_kubernetes_and_this_driver_live_in_is_never_offloaded() {
    for namespace in ["kube-system", "liqo-csi"] {
        let world = World::new().await;
        let path = OFFLOADING.replace("/shop/", &format!("/{namespace}/"));
        world
            .home
            .put(&format!("/api/v1/namespaces/{namespace}"), json!({}));
        world.home.put(
            &path,
            json!({"spec": {"namespaceMappingStrategy": "DefaultName"}}),
        );
        let status = |world: &World| world.home.object(&path).unwrap()["status"].clone();
        world
            .run_until(|world| status(world)["offloadingPhase"].is_string())
            .await;
        let said = &status(&world)["remoteNamespacesConditions"]["milan"];
        assert_eq!(said.as_array().map(Vec::len), Some(1), "{said}");
        assert_eq!(said[0]["reason"], "ClusterNotAdmitted");
        assert!(
            said[0]["message"].as_str().unwrap().contains("never offloaded"),
            "{said}"
        );
        assert_eq!(world.there.writes(), 0);
        let space = world
            .home
            .object(&format!("/api/v1/namespaces/{namespace}"))
            .unwrap();
        assert!(space["metadata"]["labels"].is_null(), "{space}");
        assert!(world.home.object(&path).unwrap()["metadata"]["finalizers"].is_null());
    }
}

#[tokio::test]
async fn two_namespaces_cannot_share_one_there() {
    let spec = json!({"namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "common"});
    let world = World::asked(spec.clone()).await;
    world.run_until(|world| world.phase() == "Ready").await;
    world.home.put("/api/v1/namespaces/other", json!({}));
    let other = OFFLOADING.replace("/shop/", "/other/");
    world.home.put(&other, json!({ "spec": spec }));
    world
        .run_until(|world| world.home.object(&other).unwrap()["status"]["offloadingPhase"] == "AllFailed")
        .await;
    let status = world.home.object(&other).unwrap()["status"].to_string();
    assert!(
        status.contains("belongs to the namespace shop of this cluster"),
        "{status}"
    );
    assert_eq!(world.phase(), "Ready");
}

#[tokio::test]
async fn what_a_cluster_refuses_is_said() {
    let world = World::asked(json!({})).await;
    world
        .there
        .fault(Fault::new("POST", "/api/v1/namespaces", Act::Forbid("no right")));
    world.run_until(|world| world.phase() == "AllFailed").await;
    world.there.heal();
    world.run_until(|world| world.phase() == "Ready").await;
}

#[tokio::test]
async fn claims_hold_a_namespace_until_they_are_gone() {
    let world = World::offloaded().await;
    world.there.put(
        CLAIM,
        json!({"metadata": {"labels": {mark::MANAGED_BY: mark::MANAGED_BY_US}}}),
    );
    let foreign = CLAIM.replace("/data", "/theirs");
    world.there.put(&foreign, json!({}));
    // The fabric runs the pods: it knows that there are none that use the copies.
    world
        .home
        .change(CLUSTER, |it| it["spec"]["nodeSelector"] = Value::Null);
    let secret = |name: &str| format!("{THERE}/secrets/{name}");
    let uid = world.home.object("/api/v1/namespaces/kube-system").unwrap()["metadata"]["uid"].clone();
    for (name, of) in [("copy", uid), ("other", json!("another-home"))] {
        let labels = json!({mark::MANAGED_BY: mark::MANAGED_BY_US, "fabric.storage.liqo.io/home": "home"});
        let annotations = json!({"fabric.storage.liqo.io/home-uid": of});
        world.there.put(
            &secret(name),
            json!({"metadata": {"labels": labels, "annotations": annotations}}),
        );
    }
    world.unoffload();
    world
        .run_until(|world| world.ready().1.contains("data, theirs (not a twin)"))
        .await;
    assert_eq!(world.phase(), "Terminating");
    world.let_time_pass();
    assert!(world.there.object(&secret("copy")).is_some());
    world
        .run_until(|world| world.there.object(&secret("copy")).is_none())
        .await;
    assert!(world.there.object(&secret("other")).is_some());
    world.there.remove(CLAIM);
    world
        .run_until(|world| world.ready().1.contains(": theirs (not a twin)."))
        .await;
    world.there.remove(&foreign);
    world.run_until(World::is_gone).await;
}

/// A twin, bound to the volume `pv-data` there.
#[tokio::test]
async fn however_many_claims_are_there_those_at_home_are_read_once() {
    let world = World::offloaded().await;
    for at in 0..50 {
        world.there.put(
            &format!("{THERE}/persistentvolumeclaims/other-{at}"),
            json!({"spec": {}}),
        );
    }
    world.unoffload();
    world.run_until(|world| world.ready().1.contains("other-1")).await;
    let own = |request: &&String| request.contains("GET /api/v1/namespaces/shop/persistentvolumeclaims/");
    assert_eq!(world.home.requests().iter().filter(own).count(), 0);
}

const RIGHTS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop-home/rolebindings/liqo-csi-fabric";

#[tokio::test]
async fn rights_that_others_took_away_are_taken_again() {
    let world = World::offloaded().await;
    assert!(world.there.object(RIGHTS).is_none(), "they were there");
    world.there.put("/denied", json!({"resources": ["configmaps"]}));
    world
        .run_until(|world| world.there.object(RIGHTS).is_some())
        .await;
    assert_eq!(world.phase(), "Ready");
}

#[tokio::test]
async fn where_others_run_the_pods_what_these_need_may_be_copied() {
    let world = World::asked(json!({})).await;
    world
        .there
        .put("/denied", json!({"resources": ["pods", "configmaps"]}));
    world
        .run_until(|world| world.phase() == "Ready" && world.there.object(RIGHTS).is_some())
        .await;
    let role = &world.there.object(RIGHTS).unwrap()["roleRef"]["name"];
    assert_eq!(*role, "liqo-csi-remote.access-workloads");
}

fn bound_twin(world: &World, policy: &str) {
    let twin = json!({
        "metadata": {"labels": {mark::MANAGED_BY: mark::MANAGED_BY_US}},
        "spec": {"volumeName": "pv-data"},
    });
    let uid = world.there.put(CLAIM, twin)["metadata"]["uid"].clone();
    let volume = json!({"spec": {"claimRef": {"uid": uid}, "persistentVolumeReclaimPolicy": policy}});
    world.there.put(VOLUME, volume);
}

fn ask(world: &World, volumes: &str) {
    world.home.change(OFFLOADING, |it| {
        it["metadata"]["annotations"] = json!({"fabric.storage.liqo.io/volumes": volumes});
    });
}

#[tokio::test]
async fn retained_twins_go_with_their_namespace_and_others_hold_it() {
    let world = World::offloaded().await;
    world
        .home
        .put("/api/v1/namespaces/shop/persistentvolumeclaims/data", json!({}));
    bound_twin(&world, "Delete");
    let foreign = CLAIM.replace("/data", "/theirs");
    world.there.put(&foreign, json!({}));
    ask(&world, "Retain");
    world.unoffload();
    world
        .run_until(|world| {
            world
                .ready()
                .1
                .contains("data (its remote PersistentVolume is not retained yet), theirs (not a twin)")
        })
        .await;
    world.there.change(VOLUME, |it| {
        it["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    });
    world
        .run_until(|world| world.ready().1.contains("claims: theirs (not a twin)."))
        .await;
    world.let_time_pass();
    world.there.remove(&foreign);
    world.run_until(World::is_gone).await;
    // A volume of somebody else's is no reason to let the twin go.
    let world = World::offloaded().await;
    bound_twin(&world, "Retain");
    world
        .there
        .change(VOLUME, |it| it["spec"]["claimRef"]["uid"] = json!("another"));
    ask(&world, "Retain");
    world.unoffload();
    world
        .run_until(|world| world.ready().1.contains("not retained yet"))
        .await;
}

#[tokio::test]
async fn claims_that_somebody_made_there_are_deleted_only_if_that_is_asked_for() {
    let world = World::offloaded().await;
    let at_home = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
    world.home.put(at_home, json!({}));
    bound_twin(&world, "Delete");
    world.there.put(&CLAIM.replace("/data", "/theirs"), json!({}));
    ask(&world, "Delete");
    world.unoffload();
    world
        .run_until(|world| {
            world
                .ready()
                .1
                .contains("claims: data (its claim at home is not deleted).")
        })
        .await;
    world.home.remove(at_home);
    world
        .run_until(|world| world.ready().1.contains("claims: data."))
        .await;
    assert!(
        world.there.object(THERE).is_some(),
        "the twin goes the ordinary way"
    );
    world.let_time_pass();
    world.there.remove(CLAIM);
    world.run_until(World::is_gone).await;
}

/// A pod of the namespace that is made again when it goes, on the node that stands for the cluster unless `spec` says otherwise.
fn pod(metadata: &Value, spec: &Value) -> Value {
    let mut pod = json!({
        "metadata": {
            "creationTimestamp": "2025-01-01T00:00:00Z",
            "ownerReferences": controlled_by("ReplicaSet"),
        },
        "spec": {"nodeName": "to-milan", "containers": []},
    });
    for (field, changes) in [("metadata", metadata), ("spec", spec)] {
        for (key, value) in changes.as_object().unwrap() {
            pod[field][key] = value.clone();
        }
    }
    pod
}

fn controlled_by(kind: &str) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": "w", "controller": true}])
}

#[tokio::test]
async fn pods_are_evicted_before_their_namespace_is_deleted() {
    let path = |name: &str| format!("/api/v1/namespaces/shop/pods/{name}");
    let claim =
        |name: &str| json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]});
    let remote_only = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [
            {"key": "liqo.io/type", "operator": "In", "values": ["virtual-node"]},
        ]}],
    }}});
    let world = World::offloaded().await;
    let daemon = json!({"ownerReferences": controlled_by("DaemonSet")});
    let bare = json!({"ownerReferences": []});
    let later = json!({"creationTimestamp": "2030-01-01T00:00:00Z"});
    for (name, metadata, spec) in [
        ("web", json!({}), json!({})),
        ("db", json!({}), claim("data")),
        ("here", json!({}), json!({"nodeName": "worker"})),
        ("daemon", daemon, json!({})),
        (
            "waiting",
            json!({}),
            json!({"nodeName": null, "affinity": remote_only}),
        ),
        ("later", later, json!({})),
        ("bare", bare, json!({})),
    ] {
        world.home.put(&path(name), pod(&metadata, &spec));
    }
    world
        .home
        .put("/api/v1/namespaces/shop/persistentvolumeclaims/data", json!({}));
    let twin = json!({"metadata": {"labels": {mark::MANAGED_BY: mark::MANAGED_BY_US}}});
    world.there.put(CLAIM, twin);
    world.unoffload();
    world.run_until(|world| world.ready().0 == "Terminating").await;
    world.let_time_pass();
    let leaves = |name: &str| {
        let pod = world.home.object(&path(name)).unwrap();
        pod["metadata"]["deletionTimestamp"].is_string()
    };
    world.run_until(|_| leaves("web") && leaves("waiting")).await;
    // Its data stay, and it with them.
    assert!(!leaves("db"));
    world
        .home
        .remove("/api/v1/namespaces/shop/persistentvolumeclaims/data");
    world.run_until(|_| leaves("db")).await;
    world.there.remove(CLAIM);
    for name in ["web", "waiting"] {
        world.home.remove(&path(name));
    }
    world
        .run_until(|world| world.ready().1.contains("evicted: db."))
        .await;
    assert!(world.there.object(THERE).is_some());
    world.home.remove(&path("db"));
    world.run_until(World::is_gone).await;
    for name in ["here", "daemon", "later", "bare"] {
        assert!(!leaves(name), "{name}");
    }
}

#[tokio::test]
async fn a_pod_that_may_not_be_evicted_is_named() {
    let world = World::offloaded().await;
    let web = "/api/v1/namespaces/shop/pods/web";
    world.home.put(web, pod(&json!({}), &json!({})));
    let budget = Act::Refuse(429);
    world
        .home
        .fault(Fault::new("POST", &format!("{web}/eviction"), budget));
    world.unoffload();
    world.run_until(|world| world.ready().0 == "Terminating").await;
    world.let_time_pass();
    world
        .run_until(|world| world.ready().1.contains("cannot be evicted"))
        .await;
    assert!(world.there.object(THERE).is_some());
    world.home.heal();
    world
        .run_until(|_| world.home.object(web).unwrap()["metadata"]["deletionTimestamp"].is_string())
        .await;
}

#[tokio::test]
async fn a_dead_cluster_is_let_go_when_it_is_declared_out_of_service() {
    let world = World::offloaded().await;
    world
        .home
        .change(CLUSTER, |it| it["spec"]["nodeSelector"] = Value::Null);
    world.home.put(
        "/api/v1/nodes/milan",
        json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}}),
    );
    let identity = "/api/v1/namespaces/kube-system";
    world.there.fault(Fault::new("GET", identity, Act::Hang));
    world.unoffload();
    world
        .run_until(|world| world.home.object(OFFLOADING).is_none())
        .await;
    assert!(world.there.object(THERE).is_some());
}

#[tokio::test]
async fn another_cluster_behind_the_kubeconfig_is_not_believed() {
    let world = World::offloaded().await;
    let system = "/api/v1/namespaces/kube-system";
    world.there.remove(THERE);
    world
        .there
        .change(system, |it| it["metadata"]["uid"] = json!("another"));
    world.unoffload();
    world
        .run_until(|world| world.ready().1.contains("leads to another cluster"))
        .await;
    world.let_time_pass();
    world.look_again(3).await;
    assert!(world.home.object(OFFLOADING).is_some());
}

#[tokio::test]
async fn a_claim_that_is_no_twin_is_not_taken_for_one_that_leaves() {
    let world = World::offloaded().await;
    let web = "/api/v1/namespaces/shop/pods/web";
    let claim = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]});
    world.home.put(web, pod(&json!({}), &claim));
    world.there.put(CLAIM, json!({}));
    world.unoffload();
    world.run_until(|world| world.ready().0 == "Terminating").await;
    world.let_time_pass();
    world
        .run_until(|world| world.ready().1.contains("not a twin"))
        .await;
    assert!(world.home.object(web).unwrap()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn pods_that_wait_for_a_namespace_that_is_gone_are_evicted() {
    let world = World::offloaded().await;
    let web = "/api/v1/namespaces/shop/pods/web";
    world.home.put(web, pod(&json!({}), &json!({})));
    world.there.remove(THERE);
    world.unoffload();
    world.run_until(|world| world.ready().0 == "Terminating").await;
    world.let_time_pass();
    world
        .run_until(|world| world.home.object(OFFLOADING).is_none())
        .await;
    let evicted = world.home.object(web);
    assert!(evicted.is_none_or(|it| it["metadata"]["deletionTimestamp"].is_string()));
}

#[tokio::test]
async fn leaving_the_selector_takes_the_namespace_away() {
    let world = World::offloaded().await;
    let expression = json!({"key": "region", "operator": "In", "values": ["asia"]});
    let terms = json!([{"matchExpressions": [expression]}]);
    world.home.change(OFFLOADING, |it| {
        it["spec"]["clusterSelector"] = json!({"nodeSelectorTerms": terms});
    });
    world.run_until(|world| world.ready().0 == "Terminating").await;
    assert_eq!(world.phase(), "NoClusterSelected");
    world.let_time_pass();
    world
        .run_until(|world| world.there.object(THERE).is_none() && world.ready().0.is_empty())
        .await;
    // It is made again when the cluster is selected again.
    world.home.change(OFFLOADING, |it| it["spec"] = json!({}));
    world.run_until(|world| world.phase() == "Ready").await;
}

#[tokio::test]
async fn a_remote_cluster_is_held_until_no_namespace_is_there() {
    let world = World::offloaded().await;
    world.there.put(CLAIM, json!({}));
    world.home.change(CLUSTER, |it| {
        it["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    world
        .run_until(|world| world.ready().1.contains("data (not a twin)"))
        .await;
    assert!(world.home.object(CLUSTER).is_some());
    world.let_time_pass();
    world.there.remove(CLAIM);
    world
        .run_until(|world| world.home.object(CLUSTER).is_none())
        .await;
    assert!(world.there.object(THERE).is_none());
}

const HERE: &str = "/api/v1/namespaces/shop";
const LABEL: &str = "liqo.io/scheduling-enabled";

#[tokio::test]
async fn an_offloaded_namespace_is_labelled_and_unlabelled_again() {
    let world = World::offloaded().await;
    let metadata = || world.home.object(HERE).unwrap()["metadata"].clone();
    assert_eq!(metadata()["labels"], json!({LABEL: "true"}));
    // Somebody takes it off: as long as the namespace is offloaded, it is put on again.
    world.home.change(HERE, |it| it["metadata"]["labels"] = json!({}));
    world
        .run_until(|_| metadata()["labels"] == json!({LABEL: "true"}))
        .await;
    world.there.put(CLAIM, json!({}));
    world.unoffload();
    // Pods are made here again before anything there is gone.
    world
        .run_until(|_| metadata()["labels"].get(LABEL).is_none())
        .await;
    assert!(world.there.object(THERE).is_some());
    world.there.remove(CLAIM);
    world.run_until(World::is_gone).await;
    assert_eq!(metadata()["annotations"], json!({}));
}

#[tokio::test]
async fn a_label_that_was_there_stays() {
    for value in ["true", "false"] {
        let world = World::asked(json!({})).await;
        let labels = json!({LABEL: value, "team": "a"});
        world
            .home
            .change(HERE, |it| it["metadata"]["labels"] = labels.clone());
        world.run_until(|world| world.phase() == "Ready").await;
        world.unoffload();
        world.run_until(World::is_gone).await;
        assert_eq!(world.home.object(HERE).unwrap()["metadata"]["labels"], labels);
    }
}

/// The policies of pods read the reason.
#[tokio::test]
async fn a_cluster_that_does_not_admit_the_strategy_says_so() {
    let world = World::asked(json!({})).await;
    world.home.change(CLUSTER, |it| {
        it["spec"]["fabric"] = json!({"offload": {"strategies": ["EnforceSameName"]}});
    });
    world
        .run_until(|world| world.condition("OffloadingRequired")["reason"] == "ClusterNotAdmitted")
        .await;
    assert_eq!(world.there.writes(), 0);
}

#[tokio::test]
async fn a_label_that_has_outlived_its_offloading_goes_and_one_of_a_user_stays() {
    let world = World::asked(json!({})).await;
    let labelled = |name: &str, notes: Value| {
        let path = format!("/api/v1/namespaces/{name}");
        world.home.put(
            &path,
            json!({"metadata": {"labels": {LABEL: "true"}, "annotations": notes}}),
        );
        path
    };
    let forgotten = labelled(
        "restored",
        json!({"fabric.storage.liqo.io/scheduling-enabled": "true"}),
    );
    let users = labelled("beforehand", json!({}));
    let is_labelled =
        |world: &World, path: &str| world.home.object(path).unwrap()["metadata"]["labels"][LABEL] == "true";
    world.run_until(|world| !is_labelled(world, &forgotten)).await;
    assert!(is_labelled(&world, &users));
}

#[tokio::test]
async fn where_liqo_is_installed_nothing_is_done() {
    let rule = json!({"apiGroups": ["offloading.liqo.io"], "resources": ["namespaceoffloadings"]});
    for (path, object) in [
        (
            "/apis/offloading.liqo.io/v1beta1/namespaces/liqo-tenant-milan/virtualnodes/milan",
            json!({"kind": "VirtualNode", "apiVersion": "offloading.liqo.io/v1beta1"}),
        ),
        (
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/liqo",
            json!({"webhooks": [{
                "name": "offloading.liqo.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {}, "rules": [rule],
            }]}),
        ),
    ] {
        let world = World::asked(json!({})).await;
        world.home.put(path, object);
        let idle = watch::Sender::new(None);
        let mut told = idle.subscribe();
        let is_liqo = |rest: &Option<Rest>| matches!(rest, Some(Rest::Unready(why)) if why.contains("Liqo is installed"));
        tokio::select! {
            () = world.run(&idle) => {}
            told = told.wait_for(is_liqo) => assert!(told.is_ok()),
        }
        assert_eq!((world.home.writes(), world.there.writes()), (0, 0), "{path}");
    }
}

#[tokio::test]
async fn a_fabric_without_offloadings_to_read_is_ready_and_goes_on_once_they_are_defined() {
    let world = World::asked(json!({})).await;
    world
        .home
        .fault(Fault::new("GET", "/namespaceoffloadings", Act::Refuse(404)).at_the_end());
    let idle = watch::Sender::new(None);
    let mut told = idle.subscribe();
    let unready = |rest: &Option<Rest>| matches!(rest, Some(Rest::Unready(_)));
    let story = async {
        told.wait_for(|rest| *rest == Some(Rest::Undefined))
            .await
            .unwrap();
        assert_eq!((world.home.writes(), world.there.writes()), (0, 0));
        world.home.heal();
        while told.borrow_and_update().is_some() {
            assert!(!unready(&told.borrow()), "{:?}", *told.borrow());
            told.changed().await.unwrap();
        }
        world
            .home
            .until(|store| {
                store
                    .get(OFFLOADING)
                    .is_some_and(|it| it["status"]["offloadingPhase"] == "Ready")
            })
            .await;
    };
    let outcome = time::timeout(Duration::from_mins(1), async {
        tokio::select! {
            () = world.run(&idle) => unreachable!("it runs for ever"),
            () = story => {}
        }
    });
    assert!(outcome.await.is_ok(), "{:?}", *idle.borrow());
}

#[tokio::test]
async fn whoever_dies_is_succeeded() {
    for writes in 0..MOST_WRITES {
        let world = World::asked(json!({})).await;
        let died = world.die_after(writes, |world| world.phase() == "Ready").await;
        world.run_until(|world| world.phase() == "Ready").await;
        assert!(world.there.object(THERE).is_some());
        if !died {
            assert!(writes > 3, "a namespace is not offloaded by {writes} writes");
            return;
        }
    }
    panic!("it is never offloaded");
}

#[tokio::test]
async fn a_namespace_that_is_deleted_while_it_is_made_leaves_nothing_behind() {
    for writes in 0..MOST_WRITES {
        let world = World::asked(json!({})).await;
        let died = world.die_after(writes, |world| world.phase() == "Ready").await;
        world.unoffload();
        let ended = Box::pin(world.die_after(1, World::is_gone)).await;
        world.let_time_pass();
        if ended {
            world.run_until(World::is_gone).await;
        }
        assert!(world.is_gone());
        if !died {
            return;
        }
    }
    panic!("it is never offloaded");
}

#[tokio::test]
async fn the_loop_runs_under_its_lease_and_gives_it_back() {
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ours/leases/storage-liqo-io-fabric";
    let world = World::new().await;
    let home = world.home.cluster_unwatched().await;
    let settings = Settings {
        namespace: "ours".into(),
        reserved: BTreeSet::new(),
        identity: "a".into(),
        address: None,
        given_up: GivenUp::default(),
    };
    let streams = StreamSettings {
        address: ([127, 0, 0, 1], 0).into(),
        ports: 1,
        pod_ip: None,
        name: "a".into(),
    };
    let streams = Streams::bind(streams, StreamMetrics::default()).await.unwrap();
    let stop = CancellationToken::new();
    let idle = watch::Sender::new(None);
    let holds = async {
        world.home.until(|store| store.get(LEASE).is_some()).await;
        assert_eq!(world.home.object(LEASE).unwrap()["spec"]["holderIdentity"], "a");
        stop.cancel();
    };
    tokio::join!(
        run(
            home,
            Registry::default(),
            settings,
            streams,
            LoopMetrics::default(),
            idle,
            stop.clone()
        ),
        holds
    );
    assert_eq!(world.home.object(LEASE).unwrap()["spec"]["holderIdentity"], "");
}

#[tokio::test]
async fn network_policies_that_are_not_copied_are_named_while_they_exist() {
    const POLICY: &str = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/deny-all";
    let message = |world: &World| world.condition("OffloadingRequired")["message"].to_string();
    let world = World::offloaded().await;
    assert!(!message(&world).contains("NetworkPolicies"));
    world.home.put(POLICY, json!({"spec": {"podSelector": {}}}));
    let other = POLICY.replace("/shop/", "/other/").replace("deny-all", "theirs");
    world.home.put(&other, json!({}));
    world
        .run_until(|world| {
            message(world).contains("NetworkPolicies are not copied") && message(world).contains("deny-all")
        })
        .await;
    assert!(!message(&world).contains("theirs"));
    assert_eq!(world.phase(), "Ready");
    let written = world.home.writes();
    // A restarted process writes the same status, also before it has listed the policies.
    world.look_again(1).await;
    assert_eq!(world.home.writes(), written);
    world.home.remove(POLICY);
    world
        .run_until(|world| !message(world).contains("NetworkPolicies"))
        .await;
}
