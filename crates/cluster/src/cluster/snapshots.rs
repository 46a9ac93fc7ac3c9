//! The objects of Kubernetes' snapshots, with the fields that are used here. Their kinds are not part of
//! Kubernetes: where they are not installed, there are no objects.

// The fields are documented by Kubernetes.
#![allow(missing_docs)]

use std::borrow::Cow;

use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use kube::{CustomResource, Resource, ResourceExt, api::ObjectMeta, core::ClusterResourceScope};
use serde::{Deserialize, Serialize};

use super::{ApiError, Cluster, api::is_unserved};
use crate::placement::SnapshotClass;

/// The API group of snapshots.
pub const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";
const VERSION: &str = "v1";

/// Annotation of a default class.
const IS_DEFAULT: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// Annotation of a content that may be restored with another volume mode.
pub const ALLOW_MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshot",
    namespaced,
    status = "VolumeSnapshotStatus",
    derive = "PartialEq",
    schema = "disabled",
    doc = "A snapshot of a claim."
)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSpec {
    pub source: SnapshotOf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

/// The source of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotOf {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_content_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotFault>,
}

/// The last error of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotFault {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshotContent",
    status = "VolumeSnapshotContentStatus",
    derive = "PartialEq",
    schema = "disabled",
    doc = "The data of a snapshot."
)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContentSpec {
    pub deletion_policy: String,
    pub driver: String,
    pub source: ContentOf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_volume_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
    pub volume_snapshot_ref: ObjectReference,
}

/// The source of a content: a volume, or an existing snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentOf {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContentStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_handle: Option<String>,
}

impl VolumeSnapshotContent {
    /// The CSI snapshot handle. A content for an existing snapshot has it from the start; one for a new snapshot once
    /// the snapshot is taken.
    #[must_use]
    pub fn handle(&self) -> Option<&str> {
        let given = self.spec.source.snapshot_handle.as_deref();
        given.or_else(|| self.status.as_ref()?.snapshot_handle.as_deref())
    }
}

/// A class of snapshots. It has no `spec`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotClass {
    pub metadata: ObjectMeta,
    pub driver: String,
    pub deletion_policy: String,
}

impl Resource for VolumeSnapshotClass {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeSnapshotClass".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        SNAPSHOT_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumesnapshotclasses".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl VolumeSnapshotClass {
    /// The class, as a type of the model.
    #[must_use]
    pub fn read(&self) -> SnapshotClass {
        SnapshotClass {
            name: self.name_any(),
            driver: self.driver.clone(),
            is_default: self
                .annotations()
                .get(IS_DEFAULT)
                .is_some_and(|value| value == "true"),
        }
    }
}

/// The snapshot classes of a cluster, at most two seconds old. They are not watched: a snapshot needs them
/// once, and only if it names no class.
pub async fn classes(cluster: &Cluster) -> Result<Vec<SnapshotClass>, ApiError> {
    let read = || async {
        let all = cluster.all::<VolumeSnapshotClass>();
        all.pick(None, None, |class| Some(class.read())).await
    };
    let classes = cluster.0.recent.snapshot_classes.get("", read).await;
    Result::clone(&classes)
}

/// Whether volumes can be created from a snapshot.
#[must_use]
pub fn is_ready(snapshot: &VolumeSnapshot) -> bool {
    let status = snapshot.status.as_ref();
    status.is_some_and(|status| status.ready_to_use == Some(true))
}

/// Whether the kinds of snapshots are certainly not installed in a cluster. For the message when a snapshot
/// object is missing.
pub async fn not_installed(cluster: &Cluster) -> bool {
    let group = format!("{SNAPSHOT_GROUP}/{VERSION}");
    let asked = cluster.client().list_api_group_resources(&group);
    let answer = tokio::time::timeout(cluster.calls().timeout, asked).await;
    matches!(answer, Ok(Err(error)) if is_unserved(&error))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::cluster::testing::FakeApi;

    #[test]
    fn a_snapshot_is_written_and_read() {
        let spec = VolumeSnapshotSpec {
            source: SnapshotOf {
                persistent_volume_claim_name: Some("data".into()),
                ..SnapshotOf::default()
            },
            volume_snapshot_class_name: None,
        };
        let written = serde_json::to_value(VolumeSnapshot::new("backup", spec)).unwrap();
        assert_eq!(written["apiVersion"], "snapshot.storage.k8s.io/v1");
        assert_eq!(written["kind"], "VolumeSnapshot");
        assert_eq!(written.get("status"), None);
        assert_eq!(
            written["spec"],
            json!({"source": {"persistentVolumeClaimName": "data"}})
        );
        let read: VolumeSnapshot = from_value(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "backup"},
            "spec": {"source": {"volumeSnapshotContentName": "x"}},
            "status": {"creationTime": "2026-01-01T00:00:00Z", "readyToUse": true, "restoreSize": "1Gi", "new": 1},
        }))
        .unwrap();
        let status = read.status.unwrap();
        assert_eq!(status.restore_size.unwrap().0, "1Gi");
        assert_eq!(status.creation_time.unwrap().0.as_second(), 1_767_225_600);
    }

    #[test]
    fn the_driver_of_a_class_is_parsed() {
        let class: VolumeSnapshotClass = from_value(json!({
            "metadata": {"name": "fast", "annotations": {IS_DEFAULT: "true"}},
            "driver": "real.test", "deletionPolicy": "Delete",
        }))
        .unwrap();
        let expected = SnapshotClass {
            name: "fast".into(),
            driver: "real.test".into(),
            is_default: true,
        };
        assert_eq!(class.read(), expected);
    }

    #[tokio::test]
    async fn missing_snapshot_kinds_are_detected() {
        let api = FakeApi::start().await;
        let cluster = api.cluster_unwatched().await;
        assert!(not_installed(&cluster).await);
        api.put(
            "/apis/snapshot.storage.k8s.io/v1",
            json!({"groupVersion": "snapshot.storage.k8s.io/v1", "resources": []}),
        );
        assert!(!not_installed(&cluster).await);
    }
}
