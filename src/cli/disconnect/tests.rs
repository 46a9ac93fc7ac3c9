use serde_json::json;

use super::*;
use crate::{
    cli::connect::tests::{Two, request as connecting},
    cluster::testing::{Act, Fault, Life},
};

const DECLARED: &str = "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan";
const SECRET: &str = "/api/v1/namespaces/liqo-csi/secrets/remote-milan";
const VOLUME: &str = "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

fn request() -> Request {
    Request {
        name: "milan".parse().unwrap(),
        remote_namespace: None,
        timeout: Duration::from_secs(10),
    }
}

async fn connected() -> Two {
    let two = Two::new().await;
    two.connect(&connecting()).await.unwrap();
    two
}

async fn take_off(two: &Two) -> Outcome<ExitCode> {
    let (home, remote) = two.ends().await;
    Box::pin(disconnect(&home, Some(&remote), &request())).await
}

async fn take_off_here(two: &Two) -> Outcome<ExitCode> {
    let (home, _) = two.ends().await;
    Box::pin(disconnect(&home, None, &request())).await
}

fn is_whole(two: &Two) -> bool {
    two.home.object(DECLARED).is_some() && two.home.object(SECRET).is_some() && !two.identity().is_empty()
}

#[tokio::test]
async fn disconnect_removes_the_objects_of_both_clusters() {
    let two = connected().await;
    assert_eq!(take_off(&two).await.unwrap(), ExitCode::SUCCESS);
    assert_eq!((two.home.object(DECLARED), two.home.object(SECRET)), (None, None));
    assert_eq!(two.identity(), Vec::<String>::new());
    let first = two
        .remote
        .requests()
        .into_iter()
        .find(|it| it.starts_with("DELETE"));
    assert!(
        first.unwrap().ends_with("/secrets/liqo-csi-session"),
        "tokens end first"
    );
    // Nothing is left to do.
    assert_eq!(take_off(&two).await.unwrap(), ExitCode::SUCCESS);
}

#[tokio::test]
async fn an_interrupted_run_is_completed_by_the_next() {
    let mut writes = 0;
    loop {
        let two = connected().await;
        let life = Life::of_writes(writes);
        two.home.live(Some(life.clone()));
        two.remote.live(Some(life.clone()));
        let died = tokio::select! {
            outcome = take_off(&two) => {
                outcome.unwrap();
                false
            }
            () = life.over() => true,
        };
        two.home.live(None);
        two.remote.live(None);
        assert_eq!(
            take_off(&two).await.unwrap(),
            ExitCode::SUCCESS,
            "after {writes} writes"
        );
        assert_eq!(
            (two.home.object(SECRET), two.identity()),
            (None, Vec::new()),
            "after {writes} writes"
        );
        if !died {
            break;
        }
        writes += 1;
    }
    assert!(writes > 20, "it died {writes} times");
}

#[tokio::test]
async fn remaining_objects_block_the_command() {
    let ours = json!({
        "app.kubernetes.io/managed-by": "storage.liqo.io", "storage.liqo.io/home-cluster": "home-uid",
        "storage.liqo.io/volume": VOLUME,
    });
    let cases = [
        (
            "/api/v1/namespaces/shop/persistentvolumeclaims/data",
            json!({"metadata": {"labels": ours}}),
        ),
        (
            "/api/v1/persistentvolumes/real-1",
            json!({
                "metadata": {"annotations": {"storage.liqo.io/data-of": "home-uid/pvc-1"}}, "status": {"phase": "Released"},
            }),
        ),
        (
            "/apis/snapshot.storage.k8s.io/v1/namespaces/shop/volumesnapshots/s",
            json!({"metadata": {"labels": ours}, "spec": {"source": {}}}),
        ),
        (
            "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/c",
            json!({"metadata": {"annotations": {"storage.liqo.io/data-of": "s1:milan:shop:x"}}, "spec": {}}),
        ),
        (
            "/api/v1/namespaces/shop-home",
            json!({"metadata": {"labels": {"fabric.storage.liqo.io/home": "home-uid"}}}),
        ),
    ];
    for (path, object) in cases {
        let two = connected().await;
        two.remote.put(path, object);
        let writes = two.remote.writes() + two.home.writes();
        assert_eq!(take_off(&two).await.unwrap(), ExitCode::from(REFUSED), "{path}");
        assert_eq!(two.remote.writes() + two.home.writes(), writes, "{path}");
        assert!(is_whole(&two), "{path}");
        two.remote.remove(path);
        assert_eq!(take_off(&two).await.unwrap(), ExitCode::SUCCESS, "{path}");
    }
}

#[tokio::test]
async fn objects_of_others_do_not_block_the_command() {
    let two = connected().await;
    let theirs = json!({
        "app.kubernetes.io/managed-by": "storage.liqo.io", "storage.liqo.io/home-cluster": "rome",
    });
    two.remote.put(
        "/api/v1/namespaces/shop/persistentvolumeclaims/data",
        json!({"metadata": {"labels": theirs}}),
    );
    two.remote.put(
        "/api/v1/persistentvolumes/real-1",
        json!({"metadata": {"annotations": {"storage.liqo.io/data-of": "rome/pvc-1"}}}),
    );
    assert_eq!(take_off(&two).await.unwrap(), ExitCode::SUCCESS);
}

#[tokio::test]
async fn a_volume_known_only_at_home_blocks_the_command() {
    for policy in ["Delete", "Retain"] {
        let two = connected().await;
        volume_in(&two, "milan", policy);
        assert_eq!(take_off(&two).await.unwrap(), ExitCode::from(REFUSED), "{policy}");
        assert!(is_whole(&two), "{policy}");
        // With --local-only the user's declaration overrides that.
        assert_eq!(take_off_here(&two).await.unwrap(), ExitCode::SUCCESS, "{policy}");
    }
}

/// Creates the `PersistentVolume` of a deleted claim at home, whose twin is in this cluster.
fn volume_in(two: &Two, cluster: &str, policy: &str) {
    let uid = VOLUME.trim_start_matches("pvc-");
    two.home.put(
        &format!("/api/v1/persistentvolumes/{VOLUME}"),
        json!({
            "spec": {
                "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": policy,
                "claimRef": {"namespace": "shop", "name": "data", "uid": uid},
                "csi": {"driver": "storage.liqo.io", "volumeHandle": format!("v1:{cluster}:{VOLUME}"), "volumeAttributes": {
                    "storage.liqo.io/twin-namespace": "shop", "storage.liqo.io/twin-name": "data",
                }},
            },
            "status": {"phase": "Released"},
        }),
    );
}

#[tokio::test]
async fn twins_under_another_id_of_the_cluster_do_not_block_the_command() {
    let two = connected().await;
    let labels = json!({
        "app.kubernetes.io/managed-by": "storage.liqo.io", "storage.liqo.io/home-cluster": "home-uid",
        "storage.liqo.io/volume": VOLUME,
    });
    two.remote.put(
        "/api/v1/namespaces/shop/persistentvolumeclaims/data",
        json!({"metadata": {"labels": labels}}),
    );
    volume_in(&two, "other", "Retain");
    assert_eq!(take_off(&two).await.unwrap(), ExitCode::SUCCESS);
}

#[tokio::test]
async fn moves_and_unreadable_objects_block_the_command() {
    let by = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";
    let target = json!({mark::MOVE: by});
    for (labels, annotations) in [
        (target, json!({mark::EPOCH: "2"})),
        (json!({}), json!({mark::SOURCE_OF: format!("superseded:{by}:2")})),
        (json!({}), json!({mark::SOURCE_OF: "what?"})),
    ] {
        let two = connected().await;
        volume_in(&two, "rome", "Retain");
        let mut object = json!({"metadata": {"annotations": annotations, "labels": {
            "app.kubernetes.io/managed-by": "storage.liqo.io", "storage.liqo.io/home-cluster": "home-uid",
            "storage.liqo.io/volume": VOLUME,
        }}});
        let all = object["metadata"]["labels"].as_object_mut().unwrap();
        all.extend(labels.as_object().unwrap().clone());
        two.remote
            .put("/api/v1/namespaces/shop/persistentvolumeclaims/data", object);
        assert_eq!(
            take_off(&two).await.unwrap(),
            ExitCode::from(REFUSED),
            "{annotations}"
        );
        assert!(is_whole(&two), "{annotations}");
    }
}

#[tokio::test]
async fn an_identity_used_by_another_remote_cluster_is_kept() {
    let two = connected().await;
    let (home, remote) = two.ends().await;
    let mistyped = Request {
        name: "mialn".parse().unwrap(),
        ..request()
    };
    assert_eq!(
        disconnect(&home, Some(&remote), &mistyped).await.unwrap(),
        ExitCode::SUCCESS
    );
    assert!(is_whole(&two), "it was not changed");
    // Not every Secret says which cluster it leads to.
    two.home
        .change(SECRET, |it| it["metadata"]["annotations"] = json!({}));
    Box::pin(disconnect(&home, Some(&remote), &mistyped))
        .await
        .unwrap();
    assert!(is_whole(&two), "it was not changed");
    assert_eq!(take_off(&two).await.unwrap(), ExitCode::SUCCESS);
    assert_eq!(two.identity(), Vec::<String>::new());
}

#[tokio::test]
async fn a_secret_that_another_remote_cluster_names_is_kept() {
    let two = connected().await;
    let spec =
        json!({"kubeconfigSecretRef": {"name": "remote-milan"}, "nodeSelector": {"matchLabels": {"a": "b"}}});
    two.home
        .put(&DECLARED.replace("milan", "rome"), json!({"spec": spec}));
    let identity = two.identity();
    assert_eq!(take_off(&two).await.unwrap(), ExitCode::SUCCESS);
    assert_eq!(two.home.object(DECLARED), None);
    assert_eq!(two.identity(), identity);
    assert!(two.home.object(SECRET).is_some());
}

#[tokio::test]
async fn the_identity_of_another_home_cluster_blocks_disconnecting() {
    let two = connected().await;
    let account = "/api/v1/namespaces/liqo-csi-remote/serviceaccounts/liqo-csi-remote";
    two.remote.change(account, |it| {
        it["metadata"]["annotations"]["storage.liqo.io/home-cluster"] = "rome".into();
    });
    let why = take_off(&two).await.unwrap_err().to_string();
    assert!(
        why.contains("rome") && why.contains("--remote-namespace"),
        "{why}"
    );
    assert!(is_whole(&two));
}

#[tokio::test]
async fn unknown_state_blocks_the_command() {
    for path in ["/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"] {
        let two = connected().await;
        two.remote
            .fault(Fault::new("GET", path, Act::Forbid("no right")).at_the_end());
        assert_eq!(take_off(&two).await.unwrap(), ExitCode::from(REFUSED), "{path}");
        assert!(is_whole(&two), "{path}");
    }
}

#[tokio::test]
async fn a_deleted_cluster_can_be_disconnected_locally() {
    let two = connected().await;
    two.home
        .change(DECLARED, |it| it["metadata"]["finalizers"] = json!([FINALIZER]));
    let here = two.remote.requests().len();
    assert_eq!(take_off_here(&two).await.unwrap(), ExitCode::SUCCESS);
    assert_eq!((two.home.object(DECLARED), two.home.object(SECRET)), (None, None));
    assert_eq!(two.remote.requests().len(), here, "it gets no request");
}

#[tokio::test]
async fn a_cluster_that_answers_is_not_gone() {
    let two = connected().await;
    two.home.change(DECLARED, |it| {
        it["status"]["conditions"] = json!([{
            "type": "Reachable", "status": "True", "reason": "Answers", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
    });
    assert!(
        take_off_here(&two)
            .await
            .unwrap_err()
            .to_string()
            .contains("it is not gone")
    );
    assert!(is_whole(&two));
}

#[tokio::test]
async fn a_remote_cluster_that_is_created_again_keeps_its_identity() {
    let two = connected().await;
    let again = two.home.object(DECLARED).unwrap()["spec"].clone();
    two.home.before("GET", DECLARED, |_| {});
    two.home.before("GET", DECLARED, move |store| {
        drop(store.put(DECLARED, json!({"spec": again})));
    });
    let why = take_off(&two).await.unwrap_err().to_string();
    assert!(why.contains("GitOps"), "{why}");
    assert!(is_whole(&two));
}

#[tokio::test]
async fn rights_stay_until_the_controller_has_removed_its_finalizer() {
    let two = connected().await;
    two.home
        .change(DECLARED, |it| it["metadata"]["finalizers"] = json!([FINALIZER]));
    let (home, remote) = two.ends().await;
    let impatient = Request {
        timeout: Duration::ZERO,
        ..request()
    };
    assert_eq!(
        disconnect(&home, Some(&remote), &impatient).await.unwrap(),
        ExitCode::FAILURE
    );
    assert!(is_whole(&two));
}

#[tokio::test]
async fn another_cluster_and_objects_of_others_are_not_disconnected() {
    let two = connected().await;
    two.remote.put(
        "/api/v1/namespaces/kube-system",
        json!({"metadata": {"uid": "another"}}),
    );
    assert!(take_off(&two).await.unwrap_err().to_string().contains("another"));
    two.remote.put(
        "/api/v1/namespaces/kube-system",
        json!({"metadata": {"uid": "remote-uid"}}),
    );
    let account = "/api/v1/namespaces/liqo-csi-remote/serviceaccounts/liqo-csi-remote";
    two.remote.change(account, |it| {
        it["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm".into();
    });
    assert_eq!(take_off(&two).await.unwrap(), ExitCode::SUCCESS);
    assert!(two.remote.object(account).is_some());
}
