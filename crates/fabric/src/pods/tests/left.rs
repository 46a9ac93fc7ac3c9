//! Remote namespaces that no `NamespaceOffloading` names any more.

use super::*;

const OFFLOADING: &str = "/apis/offloading.liqo.io/v1beta1/namespaces/shop/namespaceoffloadings/offloading";

impl World {
    /// A namespace there that the fabric created for the namespace `shop` of the home cluster with this uid.
    fn put_namespace(&self, name: &str, home_uid: &Value) {
        let labels =
            json!({"fabric.storage.liqo.io/home": "home", "fabric.storage.liqo.io/home-namespace": "shop"});
        let annotations = json!({"fabric.storage.liqo.io/home-uid": home_uid});
        let metadata = json!({"labels": labels, "annotations": annotations});
        self.there.put(
            &format!("/api/v1/namespaces/{name}"),
            json!({ "metadata": metadata }),
        );
    }

    fn home_uid(&self) -> Value {
        self.home.object(SYSTEM).unwrap()["metadata"]["uid"].clone()
    }

    /// The notes of the events on the `RemoteCluster`.
    fn reported_left(&self) -> Vec<String> {
        let all = self.home.store().below(CLUSTER_EVENTS);
        let left = all.iter().filter(|it| it["reason"] == "NamespacesLeft");
        left.map(|it| it["note"].to_string()).collect()
    }
}

/// The cluster was declared lost, its namespaces were unoffloaded without an answer, and it comes back.
#[tokio::test]
async fn pods_end_in_a_namespace_that_is_not_offloaded_any_more() {
    let mut world = World::with_pod(true).await;
    world.put_namespace("shop-home", &world.home_uid());
    world.put_namespace("theirs", &json!("another-home"));
    world.run_until(World::is_running).await;
    assert_eq!(world.reported_left(), Vec::<String>::new());
    // An administrator there has removed the label with the name of the home namespace.
    world.there.change("/api/v1/namespaces/shop-home", |it| {
        it["metadata"]["labels"] = json!({"fabric.storage.liqo.io/home": "home"});
    });
    world.put_namespace("shop-before", &world.home_uid());
    let mut theirs = world.there.object(THERE).unwrap();
    theirs["metadata"]["namespace"] = json!("theirs");
    theirs["metadata"]["uid"] = json!("theirs");
    let of_others = "/api/v1/namespaces/theirs/pods/web";
    world.there.put(of_others, theirs);
    world.home.remove(OFFLOADING);
    world.home.remove(POD);
    world.is_unmapped = true;
    world.run_until(|world| world.there.object(THERE).is_none()).await;
    assert!(world.there.object(of_others).is_some());
    // The namespace may have claims with data.
    assert!(world.there.object("/api/v1/namespaces/shop-home").is_some());
    let reported = world.reported_left();
    assert!(
        reported[0].contains(": shop-before (of shop), shop-home. "),
        "{reported:?}"
    );
}

/// Its namespace was offloaded again under another name.
#[tokio::test]
async fn an_earlier_pod_of_the_name_ends_in_another_namespace() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    let mut earlier = world.there.object(THERE).unwrap();
    earlier["metadata"]["namespace"] = json!("shop-before");
    earlier["metadata"]["uid"] = json!("earlier");
    earlier["metadata"]["annotations"]["fabric.storage.liqo.io/home-pod-uid"] = json!("gone");
    let before = "/api/v1/namespaces/shop-before/pods/web";
    world.put_namespace("shop-before", &world.home_uid());
    world.there.put(before, earlier);
    world
        .run_until(|world| world.there.object(before).is_none())
        .await;
    assert!(world.is_running() && world.there.object(THERE).is_some());
}

/// Charts of the remote cluster before this version do not grant it.
#[tokio::test]
async fn without_the_right_to_list_namespaces_pods_run_as_ever() {
    let world = World::with_pod(true).await;
    world
        .there
        .fault(Fault::new("GET", "/api/v1/namespaces", Act::Forbid("no")).at_the_end());
    world.run_until(World::is_running).await;
}
