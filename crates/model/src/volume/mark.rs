//! The keys of labels and annotations that this driver writes or reads, and its finalizer of twins. `marks`
//! and `carried` interpret them.

use std::collections::BTreeMap;

use super::{ClusterId, VolumeName};

/// Annotation of a claim that requests its real class.
pub const REAL_CLASS: &str = "storage.liqo.io/real-storage-class";

/// Liqo's annotation of a claim that requests its real class in a remote cluster.
pub const LIQO_REAL_CLASS: &str = "liqo.io/remote-storage-class";
/// Liqo's annotation of a claim that requests the access modes of its twin there.
pub const LIQO_ACCESS_MODES: &str = "liqo.io/remote-access-modes";

/// Finalizer: keeps a deleted twin until this driver allows its deletion. A twin has no pod, so nothing else
/// would delay the deletion of its data.
pub const TWIN_FINALIZER: &str = "storage.liqo.io/twin";

/// Label of a twin: its home cluster.
pub const HOME_CLUSTER: &str = "storage.liqo.io/home-cluster";
/// Label of a twin: its volume.
pub const VOLUME: &str = "storage.liqo.io/volume";
/// Label of a twin: the tool that manages it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] on every object that this driver creates.
pub const MANAGED_BY_US: &str = super::DRIVER_NAME;

/// The tool that manages the object with these labels.
#[must_use]
pub fn manager(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(MANAGED_BY).map(String::as_str)
}

/// Annotation: namespace of the claim.
pub const CLAIM_NAMESPACE: &str = "storage.liqo.io/claim-namespace";
/// Annotation: name of the claim.
pub const CLAIM_NAME: &str = "storage.liqo.io/claim-name";
/// Annotation: uid of the claim.
pub const CLAIM_UID: &str = "storage.liqo.io/claim-uid";
/// Annotation: name of the `CreateVolume` request.
pub const REQUEST_NAME: &str = "storage.liqo.io/request-name";
/// Annotation: fingerprint of the `CreateVolume` request.
pub const FINGERPRINT: &str = "storage.liqo.io/fingerprint";
/// Annotation: success was answered; from now on the volume belongs to its user.
pub const HANDED_OVER: &str = "storage.liqo.io/handed-over";
/// Annotation: the keys that were carried from the claim, so that a key that the user removes is removed from
/// the twin, too, and a key of others never is.
pub const CARRIED: &str = "storage.liqo.io/carried";

/// Annotation of a twin's PV: the reclaim policy it had before this driver set it to Retain, because its
/// volume is retained or its data was rescued. It is restored when neither applies any more, and when its
/// volume is deleted.
pub const POLICY_BEFORE: &str = "storage.liqo.io/reclaim-policy-before";

/// Annotation of a claim: the existing PV that its volume adopts, instead of a new one.
pub const ADOPT: &str = "storage.liqo.io/adopt";
/// Annotation of a claim that an import or a release creates again: the PV that it waits for. It is removed
/// once that PV names the claim: the change makes Kubernetes reconcile the claim.
pub const AWAITS_VOLUME: &str = "storage.liqo.io/awaits-volume";
/// Annotation of a PV: the claim, as namespace/name, that may adopt it. Without this permission any user
/// could adopt any PV.
pub const ADOPT_FOR: &str = "storage.liqo.io/adopt-for";
/// Annotation of a twin: the PV that it adopts, so nothing is provisioned.
pub const ADOPTED: &str = "storage.liqo.io/adopted";
/// Annotation of a PV that is being imported: the PV and its claim before. Its reclaim policy is here and not
/// in [`POLICY_BEFORE`], because `DeleteVolume` restores that one.
pub const IMPORT: &str = "storage.liqo.io/import";
/// Annotation of a content whose snapshot is being imported: both objects before.
pub const IMPORT_SNAPSHOT: &str = "storage.liqo.io/import-snapshot";
/// Annotation of a claim or a snapshot that still exists while its import is being undone: a concurrent
/// import, which has an older version of the object, cannot delete it.
pub const IMPORT_UNDONE: &str = "storage.liqo.io/import-undone";

/// Annotation of a PV that is being released: the volume and its claim before. Its reclaim policy is here, as
/// for an import.
pub const RELEASE: &str = "storage.liqo.io/release";
/// Annotation of a twin whose volume is being released, as namespace/name of the claim: until it is removed,
/// this driver neither uses, changes, recovers nor deletes the twin.
pub const RELEASING: &str = "storage.liqo.io/releasing";
/// Annotation of a claim or a twin that still exists while its release is being undone, like
/// [`IMPORT_UNDONE`] for an import.
pub const RELEASE_UNDONE: &str = "storage.liqo.io/release-undone";

/// Annotation of a twin's PV in a remote cluster: the volume whose data it holds. Names of claims are reused
/// there, so a `claimRef` alone proves nothing after its claim was deleted. On the retained content of a
/// snapshot: the id of the snapshot.
pub const DATA_OF: &str = "storage.liqo.io/data-of";

/// Label of a snapshot's twin: its snapshot.
pub const SNAPSHOT: &str = "storage.liqo.io/snapshot";
/// Annotation of a snapshot's twin: id of its volume.
pub const SNAPSHOT_SOURCE: &str = "storage.liqo.io/snapshot-source";
/// Annotation of a snapshot's twin: namespace of the user's `VolumeSnapshot`.
pub const SNAPSHOT_NAMESPACE: &str = "storage.liqo.io/snapshot-namespace";
/// Annotation of a snapshot's twin: name of the user's `VolumeSnapshot`.
pub const SNAPSHOT_NAME: &str = "storage.liqo.io/snapshot-name";
/// Annotation of a snapshot's twin: from where its volume was accessible, as the node affinity of a PV.
pub const SOURCE_AFFINITY: &str = "storage.liqo.io/source-affinity";
/// Annotation of a claim with a data source whose pod was scheduled to a node that cannot have a copy: the
/// cluster of its source. From then on this driver selects the node.
pub const SOURCE_AT: &str = "storage.liqo.io/source-at";

/// Annotation of the content of a snapshot's twin: the deletion policy it had before this driver set it to
/// Retain, so that the data survives if another client deletes the twin, or because the user's content has
/// that policy.
pub const DELETION_POLICY_BEFORE: &str = "storage.liqo.io/deletion-policy-before";

/// Annotation of the content of a user's snapshot: the content of its twin, which refers to the data even
/// after the twin was deleted.
pub const REAL_CONTENT: &str = "storage.liqo.io/real-content";
/// Annotation of the content of a user's snapshot: what is wrong with its twin, as a sentence.
pub const TWIN_TROUBLE: &str = "storage.liqo.io/twin-trouble";

/// Annotation of our attachment of a twin's PV: its version when `ControllerPublish` found it and needed it
/// again.
pub const CONFIRMED: &str = "storage.liqo.io/confirmed-version";

/// Annotation and finalizer of a claim that is being moved, and finalizer of its virtual PV and of the
/// `VolumeMove`. Label of the target until it is handed over. As annotation and label: the uid of the move.
/// It counts only while a `VolumeMove` of that uid exists.
pub const MOVE: &str = "storage.liqo.io/move";
/// Attribute of the PV of a mover: the side and uid of its move, as `source:<uid>` or `target:<uid>`. No
/// other PV has it.
pub const MOVER: &str = "storage.liqo.io/mover";
/// Label of the objects that a move creates for its movers: their side, `source` or `target`.
pub const MOVE_SIDE: &str = "storage.liqo.io/move-side";
/// Annotation of a pod of a move: a digest of its desired spec, by which an outdated pod is recognised and
/// replaced.
pub const MADE_AS: &str = "storage.liqo.io/made-as";
/// Annotation of a claim: the change of its virtual PV after which this driver last changed the
/// claim, so that Kubernetes reconciles it.
pub const MOVE_TOUCHED: &str = "storage.liqo.io/move-touched";
/// Annotation of a virtual PV: the fields that the gate of a move replaced, or that they are restored.
pub const GATE: &str = "storage.liqo.io/gate";
/// Annotation of the source: whether its volume is moving, has moved, or was rolled back.
pub const SOURCE_OF: &str = "storage.liqo.io/source-of-move";
/// Annotation of a twin, and of our attachment of one: the epoch of the volume at its creation. Absent: it
/// had never moved.
pub const EPOCH: &str = "storage.liqo.io/epoch";

/// Annotation of a fabric's copy of a claim under the name of a twin, which this driver is deleting.
pub const COPY_REMOVED: &str = "storage.liqo.io/copy-removed";

/// Condition of a claim: the health of its twin.
pub const TWIN_READY: &str = "storage.liqo.io/TwinReady";

/// The keys that only twins have: Kosmos copies them to the claim that the twin was created for.
pub const ON_TWINS_ONLY: Marked = Marked {
    labels: &[MANAGED_BY, HOME_CLUSTER, VOLUME],
    annotations: &[
        CLAIM_NAMESPACE,
        CLAIM_NAME,
        CLAIM_UID,
        REQUEST_NAME,
        FINGERPRINT,
        HANDED_OVER,
        CARRIED,
        EPOCH,
    ],
};

#[derive(Debug)]
pub struct Marked {
    pub labels: &'static [&'static str],
    pub annotations: &'static [&'static str],
}

/// Label selector of all twins that serve a home cluster.
#[must_use]
pub fn selector(home: &ClusterId) -> String {
    format!("{MANAGED_BY}={MANAGED_BY_US},{HOME_CLUSTER}={home}")
}

/// Label selector of the objects of one volume of this home cluster.
#[must_use]
pub fn volume_selector(home: &ClusterId, volume: &VolumeName) -> String {
    format!("{},{VOLUME}={volume}", selector(home))
}

/// Label selector of the twins of all snapshots of a home cluster.
#[must_use]
pub fn snapshot_selector(home: &ClusterId) -> String {
    format!("{},{SNAPSHOT}", selector(home))
}
