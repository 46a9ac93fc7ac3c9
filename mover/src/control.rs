//! The orders to a target's program and its answers: lines of JSON on a connection that is only reachable in
//! the network of its pod. There is no session: an order that was interrupted is given again, and then only
//! has to do the rest.

use serde::{Deserialize, Serialize};

use crate::{block::BlockReport, error::Error, loss::LossKind, target::PassReport, verify::Verification};

/// Maximum length of an order.
pub const LONGEST_ORDER: u64 = 4096;
/// The number of differences that are listed after a verification.
const NAMED: usize = 20;

/// An order to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Order {
    /// One pass over the source's tree. Waits for the source without a limit, and begins again when the
    /// connection breaks, as long as the client that gave the order is connected.
    #[serde(rename_all = "camelCase")]
    Pass {
        /// No process writes to the source any more: a change is an error.
        last: bool,
        /// Read all content again, whatever the stamps are.
        #[serde(default)]
        reread: bool,
    },
    /// Compare the content on disk with the hashes of the source.
    #[serde(rename_all = "camelCase")]
    Verify {
        /// Everything, not only what passes touched since the last verification.
        all: bool,
        /// Also the attributes of everything else: another client may have written to the target.
        #[serde(default)]
        attributes: bool,
    },
    /// Delete the journal: the volume is then equal to the source. The program ends.
    Finish,
}

/// The answers of a target. Each order is answered by one line that is not [`Answer::Progress`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// The order is in progress.
    #[serde(rename_all = "camelCase")]
    Progress {
        /// Whether the source is connected.
        connected: bool,
        /// Bytes of content that have arrived on this connection with the source.
        received_bytes: u64,
        /// Bytes in use in the source's file system; zero while that is unknown.
        #[serde(default)]
        expected_bytes: u64,
        /// Whether the source itself has dialled, not a client that forwards a port.
        #[serde(default)]
        direct: bool,
        /// For a device, the bytes that are equal on both sides. For a tree only the received bytes show the
        /// progress.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        settled_bytes: Option<u64>,
    },
    /// A pass is complete and on disk.
    Passed(Passed),
    /// The result of the verification.
    Verified(Verified),
    /// The journal is deleted.
    Finished,
    /// The order failed.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// What can be done about it.
        reason: Reason,
        /// For users.
        message: String,
    },
}

/// The result of a pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Passed {
    /// The number of the pass of this move.
    pub pass: u32,
    /// Names in the tree; none for a device.
    pub entries: u64,
    /// Bytes of its files, or of the device.
    pub bytes: u64,
    /// Files whose content was compared or fetched.
    pub compared_files: u64,
    /// Bytes of content that arrived, before compression.
    pub received_bytes: u64,
    /// Names that were deleted on the target.
    pub deleted: u64,
    /// Names and directories that the pass before found in another state, or not at all; zero for a device.
    #[serde(default)]
    pub changed: u64,
    /// Files that changed while they were read, or were deleted meanwhile.
    pub unsteady: u64,
    /// Whether the source itself has dialled, not a client that forwards a port.
    #[serde(default)]
    pub direct: bool,
    /// What cannot be copied.
    pub losses: Vec<Lost>,
    /// Whether `losses` covers the whole volume. Targets of the previous version only reported the losses of
    /// what the pass had listed.
    #[serde(default)]
    pub losses_of_all: bool,
    /// Whether attributes of the namespace `trusted` are included: a source without `CAP_SYS_ADMIN`, which
    /// no pod of a move has, does not see them. A device has none.
    #[serde(default)]
    pub sees_trusted: bool,
}

/// Something that cannot be copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lost {
    /// The kind of the loss.
    pub kind: LostKind,
    /// How many names have it.
    pub count: u64,
    /// The first of them.
    pub example: String,
}

/// What can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LostKind {
    /// Extended attributes of namespaces that are not kept.
    Xattrs,
    /// Inode flags, as those of `chattr`, of files and directories.
    Flags,
}

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verified {
    /// The root hash over the content as the source reported it.
    pub expected: String,
    /// The root hash over the content on disk.
    pub found: String,
    /// Files whose content was read back.
    pub files: u64,
    /// The number of these bytes.
    pub bytes: u64,
    /// The number of differences.
    pub different: u64,
    /// How many of them are files that changed while they were read.
    #[serde(default)]
    pub unknown: u64,
    /// The first of them, with their paths.
    pub differences: Vec<String>,
}

impl Verified {
    /// Whether source and target are equal.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.is_equal_as_sent() && self.different == 0
    }

    /// Whether the target has what the source sent: files that changed while they were read may differ.
    #[must_use]
    pub fn is_equal_as_sent(&self) -> bool {
        self.expected == self.found && self.different == self.unknown
    }
}

/// Why an order failed, by what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// The target has no space left.
    Full,
    /// A process still writes to the source.
    Busy,
    /// Content differs from what the source read.
    Corrupt,
    /// The source cannot read something, or failed for another reason that it reports.
    Source,
    /// The target's file system cannot represent a name or an attribute of the source.
    Unfit,
    /// The target is smaller than the content of the source.
    TooSmall,
    /// Another operation on the target's disk failed.
    Target,
    /// The peer belongs to another move, has another version, or violates the protocol.
    Peer,
    /// The certificates cannot be used.
    Credentials,
    /// The order is invalid.
    Order,
    /// The connection to the source broke.
    Cut,
}

impl Reason {
    /// The reason of an error.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error {
            error if error.is_full() => Self::Full,
            Error::Cut(_) => Self::Cut,
            Error::Peer(_) | Error::Unreadable { .. } | Error::Leased { .. } => Self::Source,
            Error::Refused(_) | Error::Protocol(_) => Self::Peer,
            Error::Full { .. } | Error::Tree { .. } | Error::Journal(_) => Self::Target,
            Error::Corrupt { .. } => Self::Corrupt,
            Error::Busy { .. } => Self::Busy,
            Error::CaseClash { .. } | Error::Unfit { .. } => Self::Unfit,
            Error::TooSmall { .. } => Self::TooSmall,
            Error::Credentials(_) => Self::Credentials,
        }
    }

    /// The exit code of a program for this reason.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Order => 2,
            Self::Full => 3,
            Self::Busy => 4,
            Self::Corrupt => 5,
            Self::Source => 6,
            Self::Unfit => 7,
            Self::Target => 8,
            Self::Peer => 9,
            Self::Credentials => 10,
            Self::Cut => 11,
            Self::TooSmall => 12,
        }
    }
}

impl From<&Error> for Answer {
    fn from(error: &Error) -> Self {
        Self::Failed {
            reason: Reason::of(error),
            message: error.to_string(),
        }
    }
}

impl From<PassReport> for Passed {
    fn from(report: PassReport) -> Self {
        let lost = report.losses.into_iter().map(|(kind, count, example)| Lost {
            kind: match kind {
                LossKind::Xattrs => LostKind::Xattrs,
                LossKind::Flags => LostKind::Flags,
            },
            count,
            example: example.to_string(),
        });
        Self {
            pass: report.pass,
            entries: report.entries,
            bytes: report.bytes,
            compared_files: report.compared_files,
            received_bytes: report.received_bytes,
            deleted: report.deleted,
            changed: report.changed,
            unsteady: report.unsteady,
            direct: report.direct,
            losses: lost.collect(),
            losses_of_all: true,
            sees_trusted: report.sees_trusted,
        }
    }
}

impl From<BlockReport> for Passed {
    fn from(report: BlockReport) -> Self {
        Self {
            pass: report.pass,
            entries: 0,
            bytes: report.bytes,
            compared_files: 0,
            received_bytes: report.received_bytes,
            deleted: 0,
            changed: 0,
            unsteady: 0,
            direct: report.direct,
            losses: Vec::new(),
            losses_of_all: true,
            sees_trusted: false,
        }
    }
}

impl From<Verification> for Verified {
    fn from(found: Verification) -> Self {
        let named = found.differences.iter().take(NAMED);
        Self {
            expected: found.expected.to_string(),
            found: found.found.to_string(),
            files: found.files,
            bytes: found.bytes,
            different: found.different,
            unknown: found.unknown,
            differences: named.map(ToString::to_string).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_are_plain_json() {
        let order = |text| serde_json::from_str::<Order>(text);
        let pass = Order::Pass {
            last: true,
            reread: false,
        };
        assert_eq!(order(r#"{"pass":{"last":true}}"#).unwrap(), pass);
        assert_eq!(
            order(r#"{"verify":{"all":false}}"#).unwrap(),
            Order::Verify {
                all: false,
                attributes: false
            }
        );
        assert_eq!(order(r#""finish""#).unwrap(), Order::Finish);
        for bad in [
            "",
            "{}",
            r#"{"pass":{}}"#,
            r#"{"pass":{"last":true,"fast":true}}"#,
            r#""delete""#,
        ] {
            assert!(order(bad).is_err(), "{bad}");
        }
        let message = Answer::from(&Error::Busy {
            path: crate::path::TreePath::root(),
        });
        let text = serde_json::to_string(&message).unwrap();
        assert!(
            text.starts_with(r#"{"failed":{"reason":"busy","message":""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), message);
    }
}
