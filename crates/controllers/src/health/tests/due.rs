//! Which volumes a round checks.

use std::collections::BTreeSet;

use super::*;
use crate::{
    cluster::Rights,
    health::due::{DueVolumes, Scope},
};

/// One healthy volume, watched.
async fn begin(api: &FakeApi) -> (Cluster, Watched, DueVolumes) {
    world(api);
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let due = DueVolumes::new(&watched);
    (home, watched, due)
}

/// Waits for a change of volumes, and returns their names.
async fn next(due: &mut DueVolumes, home: &Cluster) -> Option<BTreeSet<String>> {
    let wait = async {
        loop {
            match due.take(Some(home.clone())) {
                Scope::All => return None,
                Scope::Some(names) if !names.is_empty() => return Some(names),
                Scope::Some(_) => due.done(),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .expect("no change was ever told")
}

#[tokio::test]
async fn a_change_makes_only_its_volume_due() {
    let api = FakeApi::start().await;
    let (home, _watched, mut due) = begin(&api).await;
    assert_eq!(next(&mut due, &home).await, None, "at first all are looked at");
    due.done();
    let this = BTreeSet::from([format!("pvc-{UID}")]);
    let looked_at = async |due: &mut DueVolumes, what: &str| {
        let names = next(due, &home).await.expect("not all volumes");
        assert!(names.is_superset(&this), "{what}: {names:?}");
        due.done();
    };
    api.change(CLAIM, |claim| claim["metadata"]["labels"]["tier"] = "gold".into());
    looked_at(&mut due, "the claim").await;
    api.change(VOLUME, |volume| volume["status"]["phase"] = "Released".into());
    looked_at(&mut due, "the PV").await;
    api.change(REAL, |real| real["status"]["phase"] = "Failed".into());
    looked_at(&mut due, "the twin's PV").await;
    api.remove(TWIN);
    looked_at(&mut due, "the twin").await;
}

#[tokio::test]
async fn after_a_failed_round_all_volumes_are_due() {
    let api = FakeApi::start().await;
    let (home, _watched, mut due) = begin(&api).await;
    assert!(matches!(due.take(Some(home.clone())), Scope::All));
    assert!(
        matches!(due.take(Some(home.clone())), Scope::All),
        "it never said that it was done"
    );
    due.done();
    assert!(matches!(due.take(Some(home.clone())), Scope::Some(_)));
}

#[tokio::test]
async fn a_remote_change_makes_its_volume_due_and_a_reconnection_makes_all() {
    let (api, there) = (FakeApi::start().await, FakeApi::start().await);
    let (_home, _watched, mut due) = begin(&api).await;
    let milan = there.remote_cluster("milan", Rights::ALL).await;
    assert_eq!(next(&mut due, &milan).await, None, "at first all are looked at");
    due.done();
    let marks = json!({
        mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::VOLUME: format!("pvc-{UID}"),
    });
    there.put(
        "/api/v1/namespaces/shop/persistentvolumeclaims/far",
        json!({"metadata": {"labels": marks}}),
    );
    let names = next(&mut due, &milan).await.expect("not all volumes");
    assert_eq!(names, BTreeSet::from([format!("pvc-{UID}")]));
    due.done();

    let anew = there.remote_cluster("milan", Rights::ALL).await;
    assert!(matches!(due.take(Some(anew.clone())), Scope::All));
    due.done();
    assert!(matches!(due.take(None), Scope::All), "it is not reached");
}
