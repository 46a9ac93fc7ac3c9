//! Fakes of the controllers of a real cluster: a provisioner that binds twins and reclaims their PVs, and
//! an attacher.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ATTACHMENTS, TWINS, VOLUMES};
use crate::cluster::testing::FakeApi;

/// The behaviour of the fake controllers.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Real {
    /// They work.
    Works,
    /// They do nothing.
    Idle,
    /// They remove the selected node from twins.
    SaysElsewhere,
}

/// Runs the fakes of controller manager, real provisioner and real attacher.
pub(super) async fn controllers(api: Arc<FakeApi>, real: Real) {
    let mut changes = api.store().changes();
    loop {
        for twin in api.store().below(TWINS) {
            reconcile_twin(&api, &twin, real);
        }
        for volume in api.store().below(VOLUMES) {
            reconcile_volume(&api, &volume);
        }
        for attachment in api.store().below(ATTACHMENTS) {
            reconcile_attachment(&api, &attachment);
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn path(collection: &str, object: &Value) -> String {
    format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap())
}

pub(super) fn reconcile_twin(api: &FakeApi, twin: &Value, real: Real) {
    const NODE: &str = "volume.kubernetes.io/selected-node";
    let annotations = &twin["metadata"]["annotations"];
    let settled = twin["status"]["phase"] == "Bound" || !twin["metadata"]["deletionTimestamp"].is_null();
    if settled {
        return;
    }
    if real == Real::SaysElsewhere {
        if !annotations[NODE].is_null() {
            api.change(&path(TWINS, twin), |twin| {
                twin["metadata"]["annotations"]
                    .as_object_mut()
                    .unwrap()
                    .remove(NODE);
            });
        }
        return;
    }
    let reserved = api
        .store()
        .below(VOLUMES)
        .into_iter()
        .find(|volume| volume["spec"]["claimRef"]["name"] == twin["metadata"]["name"]);
    let volume = match (reserved, twin["spec"]["storageClassName"].as_str()) {
        (Some(mut volume), _) => {
            volume["spec"]["claimRef"]["uid"] = twin["metadata"]["uid"].clone();
            volume
        }
        (None, Some("static")) => return,
        (None, _) => real_volume(twin),
    };
    let name = volume["metadata"]["name"].clone();
    let capacity = volume["spec"]["capacity"].clone();
    api.put(&path(VOLUMES, &volume), volume);
    api.change(&path(TWINS, twin), |twin| {
        twin["spec"]["volumeName"] = name;
        twin["status"] = json!({"phase": "Bound", "capacity": capacity});
    });
}

fn real_volume(twin: &Value) -> Value {
    let uid = twin["metadata"]["uid"].as_str().unwrap();
    let claim = json!({"namespace": "liqo-storage", "name": twin["metadata"]["name"], "uid": uid});
    let node = &twin["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
    let affinity = match node.as_str() {
        Some(node) => on(node),
        None => Value::Null,
    };
    json!({
        "metadata": {"name": format!("pvc-{uid}")},
        "spec": {
            "claimRef": claim,
            "capacity": twin["spec"]["resources"]["requests"],
            "accessModes": twin["spec"]["accessModes"],
            "volumeMode": twin["spec"]["volumeMode"],
            "persistentVolumeReclaimPolicy": "Delete",
            "nodeAffinity": affinity,
            "csi": {"driver": "real.test", "volumeHandle": "h-1", "volumeAttributes": {"a": "b"}},
        },
        "status": {"phase": "Bound"},
    })
}

pub(super) fn on(node: &str) -> Value {
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}})
}

fn reconcile_volume(api: &FakeApi, volume: &Value) {
    let claim = &volume["spec"]["claimRef"];
    let bound = !claim["uid"].is_null() && claim["namespace"] == "liqo-storage";
    let twin = claim["name"]
        .as_str()
        .map(|name| api.object(&format!("{TWINS}/{name}")));
    if !bound || twin != Some(None) || volume["status"]["phase"] == "Released" {
        return;
    }
    if volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete" {
        api.remove(&path(VOLUMES, volume));
    } else {
        api.change(&path(VOLUMES, volume), |volume| {
            volume["status"]["phase"] = "Released".into();
        });
    }
}

fn reconcile_attachment(api: &FakeApi, attachment: &Value) {
    let path = path(ATTACHMENTS, attachment);
    if !attachment["metadata"]["deletionTimestamp"].is_null() {
        api.remove(&path);
    } else if attachment["status"]["attached"] != true {
        api.change(&path, |attachment| {
            attachment["metadata"]["finalizers"] = json!(["external-attacher/real"]);
            attachment["status"] = json!({"attached": true, "attachmentMetadata": {"lun": "7"}});
        });
    }
}
