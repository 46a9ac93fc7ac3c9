//! Volumes that are expanded or modified, and their classes.

use serde_json::json;

use super::*;
use crate::inspect::fixtures::claim_with;

/// Both classes of the installation, and whether they allow expansion.
fn expansion(installation: &mut Installation, ours_allows: bool, real_allows: bool) {
    let [mut ours, mut real] = classes();
    ours["allowVolumeExpansion"] = ours_allows.into();
    real["allowVolumeExpansion"] = real_allows.into();
    installation.storage.classes = listing([ours, real]);
    deployment_with(installation, |deployment| {
        let containers = deployment["spec"]["template"]["spec"]["containers"]
            .as_array_mut()
            .unwrap();
        containers.push(json!({"name": "csi-resizer", "image": "registry.example/csi-resizer:v2"}));
    });
}

/// `liqo-gold` with these parameters, and `gold` of the driver.
fn attributes(installation: &mut Installation, parameters: &Value, driver: &str) {
    installation.attributes_classes = listing([
        json!({"metadata": {"name": "liqo-gold"}, "driverName": "storage.liqo.io", "parameters": parameters}),
        json!({"metadata": {"name": "gold"}, "driverName": driver, "parameters": {"iops": "9"}}),
    ]);
}

/// The expansion of the claim to 2 GiB fails.
fn stuck(installation: &mut Installation, stage: &str, condition: &str, why: &str) {
    installation.storage.claims = claim_with(|claim| {
        claim["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
        claim["status"]["capacity"] = json!({"storage": "1Gi"});
        claim["status"]["allocatedResources"] = json!({"storage": "2Gi"});
        claim["status"]["allocatedResourceStatuses"] = json!({"storage": stage});
        claim["status"]["conditions"] = json!([{"type": condition, "status": "True", "message": why}]);
    });
}

fn unmodified(installation: &mut Installation, stage: &str) {
    installation.storage.claims = claim_with(|claim| {
        claim["status"]["modifyVolumeStatus"] =
            json!({"targetVolumeAttributesClassName": "liqo-gold", "status": stage});
        claim["status"]["conditions"] =
            json!([{"type": "ModifyVolumeError", "status": "True", "message": "no gold left"}]);
    });
}

fn failed_since(installation: &mut Installation, reason: &str, time: &str) {
    installation.storage.events = listing([json!({
        "metadata": {"name": "e", "namespace": "shop"}, "involvedObject": {"uid": UID},
        "reason": reason, "type": "Warning", "firstTimestamp": time, "lastTimestamp": "2026-01-01T11:59:59Z",
    })]);
}

#[test]
fn classes_are_checked() {
    assert_found(&[
        (
            "only the virtual class allows expansion",
            |it| expansion(it, true, false),
            W,
            [
                "StorageClass liqo",
                "the real class fast does not",
                "kubectl patch storageclass fast",
            ],
        ),
        (
            "only the real class allows expansion",
            |it| expansion(it, false, true),
            N,
            [
                "StorageClass liqo",
                "the real class fast does",
                "kubectl patch storageclass liqo",
            ],
        ),
        (
            "no such attributes class",
            |it| {
                attributes(
                    it,
                    &json!({"realVolumeAttributesClass": "bronze"}),
                    "real.example",
                );
            },
            W,
            ["VolumeAttributesClass liqo-gold", "bronze", "Create the"],
        ),
        (
            "an attributes class of another driver",
            |it| attributes(it, &json!({"realVolumeAttributesClass": "gold"}), "other.example"),
            W,
            [
                "VolumeAttributesClass liqo-gold",
                "other.example",
                "create it again",
            ],
        ),
        (
            "an attributes class of ours",
            |it| {
                attributes(
                    it,
                    &json!({"realVolumeAttributesClass": "liqo-gold"}),
                    "real.example",
                );
            },
            W,
            [
                "VolumeAttributesClass liqo-gold",
                "virtual itself",
                "create it again",
            ],
        ),
        (
            "attributes that are not ours",
            |it| attributes(it, &json!({"iops": "9"}), "real.example"),
            E,
            ["VolumeAttributesClass liqo-gold", "\"iops\"", "create it again"],
        ),
        (
            "no attributes",
            |it| attributes(it, &Value::Null, "real.example"),
            E,
            [
                "VolumeAttributesClass liqo-gold",
                "does not name the attributes class",
                "create it again",
            ],
        ),
    ]);
}

#[test]
fn claims_that_cannot_change_are_found() {
    assert_found(&[
        (
            "never to this size",
            |it| {
                stuck(
                    it,
                    "ControllerResizeInfeasible",
                    "ControllerResizeError",
                    "the disk is full.",
                );
            },
            E,
            [
                "PersistentVolumeClaim shop/data",
                "It cannot be expanded from 1Gi to 2Gi: the disk is full.",
                "any above 1Gi",
            ],
        ),
        (
            "in use",
            |it| {
                let words = "rpc error: code = FailedPrecondition desc = mounted";
                stuck(it, "ControllerResizeInProgress", "ControllerResizeError", words);
            },
            W,
            ["PersistentVolumeClaim shop/data", "mounted", "Stop the pods"],
        ),
        (
            "for long",
            |it| {
                stuck(
                    it,
                    "ControllerResizeInProgress",
                    "ControllerResizeError",
                    "no luck",
                );
                failed_since(it, "VolumeResizeFailed", "2026-01-01T11:00:00Z");
            },
            W,
            [
                "PersistentVolumeClaim shop/data",
                "no luck",
                "retried each minute",
            ],
        ),
        (
            "on its node",
            |it| {
                stuck(
                    it,
                    "NodeResizeInfeasible",
                    "NodeResizeError",
                    "no such file system",
                );
            },
            E,
            [
                "PersistentVolumeClaim shop/data",
                "no such file system",
                "events of its pod",
            ],
        ),
        (
            "attributes",
            |it| unmodified(it, "Infeasible"),
            E,
            [
                "PersistentVolumeClaim shop/data",
                "the attributes of liqo-gold: no gold left.",
                "another VolumeAttributesClass",
            ],
        ),
    ]);
}

#[test]
fn valid_changes_and_recent_failures_cause_no_finding() {
    let good: &[Break] = &[
        |it| expansion(it, true, true),
        |it| attributes(it, &json!({"realVolumeAttributesClass": "gold"}), "real.example"),
        |it| {
            // The real class may exist, although it cannot be listed.
            attributes(it, &json!({"realVolumeAttributesClass": "gold"}), "real.example");
            it.storage.classes = Listing::refused("forbidden");
        },
        |it| {
            stuck(
                it,
                "ControllerResizeInProgress",
                "ControllerResizeError",
                "no luck",
            );
            failed_since(it, "VolumeResizeFailed", "2026-01-01T11:58:00Z");
        },
        |it| {
            unmodified(it, "InProgress");
            failed_since(it, "VolumeModifyFailed", "2026-01-01T11:58:00Z");
        },
    ];
    for change in good {
        let mut installation = installation();
        change(&mut installation);
        assert_eq!(examine(&installation), []);
    }
}
