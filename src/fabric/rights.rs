//! The rights to run pods in a namespace that the fabric has made. Nobody gives them for the
//! whole remote cluster: the chart there lets this identity bind one `ClusterRole`, and that only
//! in namespaces of the fabric.

use std::time::Duration;

use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    rbac::v1::{RoleBinding, RoleRef, Subject},
};
use kube::api::ObjectMeta;
use tokio::time;

use crate::{
    cluster::{ApiError, Cluster, may_within},
    observe::crash::{self, Step},
    volume::mark,
};

/// The name of the binding.
const BINDING: &str = "liqo-csi-fabric";
/// A right that is given a moment ago is not known to the API server at once.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Takes the rights, unless they are there; why pods cannot be run in the namespace, if they
/// cannot.
pub(super) async fn take(there: &Cluster, namespace: &str) -> Result<Result<(), String>, ApiError> {
    if may_run_pods(there, namespace).await? {
        return Ok(Ok(()));
    }
    let refused = |why: &str| {
        Ok(Err(format!(
            "the namespace {namespace} is there, but this driver may not run pods in it{why}: see remoteAccess.level fabric of \
             the chart"
        )))
    };
    let Some(binding) = binding(there).await? else {
        return refused("");
    };
    let bindings = there.within::<RoleBinding>(namespace);
    match crash::around(Step::OffloadBind, bindings.create(&binding)).await {
        Ok(_) => {}
        Err(error) if error.is_refusal() => return refused(&format!(" ({error})")),
        Err(error) => return Err(error),
    }
    for _ in 0..TRIES {
        if may_run_pods(there, namespace).await? {
            return Ok(Ok(()));
        }
        time::sleep(PAUSE).await;
    }
    refused(" although it has bound its role there")
}

async fn may_run_pods(there: &Cluster, namespace: &str) -> Result<bool, ApiError> {
    may_within(there, namespace, "create", "", "pods").await
}

/// Gives the role of the chart to the service account that we are; `None` if we are none.
async fn binding(there: &Cluster) -> Result<Option<RoleBinding>, ApiError> {
    let reviewed = there
        .all::<SelfSubjectReview>()
        .create(&SelfSubjectReview::default())
        .await?;
    let user = reviewed.and_then(|it| it.status).and_then(|it| it.user_info);
    let name = user.and_then(|it| it.username).unwrap_or_default();
    let account = name
        .strip_prefix("system:serviceaccount:")
        .and_then(|it| it.split_once(':'));
    Ok(account.map(|(namespace, account)| RoleBinding {
        metadata: ObjectMeta {
            name: Some(BINDING.to_owned()),
            labels: Some([(mark::MANAGED_BY.to_owned(), mark::MANAGED_BY_US.to_owned())].into()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name: format!("{account}.{namespace}-workloads"),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: account.to_owned(),
            namespace: Some(namespace.to_owned()),
            ..Subject::default()
        }]),
    }))
}
