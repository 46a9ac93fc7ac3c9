//! The loops of two nodes against fake API servers.

use kube::runtime::watcher;

use super::*;
use crate::{
    cluster::{
        Lean, Rights,
        testing::{Act, FakeApi, Fault},
    },
    fleet::Registry,
    placement::Declared,
    rounds::{LoopMetrics, drive},
    seen::SentPod,
    tests::CLUSTER_EVENTS,
};

const NAMES: [&str; 2] = ["milan", "rome"];

struct World {
    home: FakeApi,
    there: [FakeApi; 2],
}

impl World {
    async fn new() -> Self {
        let world = Self {
            home: FakeApi::start().await,
            there: [FakeApi::start().await, FakeApi::start().await],
        };
        for api in [&world.home].into_iter().chain(&world.there) {
            api.put("/api/v1/namespaces/kube-system", json!({}));
        }
        for name in NAMES {
            world.declare(name, None);
        }
        world
    }

    fn declare(&self, name: &str, port: Option<u16>) {
        let spec = json!({"kubeconfigSecretRef": {"name": name}, "fabric": {}});
        let status = json!({"virtualNode": {"port": port}});
        self.home
            .put(&cluster(name), json!({"spec": spec, "status": status}));
    }

    async fn registry(&self) -> Registry {
        let [milan, rome] = &self.there;
        Registry::fixed([
            (Declared::plain("milan"), Link::up(milan, Rights::ALL).await),
            (Declared::plain("rome"), Link::up(rome, Rights::ALL).await),
        ])
    }

    /// Lets the loops run until this is so, with these ports for nodes.
    async fn run_until(&self, ports: &[u16], condition: impl Fn(&Self) -> bool) {
        let (home, registry) = (self.home.cluster_unwatched().await, self.registry().await);
        let places = Places::new(&home, &registry);
        let endpoints = Endpoints {
            address: Some([10, 0, 0, 1].into()),
            ports: ports.into(),
        };
        home.views().remote_clusters.complete().await;
        let swept = watch::Sender::new(true);
        let stop = tokio_util::sync::CancellationToken::new();
        let _stops = stop.clone().drop_guard();
        let pods: kube::Api<Lean<SentPod>> = kube::Api::all(home.client().clone());
        let pods = View::start(
            pods,
            watcher::Config::default(),
            |it| Some(SeenPod::at_home(&it)),
            &stop,
        );
        let keep = |name: &str| {
            NodeKeeper::new(
                &places,
                name.parse().unwrap(),
                name.to_owned(),
                endpoints.clone(),
                pods.clone(),
                swept.subscribe(),
            )
        };
        let metrics = LoopMetrics::default();
        let until = async {
            while !condition(self) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let outcome = tokio::time::timeout(Duration::from_secs(40), async {
            let nodes = async { tokio::join!(drive(keep("milan"), &metrics), drive(keep("rome"), &metrics)) };
            tokio::select! {
                ((), ()) = Box::pin(nodes) => {}
                () = until => {}
            }
        });
        let came = outcome.await.is_ok();
        assert!(
            came,
            "it never came true: {:?}",
            NAMES.map(|name| self.called(name))
        );
    }

    /// Address and port that a node names.
    fn called(&self, node: &str) -> Option<(String, u64)> {
        let status = self.home.object(&format!("/api/v1/nodes/{node}"))?["status"].clone();
        let address = status["addresses"][0]["address"].as_str()?.to_owned();
        let port = &status["daemonEndpoints"]["kubeletEndpoint"]["Port"];
        Some((address, port.as_u64().filter(|port| *port != 0)?))
    }

    fn port(&self, node: &str) -> Option<u64> {
        self.called(node).map(|(_, port)| port)
    }

    /// Whether a `RemoteCluster` has an event with this reason.
    fn is_reported(&self, reason: &str, name: &str) -> bool {
        let events = self.home.store().below(CLUSTER_EVENTS);
        events
            .iter()
            .any(|it| it["reason"] == reason && it["regarding"]["name"] == name)
    }

    fn remembered(&self, name: &str) -> Option<u64> {
        self.home.object(&cluster(name))?["status"]["virtualNode"]["port"].as_u64()
    }
}

fn cluster(name: &str) -> String {
    format!("/apis/storage.liqo.io/v1alpha1/remoteclusters/{name}")
}

#[tokio::test]
async fn each_virtual_node_keeps_a_port_of_its_own() {
    let world = World::new().await;
    let both = |world: &World| NAMES.iter().all(|name| world.port(name).is_some());
    world.run_until(&[9829, 9830, 9831], both).await;
    assert_eq!(
        world.called("milan"),
        Some(("10.0.0.1".to_owned(), world.remembered("milan").unwrap()))
    );
    assert_ne!(world.port("milan"), world.port("rome"));
    // Another replica creates the node again.
    world.home.remove("/api/v1/nodes/rome");
    world.home.remove(&cluster("milan"));
    let before = world.remembered("rome");
    world
        .run_until(&[9829, 9830, 9831], |world| world.port("rome").is_some())
        .await;
    assert_eq!(world.port("rome"), before);
}

/// A policy allows the fabric to write only leases with this label.
#[tokio::test]
async fn node_leases_have_the_label_of_their_node() {
    let world = World::new().await;
    let path = |name: &str| format!("/apis/coordination.k8s.io/v1/namespaces/{LEASES}/leases/{name}");
    // A lease that an older version wrote.
    world
        .home
        .put(&path("rome"), json!({"spec": {"holderIdentity": "rome"}}));
    let is_labelled = |world: &World, name: &str| {
        let lease = world.home.object(&path(name)).unwrap_or_default();
        lease["metadata"]["labels"][FABRIC_NODE] == name
    };
    world
        .run_until(&[], |world| NAMES.iter().all(|name| is_labelled(world, name)))
        .await;
}

#[tokio::test]
async fn a_node_without_a_port_has_no_address() {
    let world = World::new().await;
    // As all nodes had it before.
    let status = json!({
        "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 9829}},
    });
    world.declare("milan", Some(9829));
    for name in NAMES {
        let labels = json!({FABRIC_NODE: name});
        world.home.put(
            &format!("/api/v1/nodes/{name}"),
            json!({"metadata": {"labels": labels}, "status": status}),
        );
    }
    world
        .run_until(&[9829], |world| {
            world.called("milan") == Some(("10.0.0.1".to_owned(), 9829))
                && world.called("rome").is_none()
                && world.is_reported("NoPortLeft", "rome")
        })
        .await;
    assert_eq!(world.remembered("rome"), None);
}

/// A webhook that annotates nodes makes the policy of the fabric refuse its write.
#[tokio::test]
async fn a_node_that_cannot_be_written_is_reported() {
    let world = World::new().await;
    let refused = Act::Forbid("the fabric writes no annotations of nodes");
    world
        .home
        .fault(Fault::new("POST", "/api/v1/nodes", refused).at_the_end());
    world
        .run_until(&[], |world| world.is_reported("WriteRefused", "rome"))
        .await;
    assert!(world.home.object("/api/v1/nodes/rome").is_none());
    world.home.heal();
    world
        .run_until(&[], |world| world.home.object("/api/v1/nodes/rome").is_some())
        .await;
}

#[tokio::test]
async fn fields_dropped_by_an_older_crd_are_not_written_every_round() {
    let world = World::new().await;
    let status = format!("{}/status", cluster("milan"));
    world.home.fault(Fault::new("PATCH", &status, Act::TakeOut));
    let (home, registry) = (world.home.cluster_unwatched().await, world.registry().await);
    home.views().remote_clusters.complete().await;
    let places = Places::new(&home, &registry);
    let endpoints = Endpoints {
        address: Some([10, 0, 0, 1].into()),
        ports: [9829].into(),
    };
    let swept = watch::Sender::new(true);
    let milan = "milan".parse().unwrap();
    let mut keeper = NodeKeeper::new(
        &places,
        milan,
        "milan".to_owned(),
        endpoints,
        View::none(),
        swept.subscribe(),
    );
    let writes = || {
        let all = world.home.requests();
        all.iter()
            .filter(|it| it.starts_with("PATCH") && it.contains(&status))
            .count()
    };
    keeper.round().await.unwrap();
    let before = writes();
    assert!(before > 0);
    // The status changes once more when the node exists.
    for _ in 0..4 {
        keeper.round().await.unwrap();
    }
    assert_eq!(writes(), before);
    // As if the definition had been updated a while ago.
    world.home.heal();
    if let Some(dropped) = keeper.dropped.lock().unwrap().as_mut() {
        dropped.when -= DROPPED_AGAIN;
    }
    keeper.round().await.unwrap();
    assert_eq!(world.remembered("milan"), Some(9829));
}

#[tokio::test]
async fn a_node_of_a_deleted_cluster_gets_the_address_of_a_new_leader() {
    let world = World::new().await;
    world.home.remove(&cluster("rome"));
    world.home.change(&cluster("milan"), |it| {
        it["metadata"]["finalizers"] = json!([FINALIZER]);
        it["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        it["status"]["virtualNode"]["port"] = json!(9830);
    });
    // A namespace is still there.
    let offloading = "/apis/offloading.liqo.io/v1beta1/namespaces/shop/namespaceoffloadings/offloading";
    let ready = json!([{"type": READY, "status": "False", "reason": "Terminating", "message": ""}]);
    world.home.put(
        offloading,
        json!({"spec": {}, "status": {"remoteNamespacesConditions": {"milan": ready}}}),
    );
    let node = "/api/v1/nodes/milan";
    world.home.put(
        node,
        json!({
            "metadata": {"labels": {FABRIC_NODE: "milan"}},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 9830}},
            },
        }),
    );
    let ours = Some(("10.0.0.1".to_owned(), 9830));
    world
        .run_until(&[9829, 9830], |world| world.called("milan") == ours)
        .await;
    let object = world.home.object(node).unwrap();
    assert_eq!(object["spec"]["unschedulable"], true);
    // The node is created again.
    world.home.remove(node);
    world
        .run_until(&[9829, 9830], |world| world.called("milan") == ours)
        .await;
    world.home.remove(offloading);
    world
        .run_until(&[9829, 9830], |world| {
            world.home.object(node).is_none() && world.home.object(&cluster("milan")).is_none()
        })
        .await;
}

#[tokio::test]
async fn a_virtual_node_declares_features_common_to_all_remote_nodes() {
    let world = World::new().await;
    for (name, features) in [
        (
            "a",
            json!([
                "ExtendWebSocketsToKubelet",
                "InPlaceB",
                "RestartA/sub",
                "lower",
                "Not a name"
            ]),
        ),
        ("b", json!(["ExtendWebSocketsToKubelet", "Other", "RestartA/sub"])),
    ] {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        world.there[0].put(
            &format!("/api/v1/nodes/{name}"),
            json!({"status": {"conditions": ready, "allocatable": {"cpu": "1"}, "declaredFeatures": features}}),
        );
    }
    world
        .run_until(&[9829], |world| {
            let node = world.home.object("/api/v1/nodes/milan").unwrap_or_default();
            node["status"]["declaredFeatures"] == json!(["RestartA/sub"])
                && node["status"]["allocatable"]["cpu"] == "2"
        })
        .await;
}

/// A pod of the node `worker`, of these requests.
fn pod_there(cpu: &str) -> Value {
    json!({
        "metadata": {},
        "spec": {"nodeName": "worker", "containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Running"},
    })
}

#[tokio::test]
async fn free_capacity_excludes_requests_of_other_pods() {
    let world = World::new().await;
    world.home.change(&cluster("milan"), |it| {
        it["spec"]["fabric"]["capacity"] = json!({"source": "Free"});
    });
    let there = &world.there[0];
    there.put(
        "/api/v1/nodes/worker",
        json!({"status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "8", "pods": "110"},
        }}),
    );
    there.put("/api/v1/namespaces/theirs/pods/running", pod_there("2"));
    let mut elsewhere = pod_there("2");
    elsewhere["spec"]["nodeName"] = json!("other");
    there.put("/api/v1/namespaces/theirs/pods/elsewhere", elsewhere);
    let mut waits = pod_there("2");
    waits["spec"]["nodeName"] = Value::Null;
    there.put("/api/v1/namespaces/theirs/pods/waits", waits);
    let mut ended = pod_there("2");
    ended["status"]["phase"] = json!("Failed");
    there.put("/api/v1/namespaces/theirs/pods/ended", ended);
    // A home pod of the node requests one; something there has added half of that.
    let mut at_home = pod_there("1");
    at_home["spec"]["nodeName"] = json!("milan");
    at_home["metadata"]["finalizers"] = json!([POD_FINALIZER]);
    world.home.put("/api/v1/namespaces/shop/pods/web", at_home);
    let uid = |api: &FakeApi, path: &str| api.object(path).unwrap()["metadata"]["uid"].clone();
    let mut own = pod_there("1500m");
    own["metadata"]["annotations"] = json!({
        "fabric.storage.liqo.io/home-uid": uid(&world.home, "/api/v1/namespaces/kube-system"),
        "fabric.storage.liqo.io/home-pod": "shop/web",
        "fabric.storage.liqo.io/home-pod-uid": uid(&world.home, "/api/v1/namespaces/shop/pods/web"),
    });
    there.put("/api/v1/namespaces/shop-home/pods/web", own);
    let offers = |world: &World| {
        let node = world.home.object("/api/v1/nodes/milan").unwrap_or_default();
        let offers = &node["status"]["allocatable"];
        (offers["cpu"].clone(), offers["pods"].clone())
    };
    world
        .run_until(&[9829], |world| offers(world) == (json!("5500m"), json!("109")))
        .await;

    // Without the right nothing is offered, least of all what was free once.
    there.fault(Fault::new(
        "GET",
        "/api/v1/pods",
        Act::Forbid("pods is forbidden"),
    ));
    world
        .run_until(&[9829], |world| offers(world) == (json!("0"), json!("0")))
        .await;
    let node = world.home.object("/api/v1/nodes/milan").unwrap();
    let ready = node["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(ready.contains("remoteAccess.freeCapacity=true"), "{ready}");
    let reported = |world: &World| {
        let events = world.home.store().below(CLUSTER_EVENTS);
        let mut events = events.iter();
        events.any(|it| it["reason"] == "CapacityUnknown" && it["regarding"]["name"] == "milan")
    };
    assert!(reported(&world), "an event of the RemoteCluster says so");
}
