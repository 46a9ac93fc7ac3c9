//! The virtual classes and the `CSIDriver` objects.

use serde_json::json;

use super::*;

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn classes_are_checked() {
    assert_found(&[
        (
            "none of ours",
            |it| it.storage.classes = Listing::default(),
            E,
            ["storage.liqo.io", "no claim can use it", "storageClasses"],
        ),
        (
            "unknown parameter",
            |it| class_with(it, |class| class["parameters"]["color"] = "red".into()),
            E,
            ["StorageClass liqo", "color", "create"],
        ),
        (
            "real class missing",
            |it| {
                class_with(it, |class| {
                    class["parameters"]["realStorageClass"] = "gone".into();
                });
            },
            E,
            [
                "StorageClass liqo",
                "does not exist",
                "Create the storage class gone",
            ],
        ),
        (
            "loop",
            |it| {
                class_with(it, |class| {
                    class["parameters"]["realStorageClass"] = "liqo".into();
                });
            },
            E,
            ["StorageClass liqo", "virtual itself", "another driver"],
        ),
        (
            "template of the namespace",
            |it| {
                let [ours, mut real] = classes();
                real["parameters"] = json!({"pathPattern": "${.PVC.namespace}/${.PVC.name}"});
                it.storage.classes = listing([ours, real]);
            },
            E,
            [
                "StorageClass liqo",
                "pathPattern expands the namespace",
                "class like fast",
            ],
        ),
        (
            "template of annotations",
            |it| {
                let [mut ours, mut real] = classes();
                ours["parameters"]["allowSharedNamespace"] = "true".into();
                real["parameters"] = json!({"subDir": "${pvc.annotations['dir']}"});
                it.storage.classes = listing([ours, real]);
            },
            E,
            [
                "StorageClass liqo",
                "subDir expands annotations",
                "class like fast",
            ],
        ),
        (
            "no default",
            |it| class_with(it, |class| class["parameters"] = json!({})),
            E,
            ["StorageClass liqo", "no default", "realStorageClass"],
        ),
        (
            "two defaults",
            |it| {
                let default = |name: &str, second: i64| {
                    json!({"metadata": {"name": name, "creationTimestamp": format!("2026-01-01T00:00:0{second}Z"),
                        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "x"})
                };
                let mut ours = classes()[0].clone();
                ours["parameters"] = json!({});
                it.storage.classes = listing([ours, default("old", 1), default("new", 2)]);
            },
            W,
            ["StorageClass liqo", "The newest is used, new", "only one class"],
        ),
        (
            "virtual default beside a real one",
            |it| {
                let mark = json!({"storageclass.kubernetes.io/is-default-class": "true"});
                let [mut ours, mut real] = classes();
                ours["metadata"]["annotations"] = mark.clone();
                real["metadata"]["annotations"] = mark;
                it.storage.classes = listing([ours, real]);
            },
            W,
            ["StorageClass liqo", "as well as fast", "remove the default mark"],
        ),
        (
            "allow-list",
            |it| {
                deployment_with(it, |it| {
                    container(it, 0)["args"] = json!(["controller", "--allowed-classes=fast,gone"]);
                });
            },
            W,
            ["StorageClass gone", "does not exist", "allowedRealStorageClasses"],
        ),
        (
            "immediate",
            |it| class_with(it, |class| class["volumeBindingMode"] = "Immediate".into()),
            N,
            ["StorageClass liqo", "Immediate", "WaitForFirstConsumer"],
        ),
        (
            "foreign topology",
            |it| {
                class_with(it, |class| {
                    class["allowedTopologies"] =
                        json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]);
                });
            },
            E,
            ["StorageClass liqo", "zone", "topology.storage.liqo.io/node"],
        ),
        (
            "expansion without resizer",
            |it| class_with(it, |class| class["allowVolumeExpansion"] = true.into()),
            W,
            ["StorageClass liqo", "csi-resizer", "controller.resizer.enabled"],
        ),
        (
            "class of snapshots without snapshotter",
            |it| {
                let class = json!({"metadata": {"name": "liqo"}, "driver": "storage.liqo.io", "deletionPolicy": "Delete"});
                it.snapshots.classes = listing([class]);
            },
            W,
            [
                "VolumeSnapshotClass liqo",
                "csi-snapshotter",
                "controller.snapshotter.enabled",
            ],
        ),
        (
            "taken by Liqo",
            |it| class_with(it, |class| class["provisioner"] = "liqo.io/storage".into()),
            E,
            [
                "StorageClass liqo",
                "its provisioner is liqo.io/storage",
                "storage.enabled=false",
            ],
        ),
        (
            "namespace shared with Liqo",
            |it| {
                let labels = json!({"liqo.io/storage-provisioner": "true"});
                it.namespace = listing([json!({"metadata": {"name": "liqo-storage", "labels": labels}})]);
            },
            N,
            ["Namespace liqo-storage", "Liqo", "storageNamespace"],
        ),
    ]);
}

#[test]
fn driver_objects_are_checked() {
    assert_found(&[
        (
            "missing",
            |it| it.drivers = Listing::default(),
            E,
            ["CSIDriver storage.liqo.io", "does not exist", "helm"],
        ),
        (
            "no attachment",
            |it| drivers_with(it, |ours, _| ours["attachRequired"] = false.into()),
            E,
            ["CSIDriver storage.liqo.io", "attachRequired", "delete the object"],
        ),
        (
            "only ephemeral",
            |it| drivers_with(it, |ours, _| ours["volumeLifecycleModes"] = json!(["Ephemeral"])),
            E,
            ["CSIDriver storage.liqo.io", "Persistent", "delete the object"],
        ),
        (
            "no capacity",
            |it| drivers_with(it, |ours, _| ours["storageCapacity"] = false.into()),
            W,
            ["CSIDriver storage.liqo.io", "storageCapacity", "helm"],
        ),
        (
            "no pod info",
            |it| drivers_with(it, |ours, _| ours["podInfoOnMount"] = false.into()),
            W,
            ["CSIDriver storage.liqo.io", "podInfoOnMount", "helm"],
        ),
        (
            "fsGroup on what cannot",
            |it| drivers_with(it, |_, real| real["fsGroupPolicy"] = "None".into()),
            W,
            ["StorageClass liqo", "does not support that", "Leave fsType empty"],
        ),
        (
            "fsGroup not on shared volumes",
            |it| drivers_with(it, |_, real| real["fsGroupPolicy"] = "File".into()),
            N,
            ["StorageClass liqo", "one node only", "csiDriver.fsGroupPolicy"],
        ),
        (
            "fsGroup never",
            |it| drivers_with(it, |ours, _| ours["fsGroupPolicy"] = "None".into()),
            W,
            ["StorageClass liqo", "does not change the group", "fsType"],
        ),
        (
            "fsGroup without fsType",
            |it| {
                class_with(it, |class| {
                    class["parameters"] = json!({"realStorageClass": "fast"});
                });
            },
            W,
            ["StorageClass liqo", "does not change the group", "Set fsType"],
        ),
        (
            "tokens",
            |it| {
                drivers_with(it, |_, real| {
                    real["tokenRequests"] = json!([{"audience": "vault"}]);
                });
            },
            W,
            [
                "CSIDriver storage.liqo.io",
                "\"vault\"",
                "csiDriver.tokenRequests",
            ],
        ),
        (
            "republish",
            |it| drivers_with(it, |_, real| real["requiresRepublish"] = true.into()),
            W,
            ["CSIDriver storage.liqo.io", "refreshed", "requiresRepublish"],
        ),
        (
            "labels",
            |it| drivers_with(it, |ours, _| ours["seLinuxMount"] = true.into()),
            E,
            ["CSIDriver storage.liqo.io", "label", "seLinuxMount"],
        ),
    ]);
}

#[test]
fn a_class_for_another_cluster_needs_no_real_class_here() {
    let with_topology = |cluster: &str, real: &str| {
        let mut installation = installation();
        class_with(&mut installation, |class| {
            class["parameters"]["realStorageClass"] = real.into();
            class["allowedTopologies"] = json!([{"matchLabelExpressions": [
                {"key": "topology.storage.liqo.io/cluster", "values": [cluster]},
            ]}]);
        });
        installation
    };
    assert_eq!(examine(&with_topology("milan", "there")), []);
    assert_eq!(examine(&with_topology("home", "there")).len(), 1);
    // The class of this cluster with the same name is another one.
    let pairs = |cluster| super::super::classes::pairs(&with_topology(cluster, "fast")).len();
    assert_eq!((pairs("milan"), pairs("home")), (0, 1));
}
