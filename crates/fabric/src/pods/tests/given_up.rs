//! Pods that no remote node accepts, or that their cluster refuses.

use super::*;

const OFFLOADING: &str = "/apis/offloading.liqo.io/v1beta1/namespaces/shop/namespaceoffloadings/offloading";
const POLICY: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings/avoided-clusters.storage.liqo.io";
const CLUSTER: &str = "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan";
const REMOTE_EVENTS: &str = "/api/v1/namespaces/shop-home/events";

impl World {
    /// With remote nodes that accept no pod, and a short `giveUpAfter`.
    async fn full() -> Self {
        let world = Self::with_pod(true).await;
        world.is_full.store(true, Ordering::Relaxed);
        world.home.put(POLICY, json!({}));
        world.schedule(POD);
        world.give_up_after("1s");
        world
    }

    fn give_up_after(&self, time: &str) {
        self.home.change(CLUSTER, |it| {
            it["spec"]["fabric"]["pods"] = json!({"giveUpAfter": time});
        });
    }

    /// As the scheduler does.
    fn schedule(&self, pod: &str) {
        let scheduled = json!([{"type": "PodScheduled", "status": "True"}]);
        self.home
            .change(pod, |pod| pod["status"]["conditions"] = scheduled);
    }

    fn avoided(&self) -> Vec<Value> {
        let status = self.home.object(OFFLOADING).unwrap_or_default()["status"].clone();
        status["avoidedClusters"].as_array().cloned().unwrap_or_default()
    }

    fn is_unplaced(&self) -> bool {
        self.home
            .object(POD)
            .is_some_and(|pod| pod["status"]["reason"] == "RemoteUnschedulable")
    }

    fn times(&self, method: &str, path: &str) -> usize {
        let request = format!("{method} {path}");
        self.there.requests().iter().filter(|it| **it == request).count()
    }

    /// Lets the fabric read the circumstances of the pod twice: then it has acted upon the first reading.
    async fn run_until_twice_read(&self) {
        let is_touched = std::cell::Cell::new(false);
        self.run_until(|world| {
            if world.times("GET", REMOTE_EVENTS) > 0
                && !is_touched.replace(world.times("GET", REMOTE_EVENTS) > 0)
            {
                let labels = json!({"touched": "true"});
                world.home.change(POD, |pod| pod["metadata"]["labels"] = labels);
            }
            world.times("GET", REMOTE_EVENTS) > 1
        })
        .await;
    }
}

#[tokio::test]
async fn an_unschedulable_pod_is_given_up_without_having_run() {
    let world = World::full().await;
    world
        .run_until(|world| world.is_gone() && world.given_up.total("milan") == 1)
        .await;
    let avoided = world.avoided();
    assert_eq!(avoided.len(), 1);
    assert_eq!(
        (&avoided[0]["controller"], &avoided[0]["cluster"]),
        (&json!("u"), &json!("milan"))
    );
    assert!(world.ran.lock().unwrap().is_empty(), "it never started");
    assert_eq!(world.given_up.total("milan"), 1);
    let events = world.home.store().below(EVENTS);
    let reported: Vec<&str> = events
        .iter()
        .filter(|it| it["reason"] == "RemotePodGivenUp")
        .filter_map(|it| it["note"].as_str())
        .collect();
    assert!(
        reported.len() == 1 && reported[0].ends_with(UNSCHEDULABLE_MESSAGE),
        "{reported:?}"
    );
    let requests = world.there.requests();
    let mut afterwards = requests.iter().skip_while(|it| !it.starts_with("DELETE"));
    assert!(
        !afterwards.any(|it| it.starts_with("POST")),
        "it is not created there again: {requests:?}"
    );
}

#[tokio::test]
async fn a_refused_pod_is_given_up() {
    let world = World::full().await;
    let why = "exceeded quota: pods, requested: pods=1, used: pods=10, limited: pods=10";
    world
        .there
        .fault(Fault::new("POST", "/shop-home/pods", Act::Forbid(why)));
    // A Job counts a deleted pod as failed, so its pod keeps waiting.
    let job = "/api/v1/namespaces/shop/pods/job";
    let mut pod = world.home_pod();
    pod["metadata"] = json!({"ownerReferences": [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "of-job", "controller": true},
    ]});
    world.home.put(job, pod);
    world
        .run_until(|world| world.home.object(POD).is_none() && world.given_up.total("milan") == 1)
        .await;
    let avoided = world.avoided();
    assert_eq!((avoided.len(), &avoided[0]["controller"]), (1, &json!("u")));
    assert_eq!(world.given_up.total("milan"), 1);
    assert!(world.ran.lock().unwrap().is_empty(), "it never started");
    let events = world.home.store().below(EVENTS);
    let mut notes = events.iter().filter(|it| it["reason"] == "RemotePodGivenUp");
    let note = notes.next().unwrap()["note"].as_str().unwrap();
    assert!(note.contains("refuses it") && note.contains(why), "{note}");
    let status = world.home.object(job).unwrap()["status"].clone();
    assert_eq!(status["reason"], "RemoteRefused");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains(why) && message.contains("controller, the Job job,"),
        "{message}"
    );
}

#[tokio::test]
async fn a_pod_that_its_cluster_cannot_run_is_given_up() {
    for reason in ["OffloadingBackOff", "OutOfCapacity", "RemoteNameTaken"] {
        let mut world = World::full().await;
        match reason {
            "OffloadingBackOff" => {
                world.is_unmapped = true;
                world.home.change(OFFLOADING, |it| {
                    it["status"]["remoteNamespacesConditions"]["milan"][0]["reason"] =
                        json!("CreationLoopBackOff");
                });
            }
            "OutOfCapacity" => {
                let offers = json!({"status": {"allocatable": {"pods": "0"}}});
                world.home.put("/api/v1/nodes/milan", offers);
            }
            _ => {
                world.there.put(THERE, json!({"spec": {}}));
            }
        }
        let has_waited = AtomicBool::new(false);
        world
            .run_until(|world| {
                let pod = world.home.object(POD).unwrap_or_default();
                has_waited.fetch_or(pod["status"]["reason"] == reason, Ordering::Relaxed);
                pod.is_null() && world.given_up.total("milan") == 1
            })
            .await;
        assert!(has_waited.into_inner(), "{reason}");
        assert_eq!(
            (world.avoided().len(), world.given_up.total("milan")),
            (1, 1),
            "{reason}"
        );
        assert!(world.ran.lock().unwrap().is_empty(), "it never started");
    }
}

#[tokio::test]
async fn a_pod_scheduled_just_before_it_is_given_up_is_kept() {
    let world = World::full().await;
    world.there.before("DELETE", THERE, |store| {
        let mut pod = store.get(THERE).unwrap();
        pod["spec"]["nodeName"] = json!("n1");
        pod["status"] = json!({"phase": "Running"});
        store.put(THERE, pod);
    });
    world.run_until(World::is_running).await;
    assert_eq!(world.times("DELETE", THERE), 1, "it was tried");
    assert!(world.home_pod()["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(world.given_up.total("milan"), 0);
}

#[tokio::test]
async fn one_pod_of_a_controller_is_given_up_a_minute() {
    let world = World::full().await;
    world.run_until(World::is_gone).await;
    // The next pod, with another process.
    world.make(true);
    world.schedule(POD);
    world.run_until(World::is_unplaced).await;
    let other = "/api/v1/namespaces/shop/pods/other";
    let mut pod = world.home_pod();
    pod["metadata"] = json!({"ownerReferences": pod["metadata"]["ownerReferences"]});
    pod["metadata"]["ownerReferences"][0]["uid"] = json!("of-another");
    pod["status"] = json!({"phase": "Pending"});
    world.home.put(other, pod);
    world.schedule(other);
    world.run_until(|world| world.home.object(other).is_none()).await;
    assert!(world.home.object(POD).is_some() && world.there.object(THERE).is_some());
    assert_eq!(world.avoided().len(), 2);
    // A minute later the time has passed, and the cluster is avoided for longer.
    world.home.change(OFFLOADING, |it| {
        for entry in it["status"]["avoidedClusters"].as_array_mut().unwrap() {
            entry["since"] = json!("2026-01-01T00:00:00Z");
        }
    });
    world
        .run_until(|world| world.is_gone() && world.given_up.total("milan") == 3)
        .await;
    assert_eq!(world.given_up.total("milan"), 3);
}

#[tokio::test]
async fn jobs_and_pods_with_remote_data_are_not_given_up() {
    let world = World::full().await;
    let claim = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
    world.home.put(
        claim,
        json!({"metadata": {"uid": "mine"}, "status": {"phase": "Pending"}}),
    );
    world.there.put(
        "/api/v1/namespaces/shop-home/persistentvolumeclaims/data",
        json!({"metadata": {"annotations": {"storage.liqo.io/claim-uid": "mine"}}}),
    );
    let like = |name: &str, edit: fn(&mut Value)| {
        let mut pod = world.home_pod();
        pod["metadata"] = json!({"ownerReferences": pod["metadata"]["ownerReferences"]});
        edit(&mut pod);
        world
            .home
            .put(&format!("/api/v1/namespaces/shop/pods/{name}"), pod);
    };
    like("job", |pod| {
        pod["metadata"]["ownerReferences"][0]["apiVersion"] = json!("batch/v1");
        pod["metadata"]["ownerReferences"][0]["kind"] = json!("Job");
    });
    like("data", |pod| {
        pod["metadata"]["ownerReferences"][0]["uid"] = json!("of-data");
        pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    });
    // The last pod is created later than the others, and given up as well.
    let web = world.home_pod();
    world.home.remove(POD);
    let waits = |name: &str| {
        let pod = world.home.object(&format!("/api/v1/namespaces/shop/pods/{name}"));
        pod.is_some_and(|pod| pod["status"]["reason"] == "RemoteUnschedulable")
    };
    let said = |name: &str| {
        let events = world.home.store().below(EVENTS);
        let mut of_pod = events
            .iter()
            .filter(|it| it["regarding"]["name"] == name && it["reason"] == "RemoteUnschedulable");
        of_pod
            .next()
            .and_then(|it| it["note"].as_str())
            .map(str::to_owned)
    };
    world
        .run_until(|_| waits("job") && waits("data") && said("job").is_some() && said("data").is_some())
        .await;
    let (job, data) = (said("job").unwrap(), said("data").unwrap());
    assert!(
        job.contains("controller, the Job web,") && job.ends_with(UNSCHEDULABLE_MESSAGE),
        "{job}"
    );
    assert!(!data.contains("controller"), "{data}");
    world.home.put(POD, web);
    world
        .run_until(|world| world.home.object(POD).is_none() && world.given_up.total("milan") == 1)
        .await;
    assert!(waits("job") && waits("data"));
    assert_eq!(world.avoided().len(), 1);
    assert_eq!(world.given_up.total("milan"), 1);
}

#[tokio::test]
async fn a_pod_for_which_a_scale_up_was_triggered_is_not_given_up() {
    let world = World::full().await;
    world.give_up_after("0s");
    world.run_until(World::is_unplaced).await;
    let uid = world.there.object(THERE).unwrap()["metadata"]["uid"].clone();
    let scales_up = format!("{REMOTE_EVENTS}/scales-up");
    world.there.put(
        &scales_up,
        json!({
            "involvedObject": {"uid": uid}, "reason": "TriggeredScaleUp",
            "lastTimestamp": format!("{:.0}", jiff::Timestamp::now()),
        }),
    );
    world.give_up_after("1s");
    world.run_until_twice_read().await;
    assert!(world.there.object(THERE).is_some() && world.avoided().is_empty());
    // The event of the autoscaler is old.
    world.there.change(&scales_up, |it| {
        it["lastTimestamp"] = json!("2026-01-01T00:00:00Z");
        it["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    world.run_until(World::is_gone).await;
}

#[tokio::test]
async fn without_the_policy_or_with_an_older_crd_pods_are_not_given_up() {
    let world = World::full().await;
    world.home.remove(POLICY);
    world.run_until_twice_read().await;
    assert!(world.there.object(THERE).is_some() && world.avoided().is_empty());

    let world = World::full().await;
    let status = format!("{OFFLOADING}/status");
    world
        .home
        .fault(Fault::new("PATCH", &status, Act::Drop("/status/avoidedClusters")));
    let reported = |world: &World| {
        let events = world.home.store().below(EVENTS);
        events.iter().any(|it| it["reason"] == "DefinitionOutdated")
    };
    world.run_until(reported).await;
    assert!(world.there.object(THERE).is_some());
    assert_eq!(world.times("DELETE", THERE), 0);
}

#[tokio::test]
async fn a_given_up_pod_never_runs_despite_a_crash_at_any_write() {
    let mut has_ended = false;
    // Before that, it does not matter whether a remote node accepts the pod.
    for writes in 4..MOST_WRITES + 3 {
        let world = World::full().await;
        let died = world.crash_after(writes, World::is_gone).await;
        // A minute has passed since.
        if !world.avoided().is_empty() {
            world.home.change(OFFLOADING, |it| {
                it["status"]["avoidedClusters"][0]["since"] = json!("2026-01-01T00:00:00Z");
            });
        }
        world.run_until(World::is_gone).await;
        assert!(world.ran.lock().unwrap().is_empty(), "{:?}", world.ran);
        let created = world.times("POST", "/api/v1/namespaces/shop-home/pods");
        // The process that crashes may have sent its refused request twice.
        assert!(created <= 3, "created {created} times");
        has_ended |= !died;
    }
    assert!(has_ended, "there are more writes than were tried");
}
