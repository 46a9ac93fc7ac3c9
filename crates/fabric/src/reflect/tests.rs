//! The loops against two fake API servers: this cluster, whose namespace `shop` is offloaded, and
//! the cluster `milan`, where it is `shop-home`.

use std::{cell::Cell, time::Duration};

use serde_json::{Value, json};
use tokio::{sync::watch, time};

use super::*;
use crate::{
    cluster::{
        Rights,
        testing::{Act, FakeApi, Fault, Life},
        view::Slim,
    },
    fleet::{Link, Registry},
    offload::reflection::{COPIED_KEYS, HOME_OBJECT_UID, Kind, SKIP},
    placement::Declared,
    tests::EVENTS,
};

mod events;
mod outages;
mod routed;

const OFFLOADING: &str = "/apis/offloading.liqo.io/v1beta1/namespaces/shop/namespaceoffloadings/offloading";
const THERE: &str = "/api/v1/namespaces/shop-home";
const BINDING: &str =
    "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/rolebindings/liqo-csi-fabric-reflected";
const MOST_WRITES: usize = 30;

struct World {
    home: FakeApi,
    there: FakeApi,
    /// The limit of copied objects of a kind.
    most: usize,
}

/// The path of an object at home.
fn here(kind: &str, name: &str) -> String {
    format!("/api/v1/namespaces/shop/{kind}/{name}")
}

/// The path of an object there.
fn there(kind: &str, name: &str) -> String {
    format!("{THERE}/{kind}/{name}")
}

impl World {
    async fn new() -> Self {
        let world = Self {
            home: FakeApi::start().await,
            there: FakeApi::start().await,
            most: MOST_COPIED,
        };
        let home = &world.home;
        home.put(
            "/api/v1/namespaces/kube-system",
            json!({"metadata": {"uid": "uid-of-home"}}),
        );
        world.there.put("/api/v1/namespaces/kube-system", json!({}));
        home.put(
            "/api/v1/namespaces/shop",
            json!({"metadata": {"uid": "uid-of-shop"}}),
        );
        let spec = json!({
            "kubeconfigSecretRef": {"name": "milan"}, "nodeSelector": {"matchLabels": {"to": "milan"}}, "fabric": {},
        });
        home.put(
            "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan",
            json!({ "spec": spec }),
        );
        let ready = json!({"type": "Ready", "status": "True", "reason": "NamespaceCreated"});
        let status = json!({
            "remoteNamespaceName": "shop-home", "remoteNamespacesConditions": {"milan": [ready]},
        });
        home.put(OFFLOADING, json!({"spec": {}, "status": status}));
        let labels = json!({
            "fabric.storage.liqo.io/home": "home", "fabric.storage.liqo.io/home-namespace": "shop",
        });
        let annotations = json!({
            "fabric.storage.liqo.io/home-uid": "uid-of-home",
            "fabric.storage.liqo.io/home-namespace-uid": "uid-of-shop",
        });
        let metadata = json!({"labels": labels, "annotations": annotations});
        world.there.put(THERE, json!({ "metadata": metadata }));
        world
    }

    /// With a copied `ConfigMap`.
    async fn copied() -> Self {
        let world = Self::new().await;
        world
            .home
            .put(&here("configmaps", "settings"), json!({"data": {"color": "red"}}));
        world.run_until(|world| world.color() == "red").await;
        world
    }

    fn color(&self) -> Value {
        self.there
            .object(&there("configmaps", "settings"))
            .unwrap_or_default()["data"]["color"]
            .clone()
    }

    async fn run(&self, idle: &Idle) {
        let link = Link::up(&self.there, Rights::ALL).await;
        self.run_with(idle, link).await;
    }

    async fn run_with(&self, idle: &Idle, link: Link) {
        let home = self.home.cluster_unwatched().await;
        let turin = Link::Unreachable("no answer".into());
        let registry = Registry::fixed([
            (Declared::plain("milan"), link),
            (Declared::plain("turin"), turin),
        ]);
        let (places, metrics) = (Places::new(&home, &registry), LoopMetrics::default());
        let mut reflection = Reflection::new(&places, "ours", &metrics, idle);
        reflection.most = self.most;
        drive(reflection, &metrics).await;
    }

    /// Runs the loops until the condition is true.
    async fn run_until(&self, condition: impl Fn(&Self) -> bool) {
        let idle = watch::Sender::new(None);
        self.run_idle_until(&idle, condition).await;
    }

    async fn run_idle_until(&self, idle: &Idle, condition: impl Fn(&Self) -> bool) {
        let until = async {
            while !condition(self) {
                time::sleep(Duration::from_millis(20)).await;
            }
        };
        let outcome = time::timeout(Duration::from_secs(40), async {
            tokio::select! {
                () = self.run(idle) => unreachable!("it runs for ever"),
                () = until => {}
            }
        });
        let came = outcome.await.is_ok();
        let requests = [&self.home, &self.there].map(FakeApi::requests);
        assert!(came, "it never came true: {requests:#?}");
    }

    /// Runs the loops until all earlier changes are handled.
    async fn settle(&self, name: &str) {
        self.home
            .put(&here("configmaps", name), json!({"data": {"a": "b"}}));
        let last = there("configmaps", name);
        self.run_until(|world| world.there.object(&last).is_some()).await;
    }

    /// Runs the loops until they die before the write after this many, or the condition is true.
    /// Returns whether they died.
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

    fn events(&self) -> Vec<Value> {
        self.home.store().below("/api/v1/namespaces/shop/events/")
    }

    /// The reasons of the events at home.
    fn reported(&self) -> Vec<String> {
        let events = self.home.store().below(EVENTS);
        let reason = |it: &Value| it["reason"].as_str().unwrap_or_default().to_owned();
        events.iter().map(reason).collect()
    }
}

#[tokio::test]
async fn objects_are_copied_with_their_marks() {
    let world = World::new().await;
    let uid = world.home.put(
        &here("configmaps", "settings"),
        json!({"metadata": {"labels": {"app": "web"}}, "data": {"color": "red"}}),
    )["metadata"]["uid"]
        .clone();
    world.home.put(
        &here("secrets", "password"),
        json!({"type": "Opaque", "data": {"word": "aHVudGVyMg=="}}),
    );
    let spec = json!({
        "type": "NodePort", "clusterIP": "10.0.0.1", "selector": {"app": "web"},
        "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP", "nodePort": 30000}],
    });
    world.home.put(&here("services", "web"), json!({ "spec": spec }));
    world.home.put(
        &here("configmaps", "kube-root-ca.crt"),
        json!({"data": {"ca.crt": "x"}}),
    );
    let certificates = there(
        "configmaps",
        &format!("kube-root-ca.crt.{}", crate::volume::digest(10, ["home"])),
    );
    let paths = [
        there("configmaps", "settings"),
        there("secrets", "password"),
        there("services", "web"),
        certificates,
    ];
    world
        .run_until(|world| paths.iter().all(|path| world.there.object(path).is_some()))
        .await;
    let [settings, password, web, _] = paths.map(|path| world.there.object(&path).unwrap());
    let metadata = &settings["metadata"];
    assert_eq!(
        metadata["labels"],
        json!({
            "app": "web", "app.kubernetes.io/managed-by": "storage.liqo.io", "fabric.storage.liqo.io/home": "home",
        })
    );
    assert_eq!(
        metadata["annotations"]["fabric.storage.liqo.io/home-uid"],
        "uid-of-home"
    );
    assert_eq!(metadata["annotations"][HOME_OBJECT_UID], uid);
    assert_eq!(password["data"], json!({"word": "aHVudGVyMg=="}));
    assert_eq!(
        web["spec"],
        json!({
            "type": "ClusterIP", "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}],
        })
    );
    let binding = world.home.object(BINDING).unwrap();
    assert_eq!(binding["roleRef"]["name"], "liqo-csi-fabric-reflected");
    assert_eq!(
        binding["subjects"],
        json!([{"kind": "ServiceAccount", "name": "liqo-csi-fabric", "namespace": "ours"}])
    );
}

#[tokio::test]
async fn changes_are_copied_and_drift_is_corrected() {
    let world = World::copied().await;
    let copy = there("configmaps", "settings");
    let uid = world.there.object(&copy).unwrap()["metadata"]["uid"].clone();
    world.home.change(&here("configmaps", "settings"), |it| {
        it["data"] = json!({"color": "blue"});
        it["metadata"]["labels"] = json!({"app": "web"});
    });
    world.run_until(|world| world.color() == "blue").await;
    // Other clients add their own fields, and change the driver's.
    world.there.change(&copy, |it| {
        it["data"] = json!({"color": "green", "size": "large"});
        it["metadata"]["labels"]["theirs"] = "x".into();
        it["metadata"]["labels"]["app"] = "y".into();
    });
    world.run_until(|world| world.color() == "blue").await;
    let now = world.there.object(&copy).unwrap();
    assert_eq!(now["data"], json!({"color": "blue"}));
    assert_eq!(
        (
            &now["metadata"]["labels"]["theirs"],
            &now["metadata"]["labels"]["app"]
        ),
        (&json!("x"), &json!("web"))
    );
    assert_eq!(now["metadata"]["uid"], uid, "it is changed in place");
    world.home.change(&here("configmaps", "settings"), |it| {
        it["metadata"]["labels"] = json!({});
    });
    world
        .run_until(|world| world.there.object(&copy).unwrap()["metadata"]["labels"]["app"].is_null())
        .await;
    world.there.remove(&copy);
    world.run_until(|world| world.color() == "blue").await;
}

#[tokio::test]
async fn a_copy_is_deleted_with_its_original() {
    let world = World::copied().await;
    world.home.remove(&here("configmaps", "settings"));
    world.run_until(|world| world.color().is_null()).await;
    let world = World::copied().await;
    world.home.change(&here("configmaps", "settings"), |it| {
        it["metadata"]["annotations"] = json!({SKIP: "true"});
    });
    world.run_until(|world| world.color().is_null()).await;
}

/// The view shows that the original is deleted, but a live read finds it.
#[tokio::test]
async fn no_copy_is_deleted_while_a_live_read_finds_the_original() {
    let world = World::copied().await;
    let path = here("configmaps", "settings");
    let object = world.home.object(&path).unwrap();
    world.home.remove(&path);
    let again = path.clone();
    world.home.before("GET", &path, move |store| {
        store.put(&again, object);
    });
    world.settle("last").await;
    world.settle("after").await;
    assert_eq!(world.color(), "red");
    let deleted = world.there.requests().iter().any(|it| it.starts_with("DELETE"));
    assert!(!deleted, "{:?}", world.there.requests());
}

#[tokio::test]
async fn a_copy_is_deleted_only_in_the_version_that_was_read() {
    let world = World::copied().await;
    let copy = there("configmaps", "settings");
    world.home.remove(&here("configmaps", "settings"));
    // Another client takes over the object between the read and the write.
    let path = copy.clone();
    world.there.before("DELETE", &copy, move |store| {
        let mut object = store.get(&path).unwrap();
        object["metadata"]["labels"] = json!({});
        store.put(&path, object);
    });
    world
        .run_until(|world| world.there.requests().iter().any(|it| it.starts_with("DELETE")))
        .await;
    world.settle("last").await;
    assert_eq!(world.color(), "red");
}

#[tokio::test]
async fn immutable_copies_are_replaced() {
    let world = World::new().await;
    world
        .home
        .put(&here("secrets", "s"), json!({"type": "Opaque", "data": {}}));
    world.home.put(
        &here("configmaps", "c"),
        json!({"data": {"a": "1"}, "immutable": true}),
    );
    let services = json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "ports": [{"port": 80}]});
    world
        .home
        .put(&here("services", "v"), json!({ "spec": services }));
    let copies = [
        there("secrets", "s"),
        there("configmaps", "c"),
        there("services", "v"),
    ];
    world
        .run_until(|world| copies.iter().all(|path| world.there.object(path).is_some()))
        .await;
    let uids = || {
        copies
            .each_ref()
            .map(|path| world.there.object(path).unwrap_or_default()["metadata"]["uid"].clone())
    };
    let before = uids();
    world.home.change(&here("secrets", "s"), |it| {
        it["type"] = "kubernetes.io/tls".into();
    });
    world
        .home
        .change(&here("configmaps", "c"), |it| it["data"]["a"] = "2".into());
    world.home.change(&here("services", "v"), |it| {
        it["spec"]["clusterIP"] = "None".into();
    });
    let is = |path: &str, pointer: &str, value: &str| {
        world.there.object(path).unwrap_or_default().pointer(pointer) == Some(&json!(value))
    };
    world
        .run_until(|_| {
            is(&copies[0], "/type", "kubernetes.io/tls")
                && is(&copies[1], "/data/a", "2")
                && is(&copies[2], "/spec/clusterIP", "None")
        })
        .await;
    for (now, before) in uids().iter().zip(before) {
        assert_ne!(*now, before);
    }
}

#[tokio::test]
async fn nothing_is_written_where_nothing_has_changed() {
    let world = World::copied().await;
    world.home.put(
        &here("secrets", "s"),
        json!({"type": "Opaque", "data": {"a": "Yg=="}}),
    );
    world.home.put(
        &here("services", "v"),
        json!({"spec": {"type": "ClusterIP", "ports": [{"port": 80}]}}),
    );
    let last = [there("secrets", "s"), there("services", "v")];
    world
        .run_until(|world| last.iter().all(|path| world.there.object(path).is_some()))
        .await;
    let writes = || world.home.writes() + world.there.writes();
    let (before, lists) = (writes(), world.there.requests().len());
    world.settle("one").await;
    assert_eq!(
        writes(),
        before + 1,
        "a start copies what is new, and that is all"
    );
    // Metadata that is not copied changes all the time.
    let status = |it: &mut Value| it["status"] = json!({"loadBalancer": {}});
    world.there.change(&last[1], status);
    world
        .there
        .change(&last[0], |it| it["metadata"]["managedFields"] = json!([]));
    world.settle("two").await;
    assert_eq!(writes(), before + 2);
    let after = world.there.requests();
    let reads = |of: &str| {
        after[lists..]
            .iter()
            .filter(|it| *it == &format!("GET {THERE}/{of}"))
            .count()
    };
    assert_eq!(
        (reads("configmaps"), reads("secrets")),
        (2, 2),
        "one list for each start"
    );
}

#[tokio::test]
async fn content_is_not_kept_in_memory() {
    let world = World::new().await;
    let body = "c2VjcmV0".repeat(1000);
    world.home.put(
        &here("secrets", "s"),
        json!({"type": "Opaque", "data": {"word": body}}),
    );
    world.there.put(
        &there("secrets", "s"),
        json!({"metadata": {"labels": {"fabric.storage.liqo.io/home": "home"}}, "data": {"word": body}}),
    );
    let home = world.home.cluster_unwatched().await;
    let remote = world.there.remote_cluster("milan", Rights::ALL).await;
    let marks = Marks {
        home: "home".into(),
        labels: [("fabric.storage.liqo.io/home".to_owned(), "home".to_owned())].into(),
        annotations: [].into(),
    };
    let source = Arc::new(Source::new(&home, "shop", &marks, MOST_COPIED));
    let source::Of::Objects(secrets) = source.of(Kind::Secret) else {
        panic!("they are kept as digests")
    };
    secrets.complete().await;
    let copies = source::copies(&remote, "shop-home", &marks, &source);
    copies.of(Kind::Secret).complete().await;
    let (kept, copy) = (secrets.all(), copies.of(Kind::Secret).all());
    let text = format!("{kept:?}{copy:?}");
    assert!(
        !text.contains("c2VjcmV0") && !text.contains("secretsecret"),
        "{text}"
    );
    assert!(kept[0].text() < 200 && copy[0].text() < 200 && kept.len() + copy.len() == 2);
}

#[tokio::test]
async fn a_namespace_that_is_no_longer_ours_gets_nothing() {
    let world = World::new().await;
    world.there.change(THERE, |it| {
        it["metadata"]["annotations"]["fabric.storage.liqo.io/home-namespace-uid"] =
            "of-an-earlier-one".into();
    });
    world
        .home
        .put(&here("secrets", "s"), json!({"data": {"a": "Yg=="}}));
    world
        .run_until(|world| world.there.requests().contains(&format!("GET {THERE}")))
        .await;
    assert_eq!(world.there.writes(), 0);
}

/// A cluster with one IP family has one address for a Service that prefers two, and refuses one that requires them.
#[tokio::test]
async fn a_service_for_two_families_is_copied_to_a_cluster_with_one() {
    let world = World::new().await;
    let spec = |policy: &str| json!({"spec": {"ipFamilyPolicy": policy, "ipFamilies": ["IPv6", "IPv4"]}});
    let copy = there("services", "web");
    world.home.put(&here("services", "web"), spec("PreferDualStack"));
    world.run_until(|world| world.there.object(&copy).is_some()).await;
    assert_eq!(
        world.there.object(&copy).unwrap()["spec"]["ipFamilies"],
        json!(["IPv6", "IPv4"])
    );
    world.there.remove(&copy);
    let refuse = |what| Fault::new("POST", "/services", Act::Invalid(what));
    world.there.fault(refuse("ipFamilies"));
    world.run_until(|world| world.there.object(&copy).is_some()).await;
    let made = world.there.object(&copy).unwrap();
    assert_eq!(
        made["spec"],
        json!({"type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack"})
    );
    world.there.heal();
    world.there.fault(refuse("RequireDualStack"));
    world
        .home
        .put(&here("services", "strict"), spec("RequireDualStack"));
    world
        .run_until(|world| world.reported().contains(&"ReflectionRefused".to_owned()))
        .await;
    assert!(world.there.object(&there("services", "strict")).is_none());
}

/// The fabric was installed in another namespace before: its account there is not this one.
#[tokio::test]
async fn the_role_binding_of_an_earlier_release_is_replaced() {
    let world = World::new().await;
    let ours = json!({"labels": {"app.kubernetes.io/managed-by": "storage.liqo.io"}});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "x"});
    let account = json!({"kind": "ServiceAccount", "name": "liqo-csi-fabric", "namespace": "earlier"});
    let binding = json!({"metadata": ours, "roleRef": role, "subjects": [account]});
    world.home.put(BINDING, binding);
    let account = |world: &World| {
        let binding = world.home.object(BINDING).unwrap_or_default();
        binding["subjects"][0]["namespace"].clone()
    };
    world.run_until(|world| account(world) == "ours").await;
}

#[tokio::test]
async fn the_role_binding_is_deleted_with_the_offloading() {
    let world = World::copied().await;
    // A left-over binding, and one that others created under its name.
    let [left, theirs] =
        ["left", "theirs"].map(|namespace| BINDING.replace("/shop/", &format!("/{namespace}/")));
    let ours = json!({"labels": {"app.kubernetes.io/managed-by": "storage.liqo.io"}});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "x"});
    world.home.put(&left, json!({"metadata": ours, "roleRef": role}));
    world.home.put(&theirs, json!({"roleRef": role}));
    world.run_until(|world| world.home.object(&left).is_none()).await;
    world.home.remove(OFFLOADING);
    world
        .run_until(|world| world.home.object(BINDING).is_none())
        .await;
    assert!(world.home.object(&theirs).is_some());
    assert_eq!(world.color(), "red", "what is there goes with its namespace");
}
