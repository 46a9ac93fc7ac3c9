//! Crash points: places where a test can make the process die as if by kill -9,
//! one on each side of every write to the world outside. They exist only in
//! builds with the feature `crash-points`; in every other build a crash point
//! is nothing at all.

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

            /// Its name in `LIQO_CSI_CRASH_AT`.
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

/// Dies here when `LIQO_CSI_CRASH_AT` says `name` or `name:n` (at the n-th
/// passage) and the build has crash points. No destructor runs.
#[cfg(feature = "crash-points")]
pub fn crash_point(point: CrashPoint) {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    };

    static WISH: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);

    let wish = WISH.get_or_init(|| parse(&std::env::var("LIQO_CSI_CRASH_AT").ok()?));
    let Some((name, nth)) = wish else { return };
    if name == point.name() && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *nth {
        tracing::error!(crash_point = name, "dying on request");
        std::process::abort();
    }
}

/// Nothing, in a build without crash points.
#[cfg(not(feature = "crash-points"))]
#[inline]
pub fn crash_point(_: CrashPoint) {}

#[cfg(any(test, feature = "crash-points"))]
fn parse(wish: &str) -> Option<(String, u64)> {
    match wish.split_once(':') {
        Some((name, nth)) => Some((name.to_owned(), nth.parse().ok()?)),
        None => (!wish.is_empty()).then(|| (wish.to_owned(), 1)),
    }
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
    fn a_wish_may_name_the_nth_passage() {
        assert_eq!(parse("a"), Some(("a".into(), 1)));
        assert_eq!(parse("a:3"), Some(("a".into(), 3)));
        assert_eq!(parse("a:x"), None);
        assert_eq!(parse(""), None);
    }
}
