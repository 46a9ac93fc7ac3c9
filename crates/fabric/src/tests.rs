//! The controllers of namespaces against two fake API servers: this cluster, and the cluster `milan`.

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
};

mod labels;
mod unoffload;

const OFFLOADING: &str = "/apis/offloading.liqo.io/v1beta1/namespaces/shop/namespaceoffloadings/offloading";
const CLUSTER: &str = "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan";
const NODE: &str = "/api/v1/nodes/to-milan";
const THERE: &str = "/api/v1/namespaces/shop-home";
const CLAIM: &str = "/api/v1/namespaces/shop-home/persistentvolumeclaims/data";
/// Events on objects of the namespace `shop`.
pub(super) const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events/";
/// Events on objects without a namespace.
pub(super) const CLUSTER_EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events/";
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

    /// A world with a `NamespaceOffloading` of this spec.
    async fn with_spec(spec: Value) -> Self {
        let world = Self::new().await;
        world.home.put(OFFLOADING, json!({ "spec": spec }));
        world
    }

    /// Adds a second cluster, which stops answering after the connection.
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

    /// A world with an offloaded namespace.
    async fn offloaded() -> Self {
        let world = Self::with_spec(json!({})).await;
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

    /// Runs the controllers until the condition is true.
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

    /// Runs the controllers until they have reconciled the offloading completely this many times.
    async fn reconcile_again(&self, times: usize) {
        let read = format!("GET {OFFLOADING}");
        let reads = || self.home.requests().iter().filter(|it| **it == read).count();
        let (before, seen) = (reads(), Cell::new(0));
        self.run_until(|world| {
            let begun = reads() - before;
            if begun > seen.replace(begun) {
                world.home.change(OFFLOADING, |it| {
                    it["metadata"]["annotations"]["touched"] = json!(begun.to_string());
                });
            }
            begun > times
        })
        .await;
    }

    /// Runs the controllers until they crash after this many writes or the condition is true. Returns whether they
    /// crashed.
    async fn crash_after(&self, writes: usize, done: impl Fn(&Self) -> bool) -> bool {
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

    /// A condition of the cluster in the status.
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
        // The delay before a namespace is deleted is over.
        self.age_conditions();
    }

    /// Sets the transition times of the conditions far into the past.
    fn age_conditions(&self) {
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
async fn a_remote_namespace_is_created_and_reported() {
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
    let finalizers = |path| world.home.object(path).unwrap()["metadata"]["finalizers"].clone();
    assert_eq!(
        finalizers(OFFLOADING),
        json!(["fabric.storage.liqo.io/remote-namespaces"])
    );
    assert_eq!(
        finalizers(CLUSTER),
        json!(["fabric.storage.liqo.io/remote-namespaces"])
    );
}

#[tokio::test]
async fn a_namespace_is_labelled_for_pod_security_unless_that_is_refused() {
    let label = |world: &World| {
        let made = world.there.object(THERE).unwrap();
        made["metadata"]["labels"]["pod-security.kubernetes.io/enforce"].clone()
    };
    assert_eq!(label(&World::offloaded().await), "baseline");
    let world = World::with_spec(json!({})).await;
    world.home.change(CLUSTER, |it| {
        it["spec"]["fabric"]["podSecurity"] = "restricted".into();
    });
    world.run_until(|world| world.phase() == "Ready").await;
    assert_eq!(label(&world), "restricted");
    // The policies of an older chart there admit no such label.
    let world = World::with_spec(json!({})).await;
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
    let world = World::with_spec(json!({}))
        .await
        .with_a_cluster_that_hangs()
        .await;
    world
        .run_until(|world| world.ready().0 == "NamespaceCreated")
        .await;
    let message = &world.status()["remoteNamespacesConditions"]["turin"];
    assert_eq!(
        message.as_array().map(Vec::len),
        Some(1),
        "it was waited for: {message}"
    );
    assert_eq!(world.phase(), "InProgress");
    // Nor is it waited for at the end: no condition says that a namespace exists there.
    world.unoffload();
    world
        .run_until(|world| {
            world.age_conditions();
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
async fn each_mapping_strategy_names_the_remote_namespace() {
    for (spec, name) in [
        (json!({"namespaceMappingStrategy": "EnforceSameName"}), "shop"),
        (
            json!({"namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "else"}),
            "else",
        ),
    ] {
        let world = World::with_spec(spec).await;
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
async fn nothing_is_created_in_a_cluster_that_is_not_selected() {
    let selector = |region: &str| {
        let expression = json!({"key": "region", "operator": "In", "values": [region]});
        json!({"clusterSelector": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}})
    };
    let world = World::with_spec(selector("asia")).await;
    world
        .run_until(|world| world.phase() == "NoClusterSelected")
        .await;
    assert_eq!(
        world.condition("OffloadingRequired")["reason"],
        "ClusterNotSelected"
    );
    assert_eq!(world.there.writes(), 0);
    let world = World::with_spec(selector("europe")).await;
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
        (json!({}), "which this driver did not create"),
        (
            json!({"labels": labels("rome", "shop")}),
            "another home cluster (rome)",
        ),
        // Another home cluster that has chosen the same id.
        (
            json!({"labels": labels("home", "shop")}),
            "another home cluster (home)",
        ),
    ] {
        let world = World::with_spec(json!({})).await;
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
async fn messages_from_a_cluster_are_truncated_in_the_status() {
    let world = World::with_spec(json!({})).await;
    let labels = json!({"fabric.storage.liqo.io/home": "h".repeat(1 << 20)});
    world.there.put(THERE, json!({"metadata": {"labels": labels}}));
    world.run_until(|world| world.phase() == "AllFailed").await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "CreationLoopBackOff");
    assert!(message.len() < 1100, "{} bytes", message.len());
    assert!(message.contains("another home cluster"));
}

#[tokio::test]
async fn system_namespaces_are_never_offloaded() {
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
        let message = &status(&world)["remoteNamespacesConditions"]["milan"];
        assert_eq!(message.as_array().map(Vec::len), Some(1), "{message}");
        assert_eq!(message[0]["reason"], "ClusterNotAdmitted");
        assert!(
            message[0]["message"]
                .as_str()
                .unwrap()
                .contains("never offloaded"),
            "{message}"
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
async fn two_namespaces_cannot_share_a_remote_namespace() {
    let spec = json!({"namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "common"});
    let world = World::with_spec(spec.clone()).await;
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
async fn a_refused_namespace_is_reported_and_retried() {
    let world = World::with_spec(json!({})).await;
    world
        .there
        .fault(Fault::new("POST", "/api/v1/namespaces", Act::Forbid("no right")));
    world.run_until(|world| world.phase() == "AllFailed").await;
    world.there.heal();
    world.run_until(|world| world.phase() == "Ready").await;
}

const RIGHTS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop-home/rolebindings/liqo-csi-fabric";

#[tokio::test]
async fn removed_rights_are_granted_again() {
    let world = World::offloaded().await;
    assert!(world.there.object(RIGHTS).is_none(), "they were there");
    world.there.put("/denied", json!({"resources": ["configmaps"]}));
    world
        .run_until(|world| world.there.object(RIGHTS).is_some())
        .await;
    assert_eq!(world.phase(), "Ready");
}

#[tokio::test]
async fn objects_are_copied_for_pods_of_another_fabric() {
    let world = World::with_spec(json!({})).await;
    world
        .there
        .put("/denied", json!({"resources": ["pods", "configmaps"]}));
    world
        .run_until(|world| world.phase() == "Ready" && world.there.object(RIGHTS).is_some())
        .await;
    let role = &world.there.object(RIGHTS).unwrap()["roleRef"]["name"];
    assert_eq!(*role, "liqo-csi-remote.access-workloads");
}

/// The policies of pods read the reason.
#[tokio::test]
async fn a_strategy_that_the_cluster_does_not_admit_is_reported() {
    let world = World::with_spec(json!({})).await;
    world.home.change(CLUSTER, |it| {
        it["spec"]["fabric"] = json!({"offload": {"strategies": ["EnforceSameName"]}});
    });
    world
        .run_until(|world| world.condition("OffloadingRequired")["reason"] == "ClusterNotAdmitted")
        .await;
    assert_eq!(world.there.writes(), 0);
}

#[tokio::test]
async fn nothing_is_written_where_liqo_is_installed() {
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
        let world = World::with_spec(json!({})).await;
        world.home.put(path, object);
        let idle = watch::Sender::new(None);
        let mut reason = idle.subscribe();
        let is_liqo = |reason: &Option<IdleReason>| matches!(reason, Some(IdleReason::Unready(why)) if why.contains("Liqo is installed"));
        tokio::select! {
            () = world.run(&idle) => {}
            found = reason.wait_for(is_liqo) => assert!(found.is_ok()),
        }
        assert_eq!((world.home.writes(), world.there.writes()), (0, 0), "{path}");
    }
}

#[tokio::test]
async fn without_the_crd_the_fabric_is_ready_and_starts_when_it_is_installed() {
    let world = World::with_spec(json!({})).await;
    world
        .home
        .fault(Fault::new("GET", "/namespaceoffloadings", Act::Refuse(404)).at_the_end());
    let idle = watch::Sender::new(None);
    let mut reason = idle.subscribe();
    let unready = |reason: &Option<IdleReason>| matches!(reason, Some(IdleReason::Unready(_)));
    let story = async {
        reason
            .wait_for(|reason| *reason == Some(IdleReason::Undefined))
            .await
            .unwrap();
        assert_eq!((world.home.writes(), world.there.writes()), (0, 0));
        world.home.heal();
        while reason.borrow_and_update().is_some() {
            assert!(!unready(&reason.borrow()), "{:?}", *reason.borrow());
            reason.changed().await.unwrap();
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
async fn offloading_completes_after_a_crash_at_any_write() {
    for writes in 0..MOST_WRITES {
        let world = World::with_spec(json!({})).await;
        let died = world.crash_after(writes, |world| world.phase() == "Ready").await;
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
async fn unoffloading_after_a_crash_at_any_write_leaves_nothing() {
    for writes in 0..MOST_WRITES {
        let world = World::with_spec(json!({})).await;
        let died = world.crash_after(writes, |world| world.phase() == "Ready").await;
        world.unoffload();
        let ended = Box::pin(world.crash_after(1, World::is_gone)).await;
        world.age_conditions();
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
async fn the_lease_is_held_while_running_and_released_at_the_end() {
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
async fn network_policies_and_disruption_budgets_are_named_in_the_condition() {
    const POLICY: &str = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/deny-all";
    const BUDGET: &str = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/two-of-three";
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
    world.reconcile_again(1).await;
    assert_eq!(world.home.writes(), written);
    world.home.put(BUDGET, json!({}));
    world
        .run_until(|world| message(world).contains("deny-all") && message(world).contains("two-of-three"))
        .await;
    world.home.remove(POLICY);
    world
        .run_until(|world| {
            !message(world).contains("NetworkPolicies") && message(world).contains("two-of-three")
        })
        .await;
}
