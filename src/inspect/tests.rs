//! Reading a cluster, with all rights and with some of them.

use super::{
    Installation, Scope, Setup, State, Storage, checks,
    fixtures::{UID, claim, deployment, real, twin, volume},
    home_id,
    rows::rows,
};
use crate::cluster::testing::{Act, FakeApi, Fault};

async fn api() -> FakeApi {
    let api = FakeApi::start().await;
    api.put(
        "/api/v1/namespaces/kube-system",
        serde_json::json!({"metadata": {"uid": "home"}}),
    );
    api.put("/api/v1/namespaces/shop/persistentvolumeclaims/data", claim());
    api.put(
        &format!("/api/v1/namespaces/liqo-storage/persistentvolumeclaims/{UID}"),
        twin(),
    );
    api.put(&format!("/api/v1/persistentvolumes/pvc-{UID}"), volume());
    api.put("/api/v1/persistentvolumes/pvc-twin", real());
    let mut controller = deployment();
    controller["metadata"]["labels"] = serde_json::json!({
        "app.kubernetes.io/name": "liqo-csi", "app.kubernetes.io/component": "controller",
    });
    api.put(
        "/apis/apps/v1/namespaces/liqo-csi/deployments/liqo-csi-controller",
        controller,
    );
    api
}

#[tokio::test]
async fn a_volume_is_found_from_all_namespaces_and_from_its_own() {
    let api = api().await;
    let cluster = api.cluster_unwatched().await;
    for scope in [Scope::All, Scope::Namespace("shop".into())] {
        let home = home_id(&cluster).await;
        let storage = Storage::read(&cluster, &scope, Some("liqo-storage"), home).await;
        assert_eq!(storage.unknown(), Vec::<String>::new());
        let rows = rows(&storage, &scope);
        assert_eq!(rows.len(), 1, "{scope:?}");
        assert_eq!(rows[0].claim.as_ref().map(|it| it.name.as_str()), Some("data"));
        assert_eq!(rows[0].real_class.as_deref(), Some("fast"));
    }
}

#[tokio::test]
async fn forbidden_reads_are_reported_and_the_others_shown() {
    let api = api().await;
    let cluster = api.cluster_unwatched().await;
    api.fault(Fault::new("GET", "/persistentvolumes", Act::Refuse(403)));
    api.fault(Fault::new("GET", "/resourcequotas", Act::Refuse(403)));
    api.fault(Fault::new("POST", "/subjectaccessreviews", Act::Refuse(403)));
    let setup = Setup::read(&cluster).await;
    let twins = setup.storage_namespace();
    assert_eq!(twins.as_deref(), Some("liqo-storage"));
    let installation = Box::pin(Installation::read(&cluster, setup, twins.as_deref(), None)).await;
    let unknown = installation.unknown().join("\n");
    for what in [
        "which volumes there are",
        "which quotas there are",
        "the rights of the controller",
    ] {
        assert!(unknown.contains(what), "{unknown}");
    }
    // The API server knows no CSIDriver: other facts are still reported.
    let findings = checks::examine(&installation);
    assert!(
        findings.iter().any(|it| it.object == "CSIDriver storage.liqo.io"),
        "{findings:#?}"
    );
    // What cannot be read does not count as lost.
    assert!(
        !findings.iter().any(|it| it.problem.contains("Lost")),
        "{findings:#?}"
    );
}

/// The twins may be in a namespace, and the cluster may have an id, that only the Deployment shows.
#[tokio::test]
async fn without_the_deployment_no_twin_counts_as_gone() {
    let api = api().await;
    let cluster = api.cluster_unwatched().await;
    let labels = serde_json::json!({"topology.storage.liqo.io/node": "one"});
    api.put(
        "/api/v1/nodes/one",
        serde_json::json!({"metadata": {"labels": labels}}),
    );
    api.fault(Fault::new("GET", "/deployments", Act::Refuse(403)));
    let setup = Setup::read(&cluster).await;
    assert_eq!(setup.storage_namespace(), None);
    for scope in [Scope::All, Scope::Namespace("shop".into())] {
        let storage = Storage::read(&cluster, &scope, None, None).await;
        let unknown = storage.unknown().join("\n");
        assert!(unknown.contains("--cluster-id"), "{unknown}");
        // Twins are found in any namespace if all are listed.
        let needs_namespace = matches!(scope, Scope::Namespace(_));
        assert_eq!(
            unknown.contains("--storage-namespace"),
            needs_namespace,
            "{unknown}"
        );
        let [row] = rows(&storage, &scope).try_into().unwrap();
        assert_eq!(row.state, State::Bound, "{row:#?}");
    }
}

/// A volume that is created meanwhile has objects that refer to each other.
#[tokio::test]
async fn what_is_created_meanwhile_does_not_count_as_gone() {
    for scope in [Scope::All, Scope::Namespace("shop".into())] {
        let api = api().await;
        let cluster = api.cluster_unwatched().await;
        let node = serde_json::json!({"metadata": {"labels": {"topology.storage.liqo.io/node": "one"}}});
        let twin_path = format!("/api/v1/namespaces/liqo-storage/persistentvolumeclaims/{UID}");
        let objects = [
            ("/api/v1/nodes/one".to_owned(), node),
            (
                "/api/v1/namespaces/shop/persistentvolumeclaims/data".to_owned(),
                claim(),
            ),
            (twin_path, twin()),
            (format!("/api/v1/persistentvolumes/pvc-{UID}"), volume()),
            ("/api/v1/persistentvolumes/pvc-twin".to_owned(), real()),
        ];
        for (path, _) in &objects {
            api.remove(path);
        }
        let claims = match &scope {
            Scope::All => "/api/v1/persistentvolumeclaims",
            Scope::Namespace(_) => "/api/v1/namespaces/shop/persistentvolumeclaims",
        };
        api.before("GET", claims, move |store| {
            for (path, object) in objects {
                store.put(&path, object);
            }
        });
        let home = home_id(&cluster).await;
        let storage = Storage::read(&cluster, &scope, Some("liqo-storage"), home).await;
        let asked = api.requests();
        let at = |path: &str| asked.iter().position(|it| *it == format!("GET {path}"));
        assert!(at(claims) < at("/api/v1/persistentvolumes"), "{asked:#?}");
        let [row] = rows(&storage, &scope).try_into().unwrap();
        assert_eq!(row.state, State::Bound, "{row:#?}");
    }
}
