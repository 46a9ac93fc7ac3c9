//! Home pods change while their remote pods run.

use super::*;
use crate::offload::reflection::{Kind, name_of_copy};

impl World {
    async fn with_running() -> Self {
        let world = Self::with_pod(true).await;
        world.run_until(World::is_running).await;
        world
    }

    fn there(&self) -> Value {
        self.there.object(THERE).unwrap()
    }

    fn refusals(&self) -> Vec<Value> {
        let all = self.home.store().below(EVENTS);
        all.into_iter()
            .filter(|it| it["reason"] == "RemoteChangeRefused")
            .collect()
    }
}

#[tokio::test]
async fn changes_of_the_home_pod_are_copied_to_the_remote_pod() {
    let world = World::with_running().await;
    let uid = world.there()["metadata"]["uid"].clone();
    let debug = |certificates: &str| json!({"name": "debug", "image": "sh", "envFrom": [{"configMapRef": {"name": certificates}}]});
    world.home.change(POD, |pod| {
        pod["metadata"]["labels"] = json!({"role": "primary"});
        pod["metadata"]["annotations"]["note"] = json!("new");
        pod["spec"]["containers"][0]["image"] = json!("web:2");
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "2"}});
        pod["spec"]["activeDeadlineSeconds"] = json!(60);
        pod["spec"]["ephemeralContainers"] = json!([debug("kube-root-ca.crt")]);
    });
    let copy = name_of_copy(Kind::ConfigMap, "kube-root-ca.crt", "home");
    world
        .run_until(|world| {
            let (metadata, spec) = (&world.there()["metadata"], &world.there()["spec"]);
            metadata["labels"] == json!({"role": "primary", "fabric.storage.liqo.io/home": "home"})
                && metadata["annotations"]["note"] == "new"
                && spec["containers"][0]["image"] == "web:2"
                && spec["containers"][0]["resources"]["requests"]["cpu"] == "2"
                && spec["activeDeadlineSeconds"] == 60
                && spec["ephemeralContainers"] == json!([debug(&copy)])
        })
        .await;
    for part in ["resize", "ephemeralcontainers"] {
        let patch = format!("PATCH {THERE}/{part}");
        let requests = world.there.requests();
        assert_eq!(requests.iter().filter(|it| **it == patch).count(), 1, "{part}");
    }
    world.there.change(THERE, |pod| {
        pod["status"]["ephemeralContainerStatuses"] = json!([{"name": "debug", "state": {"running": {}}}]);
    });
    world
        .run_until(|world| world.home_pod()["status"]["ephemeralContainerStatuses"][0]["name"] == "debug")
        .await;
    assert_eq!(world.there()["metadata"]["uid"], uid, "it is never made again");
    assert!(world.refusals().is_empty());
}

#[tokio::test]
async fn a_refused_change_is_reported_and_delays_no_other() {
    let world = World::with_running().await;
    let why = "exceeded quota: no more than 1 cpu";
    world
        .there
        .fault(Fault::new("PATCH", "/pods/web/resize", Act::Forbid(why)));
    world.home.change(POD, |pod| {
        pod["metadata"]["labels"]["role"] = json!("primary");
        pod["spec"]["containers"][0]["image"] = json!("web:2");
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "2"}});
    });
    world.there.change(THERE, |pod| {
        pod["status"]["containerStatuses"] = json!([{"name": "web"}]);
    });
    world
        .run_until(|world| {
            world.there()["spec"]["containers"][0]["image"] == "web:2"
                && world.there()["metadata"]["labels"]["role"] == "primary"
                && world.home_pod()["status"]["containerStatuses"][0]["name"] == "web"
                && !world.refusals().is_empty()
        })
        .await;
    let refusals = world.refusals();
    assert_eq!(refusals[0]["regarding"]["name"], "web");
    assert!(
        refusals[0]["note"].as_str().unwrap().contains(why),
        "{refusals:?}"
    );
    assert_eq!(world.there()["spec"]["containers"][0]["resources"], Value::Null);
    world.there.heal();
    world
        .run_until(|world| {
            let container = &world.there()["spec"]["containers"][0];
            container["resources"]["requests"]["cpu"] == "2"
        })
        .await;
    assert_eq!(world.refusals().len(), 1);
}

#[tokio::test]
async fn a_field_of_an_ephemeral_container_that_is_dropped_there_is_reported() {
    let world = World::with_running().await;
    let drop = Act::Drop("/spec/ephemeralContainers/0/securityContext");
    world
        .there
        .fault(Fault::new("PATCH", "/pods/web/ephemeralcontainers", drop));
    let own = json!({"name": "debug", "image": "sh", "securityContext": {"runAsNonRoot": true}});
    world
        .home
        .change(POD, |pod| pod["spec"]["ephemeralContainers"] = json!([own]));
    world.run_until(|world| !world.refusals().is_empty()).await;
    let note = world.refusals()[0]["note"].clone();
    let field = "does not keep spec.ephemeralContainers[debug].securityContext.runAsNonRoot";
    assert!(note.as_str().unwrap().contains(field), "{note}");
}

#[tokio::test]
async fn changes_by_others_are_not_reverted_at_once() {
    let world = World::with_running().await;
    world
        .home
        .change(POD, |pod| pod["spec"]["containers"][0]["image"] = json!("web:2"));
    let is_image =
        |image: &'static str| move |world: &World| world.there()["spec"]["containers"][0]["image"] == image;
    world.run_until(is_image("web:2")).await;
    world.there.change(THERE, |pod| {
        pod["spec"]["containers"][0]["image"] = json!("mirror/web:2");
        pod["status"]["message"] = json!("seen");
    });
    world
        .run_until(|world| world.home_pod()["status"]["message"] == "seen")
        .await;
    assert!(is_image("mirror/web:2")(&world));
}
