//! Cleans up after a fabric that copies claims (Kosmos): a copy of the claim under the name of the twin,
//! and the marks of the twin on the claim at home.
//!
//! Kosmos copies the claims of a pod into the remote cluster where they are missing, and writes changes
//! of a remote claim with its mark to the claim at home. It looks for the mark on the object before the
//! change (Kosmos v0.5.0, `leaf_pvc_controller.go`), so the mark has to be removed before the copy is
//! deleted: otherwise Kosmos writes the twin that replaces it to the claim at home.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::{
    Site,
    reading::{self, PROVISIONER, PROVISIONER_BETA},
};
use crate::{
    cluster::{ApiError, Cluster, Precondition, facts, unless_conflict},
    volume::{
        ClaimName, DRIVER_NAME,
        mark::{self, TWIN_FINALIZER},
    },
};

/// Whether the object with the name of the claim's twin is only a copy of the claim: created by the
/// fabric of the cluster, of the claim's class, and without a PV.
pub async fn is_copy(
    site: &Site,
    claim: &PersistentVolumeClaim,
    found: &PersistentVolumeClaim,
) -> Result<bool, ApiError> {
    let Some(remote) = site.remote_cluster() else {
        return Ok(false);
    };
    let copies = remote.fabric.and_then(|fabric| fabric.copies.as_ref());
    let made = copies.is_some_and(|copies| copies.made(found.annotations(), &remote.id));
    if !made || reading::class_name(found) != reading::class_name(claim) {
        return Ok(false);
    }
    match (reading::phase(found), reading::volume_name(found)) {
        ("Bound", _) => Ok(false),
        ("Lost", _) | (_, None) => Ok(true),
        // A copy of a bound claim names the PV at home until Kubernetes calls it Lost.
        (_, Some(name)) if site.shows_volumes() => {
            let volumes = site.cluster().all::<PersistentVolume>();
            Ok(volumes.get(name).await?.is_none())
        }
        _ => Ok(false),
    }
}

/// Removes the mark of the fabric from exactly this copy, then deletes it. If the copy has changed since
/// it was read, nothing is deleted, and the caller reads it again.
pub async fn remove_copy(site: &Site, copy: &PersistentVolumeClaim) -> Result<(), ApiError> {
    let Some(copies) = site
        .remote_cluster()
        .and_then(|remote| remote.fabric?.copies.as_ref())
    else {
        return Ok(());
    };
    let (twins, name) = (site.twins(), copy.name_any());
    let unmark = json!({"metadata": {
        "uid": copy.uid(),
        "resourceVersion": copy.resource_version(),
        "annotations": {copies.mark: null, mark::COPY_REMOVED: "true"},
    }});
    let Some(unmarked) = unless_conflict(twins.merge(&name, &unmark).await)? else {
        return Ok(());
    };
    let exactly = Precondition {
        uid: unmarked.uid().unwrap_or_default(),
        resource_version: unmarked.resource_version(),
    };
    match twins.delete(&name, exactly).await {
        Err(error) if error.is_conflict() => Ok(()),
        other => {
            other?;
            tracing::info!(
                twin = site.place(),
                cluster = site.cluster_name(),
                "deleted the copy of the claim that the fabric created under the name of the twin"
            );
            Ok(())
        }
    }
}

/// Removes the marks and the finalizer of a twin from the claim that the twin was created for, where they
/// would block the deletion of the claim, and sets the claim's own provisioner again.
pub async fn clean_claim(home: &Cluster, claim: &ClaimName) -> Result<(), ApiError> {
    let claims = home.within::<PersistentVolumeClaim>(&claim.namespace);
    let found = claims.get(&claim.name).await?;
    let Some(found) = found.filter(facts::bears_marks_of_its_twin) else {
        return Ok(());
    };
    let none = |keys: &[&str]| -> Map<String, Value> {
        keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect()
    };
    let mut annotations = none(mark::ON_TWINS_ONLY.annotations);
    for key in [PROVISIONER, PROVISIONER_BETA] {
        if found.annotations().contains_key(key) {
            annotations.insert(key.to_owned(), DRIVER_NAME.into());
        }
    }
    let finalizers: Vec<&String> = found
        .finalizers()
        .iter()
        .filter(|one| *one != TWIN_FINALIZER)
        .collect();
    let patch = json!({"metadata": {
        "uid": found.uid(),
        "resourceVersion": found.resource_version(),
        "labels": none(mark::ON_TWINS_ONLY.labels),
        "annotations": annotations,
        "finalizers": finalizers,
    }});
    if unless_conflict(claims.merge(&claim.name, &patch).await)?.is_some() {
        tracing::warn!(
            namespace = claim.namespace,
            claim = claim.name,
            "removed the marks of the twin, which a fabric had copied, from the claim"
        );
    }
    Ok(())
}
