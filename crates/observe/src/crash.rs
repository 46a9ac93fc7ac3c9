//! Crash points: places where a test can make the process die as if by kill -9,
//! one on each side of every step that changes the world outside. They exist only
//! in builds with debug assertions, which releases are not: there a step is taken
//! as if this file were not there.
//!
//! Two writes have none: the node plugin's note of the cluster's id, written once,
//! in one piece, before it serves anything; and events, which nothing rests on.
//!
//! A test orders crashes by writing names of crash points (`before-` or `after-` and
//! a step's name), one per line, into the file `crash-at` beside the process's CSI
//! socket, or in the folder that the environment variable `LIQO_CSI_CRASH_ORDERS` names to a
//! command. Each order is carried out once: its line is taken out before the process dies.

/// One line per step; the list of all of them cannot fall behind.
macro_rules! steps {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// What changes the world outside.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step {
            $($(#[doc = $doc])+ $variant,)+
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
    /// The twin is created.
    TwinCreate = "twin-create",
    /// A static PV is reserved for the twin.
    Prebind = "prebind",
    /// The twin is told its static PV.
    TellVolume = "tell-volume",
    /// The reservation of a static PV is taken back.
    ReleasePrebind = "release-prebind",
    /// The twin's PV is set to Retain.
    Retain = "retain",
    /// The twin is marked handed over.
    HandOver = "hand-over",
    /// A twin that never served is taken back.
    Withdraw = "withdraw",
    /// Our finalizer is put on a twin that lacks it.
    AddFinalizer = "add-finalizer",
    /// Our finalizer is taken off a twin that is being deleted.
    RemoveFinalizer = "remove-finalizer",
    /// The twin of a deleted volume is deleted.
    TwinDelete = "twin-delete",
    /// The twin's attachment is created.
    AttachmentCreate = "attachment-create",
    /// An attachment that was there before is written on, because it is needed again.
    AttachmentConfirm = "attachment-confirm",
    /// The twin's attachment is deleted.
    AttachmentDelete = "attachment-delete",
    /// The room on a set of nodes is published.
    CapacityWrite = "capacity-write",
    /// Obsolete news of room are deleted.
    CapacityDelete = "capacity-delete",
    /// A virtual node is labelled.
    NodeLabel = "node-label",
    /// The `CSINode` of a virtual node is written.
    CsiNodeWrite = "csi-node-write",
    /// A `RemoteCluster` is made, held, written on or deleted.
    ClusterWrite = "cluster-write",
    /// It is noted that a cluster cannot have a twin.
    NoteRefusal = "note-refusal",
    /// What a claim says about its twin is changed.
    Mirror = "mirror",
    /// The twin of a volume that is to grow is asked for more.
    Expand = "expand",
    /// A twin is given another attributes class.
    Modify = "modify",
    /// The expansion of a twin is ended, because its node has followed.
    FinishExpansion = "finish-expansion",
    /// What a claim says of the size of its remote twin is changed.
    MirrorSize = "mirror-size",
    /// Labels and annotations of a claim are carried to its twin.
    Sync = "sync",
    /// The claim of a pod with a fixed node is told that node.
    SelectNode = "select-node",
    /// It is noted on a claim that its source is elsewhere.
    NoteSource = "note-source",
    /// A claim is told a node that can have a copy of its source.
    SelectSourceNode = "select-source-node",
    /// The PV of a dying twin is set to Retain.
    Rescue = "rescue",
    /// The PV of a remote twin is marked with its volume.
    MarkHolder = "mark-holder",
    /// A vanished twin is made again.
    TwinAgain = "twin-again",
    /// A retained PV is passed on to the twin that was made again.
    PassOn = "pass-on",
    /// A rescued PV gets its reclaim policy back.
    PolicyBack = "policy-back",
    /// The twin of a snapshot is created.
    SnapshotCreate = "snapshot-create",
    /// The twin of a snapshot that nobody waits for is taken back.
    SnapshotGiveUp = "snapshot-give-up",
    /// The twin of a deleted snapshot is deleted.
    SnapshotDelete = "snapshot-delete",
    /// It is noted on the content of a user's snapshot which content its twin has, or what is
    /// wrong with the twin.
    SnapshotNote = "snapshot-note",
    /// The content of a snapshot's twin is set to Retain.
    SnapshotRetain = "snapshot-retain",
    /// The content of a snapshot's twin gets its deletion policy back.
    SnapshotPolicyBack = "snapshot-policy-back",
    /// The volume mode of a snapshot's twin may be changed by a restore.
    AllowModeChange = "allow-mode-change",
    /// A PV that is adopted is passed on to the twin that is to be made.
    AdoptReserve = "adopt-reserve",
    /// A claim that was imported forgets which PV it asked for.
    SettleClaim = "settle-claim",
    /// The PV of a claim that was imported gets its reclaim policy back, and forgets what was.
    SettleVolume = "settle-volume",
    /// A PV is retained and recorded for an import.
    ImportMark = "import-mark",
    /// The claim that is imported is deleted.
    ImportDelete = "import-delete",
    /// The claim that is imported is made anew, with a class of this driver.
    ImportMake = "import-make",
    /// A node is selected for it, because it has none.
    ImportSelect = "import-select",
    /// An import is undone: the PV may not be adopted any more.
    UndoForbid = "undo-forbid",
    /// The claim that was to be imported is written on, so that its deletion fails.
    UndoTouch = "undo-touch",
    /// The claim that was made anew is deleted.
    UndoDelete = "undo-delete",
    /// The twin that was made for it is deleted.
    UndoTwin = "undo-twin",
    /// The PV names the claim that it belonged to again.
    UndoGiveBack = "undo-give-back",
    /// That claim is made again.
    UndoRemake = "undo-remake",
    /// Kubernetes is made to look at it, because the PV names it by now.
    UndoWake = "undo-wake",
    /// The PV is as it was before the import.
    UndoRestore = "undo-restore",
    /// The claim has no mark of the undo any more.
    UndoUntouch = "undo-untouch",
    /// The content of a snapshot is retained and recorded for an import.
    SnapshotImportMark = "snapshot-import-mark",
    /// The twin of an imported snapshot gets a content for the same data.
    SnapshotImportContent = "snapshot-import-content",
    /// That content is retained again.
    SnapshotImportRetain = "snapshot-import-retain",
    /// The twin of an imported snapshot is made.
    SnapshotImportTwin = "snapshot-import-twin",
    /// The user's object of a snapshot that is imported is deleted.
    SnapshotImportDelete = "snapshot-import-delete",
    /// The content of the snapshot that is made anew is made.
    SnapshotImportUserContent = "snapshot-import-user-content",
    /// The snapshot that is imported is made anew.
    SnapshotImportMake = "snapshot-import-make",
    /// The content of before is deleted, which is retained.
    SnapshotImportForget = "snapshot-import-forget",
    /// A snapshot whose import is undone is written on, so that its deletion fails.
    SnapshotUndoTouch = "snapshot-undo-touch",
    /// The twin that was made for it is deleted.
    SnapshotUndoTwin = "snapshot-undo-twin",
    /// The twin's content is deleted, which is retained.
    SnapshotUndoContent = "snapshot-undo-content",
    /// The content is as it was before the import.
    SnapshotUndoRestore = "snapshot-undo-restore",
    /// The snapshot has no mark of the undo any more.
    SnapshotUndoUntouch = "snapshot-undo-untouch",
    /// The twin of a volume that is to be released is marked.
    ReleaseMark = "release-mark",
    /// The real PV of a volume that is released is retained and recorded.
    ReleaseRecord = "release-record",
    /// The virtual PV of a volume that is released is retained.
    ReleaseRetain = "release-retain",
    /// The claim that is released is deleted.
    ReleaseClaim = "release-claim",
    /// A sidecar's finalizer is taken off the virtual PV, because it does not do so.
    ReleaseFinalizer = "release-finalizer",
    /// The virtual PV is deleted.
    ReleaseVirtual = "release-virtual",
    /// The twin is deleted, whose PV stays.
    ReleaseTwin = "release-twin",
    /// The real PV names the claim.
    ReleaseGive = "release-give",
    /// The claim is made anew, with the real class.
    ReleaseMake = "release-make",
    /// Kubernetes is made to look at it, because the real PV names it by now.
    ReleaseWake = "release-wake",
    /// The real PV gets its reclaim policy, and forgets what was.
    ReleaseSettle = "release-settle",
    /// A release is undone: its record says so.
    UnreleaseWithdraw = "unrelease-withdraw",
    /// The claim that was to be released is written on, so that its deletion fails.
    UnreleaseTouch = "unrelease-touch",
    /// The twin is written on, so that its deletion fails.
    UnreleaseTouchTwin = "unrelease-touch-twin",
    /// The virtual PV is made again.
    UnreleaseVirtual = "unrelease-virtual",
    /// The virtual PV names the claim that it belonged to again, or the one that is gone.
    UnreleaseGive = "unrelease-give",
    /// That claim is made again.
    UnreleaseMake = "unrelease-make",
    /// Kubernetes is made to look at it, because the virtual PV names it by now.
    UnreleaseWake = "unrelease-wake",
    /// The virtual PV gets its reclaim policy back.
    UnreleasePolicy = "unrelease-policy",
    /// The twin has no mark any more.
    UnreleaseMark = "unrelease-mark",
    /// The real PV is as it was before the release.
    UnreleaseRestore = "unrelease-restore",
    /// The claim has no mark of the undo any more.
    UnreleaseUntouch = "unrelease-untouch",
    /// The volume is to be imported again, because its twin is gone.
    UnreleaseImport = "unrelease-import",
    /// A `VolumeMove` is held by our finalizer, before anything is done for it.
    MoveHold = "move-hold",
    /// The status of a `VolumeMove` is written.
    MoveStatus = "move-status",
    /// Our finalizer is taken off a `VolumeMove` that is over.
    MoveLetGo = "move-let-go",
    /// The eviction of a pod that uses a claim is asked for.
    MoveEvict = "move-evict",
    /// A claim that is to be moved is locked.
    MoveLock = "move-lock",
    /// A claim that was to be moved, or was, is unlocked.
    MoveUnlock = "move-unlock",
    /// A claim is written on, so that Kubernetes looks at it and its PV.
    MoveTouch = "move-touch",
    /// The virtual PV of a volume that is moved is gated.
    MoveGate = "move-gate",
    /// A gated PV names its claim again.
    MoveGiveBack = "move-give-back",
    /// A PV that was gated gets its reclaim policy back.
    MoveRestorePolicy = "move-restore-policy",
    /// A PV that was not gated is marked, so that a gate that comes late fails.
    MoveRefuseGate = "move-refuse-gate",
    /// A PV that is to be replaced is retained again.
    MoveRetain = "move-retain",
    /// The virtual PV that leads to the source is deleted.
    MoveDeleteVolume = "move-delete-volume",
    /// The finalizers are taken off a virtual PV that is being deleted.
    MoveLetVolumeGo = "move-let-volume-go",
    /// A virtual PV is made from what the status remembers of it.
    MoveMakeVolume = "move-make-volume",
    /// The twin at the source is marked as moving, given back or superseded.
    MoveMarkSource = "move-mark-source",
    /// The PV of the twin at the target is retained.
    MoveRetainTarget = "move-retain-target",
    /// Our finalizer is taken off a twin that is about to be deleted.
    MoveFreeTwin = "move-free-twin",
    /// The twin at the target is deleted.
    MoveDeleteTarget = "move-delete-target",
    /// The twin at the target is made again under the name of the claim.
    MoveTakeName = "move-take-name",
    /// The PV of the target is given to that.
    MovePassOn = "move-pass-on",
    /// The twin at the target is handed over.
    MoveHandOver = "move-hand-over",
    /// The PV of the superseded twin is retained before that is deleted.
    MoveRetainSource = "move-retain-source",
    /// The superseded twin is that of the epoch after the target's, or is made again for that.
    MoveRecoverSource = "move-recover-source",
    /// The PV of the superseded twin is given to the one that was made again.
    MoveRecoverVolume = "move-recover-volume",
    /// The superseded twin that was made again is deleted.
    MoveForgetSource = "move-forget-source",
    /// The target for which the source was given back is marked.
    MoveSupersedeTarget = "move-supersede-target",
    /// The superseded twin is deleted.
    MoveReleaseSource = "move-release-source",
    /// The twin at the target of a move is made.
    MoveMakeTarget = "move-make-target",
    /// The certificates of a move are issued.
    MoveIssue = "move-issue",
    /// The PV is made by which a mover has a twin at home.
    MoveMakeMoverVolume = "move-make-mover-volume",
    /// The claim of that PV is made.
    MoveMakeMoverClaim = "move-make-mover-claim",
    /// A pod of a move is made.
    MoveMakePod = "move-make-pod",
    /// What that pod proves itself with is made.
    MoveMakePodSecret = "move-make-pod-secret",
    /// A pod of a move is deleted.
    MoveDeletePod = "move-delete-pod",
    /// The claim of a mover is deleted.
    MoveDeleteMoverClaim = "move-delete-mover-claim",
    /// The PV of a mover is deleted.
    MoveDeleteMoverVolume = "move-delete-mover-volume",
    /// The certificates of a move are deleted.
    MoveForgetCertificates = "move-forget-certificates",
    /// Our finalizer is put on a `NamespaceOffloading`.
    OffloadHold = "offload-hold",
    /// A namespace is labelled as offloaded, or no more.
    OffloadLabel = "offload-label",
    /// The status of a `NamespaceOffloading` is written.
    OffloadStatus = "offload-status",
    /// A namespace is made in a remote cluster.
    OffloadCreate = "offload-create",
    /// A pod at home is evicted from a cluster that its namespace leaves.
    OffloadEvict = "offload-evict",
    /// A namespace in a remote cluster is deleted.
    OffloadDelete = "offload-delete",
    /// Our finalizer is taken off a `NamespaceOffloading` that is being deleted.
    OffloadLetGo = "offload-let-go",
    /// A `RemoteCluster` is held, or let go, by the fabric.
    FabricHold = "fabric-hold",
    /// The fabric takes the rights that it needs in a namespace that it has made.
    OffloadBind = "offload-bind",
    /// The fabric makes the node that stands for a cluster.
    FabricNodeMake = "fabric-node-make",
    /// It writes labels, taints or status of that node.
    FabricNodeWrite = "fabric-node-write",
    /// It keeps what others have set on that node in the `RemoteCluster`.
    FabricNodeRemember = "fabric-node-remember",
    /// It renews the lease of that node.
    FabricNodeLease = "fabric-node-lease",
    /// It deletes that node.
    FabricNodeDelete = "fabric-node-delete",
    /// The controller says for the API server which nodes are the fabric's.
    FabricNodeList = "fabric-node-list",
    /// The gate is taken off a pod whose claims were looked up.
    OpenClaimsGate = "open-claims-gate",
    /// A home pod gets the finalizer, and is told where it is to run.
    PodClaim = "pod-claim",
    /// The remote pod of a home pod is made, gated.
    PodMake = "pod-make",
    /// A home pod is marked as one that may have run.
    PodStarted = "pod-started",
    /// The gate is taken off a remote pod.
    PodUngate = "pod-ungate",
    /// The status of a home pod is written.
    PodStatus = "pod-status",
    /// What has changed of a home pod is carried to its remote pod.
    PodChange = "pod-change",
    /// A remote pod is deleted.
    PodDeleteThere = "pod-delete-there",
    /// A home pod is deleted, because others have deleted its remote pod.
    PodEnd = "pod-end",
    /// The finalizer is taken off a home pod.
    PodLetGo = "pod-let-go",
    /// A home pod that ended is taken from the API server, as a kubelet does.
    PodFree = "pod-free",
    /// A serving certificate for the kubelet's API is asked for.
    ServingRequest = "serving-request",
    /// The request for it is approved.
    ServingApprove = "serving-approve",
    /// A remote cluster is asked for another token.
    TokenRenew = "token-renew",
    /// It is kept, or what is kept of a cluster that is gone is taken out.
    TokenWrite = "token-write",
    /// The fabric takes the right to read what a namespace has for its remote ones.
    ReflectBind = "reflect-bind",
    /// It gives that right back.
    ReflectUnbind = "reflect-unbind",
    /// The copy of an object is made in a remote namespace.
    ReflectCreate = "reflect-create",
    /// A copy is changed.
    ReflectPatch = "reflect-patch",
    /// A copy is deleted.
    ReflectDelete = "reflect-delete",
    /// The lease of the background loops is taken or renewed.
    LeaseWrite = "lease-write",
    /// The node's record of a volume is written.
    RecordWrite = "record-write",
    /// The node's record of a volume is removed.
    RecordRemove = "record-remove",
    /// A volume is staged, by its driver or by us.
    NodeStage = "node-stage",
    /// A volume is published.
    NodePublish = "node-publish",
    /// A volume is unpublished.
    NodeUnpublish = "node-unpublish",
    /// A volume is unstaged.
    NodeUnstage = "node-unstage",
}

/// Takes a step; where that is ordered, the process dies before it, or once it is done.
///
/// # Errors
/// Those of the step.
#[cfg(not(debug_assertions))]
pub async fn around<T, E>(_: Step, taken: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    taken.await
}

/// Nothing, in a build without crash points.
#[cfg(not(debug_assertions))]
pub fn take_orders(_: &std::path::Path) {}

/// Nothing, in a build without crash points.
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

/// The orders without the one of this name; nothing, if there is none.
#[cfg(any(test, debug_assertions))]
fn without(orders: &str, name: &str) -> Option<String> {
    let rest: Vec<_> = orders.lines().filter(|line| *line != name).collect();
    (rest.len() < orders.lines().count()).then(|| rest.join("\n"))
}

/// How orders are carried out.
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

    /// Held by a step that is to be died at. Without it one loop's death could come
    /// between another's step and the death ordered after it: nothing would be left
    /// to do at the next start, and that order would never be carried out.
    static ALONE: Mutex<()> = Mutex::const_new(());

    /// Takes orders from the file `crash-at` in this folder from now on.
    pub fn take_orders(folder: &Path) {
        // A second start (tests) keeps the first one's folder.
        let _already = ORDERS.set(folder.join("crash-at"));
    }

    /// Takes orders from the folder that the environment names: a command has no socket.
    pub fn take_orders_of_command() {
        if let Some(folder) = std::env::var_os("LIQO_CSI_CRASH_ORDERS") {
            take_orders(Path::new(&folder));
        }
    }

    /// Takes a step; where that is ordered, the process dies before it, or once it is done.
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
        if let Err(error) = fs::write(file, rest) {
            tracing::error!(%error, "the order to die at {point} cannot be crossed out");
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
    fn names_are_unique() {
        let mut names: Vec<String> = points().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 2 * Step::ALL.len());
    }

    #[test]
    fn an_order_is_crossed_out() {
        assert_eq!(without("a\nb\nc", "b"), Some("a\nc".into()));
        assert_eq!(without("a", "a"), Some(String::new()));
        assert_eq!(without("ab", "a"), None);
        assert_eq!(without("", "a"), None);
    }
}
