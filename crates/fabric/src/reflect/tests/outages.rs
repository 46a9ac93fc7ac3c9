//! What happens while the fabric or the remote cluster does not run, and after that.

use super::*;

#[tokio::test]
async fn changes_during_downtime_are_copied() {
    let world = World::copied().await;
    world.home.remove(&here("configmaps", "settings"));
    world
        .home
        .put(&here("configmaps", "new"), json!({"data": {"a": "b"}}));
    world
        .run_until(|world| {
            world.color().is_null() && world.there.object(&there("configmaps", "new")).is_some()
        })
        .await;
    // A namespace that was created again is another one.
    world.home.remove(&here("configmaps", "new"));
    let uid = world
        .home
        .put(&here("configmaps", "new"), json!({"data": {"a": "b"}}))["metadata"]["uid"]
        .clone();
    let copy = there("configmaps", "new");
    world
        .run_until(|world| {
            world.there.object(&copy).unwrap()["metadata"]["annotations"][HOME_OBJECT_UID] == uid
        })
        .await;
}

#[tokio::test]
async fn copying_resumes_when_a_cluster_answers_again() {
    let world = World::copied().await;
    world.home.change(&here("configmaps", "settings"), |it| {
        it["data"]["color"] = "blue".into();
    });
    world
        .home
        .put(&here("configmaps", "new"), json!({"data": {"a": "b"}}));
    for method in ["GET", "POST", "PATCH"] {
        world.there.fault(Fault::new(method, THERE, Act::Refuse(503)));
    }
    let (idle, before) = (watch::Sender::new(None), world.there.writes());
    let until = async {
        while world
            .there
            .requests()
            .iter()
            .filter(|it| it.contains("/configmaps"))
            .count()
            < 6
        {
            time::sleep(Duration::from_millis(20)).await;
        }
        world.there.heal();
        while world.color() != "blue" || world.there.object(&there("configmaps", "new")).is_none() {
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = world.run(&idle) => unreachable!("it runs for ever"),
        came = time::timeout(Duration::from_mins(1), until) => came.unwrap(),
    }
    assert_eq!(world.there.writes(), before + 2);
}

#[tokio::test]
async fn an_unreachable_cluster_gets_no_requests() {
    let world = World::copied().await;
    world.home.change(&here("configmaps", "settings"), |it| {
        it["data"]["color"] = "blue".into();
    });
    let (idle, before) = (watch::Sender::new(None), world.there.requests().len());
    let lists = || {
        world
            .home
            .requests()
            .iter()
            .filter(|it| it.ends_with("/rolebindings"))
            .count()
    };
    let listed = lists();
    let until = async {
        while lists() == listed {
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = world.run_with(&idle, Link::Unreachable("no answer".into())) => {}
        came = time::timeout(Duration::from_secs(40), until) => came.unwrap(),
    }
    assert_eq!(world.there.requests().len(), before);
    assert!(
        world.home.object(BINDING).is_some(),
        "it is offloaded all the same"
    );
    world.run_until(|world| world.color() == "blue").await;
}

#[tokio::test]
async fn an_idle_fabric_copies_nothing() {
    let world = World::new().await;
    world
        .home
        .put(&here("configmaps", "settings"), json!({"data": {"color": "red"}}));
    let idle = watch::Sender::new(Some(IdleReason::Unready("Liqo is installed".to_owned())));
    let until = async {
        let home = || {
            world
                .home
                .requests()
                .iter()
                .any(|it| it.ends_with("/namespaceoffloadings"))
        };
        while !home() {
            time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(world.home.writes() + world.there.writes(), 0);
        idle.send_replace(None);
        while world.color() != "red" {
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = world.run(&idle) => unreachable!("it runs for ever"),
        came = time::timeout(Duration::from_secs(40), until) => came.unwrap(),
    }
}

#[tokio::test]
async fn loops_stop_when_the_fabric_becomes_idle() {
    let world = World::new().await;
    let (home, link) = (
        world.home.cluster_unwatched().await,
        Link::up(&world.there, Rights::ALL).await,
    );
    let registry = Registry::fixed([(Declared::plain("milan"), link)]);
    let places = Places::new(&home, &registry);
    let (idle, metrics) = (watch::Sender::new(None), LoopMetrics::default());
    let mut reflection = Reflection::new(&places, "ours", &metrics, &idle);
    while reflection.mirrors.is_empty() {
        reflection.round().await.unwrap();
        time::sleep(Duration::from_millis(20)).await;
    }
    let wakes = reflection.wakes.clone();
    idle.send_replace(Some(IdleReason::Unready("Liqo is installed".to_owned())));
    reflection.wakes.changed().await.unwrap();
    assert!(wakes.has_changed().unwrap(), "it is checked at once");
    reflection.round().await.unwrap();
    assert!(reflection.mirrors.is_empty() && reflection.sources.is_empty());
}

#[tokio::test]
async fn copying_completes_after_a_crash_at_any_write() {
    for writes in 0..MOST_WRITES {
        let world = World::copied().await;
        world.home.put(
            &here("secrets", "s"),
            json!({"type": "Opaque", "data": {"a": "Yg=="}}),
        );
        world.home.put(
            &here("configmaps", "old"),
            json!({"data": {"a": "b"}, "immutable": true}),
        );
        world
            .run_until(|world| {
                world.there.object(&there("secrets", "s")).is_some()
                    && world.there.object(&there("configmaps", "old")).is_some()
            })
            .await;
        world.home.remove(BINDING);
        world.home.remove(&here("secrets", "s"));
        world.home.change(&here("configmaps", "settings"), |it| {
            it["data"]["color"] = "blue".into();
        });
        world
            .home
            .change(&here("configmaps", "old"), |it| it["data"]["a"] = "c".into());
        world.home.put(
            &here("services", "v"),
            json!({"spec": {"type": "ClusterIP", "ports": [{"port": 80}]}}),
        );
        let done = |world: &World| {
            let old = world
                .there
                .object(&there("configmaps", "old"))
                .unwrap_or_default();
            world.color() == "blue"
                && old["data"]["a"] == "c"
                && world.there.object(&there("secrets", "s")).is_none()
                && world.there.object(&there("services", "v")).is_some()
                && world.home.object(BINDING).is_some()
        };
        let died = world.crash_after(writes, done).await;
        world.run_until(done).await;
        if !died {
            assert!(writes >= 6, "it is not done by {writes} writes");
            return;
        }
    }
    panic!("it is never done");
}
