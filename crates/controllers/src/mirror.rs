//! Writes the state of a twin to the status of its claim: a condition and, for a remote twin, its size
//! and the result of its expansion.

use jiff::SignedDuration;
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use serde_json::json;

use super::{
    twin_condition::TwinCondition,
    watched::{Claim, VirtualVolume},
};
use crate::{
    cluster::{
        ApiError, Cluster,
        facts::{self, NODE_RESIZE_ERROR},
        unless_conflict,
    },
    observe::crash::{self, Step},
    offload::{LONGEST_MESSAGE, cut},
    placement::{ClaimUpdate, claim_update, must_be_raised},
    twin::{Site, grown},
    volume::{ClaimMark, ClaimSize, mark::TWIN_READY, quantity},
};

/// The shortest time between two reports of [`node_refusal`].
const EACH_REFUSAL: SignedDuration = SignedDuration::from_mins(1);

/// Whether the view of the claim shows this condition.
pub(super) fn has_condition(seen: &Claim, wanted: &TwinCondition<'_>) -> bool {
    let message = &cut(wanted.message, LONGEST_MESSAGE);
    let written = TwinCondition { message, ..*wanted };
    seen.twin_condition
        .as_ref()
        .is_some_and(|current| current.equals(&written))
}

/// Sets the condition of the claim if it differs. Conditions of other components stay: the API server
/// merges them by their type.
pub(super) async fn condition(
    home: &Cluster,
    seen: &Claim,
    mark: &ClaimMark,
    wanted: &TwinCondition<'_>,
) -> Result<(), ApiError> {
    if has_condition(seen, wanted) {
        return Ok(());
    }
    let before = seen.twin_condition.as_ref();
    // Parts of it may be from a remote cluster.
    let message = cut(wanted.message, LONGEST_MESSAGE);
    let mut condition = json!({
        "type": TWIN_READY, "status": wanted.status, "reason": wanted.reason, "message": message,
    });
    if !before.is_some_and(|current| current.has_status_of(wanted)) {
        condition["lastTransitionTime"] = json!(Time(jiff::Timestamp::now()));
    }
    let patch = json!({"metadata": {"uid": mark.uid}, "status": {"conditions": [condition]}});
    let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
    let written = crash::around(Step::Mirror, claims.merge_status_lists(&mark.name, &patch)).await;
    // Another claim may have this name now; the next round checks it.
    unless_conflict(written).map(drop)
}

/// Raises claim and PV to the size of the remote twin. The PV last: its size shows whether the update is
/// complete. All is read live, because of two views one may lag, and a size must never be lowered.
pub(super) async fn capacity(
    home: &Cluster,
    volume: &VirtualVolume,
    mark: &ClaimMark,
    twin: ClaimSize,
) -> Result<(), ApiError> {
    let volumes = home.all::<PersistentVolume>();
    let (claim, real) = tokio::try_join!(live(home, mark), volumes.get(&volume.name))?;
    // A move replaces the PV by one of the same name, with a size of its own.
    let real = real.filter(|real| real.uid().as_deref() == Some(&volume.uid));
    let (Some(claim), Some(real)) = (claim, real) else {
        return Ok(());
    };
    let has = facts::claim_size(&claim);
    if !must_be_raised(has, facts::volume_size(&real).unwrap_or_default(), twin) {
        return Ok(());
    }
    let size = json!({"storage": quantity(twin.capacity)});
    if has.capacity < twin.capacity {
        let patch = json!({
            "metadata": {"uid": mark.uid, "resourceVersion": claim.resource_version()},
            "status": {"capacity": size},
        });
        let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
        let written = crash::around(Step::Mirror, claims.merge_status(&mark.name, &patch)).await;
        if unless_conflict(written)?.is_none() {
            // The view will show the concurrent change, which triggers another attempt.
            return Ok(());
        }
    }
    let patch = json!({
        "metadata": {"uid": volume.uid, "resourceVersion": real.resource_version()},
        "spec": {"capacity": size},
    });
    let written = crash::around(Step::Mirror, volumes.merge(&volume.name, &patch)).await;
    unless_conflict(written).map(drop)
}

/// Marks the expansion of the claim as finished if its remote twin's is, like kubelet does for claims of
/// its pods.
pub(super) async fn growth(home: &Cluster, mark: &ClaimMark, twin: ClaimSize) -> Result<(), ApiError> {
    let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
    let Some(claim) = live(home, mark).await? else {
        return Ok(());
    };
    let Some(ClaimUpdate::Grown(bytes)) = claim_update(facts::claim_size(&claim), twin) else {
        return Ok(());
    };
    let patch = grown(&claim, bytes);
    let written = crash::around(Step::MirrorSize, claims.merge_status(&mark.name, &patch)).await;
    unless_conflict(written).map(drop)
}

/// Reports on the claim that the node of its pod, in a remote cluster, failed to expand the file system.
/// Once for each error of the twin, because csi-resizer retries after each report, although nothing has
/// changed there, and at most once a minute, because the cluster may report any number of errors.
pub(super) async fn node_refusal(site: &Site, mark: &ClaimMark) -> Result<(), ApiError> {
    let home = site.home();
    let Some(claim) = live(home, mark).await? else {
        return Ok(());
    };
    let twin = site.twins().get(site.name()).await?;
    let Some(why) = twin.as_ref().and_then(facts::node_error) else {
        return Ok(());
    };
    let now = jiff::Timestamp::now();
    let reported = facts::condition(&claim, NODE_RESIZE_ERROR)
        .and_then(|before| Some(now.duration_since(before.last_transition_time.as_ref()?.0)));
    if facts::node_error(&claim).as_ref() == Some(&why)
        || reported.is_some_and(|age| age.abs() < EACH_REFUSAL)
    {
        return Ok(());
    }
    let condition = json!({
        "type": NODE_RESIZE_ERROR, "status": "True", "message": why,
        "lastTransitionTime": Time(now),
    });
    let patch = json!({
        "metadata": {"uid": mark.uid, "resourceVersion": claim.resource_version()},
        "status": {
            "allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"},
            "conditions": [condition],
        },
    });
    let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
    let written = claims.merge_status_lists(&mark.name, &patch);
    unless_conflict(crash::around(Step::MirrorSize, written).await).map(drop)
}

async fn live(home: &Cluster, mark: &ClaimMark) -> Result<Option<PersistentVolumeClaim>, ApiError> {
    let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
    let found = claims.get(&mark.name).await?;
    Ok(found.filter(|claim| claim.uid().as_deref() == Some(&mark.uid)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{slim::virtual_volume, testing::FakeApi};

    const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
    const NAME: &str = "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

    /// The sizes of claim and PV, in GiB, after the twin was seen with 2 GiB and they with 1 GiB.
    async fn sizes_from(claim: u64, volume: u64) -> [String; 2] {
        let api = FakeApi::start().await;
        let path = format!("/api/v1/persistentvolumes/{NAME}");
        let size = |gigabytes: u64| json!({"storage": format!("{gigabytes}Gi")});
        api.put(
            CLAIM,
            json!({
                "metadata": {"uid": "u"},
                "spec": {"resources": {"requests": size(1)}},
                "status": {"phase": "Bound", "capacity": size(1)},
            }),
        );
        api.put(
            &path,
            json!({
                "spec": {
                    "capacity": size(1),
                    "csi": {"driver": "storage.liqo.io", "volumeHandle": format!("v1:milan:{NAME}")},
                    "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
                },
                "status": {"phase": "Bound"},
            }),
        );
        let home = api.cluster_unwatched().await;
        let real = home.all::<PersistentVolume>().get(NAME).await.unwrap().unwrap();
        let seen = virtual_volume(&real, "liqo-storage").unwrap();
        api.change(CLAIM, |it| it["status"]["capacity"] = size(claim));
        api.change(&path, |it| it["spec"]["capacity"] = size(volume));
        let twin = ClaimSize {
            requested: 2 << 30,
            capacity: 2 << 30,
            ..ClaimSize::default()
        };
        let mark = seen.claim.clone().unwrap();
        capacity(&home, &seen, &mark, twin).await.unwrap();
        [
            api.object(CLAIM).unwrap()["status"]["capacity"]["storage"].clone(),
            api.object(&path).unwrap()["spec"]["capacity"]["storage"].clone(),
        ]
        .map(|it| it.as_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn no_size_is_lowered_because_a_view_lags() {
        for (claim, volume, expected) in [
            (1, 1, ["2Gi", "2Gi"]),
            (2, 1, ["2Gi", "2Gi"]),
            (3, 1, ["3Gi", "2Gi"]),
            (3, 3, ["3Gi", "3Gi"]),
        ] {
            assert_eq!(sizes_from(claim, volume).await, expected, "{claim} {volume}");
        }
    }
}
