//! Crash points: places where a test can make the process die as if by kill -9,
//! one on each side of every write to the world outside. They exist only in
//! builds with the feature `crash-points`; in every other build a crash point
//! is nothing at all.
//!
//! Two writes have none: the node plugin's note of the cluster's id, written once,
//! in one piece, before it serves anything; and events, which nothing rests on.
//!
//! A test orders crashes by writing names of crash points, one per line, into the
//! file `crash-at` beside the process's CSI socket. Each order is carried out once:
//! its line is taken out before the process dies.

/// One line per crash point; the list of all of them cannot fall behind.
macro_rules! crash_points {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// A place where a test can make the process die.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CrashPoint {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl CrashPoint {
            /// Every crash point there is.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Its name in orders.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

crash_points! {
    /// The twin is about to be created.
    BeforeTwinCreate = "before-twin-create",
    /// The twin was created.
    AfterTwinCreate = "after-twin-create",
    /// A static PV is about to be reserved for the twin.
    BeforePrebind = "before-prebind",
    /// A static PV was reserved for the twin.
    AfterPrebind = "after-prebind",
    /// The twin is about to be told its static PV.
    BeforeTellVolume = "before-tell-volume",
    /// The twin was told its static PV.
    AfterTellVolume = "after-tell-volume",
    /// The reservation of a static PV is about to be taken back.
    BeforeReleasePrebind = "before-release-prebind",
    /// The reservation of a static PV was taken back.
    AfterReleasePrebind = "after-release-prebind",
    /// The twin's PV is about to be set to Retain.
    BeforeRetain = "before-retain",
    /// The twin's PV was set to Retain.
    AfterRetain = "after-retain",
    /// The twin is about to be marked handed over.
    BeforeHandOver = "before-hand-over",
    /// The twin was marked handed over.
    AfterHandOver = "after-hand-over",
    /// A twin that never served is about to be taken back.
    BeforeWithdraw = "before-withdraw",
    /// A twin that never served was taken back.
    AfterWithdraw = "after-withdraw",
    /// Our finalizer is about to be taken off a twin that is being deleted.
    BeforeLetGo = "before-let-go",
    /// Our finalizer was taken off a twin that is being deleted.
    AfterLetGo = "after-let-go",
    /// The twin of a deleted volume is about to be deleted.
    BeforeTwinDelete = "before-twin-delete",
    /// The twin of a deleted volume was deleted.
    AfterTwinDelete = "after-twin-delete",
    /// The twin's attachment is about to be created.
    BeforeAttachmentCreate = "before-attachment-create",
    /// The twin's attachment was created.
    AfterAttachmentCreate = "after-attachment-create",
    /// The twin's attachment is about to be deleted.
    BeforeAttachmentDelete = "before-attachment-delete",
    /// The twin's attachment was deleted.
    AfterAttachmentDelete = "after-attachment-delete",
    /// The room on a set of nodes is about to be published.
    BeforeCapacityWrite = "before-capacity-write",
    /// The room on a set of nodes was published.
    AfterCapacityWrite = "after-capacity-write",
    /// Obsolete news of room are about to be deleted.
    BeforeCapacityDelete = "before-capacity-delete",
    /// Obsolete news of room were deleted.
    AfterCapacityDelete = "after-capacity-delete",
    /// A virtual node is about to be labelled.
    BeforeNodeLabel = "before-node-label",
    /// A virtual node was labelled.
    AfterNodeLabel = "after-node-label",
    /// The `CSINode` of a virtual node is about to be written.
    BeforeCsiNodeWrite = "before-csi-node-write",
    /// The `CSINode` of a virtual node was written.
    AfterCsiNodeWrite = "after-csi-node-write",
    /// Finalizer or status of a `RemoteCluster` is about to be written.
    BeforeClusterWrite = "before-cluster-write",
    /// Finalizer or status of a `RemoteCluster` was written.
    AfterClusterWrite = "after-cluster-write",
    /// What a claim says about its remote twin is about to be changed.
    BeforeMirror = "before-mirror",
    /// What a claim says about its remote twin was changed.
    AfterMirror = "after-mirror",
    /// Labels and annotations of a claim are about to be carried to its twin.
    BeforeSync = "before-sync",
    /// Labels and annotations of a claim were carried to its twin.
    AfterSync = "after-sync",
    /// The claim of a pod with a fixed node is about to be told that node.
    BeforeSelectNode = "before-select-node",
    /// The claim of a pod with a fixed node was told that node.
    AfterSelectNode = "after-select-node",
    /// The PV of a dying twin is about to be set to Retain.
    BeforeRescue = "before-rescue",
    /// The PV of a dying twin was set to Retain.
    AfterRescue = "after-rescue",
    /// The PV of a remote twin is about to be marked with its volume.
    BeforeMarkHolder = "before-mark-holder",
    /// The PV of a remote twin was marked with its volume.
    AfterMarkHolder = "after-mark-holder",
    /// A lost twin is about to be made again.
    BeforeTwinAgain = "before-twin-again",
    /// A lost twin was made again.
    AfterTwinAgain = "after-twin-again",
    /// A retained PV is about to be passed on to the twin that was made again.
    BeforePassOn = "before-pass-on",
    /// A retained PV was passed on to the twin that was made again.
    AfterPassOn = "after-pass-on",
    /// A rescued PV is about to get its reclaim policy back.
    BeforePolicyBack = "before-policy-back",
    /// A rescued PV got its reclaim policy back.
    AfterPolicyBack = "after-policy-back",
    /// The lease of the background loops is about to be taken or renewed.
    BeforeLeaseWrite = "before-lease-write",
    /// The lease of the background loops was taken or renewed.
    AfterLeaseWrite = "after-lease-write",
    /// The node's record of a volume is about to be written.
    BeforeRecordWrite = "before-record-write",
    /// The node's record of a volume was written.
    AfterRecordWrite = "after-record-write",
    /// The node's record of a volume is about to be removed.
    BeforeRecordRemove = "before-record-remove",
    /// The node's record of a volume was removed.
    AfterRecordRemove = "after-record-remove",
    /// A volume is about to be staged, by its driver or by us.
    BeforeNodeStage = "before-node-stage",
    /// A volume was staged.
    AfterNodeStage = "after-node-stage",
    /// A volume is about to be published.
    BeforeNodePublish = "before-node-publish",
    /// A volume was published.
    AfterNodePublish = "after-node-publish",
    /// A volume is about to be unpublished.
    BeforeNodeUnpublish = "before-node-unpublish",
    /// A volume was unpublished.
    AfterNodeUnpublish = "after-node-unpublish",
    /// A volume is about to be unstaged.
    BeforeNodeUnstage = "before-node-unstage",
    /// A volume was unstaged.
    AfterNodeUnstage = "after-node-unstage",
}

#[cfg(feature = "crash-points")]
static ORDERS: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();

/// Takes orders from the file `crash-at` in this folder from now on.
#[cfg(feature = "crash-points")]
pub fn take_crash_orders(folder: &std::path::Path) {
    // A second start (tests) keeps the first one's folder.
    let _already = ORDERS.set(folder.join("crash-at"));
}

/// Nothing, in a build without crash points.
#[cfg(not(feature = "crash-points"))]
pub fn take_crash_orders(_: &std::path::Path) {}

/// Dies here when that is ordered and the build has crash points. No destructor runs.
#[cfg(feature = "crash-points")]
pub fn crash_point(point: CrashPoint) {
    // Held until death: two points reached at once must not cross out each other's orders.
    static DYING: std::sync::Mutex<()> = std::sync::Mutex::new(());

    let Some(file) = ORDERS.get() else { return };
    let _alone = DYING.lock();
    let Ok(orders) = std::fs::read_to_string(file) else {
        return;
    };
    let Some(rest) = without(&orders, point.name()) else {
        return;
    };
    if let Err(error) = std::fs::write(file, rest) {
        tracing::error!(%error, "the order to die at {} cannot be crossed out", point.name());
        return;
    }
    tracing::error!(crash_point = point.name(), "dying on request");
    std::process::abort();
}

/// Nothing, in a build without crash points.
#[cfg(not(feature = "crash-points"))]
#[inline]
pub fn crash_point(_: CrashPoint) {}

/// The orders without the one of this name; nothing, if there is none.
#[cfg(any(test, feature = "crash-points"))]
fn without(orders: &str, name: &str) -> Option<String> {
    let rest: Vec<_> = orders.lines().filter(|line| *line != name).collect();
    (rest.len() < orders.lines().count()).then(|| rest.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = CrashPoint::ALL.iter().map(|point| point.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CrashPoint::ALL.len());
    }

    #[test]
    fn an_order_is_crossed_out() {
        assert_eq!(without("a\nb\nc", "b"), Some("a\nc".into()));
        assert_eq!(without("a", "a"), Some(String::new()));
        assert_eq!(without("ab", "a"), None);
        assert_eq!(without("", "a"), None);
    }
}
