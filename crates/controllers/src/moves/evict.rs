//! Evicts the pods that use a volume, so that every `PodDisruptionBudget` counts. The pods that replace
//! them wait until the volume is at the target.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::{
    cluster::{ApiError, Cluster, Eviction},
    observe::crash::{self, Step},
};

/// Evicts these pods, given as `namespace/name`; returns why some cannot be evicted. Pods in other
/// clusters end together with their home pods.
pub(super) async fn evict(home: &Cluster, pods: &[String]) -> Result<Vec<String>, ApiError> {
    let mut refused = Vec::new();
    for pod in pods {
        let Some((namespace, name)) = pod.split_once('/').filter(|(_, name)| !name.contains(' ')) else {
            continue;
        };
        let found = home.within::<Pod>(namespace).get(name).await?;
        // A replacement pod without a node waits for the volume, as intended.
        let runs = |pod: &Pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            node.is_some() && pod.metadata.deletion_timestamp.is_none()
        };
        let Some(found) = found.filter(runs) else {
            continue;
        };
        let uid = found.uid().unwrap_or_default();
        let eviction = home.evict(namespace, name, &uid, false);
        if let Eviction::Refused(why) = crash::around(Step::MoveEvict, eviction).await? {
            refused.push(format!("the pod {pod} cannot be evicted yet: {why}"));
        }
    }
    Ok(refused)
}
