//! The controller of the pods of the node `milan` against two fake API servers, and a fake kubelet there that records
//! which pods it has started.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{sync::watch, time};

use super::*;
use crate::{
    cluster::{
        Rights,
        testing::{Act, FakeApi, Fault, Life},
    },
    fleet::{Link, Registry},
    offload::reflection::Marks,
    placement::{Declared, Mapped, Namespaces},
    reflect::{MOST_COPIED, Reflection, Source},
    rounds::drive,
    tests::{CLUSTER_EVENTS, EVENTS},
};

mod bounds;
mod changes;
mod claims;
mod configuration;
mod given_up;
mod left;
mod services;
mod usage;
mod waits;

const POD: &str = "/api/v1/namespaces/shop/pods/web";
const THERE: &str = "/api/v1/namespaces/shop-home/pods/web";
const SYSTEM: &str = "/api/v1/namespaces/kube-system";
const MOST_WRITES: usize = 12;
const UNSCHEDULABLE_MESSAGE: &str = "0/3 nodes are available: 3 Insufficient cpu.";

struct World {
    home: FakeApi,
    there: FakeApi,
    /// The uids of the remote pods that have started, by uid of the home pod.
    ran: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Whether the remote cluster is unreachable.
    is_unreachable: AtomicBool,
    /// Whether the registry does not have the mapping of the namespace yet.
    is_unmapped: bool,
    /// The limit of watched pods of a namespace, if not the default.
    watched: Option<usize>,
    /// Whether no node there accepts a pod.
    is_full: AtomicBool,
    /// Whether the objects of the namespace are copied.
    is_copied: bool,
    /// Objects of each kind that are copied.
    most_copied: usize,
    meters: Meters,
    given_up: GivenUp,
}

impl World {
    async fn new() -> Self {
        let (home, there) = (FakeApi::start().await, FakeApi::start().await);
        home.put(SYSTEM, json!({}));
        there.put(SYSTEM, json!({}));
        there.put("/api/v1/namespaces/shop-home", json!({}));
        let spec = json!({"kubeconfigSecretRef": {"name": "milan"}, "fabric": {}});
        home.put(
            "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan",
            json!({ "spec": spec }),
        );
        let ready = json!({"type": "Ready", "status": "True", "reason": "NamespaceCreated", "message": ""});
        home.put(
            "/apis/offloading.liqo.io/v1beta1/namespaces/shop/namespaceoffloadings/offloading",
            json!({"spec": {}, "status": {
                "remoteNamespaceName": "shop-home", "remoteNamespacesConditions": {"milan": [ready]},
            }}),
        );
        Self {
            home,
            there,
            ran: Mutex::default(),
            is_unreachable: AtomicBool::new(false),
            is_unmapped: false,
            watched: None,
            is_full: AtomicBool::new(false),
            is_copied: false,
            most_copied: MOST_COPIED,
            meters: Meters::default(),
            given_up: GivenUp::default(),
        }
    }

    /// With a pending pod on the node, with or without a controller.
    async fn with_pod(controlled: bool) -> Self {
        let world = Self::new().await;
        world.make(controlled);
        world
    }

    fn make(&self, controlled: bool) {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}]);
        let mut pod = json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {"nodeName": "milan", "containers": [{"name": "web", "image": "web"}]},
            "status": {"phase": "Pending"},
        });
        if controlled {
            pod["metadata"]["ownerReferences"] = owner;
        }
        self.home.put(POD, pod);
    }

    async fn run(&self) {
        let metrics = LoopMetrics::default();
        Box::pin(self.with_pods(async |pods| pods.run(&metrics).await)).await;
    }

    async fn with_pods(&self, act: impl AsyncFnOnce(Pods<'_>)) {
        let home = self.home.cluster_unwatched().await;
        let link = if self.is_unreachable.load(Ordering::Relaxed) {
            Link::Unreachable("no route".into())
        } else {
            Link::up(&self.there, Rights::ALL).await
        };
        let mapping = [("shop".to_owned(), Mapped::To("shop-home".to_owned()))];
        let mapping = mapping.into_iter().filter(|_| !self.is_unmapped).collect();
        let declared = Declared {
            namespaces: Namespaces {
                mapping,
                same_name: false,
            },
            ..Declared::plain("milan")
        };
        let registry = Registry::fixed([(declared, link)]);
        let places = Places::new(&home, &registry);
        let marks = Marks {
            home: "home".to_owned(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        };
        let source = Source::new(&home, "shop", &marks, MOST_COPIED);
        places.publish_sources(&[("shop".to_owned(), Arc::new(source))].into());
        let swept = watch::Sender::new(false);
        home.views().offloadings.complete().await;
        let mut pods = Pods::new(
            &places,
            "milan".parse().unwrap(),
            "milan",
            &self.meters,
            &self.given_up,
            &swept,
        );
        if let Some(most) = self.watched {
            pods.there.watch_at_most(most);
        }
        pods.lacking_after = Duration::ZERO;
        if !self.is_copied {
            pods.longest_copying = Duration::ZERO;
        }
        let (idle, metrics) = (watch::Sender::new(None), LoopMetrics::default());
        let copying = Box::pin(async {
            if self.is_copied {
                let mut reflection = Reflection::new(&places, "ours", &metrics, &idle);
                reflection.most = self.most_copied;
                drive(reflection, &metrics).await;
            }
            std::future::pending::<()>().await;
        });
        tokio::select! {
            () = act(pods) => {}
            () = copying => {}
        }
    }

    /// Starts ungated pods, as a kubelet; or reports them as unschedulable, as the scheduler.
    async fn kubelet(&self) {
        let pods = "/api/v1/namespaces/shop-home/pods/";
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        loop {
            let is_new = |pod: &Value| {
                let gates = pod["spec"]["schedulingGates"].as_array();
                gates.is_none_or(Vec::is_empty) && pod["status"]["phase"].is_null()
            };
            for pod in self.there.store().below(pods).iter().filter(|it| is_new(it)) {
                let path = format!("{pods}{}", text(&pod["metadata"]["name"]));
                let status = if self.is_full.load(Ordering::Relaxed) {
                    let waits = json!({
                        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                        "message": UNSCHEDULABLE_MESSAGE,
                    });
                    json!({"phase": "Pending", "conditions": [waits]})
                } else {
                    let of = text(&pod["metadata"]["annotations"]["fabric.storage.liqo.io/home-pod-uid"]);
                    let mut ran = self.ran.lock().unwrap();
                    ran.entry(of).or_default().insert(text(&pod["metadata"]["uid"]));
                    json!({"phase": "Running"})
                };
                self.there.change(&path, |pod| pod["status"] = status);
            }
            time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn run_until(&self, condition: impl Fn(&Self) -> bool) {
        let until = async {
            while !condition(self) {
                time::sleep(Duration::from_millis(10)).await;
            }
        };
        let outcome = time::timeout(Duration::from_mins(1), async {
            tokio::select! {
                () = self.run() => unreachable!("it runs for ever"),
                () = self.kubelet() => unreachable!("it runs for ever"),
                () = until => {}
            }
        });
        let came = outcome.await.is_ok();
        assert!(
            came,
            "it never came true: {:#?} {:#?}",
            self.home.object(POD),
            self.there.object(THERE)
        );
    }

    /// Runs until the controller crashes after this many writes or the condition is true. Returns whether it crashed.
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

    fn is_running(&self) -> bool {
        self.home
            .object(POD)
            .is_some_and(|pod| pod["status"]["phase"] == "Running")
    }

    fn is_gone(&self) -> bool {
        self.home.object(POD).is_none() && self.there.object(THERE).is_none()
    }

    fn delete(&self) {
        self.home.change(POD, |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        });
    }

    fn ran_at_most_once_each(&self) -> bool {
        self.ran.lock().unwrap().values().all(|pods| pods.len() <= 1)
    }

    fn home_pod(&self) -> Value {
        self.home.object(POD).unwrap()
    }
}

#[tokio::test]
async fn a_remote_pod_runs_and_its_status_is_copied_home() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    let (here, there) = (world.home_pod(), world.there.object(THERE).unwrap());
    assert_eq!(
        here["metadata"]["finalizers"],
        json!(["fabric.storage.liqo.io/remote-pod"])
    );
    assert_eq!(
        here["metadata"]["annotations"]["fabric.storage.liqo.io/remote-namespace"],
        "shop-home"
    );
    assert!(here["status"]["startTime"].is_string());
    assert_eq!(
        there["metadata"]["labels"],
        json!({"app": "web", "fabric.storage.liqo.io/home": "home"})
    );
    assert_eq!(there["metadata"]["ownerReferences"][0]["kind"], "Namespace");
    world.delete();
    world.run_until(World::is_gone).await;
}

#[tokio::test]
async fn each_pod_runs_once_despite_a_crash_at_any_write() {
    let mut has_ended = false;
    for writes in 0..MOST_WRITES {
        let world = World::with_pod(true).await;
        let died = world.crash_after(writes, World::is_running).await;
        world.run_until(World::is_running).await;
        world.delete();
        let died = world.crash_after(writes, World::is_gone).await || died;
        world.run_until(World::is_gone).await;
        assert!(world.ran_at_most_once_each(), "{:?}", world.ran);
        has_ended |= !died;
    }
    assert!(has_ended, "there are more writes than were tried");
}

#[tokio::test]
async fn a_remote_pod_deleted_by_others_is_never_run_again() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    let uid = world.home_pod()["metadata"]["uid"].clone();
    world.there.remove(THERE);
    world.run_until(World::is_gone).await;
    world.make(true);
    world.run_until(World::is_running).await;
    assert_ne!(world.home_pod()["metadata"]["uid"], uid);
    assert!(world.ran_at_most_once_each());

    let alone = World::with_pod(false).await;
    alone.run_until(World::is_running).await;
    alone.there.remove(THERE);
    alone
        .run_until(|world| world.home_pod()["status"]["phase"] == "Failed")
        .await;
    assert_eq!(alone.home_pod()["status"]["reason"], "DeletedRemotely");
}

impl World {
    /// The notes of the events of this reason.
    fn noted(&self, reason: &str) -> Vec<String> {
        let all = self.home.store().below(EVENTS);
        let noted = all.iter().filter(|it| it["reason"] == reason);
        noted.map(|it| it["note"].to_string()).collect()
    }
}

/// The controller of a Job with a `podFailurePolicy` keeps its finalizer until the pod has a final phase.
#[tokio::test]
async fn a_pod_deleted_before_it_runs_gets_a_final_phase() {
    let world = World::with_pod(true).await;
    world.home.change(POD, |pod| {
        pod["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
        pod["spec"]["hostPID"] = true.into();
    });
    world
        .run_until(|world| world.home_pod()["status"]["reason"] == "PodNotSupported")
        .await;
    world.delete();
    world
        .run_until(|world| world.home_pod()["status"]["phase"] == "Failed")
        .await;
    let status = world.home_pod()["status"].clone();
    assert_eq!(
        status["message"],
        "it was deleted before it ran in the cluster milan"
    );
}

/// Its program ends with 0 when it is told to stop.
#[tokio::test]
async fn a_pod_without_controller_that_is_drained_there_has_failed() {
    let world = World::with_pod(false).await;
    world.run_until(World::is_running).await;
    let ended = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
    world.there.change(THERE, |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        pod["status"] = json!({
            "phase": "Succeeded", "containerStatuses": [{"name": "web", "state": ended}],
        });
    });
    world
        .run_until(|world| world.home_pod()["status"]["phase"] != "Running")
        .await;
    let status = world.home_pod()["status"].clone();
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("DeletedRemotely"))
    );
    assert_eq!(status["containerStatuses"][0]["state"], ended);
}

/// A Job may ignore disruptions. A deletion at home is one only if the pod has the condition.
#[tokio::test]
async fn a_remote_pod_deleted_by_others_gets_a_disruption_condition() {
    for by_others in [true, false] {
        let world = World::with_pod(true).await;
        world.run_until(World::is_running).await;
        let last = Arc::new(Mutex::new(Value::Null));
        let seen = Arc::clone(&last);
        // The finalizer is removed.
        world.home.before("PATCH", POD, move |store| {
            *seen.lock().unwrap() = store.get(POD).unwrap_or_default();
        });
        if by_others {
            world.there.remove(THERE);
        } else {
            world.delete();
        }
        world.run_until(World::is_gone).await;
        let status = last.lock().unwrap()["status"].clone();
        assert_eq!(status["phase"], "Failed");
        let conditions = status["conditions"].as_array().unwrap();
        let disrupted = conditions.iter().find(|it| it["type"] == "DisruptionTarget");
        let why = disrupted.map(|it| it["reason"].clone());
        assert_eq!(why, by_others.then(|| json!("DeletedRemotely")));
        assert_eq!(world.noted("DeletedRemotely").len(), usize::from(by_others));
    }
}

/// The remote node is lost, or a finalizer there keeps the pod.
#[tokio::test]
async fn a_pod_whose_remote_pod_does_not_end_gets_an_event() {
    for (finalizers, why) in [
        (json!([]), "(n1)"),
        (json!(["kueue.x-k8s.io/managed"]), "kueue.x-k8s.io/managed"),
    ] {
        let world = World::with_pod(true).await;
        world.run_until(World::is_running).await;
        world.there.change(THERE, |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
            pod["metadata"]["finalizers"] = finalizers.clone();
            pod["spec"]["nodeName"] = json!("n1");
        });
        world.delete();
        world
            .run_until(|world| !world.noted("RemotePodLeaving").is_empty())
            .await;
        let noted = world.noted("RemotePodLeaving");
        assert!(noted[0].contains(why) && noted[0].contains("milan"), "{noted:?}");
        assert!(!world.is_gone());
    }
}

/// Kubernetes creates the service account a moment after the namespace.
#[tokio::test]
async fn a_namespace_without_its_service_account_yet_causes_no_warning() {
    const WHY: &str =
        "error looking up service account shop-home/default: serviceaccount \"default\" not found";
    let tries = |world: &World| {
        let requests = world.there.requests();
        requests
            .iter()
            .filter(|it| it.starts_with("POST") && it.contains("/shop-home/pods"))
            .count()
    };
    let fault = || Fault::new("POST", "/pods", Act::Forbid(WHY));
    let world = World::with_pod(true).await;
    world.home.change(POD, |pod| {
        pod["metadata"]["creationTimestamp"] = json!(format!("{:.0}", Timestamp::now()));
    });
    world.there.fault(fault());
    world.run_until(|world| tries(world) > 1).await;
    assert_eq!(world.home_pod()["status"]["reason"], Value::Null);
    world.there.heal();
    world.run_until(World::is_running).await;
    assert_eq!(world.noted("RemoteRefused").len(), 0);

    let older = World::with_pod(true).await;
    older.home.change(POD, |pod| {
        pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    older.there.fault(fault());
    older
        .run_until(|world| !world.noted("RemoteRefused").is_empty())
        .await;
}

/// A drain in the remote cluster deletes terminated pods, too. A Job counts a pod that is deleted
/// at home as failed.
#[tokio::test]
async fn a_remote_pod_deleted_after_it_ended_keeps_its_result() {
    let world = World::with_pod(true).await;
    world
        .home
        .change(POD, |pod| pod["spec"]["restartPolicy"] = json!("Never"));
    world.run_until(World::is_running).await;
    world.there.change(THERE, |pod| {
        pod["status"]["phase"] = json!("Succeeded");
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    });
    world
        .run_until(|world| world.home_pod()["status"]["phase"] == "Succeeded")
        .await;
    world.there.remove(THERE);
    let before = world.there.requests().len();
    world
        .run_until(|world| {
            let requests = &world.there.requests()[before..];
            requests.iter().any(|request| request.ends_with(THERE))
        })
        .await;
    assert_eq!(world.home_pod()["metadata"]["deletionTimestamp"], Value::Null);
    assert_eq!(world.home_pod()["status"]["phase"], "Succeeded");
}

/// The remote node was unreachable for so long that the pod was evicted at home; meanwhile the
/// remote pod has terminated.
#[tokio::test]
async fn a_home_pod_deleted_after_its_remote_pod_ended_gets_its_result() {
    for refuses_details in [false, true] {
        let world = World::with_pod(true).await;
        world.run_until(World::is_running).await;
        world.there.change(THERE, |pod| {
            pod["status"] =
                json!({"phase": "Succeeded", "containerStatuses": [{"name": "web", "restartCount": 77}]});
        });
        world.delete();
        if refuses_details {
            let large = Act::TooLarge("restartCount");
            world.home.fault(Fault::new("PATCH", "/pods/web/status", large));
        }
        let last = Arc::new(Mutex::new(Value::Null));
        let seen = Arc::clone(&last);
        // The finalizer is removed.
        world.home.before("PATCH", POD, move |store| {
            *seen.lock().unwrap() = store.get(POD).unwrap_or_default();
        });
        world.run_until(World::is_gone).await;
        assert_eq!(last.lock().unwrap()["status"]["phase"], "Succeeded");
    }
}

/// The remote phase is written just before the deletion, so it is usually not read.
#[tokio::test]
async fn the_phase_of_a_deleted_remote_pod_follows_its_last_container_states() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    world.there.change(THERE, |pod| {
        pod["status"]["containerStatuses"] =
            json!([{"name": "web", "state": {"terminated": {"exitCode": 0}}}]);
    });
    world
        .run_until(|world| world.home_pod()["status"]["containerStatuses"].is_array())
        .await;
    world.there.remove(THERE);
    world.delete();
    let last = Arc::new(Mutex::new(Value::Null));
    let seen = Arc::clone(&last);
    // The finalizer is removed.
    world.home.before("PATCH", POD, move |store| {
        *seen.lock().unwrap() = store.get(POD).unwrap_or_default();
    });
    world.run_until(World::is_gone).await;
    let status = last.lock().unwrap()["status"].clone();
    assert_eq!(status["phase"], "Succeeded");
    let conditions = status["conditions"].as_array().unwrap();
    assert!(
        conditions.iter().all(|it| it["type"] != "DisruptionTarget"),
        "{conditions:?}"
    );
}

impl World {
    /// How many events on pods say that a write is refused, for this reason.
    fn reported_refused(&self, why: &str) -> usize {
        let all = self.home.store().below(EVENTS);
        let notes = all.iter().filter(|it| it["reason"] == "WriteRefused");
        notes
            .filter(|it| it["note"].as_str().unwrap_or_default().contains(why))
            .count()
    }
}

#[tokio::test]
async fn a_write_refused_by_a_policy_is_reported_on_the_pod() {
    let world = World::with_pod(true).await;
    let why = "pods of this namespace must have an owner label";
    world.home.fault(Fault::new("PATCH", POD, Act::Forbid(why)));
    world.run_until(|world| world.reported_refused(why) > 0).await;
    world.home.heal();
    world.run_until(World::is_running).await;
    assert_eq!(world.reported_refused(why), 1);
}

/// The API server answers with 500 while a webhook there does not answer.
#[tokio::test]
async fn a_write_that_keeps_failing_is_reported_on_the_pod() {
    let world = World::with_pod(true).await;
    world.home.change(POD, |pod| {
        pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    world
        .there
        .fault(Fault::new("POST", "/shop-home/pods", Act::Refuse(500)));
    world
        .run_until(|world| world.reported_refused("shop-home/web") > 0)
        .await;
    world.there.heal();
    world.run_until(World::is_running).await;
    assert!(world.ran_at_most_once_each());
}

#[tokio::test]
async fn a_home_pod_is_deleted_only_after_a_live_read_from_its_cluster() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    world.there.remove(THERE);
    world.delete();
    // A 404 of a proxy.
    world
        .there
        .fault(Fault::new("GET", "/pods/web", Act::Refuse(404)));
    let was_read = |world: &World| {
        let is_read = |request: &&String| request.ends_with(THERE);
        world.there.requests().iter().filter(is_read).count() > 2
    };
    world.run_until(was_read).await;
    assert!(world.home.object(POD).is_some());
    // Another cluster answers under the address.
    world.there.heal();
    let before = world.there.object(SYSTEM).unwrap()["metadata"]["uid"].clone();
    world
        .there
        .change(SYSTEM, |it| it["metadata"]["uid"] = json!("another"));
    let node_was_read = |world: &World| {
        let requests = world.home.requests();
        requests
            .iter()
            .filter(|request| request.ends_with("/api/v1/nodes/milan"))
            .count()
            > 1
    };
    world.run_until(node_was_read).await;
    assert!(world.home.object(POD).is_some());
    world.there.change(SYSTEM, |it| it["metadata"]["uid"] = before);
    world.run_until(World::is_gone).await;
}

#[tokio::test]
async fn only_remote_pods_without_their_home_pod_are_deleted() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    world.home.remove(POD);
    // Another home cluster that has chosen the same id.
    let other = "/api/v1/namespaces/shop-home/pods/other";
    let mut theirs = world.there.object(THERE).unwrap();
    theirs["metadata"]["annotations"]["fabric.storage.liqo.io/home-uid"] = json!("theirs");
    theirs["metadata"]["annotations"]["fabric.storage.liqo.io/home-pod"] = json!("shop/other");
    theirs["metadata"]["uid"] = json!("o");
    world.there.put(other, theirs);
    world.run_until(|world| world.there.object(THERE).is_none()).await;
    assert!(world.there.object(other).is_some());
}

#[tokio::test]
async fn a_waiting_pod_reports_the_reason() {
    let world = World::with_pod(true).await;
    world.there.put(THERE, json!({"spec": {}}));
    world
        .run_until(|world| world.home_pod()["status"]["reason"] == "RemoteNameTaken")
        .await;
    assert!(world.there.object(THERE).is_some());
    world.there.remove(THERE);
    world.run_until(World::is_running).await;

    let claims = World::with_pod(true).await;
    let volume = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    claims.home.change(POD, |pod| pod["spec"]["volumes"] = volume);
    claims.home.put(
        "/api/v1/namespaces/shop/persistentvolumeclaims/data",
        json!({"metadata": {"uid": "mine"}}),
    );
    let twin = |of: &str| json!({"metadata": {"annotations": {"storage.liqo.io/claim-uid": of}}});
    let there = "/api/v1/namespaces/shop-home/persistentvolumeclaims/data";
    let says = |words: &'static str| {
        move |world: &World| {
            let status = world.home_pod()["status"].clone();
            status["reason"] == "ClaimNotReady" && status["message"].as_str().unwrap().contains(words)
        }
    };
    claims.run_until(says("has no claim shop-home/data")).await;
    claims.there.put(there, twin("theirs"));
    claims.run_until(says("is not the twin")).await;
    claims.there.put(there, twin("mine"));
    claims.run_until(World::is_running).await;
}

#[tokio::test]
async fn a_remote_pod_created_late_never_starts() {
    let world = World::with_pod(false).await;
    world.run_until(World::is_running).await;
    // A delayed request arrives after the first remote pod is gone.
    let mut late = world.there.object(THERE).unwrap();
    late["metadata"]["uid"] = json!("late");
    late["spec"]["schedulingGates"] = json!([{"name": "fabric.storage.liqo.io/home-pod-started"}]);
    late["status"] = json!({});
    world.there.remove(THERE);
    world.there.put(THERE, late);
    world
        .run_until(|world| world.home_pod()["status"]["phase"] == "Failed")
        .await;
    world.home.remove(POD);
    world.run_until(World::is_gone).await;
    assert!(world.ran_at_most_once_each(), "{:?}", world.ran);
}

#[tokio::test]
async fn a_pod_of_an_unreachable_cluster_is_deleted_when_its_node_is_out_of_service() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    world.home.change(POD, |pod| {
        pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    });
    world.is_unreachable.store(true, Ordering::Relaxed);
    let is_unready = |world: &World| {
        let conditions = world.home_pod()["status"]["conditions"].clone();
        conditions[0]["reason"] == "NodeStatusUnknown"
    };
    world.run_until(is_unready).await;
    world.delete();
    let node = "/api/v1/nodes/milan";
    world.home.put(node, json!({}));
    let has_read_live = |world: &World| {
        let requests = world.home.requests();
        requests.iter().filter(|request| request.ends_with(node)).count() > 1
    };
    world.run_until(has_read_live).await;
    assert!(world.home.object(POD).is_some());
    let taints = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    world.home.change(node, |node| node["spec"]["taints"] = taints);
    world.run_until(|world| world.home.object(POD).is_none()).await;
    // The remote pod is deleted when the cluster answers again.
    world.is_unreachable.store(false, Ordering::Relaxed);
    world.run_until(World::is_gone).await;
}

#[tokio::test]
async fn annotations_written_by_users_do_not_choose_the_remote_namespace() {
    let world = World::with_pod(true).await;
    let theirs = "/api/v1/namespaces/theirs/pods/web";
    world.there.put("/api/v1/namespaces/theirs", json!({}));
    world.home.change(POD, |pod| {
        pod["metadata"]["finalizers"] = json!(["fabric.storage.liqo.io/remote-pod"]);
        pod["metadata"]["annotations"] = json!({
            "fabric.storage.liqo.io/remote-cluster": "milan",
            "fabric.storage.liqo.io/remote-cluster-uid": world.there.object(SYSTEM).unwrap()["metadata"]["uid"],
            "fabric.storage.liqo.io/remote-namespace": "theirs",
        });
    });
    world
        .run_until(|world| world.home_pod()["status"]["reason"] == "OffloadingBackOff")
        .await;
    assert!(world.there.object(theirs).is_none() && world.there.object(THERE).is_none());
    // Without the finalizer the annotations are ignored.
    world
        .home
        .change(POD, |pod| pod["metadata"]["finalizers"] = json!([]));
    world.run_until(World::is_running).await;
    assert!(world.there.object(theirs).is_none());
}

#[tokio::test]
async fn addresses_are_copied_home_only_with_routes() {
    const CLUSTER: &str = "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan";
    let world = World::with_pod(true).await;
    let network = |mode: &str, cidr: &str| {
        let network = json!({"mode": mode, "podCIDRs": [cidr]});
        world
            .home
            .change(CLUSTER, |it| it["spec"]["fabric"]["network"] = network);
    };
    world.run_until(World::is_running).await;
    let set_address = |ip: &str| {
        world.there.change(THERE, |pod| {
            pod["status"]["podIP"] = json!(ip);
            pod["status"]["podIPs"] = json!([{"ip": ip}]);
        });
    };
    set_address("10.64.0.7");
    let ready = json!([{"type": "Ready", "status": "True"}]);
    world
        .there
        .change(THERE, |pod| pod["status"]["conditions"] = ready);
    let is_ready = |world: &World| {
        let conditions = world.home_pod()["status"]["conditions"].clone();
        let mut conditions = conditions.as_array().cloned().unwrap_or_default().into_iter();
        conditions.any(|it| it["type"] == "Ready" && it["status"] == "True")
    };
    world.run_until(is_ready).await;
    assert!(world.home_pod()["status"]["podIP"].is_null());

    network("Routed", "10.64.0.0/16");
    world
        .run_until(|world| world.home_pod()["status"]["podIP"] == "10.64.0.7")
        .await;
    assert_eq!(world.home_pod()["status"]["podIPs"], json!([{"ip": "10.64.0.7"}]));
    // The remote cluster reports an address of this cluster.
    set_address("10.0.0.1");
    let reported = |world: &World| world.home.store().below(EVENTS);
    world
        .run_until(|world| !reported(world).is_empty() && world.home_pod()["status"]["podIP"].is_null())
        .await;
    let event = &reported(&world)[0];
    assert_eq!(
        (&event["reason"], &event["regarding"]["name"]),
        (&json!("AddressNotRouted"), &json!("web"))
    );
    assert!(
        event["note"]
            .as_str()
            .unwrap()
            .contains("has the address 10.0.0.1")
    );

    set_address("10.64.0.8");
    world
        .run_until(|world| world.home_pod()["status"]["podIP"] == "10.64.0.8")
        .await;
    // While the controller runs.
    let changed = std::cell::Cell::new(false);
    world
        .run_until(|world| {
            if !changed.replace(true) {
                network("Isolated", "10.64.0.0/16");
            }
            world.home_pod()["status"]["podIP"].is_null()
        })
        .await;
    assert!(world.home_pod()["status"]["podIPs"].is_null());
    assert_eq!(reported(&world).len(), 1, "once for an address");
}

#[tokio::test]
async fn fields_with_another_meaning_there_are_reported_despite_crashes() {
    for writes in 0..MOST_WRITES {
        let world = World::with_pod(true).await;
        world.home.change(POD, |pod| {
            pod["spec"]["dnsPolicy"] = "None".into();
            pod["spec"]["dnsConfig"] = json!({"nameservers": ["10.0.0.53"]});
        });
        world.crash_after(writes, World::is_running).await;
        world.run_until(World::is_running).await;
        let events = world.home.store().below(EVENTS);
        let is_reported = events.iter().any(|it| it["reason"] == "HomeNameservers");
        assert!(is_reported, "crashed after {writes} writes");
    }
}

#[tokio::test]
async fn a_pod_that_fails_without_the_token_of_default_says_so_once() {
    let world = World::with_pod(true).await;
    world.home.change(POD, |pod| {
        let sources = json!([
            {"serviceAccountToken": {"path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt"}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]);
        pod["spec"]["volumes"] = json!([{"name": "kube-api-access-a", "projected": {"sources": sources}}]);
    });
    world.run_until(World::is_running).await;
    let reported = |world: &World| {
        let events = world.home.store().below(EVENTS);
        events
            .iter()
            .filter(|it| it["reason"] == "NoServiceAccountToken")
            .count()
    };
    assert_eq!(reported(&world), 0);
    for restarts in 1..3 {
        let failed =
            json!({"name": "web", "restartCount": restarts, "lastState": {"terminated": {"exitCode": 1}}});
        world.there.change(THERE, |pod| {
            pod["status"]["containerStatuses"] = json!([failed]);
        });
        world
            .run_until(|world| {
                let status = world.home_pod()["status"].clone();
                status["containerStatuses"][0]["restartCount"] == restarts && reported(world) > 0
            })
            .await;
    }
    assert_eq!(reported(&world), 1);
}

#[tokio::test]
async fn fields_with_another_meaning_there_are_reported_once_and_the_pod_runs() {
    let world = World::with_pod(true).await;
    world.home.change(POD, |pod| {
        let required = json!([{"topologyKey": "kubernetes.io/hostname"}]);
        pod["spec"]["affinity"] =
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
        pod["spec"]["dnsPolicy"] = "None".into();
        pod["spec"]["dnsConfig"] =
            json!({"nameservers": ["10.0.0.53"], "searches": ["shop.svc.cluster.local"]});
        pod["spec"]["nodeSelector"] = json!({"country": "it", "disk": "ssd", "pool": "guests"});
    });
    let offloading = "/apis/offloading.liqo.io/v1beta1/namespaces/shop/namespaceoffloadings/offloading";
    world.home.change(offloading, |it| {
        let country = json!([{"key": "country", "operator": "Exists"}]);
        it["spec"]["clusterSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions": country}]});
    });
    world
        .home
        .change("/apis/storage.liqo.io/v1alpha1/remoteclusters/milan", |it| {
            it["spec"]["fabric"]["pods"]["nodeSelector"] = json!({"pool": "guests"});
        });
    for _ in 0..2 {
        world.run_until(World::is_running).await;
    }
    let events = world.home.store().below(EVENTS);
    let mut reasons: Vec<_> = events.iter().filter_map(|it| it["reason"].as_str()).collect();
    reasons.sort_unstable();
    let wanted = [
        "HomeNameservers",
        "HomeNamespaceName",
        "NodeSelectorIgnored",
        "PodAffinityIgnored",
    ];
    assert_eq!(reasons, wanted);
    let mut notes = events.iter().filter_map(|it| it["note"].as_str());
    assert!(notes.any(|note| note.contains("a node by disk: ")));
    assert_eq!(world.there.object(THERE).unwrap()["spec"]["dnsPolicy"], "None");
}

#[tokio::test]
async fn what_all_replicas_have_is_reported_once_for_each_owner() {
    let world = World::new().await;
    let pod = |name: &str, owner: Option<&str>| {
        let owners = owner.map(|uid| {
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": true}])
        });
        let by_node = json!([{
            "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1, "labelSelector": {},
        }]);
        let apart = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}},
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaces": ["data"]},
        ]}});
        world.home.put(
            &format!("/api/v1/namespaces/shop/pods/{name}"),
            json!({
                "metadata": {"ownerReferences": owners},
                "spec": {
                    "nodeName": "milan", "containers": [{"name": "web", "image": "web"}], "dnsPolicy": "None",
                    "dnsConfig": {"nameservers": ["10.0.0.53"]}, "topologySpreadConstraints": by_node,
                    "priorityClassName": "high", "priority": 1000, "affinity": apart,
                    "setHostnameAsFQDN": true, "subdomain": "s".repeat(40),
                },
                "status": {"phase": "Pending"},
            }),
        );
    };
    for (name, owner) in [
        ("a-1", Some("a")),
        ("a-2", Some("a")),
        ("b-1", Some("b")),
        ("c", None),
        ("d", None),
    ] {
        pod(name, owner);
    }
    let is_running = |pod: &Value| pod["status"]["phase"] == "Running";
    world
        .run_until(|world| {
            world
                .home
                .store()
                .below("/api/v1/namespaces/shop/pods/")
                .iter()
                .all(is_running)
        })
        .await;
    let events = world.home.store().below(EVENTS);
    let count = |reason: &str| events.iter().filter(|it| it["reason"] == reason).count();
    for (reason, notes) in [
        ("TopologySpreadPreferred", 1),
        ("PriorityNotCarried", 1),
        ("HostnameTooLong", 1),
        ("PodAffinityIgnored", 2),
    ] {
        assert_eq!(count(reason), 4 * notes, "{reason}");
    }
    assert_eq!(count("HomeNameservers"), 5, "it may stop each of them");
}
