//! Expanding a volume, with a fake of the real driver's resizer.

use serde_json::json;

use super::*;
use crate::{
    cluster::testing::{Act, Fault},
    placement::RealRefusal,
    volume::mark,
};

const REAL_CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses/real";

/// A volume of one GiB whose real class allows expansion.
async fn world() -> World {
    let world = World::new(Real::Works).await;
    world
        .api
        .change(REAL_CLASS, |class| class["allowVolumeExpansion"] = true.into());
    let views = world.home.views();
    let allows = || {
        views
            .classes
            .get("real")
            .is_some_and(|class| class.allows_expansion)
    };
    let mut version = views.classes.version();
    while !allows() {
        version.changed().await.unwrap();
    }
    let made = world.create().await.unwrap();
    world.bind_claim(&made);
    world
}

impl World {
    async fn expand(&self, gib: i64) -> Result<Expanded, ChangeError> {
        let wanted = SizeRange::new(gib * GIB, 0).unwrap();
        expand(&self.home, &Registry::default(), &self.id(), wanted, self.until()).await
    }

    fn requested(&self) -> String {
        let twin = self.twin().unwrap();
        twin["spec"]["resources"]["requests"]["storage"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Has the resizer of the real driver write this status whenever the twin requests `gib`.
    fn resizer(&self, gib: i64, status: Value) {
        let api = Arc::clone(&self.api);
        let asked = format!("{gib}Gi");
        tokio::spawn(async move {
            let mut changes = api.store().changes();
            loop {
                let twin = api.object(&twin_path()).unwrap();
                if twin["spec"]["resources"]["requests"]["storage"] == asked.as_str() {
                    api.change(&twin_path(), |twin| merge(&mut twin["status"], &status));
                    return;
                }
                changes.changed().await.unwrap();
            }
        });
    }

    /// Sets the capacity of the twin's PV.
    fn real_is(&self, gib: i64) {
        let name = self.twin().unwrap()["spec"]["volumeName"]
            .as_str()
            .unwrap()
            .to_owned();
        self.api.change(&format!("{VOLUMES}/{name}"), |real| {
            real["spec"]["capacity"]["storage"] = format!("{gib}Gi").into();
        });
    }

    /// Sets the capacity of the claim and its PV.
    fn claim_has(&self, gib: u64) {
        let size = json!({"storage": format!("{gib}Gi")});
        self.api.change(&format!("{VOLUMES}/pvc-{UID}"), |volume| {
            volume["spec"]["capacity"] = size.clone();
        });
        self.api.change(CLAIM, |claim| {
            claim["spec"]["resources"] = json!({"requests": size});
            claim["status"]["capacity"] = size.clone();
        });
    }

    fn claim_says(&self, status: &Value) {
        self.api
            .change(CLAIM, |claim| merge(&mut claim["status"], status));
    }
}

pub(super) fn merge(into: &mut Value, from: &Value) {
    for (key, value) in from.as_object().unwrap() {
        into[key] = value.clone();
    }
}

fn pending_on_node(gib: i64) -> Value {
    json!({
        "allocatedResources": {"storage": format!("{gib}Gi")},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [
            {"type": "FileSystemResizePending", "status": "True"},
            {"type": "Someone'sOwn", "status": "True"},
        ],
    })
}

fn failed(stage: &str, words: &str) -> Value {
    json!({
        "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": stage},
        "conditions": [{"type": "ControllerResizeError", "status": "True", "message": words}],
    })
}

#[tokio::test]
async fn a_volume_has_the_size_that_its_real_driver_reports() {
    let world = world().await;
    // Real drivers round up.
    world.real_is(4);
    world.resizer(3, json!({"capacity": {"storage": "3Gi"}}));
    let expanded = world.expand(3).await.unwrap();
    assert_eq!((expanded.bytes, expanded.on_node), (4 << 30, false));
    assert_eq!(world.requested(), "3Gi");

    let writes = world.api.writes();
    assert_eq!(world.expand(2).await.unwrap(), expanded);
    assert_eq!(world.api.writes(), writes, "nothing is asked for twice");
}

/// The target of a move is created once, with the size that the claim had then.
#[tokio::test]
async fn a_claim_that_is_being_moved_grows_when_the_move_has_ended() {
    const THE_MOVE: &str = "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves/m";
    let uid = "6d0b8f2e-6a3c-4f5e-9a64-0d2f5f2a7b11";
    let world = world().await;
    world.api.put(THE_MOVE, json!({"metadata": {"uid": uid}}));
    world.api.change(CLAIM, |claim| {
        claim["metadata"]["annotations"][mark::MOVE] = uid.into();
    });
    let error = world.expand(2).await.unwrap_err();
    assert!(error.to_string().contains("is being moved"), "{error}");
    assert_eq!(world.requested(), "1Gi");
    // An expansion that began before the lock continues.
    world.api.change(&twin_path(), |twin| {
        twin["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
    });
    world.resizer(2, json!({"capacity": {"storage": "2Gi"}}));
    world.real_is(2);
    world.expand(2).await.unwrap();
    // The lock of a deleted move does not count.
    world.api.remove(THE_MOVE);
    world.resizer(3, json!({"capacity": {"storage": "3Gi"}}));
    world.real_is(3);
    world.expand(3).await.unwrap();
}

#[tokio::test]
async fn a_twin_that_no_pod_mounts_grows_again_and_again() {
    let world = world().await;
    world.resizer(2, pending_on_node(2));
    world.real_is(2);
    let expanded = world.expand(2).await.unwrap();
    assert_eq!((expanded.bytes, expanded.on_node), (2 << 30, true));
    // csi-resizer calls again before the node has expanded the file system.
    assert!(world.expand(2).await.unwrap().on_node);

    world.claim_says(&json!({"capacity": {"storage": "2Gi"}}));
    world.resizer(3, pending_on_node(3));
    world.real_is(3);
    let expanded = world.expand(3).await.unwrap();
    assert_eq!((expanded.bytes, expanded.on_node), (3 << 30, true));
    let status = world.twin().unwrap()["status"].clone();
    assert_eq!(status["capacity"]["storage"], "2Gi");
}

/// No expansion is in progress then, and csi-resizer must get the missing right as an error.
#[tokio::test]
async fn the_missing_right_to_cancel_an_expansion_is_reported() {
    let world = world().await;
    world.resizer(2, pending_on_node(2));
    world.real_is(2);
    world.expand(2).await.unwrap();
    world.claim_says(&json!({"capacity": {"storage": "2Gi"}}));
    let right = "cannot patch resource persistentvolumeclaims/status";
    let status = format!("{}/status", twin_path());
    world.api.fault(Fault::new("PATCH", &status, Act::Forbid(right)));
    let refused = world.expand(3).await.unwrap_err();
    assert!(matches!(refused, ChangeError::NotAccepted(_)), "{refused}");
    for part in [right, "cluster home"] {
        assert!(refused.to_string().contains(part), "{refused}");
    }
}

#[tokio::test]
async fn ending_an_expansion_keeps_the_conditions_of_others() {
    let world = world().await;
    world.api.change(&twin_path(), |twin| {
        merge(&mut twin["status"], &pending_on_node(2));
    });
    let site = Site::local(&world.home, &world.request.volume, Epoch::NEVER_MOVED);
    let virtual_pv = format!("pvc-{UID}");
    let finish = || finish_expansion(&site, &world.request.volume, &virtual_pv);
    world.claim_has(1);
    finish().await.unwrap();
    let has = world.twin().unwrap()["status"]["capacity"]["storage"].clone();
    assert_eq!(has, "1Gi");
    world.claim_has(2);
    finish().await.unwrap();
    let status = world.twin().unwrap()["status"].clone();
    assert_eq!(status["capacity"]["storage"], "2Gi");
    assert!(status["allocatedResourceStatuses"]["storage"].is_null());
    assert_eq!(
        status["conditions"],
        json!([{"type": "Someone'sOwn", "status": "True"}])
    );
}

#[tokio::test]
async fn a_request_that_was_too_much_is_lowered() {
    let world = world().await;
    world.resizer(2, failed("ControllerResizeInfeasible", "the disk is full"));
    let refused = world.expand(2).await.unwrap_err();
    assert!(refused.to_string().contains("the disk is full"), "{refused}");
    assert!(matches!(
        refused,
        ChangeError::NotGrown {
            refusal: RealRefusal::Infeasible(_),
            ..
        }
    ));

    // 1.5 GiB.
    let wanted = SizeRange::new(3 * GIB / 2, 0).unwrap();
    let api = Arc::clone(&world.api);
    let lower = async {
        let mut changes = api.store().changes();
        while world.requested() != "1536Mi" {
            changes.changed().await.unwrap();
        }
        let grown = json!({
            "capacity": {"storage": "1536Mi"}, "allocatedResources": {"storage": "1536Mi"},
            "allocatedResourceStatuses": null, "conditions": null,
        });
        api.change(&twin_path(), |twin| merge(&mut twin["status"], &grown));
    };
    let registry = Registry::default();
    let id = world.id();
    let (grown, ()) = tokio::join!(expand(&world.home, &registry, &id, wanted, world.until()), lower);
    assert!(!grown.unwrap().on_node);
}

#[tokio::test]
async fn errors_of_the_real_driver_get_their_grpc_code() {
    let world = world().await;
    let in_use = "rpc error: code = FailedPrecondition desc = it is mounted";
    world.resizer(2, failed("ControllerResizeInProgress", in_use));
    let refused = world.expand(2).await.unwrap_err();
    assert!(matches!(
        refused,
        ChangeError::NotGrown {
            refusal: RealRefusal::InUse(_),
            ..
        }
    ));
}

#[tokio::test]
async fn a_class_that_does_not_allow_expansion_is_named() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    world.bind_claim(&made);
    let refused = world.expand(2).await.unwrap_err();
    let expected =
        "the real class \"real\" in the cluster home does not allow expansion (allowVolumeExpansion)";
    assert_eq!(refused.to_string(), expected);
    assert_eq!(world.requested(), "1Gi");
}

#[tokio::test]
async fn a_volume_that_no_driver_grows_is_refused() {
    let world = world().await;
    let name = world.twin().unwrap()["spec"]["volumeName"]
        .as_str()
        .unwrap()
        .to_owned();
    world.api.change(&format!("{VOLUMES}/{name}"), |real| {
        real["spec"]["csi"] = Value::Null;
        real["spec"]["hostPath"] = json!({"path": "/data"});
    });
    let refused = world.expand(2).await.unwrap_err();
    assert!(matches!(refused, ChangeError::NotExpandable(_)), "{refused}");
    assert!(refused.to_string().contains(&name));
}

#[tokio::test]
async fn a_request_refused_by_a_quota_can_be_lowered() {
    let world = world().await;
    let fault = Fault::new("PATCH", &twin_path(), Act::Forbid("exceeded quota: storage")).times(1);
    world.api.fault(fault);
    let refused = world.expand(2).await.unwrap_err();
    assert!(matches!(refused, ChangeError::NotAccepted(_)));
    assert!(refused.to_string().contains("exceeded quota"), "{refused}");
}

#[tokio::test]
async fn a_volume_without_its_twin_is_not_found_or_unhealthy() {
    let world = world().await.impatient();
    let waiting = world.expand(2).await.unwrap_err();
    assert!(matches!(waiting, ChangeError::StillWaiting { .. }), "{waiting}");
    assert!(
        waiting.to_string().contains("not as large as 2Gi yet"),
        "{waiting}"
    );
    let world = world.patient();
    world.api.remove(&twin_path());
    let missing = world.expand(2).await.unwrap_err();
    assert!(matches!(missing, ChangeError::NotNow { .. }), "{missing}");
    world.api.remove(&format!("{VOLUMES}/pvc-{UID}"));
    let unknown = world.expand(2).await.unwrap_err();
    assert!(matches!(unknown, ChangeError::NoVolume(_)), "{unknown}");
}
