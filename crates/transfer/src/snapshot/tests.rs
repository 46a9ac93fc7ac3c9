//! Complete imports of snapshots against a fake API server, interrupted after every write, with simulated
//! snapshot controllers. `meanwhile`: concurrent writes; `reverted`: writes that are reverted; `going`:
//! contents that are deleted; `refused`: objects that the API server refuses.

mod going;
mod meanwhile;
mod refused;
mod reverted;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::{
    cluster::{
        Cluster,
        testing::{Act, FakeApi, Fault, Store},
    },
    tests::{TEST_TIMEOUT, empty_cluster, quiet},
    volume::{DRIVER_NAME, import_key},
};

const KINDS: &str = "/apis/snapshot.storage.k8s.io/v1";
const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/";
const USER: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/shop/volumesnapshots/backup";
const REAL: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/real";
const LOST: &str = "/api/v1/namespaces/shop/configmaps/lost";
/// The numbers of writes until the content is marked, the twin is created, the old object is deleted, and
/// the new one is created: there is a dry run of four objects first, and of the last one again.
const MARKED: usize = 5;
const TWIN_MADE: usize = MARKED + 2;
const DELETED: usize = TWIN_MADE + 2;
const MADE: usize = DELETED + 2;
/// The delay until the snapshot-controller observes the changed policy of a content.
const CONTROLLER_DELAY: Duration = Duration::from_millis(400);

struct World {
    api: Arc<FakeApi>,
    home: Cluster,
}

impl World {
    /// A snapshot of a real class.
    async fn new(policy: &str) -> Self {
        let api = Arc::new(FakeApi::start().await);
        api.put("/api/v1/namespaces/shop", json!({"metadata": {"uid": "n-1"}}));
        for (name, driver) in [("liqo", DRIVER_NAME), ("fast", "real.test")] {
            let class = json!({"driver": driver, "deletionPolicy": "Delete"});
            api.put(&format!("{KINDS}/volumesnapshotclasses/{name}"), class);
            let class = json!({"provisioner": driver});
            api.put(&format!("/apis/storage.k8s.io/v1/storageclasses/{name}"), class);
        }
        let user = api.put(
            USER,
            json!({
                "metadata": {
                    "labels": {"app": "db"}, "annotations": {"why": "night"},
                    "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"],
                },
                "spec": {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "fast"},
                "status": {"boundVolumeSnapshotContentName": "real", "readyToUse": true},
            }),
        );
        let of = json!({"namespace": "shop", "name": "backup", "uid": user["metadata"]["uid"]});
        api.put(
            REAL,
            json!({
                "metadata": {"annotations": {"snapshot.storage.kubernetes.io/deletion-secret-name": "s"}},
                "spec": {
                    "driver": "real.test", "deletionPolicy": policy, "volumeSnapshotRef": of,
                    "volumeSnapshotClassName": "fast", "sourceVolumeMode": "Filesystem",
                    "source": {"volumeHandle": "v"},
                },
                "status": {"snapshotHandle": "data"},
            }),
        );
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a"]},
        ]}]}});
        api.put(
            "/api/v1/persistentvolumes/pv",
            json!({"spec": {"csi": {"driver": "real.test", "volumeHandle": "v"}, "nodeAffinity": affinity}}),
        );
        let home = api.cluster_unwatched().await;
        tokio::spawn(controllers(Arc::clone(&api)));
        Self { api, home }
    }

    async fn run(&self, undo: bool, timeout: Duration) -> Result<(), SnapshotTransferError> {
        let context = Context {
            cluster: &self.home,
            storage_namespace: "liqo-storage",
            timeout,
            dry_run: false,
            report: &|_| {},
        };
        let request = SnapshotImportRequest {
            snapshot: "shop/backup".parse().unwrap(),
            class: None,
            force_managed: false,
            home: "home".parse().unwrap(),
        };
        if undo {
            return undo_snapshot_import(&context, &request).await;
        }
        import_snapshot(&context, &request).await
    }

    async fn import(&self) -> Result<(), SnapshotTransferError> {
        self.run(false, TEST_TIMEOUT).await
    }

    async fn undo(&self) -> Result<(), SnapshotTransferError> {
        self.run(true, TEST_TIMEOUT).await
    }

    /// Imports until this many writes are done, and stops.
    async fn import_and_die_after(&self, writes: usize) {
        let mut changes = self.api.store().changes();
        let enough = async {
            while self.api.writes() < writes {
                changes.changed().await.unwrap();
            }
        };
        tokio::select! {
            _ = self.run(false, TEST_TIMEOUT) => {}
            () = enough => {}
        }
        // Requests that were sent may still arrive.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Whether the user's object is the original one, and is not being deleted.
    fn has_old(&self) -> bool {
        self.api.object(USER).is_some_and(|user| {
            user["spec"]["volumeSnapshotClassName"] == "fast"
                && user["metadata"]["deletionTimestamp"].is_null()
        })
    }

    fn twin(&self) -> String {
        let uid = self.api.object(USER).unwrap()["metadata"]["uid"].clone();
        let name = import_key(uid.as_str().unwrap()).twin();
        format!("{SNAPSHOTS}liqo-storage/volumesnapshots/{name}")
    }

    /// The path of the twin's content.
    fn twin_content(&self) -> String {
        let twin = self.twin();
        format!("{CONTENTS}{}", twin.rsplit('/').next().unwrap())
    }

    fn contents(&self) -> Vec<Value> {
        self.api.store().below(CONTENTS)
    }

    fn assert_imported(&self, policy: &str) {
        assert_eq!(self.api.object(LOST), None, "the data is lost");
        let user = self.api.object(USER).unwrap();
        assert_eq!(user["metadata"]["labels"]["app"], "db");
        assert_eq!(user["metadata"]["annotations"]["why"], "night");
        assert_eq!(user["spec"]["volumeSnapshotClassName"], "liqo");
        assert_eq!(user["status"]["readyToUse"], true);

        let contents = self.contents();
        assert_eq!(contents.len(), 2, "{contents:?}");
        let of = |driver: &str| {
            contents
                .iter()
                .find(|one| one["spec"]["driver"] == driver)
                .unwrap()
        };
        let (real, virtual_content) = (of("real.test"), of(DRIVER_NAME));
        assert_eq!(real["spec"]["source"]["snapshotHandle"], "data");
        assert_eq!(real["spec"]["deletionPolicy"], "Retain");
        assert_eq!(real["spec"]["volumeSnapshotClassName"], "fast");
        let annotations = &real["metadata"]["annotations"];
        assert_eq!(
            annotations["snapshot.storage.kubernetes.io/deletion-secret-name"],
            "s"
        );
        let before = annotations[mark::DELETION_POLICY_BEFORE].as_str();
        assert_eq!(before.unwrap_or("Retain"), policy);
        assert_eq!(virtual_content["spec"]["deletionPolicy"], "Delete");
        assert_eq!(
            user["spec"]["source"]["volumeSnapshotContentName"],
            virtual_content["metadata"]["name"]
        );

        let twins = self.api.store().below(&format!("{SNAPSHOTS}liqo-storage/"));
        assert_eq!(twins.len(), 1);
        let twin = &twins[0];
        let key = twin["metadata"]["labels"][mark::SNAPSHOT].as_str().unwrap();
        assert_eq!(
            virtual_content["spec"]["source"]["snapshotHandle"],
            format!("s1:home::{key}")
        );
        assert_eq!(twin["metadata"]["annotations"][mark::SNAPSHOT_NAME], "backup");
        let affinity = twin["metadata"]["annotations"][mark::SOURCE_AFFINITY].as_str();
        assert!(affinity.unwrap().contains("zone"));
        assert_eq!(
            twin["spec"]["source"]["volumeSnapshotContentName"],
            real["metadata"]["name"]
        );
    }

    fn assert_as_before(&self, policy: &str) {
        assert_eq!(self.api.object(LOST), None, "the data is lost");
        let user = self.api.object(USER).unwrap();
        assert_eq!(user["spec"]["volumeSnapshotClassName"], "fast");
        assert_eq!(user["metadata"]["annotations"], json!({"why": "night"}));
        let contents = self.contents();
        assert_eq!(contents.len(), 1, "{contents:?}");
        assert_eq!(contents[0]["spec"]["deletionPolicy"], policy);
        assert_eq!(
            contents[0]["metadata"]["annotations"][mark::IMPORT_SNAPSHOT],
            Value::Null
        );
        assert!(
            self.api
                .store()
                .below(&format!("{SNAPSHOTS}liqo-storage/"))
                .is_empty()
        );
    }
}

/// The policies of contents by their names, and since when they have them.
#[derive(Default)]
struct Policies(HashMap<String, Vec<(Instant, String)>>);

impl Policies {
    fn note(&mut self, contents: &[Value]) {
        for content in contents {
            let policy = content["spec"]["deletionPolicy"].as_str().unwrap();
            let name = content["metadata"]["name"].as_str().unwrap();
            let known = self.0.entry(name.to_owned()).or_default();
            if known.last().is_none_or(|(_, last)| last != policy) {
                known.push((Instant::now(), policy.to_owned()));
            }
        }
    }

    /// Whether the data is deleted with the snapshot of this content, as far as the snapshot-controller has
    /// observed its policy.
    fn is_delete(&self, name: &str) -> bool {
        let known = &self.0[name];
        let seen = known
            .iter()
            .rfind(|(since, _)| since.elapsed() >= CONTROLLER_DELAY);
        seen.unwrap_or(&known[0]).1 == "Delete"
    }
}

/// Simulates snapshot-controller and csi-snapshotter.
async fn controllers(api: Arc<FakeApi>) {
    let mut changes = api.store().changes();
    let mut policies = Policies::default();
    loop {
        policies.note(&api.store().below(CONTENTS));
        for snapshot in api.store().below(SNAPSHOTS) {
            let text = |key: &str| snapshot["metadata"][key].as_str().unwrap().to_owned();
            let path = format!(
                "{SNAPSHOTS}{}/volumesnapshots/{}",
                text("namespace"),
                text("name")
            );
            let wanted = snapshot["spec"]["source"]["volumeSnapshotContentName"].as_str();
            let bound = snapshot["status"]["boundVolumeSnapshotContentName"].as_str();
            let content = |name: Option<&str>| api.object(&format!("{CONTENTS}{}", name?));
            if !snapshot["metadata"]["deletionTimestamp"].is_null() {
                if content(bound).is_some() && policies.is_delete(bound.unwrap()) {
                    api.put(LOST, json!({}));
                }
                api.remove(&path);
            } else if bound.is_none() && content(wanted).is_some() {
                let name = wanted.unwrap().to_owned();
                let uid = snapshot["metadata"]["uid"].clone();
                api.change(&format!("{CONTENTS}{name}"), |content| {
                    content["spec"]["volumeSnapshotRef"]["uid"] = uid;
                    content["status"] =
                        json!({"snapshotHandle": content["spec"]["source"]["snapshotHandle"]});
                });
                api.change(&path, |snapshot| {
                    snapshot["status"] = json!({"boundVolumeSnapshotContentName": name, "readyToUse": true});
                });
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_snapshot_is_imported_without_a_copy() {
    for policy in ["Delete", "Retain"] {
        let world = World::new(policy).await;
        world.import().await.unwrap();
        world.assert_imported(policy);
        let writes = world.api.writes();
        world.import().await.unwrap();
        assert_eq!(world.api.writes(), writes, "it is imported already");
        assert!(matches!(
            world.undo().await,
            Err(SnapshotTransferError::NotUndone(
                _,
                SnapshotUndoRefusal::NotRecorded
            ))
        ));
    }
}

#[tokio::test]
async fn a_snapshot_import_resumes_after_any_write() {
    let stopped = (MARKED..=MADE + 1).map(async |writes| {
        let world = World::new("Delete").await;
        world.import_and_die_after(writes).await;
        world
            .import()
            .await
            .unwrap_or_else(|error| panic!("after {writes} writes: {error}"));
        world.assert_imported("Delete");
    });
    join_all(stopped).await;
}

#[tokio::test]
async fn a_snapshot_import_can_be_undone_until_the_old_object_is_deleted() {
    let stopped = (MARKED..=MADE + 1).map(async |writes| {
        let world = World::new("Delete").await;
        world.import_and_die_after(writes).await;
        let had_old = world.has_old();
        match world.undo().await {
            Ok(()) => world.assert_as_before("Delete"),
            Err(SnapshotTransferError::NotUndone(
                _,
                SnapshotUndoRefusal::TooLate | SnapshotUndoRefusal::NotRecorded,
            )) if !had_old => {
                world.import().await.unwrap();
                world.assert_imported("Delete");
            }
            Err(error) => panic!("after {writes} writes: {error}"),
        }
    });
    join_all(stopped).await;
}

#[tokio::test]
async fn deleting_an_object_that_is_being_undone_is_refused() {
    let world = World::new("Delete").await;
    let path = USER.to_owned();
    // Between the last observation and the deletion, an undo begins.
    world.api.before("DELETE", USER, move |store| {
        let mut user = store.get(&path).unwrap();
        user["metadata"]["annotations"][mark::IMPORT_UNDONE] = "true".into();
        store.put(&path, user);
    });
    let error = world.import().await.unwrap_err();
    assert!(error.to_string().contains("being undone"), "{error}");
    world.undo().await.unwrap();
    world.assert_as_before("Delete");
}

#[tokio::test]
async fn all_obstacles_are_reported_at_once() {
    let world = World::new("Delete").await;
    world.api.remove("/apis/storage.k8s.io/v1/storageclasses/fast");
    world.api.remove(&format!("{KINDS}/volumesnapshotclasses/liqo"));
    world.api.put(
        "/api/v1/namespaces/shop/persistentvolumeclaims/copy",
        json!({"spec": {"dataSource": {"kind": "VolumeSnapshot", "name": "backup"}}, "status": {"phase": "Pending"}}),
    );
    world.api.change(USER, |user| {
        user["metadata"]["annotations"]["meta.helm.sh/release-name"] = "x".into();
        user["metadata"]["finalizers"] = json!(["somebody.test/wants"]);
        user["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Schedule", "name": "nightly", "uid": "u", "controller": true}]);
    });
    let before = world.api.store().version();
    let error = world.import().await.unwrap_err().to_string();
    for part in [
        "real.test",
        "VolumeSnapshotClass",
        "copy",
        "Helm",
        "somebody.test/wants",
        "nightly",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(world.api.store().version(), before);
}

#[tokio::test]
async fn own_and_unready_snapshots_are_refused() {
    let world = World::new("Delete").await;
    world
        .api
        .change(USER, |user| user["status"]["readyToUse"] = false.into());
    let error = world.import().await.unwrap_err().to_string();
    assert!(error.contains("not ready"), "{error}");
    world
        .api
        .change(REAL, |real| real["spec"]["driver"] = DRIVER_NAME.into());
    let before = world.api.store().version();
    let error = world.import().await.unwrap_err().to_string();
    assert!(error.contains("of this driver"), "{error}");
    assert_eq!(world.api.store().version(), before);
}

#[tokio::test]
async fn a_claim_or_snapshot_is_not_restored_in_a_recreated_namespace() {
    let world = World::new("Delete").await;
    world.import_and_die_after(MARKED).await;
    world.api.change("/api/v1/namespaces/shop", |namespace| {
        namespace["metadata"]["uid"] = "n-2".into();
    });
    for outcome in [world.import().await, world.undo().await] {
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, SnapshotTransferError::OtherNamespace { .. }),
            "{error}"
        );
    }
    assert_eq!(
        world.api.object(REAL).unwrap()["spec"]["deletionPolicy"],
        "Retain"
    );
}

#[tokio::test]
async fn a_record_that_cannot_be_read_stops_only_its_own_import() {
    let world = World::new("Delete").await;
    let other = json!({
        "metadata": {"annotations": {mark::IMPORT_SNAPSHOT: "{}"}},
        "spec": {"driver": "real.test", "deletionPolicy": "Retain", "volumeSnapshotRef": {"namespace": "bank", "name": "backup"}},
    });
    world.api.put(&format!("{CONTENTS}other"), other.clone());
    world.import().await.unwrap();

    let world = World::new("Delete").await;
    world.api.change(REAL, |real| {
        real["metadata"]["annotations"] = other["metadata"]["annotations"].clone();
    });
    let error = world.import().await.unwrap_err();
    assert!(matches!(error, SnapshotTransferError::Record(..)), "{error}");
}

#[tokio::test]
async fn a_step_without_its_object_is_an_error() {
    use SnapshotImportStep as Step;
    use SnapshotUndoStep as Undo;
    let (_api, cluster) = empty_cluster().await;
    let context = quiet(&cluster);
    let request = SnapshotImportRequest {
        snapshot: "shop/backup".parse().unwrap(),
        class: None,
        force_managed: false,
        home: "home".parse().unwrap(),
    };
    let observed = Observer::default().observe(&context, &request).await.unwrap();
    for step in [
        Step::Mark,
        Step::RetainContent,
        Step::MakeContent,
        Step::MakeTwin,
        Step::DeleteUser,
        Step::MakeUserContent,
        Step::MakeUser,
        Step::Forget,
    ] {
        let taken = take(&context, &request, &observed, &step).await;
        assert!(
            matches!(taken, Err(SnapshotTransferError::ObjectMissing(_))),
            "{step:?}: {taken:?}"
        );
    }
    for step in [
        Undo::Touch,
        Undo::Mark,
        Undo::RetainContent,
        Undo::DeleteTwin,
        Undo::DeleteContent,
        Undo::Restore,
        Undo::Untouch,
    ] {
        let taken = roll_back(&context, &observed, &step).await;
        assert!(
            matches!(taken, Err(SnapshotTransferError::ObjectMissing(_))),
            "{step:?}: {taken:?}"
        );
    }
}
