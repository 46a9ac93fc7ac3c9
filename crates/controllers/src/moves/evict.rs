//! Sending the users of a volume away: their pods are evicted, so that budgets of disruptions
//! count. What their controllers make anew waits until the volume is at the target.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::{
    cluster::{ApiError, Cluster, Eviction},
    observe::crash::{self, Step},
};

/// Asks for the eviction of these pods, as `namespace/name`; why some stay, if some do. Those of
/// another cluster go when those of home do.
pub(super) async fn evict(home: &Cluster, pods: &[String]) -> Result<Vec<String>, ApiError> {
    let mut stay = Vec::new();
    for pod in pods {
        let Some((namespace, name)) = pod.split_once('/').filter(|(_, name)| !name.contains(' ')) else {
            continue;
        };
        let found = home.within::<Pod>(namespace).get(name).await?;
        // One that was made anew meanwhile and has no node waits for the volume, as it should.
        let runs = |pod: &Pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            node.is_some() && pod.metadata.deletion_timestamp.is_none()
        };
        let Some(found) = found.filter(runs) else {
            continue;
        };
        let uid = found.uid().unwrap_or_default();
        let asked = home.evict(namespace, name, &uid, false);
        if let Eviction::Refused(why) = crash::around(Step::MoveEvict, asked).await? {
            stay.push(format!("the pod {pod} cannot be evicted yet: {why}"));
        }
    }
    Ok(stay)
}
