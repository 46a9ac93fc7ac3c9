//! Complete releases against a fake API server, interrupted after every write. Kubernetes and
//! csi-provisioner are simulated.

mod reverted;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{
    sidecars::{ATTACHERS, PROVISIONERS},
    *,
};
use crate::{
    cluster::{
        Cluster,
        testing::{Act, FakeApi, Fault, Store},
    },
    placement::transfer::{ReleaseRefusal, ReleaseUndoRefusal},
    tests::{
        AWAITS_CONTROLLER, OTHERS_ANNOTATION, TEST_TIMEOUT, VolumeController, claim, empty_cluster, follow,
        quiet,
    },
    topology::{CLUSTER_KEY, NODE_KEY},
    volume::DRIVER_NAME,
};

const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
const TWINS: &str = "/api/v1/namespaces/liqo-storage/persistentvolumeclaims/";
const VOLUMES: &str = "/api/v1/persistentvolumes/";
const REAL: &str = "/api/v1/persistentvolumes/pv-1";
const UID: &str = "11111111-1111-4111-8111-111111111111";
const TWIN_UID: &str = "22222222-2222-4222-8222-222222222222";
/// The number of writes of a complete release: there is a dry run before each step while the claim exists.
const ALL: usize = 17;

mod by_others;

struct World {
    api: Arc<FakeApi>,
    home: Cluster,
}

fn context(world: &World) -> Context<'_> {
    Context {
        cluster: &world.home,
        storage_namespace: "liqo-storage",
        timeout: TEST_TIMEOUT,
        dry_run: false,
        report: &|_| {},
    }
}

fn twin_path() -> String {
    format!("{TWINS}{UID}")
}

fn outer_path() -> String {
    format!("{VOLUMES}pvc-{UID}")
}

impl World {
    /// A claim of this driver with its twin, which no pod uses.
    async fn new(outer_policy: &str, real_policy: &str) -> Self {
        Self::with_sidecars(outer_policy, real_policy, true).await
    }

    async fn with_sidecars(outer_policy: &str, real_policy: &str, they_run: bool) -> Self {
        let api = Arc::new(FakeApi::start().await);
        api.put("/api/v1/namespaces/shop", json!({"metadata": {"uid": "shop-1"}}));
        let labels = json!({CLUSTER_KEY: "home", NODE_KEY: "n1", "kubernetes.io/hostname": "n1"});
        api.put("/api/v1/nodes/n1", json!({"metadata": {"labels": labels}}));
        for (name, provisioner) in [("liqo", DRIVER_NAME), ("fast", "real.test")] {
            let class = json!({"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"});
            api.put(&format!("/apis/storage.k8s.io/v1/storageclasses/{name}"), class);
        }
        let spec = |class: &str, volume: &str| {
            json!({
                "storageClassName": class, "volumeName": volume, "accessModes": ["ReadWriteOnce"],
                "volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}},
            })
        };
        let bound = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        api.put(
            CLAIM,
            json!({
                "metadata": {
                    "uid": UID, "labels": {"app": "db"},
                    "annotations": {"team": "blue", "volume.kubernetes.io/selected-node": "n1"},
                    "finalizers": ["kubernetes.io/pvc-protection"],
                },
                "spec": spec("liqo", &format!("pvc-{UID}")), "status": bound,
            }),
        );
        api.put(
            &twin_path(),
            json!({
                "metadata": {
                    "uid": TWIN_UID, "finalizers": ["kubernetes.io/pvc-protection", mark::TWIN_FINALIZER],
                    "labels": {
                        mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::VOLUME: format!("pvc-{UID}"),
                    },
                    "annotations": {mark::CLAIM_UID: UID, mark::HANDED_OVER: "true"},
                },
                "spec": spec("fast", "pv-1"), "status": bound,
            }),
        );
        let volume = |class: &str, policy: &str, claim: Value, source: Value| {
            json!({
                "metadata": {"finalizers": ["kubernetes.io/pv-protection"]},
                "spec": {
                    "storageClassName": class, "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                    "volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": policy, "claimRef": claim, "csi": source,
                },
                "status": {"phase": "Bound"},
            })
        };
        let attributes = json!({
            crate::twin::TWIN_NAMESPACE: "liqo-storage", crate::twin::TWIN_NAME: UID, crate::twin::TWIN_VOLUME: "pv-1",
        });
        let mut outer = volume(
            "liqo",
            outer_policy,
            json!({"namespace": "shop", "name": "data", "uid": UID}),
            json!({"driver": DRIVER_NAME, "volumeHandle": format!("v1:home:pvc-{UID}"), "volumeAttributes": attributes}),
        );
        outer["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection", PROVISIONERS, ATTACHERS]);
        api.put(&outer_path(), outer);
        api.put(
            REAL,
            volume(
                "fast",
                real_policy,
                json!({"namespace": "liqo-storage", "name": UID, "uid": TWIN_UID}),
                json!({"driver": "real.test", "volumeHandle": "h"}),
            ),
        );
        let home = api.cluster().await;
        tokio::spawn(kubernetes(Arc::clone(&api), they_run));
        Self { api, home }
    }

    async fn release(&self) -> Result<(), TransferError> {
        self.run(false, TEST_TIMEOUT).await
    }

    async fn undo(&self) -> Result<(), TransferError> {
        self.run(true, TEST_TIMEOUT).await
    }

    /// Undoes the release without a controller. A late undo imports the volume again, which does not
    /// complete without one: then the error is that of the timeout.
    async fn undo_without_controller(&self) -> Result<(), TransferError> {
        let waits = Notify::new();
        let report = |what: &str| {
            if what.starts_with(AWAITS_CONTROLLER) {
                waits.notify_one();
            }
        };
        let context = Context {
            report: &report,
            ..context(self)
        };
        let claim = "shop/data".parse().unwrap();
        tokio::select! {
            outcome = Box::pin(undo_release(&context, &claim)) => return outcome,
            () = waits.notified() => {}
        }
        self.run(true, Duration::ZERO).await
    }

    async fn run(&self, undo: bool, timeout: Duration) -> Result<(), TransferError> {
        let context = Context {
            timeout,
            ..context(self)
        };
        let claim: ClaimName = "shop/data".parse().unwrap();
        if undo {
            return Box::pin(undo_release(&context, &claim)).await;
        }
        let request = ReleaseRequest {
            claim,
            force_managed: false,
        };
        Box::pin(release(&context, &request)).await
    }

    /// Runs until any clients have done this many writes, and stops.
    async fn die_after(&self, undo: bool, writes: usize) {
        let before = self.api.writes();
        let mut changes = self.api.store().changes();
        let enough = async {
            while self.api.writes() < before + writes {
                changes.changed().await.unwrap();
            }
        };
        tokio::select! {
            _ = self.run(undo, TEST_TIMEOUT) => {}
            () = enough => {}
        }
    }

    fn claim(&self) -> Value {
        self.api.object(CLAIM).unwrap()
    }

    /// The PV, which must never be deleted.
    fn real(&self) -> Value {
        self.api.object(REAL).expect("the data is lost")
    }

    fn policy(&self, path: &str) -> Value {
        self.api.object(path).unwrap()["spec"]["persistentVolumeReclaimPolicy"].clone()
    }

    fn assert_released(&self, policy: &str) {
        let (claim, real) = (self.claim(), self.real());
        assert_ne!(claim["metadata"]["uid"], UID);
        assert_eq!(claim["spec"]["storageClassName"], "fast");
        assert_eq!(claim["spec"]["volumeName"], "pv-1");
        assert_eq!(claim["metadata"]["labels"]["app"], "db");
        assert_eq!(claim["metadata"]["annotations"], json!({"team": "blue"}));
        assert_eq!(claim["status"]["phase"], "Bound");
        assert_eq!(real["spec"]["claimRef"]["uid"], claim["metadata"]["uid"]);
        assert_eq!(self.api.object(&twin_path()), None, "the twin is left");
        assert_eq!(self.api.object(&outer_path()), None, "the virtual PV is left");
        assert_eq!(self.policy(REAL), policy);
        self.assert_clean();
    }

    fn assert_as_before(&self, policy: &str) {
        let (claim, real) = (self.claim(), self.real());
        assert_eq!(claim["spec"]["storageClassName"], "liqo");
        assert_eq!(claim["spec"]["volumeName"], format!("pvc-{UID}"));
        assert_eq!(claim["status"]["phase"], "Bound");
        assert_eq!(claim["metadata"]["annotations"]["team"], "blue");
        for key in [mark::RELEASE_UNDONE, mark::AWAITS_VOLUME] {
            assert_eq!(claim["metadata"]["annotations"][key], Value::Null, "{key}");
        }
        let outer = self.api.object(&outer_path()).expect("the virtual PV is gone");
        assert_eq!(outer["spec"]["claimRef"]["uid"], claim["metadata"]["uid"]);
        assert_eq!(
            outer["spec"]["csi"]["volumeAttributes"][crate::twin::TWIN_NAME],
            UID
        );
        let twin = self.api.object(&twin_path()).expect("the twin is gone");
        assert_eq!(twin["metadata"]["annotations"][mark::RELEASING], Value::Null);
        assert_eq!(twin["metadata"]["deletionTimestamp"], Value::Null);
        assert_eq!(real["spec"]["claimRef"]["uid"], TWIN_UID);
        assert_eq!(self.policy(&outer_path()), policy);
        assert_eq!(self.policy(REAL), policy);
        self.assert_clean();
    }

    fn assert_clean(&self) {
        for key in [
            mark::RELEASE,
            mark::IMPORT,
            mark::ADOPT_FOR,
            mark::POLICY_BEFORE,
            OTHERS_ANNOTATION,
        ] {
            assert_eq!(self.real()["metadata"]["annotations"][key], Value::Null, "{key}");
        }
        if let Some(outer) = self.api.object(&outer_path()) {
            assert_eq!(outer["metadata"]["annotations"][OTHERS_ANNOTATION], Value::Null);
        }
    }
}

/// Simulates kube-controller-manager and the sidecars for claims and PVs.
async fn kubernetes(api: Arc<FakeApi>, sidecars: bool) {
    let mut changes = api.store().changes();
    let mut controller = VolumeController::default();
    loop {
        for volume in api.store().below(VOLUMES) {
            let path = format!("{VOLUMES}{}", volume["metadata"]["name"].as_str().unwrap());
            let has = |key: &str| {
                volume["metadata"]["finalizers"]
                    .as_array()
                    .is_some_and(|all| all.contains(&key.into()))
            };
            let is_deleting = !volume["metadata"]["deletionTimestamp"].is_null();
            let take_off = |finalizer: &str| {
                api.change(&path, |volume| {
                    let all = volume["metadata"]["finalizers"].as_array_mut().unwrap();
                    all.retain(|one| one != finalizer);
                })
            };
            if sidecars && volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain" && has(PROVISIONERS) {
                take_off(PROVISIONERS);
                continue;
            }
            if sidecars && is_deleting && has(ATTACHERS) {
                take_off(ATTACHERS);
                continue;
            }
            let is_bound = volume["status"]["phase"] == "Bound";
            if is_deleting && !is_bound && !has(PROVISIONERS) && !has(ATTACHERS) {
                api.remove(&path);
                continue;
            }
            follow(&api, &volume);
        }
        controller.look_at_claims(&api);
        for twin in api.store().below(TWINS) {
            let finalizers = twin["metadata"]["finalizers"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            if !twin["metadata"]["deletionTimestamp"].is_null()
                && !finalizers.contains(&mark::TWIN_FINALIZER.into())
            {
                api.remove(&twin_path());
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn pod(api: &FakeApi) {
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    api.put(
        "/api/v1/namespaces/shop/pods/web",
        json!({"spec": {"volumes": volumes, "containers": []}, "status": {"phase": "Pending"}}),
    );
}

fn attach(api: &FakeApi, name: &str, volume: &str) {
    let spec = json!({"attacher": "x", "nodeName": "n2", "source": {"persistentVolumeName": volume}});
    let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
    api.put(&path, json!({"spec": spec}));
}

#[tokio::test]
async fn a_claim_gets_its_real_class_and_keeps_its_volume() {
    for (outer, real, expected) in [
        ("Delete", "Delete", "Delete"),
        ("Retain", "Retain", "Retain"),
        ("Delete", "Retain", "Retain"),
    ] {
        let world = World::new(outer, real).await;
        world.release().await.unwrap();
        world.assert_released(expected);
        // A second run has nothing to do.
        let writes = world.api.writes();
        world.release().await.unwrap();
        assert_eq!(world.api.writes(), writes);
    }
}

#[tokio::test]
async fn a_release_resumes_after_a_crash_at_any_write() {
    for writes in 1..=ALL {
        let world = World::new("Delete", "Delete").await;
        world.die_after(false, writes).await;
        world
            .release()
            .await
            .unwrap_or_else(|error| panic!("after {writes} writes: {error}"));
        world.assert_released("Delete");
    }
}

#[tokio::test]
async fn a_release_can_be_undone_after_a_crash_at_any_write() {
    let mut outcomes = [0; 3];
    for writes in 1..=ALL {
        let world = World::new("Delete", "Delete").await;
        world.die_after(false, writes).await;
        match world.undo_without_controller().await {
            Ok(()) if world.claim()["spec"]["storageClassName"] == "liqo" => {
                world.assert_as_before("Delete");
                outcomes[0] += 1;
            }
            // The release was complete, and there was nothing to undo.
            Ok(()) => world.assert_released("Delete"),
            Err(TransferError::StillReleased(_, ReleaseUndoRefusal::TooLate)) => {
                world.release().await.unwrap();
                world.assert_released("Delete");
                outcomes[1] += 1;
            }
            Err(TransferError::StillWaiting { .. }) => {
                let real = world.real();
                assert_eq!(world.api.object(&twin_path()), None);
                assert_eq!(real["metadata"]["annotations"][mark::ADOPT_FOR], "shop/data");
                assert_eq!(real["metadata"]["annotations"][mark::RELEASE], Value::Null);
                assert_eq!(world.policy(REAL), "Retain");
                outcomes[2] += 1;
            }
            Err(other) => panic!("after {writes} writes: {other}"),
        }
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

#[tokio::test]
async fn an_undo_resumes_after_a_crash_at_any_write() {
    for undone in 1..=9 {
        let world = World::new("Delete", "Delete").await;
        let context = context(&world);
        // The virtual PV is gone, and the twin is not.
        let gone = world.api.until(|store| store.get(&outer_path()).is_none());
        let request = ReleaseRequest {
            claim: "shop/data".parse().unwrap(),
            force_managed: false,
        };
        world.api.fault(Fault::new(
            "DELETE",
            "liqo-storage/persistentvolumeclaims",
            Act::Refuse(409),
        ));
        tokio::select! {
            _ = release(&context, &request) => panic!("it cannot end"),
            () = gone => {}
        }
        world.die_after(true, undone).await;
        world.undo().await.unwrap();
        world.assert_as_before("Delete");
    }
}

#[tokio::test]
async fn a_concurrent_release_and_undo_lose_no_data() {
    for pause in [0, 5, 10, 20, 40, 80] {
        let world = World::new("Delete", "Delete").await;
        let undo = async {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            world.undo_without_controller().await
        };
        let _whoever_wins = tokio::join!(world.release(), undo);
        world.real();
        match world.undo_without_controller().await {
            Ok(()) if world.claim()["spec"]["storageClassName"] == "liqo" => world.assert_as_before("Delete"),
            Ok(()) => world.assert_released("Delete"),
            Err(TransferError::StillReleased(_, ReleaseUndoRefusal::TooLate)) => {
                world.release().await.unwrap();
                world.assert_released("Delete");
            }
            Err(_) => assert_eq!(world.policy(REAL), "Retain", "it is being imported again"),
        }
    }
}

#[tokio::test]
async fn all_obstacles_are_reported_at_once_without_a_write() {
    let world = World::new("Delete", "Delete").await;
    pod(&world.api);
    attach(&world.api, "outer", &format!("pvc-{UID}"));
    attach(&world.api, "nested", "pv-1");
    world.api.change(CLAIM, |claim| {
        claim["metadata"]["annotations"]["meta.helm.sh/release-name"] = "shop".into();
    });
    world.api.change(&twin_path(), |twin| {
        twin["status"]["modifyVolumeStatus"] = json!({"status": "InProgress"});
    });
    let error = world.release().await.unwrap_err();
    let TransferError::NotReleased(_, ReleaseRefusal::Obstacles(reported)) = &error else {
        panic!("{error}");
    };
    assert_eq!(reported.len(), 5, "{error}");
    let twin = world.api.object(&twin_path()).unwrap();
    assert_eq!(twin["metadata"]["annotations"][mark::RELEASING], Value::Null);
    world.assert_clean();
    assert_eq!(world.claim()["metadata"]["uid"], UID);
}

/// A user has created a second PV for the same data, and bound another claim to it, which would
/// lose its volume.
#[tokio::test]
async fn a_second_pv_of_the_volume_blocks_the_release() {
    let world = World::new("Delete", "Delete").await;
    let mut second = world.api.object(&outer_path()).unwrap();
    second["metadata"] = json!({});
    second["spec"]["claimRef"] = json!({"namespace": "bank", "name": "rescued", "uid": "another"});
    second["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    world.api.put(&format!("{VOLUMES}second"), second);
    let error = world.release().await.unwrap_err().to_string();
    let words = "the PersistentVolume second (of the claim bank/rescued) has the same volume";
    assert!(error.contains(words), "{error}");
    world.assert_clean();
}

/// A user has bound the claim to another PV for the same data, for example after the first one was deleted.
#[tokio::test]
async fn the_pv_of_the_claim_is_not_a_second_one_whatever_its_name() {
    let world = World::new("Retain", "Delete").await;
    let own = format!("{VOLUMES}rescue");
    let mut rescue = world.api.object(&outer_path()).unwrap();
    rescue["metadata"] = json!({"finalizers": ["kubernetes.io/pv-protection"]});
    world.api.put(&own, rescue);
    world.api.change(CLAIM, |claim| {
        claim["spec"]["volumeName"] = "rescue".into();
    });
    let error = world.release().await.unwrap_err().to_string();
    assert!(
        error.contains(&format!("the PersistentVolume pvc-{UID} (of the claim")),
        "{error}"
    );
    assert!(!error.contains("the PersistentVolume rescue"), "{error}");

    world.api.remove(&outer_path());
    world.release().await.unwrap();
    assert_eq!(world.api.object(&own), None, "the virtual PV is left");
    world.assert_released("Retain");
}

#[tokio::test]
async fn a_pod_created_before_the_deletion_rolls_back() {
    for writes in 1..=5 {
        let world = World::new("Delete", "Delete").await;
        world.die_after(false, writes).await;
        if world.claim()["metadata"]["deletionTimestamp"] != Value::Null {
            continue;
        }
        pod(&world.api);
        let error = world.release().await.unwrap_err();
        let is_told = matches!(error, TransferError::RolledBack(..))
            || matches!(error, TransferError::NotReleased(_, ReleaseRefusal::Obstacles(_)));
        assert!(is_told, "after {writes} writes: {error}");
        world.assert_as_before("Delete");
    }
}

#[tokio::test]
async fn a_claim_that_would_be_refused_is_detected_by_dry_run() {
    let world = World::new("Delete", "Delete").await;
    let quota = "exceeded quota: fast";
    world
        .api
        .fault(Fault::new("POST", "persistentvolumeclaims", Act::Forbid(quota)));
    let error = world.release().await.unwrap_err();
    assert!(error.to_string().contains(quota), "{error}");
    world.assert_as_before("Delete");
}

#[tokio::test]
async fn a_finalizer_of_an_absent_sidecar_is_removed() {
    let world = World::with_sidecars("Delete", "Delete", false).await;
    world.release().await.unwrap();
    world.assert_released("Delete");
}

#[tokio::test]
async fn a_policy_that_this_driver_replaced_is_not_lost() {
    let world = World::new("Retain", "Retain").await;
    world.api.change(REAL, |real| {
        real["metadata"]["annotations"] = json!({mark::POLICY_BEFORE: "Delete"});
    });
    world.die_after(false, 6).await;
    world.undo().await.unwrap();
    assert_eq!(
        world.real()["metadata"]["annotations"][mark::POLICY_BEFORE],
        "Delete"
    );
    assert_eq!(world.policy(REAL), "Retain");
    world.release().await.unwrap();
    world.assert_released("Retain");
}

#[tokio::test]
async fn a_matching_claim_created_by_others_meanwhile_gets_the_data() {
    let world = World::new("Delete", "Delete").await;
    let theirs = json!({
        "metadata": {"uid": "theirs"},
        "spec": {
            "storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": "Pending"},
    });
    let mut changes = world.api.store().changes();
    let in_the_gap = async {
        while world.api.object(CLAIM).is_some() {
            changes.changed().await.unwrap();
        }
        world.api.put(CLAIM, theirs);
    };
    let (released, ()) = tokio::join!(world.release(), in_the_gap);
    released.unwrap();
    assert_eq!(world.claim()["metadata"]["uid"], "theirs");
    assert_eq!(world.real()["spec"]["claimRef"]["uid"], "theirs");
    assert_eq!(world.policy(REAL), "Delete");
    world.assert_clean();
}

#[tokio::test]
async fn a_claim_with_remote_data_is_not_released() {
    let world = World::new("Delete", "Delete").await;
    world.api.change(&outer_path(), |outer| {
        outer["spec"]["csi"]["volumeHandle"] = format!("v1:far:pvc-{UID}").into();
        outer["spec"]["csi"]["volumeAttributes"][crate::twin::TWIN_NAMESPACE] = "shop".into();
    });
    let error = world.release().await.unwrap_err();
    assert!(error.to_string().contains("cannot be released yet"), "{error}");
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let world = World::new("Delete", "Delete").await;
    let context = Context {
        dry_run: true,
        report: &|what| assert!(what.contains("is possible (dry run)"), "{what}"),
        ..context(&world)
    };
    let request = ReleaseRequest {
        claim: "shop/data".parse().unwrap(),
        force_managed: false,
    };
    Box::pin(release(&context, &request)).await.unwrap();
    world.assert_as_before("Delete");
}

#[tokio::test]
async fn concurrent_releases_do_no_harm() {
    for pause in [0, 20, 60] {
        let world = World::new("Delete", "Delete").await;
        let second = async {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            world.release().await
        };
        let (first, second) = tokio::join!(world.release(), second);
        first.unwrap();
        second.unwrap();
        world.assert_released("Delete");
    }
}

#[tokio::test]
async fn a_mark_of_a_deleted_claim_is_removed() {
    let world = World::new("Delete", "Delete").await;
    world.api.change(&twin_path(), |twin| {
        twin["metadata"]["annotations"][mark::RELEASING] = "shop/data".into();
    });
    world.api.remove(CLAIM);
    world.undo().await.unwrap();
    let twin = world.api.object(&twin_path()).unwrap();
    assert_eq!(twin["metadata"]["annotations"][mark::RELEASING], Value::Null);
    world.assert_clean();
}

#[tokio::test]
async fn a_mark_of_an_earlier_claim_of_the_name_is_removed() {
    let other = format!("{TWINS}earlier");
    for undo in [false, true] {
        let world = World::new("Delete", "Delete").await;
        let annotations = json!({mark::RELEASING: "shop/data"});
        world.api.put(
            &other,
            json!({"metadata": {"uid": "earlier", "annotations": annotations}, "spec": {}}),
        );
        world.run(undo, TEST_TIMEOUT).await.unwrap();
        let twin = world.api.object(&other).unwrap();
        assert_eq!(twin["metadata"]["annotations"][mark::RELEASING], Value::Null);
    }
}

#[tokio::test]
async fn a_release_that_cannot_be_recorded_leaves_no_mark() {
    let world = World::new("Delete", "Delete").await;
    world
        .api
        .fault(Fault::new("PATCH", "persistentvolumes/pv-1", Act::Forbid("no")));
    let error = world.release().await.unwrap_err();
    assert!(error.to_string().contains("PersistentVolume pv-1"), "{error}");
    world.assert_as_before("Delete");
}

/// Between the mark and the record an undo only removes the mark.
#[tokio::test]
async fn an_undone_release_is_not_resumed() {
    let world = World::new("Delete", "Delete").await;
    world.api.before("PATCH", REAL, |store| {
        let mut twin = store.get(&twin_path()).unwrap();
        twin["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(mark::RELEASING);
        store.put(&twin_path(), twin);
    });
    let error = world.release().await.unwrap_err();
    assert!(
        matches!(error, TransferError::RolledBack(_, _, Interruption::Unmarked)),
        "{error}"
    );
    world.assert_as_before("Delete");
}

#[tokio::test]
async fn a_real_volume_that_is_being_deleted_keeps_its_twin() {
    let world = World::new("Delete", "Delete").await;
    world.api.before("DELETE", &outer_path(), |store| {
        let mut real = store.get(REAL).unwrap();
        real["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        store.put(REAL, real);
    });
    let error = world.release().await.unwrap_err();
    assert!(
        matches!(error, TransferError::RolledBack(_, _, Interruption::VolumeLeaves)),
        "{error}"
    );
    world.assert_as_before("Delete");
}

#[tokio::test]
async fn only_existing_owners_are_restored() {
    let world = World::new("Delete", "Delete").await;
    let kinds = json!({
        "kind": "APIResourceList", "groupVersion": "apps/v1",
        "resources": [{"name": "statefulsets", "singularName": "", "namespaced": true, "kind": "StatefulSet", "verbs": ["get"]}],
    });
    world.api.put("/apis/apps/v1", kinds);
    let sets = "/apis/apps/v1/namespaces/shop/statefulsets";
    world
        .api
        .put(&format!("{sets}/db"), json!({"metadata": {"uid": "db-1"}}));
    let owner = |api: &str, kind: &str, name: &str, uid: &str| json!({"apiVersion": api, "kind": kind, "name": name, "uid": uid});
    let living = owner("apps/v1", "StatefulSet", "db", "db-1");
    world.api.change(CLAIM, |claim| {
        claim["metadata"]["ownerReferences"] = json!([
            owner("apps/v1", "StatefulSet", "db", "another"),
            owner("apps/v1", "StatefulSet", "gone", "gone-1"),
            owner("nobody.knows/v1", "Database", "db", "db-2"),
            living,
        ]);
    });
    world.release().await.unwrap();
    world.assert_released("Delete");
    assert_eq!(world.claim()["metadata"]["ownerReferences"], json!([living]));
}

/// Kubernetes deletes a PV without a claim as soon as its policy is Delete.
#[tokio::test]
async fn deleting_the_twin_meanwhile_keeps_the_data() {
    for gone in [false, true] {
        let world = World::new("Delete", "Delete").await;
        let request = ReleaseRequest {
            claim: "shop/data".parse().unwrap(),
            force_managed: false,
        };
        let mut changes = world.api.store().changes();
        let recorded = async {
            while world.real()["metadata"]["annotations"][mark::RELEASE].is_null() {
                changes.changed().await.unwrap();
            }
        };
        let context = context(&world);
        tokio::select! {
            _ = release(&context, &request) => panic!("it is not over yet"),
            () = recorded => {}
        }
        if gone {
            world.api.remove(&twin_path());
            world
                .api
                .change(REAL, |real| real["status"]["phase"] = "Released".into());
        } else {
            world.api.change(&twin_path(), |twin| {
                twin["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            });
        }
        world.undo().await.unwrap();
        assert_eq!(world.policy(REAL), "Retain", "gone: {gone}");
        let annotations = &world.real()["metadata"]["annotations"];
        assert_eq!(annotations[mark::RELEASE], Value::Null);
        assert_eq!(annotations[mark::POLICY_BEFORE], "Delete");
        assert_eq!(world.policy(&outer_path()), "Delete");
    }
}

#[tokio::test]
async fn snapshots_of_a_released_claim_are_named() {
    let world = World::new("Delete", "Delete").await;
    let snapshots = "/apis/snapshot.storage.k8s.io/v1/namespaces/shop/volumesnapshots";
    for (name, of) in [("nightly", "data"), ("others", "else")] {
        let spec = json!({"source": {"persistentVolumeClaimName": of}});
        world
            .api
            .put(&format!("{snapshots}/{name}"), json!({"spec": spec}));
    }
    let reported = std::sync::Mutex::new(String::new());
    let report = |what: &str| reported.lock().unwrap().push_str(what);
    let context = Context {
        dry_run: true,
        report: &report,
        ..context(&world)
    };
    let request = ReleaseRequest {
        claim: "shop/data".parse().unwrap(),
        force_managed: false,
    };
    Box::pin(release(&context, &request)).await.unwrap();
    let reported = reported.lock().unwrap();
    assert!(
        reported.contains("the VolumeSnapshots nightly of the claim"),
        "{reported}"
    );
}

/// The effect of a concurrent undo, in one step: it changes the record, and then marks the twin.
fn keep_the_twin(store: &Store) {
    let mut real = store.get(REAL).unwrap();
    let record = real["metadata"]["annotations"][mark::RELEASE].as_str().unwrap();
    let mut record: Value = serde_json::from_str(record).unwrap();
    record["undone"] = true.into();
    real["metadata"]["annotations"][mark::RELEASE] = record.to_string().into();
    store.put(REAL, real);
    let mut twin = store.get(&twin_path()).unwrap();
    twin["metadata"]["annotations"][mark::RELEASE_UNDONE] = "true".into();
    store.put(&twin_path(), twin);
}

#[tokio::test]
async fn a_twin_that_an_undo_wants_to_keep_is_not_deleted() {
    let world = World::new("Delete", "Delete").await;
    world.api.before("DELETE", &twin_path(), keep_the_twin);
    let error = world.release().await.unwrap_err();
    let undoing = matches!(error, TransferError::NotReleased(_, ReleaseRefusal::Undoing));
    assert!(undoing, "{error}");
    let twin = world.api.object(&twin_path()).unwrap();
    assert_eq!(twin["metadata"]["deletionTimestamp"], Value::Null);
    world.undo().await.unwrap();
    world.assert_as_before("Delete");
}

/// A later namespace of the same name may belong to another user.
#[tokio::test]
async fn a_claim_or_snapshot_is_not_restored_in_a_recreated_namespace() {
    let world = World::new("Delete", "Delete").await;
    world.die_after(false, 8).await;
    world
        .api
        .put("/api/v1/namespaces/shop", json!({"metadata": {"uid": "shop-2"}}));
    let recorded = !world.real()["metadata"]["annotations"][mark::RELEASE].is_null();
    assert!(recorded);
    for undo in [false, true] {
        let error = world.run(undo, TEST_TIMEOUT).await.unwrap_err();
        assert!(matches!(error, TransferError::OtherNamespace { .. }), "{error}");
    }
    assert_eq!(world.policy(REAL), "Retain");
}

#[tokio::test]
async fn a_step_without_its_object_is_an_error() {
    use ReleaseStep::{
        DeleteClaim, DeleteTwin, DeleteVirtual, GiveReal, MakeClaim, MarkTwin, Record, RetainVirtual, Settle,
        Untouch, Wake,
    };
    let (_api, cluster) = empty_cluster().await;
    let (context, claim) = (quiet(&cluster), claim());
    let observed = Observer::default().observe(&context, &claim).await.unwrap();
    let mut run = Run {
        context: &context,
        request: &ReleaseRequest {
            claim,
            force_managed: false,
        },
        begun: true,
        seen_gone: false,
        creation: Creation::default(),
    };
    for step in [
        MarkTwin,
        Record,
        Untouch,
        RetainVirtual,
        DeleteClaim,
        DeleteVirtual,
        DeleteTwin,
        MakeClaim,
        GiveReal,
        Wake,
        Settle,
    ] {
        let taken = run.take(&observed, &step).await;
        assert!(
            matches!(taken, Err(TransferError::ObjectMissing(_))),
            "{step:?}: {taken:?}"
        );
    }
}
