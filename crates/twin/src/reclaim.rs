//! The reclaim policy of a twin's PV: replaced with Retain while the data has to stay, and restored
//! afterwards. The same write records the old policy on the PV.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{Site, data_of};
use crate::{
    cluster::{ApiError, Cluster, unless_conflict},
    observe::crash::{self, Step},
    volume::{VolumeName, mark},
};

const RETAIN: &str = "Retain";

/// The reclaim policy of a PV; the default of Kubernetes if it is unset.
#[must_use]
pub fn reclaim_policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    policy.unwrap_or("Delete")
}

/// Sets a twin's PV to Retain, so that its data survives the deletion of the twin, with `step` as the
/// caller's crash point; returns the PV. `None` if the PV has changed since it was read: its import or
/// release may have ended, and set a policy that has to stay.
pub async fn retain(
    site: &Site,
    volume: &VolumeName,
    real: &PersistentVolume,
    step: Step,
) -> Result<Option<PersistentVolume>, ApiError> {
    let policy = reclaim_policy(real);
    if policy == RETAIN {
        return Ok(Some(real.clone()));
    }
    let mut annotations = json!({mark::POLICY_BEFORE: policy});
    if site.remote_cluster().is_some() {
        // Names of claims are reused there: later nothing else shows whose data this is.
        annotations[mark::DATA_OF] = data_of(site, volume).into();
    }
    let patch = json!({
        "metadata": {
            "uid": real.uid(),
            "resourceVersion": real.resource_version(),
            "annotations": annotations,
        },
        "spec": {"persistentVolumeReclaimPolicy": RETAIN},
    });
    let retained = crash::around(step, site.volumes().merge(&real.name_any(), &patch)).await;
    unless_conflict(retained)
}

/// Restores the reclaim policy of a PV that this driver replaced, and applies `spec` in the same write. A
/// policy that another client has set since then stays. False if the PV has changed since it was read.
pub async fn restore_reclaim_policy(
    cluster: &Cluster,
    volume: &PersistentVolume,
    mut spec: Value,
) -> Result<bool, ApiError> {
    let Some(before) = volume.annotations().get(mark::POLICY_BEFORE) else {
        return Ok(true);
    };
    if reclaim_policy(volume) == RETAIN {
        spec["persistentVolumeReclaimPolicy"] = before.as_str().into();
    }
    let patch = json!({
        "metadata": {
            "uid": volume.uid(),
            "resourceVersion": volume.resource_version(),
            "annotations": {mark::POLICY_BEFORE: null},
        },
        "spec": spec,
    });
    let volumes = cluster.all::<PersistentVolume>();
    match crash::around(Step::PolicyBack, volumes.merge(&volume.name_any(), &patch)).await {
        Err(error) if error.is_conflict() => Ok(false),
        other => other.map(|_| true),
    }
}
