//! The keys of the labels and annotations this driver writes or reads, and its finalizer
//! of twins. What they mean together is said in `marks` and `carried`.

use std::collections::BTreeMap;

use super::{ClusterId, VolumeName};

/// Annotation of a claim that chooses its real class.
pub const REAL_CLASS: &str = "storage.liqo.io/real-storage-class";

/// Liqo's annotation of a claim that chooses its real class in a remote cluster.
pub const LIQO_REAL_CLASS: &str = "liqo.io/remote-storage-class";
/// Liqo's annotation of a claim that chooses the access modes of its twin there.
pub const LIQO_ACCESS_MODES: &str = "liqo.io/remote-access-modes";

/// Finalizer: keeps a deleted twin in sight until this driver agrees. A twin has no pod, so
/// nothing else would keep its data from going with it.
pub const TWIN_FINALIZER: &str = "storage.liqo.io/twin";

/// Label: the home cluster a twin serves.
pub const HOME_CLUSTER: &str = "storage.liqo.io/home-cluster";
/// Label: the volume a twin holds.
pub const VOLUME: &str = "storage.liqo.io/volume";
/// Label: who looks after a twin.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] on everything this driver makes.
pub const MANAGED_BY_US: &str = super::DRIVER_NAME;

/// Which tool manages the object with these labels.
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
/// Annotation: success was answered, the volume belongs to its user now.
pub const HANDED_OVER: &str = "storage.liqo.io/handed-over";
/// Annotation: which keys were carried from the claim, so that a key the user
/// removes is removed from the twin too, and nobody else's key ever is.
pub const CARRIED: &str = "storage.liqo.io/carried";

/// Annotation of a twin's PV: the reclaim policy it had before this driver set it to
/// Retain, because its volume is to be retained or its data was rescued. It gets that back
/// when neither is so any more, and when its volume is deleted.
pub const POLICY_BEFORE: &str = "storage.liqo.io/reclaim-policy-before";

/// Annotation of a claim: the existing PV that its volume is to be, instead of a new one.
pub const ADOPT: &str = "storage.liqo.io/adopt";
/// Annotation of a claim that an import or a release makes again: the PV that it waits for. It is
/// taken off once that names the claim, so that Kubernetes looks at the claim then.
pub const AWAITS_VOLUME: &str = "storage.liqo.io/awaits-volume";
/// Annotation of a PV: the claim, as namespace/name, that may adopt it. Without this permission
/// any user could name any PV.
pub const ADOPT_FOR: &str = "storage.liqo.io/adopt-for";
/// Annotation of a twin: the PV that it was made for, which nobody provisions.
pub const ADOPTED: &str = "storage.liqo.io/adopted";
/// Annotation of a PV that is being imported: what it and its claim were before. Its reclaim
/// policy is in here and not in [`POLICY_BEFORE`], for `DeleteVolume` gives that back.
pub const IMPORT: &str = "storage.liqo.io/import";
/// Annotation of a content whose snapshot is being imported: what both were before.
pub const IMPORT_SNAPSHOT: &str = "storage.liqo.io/import-snapshot";
/// Annotation of a claim or a snapshot whose import is being undone while it exists still: whoever wants to
/// delete it for the import has an older version of it, and is refused.
pub const IMPORT_UNDONE: &str = "storage.liqo.io/import-undone";

/// Annotation of a PV that is being released: what the volume and its claim were before. Its
/// reclaim policy is in here, as that of an import is.
pub const RELEASE: &str = "storage.liqo.io/release";
/// Annotation of a twin whose volume is being released, as namespace/name of the claim: until
/// it is off, this driver neither uses, changes, repairs nor deletes the twin.
pub const RELEASING: &str = "storage.liqo.io/releasing";
/// Annotation of a claim or a twin whose release is being undone while it exists still, as
/// [`IMPORT_UNDONE`] is for an import.
pub const RELEASE_UNDONE: &str = "storage.liqo.io/release-undone";

/// Annotation of a twin's PV in a remote cluster: whose data it holds. Names of claims
/// are used again there, so a `claimRef` alone says nothing once its claim is gone.
/// Of a snapshot's content that is retained: the id of the snapshot.
pub const DATA_OF: &str = "storage.liqo.io/data-of";

/// Label: the snapshot that an object is the twin of.
pub const SNAPSHOT: &str = "storage.liqo.io/snapshot";
/// Annotation of a snapshot's twin: id of the volume it is of.
pub const SNAPSHOT_SOURCE: &str = "storage.liqo.io/snapshot-source";
/// Annotation of a snapshot's twin: namespace of the user's `VolumeSnapshot`.
pub const SNAPSHOT_NAMESPACE: &str = "storage.liqo.io/snapshot-namespace";
/// Annotation of a snapshot's twin: name of the user's `VolumeSnapshot`.
pub const SNAPSHOT_NAME: &str = "storage.liqo.io/snapshot-name";
/// Annotation of a snapshot's twin: from where the volume it is of could be reached, as the
/// node affinity of a PV.
pub const SOURCE_AFFINITY: &str = "storage.liqo.io/source-affinity";
/// Annotation of a claim with a data source whose pod was sent where no copy can be made:
/// the cluster of its source. From then on this driver chooses the node.
pub const SOURCE_AT: &str = "storage.liqo.io/source-at";

/// Annotation of the content of a snapshot's twin: the deletion policy it had before this
/// driver set it to Retain: so that the data stays if somebody else deletes the twin, or because
/// the user's content has that policy.
pub const DELETION_POLICY_BEFORE: &str = "storage.liqo.io/deletion-policy-before";

/// Annotation of the content of a user's snapshot: the content of its twin, which has the data
/// also when the twin is gone.
pub const REAL_CONTENT: &str = "storage.liqo.io/real-content";
/// Annotation of the content of a user's snapshot: what is wrong with its twin, in a sentence.
pub const TWIN_TROUBLE: &str = "storage.liqo.io/twin-trouble";

/// Annotation of our attachment of a twin's PV: the version of it that `ControllerPublish`
/// found and needs again.
pub const CONFIRMED: &str = "storage.liqo.io/confirmed-version";

/// Annotation and finalizer of a claim that is being moved, and finalizer of its virtual PV and
/// of the `VolumeMove`. Label of the target's twin until it is handed over. As annotation and
/// label: the uid of the move. It counts only while a `VolumeMove` of that uid exists.
pub const MOVE: &str = "storage.liqo.io/move";
/// Attribute of the PV of a mover: which side of which move it is of, as `source:` or `target:`
/// and the uid of the move. No other PV has it.
pub const MOVER: &str = "storage.liqo.io/mover";
/// Label of what a move makes for its movers: the side that it is for, `source` or `target`.
pub const MOVE_SIDE: &str = "storage.liqo.io/move-side";
/// Annotation of a pod of a move: a digest of what it was made as, by which one is known that is
/// to be replaced.
pub const MADE_AS: &str = "storage.liqo.io/made-as";
/// Annotation of a claim: the change of its virtual PV for which Kubernetes was last made to look
/// at the claim.
pub const MOVE_TOUCHED: &str = "storage.liqo.io/move-touched";
/// Annotation of a virtual PV: what the gate of a move took from it, or that it has it back.
pub const GATE: &str = "storage.liqo.io/gate";
/// Annotation of the source's twin: whether its volume is moving, has moved, or was given back.
pub const SOURCE_OF: &str = "storage.liqo.io/source-of-move";
/// Annotation of a twin, and of our attachment of one: how often its volume had moved when it was
/// made. Absent: never.
pub const EPOCH: &str = "storage.liqo.io/epoch";

/// Annotation of a copy that a fabric made of a claim, in the place of a twin, and that this driver is
/// deleting.
pub const COPY_REMOVED: &str = "storage.liqo.io/copy-removed";

/// Condition of a claim: how its twin is.
pub const TWIN_READY: &str = "storage.liqo.io/TwinReady";

/// What a twin bears and no other claim: Kosmos copies it onto the claim that the twin was made for.
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

/// Keys of labels and annotations.
#[derive(Debug)]
pub struct Marked {
    /// Keys of labels.
    pub labels: &'static [&'static str],
    /// Keys of annotations.
    pub annotations: &'static [&'static str],
}

/// Label selector of all twins that serve a home cluster.
#[must_use]
pub fn selector(home: &ClusterId) -> String {
    format!("{MANAGED_BY}={MANAGED_BY_US},{HOME_CLUSTER}={home}")
}

/// The labels of what belongs to one volume of this home cluster.
#[must_use]
pub fn volume_selector(home: &ClusterId, volume: &VolumeName) -> String {
    format!("{},{VOLUME}={volume}", selector(home))
}

/// Label selector of the twins of all snapshots of a home cluster.
#[must_use]
pub fn snapshot_selector(home: &ClusterId) -> String {
    format!("{},{SNAPSHOT}", selector(home))
}
