//! The label of namespaces by which admission finds those that are offloaded. What it does to
//! pods is in the policies of the chart. A label that was there before is somebody's wish that
//! pods wait until the namespace is offloaded: it is left, also in the end.

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::json;

use super::marks::{SCHEDULING, SCHEDULING_BY_US};
use crate::{
    cluster::{ApiError, Cluster, unless_conflict},
    observe::crash::{self, Step},
};

/// Labels the namespace, or takes the label off that was put on here.
pub(super) async fn keep(home: &Cluster, namespace: &Namespace, offloaded: bool) -> Result<(), ApiError> {
    let is_ours = namespace.annotations().contains_key(SCHEDULING_BY_US);
    let is_labelled = namespace.labels().contains_key(SCHEDULING);
    let value = match (offloaded, is_ours) {
        (true, _) if !is_labelled => json!("true"),
        (false, true) => json!(null),
        _ => return Ok(()),
    };
    let patch = json!({"metadata": {
        "uid": namespace.uid(),
        "resourceVersion": namespace.resource_version(),
        "labels": {SCHEDULING: value},
        "annotations": {SCHEDULING_BY_US: value},
    }});
    let (all, name) = (home.all::<Namespace>(), namespace.name_any());
    let written = all.merge(&name, &patch);
    unless_conflict(crash::around(Step::OffloadLabel, written).await).map(drop)
}
