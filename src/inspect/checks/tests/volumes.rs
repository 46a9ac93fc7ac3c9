//! Volumes, and their namespaces.

use serde_json::json;

use super::*;
use crate::{
    inspect::fixtures::{claim, claim_with, real, volume},
    volume::mark,
};

#[test]
fn namespaces_and_quotas_are_checked() {
    assert_found(&[
        (
            "missing",
            |it| it.namespace = Listing::default(),
            E,
            [
                "Namespace liqo-storage",
                "every new claim fails",
                "kubectl create",
            ],
        ),
        (
            "being deleted",
            |it| {
                let metadata = json!({"name": "liqo-storage", "deletionTimestamp": "2026-01-01T00:00:00Z"});
                it.namespace = listing([json!({"metadata": metadata})]);
            },
            E,
            ["Namespace liqo-storage", "1 twins", "Retain"],
        ),
        (
            "full",
            |it| {
                it.quotas = listing([json!({
                    "metadata": {"namespace": "liqo-storage", "name": "q"},
                    "status": {"hard": {"requests.storage": "1Gi"}, "used": {"requests.storage": "1Gi"}},
                })]);
            },
            E,
            ["ResourceQuota liqo-storage/q", "no more twins", "Raise"],
        ),
        (
            "on the real class",
            |it| {
                let key = "fast.storageclass.storage.k8s.io/requests.storage";
                it.quotas = listing([json!({
                    "metadata": {"namespace": "shop", "name": "q"},
                    "status": {"hard": {key: "1Gi"}, "used": {key: "0"}},
                })]);
            },
            N,
            [
                "ResourceQuota shop/q",
                "does not count",
                "liqo.storageclass.storage.k8s.io/requests.storage",
            ],
        ),
    ]);
}

#[test]
fn quotas_that_limit_no_twin_or_what_they_should_are_fine() {
    let quota = |namespace: &str, hard: &[(&str, &str)]| {
        let hard: serde_json::Map<String, Value> = hard
            .iter()
            .map(|(key, most)| ((*key).to_owned(), (*most).into()))
            .collect();
        json!({"metadata": {"namespace": namespace, "name": "q"}, "status": {"hard": hard, "used": hard}})
    };
    let of = |class: &str| format!("{class}.storageclass.storage.k8s.io/requests.storage");
    let mut installation = installation();
    installation.quotas = listing([
        quota("liqo-storage", &[(&of("liqo"), "0")]),
        quota("shop", &[(&of("liqo"), "1Gi"), (&of("fast"), "1Gi")]),
    ]);
    assert_eq!(examine(&installation), []);

    installation.quotas = listing([quota("liqo-storage", &[(&of("fast"), "0")])]);
    let [full] = examine(&installation).try_into().unwrap();
    assert!(
        full.problem.contains("no more twins of the class fast"),
        "{}",
        full.problem
    );
}

const RECORD: &str = r#"{"version":1,"class":"liqo","policy":"Delete","claim":{"namespace":"shop","namespaceUid":"n","name":"old","uid":"u","spec":{}}}"#;

/// A PV that is being imported, with these annotations.
fn import(installation: &mut Installation, annotations: &Value) {
    let [ours, real] = [volume(), real()];
    let third = json!({
        "metadata": {"name": "imported", "annotations": annotations},
        "spec": {"persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": "real.example", "volumeHandle": "2"}},
        "status": {"phase": "Released"},
    });
    installation.storage.volumes = listing([ours, real, third]);
}

/// The same PV, being released.
fn release(installation: &mut Installation, undone: bool) {
    let record = json!({
        "version": 1, "undone": undone, "policy": "Delete",
        "twinNamespace": "liqo-storage", "twinName": "u", "twinUid": "t",
        "volume": {"name": "pvc-u", "policy": "Delete", "spec": {}},
        "claim": {"namespace": "shop", "namespaceUid": "n", "name": "old", "uid": "u", "spec": {}},
    });
    import(installation, &json!({mark::RELEASE: record.to_string()}));
}

#[test]
fn unfinished_releases_are_reported() {
    assert_found(&[
        (
            "release not complete",
            |it| release(it, false),
            W,
            [
                "PersistentVolume imported",
                "shop/old is not complete",
                "release pvc shop/old --undo",
            ],
        ),
        (
            "undo of a release not complete",
            |it| release(it, true),
            W,
            [
                "PersistentVolume imported",
                "being undone",
                "release pvc shop/old --undo",
            ],
        ),
        (
            "release that is only marked",
            |it| {
                it.storage.twins =
                    twin_with(|it| it["metadata"]["annotations"][mark::RELEASING] = "shop/data".into());
            },
            W,
            [
                "PersistentVolumeClaim liqo-storage/",
                "is not complete",
                "release pvc shop/data --undo",
            ],
        ),
    ]);
}

#[test]
fn moves_are_reported_if_movers_are_not_enabled() {
    let gated = |installation: &mut Installation| {
        let mut gated = volume();
        gated["metadata"]["annotations"] = json!({mark::GATE: "gated"});
        installation.storage.volumes = listing([gated, real()]);
    };
    assert_found(&[(
        "gated, without movers",
        gated,
        E,
        ["PersistentVolume pvc-", "no pod starts", "mover.enabled: true"],
    )]);
    let mut running = installation();
    gated(&mut running);
    let mut controller = deployment();
    let driver = &mut controller["spec"]["template"]["spec"]["containers"][0];
    driver["args"]
        .as_array_mut()
        .unwrap()
        .push("--mover-image=mover:1".into());
    running.setup.controllers = listing([controller]);
    // Kubernetes shows a gated claim as lost; after the commit, its PV is created again.
    for volumes in [running.storage.volumes.clone(), listing([real()])] {
        running.storage.volumes = volumes;
        running.storage.claims = claim_with(|it| {
            it["metadata"]["annotations"] = json!({mark::MOVE: "29e01d9f-40e2-4019-9cfb-7eadb0d418e5"});
            it["status"]["phase"] = "Lost".into();
        });
        assert_eq!(examine(&running), []);
    }
    running.setup.controllers = listing([deployment()]);
    let [stopped] = examine(&running).try_into().unwrap();
    assert!(
        stopped.object.ends_with("shop/data") && stopped.fix.contains("mover.enabled: true"),
        "{stopped:?}"
    );
}

#[test]
fn the_attachment_of_a_mover_is_not_stray() {
    let mut moving = installation();
    let movers = json!({
        "metadata": {"name": "move-target", "labels": {mark::MOVE: "29e01d9f-40e2-4019-9cfb-7eadb0d418e5"}},
        "spec": {"csi": {"driver": "storage.liqo.io", "volumeHandle": format!("v2:home:pvc-{UID}:1")}},
    });
    moving.storage.volumes = listing([volume(), real(), movers]);
    moving.attachments = listing([
        attachment("csi-2", "storage.liqo.io", "move-target", false),
        attachment("liqo-2", "real.example", "pvc-other", true),
    ]);
    assert_eq!(examine(&moving), []);
}

/// A volume in the cluster milan, whose twin has not met its pod.
fn remote_claim(it: &mut Installation) {
    it.storage.claims = claim_with(|it| {
        it["status"]["conditions"] = json!([{
            "type": mark::TWIN_READY, "status": "False", "reason": "TwinPending",
            "message": "the twin is bound when its pod arrives there",
        }]);
    });
    let mut volume = volume();
    volume["spec"]["csi"]["volumeHandle"] = format!("v1:milan:pvc-{UID}").into();
    it.storage.volumes = listing([volume]);
    it.storage.twins = Listing::default();
    it.attachments = Listing::default();
}

/// A claim of 2Ti that waits with its pod, and nodes that have 10Gi at most.
fn waiting_claim(it: &mut Installation) {
    let mut waiting = claim();
    waiting["spec"]["volumeName"] = Value::Null;
    waiting["spec"]["resources"]["requests"]["storage"] = "2Ti".into();
    waiting["status"]["phase"] = "Pending".into();
    it.storage.claims = listing([waiting]);
    it.capacities = listing(["1Gi", "10Gi"].map(|size| {
        json!({
            "metadata": {"name": size, "namespace": "liqo-csi"}, "storageClassName": "liqo",
            "nodeTopology": {}, "capacity": "1Ti", "maximumVolumeSize": size,
        })
    }));
    it.storage.consumers = listing([json!({
        "metadata": {"namespace": "shop", "name": "web-0"},
        "spec": {"containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
    })]);
    (it.storage.volumes, it.storage.twins) = (Listing::default(), Listing::default());
    it.attachments = Listing::default();
}

#[test]
fn imports_that_have_not_ended_are_reported() {
    assert_found(&[
        (
            "import not complete",
            |it| import(it, &json!({mark::ADOPT_FOR: "shop/old", mark::IMPORT: RECORD})),
            W,
            [
                "PersistentVolume imported",
                "shop/old is not complete",
                "import pvc shop/old --undo",
            ],
        ),
        (
            "undo not complete",
            |it| import(it, &json!({mark::IMPORT: RECORD})),
            W,
            [
                "PersistentVolume imported",
                "being undone",
                "import pvc shop/old --undo",
            ],
        ),
        (
            "import by another version",
            |it| import(it, &json!({mark::IMPORT: r#"{"version":9}"#})),
            E,
            ["PersistentVolume imported", "version 9", "began the import"],
        ),
    ]);
}

#[test]
fn volumes_are_checked() {
    assert_found(&[
        (
            "twin being deleted",
            |it| {
                it.storage.twins =
                    twin_with(|it| it["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
            },
            E,
            ["PersistentVolumeClaim shop/data", "TwinTerminating", "Retain"],
        ),
        (
            "twin that waits for its pod",
            remote_claim,
            W,
            [
                "PersistentVolumeClaim shop/data",
                "TwinPending: the twin is bound when",
                "",
            ],
        ),
        (
            "claim that is too large",
            waiting_claim,
            W,
            [
                "PersistentVolumeClaim shop/data",
                "web-0 waits for the scheduler",
                "in the class liqo is 10Gi",
            ],
        ),
        (
            "claim that no node can have",
            |it| {
                waiting_claim(it);
                it.capacities = listing([json!({
                    "metadata": {"name": "none", "namespace": "liqo-csi"}, "storageClassName": "liqo",
                    "nodeTopology": {}, "capacity": "0", "maximumVolumeSize": "0",
                })]);
            },
            W,
            [
                "PersistentVolumeClaim shop/data",
                "web-0 waits",
                "kubectl describe pvc",
            ],
        ),
        (
            "pod on twin",
            |it| {
                let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": UID}});
                it.storage_pods = listing([json!({
                    "metadata": {"namespace": "liqo-storage", "name": "thief"}, "spec": {"containers": [], "volumes": [volume]},
                })]);
            },
            E,
            ["Pod liqo-storage/thief", UID, "Delete the pod"],
        ),
        (
            "nested attachment alone",
            |it| it.attachments = listing([attachment("liqo-1", "real.example", "pvc-twin", true)]),
            W,
            ["VolumeAttachment liqo-1", "node one", "removes it"],
        ),
        (
            "attachment fails",
            |it| {
                let mut outer = attachment("csi-1", "storage.liqo.io", &format!("pvc-{UID}"), false);
                outer["status"] = json!({"attached": false, "attachError": {"message": "disk is away"}});
                it.attachments = listing([outer]);
            },
            E,
            ["VolumeAttachment csi-1", "disk is away", "attacher"],
        ),
        (
            "mount fails",
            |it| {
                it.failures = listing([json!({
                    "metadata": {"name": "e", "namespace": "shop"}, "involvedObject": {"namespace": "shop", "name": "web-0"},
                    "lastTimestamp": "2026-01-01T11:59:00Z",
                    "message": "driver name storage.liqo.io not found in the list of registered CSI drivers",
                })]);
            },
            W,
            [
                "Pod shop/web-0",
                "not found in the list",
                "not registered on that node",
            ],
        ),
    ]);
}

#[test]
fn volumes_that_a_move_has_left_are_reported() {
    assert_found(&[(
        "a move has left a volume in a remote cluster",
        |it| {
            it.orphaned_volumes = listing([json!({
                "metadata": {"name": "e", "namespace": "default"}, "involvedObject": {"name": "milan"},
                "lastTimestamp": "2026-01-01T11:59:00Z", "message": "nothing releases them: old",
            })]);
        },
        W,
        ["RemoteCluster milan", "nothing releases them: old", "data-of"],
    )]);
}
