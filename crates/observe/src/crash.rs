//! Crash points: places where a test can abort the process as by kill -9, one on each side of every step
//! that changes something outside of the process. They exist only in builds with debug assertions, which
//! releases are not: there [`around`] only executes the step.
//!
//! Two writes have no crash points: the node plugin's record of the cluster id, which is written once,
//! atomically, before it serves anything; and events, on which nothing depends.
//!
//! A test orders crashes by writing names of crash points (`before-` or `after-` and the name of a step), one
//! per line, into the file `crash-at` next to the process's CSI socket, or for a command in the folder of the
//! environment variable `LIQO_CSI_CRASH_ORDERS`. Each order is executed once: its line is removed before the
//! process aborts.

/// Defines the steps, so that the list of all is complete.
macro_rules! steps {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)+) => {
        /// A step that changes something outside of the process.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step {
            $($(#[doc = $doc])* $variant,)+
        }

        #[cfg(any(test, debug_assertions))]
        impl Step {
            const ALL: &[Self] = &[$(Self::$variant,)+];

            const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

steps! {
    TwinCreate = "twin-create",
    /// Reserves a static PV for the twin.
    Prebind = "prebind",
    /// Sets the static PV in the spec of the twin.
    TellVolume = "tell-volume",
    /// Removes the reservation of a static PV.
    ReleasePrebind = "release-prebind",
    /// Sets the twin's PV to Retain.
    Retain = "retain",
    /// Marks the twin as handed over.
    HandOver = "hand-over",
    /// Deletes a twin that was never handed over.
    Withdraw = "withdraw",
    /// Adds our finalizer to a twin that lacks it.
    AddFinalizer = "add-finalizer",
    /// Removes our finalizer from a twin that is being deleted.
    RemoveFinalizer = "remove-finalizer",
    /// Deletes the twin of a deleted volume.
    TwinDelete = "twin-delete",
    /// Creates the attachment of the twin.
    AttachmentCreate = "attachment-create",
    /// Updates an existing attachment, because it is needed again.
    AttachmentConfirm = "attachment-confirm",
    /// Deletes the attachment of the twin.
    AttachmentDelete = "attachment-delete",
    /// Publishes the capacity on a set of nodes.
    CapacityWrite = "capacity-write",
    /// Deletes obsolete capacities.
    CapacityDelete = "capacity-delete",
    /// Labels a virtual node.
    NodeLabel = "node-label",
    /// Writes the `CSINode` of a virtual node.
    CsiNodeWrite = "csi-node-write",
    /// Creates, updates or deletes a `RemoteCluster`, or adds our finalizer.
    ClusterWrite = "cluster-write",
    /// Stores that a cluster has refused a twin.
    NoteRefusal = "note-refusal",
    /// Updates the condition of a claim about its twin.
    Mirror = "mirror",
    /// Requests a larger size of the twin.
    Expand = "expand",
    /// Sets another attributes class on a twin.
    Modify = "modify",
    /// Completes the expansion of a twin after its node has grown the file system.
    FinishExpansion = "finish-expansion",
    /// Updates the size of a claim from that of its remote twin.
    MirrorSize = "mirror-size",
    /// Carries labels and annotations of a claim to its twin.
    Sync = "sync",
    /// Selects the node of a claim whose pod has a fixed node.
    SelectNode = "select-node",
    /// Marks a claim whose source is in another place than its node.
    NoteSource = "note-source",
    /// Selects a node for a claim that can have a copy of its source.
    SelectSourceNode = "select-source-node",
    /// Sets the PV of a twin that is being deleted to Retain.
    Rescue = "rescue",
    /// Marks the PV of a remote twin with its volume.
    MarkHolder = "mark-holder",
    /// Creates a deleted twin again.
    TwinAgain = "twin-again",
    /// Makes a retained PV name the twin that was created again.
    PassOn = "pass-on",
    /// Restores the reclaim policy of a rescued PV.
    PolicyBack = "policy-back",
    /// Creates the twin of a snapshot.
    SnapshotCreate = "snapshot-create",
    /// Deletes the twin of a snapshot that is no longer needed.
    SnapshotGiveUp = "snapshot-give-up",
    /// Deletes the twin of a deleted snapshot.
    SnapshotDelete = "snapshot-delete",
    /// Records the content of the twin, or what is wrong with the twin, on the content of the user's
    /// snapshot.
    SnapshotNote = "snapshot-note",
    /// Sets the content of a snapshot's twin to Retain.
    SnapshotRetain = "snapshot-retain",
    /// Restores the deletion policy of the content of a snapshot's twin.
    SnapshotPolicyBack = "snapshot-policy-back",
    /// Allows a restore to change the volume mode of a snapshot's twin.
    AllowModeChange = "allow-mode-change",
    /// Makes an adopted PV name the twin that will be created.
    AdoptReserve = "adopt-reserve",
    /// Removes the request to adopt a PV from an imported claim.
    SettleClaim = "settle-claim",
    /// Restores the reclaim policy of an imported PV, and removes the record.
    SettleVolume = "settle-volume",
    /// Retains a PV and records it for an import.
    ImportMark = "import-mark",
    /// Deletes the claim that is imported.
    ImportDelete = "import-delete",
    /// Creates the imported claim again, with a class of this driver.
    ImportMake = "import-make",
    /// Selects a node for the imported claim, because it has none.
    ImportSelect = "import-select",
    /// Undo of an import: forbids the adoption of the PV.
    UndoForbid = "undo-forbid",
    /// Changes the claim, so that an import cannot delete it.
    UndoTouch = "undo-touch",
    /// Deletes the claim of this driver's class.
    UndoDelete = "undo-delete",
    /// Deletes the twin of that claim.
    UndoTwin = "undo-twin",
    /// Makes the PV name its previous claim again.
    UndoGiveBack = "undo-give-back",
    /// Creates that claim again.
    UndoRemake = "undo-remake",
    /// Changes that claim, so that Kubernetes reconciles it after the PV names it.
    UndoWake = "undo-wake",
    /// Restores the PV to its state before the import.
    UndoRestore = "undo-restore",
    /// Removes the mark of the undo from the claim.
    UndoUntouch = "undo-untouch",
    /// Retains the content of a snapshot and records it for an import.
    SnapshotImportMark = "snapshot-import-mark",
    /// Creates a content for the same data, for the twin.
    SnapshotImportContent = "snapshot-import-content",
    /// Sets that content to Retain again.
    SnapshotImportRetain = "snapshot-import-retain",
    /// Creates the twin of an imported snapshot.
    SnapshotImportTwin = "snapshot-import-twin",
    /// Deletes the user's object of a snapshot that is imported.
    SnapshotImportDelete = "snapshot-import-delete",
    /// Creates the content of the new snapshot.
    SnapshotImportUserContent = "snapshot-import-user-content",
    /// Creates the new snapshot.
    SnapshotImportMake = "snapshot-import-make",
    /// Deletes the previous content, which is retained.
    SnapshotImportForget = "snapshot-import-forget",
    /// Changes a snapshot whose import is undone, so that the import cannot delete it.
    SnapshotUndoTouch = "snapshot-undo-touch",
    /// Deletes the twin of the import.
    SnapshotUndoTwin = "snapshot-undo-twin",
    /// Deletes the content of that twin, which is retained.
    SnapshotUndoContent = "snapshot-undo-content",
    /// Restores the content to its state before the import.
    SnapshotUndoRestore = "snapshot-undo-restore",
    /// Removes the mark of the undo from the snapshot.
    SnapshotUndoUntouch = "snapshot-undo-untouch",
    /// Marks the twin of a volume that is released.
    ReleaseMark = "release-mark",
    /// Retains the real PV and records the release on it.
    ReleaseRecord = "release-record",
    /// Retains the virtual PV.
    ReleaseRetain = "release-retain",
    /// Deletes the claim that is released.
    ReleaseClaim = "release-claim",
    /// Removes a sidecar's finalizer from the virtual PV, because the sidecar does not.
    ReleaseFinalizer = "release-finalizer",
    /// Deletes the virtual PV.
    ReleaseVirtual = "release-virtual",
    /// Deletes the twin, whose PV is retained.
    ReleaseTwin = "release-twin",
    /// Makes the real PV name the claim.
    ReleaseGive = "release-give",
    /// Creates the claim again, with the real class.
    ReleaseMake = "release-make",
    /// Changes the claim, so that Kubernetes reconciles it after the real PV names it.
    ReleaseWake = "release-wake",
    /// Sets the final reclaim policy of the real PV, and removes the record.
    ReleaseSettle = "release-settle",
    /// Records that a release is undone.
    UnreleaseWithdraw = "unrelease-withdraw",
    /// Changes the claim, so that the release cannot delete it.
    UnreleaseTouch = "unrelease-touch",
    /// Changes the twin, so that the release cannot delete it.
    UnreleaseTouchTwin = "unrelease-touch-twin",
    /// Creates the virtual PV again.
    UnreleaseVirtual = "unrelease-virtual",
    /// Makes the virtual PV name its claim again, or the deleted one.
    UnreleaseGive = "unrelease-give",
    /// Creates that claim again.
    UnreleaseMake = "unrelease-make",
    /// Changes the claim, so that Kubernetes reconciles it after the virtual PV names it.
    UnreleaseWake = "unrelease-wake",
    /// Restores the reclaim policy of the virtual PV.
    UnreleasePolicy = "unrelease-policy",
    /// Removes the mark from the twin.
    UnreleaseMark = "unrelease-mark",
    /// Restores the real PV to its state before the release.
    UnreleaseRestore = "unrelease-restore",
    /// Removes the mark of the undo from the claim.
    UnreleaseUntouch = "unrelease-untouch",
    /// Turns the release into an import, because the twin was deleted.
    UnreleaseImport = "unrelease-import",
    /// Adds our finalizer to a `VolumeMove`, before anything else.
    MoveHold = "move-hold",
    /// Writes the status of a `VolumeMove`.
    MoveStatus = "move-status",
    /// Removes our finalizer from a finished `VolumeMove`.
    MoveLetGo = "move-let-go",
    /// Evicts a pod that uses a claim.
    MoveEvict = "move-evict",
    /// Locks a claim that will be moved.
    MoveLock = "move-lock",
    /// Unlocks a claim after its move, or if it is not moved.
    MoveUnlock = "move-unlock",
    /// Changes a claim, so that Kubernetes reconciles it and its PV.
    MoveTouch = "move-touch",
    /// Gates the virtual PV of a volume that is moved.
    MoveGate = "move-gate",
    /// Makes a gated PV name its claim again.
    MoveGiveBack = "move-give-back",
    /// Restores the reclaim policy of a PV that was gated.
    MoveRestorePolicy = "move-restore-policy",
    /// Gates the real PV of a remote source.
    MoveGateThere = "move-gate-there",
    /// Makes that PV name the source again.
    MoveOpenThere = "move-open-there",
    /// Restores the reclaim policy of that PV.
    MoveOpenedThere = "move-opened-there",
    /// Marks a PV that was not gated, so that a delayed write of the gate fails.
    MoveRefuseGate = "move-refuse-gate",
    /// Sets a PV that will be replaced to Retain again.
    MoveRetain = "move-retain",
    /// Deletes the virtual PV that refers to the source.
    MoveDeleteVolume = "move-delete-volume",
    /// Removes the finalizers from a virtual PV that is being deleted.
    MoveLetVolumeGo = "move-let-volume-go",
    /// Creates a virtual PV from its record in the status.
    MoveMakeVolume = "move-make-volume",
    /// Marks the source as moving, rolled back or superseded.
    MoveMarkSource = "move-mark-source",
    /// Retains the PV of the target.
    MoveRetainTarget = "move-retain-target",
    /// Removes our finalizer from a twin that will be deleted.
    MoveFreeTwin = "move-free-twin",
    /// Deletes the target.
    MoveDeleteTarget = "move-delete-target",
    /// Creates the target again under the name of the claim.
    MoveTakeName = "move-take-name",
    /// Makes `claimRef` of the target's PV name that twin.
    MovePassOn = "move-pass-on",
    /// Marks the target as handed over.
    MoveHandOver = "move-hand-over",
    /// Retains the PV of the superseded twin before the twin is deleted.
    MoveRetainSource = "move-retain-source",
    /// Gives the superseded twin the epoch after the target's, or creates it again for that epoch.
    MoveRecoverSource = "move-recover-source",
    /// Makes the PV of the superseded twin name the new one.
    MoveRecoverVolume = "move-recover-volume",
    /// Deletes the superseded twin, which was created again.
    MoveForgetSource = "move-forget-source",
    /// Marks the target, for which the source was recovered.
    MoveSupersedeTarget = "move-supersede-target",
    /// Deletes the superseded twin.
    MoveReleaseSource = "move-release-source",
    /// Creates the target of a move.
    MoveMakeTarget = "move-make-target",
    /// Issues the certificates of a move.
    MoveIssue = "move-issue",
    /// Creates the PV by which a mover mounts a twin at home.
    MoveMakeMoverVolume = "move-make-mover-volume",
    /// Creates the claim of that PV.
    MoveMakeMoverClaim = "move-make-mover-claim",
    /// Creates a pod of a move.
    MoveMakePod = "move-make-pod",
    /// Creates the Secret with the certificate of that pod.
    MoveMakePodSecret = "move-make-pod-secret",
    MoveDeletePod = "move-delete-pod",
    /// Deletes the claim of a mover.
    MoveDeleteMoverClaim = "move-delete-mover-claim",
    /// Deletes the PV of a mover.
    MoveDeleteMoverVolume = "move-delete-mover-volume",
    /// Deletes the certificates of a move.
    MoveForgetCertificates = "move-forget-certificates",
    /// Adds our finalizer to a `NamespaceOffloading`.
    OffloadHold = "offload-hold",
    /// Adds or removes the label of offloaded namespaces.
    OffloadLabel = "offload-label",
    /// Writes the status of a `NamespaceOffloading`.
    OffloadStatus = "offload-status",
    /// Creates a remote namespace.
    OffloadCreate = "offload-create",
    /// Evicts a pod at home from a cluster into which its namespace is no longer extended.
    OffloadEvict = "offload-evict",
    /// Deletes a remote namespace.
    OffloadDelete = "offload-delete",
    /// Removes our finalizer from a `NamespaceOffloading` that is being deleted.
    OffloadLetGo = "offload-let-go",
    /// Adds or removes the fabric's finalizer of a `RemoteCluster`.
    FabricHold = "fabric-hold",
    /// Creates the fabric's `RoleBinding` in a remote namespace that it created.
    OffloadBind = "offload-bind",
    /// Creates the virtual node of a cluster.
    FabricNodeMake = "fabric-node-make",
    /// Writes labels, taints or status of the virtual node.
    FabricNodeWrite = "fabric-node-write",
    /// Records in the `RemoteCluster` what others have set on the virtual node.
    FabricNodeRemember = "fabric-node-remember",
    /// Renews the lease of the virtual node.
    FabricNodeLease = "fabric-node-lease",
    /// Deletes the virtual node.
    FabricNodeDelete = "fabric-node-delete",
    /// Publishes to the API server which nodes are the fabric's.
    FabricNodeList = "fabric-node-list",
    /// Removes the gate of a pod whose claims were looked up.
    OpenClaimsGate = "open-claims-gate",
    /// Adds the finalizer to a home pod, and records where it runs.
    PodClaim = "pod-claim",
    /// Creates the remote pod, gated.
    PodMake = "pod-make",
    /// Removes the gate of a remote pod.
    PodUngate = "pod-ungate",
    /// Writes the status of a home pod.
    PodStatus = "pod-status",
    /// Carries changes of a home pod to its remote pod.
    PodChange = "pod-change",
    /// Deletes a remote pod.
    PodDeleteThere = "pod-delete-there",
    /// Records that new pods of a controller avoid a cluster, because no node there takes a pod of it.
    PodAvoid = "pod-avoid",
    /// Deletes that remote pod, which has no node.
    PodGiveUp = "pod-give-up",
    /// Deletes a home pod, because others have deleted its remote pod.
    PodEnd = "pod-end",
    /// Removes the finalizer of a home pod.
    PodLetGo = "pod-let-go",
    /// Deletes a terminated home pod from the API server, as a kubelet does.
    PodFree = "pod-free",
    /// Requests a serving certificate for the kubelet's API.
    ServingRequest = "serving-request",
    /// Approves that request.
    ServingApprove = "serving-approve",
    /// Requests a new token from a remote cluster.
    TokenRenew = "token-renew",
    /// Stores the token, or removes that of a deleted cluster.
    TokenWrite = "token-write",
    /// Creates the `RoleBinding` to read a namespace's objects that are copied.
    ReflectBind = "reflect-bind",
    /// Deletes that `RoleBinding`.
    ReflectUnbind = "reflect-unbind",
    /// Creates a copy in a remote namespace.
    ReflectCreate = "reflect-create",
    ReflectPatch = "reflect-patch",
    ReflectDelete = "reflect-delete",
    /// Acquires or renews the lease of the background controllers.
    LeaseWrite = "lease-write",
    /// Writes the node's record of a volume.
    RecordWrite = "record-write",
    /// Removes the node's record of a volume.
    RecordRemove = "record-remove",
    /// Stages a volume, by its driver or by the node plugin.
    NodeStage = "node-stage",
    NodePublish = "node-publish",
    NodeUnpublish = "node-unpublish",
    NodeUnstage = "node-unstage",
}

/// Executes a step; aborts the process before or after it if a test ordered that.
///
/// # Errors
/// Those of the step.
#[cfg(not(debug_assertions))]
pub async fn around<T, E>(_: Step, taken: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    taken.await
}

/// Does nothing in a build without crash points.
#[cfg(not(debug_assertions))]
pub fn take_orders(_: &std::path::Path) {}

/// Does nothing in a build without crash points.
#[cfg(not(debug_assertions))]
pub fn take_orders_of_command() {}

#[cfg(debug_assertions)]
pub use ordered::{around, take_orders, take_orders_of_command};

/// The names of all crash points.
#[cfg(any(test, debug_assertions))]
pub fn points() -> impl Iterator<Item = String> {
    Step::ALL.iter().flat_map(|&step| [before(step), after(step)])
}

#[cfg(any(test, debug_assertions))]
fn before(step: Step) -> String {
    format!("before-{}", step.name())
}

#[cfg(any(test, debug_assertions))]
fn after(step: Step) -> String {
    format!("after-{}", step.name())
}

/// The orders without the one of this name; `None` if there is no such order.
#[cfg(any(test, debug_assertions))]
fn without(orders: &str, name: &str) -> Option<String> {
    let rest: Vec<_> = orders.lines().filter(|line| *line != name).collect();
    (rest.len() < orders.lines().count()).then(|| rest.join("\n"))
}

/// Executes the orders.
#[cfg(debug_assertions)]
mod ordered {
    use std::{
        fs,
        path::{Path, PathBuf},
        sync::OnceLock,
    };

    use tokio::sync::Mutex;

    use super::{Step, after, before, without};

    static ORDERS: OnceLock<PathBuf> = OnceLock::new();

    /// Locked by a step with an order. Otherwise the abort in one controller could come between the step of
    /// another and the abort after it: after the restart that step is not needed any more, and its order
    /// would never be executed.
    static ALONE: Mutex<()> = Mutex::const_new(());

    /// Reads orders from the file `crash-at` in this folder from now on.
    pub fn take_orders(folder: &Path) {
        // A second start (tests) keeps the first one's folder.
        let _already = ORDERS.set(folder.join("crash-at"));
    }

    /// Reads orders from the folder in the environment variable: a command has no socket.
    pub fn take_orders_of_command() {
        if let Some(folder) = std::env::var_os("LIQO_CSI_CRASH_ORDERS") {
            take_orders(Path::new(&folder));
        }
    }

    /// Executes a step; aborts the process before or after it if a test ordered that.
    ///
    /// # Errors
    /// Those of the step.
    pub async fn around<T, E>(step: Step, taken: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let ordered = is_ordered(&before(step)) || is_ordered(&after(step));
        let _alone = if ordered { Some(ALONE.lock().await) } else { None };
        die_if_ordered(&before(step));
        let outcome = taken.await;
        if outcome.is_ok() {
            die_if_ordered(&after(step));
        }
        outcome
    }

    fn orders() -> Option<(&'static PathBuf, String)> {
        let file = ORDERS.get()?;
        Some((file, fs::read_to_string(file).ok()?))
    }

    fn is_ordered(point: &str) -> bool {
        orders().is_some_and(|(_, orders)| without(&orders, point).is_some())
    }

    /// No destructor runs.
    fn die_if_ordered(point: &str) {
        let Some((file, orders)) = orders() else { return };
        let Some(rest) = without(&orders, point) else {
            return;
        };
        // Renamed, so that neither another step nor the test reads half of it.
        let rewritten = file.with_extension("new");
        let written = fs::write(&rewritten, rest).and_then(|()| fs::rename(&rewritten, file));
        if let Err(error) = written {
            tracing::error!(%error, "cannot remove the crash order {point} from the file");
            return;
        }
        tracing::error!(crash_point = point, "dying on request");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crash_point_names_are_unique() {
        let mut names: Vec<String> = points().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 2 * Step::ALL.len());
    }

    #[test]
    fn a_crash_order_is_removed_from_the_list() {
        assert_eq!(without("a\nb\nc", "b"), Some("a\nc".into()));
        assert_eq!(without("a", "a"), Some(String::new()));
        assert_eq!(without("ab", "a"), None);
        assert_eq!(without("", "a"), None);
    }
}
