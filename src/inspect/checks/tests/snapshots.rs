//! Snapshots with a problem.

use serde_json::{Value, json};

use super::*;
use crate::{
    inspect::checks::snapshots::{problems, unfinished_imports},
    volume::{DRIVER_NAME, mark},
};

const KEY: &str = "5d1c3f2e-8a51-4f0e-9f0f-0d2c7ef1a222";

fn twin() -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {
            "namespace": "liqo-storage", "name": format!("snapshot-{KEY}"),
            "labels": {mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::SNAPSHOT: KEY},
            "annotations": {mark::SNAPSHOT_NAMESPACE: "shop", mark::SNAPSHOT_NAME: "backup"},
        },
        "spec": {"source": {}},
    })
}

fn content(policy: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "content"},
        "spec": {
            "driver": DRIVER_NAME, "deletionPolicy": policy,
            "volumeSnapshotRef": {"namespace": "shop", "name": "backup", "uid": KEY},
        },
        "status": {"snapshotHandle": format!("s1:home::{KEY}")},
    })
}

#[test]
fn orphaned_and_retained_snapshot_twins_are_reported() {
    let mut installation = installation();
    installation.snapshots.home = Some("home".parse().unwrap());
    installation.snapshots.twins = listing([twin()]);
    let found = problems(&installation);
    assert_eq!(found[0].severity, Severity::Warning);
    assert_eq!(
        found[0].object,
        format!("VolumeSnapshot liqo-storage/snapshot-{KEY}")
    );
    assert!(found[0].problem.starts_with("Orphaned"), "{found:?}");
    assert!(
        found[0].fix.contains("kubectl delete volumesnapshot"),
        "{found:?}"
    );

    installation.snapshots.contents = listing([content("Retain")]);
    let found = problems(&installation);
    assert_eq!((found.len(), found[0].severity), (1, Severity::Note));
    assert_eq!(found[0].object, "VolumeSnapshot shop/backup");
}

#[test]
fn an_import_that_has_not_ended_is_named_with_its_commands() {
    let mut installation = installation();
    let mut recorded = content("Retain");
    recorded["spec"]["driver"] = "real.test".into();
    recorded["metadata"]["annotations"] = json!({mark::IMPORT_SNAPSHOT: json!({
        "version": 1, "namespace": "shop", "namespaceUid": "n", "name": "backup", "uid": "u", "class": "liqo", "policy": "Delete",
    }).to_string()});
    installation.snapshots.contents = listing([recorded.clone()]);
    let found = unfinished_imports(&installation);
    assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
    assert!(
        found[0]
            .fix
            .contains("liqo-csi import snapshot shop/backup --undo"),
        "{found:?}"
    );
    recorded["metadata"]["annotations"] = json!({mark::IMPORT_SNAPSHOT: "{}"});
    installation.snapshots.contents = listing([recorded]);
    assert_eq!(unfinished_imports(&installation)[0].severity, Severity::Error);
}
