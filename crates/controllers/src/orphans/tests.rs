//! Which twins are deleted, which are reported, and which are kept.

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{
        Rights,
        events::Events,
        testing::{Act, FakeApi, Fault},
    },
    fleet::Link,
    placement::Declared,
    volume::{DRIVER_NAME, Epoch, VolumeName, mark},
};

const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
const TWIN: &str =
    "/api/v1/namespaces/liqo-storage/persistentvolumeclaims/0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
const VOLUME: &str = "/api/v1/persistentvolumes/pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

fn put_twin(api: &FakeApi, handed_over: bool, with_claim: bool) {
    let marks = Marks {
        home: "home".parse().unwrap(),
        volume: VolumeName::from_request(&format!("pvc-{UID}")),
        claim: with_claim.then(|| ClaimMark {
            namespace: "shop".into(),
            name: "data".into(),
            uid: UID.into(),
        }),
        request_name: format!("pvc-{UID}"),
        fingerprint: None,
        handed_over,
        epoch: Epoch::NEVER_MOVED,
    };
    api.put(
        TWIN,
        json!({
            "metadata": {
                "labels": marks.labels(),
                "annotations": marks.annotations(),
                "finalizers": [crate::volume::mark::TWIN_FINALIZER],
            },
            "spec": {"storageClassName": "real"},
            "status": {"phase": "Pending"},
        }),
    );
}

fn put_claim(api: &FakeApi, uid: &str) {
    let annotations = json!({"volume.kubernetes.io/storage-provisioner": DRIVER_NAME});
    api.put(
        CLAIM,
        json!({"metadata": {"uid": uid, "annotations": annotations}, "spec": {}}),
    );
}

fn put_volume(api: &FakeApi) {
    let handle = format!("v1:home:pvc-{UID}");
    api.put(
        VOLUME,
        json!({"spec": {"csi": {"driver": DRIVER_NAME, "volumeHandle": handle}}}),
    );
}

/// A round in which everything has been in its state for this long.
async fn round_after(api: &FakeApi, looked: Duration) -> Result<(), ApiError> {
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    round_with(&home, &watched, &Registry::default(), looked).await
}

async fn round_with(
    home: &Cluster,
    watched: &Watched,
    registry: &Registry,
    looked: Duration,
) -> Result<(), ApiError> {
    let (settings, metrics) = (settings(), Metrics::default());
    let reports = Reports::new(Events::new(home.client().clone()));
    // A twin in another cluster is in `milan`.
    let elsewhere = registry.all().first().map(|remote| remote.id.clone());
    let cluster = elsewhere.unwrap_or_else(|| home.id().clone());
    let mut orphans = Orphans::new(home, registry, watched, reports, &settings, &metrics, cluster);
    orphans.round().await?;
    for (_, since) in orphans.since.values_mut() {
        *since -= looked;
    }
    orphans.round().await
}

fn settings() -> Settings {
    Settings::for_test(Duration::from_mins(10))
}

const LONG: Duration = Duration::from_mins(11);

fn events(api: &FakeApi) -> Vec<Value> {
    api.store().below("/apis/events.k8s.io/v1/namespaces/")
}

#[tokio::test]
async fn a_twin_never_handed_over_is_deleted_after_the_grace_period() {
    let api = FakeApi::start().await;
    put_twin(&api, false, true);
    round_after(&api, Duration::from_mins(9)).await.unwrap();
    assert!(api.object(TWIN).is_some());
    round_after(&api, LONG).await.unwrap();
    assert!(api.object(TWIN).is_none());
}

#[tokio::test]
async fn a_claim_of_the_same_name_is_another_claim() {
    let api = FakeApi::start().await;
    put_twin(&api, false, true);
    put_claim(&api, "another");
    round_after(&api, LONG).await.unwrap();
    assert!(api.object(TWIN).is_none());
}

/// While the twin took long, for example a backup tool bound the claim to a restored volume.
#[tokio::test]
async fn a_twin_is_deleted_whose_claim_has_another_volume() {
    let api = FakeApi::start().await;
    put_twin(&api, false, true);
    put_claim(&api, UID);
    api.change(CLAIM, |claim| {
        claim["spec"]["volumeName"] = "restored".into();
    });
    round_after(&api, LONG).await.unwrap();
    assert!(api.object(TWIN).is_none());
}

#[tokio::test]
async fn a_twin_with_a_claim_or_volume_is_kept() {
    let api = FakeApi::start().await;
    put_twin(&api, false, true);
    put_claim(&api, UID);
    round_after(&api, LONG).await.unwrap();
    assert!(api.object(TWIN).is_some());

    api.remove(CLAIM);
    put_volume(&api);
    round_after(&api, LONG).await.unwrap();
    assert!(api.object(TWIN).is_some());
}

/// The PV of the volume is in another cluster, or of another epoch, while a move creates its twin here,
/// reads it, or retains it.
#[tokio::test]
async fn twins_of_a_move_are_neither_deleted_nor_reported() {
    const MOVE: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";
    for (handed_over, mark) in [
        (false, None),
        (true, Some(format!("moving:{MOVE}:1"))),
        (true, Some(format!("superseded:{MOVE}:1"))),
        (true, Some("?".to_owned())),
    ] {
        for handle in [format!("v1:away:pvc-{UID}"), format!("v2:home:pvc-{UID}:1")] {
            let api = FakeApi::start().await;
            put_twin(&api, handed_over, true);
            put_volume(&api);
            api.put(
                "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves/m",
                json!({"metadata": {"uid": MOVE}}),
            );
            api.change(VOLUME, |volume| {
                volume["spec"]["csi"]["volumeHandle"] = handle.as_str().into();
            });
            api.change(TWIN, |twin| match &mark {
                Some(mark) => twin["metadata"]["annotations"][mark::SOURCE_OF] = mark.as_str().into(),
                None => twin["metadata"]["labels"][mark::MOVE] = MOVE.into(),
            });
            round_after(&api, LONG).await.unwrap();
            assert!(api.object(TWIN).is_some());
            // Another client deletes it.
            api.change(TWIN, |twin| {
                twin["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            });
            round_after(&api, LONG).await.unwrap();
            assert!(api.object(TWIN).is_some());
            assert!(events(&api).is_empty());
        }
    }
}

/// Nothing else releases the retained source. In a remote cluster it costs money and has the name
/// of the claim.
#[tokio::test]
async fn twins_of_a_deleted_move_are_reported_and_may_be_deleted() {
    for handed_over in [true, false] {
        let api = FakeApi::start().await;
        put_dying(&api);
        if !handed_over {
            api.change(TWIN, |twin| {
                let annotations = twin["metadata"]["annotations"].as_object_mut().unwrap();
                annotations.remove(mark::HANDED_OVER);
            });
        }
        put_volume(&api);
        api.change(VOLUME, |volume| {
            volume["spec"]["csi"]["volumeHandle"] = format!("v1:away:pvc-{UID}").into();
        });
        api.change(TWIN, |twin| {
            twin["metadata"]["annotations"][mark::SOURCE_OF] =
                "superseded:6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222:1".into();
            twin["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("deletionTimestamp");
        });
        round_after(&api, LONG).await.unwrap();
        assert!(api.object(TWIN).is_some(), "it may be all that is left");
        let told = events(&api);
        assert_eq!(told.len(), 1);
        assert!(
            told[0]["note"].as_str().unwrap().contains("source of a move"),
            "{told:#?}"
        );
        // Its data is retained when another client deletes it.
        api.change(TWIN, |twin| {
            twin["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
        round_after(&api, LONG).await.unwrap();
        assert!(api.object(TWIN).is_none());
        let real = api.object(REAL).unwrap();
        assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    }
}

#[tokio::test]
async fn a_twin_of_another_epoch_never_handed_over_is_deleted() {
    let api = FakeApi::start().await;
    put_twin(&api, false, true);
    put_claim(&api, UID);
    put_volume(&api);
    api.change(VOLUME, |volume| {
        volume["spec"]["csi"]["volumeHandle"] = format!("v2:home:pvc-{UID}:1").into();
    });
    round_after(&api, LONG).await.unwrap();
    assert!(api.object(TWIN).is_none());
}

/// After a downgrade: only the version that created the volume knows where its data is.
#[tokio::test]
async fn the_twin_of_a_volume_of_another_version_is_neither_deleted_nor_reported() {
    for handed_over in [false, true] {
        let api = FakeApi::start().await;
        put_twin(&api, handed_over, true);
        put_volume(&api);
        api.change(VOLUME, |volume| {
            volume["spec"]["csi"]["volumeHandle"] = format!("v3:away:pvc-{UID}:1").into();
        });
        round_after(&api, LONG).await.unwrap();
        assert!(api.object(TWIN).is_some());
        assert_eq!(events(&api).len(), 0);
    }
}

#[tokio::test]
async fn a_live_read_is_required_before_deletion() {
    for put in [put_volume as fn(&FakeApi), |api| put_claim(api, UID)] {
        let api = FakeApi::start().await;
        put_twin(&api, false, true);
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        // From now on the views show no changes.
        for kind in ["persistentvolumes", "persistentvolumeclaims"] {
            api.fault(Fault::new("GET", kind, Act::Gone));
        }
        api.cut_watches();
        put(&api);
        round_with(&home, &watched, &Registry::default(), LONG)
            .await
            .unwrap();
        assert!(api.object(TWIN).is_some());
    }
}

#[tokio::test]
async fn an_unreadable_twin_is_not_deleted() {
    for path in ["persistentvolumes/", "namespaces/shop/"] {
        let api = FakeApi::start().await;
        put_twin(&api, false, true);
        api.fault(Fault::new("GET", path, Act::Refuse(403)));
        assert!(round_after(&api, LONG).await.is_err(), "{path}");
        assert!(api.object(TWIN).is_some(), "{path}");
    }
}

#[tokio::test]
async fn a_handed_over_twin_is_reported_and_not_deleted() {
    let api = FakeApi::start().await;
    put_twin(&api, true, true);
    let before = api.object(TWIN);
    round_after(&api, LONG).await.unwrap();
    assert_eq!(api.object(TWIN), before);
    assert_eq!(events(&api)[0]["reason"], "OrphanedTwin");
    assert_eq!(events(&api)[0]["regarding"]["namespace"], "liqo-storage");
}

#[tokio::test]
async fn no_twin_is_reported_while_pvs_cannot_be_watched() {
    let api = FakeApi::start().await;
    put_twin(&api, true, true);
    put_claim(&api, UID);
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    api.fault(Fault::new("GET", "/persistentvolumes", Act::RefuseWatch(500)));
    api.cut_watches();
    while watched.volumes.outdated_since().is_none() {
        tokio::task::yield_now().await;
    }
    put_volume(&api);
    round_with(&home, &watched, &Registry::default(), LONG)
        .await
        .unwrap();
    assert_eq!(events(&api).len(), 0);
}

#[tokio::test]
async fn a_twin_without_a_claim_is_reported_and_left_alone() {
    let api = FakeApi::start().await;
    put_twin(&api, false, false);
    round_after(&api, LONG).await.unwrap();
    assert!(api.object(TWIN).is_some());
    assert_eq!(events(&api).len(), 1);
}

#[tokio::test]
async fn deleting_a_reported_twin_is_not_delayed() {
    for (handed_over, with_claim) in [(true, true), (true, false), (false, false)] {
        let api = FakeApi::start().await;
        put_twin(&api, handed_over, with_claim);
        api.change(TWIN, |twin| {
            twin["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
        round_after(&api, Duration::from_mins(1)).await.unwrap();
        assert!(api.object(TWIN).is_none(), "{handed_over} {with_claim}");
    }
}

const REAL: &str = "/api/v1/persistentvolumes/real";

/// A bound twin that was handed over by a cluster with the same id, whose volume is unknown here, and
/// that another client is deleting: after home was restored from a backup, or with two home clusters of
/// one id.
fn put_dying(api: &FakeApi) {
    put_twin(api, true, true);
    api.change(TWIN, |twin| {
        twin["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        twin["spec"]["volumeName"] = "real".into();
        twin["status"]["phase"] = "Bound".into();
    });
    let twin = api.object(TWIN).unwrap();
    api.put(
        REAL,
        json!({
            "spec": {
                "csi": {"driver": "real.example", "volumeHandle": "h"},
                "claimRef": {"namespace": "liqo-storage", "name": UID, "uid": twin["metadata"]["uid"]},
                "persistentVolumeReclaimPolicy": "Delete",
            },
            "status": {"phase": "Bound"},
        }),
    );
}

/// A round of a home cluster that does not know the objects in the cluster `milan`.
async fn round_there(there: &FakeApi, rights: Rights) {
    let empty = FakeApi::start().await;
    let home = empty.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let registry = Registry::fixed([(Declared::plain("milan"), Link::up(there, rights).await)]);
    round_with(&home, &watched, &registry, LONG).await.unwrap();
}

/// The source of a move within one remote cluster has no twin any more.
#[tokio::test]
async fn volumes_of_a_deleted_move_within_a_cluster_are_reported() {
    const MOVE: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";
    for (data_of, claim, has_move, is_reported) in [
        ("home", "gone", false, true),
        ("home", "gone", true, false),
        ("home", "twin", false, false),
        ("home2", "gone", false, false),
    ] {
        let (api, there) = (FakeApi::start().await, FakeApi::start().await);
        api.put(
            "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan",
            json!({"spec": {}}),
        );
        if has_move {
            api.put(
                "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves/m",
                json!({"metadata": {"uid": MOVE}}),
            );
        }
        put_twin(&there, true, true);
        there.change(TWIN, |twin| twin["metadata"]["uid"] = "twin".into());
        there.put(
            REAL,
            json!({
                "metadata": {"annotations": {
                    mark::SOURCE_OF: format!("superseded:{MOVE}:1"),
                    mark::DATA_OF: format!("{data_of}/pvc-{UID}"),
                }},
                "spec": {
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": "shop", "name": "data", "uid": claim},
                },
            }),
        );
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        home.views().remote_clusters.complete().await;
        let registry = Registry::fixed([(Declared::plain("milan"), Link::up(&there, Rights::ALL).await)]);
        round_with(&home, &watched, &registry, Duration::ZERO)
            .await
            .unwrap();
        let told = events(&api);
        assert_eq!(told.len(), usize::from(is_reported), "{told:#?}");
        assert!(
            told.iter()
                .all(|it| it["reason"] == "OrphanedVolume" && it["regarding"]["name"] == "milan")
        );
    }
}

#[tokio::test]
async fn orphans_keep_their_age_while_their_cluster_is_unreachable() {
    let there = FakeApi::start().await;
    put_twin(&there, false, true);
    let empty = FakeApi::start().await;
    let home = empty.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let reachable = Registry::fixed([(Declared::plain("milan"), Link::up(&there, Rights::ALL).await)]);
    let unreachable = Registry::fixed([(Declared::plain("milan"), Link::Unreachable("timeout".into()))]);
    let (settings, metrics) = (settings(), Metrics::default());
    let reports = Reports::new(Events::new(home.client().clone()));
    let mut orphans = Orphans::new(
        &home,
        &reachable,
        &watched,
        reports,
        &settings,
        &metrics,
        "milan".parse().unwrap(),
    );
    orphans.round().await.unwrap();
    for (_, since) in orphans.since.values_mut() {
        *since -= LONG;
    }
    orphans.registry = &unreachable;
    orphans.round().await.unwrap();
    orphans.registry = &reachable;
    orphans.round().await.unwrap();
    assert!(
        there.object(TWIN).is_none(),
        "it was orphaned for the grace period"
    );
}

#[tokio::test]
async fn the_data_of_a_handed_over_twin_is_retained_when_it_is_deleted() {
    let there = FakeApi::start().await;
    put_dying(&there);
    round_there(&there, Rights::ALL).await;
    assert!(there.object(TWIN).is_none(), "its deletion is not blocked");
    let real = there.object(REAL).unwrap();
    assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    // The cluster that knows the volume finds the PV, and restores its policy.
    let annotations = &real["metadata"]["annotations"];
    assert_eq!(annotations[mark::POLICY_BEFORE], "Delete");
    assert_eq!(annotations[mark::DATA_OF], format!("home/pvc-{UID}"));

    let api = FakeApi::start().await;
    put_dying(&api);
    round_after(&api, LONG).await.unwrap();
    assert!(api.object(TWIN).is_none());
    let real = api.object(REAL).unwrap();
    assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Retain");
}

/// The namespace of the twin is being deleted, and the right to delete was lost with a Role in it.
#[tokio::test]
async fn the_finalizer_of_a_deleted_twin_is_removed_without_the_right_to_delete() {
    let there = FakeApi::start().await;
    put_dying(&there);
    there.fault(Fault::new("DELETE", "persistentvolumeclaims", Act::Refuse(403)).times(100));
    round_there(&there, Rights::ALL).await;
    assert!(there.object(TWIN).is_none());
}

/// The report says that deleting it retains the data.
#[tokio::test]
async fn the_data_of_every_reported_twin_is_retained_when_it_is_deleted() {
    for (handed_over, with_claim, claim_lives) in [
        (true, true, true),
        (true, true, false),
        (true, false, false),
        (false, false, false),
    ] {
        let api = FakeApi::start().await;
        put_dying(&api);
        let dying = api.object(TWIN).unwrap();
        put_twin(&api, handed_over, with_claim);
        api.change(TWIN, |twin| {
            for part in ["/metadata/deletionTimestamp", "/metadata/uid", "/spec", "/status"] {
                let (parent, name) = part.rsplit_once('/').unwrap();
                twin.pointer_mut(parent).unwrap()[name] = dying.pointer(part).cloned().unwrap();
            }
        });
        if claim_lives {
            put_claim(&api, UID);
        }
        round_after(&api, LONG).await.unwrap();
        let case = (handed_over, with_claim, claim_lives);
        assert!(api.object(TWIN).is_none(), "{case:?}");
        let real = api.object(REAL).unwrap();
        assert_eq!(
            real["spec"]["persistentVolumeReclaimPolicy"], "Retain",
            "{case:?}"
        );
    }
}

#[tokio::test]
async fn a_handed_over_twin_keeps_its_finalizer_while_its_data_cannot_be_retained() {
    let without = Rights {
        volume_changes: false,
        ..Rights::ALL
    };
    let there = FakeApi::start().await;
    put_dying(&there);
    round_there(&there, without).await;
    assert!(there.object(TWIN).is_some());

    there.fault(Fault::new("PATCH", "persistentvolumes/real", Act::Refuse(403)));
    round_there(&there, Rights::ALL).await;
    assert!(there.object(TWIN).is_some());

    there.heal();
    round_there(&there, Rights::ALL).await;
    assert!(there.object(TWIN).is_none());
    let real = there.object(REAL).unwrap();
    assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Retain");
}
