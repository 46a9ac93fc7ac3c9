//! The views that only the background loops need: claims, and the attachments of all volumes. A replica that
//! runs no loops does not have these watches.

use std::{iter, sync::Arc};

use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::VolumeAttachment};
use kube::{Api, ResourceExt, runtime::watcher};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    snapshots::Snapshots,
    twin_condition::{self, CurrentCondition},
};
pub(super) use crate::cluster::slim::VirtualVolume;
use crate::{
    cluster::{
        Cluster, facts,
        slim::{PendingPod, SELECTED_NODE, Volume, marked_volume},
        snapshots::SNAPSHOT_GROUP,
        view::{Slim, View},
    },
    offload::IN_BOTH_CLUSTERS,
    twin::reading,
    volume::{CarriedAnnotations, ClaimMark, ClaimName, ClaimSize, DRIVER_NAME, DataPath, mark},
};

const PROVISIONERS: [&str; 2] = [
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];

/// The views of the loops. Their watches end when it is dropped.
pub(super) struct Watched {
    pub(super) claims: View<Claim>,
    /// PVs at home; CSI calls use this view, too.
    pub(super) volumes: View<Volume>,
    /// Pods that do not run yet.
    pub(super) pods: View<PendingPod>,
    pub(super) attachments: View<NodeAttachment>,
    /// Started by the loop that needs it: its kind may not be installed.
    pub(super) snapshots: Snapshots,
    _stops: DropGuard,
}

/// A claim that is kept: its provisioner is this driver, or its PV was not provisioned and may be of this driver, or
/// it is not bound yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
pub(super) struct Claim {
    pub(super) name: ClaimName,
    pub(super) uid: String,
    pub(super) class: Option<String>,
    pub(super) pending: bool,
    pub(super) has_node: bool,
    /// Whether an annotation names its real class.
    pub(super) names_class: bool,
    pub(super) deleting: bool,
    /// The data source, as long as the claim is not bound.
    pub(super) source: Option<ClaimSource>,
    pub(super) size: ClaimSize,
    /// Digest of the labels and annotations that its twin has to carry.
    pub(super) carried: String,
    /// The condition that reports the state of the twin.
    pub(super) twin_condition: Option<CurrentCondition>,
    /// Whether its phase is Lost.
    pub(super) lost: bool,
    /// See [`names_another_volume`].
    pub(super) names_another_volume: bool,
    /// The uid of the move that has locked it.
    pub(super) locked_by: Option<String>,
    /// Whether it has the marks of its twin, which belong only on the twin.
    pub(super) bears_marks_of_its_twin: bool,
    /// Whether an administrator declares that it exists in both clusters.
    pub(super) is_in_both: bool,
    /// Topics of the objects that determine the driver of its volume, until it is bound: its class, and the
    /// `PersistentVolume` that it names.
    pub(super) depends_on: Vec<String>,
}

impl Claim {
    pub(super) fn mark(&self) -> ClaimMark {
        ClaimMark {
            namespace: self.name.namespace.clone(),
            name: self.name.name.clone(),
            uid: self.uid.clone(),
        }
    }
}

/// The topic of the unbound claims of this class. No namespace has a slash in its name.
pub(super) fn of_class(name: &str) -> String {
    format!("class/{name}")
}

/// The topic of the unbound claims that name this `PersistentVolume`.
pub(super) fn of_volume(name: &str) -> String {
    format!("volume/{name}")
}

/// The data source of a claim: an object of its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClaimSource {
    Snapshot(String),
    Claim(String),
}

/// An attachment of a volume of any driver. Its topic is the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeAttachment {
    /// Name of the PV.
    pub(super) volume: String,
    pub(super) node: String,
    pub(super) driver: String,
    pub(super) attached: bool,
    /// Whether this driver has created it, for a twin.
    pub(super) of_twin: bool,
    /// The real driver behind an attached virtual volume.
    pub(super) behind: Option<String>,
}

impl NodeAttachment {
    /// Whether it attaches a virtual volume; Kubernetes creates those.
    pub(super) fn is_virtual(&self) -> bool {
        self.driver == DRIVER_NAME
    }
}

impl Slim for Claim {
    fn topic(&self) -> &str {
        &self.name.namespace
    }

    fn topics(&self) -> impl Iterator<Item = &str> {
        iter::once(self.topic()).chain(self.depends_on.iter().map(String::as_str))
    }
}

impl Slim for NodeAttachment {
    fn topic(&self) -> &str {
        &self.node
    }
}

impl Watched {
    pub(super) fn start(home: &Cluster) -> Self {
        let stop = CancellationToken::new();
        let client = || home.client().clone();
        let rules = home.carried_annotations().clone();
        let everything = watcher::Config::default;
        Self {
            claims: View::start(
                Api::all(client()),
                everything(),
                move |it| claim(&it, &rules),
                &stop,
            ),
            volumes: home.views().volumes.clone(),
            pods: home.views().pending_pods.clone(),
            attachments: View::start(Api::all(client()), everything(), |it| node_attachment(&it), &stop),
            snapshots: Snapshots::start(home),
            _stops: stop.drop_guard(),
        }
    }

    pub(super) async fn complete(&self) {
        tokio::join!(
            self.claims.complete(),
            self.volumes.complete(),
            self.pods.complete(),
            self.attachments.complete(),
        );
    }

    /// The claim of this mark, if its uid is the same.
    pub(super) fn claim(&self, mark: &ClaimMark) -> Option<Arc<Claim>> {
        let claim = self.claims.get(&format!("{}/{}", mark.namespace, mark.name))?;
        (claim.uid == mark.uid).then_some(claim)
    }
}

fn claim(claim: &PersistentVolumeClaim, rules: &CarriedAnnotations) -> Option<Claim> {
    let annotations = claim.annotations();
    let ours = |key: &&str| annotations.get(*key).is_some_and(|value| value == DRIVER_NAME);
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let pending = phase.unwrap_or("Pending") == "Pending";
    let by_name = !annotations.contains_key(facts::BOUND_BY_CONTROLLER);
    // A fabric may have copied the annotations of its twin.
    let bears_marks_of_its_twin = facts::bears_marks_of_its_twin(claim);
    let names_another_volume = names_another_volume(claim);
    // Some provisioners put only a part of the uid into the names of volumes.
    let was_provisioned = PROVISIONERS.iter().any(|key| annotations.contains_key(*key));
    let is_seen = pending
        || by_name
        || (names_another_volume && !was_provisioned)
        || bears_marks_of_its_twin
        || PROVISIONERS.iter().any(ours);
    let class = facts::claim_class(claim);
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    is_seen.then(|| Claim {
        name: ClaimName {
            namespace: claim.namespace().unwrap_or_default(),
            name: claim.name_any(),
        },
        uid: claim.uid().unwrap_or_default(),
        class: class.map(str::to_owned),
        is_in_both: is_in_both(claim),
        depends_on: class
            .map(of_class)
            .into_iter()
            .chain(volume.map(of_volume))
            .filter(|_| phase != Some("Bound"))
            .collect(),
        pending,
        has_node: annotations.contains_key(SELECTED_NODE),
        names_class: [mark::REAL_CLASS, mark::LIQO_REAL_CLASS]
            .iter()
            .any(|key| annotations.contains_key(*key)),
        deleting: claim.metadata.deletion_timestamp.is_some(),
        source: claim_source(claim).filter(|_| pending),
        size: facts::claim_size(claim),
        carried: rules.carried(claim.labels(), annotations).digest(),
        twin_condition: twin_condition::current(claim),
        lost: phase == Some("Lost"),
        names_another_volume,
        locked_by: annotations.get(mark::MOVE).cloned(),
        bears_marks_of_its_twin,
    })
}

/// Whether a claim names a `PersistentVolume` that was not provisioned for it: provisioners put the uid of the claim
/// into the name, and make none for a claim that names one.
pub(super) fn names_another_volume(claim: &PersistentVolumeClaim) -> bool {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    reading::volume_name(claim).is_some_and(|name| !name.contains(uid))
}

/// Whether an administrator declares that a claim, or all claims of a class, exist in both clusters.
pub(super) fn is_in_both(object: &impl ResourceExt) -> bool {
    object
        .annotations()
        .get(IN_BOTH_CLUSTERS)
        .is_some_and(|value| value == "true")
}

/// The data source of a claim, in its namespace. This driver does not handle sources of other kinds, and refuses those
/// of other namespaces (only in `dataSourceRef`), which csi-provisioner does not pass on.
pub(super) fn claim_source(claim: &PersistentVolumeClaim) -> Option<ClaimSource> {
    let source = claim.spec.as_ref()?.data_source.as_ref()?;
    match (source.api_group.as_deref(), source.kind.as_str()) {
        (Some(SNAPSHOT_GROUP), "VolumeSnapshot") => Some(ClaimSource::Snapshot(source.name.clone())),
        (None | Some(""), "PersistentVolumeClaim") => Some(ClaimSource::Claim(source.name.clone())),
        _ => None,
    }
}

fn node_attachment(attachment: &VolumeAttachment) -> Option<NodeAttachment> {
    let spec = &attachment.spec;
    let volume = spec.source.persistent_volume_name.clone()?;
    let status = attachment.status.as_ref().filter(|status| status.attached);
    let metadata = status.and_then(|status| status.attachment_metadata.as_ref());
    let path = metadata
        .filter(|_| spec.attacher == DRIVER_NAME)
        .and_then(|metadata| DataPath::from_publish_context(metadata).ok());
    Some(NodeAttachment {
        volume,
        node: spec.node_name.clone(),
        driver: spec.attacher.clone(),
        attached: status.is_some(),
        of_twin: marked_volume(attachment.labels()).is_some(),
        behind: path.and_then(|path| path.source.driver().map(str::to_owned)),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn claims_that_another_driver_has_provisioned_are_not_kept() {
        let is_kept = |provisioner: &str, volume: &str| {
            let mut annotations = json!({facts::BOUND_BY_CONTROLLER: "yes"});
            if !provisioner.is_empty() {
                annotations[PROVISIONERS[0]] = Value::from(provisioner);
            }
            let found = serde_json::from_value(json!({
                "metadata": {"uid": "0c4f3f2e-8a51", "annotations": annotations},
                "spec": {"volumeName": volume},
                "status": {"phase": "Bound"},
            }));
            claim(&found.unwrap(), &CarriedAnnotations::default()).is_some()
        };
        assert!(is_kept(DRIVER_NAME, "pvc-0c4f3f2e-8a51"));
        assert!(is_kept("", "pvc-of-an-earlier-claim"));
        for volume in ["pvc-0c4f3f2e-8a51", "pvc-0c4f3f2e8a"] {
            assert!(!is_kept("real.example", volume), "{volume}");
        }
    }
}
