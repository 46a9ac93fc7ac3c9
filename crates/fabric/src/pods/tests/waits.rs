//! Pods that wait.

use super::*;

impl World {
    fn posts(&self) -> usize {
        let all = self.there.requests();
        all.iter()
            .filter(|it| *it == "POST /api/v1/namespaces/shop-home/pods")
            .count()
    }

    fn reported(&self, reason: &str) -> usize {
        let all = self.home.store().below(EVENTS);
        all.iter().filter(|it| it["reason"] == reason).count()
    }
}

#[tokio::test]
async fn a_refused_pod_gets_one_event_and_is_retried() {
    let world = World::with_pod(true).await;
    let pods = "/api/v1/namespaces/shop-home/pods";
    world
        .there
        .fault(Fault::new("POST", pods, Act::Forbid("exceeded quota")));
    world
        .run_until(|world| world.posts() > 1 && world.reported("RemoteRefused") == 1)
        .await;
    let status = world.home_pod()["status"].clone();
    assert!(
        status["message"].as_str().unwrap().contains("exceeded quota"),
        "{status}"
    );
    world.there.heal();
    world.run_until(World::is_running).await;
    assert_eq!(world.reported("RemoteRefused"), 1);
}

#[tokio::test]
async fn a_status_change_at_home_does_not_end_the_back_off() {
    let world = World::with_pod(true).await;
    let pods = "/api/v1/namespaces/shop-home/pods";
    world
        .there
        .fault(Fault::new("POST", pods, Act::Forbid("exceeded quota")));
    let touch = async {
        loop {
            world.home.change(POD, |pod| {
                pod["status"]["touched"] = json!(world.home.store().version());
            });
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    let touched = |world: &World| world.home_pod()["status"]["touched"].as_u64() > Some(50);
    tokio::select! {
        () = touch => unreachable!("it goes on for ever"),
        () = world.run_until(|world| world.posts() > 0 && touched(world)) => {}
    }
    assert!(world.posts() < 5, "{} times", world.posts());
}

#[tokio::test]
async fn an_unschedulable_remote_pod_is_reported_once() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    let refuse = |why: &str| {
        let scheduled =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why});
        world.there.change(THERE, |pod| {
            pod["status"] = json!({"phase": "Pending", "conditions": [scheduled]});
        });
    };
    let says = |world: &World, why: &str| world.home_pod()["status"]["message"] == why;
    refuse("0/3 nodes are available");
    world
        .run_until(|world| world.reported("RemoteUnschedulable") == 1)
        .await;
    assert!(says(&world, "0/3 nodes are available"));
    refuse("0/4 nodes are available");
    world
        .run_until(|world| says(world, "0/4 nodes are available"))
        .await;
    let events = world.home.store().below(EVENTS);
    let reported: Vec<_> = events
        .iter()
        .filter(|it| it["reason"] == "RemoteUnschedulable")
        .map(|it| it["note"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(
        reported,
        ["it cannot be scheduled in the cluster milan: 0/3 nodes are available"]
    );
}

#[tokio::test]
async fn a_pod_created_right_after_offloading_gets_no_warning() {
    let mut world = World::with_pod(true).await;
    world.is_unmapped = true;
    let has_read_live = |world: &World| {
        let requests = world.home.requests();
        let live = requests
            .iter()
            .filter(|it| it.ends_with("/namespaceoffloadings/offloading"));
        live.count() > 2
    };
    world.run_until(has_read_live).await;
    assert_eq!(world.home_pod()["status"]["reason"], Value::Null);
    world.home.change(POD, |pod| {
        pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    world
        .run_until(|world| world.home_pod()["status"]["reason"] == "OffloadingBackOff")
        .await;
}
