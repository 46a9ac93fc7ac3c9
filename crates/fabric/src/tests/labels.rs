//! The label of offloaded namespaces.

use super::*;

const HERE: &str = "/api/v1/namespaces/shop";
const LABEL: &str = "liqo.io/scheduling-enabled";

#[tokio::test]
async fn an_offloaded_namespace_is_labelled_and_unlabelled_again() {
    let world = World::offloaded().await;
    let metadata = || world.home.object(HERE).unwrap()["metadata"].clone();
    assert_eq!(metadata()["labels"], json!({LABEL: "true"}));
    // A removed label is set again while the namespace is offloaded.
    world.home.change(HERE, |it| it["metadata"]["labels"] = json!({}));
    world
        .run_until(|_| metadata()["labels"] == json!({LABEL: "true"}))
        .await;
    world.there.put(CLAIM, json!({}));
    world.unoffload();
    // Pods run at home again before anything is removed there.
    world
        .run_until(|_| metadata()["labels"].get(LABEL).is_none())
        .await;
    assert!(world.there.object(THERE).is_some());
    world.there.remove(CLAIM);
    world.run_until(World::is_gone).await;
    assert_eq!(metadata()["annotations"], json!({}));
}

#[tokio::test]
async fn a_label_that_a_user_has_set_stays() {
    for value in ["true", "false"] {
        let world = World::with_spec(json!({})).await;
        let labels = json!({LABEL: value, "team": "a"});
        world
            .home
            .change(HERE, |it| it["metadata"]["labels"] = labels.clone());
        world.run_until(|world| world.phase() == "Ready").await;
        world.unoffload();
        world.run_until(World::is_gone).await;
        assert_eq!(world.home.object(HERE).unwrap()["metadata"]["labels"], labels);
    }
}

#[tokio::test]
async fn a_label_without_offloading_is_removed_unless_a_user_set_it() {
    let world = World::with_spec(json!({})).await;
    let labelled = |name: &str, notes: Value| {
        let path = format!("/api/v1/namespaces/{name}");
        world.home.put(
            &path,
            json!({"metadata": {"labels": {LABEL: "true"}, "annotations": notes}}),
        );
        path
    };
    let forgotten = labelled(
        "restored",
        json!({"fabric.storage.liqo.io/scheduling-enabled": "true"}),
    );
    let users = labelled("beforehand", json!({}));
    let is_labelled =
        |world: &World, path: &str| world.home.object(path).unwrap()["metadata"]["labels"][LABEL] == "true";
    world.run_until(|world| !is_labelled(world, &forgotten)).await;
    let labels = |path: &str| world.home.object(path).unwrap()["metadata"]["labels"].clone();
    let marked = json!({LABEL: "true", "fabric.storage.liqo.io/not-offloaded": "true"});
    world.run_until(|_| labels(&users) == marked).await;
    // The namespace of the World is offloaded, and its own mark is removed.
    world
        .home
        .change(HERE, |it| it["metadata"]["labels"] = marked.clone());
    world.run_until(|_| labels(HERE) == json!({LABEL: "true"})).await;
}

/// A webhook that changes namespaces when they are updated makes the policy of the fabric refuse its write.
#[tokio::test]
async fn a_label_that_cannot_be_set_is_reported() {
    let world = World::with_spec(json!({})).await;
    world.home.fault(
        Fault::new(
            "PATCH",
            HERE,
            Act::Forbid("the fabric may write nothing of a namespace"),
        )
        .at_the_end(),
    );
    let is_reported = |world: &World| {
        let events = world.home.store().below(EVENTS);
        let mut notes = events.iter().filter(|it| it["reason"] == "WriteRefused");
        notes.any(|it| {
            it["note"]
                .to_string()
                .contains("may write nothing of a namespace")
        })
    };
    world.run_until(is_reported).await;
    assert_eq!(world.phase(), "");
    world.home.heal();
    world.run_until(|world| world.phase() == "Ready").await;
}
