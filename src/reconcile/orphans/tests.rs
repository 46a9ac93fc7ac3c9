//! Which twins are collected, which are reported, and which are let be.

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{
        events::Events,
        testing::{Act, FakeApi, Fault},
    },
    volume::DRIVER_NAME,
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
    };
    api.put(
        TWIN,
        json!({
            "metadata": {
                "labels": marks.labels(),
                "annotations": marks.annotations(),
                "finalizers": [crate::twin::FINALIZER],
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

/// A round when everything looks as it looks for this long.
async fn round_after(api: &FakeApi, looked: Duration) -> Result<(), ApiError> {
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    round_with(&home, &watched, looked).await
}

async fn round_with(home: &Cluster, watched: &Watched, looked: Duration) -> Result<(), ApiError> {
    let settings = Settings {
        namespace: "ours".into(),
        identity: "a".into(),
        grace: Duration::from_mins(10),
        allowed_classes: BTreeSet::new(),
    };
    let metrics = Metrics::default();
    let reports = Reports::new(Events::new(home.client().clone()));
    let registry = Registry::default();
    let mut orphans = Orphans::new(home, &registry, watched, reports, &settings, &metrics);
    orphans.round().await?;
    for (_, since) in orphans.since.values_mut() {
        *since -= looked;
    }
    orphans.round().await
}

const LONG: Duration = Duration::from_mins(11);

fn events(api: &FakeApi) -> Vec<Value> {
    api.store().below("/apis/events.k8s.io/v1/namespaces/")
}

#[tokio::test]
async fn what_nobody_was_given_is_collected_after_the_grace_period() {
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

#[tokio::test]
async fn a_twin_with_claim_or_volume_stays() {
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

#[tokio::test]
async fn what_is_read_live_decides() {
    for put in [put_volume as fn(&FakeApi), |api| put_claim(api, UID)] {
        let api = FakeApi::start().await;
        put_twin(&api, false, true);
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        // From now on the views see nothing new.
        for kind in ["persistentvolumes", "persistentvolumeclaims"] {
            api.fault(Fault::new("GET", kind, Act::Gone));
        }
        api.cut_watches();
        put(&api);
        round_with(&home, &watched, LONG).await.unwrap();
        assert!(api.object(TWIN).is_some());
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_not_collected() {
    for path in ["persistentvolumes/", "namespaces/shop/"] {
        let api = FakeApi::start().await;
        put_twin(&api, false, true);
        api.fault(Fault::new("GET", path, Act::Refuse(403)));
        assert!(round_after(&api, LONG).await.is_err(), "{path}");
        assert!(api.object(TWIN).is_some(), "{path}");
    }
}

#[tokio::test]
async fn what_was_given_away_is_reported_and_left_alone() {
    let api = FakeApi::start().await;
    put_twin(&api, true, true);
    let before = api.object(TWIN);
    round_after(&api, LONG).await.unwrap();
    assert_eq!(api.object(TWIN), before);
    assert_eq!(events(&api)[0]["reason"], "OrphanedTwin");
    assert_eq!(events(&api)[0]["regarding"]["namespace"], "liqo-storage");
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
async fn who_deletes_a_reported_twin_is_not_held_up() {
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
