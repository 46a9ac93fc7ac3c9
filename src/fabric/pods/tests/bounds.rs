//! What a hostile cluster says of a pod, and how fast.

use std::cell::Cell;

use super::*;

fn status_writes(world: &World) -> usize {
    let is_one = |request: &&String| **request == format!("PATCH {POD}/status");
    world.home.requests().iter().filter(is_one).count()
}

#[tokio::test]
async fn however_often_a_remote_status_changes_it_is_written_once_a_second() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    let (before, began, said) = (status_writes(&world), time::Instant::now(), Cell::new(0));
    world
        .run_until(|world| {
            let now = said.get() + 1;
            if now <= 200 {
                said.set(now);
                world.there.change(THERE, |pod| {
                    pod["status"]["message"] = json!(format!("said {now} times"))
                });
            }
            world.home_pod()["status"]["message"] == "said 200 times"
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
async fn a_pod_as_large_as_an_object_can_be_ends_all_the_same() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    world.there.remove(THERE);
    world.delete();
    world
        .home
        .fault(Fault::new("PATCH", "/pods/web/status", Act::TooLarge).times(1));
    world.run_until(World::is_gone).await;
    assert_eq!(world.home.faults_left(), 0);
}

#[tokio::test]
async fn what_is_no_uid_is_written_nowhere() {
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

    // A pod there with another uid than Kubernetes gives is not believed to be gone either.
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    world
        .there
        .change(THERE, |it| it["metadata"]["uid"] = json!(long));
    world.delete();
    let asked = || {
        let read = |request: &&String| **request == format!("GET {THERE}");
        world.there.requests().iter().filter(read).count()
    };
    let before = asked();
    world.run_until(|_| asked() > before).await;
    assert!(!world.home_pod().to_string().contains(&long));
}

#[tokio::test]
async fn addresses_that_change_all_the_time_are_told_once_a_minute() {
    let world = World::with_pod(true).await;
    world
        .home
        .change("/apis/storage.liqo.io/v1alpha1/remoteclusters/milan", |it| {
            it["spec"]["fabric"]["network"] = json!({"mode": "Routed", "podCIDRs": ["10.64.0.0/16"]});
        });
    world.run_until(World::is_running).await;
    let (began, said) = (time::Instant::now(), Cell::new(0));
    world
        .run_until(|world| {
            let now = said.get() + 1;
            if now <= 100 {
                said.set(now);
                world.there.change(THERE, |pod| {
                    pod["status"]["podIP"] = json!(format!("10.0.0.{now}"));
                    pod["status"]["message"] = json!(now.to_string());
                });
            }
            world.home_pod()["status"]["message"] == "100"
        })
        .await;
    let told = world
        .home
        .store()
        .below("/apis/events.k8s.io/v1/namespaces/shop/events/")
        .len();
    assert!(
        u64::try_from(told).unwrap() <= 1 + began.elapsed().as_secs() / 60,
        "told {told} times"
    );
}
