//! Volumes whose twins are healthy, and what happens to the others.

mod due;
mod elsewhere;
mod imported;
mod moved;
mod released;
mod sizes;

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{
        events::Events,
        testing::{Act, FakeApi, Fault, Warnings},
    },
    volume::{Carried, ClaimMark, DRIVER_NAME, Epoch, Marks, VolumeName, mark},
};

const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
const TWIN: &str =
    "/api/v1/namespaces/liqo-storage/persistentvolumeclaims/0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
const VOLUME: &str = "/api/v1/persistentvolumes/pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
const REAL: &str = "/api/v1/persistentvolumes/real";

/// A claim with its volume, twin and real PV, all healthy.
fn world(api: &FakeApi) {
    let volume = format!("pvc-{UID}");
    let marks = Marks {
        home: "home".parse().unwrap(),
        volume: VolumeName::from_request(&volume),
        claim: Some(ClaimMark {
            namespace: "shop".into(),
            name: "data".into(),
            uid: UID.into(),
        }),
        request_name: volume.clone(),
        fingerprint: None,
        handed_over: true,
        epoch: Epoch::NEVER_MOVED,
    };
    let labels = [("app".to_owned(), "shop".to_owned())].into();
    let (twin_labels, annotations) = Carried::of(&labels, &std::collections::BTreeMap::new()).with(&marks);
    let twin = api.put(
        TWIN,
        json!({
            "metadata": {
                "labels": twin_labels, "annotations": annotations, "finalizers": [crate::volume::mark::TWIN_FINALIZER],
            },
            "spec": {"storageClassName": "fast", "volumeName": "real"},
            "status": {"phase": "Bound"},
        }),
    );
    api.put(
        CLAIM,
        json!({
            "metadata": {
                "uid": UID, "labels": labels,
                "annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER_NAME},
            },
            "spec": {"storageClassName": "liqo", "accessModes": ["ReadWriteOnce"], "volumeName": volume},
            "status": {"phase": "Bound"},
        }),
    );
    api.put(
        VOLUME,
        json!({
            "spec": {
                "csi": {"driver": DRIVER_NAME, "volumeHandle": format!("v1:home:{volume}")},
                "claimRef": {"namespace": "shop", "name": "data", "uid": UID},
                "persistentVolumeReclaimPolicy": "Delete",
            },
            "status": {"phase": "Bound"},
        }),
    );
    api.put(
        REAL,
        json!({
            "spec": {
                "csi": {"driver": "real.example", "volumeHandle": "h"},
                "capacity": {"storage": "5Gi"},
                "storageClassName": "fast",
                "volumeMode": "Filesystem",
                "claimRef": {"namespace": "liqo-storage", "name": UID, "uid": twin["metadata"]["uid"]},
                "persistentVolumeReclaimPolicy": "Delete",
            },
            "status": {"phase": "Bound"},
        }),
    );
}

async fn round(api: &FakeApi) -> Result<(), ApiError> {
    let mut reports = None;
    round_after(api, &mut reports).await
}

/// A round with the reports of the rounds before.
async fn round_after(api: &FakeApi, reports: &mut Option<Reports>) -> Result<(), ApiError> {
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let metrics = Metrics::default();
    let known = reports
        .take()
        .unwrap_or_else(|| Reports::new(Events::new(home.client().clone())));
    let registry = Registry::default();
    let mut health = Health::new(&home, &registry, &watched, known, &metrics, home.id().clone());
    let outcome = health.round().await;
    *reports = Some(health.reports);
    outcome
}

fn delete(api: &FakeApi, path: &str) {
    let deleting = api.change(path, |object| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
    assert!(deleting);
}

fn policy(api: &FakeApi, path: &str) -> Value {
    api.object(path).unwrap()["spec"]["persistentVolumeReclaimPolicy"].clone()
}

fn told(api: &FakeApi) -> Vec<String> {
    let events = api
        .store()
        .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
    events
        .iter()
        .map(|event| event["reason"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_failure_to_check_a_volume_is_logged_when_it_begins_and_when_it_changes() {
    let api = FakeApi::start().await;
    world(&api);
    api.change(CLAIM, |claim| claim["metadata"]["labels"]["tier"] = "gold".into());
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let (metrics, registry) = (Metrics::default(), Registry::default());
    let reports = Reports::new(Events::new(home.client().clone()));
    let mut health = Health::new(&home, &registry, &watched, reports, &metrics, home.id().clone());
    let log = Warnings::record();
    let logged = || {
        let lines = log.lines();
        let of_check = lines
            .iter()
            .filter(|line| line.contains("failed to check a volume"));
        of_check.count()
    };
    for (code, lines) in [(403, 1), (422, 2)] {
        api.fault(Fault::new("PATCH", TWIN, Act::Refuse(code)));
        for _ in 0..3 {
            health.due = DueVolumes::new(&watched);
            health.round().await.unwrap();
            assert_eq!(logged(), lines, "{:?}", log.lines());
        }
        api.heal();
    }
    health.due = DueVolumes::new(&watched);
    health.round().await.unwrap();
    assert_eq!(logged(), 2, "it has ended: {:?}", log.lines());
}

#[tokio::test]
async fn a_healthy_volume_gets_one_write() {
    let api = FakeApi::start().await;
    world(&api);
    api.change(CLAIM, |claim| {
        claim["status"]["conditions"] = json!([{"type": "Resizing", "status": "True"}]);
    });
    round(&api).await.unwrap();
    let conditions = api.object(CLAIM).unwrap()["status"]["conditions"].clone();
    assert_eq!(conditions[0]["type"], "Resizing");
    assert_eq!(conditions[1]["reason"], "TwinBound");
    let message = format!("the twin liqo-storage/{UID} is bound");
    assert_eq!(conditions[1]["message"], json!(message));

    let writes = api.writes();
    round(&api).await.unwrap();
    assert_eq!(api.writes(), writes);
}

#[tokio::test]
async fn a_claim_bound_by_name_gets_the_condition_too() {
    let api = FakeApi::start().await;
    world(&api);
    api.change(CLAIM, |claim| claim["metadata"]["annotations"] = json!({}));
    round(&api).await.unwrap();
    let conditions = api.object(CLAIM).unwrap()["status"]["conditions"].clone();
    assert_eq!(conditions[0]["reason"], "TwinBound");
}

/// A retained PV whose `claimRef` was removed: Kubernetes gives it to a claim that fits, and marks that.
#[tokio::test]
async fn a_claim_that_kubernetes_has_bound_to_the_volume_of_another_gets_the_condition_too() {
    let api = FakeApi::start().await;
    world(&api);
    api.change(CLAIM, |claim| {
        claim["metadata"]["uid"] = "another".into();
        claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bound-by-controller": "yes"});
    });
    api.change(VOLUME, |volume| {
        volume["spec"]["claimRef"]["uid"] = "another".into();
    });
    round(&api).await.unwrap();
    let conditions = api.object(CLAIM).unwrap()["status"]["conditions"].clone();
    assert_eq!(conditions[0]["reason"], "TwinBound");
}

#[tokio::test]
async fn a_condition_keeps_its_age_while_its_status_is_the_same() {
    let api = FakeApi::start().await;
    world(&api);
    round(&api).await.unwrap();
    let condition = |api: &FakeApi| api.object(CLAIM).unwrap()["status"]["conditions"][0].clone();
    let since = json!("2026-01-01T00:00:00Z");
    api.change(CLAIM, |claim| {
        claim["status"]["conditions"][0]["lastTransitionTime"] = since.clone();
        claim["status"]["conditions"][0]["message"] = "something else".into();
    });
    round(&api).await.unwrap();
    assert_eq!(condition(&api)["reason"], "TwinBound");
    assert_ne!(condition(&api)["message"], "something else");
    assert_eq!(condition(&api)["lastTransitionTime"], since);

    api.remove(TWIN);
    api.remove(REAL);
    round(&api).await.unwrap();
    assert_eq!(condition(&api)["reason"], "TwinVanished");
    assert_ne!(condition(&api)["lastTransitionTime"], since);
}

#[tokio::test]
async fn retain_is_enforced_on_the_twins_volume() {
    let api = FakeApi::start().await;
    world(&api);
    api.change(VOLUME, |volume| {
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
    round(&api).await.unwrap();
    assert_eq!(policy(&api, REAL), "Retain");
    let writes = api.writes();
    round(&api).await.unwrap();
    assert_eq!(api.writes(), writes);
}

/// Another client changes the PV between each read and the write.
fn settles(api: &FakeApi, times: u32) {
    for time in 0..times {
        api.before("PATCH", REAL, move |store| {
            let mut real = store.get(REAL).unwrap();
            real["metadata"]["annotations"]["note"] = format!("settled {time}").into();
            store.put(REAL, real);
        });
    }
}

#[tokio::test]
async fn a_changed_volume_is_read_live_before_it_is_retained() {
    for twin_goes in [false, true] {
        let api = FakeApi::start().await;
        world(&api);
        if twin_goes {
            delete(&api, TWIN);
        } else {
            set_policy(&api, VOLUME, "Retain");
        }
        // More often than the loop reads it again at once.
        settles(&api, if twin_goes { 3 } else { 1 });
        round(&api).await.unwrap();
        assert_eq!(
            policy(&api, REAL),
            "Delete",
            "it was written on what was not looked at"
        );
        assert!(
            api.object(TWIN).is_some(),
            "the twin is let go, and its data is not safe"
        );
        round(&api).await.unwrap();
        assert_eq!(policy(&api, REAL), "Retain");
        assert_eq!(api.object(TWIN).is_none(), twin_goes);
    }
}

#[tokio::test]
async fn a_recovery_retries_at_once_after_a_conflict() {
    let api = FakeApi::start().await;
    world(&api);
    let mut reports = None;
    delete(&api, TWIN);
    settles(&api, 2);
    round_after(&api, &mut reports).await.unwrap();
    assert_eq!(policy(&api, REAL), "Retain");
    assert!(api.object(TWIN).is_none());
    kubernetes_binds(&api);

    settles(&api, 2);
    round_after(&api, &mut reports).await.unwrap();
    let (twin, real) = (api.object(TWIN).unwrap(), api.object(REAL).unwrap());
    assert_eq!(real["spec"]["claimRef"]["uid"], twin["metadata"]["uid"]);
}

fn set_policy(api: &FakeApi, volume: &str, policy: &str) {
    api.change(volume, |volume| {
        volume["spec"]["persistentVolumeReclaimPolicy"] = policy.into();
    });
}

#[tokio::test]
async fn reverting_retain_reverts_it_on_the_twins_volume() {
    let api = FakeApi::start().await;
    world(&api);
    set_policy(&api, VOLUME, "Retain");
    round(&api).await.unwrap();
    assert_eq!(policy(&api, REAL), "Retain");
    // Another client changes it at the same time.
    api.fault(Fault::new("PATCH", REAL, Act::Refuse(409)).times(1));
    set_policy(&api, VOLUME, "Delete");
    round(&api).await.unwrap();
    assert_eq!(policy(&api, REAL), "Retain");
    round(&api).await.unwrap();
    assert_eq!(policy(&api, REAL), "Delete", "or its data would stay for ever");
    let writes = api.writes();
    round(&api).await.unwrap();
    assert_eq!(api.writes(), writes);
}

#[tokio::test]
async fn a_retain_policy_set_by_others_is_not_reverted() {
    let api = FakeApi::start().await;
    world(&api);
    set_policy(&api, REAL, "Retain");
    set_policy(&api, VOLUME, "Retain");
    round(&api).await.unwrap();
    set_policy(&api, VOLUME, "Delete");
    round(&api).await.unwrap();
    assert_eq!(policy(&api, REAL), "Retain");
    assert_eq!(api.writes(), 1, "but for the condition of the claim");
}

/// The user chooses Retain, and the twin's data is rescued: it is retained, and still deleted if the user
/// chooses Delete again.
#[tokio::test]
async fn a_second_pv_of_the_same_data_does_not_affect_the_first() {
    let api = FakeApi::start().await;
    world(&api);
    let further = "/api/v1/persistentvolumes/reads-along";
    let mut second = api.object(VOLUME).unwrap();
    second["metadata"] = json!({});
    second["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    second["spec"]["claimRef"] = json!({"namespace": "else", "name": "other", "uid": "u"});
    api.put(further, second);
    round(&api).await.unwrap();
    let writes = api.writes();
    round(&api).await.unwrap();
    assert_eq!((policy(&api, REAL), api.writes()), ("Delete".into(), writes));
    // Without the first volume, the second one decides.
    api.remove(VOLUME);
    round(&api).await.unwrap();
    assert_eq!(policy(&api, REAL), "Retain");
}

/// The claim of the first one was deleted, and its PV is Released.
#[tokio::test]
async fn a_second_pv_of_the_same_data_is_maintained_if_only_it_has_a_claim() {
    let api = FakeApi::start().await;
    world(&api);
    let (mut claim, mut second) = (api.object(CLAIM).unwrap(), api.object(VOLUME).unwrap());
    claim["metadata"]["uid"] = "another".into();
    claim["spec"]["volumeName"] = "second".into();
    api.put("/api/v1/namespaces/shop/persistentvolumeclaims/rescued", claim);
    second["metadata"] = json!({});
    second["spec"]["claimRef"] = json!({"namespace": "shop", "name": "rescued", "uid": "another"});
    api.put("/api/v1/persistentvolumes/second", second);
    api.remove(CLAIM);
    set_policy(&api, VOLUME, "Retain");
    api.change(VOLUME, |volume| volume["status"]["phase"] = "Released".into());
    let mut reports = None;
    round_after(&api, &mut reports).await.unwrap();
    delete(&api, TWIN);
    for _ in 0..3 {
        round_after(&api, &mut reports).await.unwrap();
        kubernetes_binds(&api);
    }
    let twin = api.object(TWIN).expect("the twin was not created again");
    assert_eq!(twin["spec"]["volumeName"], "real");
    assert!(
        told(&api).contains(&"TwinTerminating".to_owned()),
        "{:?}",
        told(&api)
    );
}

#[tokio::test]
async fn a_recovery_keeps_the_replaced_policy() {
    let api = FakeApi::start().await;
    world(&api);
    let mut reports = None;
    set_policy(&api, VOLUME, "Retain");
    round_after(&api, &mut reports).await.unwrap();
    delete(&api, TWIN);
    for _ in 0..3 {
        round_after(&api, &mut reports).await.unwrap();
        kubernetes_binds(&api);
    }
    assert_eq!(policy(&api, REAL), "Retain");
    set_policy(&api, VOLUME, "Delete");
    round_after(&api, &mut reports).await.unwrap();
    assert_eq!(policy(&api, REAL), "Delete");
}

/// A retained PV that its administrator bound to another claim, or that was restored from a backup: the
/// recreated twin is still that of its volume.
#[tokio::test]
async fn a_volume_of_another_claim_is_recovered_for_that_claim() {
    let api = FakeApi::start().await;
    world(&api);
    let mut reports = None;
    api.change(VOLUME, |volume| {
        volume["spec"]["claimRef"]["uid"] = "another".into();
    });
    api.change(CLAIM, |claim| claim["metadata"]["uid"] = "another".into());
    delete(&api, TWIN);
    for _ in 0..3 {
        round_after(&api, &mut reports).await.unwrap();
        kubernetes_binds(&api);
    }
    let twin = api.object(TWIN).unwrap();
    assert_eq!(twin["metadata"]["annotations"][mark::CLAIM_UID], UID);
    assert_eq!(twin["status"]["phase"], "Bound");
    assert!(told(&api).contains(&"TwinRecovered".to_owned()));
    let home = api.cluster().await;
    let site = Site::local(
        &home,
        &VolumeName::from_request(&format!("pvc-{UID}")),
        Epoch::NEVER_MOVED,
    );
    let found = site.twins().get(site.name()).await.unwrap().unwrap();
    let owner = site.owner(&VolumeName::from_request(&format!("pvc-{UID}")));
    owner
        .recognise(
            found.metadata.labels.as_ref().unwrap(),
            found.metadata.annotations.as_ref().unwrap(),
        )
        .expect("or it can be neither published nor deleted");
}

#[tokio::test]
async fn labels_follow_the_claim() {
    let api = FakeApi::start().await;
    world(&api);
    api.change(CLAIM, |claim| {
        claim["metadata"]["labels"] = json!({"tier": "gold", "storage.liqo.io/volume": "stolen"});
        claim["metadata"]["annotations"]["note"] = "hi".into();
    });
    round(&api).await.unwrap();
    let twin = api.object(TWIN).unwrap();
    assert_eq!(twin["metadata"]["labels"]["tier"], "gold");
    assert!(twin["metadata"]["labels"]["app"].is_null());
    assert_eq!(
        twin["metadata"]["labels"]["storage.liqo.io/volume"],
        format!("pvc-{UID}")
    );
    assert_eq!(twin["metadata"]["annotations"]["note"], "hi");
    let writes = api.writes();
    round(&api).await.unwrap();
    assert_eq!(api.writes(), writes);
}

/// What Kubernetes does with the PV of a deleted or a new claim.
fn kubernetes_binds(api: &FakeApi) {
    let uid = api.object(TWIN).map(|twin| twin["metadata"]["uid"].clone());
    api.change(REAL, |real| match uid {
        Some(uid) => {
            real["spec"]["claimRef"]["uid"] = uid;
            real["status"]["phase"] = "Bound".into();
        }
        None => real["status"]["phase"] = "Released".into(),
    });
    api.change(TWIN, |twin| twin["status"] = json!({"phase": "Bound"}));
}

#[tokio::test]
async fn a_deleted_twin_is_recreated_with_its_data() {
    let api = FakeApi::start().await;
    world(&api);
    let mut reports = None;
    let old = api.object(TWIN).unwrap()["metadata"]["uid"].clone();
    delete(&api, TWIN);
    round_after(&api, &mut reports).await.unwrap();
    assert_eq!(
        policy(&api, REAL),
        "Retain",
        "the data is safe before the twin goes"
    );
    assert!(api.object(TWIN).is_none());
    assert_eq!(told(&api), ["TwinTerminating"]);
    kubernetes_binds(&api);

    round_after(&api, &mut reports).await.unwrap();
    let twin = api.object(TWIN).unwrap();
    assert_ne!(twin["metadata"]["uid"], old);
    assert_eq!(twin["spec"]["volumeName"], "real");
    assert_eq!(twin["spec"]["storageClassName"], "fast");
    assert_eq!(twin["spec"]["resources"]["requests"]["storage"], "5Gi");
    assert_eq!(twin["metadata"]["labels"]["app"], "shop");
    assert_eq!(twin["metadata"]["annotations"][mark::HANDED_OVER], "true");
    assert_eq!(
        api.object(REAL).unwrap()["spec"]["claimRef"]["uid"],
        twin["metadata"]["uid"]
    );
    kubernetes_binds(&api);

    round_after(&api, &mut reports).await.unwrap();
    assert_eq!(policy(&api, REAL), "Delete", "as before");
    assert!(api.object(REAL).unwrap()["metadata"]["annotations"][mark::POLICY_BEFORE].is_null());
    let mut all = told(&api);
    all.sort();
    assert_eq!(all, ["TwinRecovered", "TwinTerminating"]);
    let writes = api.writes();
    round_after(&api, &mut reports).await.unwrap();
    assert_eq!(api.writes(), writes);
}

#[tokio::test]
async fn retained_data_always_names_its_volume() {
    let api = FakeApi::start().await;
    world(&api);
    let mut reports = None;
    let holder = || api.object(REAL).unwrap()["spec"]["claimRef"]["uid"].clone();
    let old = holder();
    delete(&api, TWIN);
    round_after(&api, &mut reports).await.unwrap();
    kubernetes_binds(&api);

    // The namespace of the twin does not exist: no twin, and the PV stays reserved for it.
    api.fault(Fault::new("POST", "persistentvolumeclaims", Act::Refuse(404)).times(1));
    round_after(&api, &mut reports).await.unwrap();
    assert_eq!(holder(), old);

    // The twin is created, and then the driver dies.
    api.fault(Fault::new("PATCH", "persistentvolumes/real", Act::Refuse(403)).times(1));
    round_after(&api, &mut reports).await.unwrap();
    assert!(api.object(TWIN).is_some());
    assert_eq!(holder(), old);
    round_after(&api, &mut reports).await.unwrap();
    assert_eq!(holder(), api.object(TWIN).unwrap()["metadata"]["uid"]);
    assert!(!told(&api).contains(&"TwinRecovered".to_owned()), "not bound yet");
    kubernetes_binds(&api);
    round_after(&api, &mut reports).await.unwrap();
    assert!(told(&api).contains(&"TwinRecovered".to_owned()));
    assert_eq!(policy(&api, REAL), "Delete");
}

#[tokio::test]
async fn the_twin_is_kept_while_its_data_is_not_safe() {
    let api = FakeApi::start().await;
    world(&api);
    delete(&api, TWIN);
    api.fault(Fault::new("PATCH", "persistentvolumes/real", Act::Refuse(403)));
    round(&api).await.unwrap();
    assert!(api.object(TWIN).is_some());
    assert_eq!(
        told(&api),
        ["TwinTerminating"],
        "the user hears of it all the same"
    );
}

#[tokio::test]
async fn a_vanished_twin_without_data_is_never_replaced() {
    let api = FakeApi::start().await;
    world(&api);
    api.remove(TWIN);
    api.change(REAL, |real| real["status"]["phase"] = "Released".into());
    round(&api).await.unwrap();
    assert!(
        api.object(TWIN).is_none(),
        "its PV is not retained, so it is being deleted"
    );
    api.remove(REAL);
    round(&api).await.unwrap();
    assert!(api.object(TWIN).is_none());
    assert_eq!(told(&api)[0], "TwinVanished");
}

#[tokio::test]
async fn a_volume_deleted_by_the_user_is_not_recovered() {
    let ways: [fn(&FakeApi); 3] = [
        |api| delete(api, CLAIM),
        |api| {
            api.remove(CLAIM);
            api.change(VOLUME, |volume| volume["status"]["phase"] = "Released".into());
        },
        |api| {
            let others = json!({"metadata": {"uid": "another"}, "spec": {}});
            api.put(CLAIM, others);
        },
    ];
    for way in ways {
        let api = FakeApi::start().await;
        world(&api);
        way(&api);
        delete(&api, TWIN);
        round(&api).await.unwrap();
        assert_eq!(policy(&api, REAL), "Delete");
        assert_eq!(told(&api), [""; 0]);
    }
}

/// Kubernetes keeps the PV as long as its claim, and pods run with it.
#[tokio::test]
async fn a_volume_whose_pv_is_deleted_before_its_claim_is_recovered() {
    let api = FakeApi::start().await;
    world(&api);
    delete(&api, VOLUME);
    delete(&api, TWIN);
    round(&api).await.unwrap();
    assert_eq!(policy(&api, REAL), "Retain");
    assert_eq!(told(&api), ["TwinTerminating"]);

    api.remove(CLAIM);
    api.change(REAL, |real| {
        real["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
    });
    round(&api).await.unwrap();
    assert_eq!(policy(&api, REAL), "Delete", "DeleteVolume takes care of it");
}

#[tokio::test]
async fn a_foreign_object_in_the_twins_place_is_left_alone() {
    let api = FakeApi::start().await;
    world(&api);
    let foreign = json!({"metadata": {"uid": "x", "finalizers": ["x/y"]}, "spec": {}});
    api.put(TWIN, foreign.clone());
    round(&api).await.unwrap();
    assert_eq!(
        api.object(TWIN).unwrap()["metadata"]["finalizers"],
        foreign["metadata"]["finalizers"]
    );
    assert_eq!(policy(&api, REAL), "Delete");
    assert_eq!(told(&api), ["TwinVanished"], "the volume has no twin");
}
