//! Builds the twin of a snapshot as an object: its first version already records all that this driver
//! needs to know about the snapshot.

use k8s_openapi::api::core::v1::{NodeSelector as KubeSelector, PersistentVolume};
use kube::ResourceExt;

use super::{SnapshotRequest, site::SnapshotSite};
use crate::{
    cluster::{
        facts,
        snapshots::{SnapshotOf, VolumeSnapshot, VolumeSnapshotSpec},
    },
    topology::NodeSelector,
    volume::{SnapshotMarks, mark},
};

/// The twin to create: a snapshot of the claim of this name, whose PV is `volume` if that may be read.
pub(super) fn twin(
    site: &SnapshotSite,
    request: &SnapshotRequest,
    claim: &str,
    volume: Option<&PersistentVolume>,
    class: Option<String>,
) -> VolumeSnapshot {
    let marks = SnapshotMarks {
        home: site.home().id().clone(),
        key: request.key.clone(),
        source: request.source.to_string(),
        snapshot: request.parameters.snapshot.clone(),
        request_name: request.request_name.clone(),
    };
    let mut annotations = marks.annotations();
    annotations.extend(volume.and_then(affinity));
    let spec = VolumeSnapshotSpec {
        source: SnapshotOf {
            persistent_volume_claim_name: Some(claim.to_owned()),
            ..SnapshotOf::default()
        },
        volume_snapshot_class_name: class,
    };
    let mut twin = VolumeSnapshot::new(&site.name(), spec);
    twin.metadata.namespace = Some(site.namespace().to_owned());
    twin.metadata.labels = Some(marks.labels());
    twin.metadata.annotations = Some(annotations);
    twin
}

/// From where the source volume of a twin was accessible, if the twin records it.
#[must_use]
pub fn source_affinity(twin: &VolumeSnapshot) -> Option<NodeSelector> {
    let text = twin.annotations().get(mark::SOURCE_AFFINITY)?;
    let read: KubeSelector = serde_json::from_str(text).ok()?;
    Some(facts::node_selector(&read))
}

/// From where the volume is accessible. After the volume is deleted, only this shows where its snapshot
/// can be restored.
fn affinity(volume: &PersistentVolume) -> Option<(String, String)> {
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let text = serde_json::to_string(required).ok()?;
    Some((mark::SOURCE_AFFINITY.to_owned(), text))
}
