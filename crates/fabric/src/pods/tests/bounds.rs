//! Limits against a hostile remote cluster.

use std::cell::Cell;

use super::*;

fn status_writes(world: &World) -> usize {
    let is_one = |request: &&String| **request == format!("PATCH {POD}/status");
    world.home.requests().iter().filter(is_one).count()
}

#[tokio::test]
async fn a_remote_status_is_copied_at_most_once_a_second() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    let (before, began, sent) = (status_writes(&world), time::Instant::now(), Cell::new(0));
    world
        .run_until(|world| {
            let now = sent.get() + 1;
            if now <= 200 {
                sent.set(now);
                world.there.change(THERE, |pod| {
                    pod["status"]["message"] = json!(format!("changed {now} times"));
                });
            }
            world.home_pod()["status"]["message"] == "changed 200 times"
        })
        .await;
    let (writes, seconds) = (status_writes(&world) - before, began.elapsed().as_secs());
    assert!(
        u64::try_from(writes).unwrap() <= 3 + seconds,
        "{writes} in {seconds} s"
    );
    world
        .there
        .change(THERE, |pod| pod["status"]["phase"] = json!("Succeeded"));
    world
        .run_until(|world| world.home_pod()["status"]["phase"] == "Succeeded")
        .await;
}

#[tokio::test]
async fn a_pod_of_maximum_size_can_still_end() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    world.there.remove(THERE);
    world.delete();
    world.home.fault(Fault::new(
        "PATCH",
        "/pods/web/status",
        Act::TooLarge("Terminated"),
    ));
    world.run_until(World::is_gone).await;
}

#[tokio::test]
async fn malformed_uids_are_not_written() {
    let long = "u".repeat(1 << 10);
    let world = World::with_pod(true).await;
    world
        .there
        .change(SYSTEM, |it| it["metadata"]["uid"] = json!(long));
    world
        .run_until(|world| world.home_pod()["status"]["reason"] == "RemoteUnreachable")
        .await;
    let pod = world.home_pod();
    assert!(pod["metadata"]["finalizers"].is_null(), "it was claimed: {pod}");
    assert!(pod["status"]["message"].as_str().unwrap().len() <= 1100);

    // A remote pod with a uid that Kubernetes does not generate does not count as deleted either.
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    world
        .there
        .change(THERE, |it| it["metadata"]["uid"] = json!(long));
    world.delete();
    let reads = || {
        let read = |request: &&String| **request == format!("GET {THERE}");
        world.there.requests().iter().filter(read).count()
    };
    let before = reads();
    world.run_until(|_| reads() > before).await;
    assert!(!world.home_pod().to_string().contains(&long));
}

#[tokio::test]
async fn changing_addresses_cause_one_event_a_minute() {
    let world = World::with_pod(true).await;
    world
        .home
        .change("/apis/storage.liqo.io/v1alpha1/remoteclusters/milan", |it| {
            it["spec"]["fabric"]["network"] = json!({"mode": "Routed", "podCIDRs": ["10.64.0.0/16"]});
        });
    world.run_until(World::is_running).await;
    let (began, sent) = (time::Instant::now(), Cell::new(0));
    world
        .run_until(|world| {
            let now = sent.get() + 1;
            if now <= 100 {
                sent.set(now);
                world.there.change(THERE, |pod| {
                    pod["status"]["podIP"] = json!(format!("10.0.0.{now}"));
                    pod["status"]["message"] = json!(now.to_string());
                });
            }
            world.home_pod()["status"]["message"] == "100"
        })
        .await;
    let reported = world.home.store().below(EVENTS).len();
    assert!(
        u64::try_from(reported).unwrap() <= 1 + began.elapsed().as_secs() / 60,
        "reported {reported} times"
    );
}

/// A remote pod whose annotations name a home pod that does not exist.
fn ghost(world: &World, name: &str, home: &str) -> String {
    let path = format!("/api/v1/namespaces/shop-home/pods/{name}");
    let uid = world.home.object(SYSTEM).unwrap()["metadata"]["uid"].clone();
    world.there.put(
        &path,
        json!({
            "metadata": {"labels": {"fabric.storage.liqo.io/home": "home"}, "annotations": {
                "fabric.storage.liqo.io/home-uid": uid,
                "fabric.storage.liqo.io/home-pod": home,
                "fabric.storage.liqo.io/home-pod-uid": "gone",
            }},
            "spec": {"containers": [{"name": "web", "image": "web"}]}, "status": {"phase": "Running"},
        }),
    );
    path
}

#[tokio::test]
async fn remote_pods_without_home_pod_are_deleted_with_back_off() {
    let world = World::new().await;
    let path = ghost(&world, "ghost", "shop/ghost");
    world
        .there
        .fault(Fault::new("DELETE", "/pods/ghost", Act::TakeOut));
    let count = |api: &FakeApi, request: &str| api.requests().iter().filter(|it| *it == request).count();
    let deletes = || count(&world.there, &format!("DELETE {path}"));
    let began = time::Instant::now();
    world
        .run_until(|world| {
            // Its status changes all the time.
            world.there.change(&path, |pod| {
                let now = pod["status"]["message"].as_u64().unwrap_or_default() + 1;
                pod["status"]["message"] = json!(now);
            });
            deletes() >= 3
        })
        .await;
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(count(&world.home, "GET /api/v1/namespaces/shop/pods/ghost") <= 4);
}

#[tokio::test]
async fn invented_remote_pods_use_no_budget_of_a_namespace() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    let invented = ["shop-home/pods/other", "elsewhere/pods/web"];
    for (at, path) in invented.into_iter().enumerate() {
        let mut pod = world.there.object(THERE).unwrap();
        pod["metadata"]["uid"] = json!(format!("invented-{at}"));
        world.there.put(&format!("/api/v1/namespaces/{path}"), pod);
    }
    let watched = world.with_pods(async |pods| {
        pods.home.complete().await;
        let cluster = pods.places.reach(&pods.cluster).await.unwrap().cluster;
        let before = cluster.budget().objects();
        let namespaces = ["shop-home", "elsewhere"].map(str::to_owned).into();
        pods.there.follow(Some(&cluster), &namespaces);
        while pods.there.all().len() <= invented.len() {
            time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(cluster.budget().objects() - before, invented.len());
        // The remote pod is that of another home pod than the one of this name.
        world.there.change(THERE, |pod| {
            pod["metadata"]["annotations"]["fabric.storage.liqo.io/home-pod-uid"] = json!("another");
        });
        while cluster.budget().objects() - before == invented.len() {
            time::sleep(Duration::from_millis(10)).await;
        }
    });
    time::timeout(Duration::from_secs(40), watched).await.unwrap();
}

#[tokio::test]
async fn malformed_names_of_home_pods_cause_no_request() {
    let world = World::with_pod(true).await;
    for (at, namespace) in ["a?b", "..", "a%2Fb", "A"].into_iter().enumerate() {
        let name = format!("ghost-{at}");
        ghost(&world, &name, &format!("{namespace}/{name}"));
    }
    // A pod with a valid name, which is read.
    ghost(&world, "ghost", "shop/ghost");
    world
        .run_until(|world| {
            World::is_running(world) && world.there.object(&THERE.replace("web", "ghost")).is_none()
        })
        .await;
    let requests = world.home.requests();
    assert!(
        !requests.iter().any(|it| it.contains("/pods/ghost-")),
        "{requests:?}"
    );
}

#[tokio::test]
async fn namespaces_in_annotations_of_users_are_not_watched() {
    let world = World::with_pod(true).await;
    let elsewhere = json!({
        "fabric.storage.liqo.io/remote-cluster": "milan", "fabric.storage.liqo.io/remote-cluster-uid": "u",
        "fabric.storage.liqo.io/remote-namespace": "nowhere",
    });
    let finalizer = json!(["fabric.storage.liqo.io/remote-pod"]);
    for (at, finalizers) in [json!([]), finalizer].into_iter().enumerate() {
        world.home.put(
            &format!("/api/v1/namespaces/shop/pods/idle-{at}"),
            json!({
                "metadata": {"annotations": elsewhere, "finalizers": finalizers},
                "spec": {"nodeName": "milan", "containers": []}, "status": {"phase": "Pending"},
            }),
        );
    }
    world.run_until(World::is_running).await;
    let requests = world.there.requests();
    assert!(!requests.iter().any(|it| it.contains("nowhere")), "{requests:?}");
}

#[tokio::test]
async fn a_too_large_remote_pod_does_not_affect_others() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    let other = "/api/v1/namespaces/shop/pods/other";
    let mut pod = world.home_pod();
    pod["metadata"] = json!({"labels": {"app": "web"}});
    pod["status"] = json!({"phase": "Pending"});
    world.home.put(other, pod);
    world
        .there
        .change(THERE, |it| it["status"]["message"] = json!("x".repeat(5 << 20)));
    let made = |world: &World| {
        world
            .there
            .object("/api/v1/namespaces/shop-home/pods/other")
            .is_some()
    };
    let is_reported = |world: &World| {
        let events = world.home.store().below(EVENTS);
        events
            .iter()
            .any(|it| it["reason"] == "RemotePodUnknown" && it["regarding"]["name"] == "web")
    };
    world.run_until(|world| made(world) && is_reported(world)).await;
    assert!(world.home.object(POD).is_some());
}

#[tokio::test]
async fn pods_beyond_the_watch_limit_run_and_are_reported() {
    let mut world = World::with_pod(true).await;
    world.watched = Some(0);
    world.run_until(World::is_running).await;
    let is_reported = |world: &World| {
        let events = world.home.store().below(EVENTS);
        events.iter().any(|it| it["reason"] == "RemotePodNotWatched")
    };
    world.run_until(is_reported).await;
    world.delete();
    world.run_until(World::is_gone).await;
    assert!(world.ran_at_most_once_each());
}

#[tokio::test]
async fn a_too_large_pod_is_refused_with_a_reason() {
    let world = World::with_pod(true).await;
    let large = json!([{"name": "LARGE", "value": "x".repeat(300 << 10)}]);
    world
        .home
        .change(POD, |pod| pod["spec"]["containers"][0]["env"] = large);
    world
        .run_until(|world| world.home_pod()["status"]["reason"] == "PodNotSupported")
        .await;
    let message = world.home_pod()["status"]["message"].clone();
    assert!(
        message.as_str().unwrap().contains("more than 256 KiB"),
        "{message}"
    );
    assert!(world.there.object(THERE).is_none());
    assert!(world.home_pod()["metadata"]["finalizers"].is_null());
}

#[tokio::test]
async fn a_node_admits_no_more_pods_than_its_capacity() {
    let world = World::with_pod(true).await;
    world.home.put(
        "/api/v1/nodes/milan",
        json!({"status": {"allocatable": {"pods": "2"}}}),
    );
    let path = |name: &str| format!("/api/v1/namespaces/shop/pods/{name}");
    let names = ["web", "second", "third"];
    for name in &names[1..] {
        let mut pod = world.home_pod();
        pod["metadata"] = json!({"labels": {"app": "web"}});
        world.home.put(&path(name), pod);
    }
    let is_claimed = |world: &World, name: &str| {
        let pod = world.home.object(&path(name)).unwrap_or_default();
        pod["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|it| !it.is_empty())
    };
    let waits = |world: &World, name: &str| {
        world.home.object(&path(name)).unwrap_or_default()["status"]["reason"] == "OutOfCapacity"
    };
    let count =
        |world: &World, so: &dyn Fn(&World, &str) -> bool| names.iter().filter(|it| so(world, it)).count();
    world
        .run_until(|world| count(world, &is_claimed) == 2 && count(world, &waits) == 1)
        .await;
    let waiting = names.into_iter().find(|it| waits(&world, it)).unwrap();
    let message = world.home.object(&path(waiting)).unwrap()["status"]["message"].clone();
    assert!(
        message
            .as_str()
            .unwrap()
            .contains("its node has only 0 of 2 left"),
        "{message}"
    );
    // When one is deleted, another one is admitted.
    let other = names.into_iter().find(|it| is_claimed(&world, it)).unwrap();
    world.home.remove(&path(other));
    world.run_until(|world| is_claimed(world, waiting)).await;
}

#[tokio::test]
async fn a_change_of_one_pod_reconciles_only_that_pod() {
    let world = World::new().await;
    let path = |at: usize| format!("/api/v1/namespaces/shop/pods/ended-{at}");
    let pods = 200;
    for at in 0..pods {
        let spec = json!({"nodeName": "milan", "containers": []});
        world
            .home
            .put(&path(at), json!({"spec": spec, "status": {"phase": "Succeeded"}}));
    }
    let reads = |at: usize| {
        let read = format!("GET {}", path(at));
        world.home.requests().iter().filter(|it| **it == read).count()
    };
    let metrics = LoopMetrics::default();
    let reconciled = world.with_pods(async |node| {
        let change = async {
            while (0..pods).any(|at| reads(at) == 0) {
                time::sleep(Duration::from_millis(10)).await;
            }
            let before = node.home.objects_given();
            world
                .home
                .change(&path(7), |it| it["metadata"]["labels"] = json!({"new": "label"}));
            while reads(7) == 1 {
                time::sleep(Duration::from_millis(10)).await;
            }
            node.home.objects_given() - before
        };
        tokio::select! {
            () = node.reconcile_pods(&metrics) => unreachable!("it runs for ever"),
            given = change => assert!(given < 10, "{given} pods were read"),
        }
    });
    time::timeout(Duration::from_secs(40), reconciled).await.unwrap();
    let read: usize = (0..pods).map(reads).sum();
    assert_eq!(read, pods + 1, "what is as it should be is read once");
}
