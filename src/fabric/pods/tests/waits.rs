//! Pods wait.

use super::*;

impl World {
    fn posts(&self) -> usize {
        let all = self.there.requests();
        all.iter()
            .filter(|it| *it == "POST /api/v1/namespaces/shop-home/pods")
            .count()
    }

    fn told(&self, reason: &str) -> usize {
        let all = self
            .home
            .store()
            .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
        all.iter().filter(|it| it["reason"] == reason).count()
    }
}

#[tokio::test]
async fn what_a_pod_waits_for_is_told_once_and_tried_again() {
    let world = World::with_pod(true).await;
    let pods = "/api/v1/namespaces/shop-home/pods";
    world
        .there
        .fault(Fault::new("POST", pods, Act::Forbid("exceeded quota")));
    world
        .run_until(|world| world.posts() > 1 && world.told("RemoteRefused") == 1)
        .await;
    let status = world.home_pod()["status"].clone();
    assert!(
        status["message"].as_str().unwrap().contains("exceeded quota"),
        "{status}"
    );
    world.there.heal();
    world.run_until(World::is_running).await;
    assert_eq!(world.told("RemoteRefused"), 1);
}

#[tokio::test]
async fn a_change_of_its_own_status_does_not_make_a_pod_ask_again() {
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
