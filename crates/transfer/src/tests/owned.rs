//! Imports of claims that have owners.

use std::sync::Mutex;

use super::*;

const SET: &str = "/apis/apps/v1/namespaces/shop/statefulsets/db";

fn owner(version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": version, "kind": kind, "name": name, "uid": format!("{name}-1")})
}

/// A claim with these owners, of which only the `StatefulSet` db exists.
async fn owned(owners: &[Value]) -> World {
    let world = World::new("Delete").await;
    let kinds = json!({
        "kind": "APIResourceList", "groupVersion": "apps/v1",
        "resources": [{"name": "statefulsets", "singularName": "", "namespaced": true, "kind": "StatefulSet", "verbs": ["get"]}],
    });
    world.api.put("/apis/apps/v1", kinds);
    world.api.put(SET, json!({"metadata": {"uid": "db-1"}}));
    world.api.change(CLAIM, |claim| {
        claim["metadata"]["ownerReferences"] = owners.into();
    });
    world
}

#[tokio::test]
async fn an_unreadable_owner_is_reported_before_any_deletion() {
    for why in [
        Fault::new("GET", SET, Act::Refuse(403)),
        Fault::new("GET", "/apis/apps/v1", Act::Refuse(503)).at_the_end(),
    ] {
        let world = owned(&[owner("apps/v1", "StatefulSet", "db")]).await;
        world.api.fault(why);
        let error = world.import().await.unwrap_err();
        let reported = &reported(&error);
        assert_eq!(reported.len(), 1, "{error}");
        let reported = reported[0].to_string();
        assert!(reported.contains("StatefulSet db, cannot be read"), "{reported}");
        assert!(reported.contains("ownerReferences"), "no way out: {reported}");
        assert_eq!(world.claim()["metadata"]["uid"], OLD_UID);
        world.assert_clean("Delete");

        world.api.heal();
        let world = world.with_driver();
        world.import().await.unwrap();
        let owners = &world.claim()["metadata"]["ownerReferences"];
        assert_eq!(*owners, json!([owner("apps/v1", "StatefulSet", "db")]));
    }
}

#[tokio::test]
async fn dropped_owners_are_reported_once_with_the_reason() {
    let living = owner("apps/v1", "StatefulSet", "db");
    let world = owned(&[
        owner("apps/v1", "StatefulSet", "gone"),
        owner("nobody.knows/v1", "Database", "orders"),
        living.clone(),
    ])
    .await;
    world.import_and_die_after(MADE - 1).await;
    world.api.remove(CLAIM);
    let quota = Act::Forbid("exceeded quota: liqo");
    world
        .api
        .fault(Fault::new("POST", "persistentvolumeclaims", quota).times(3));
    let world = world.with_driver();
    let reported = Mutex::new(Vec::new());
    let report = |what: &str| reported.lock().unwrap().push(what.to_owned());
    let context = Context {
        cluster: &world.home,
        storage_namespace: "liqo-storage",
        timeout: TEST_TIMEOUT,
        dry_run: false,
        report: &report,
    };
    let request = ImportRequest {
        claim: "shop/data".parse().unwrap(),
        class: None,
        force_managed: false,
    };
    import(&context, &request).await.unwrap();
    world.assert_imported("Delete");
    assert_eq!(world.claim()["metadata"]["ownerReferences"], json!([living]));
    let reported = reported.lock().unwrap();
    let about = |name: &str| {
        let found: Vec<_> = reported.iter().filter(|what| what.contains(name)).collect();
        assert_eq!(found.len(), 1, "{name}: {reported:?}");
        found[0].clone()
    };
    assert!(about("StatefulSet gone").contains("is gone"));
    assert!(about("Database orders").contains("nobody.knows/v1"));
}

/// If the right is lost after the deletion, the claim is created all the same: a missing owner reference
/// never leads to a deletion.
#[tokio::test]
async fn an_owner_unreadable_later_does_not_prevent_the_claim() {
    let world = owned(&[owner("apps/v1", "StatefulSet", "db")]).await;
    world.import_and_die_after(MADE - 1).await;
    world.api.remove(CLAIM);
    world.api.fault(Fault::new("GET", SET, Act::Refuse(403)));
    let world = world.with_driver();
    world.import().await.unwrap();
    world.assert_imported("Delete");
    assert_eq!(world.claim()["metadata"]["ownerReferences"], Value::Null);
}
