//! Reading a cluster, with all rights and with some of them.

use super::{
    Installation, Scope, Setup, Storage, checks,
    fixtures::{UID, claim, deployment, real, twin, volume},
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
        let storage = Storage::read(&cluster, &scope, "liqo-storage", None).await;
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
    assert_eq!(setup.storage_namespace(), "liqo-storage");
    let installation = Box::pin(Installation::read(&cluster, setup, "liqo-storage", None)).await;
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
