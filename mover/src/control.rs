//! What whoever decides over a move says to a target's program, and what that answers: lines of
//! JSON on a connection that only its pod's own network reaches. There is no session to keep:
//! an order that was cut short is given again, and is then the cheaper the further it had come.

use serde::{Deserialize, Serialize};

use crate::{block::BlockReport, error::Error, loss::LossKind, target::PassReport, verify::Verification};

/// The longest order.
pub const LONGEST_ORDER: u64 = 4096;
/// Of differences that a verification finds, so many are named.
const NAMED: usize = 20;

/// What a target is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Order {
    /// One pass over the source's tree. Waits for the source, however long that takes, and
    /// begins again when the connection breaks, as long as whoever gave the order is there.
    #[serde(rename_all = "camelCase")]
    Pass {
        /// Nobody writes to the source any more: what changes all the same is an error.
        last: bool,
        /// Read all content again, whatever the stamps say.
        #[serde(default)]
        reread: bool,
    },
    /// Compare what the disk returns with what the source said.
    #[serde(rename_all = "camelCase")]
    Verify {
        /// Everything, not only what passes touched since the last verification.
        all: bool,
        /// The attributes of all else, too: others may have written to the target.
        #[serde(default)]
        attributes: bool,
    },
    /// Take the journal away: the volume is as the source's then. The program ends.
    Finish,
}

/// What a target says. After each order one line that is not [`Answer::Progress`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// The order is being carried out.
    #[serde(rename_all = "camelCase")]
    Progress {
        /// Whether the source is connected.
        connected: bool,
        /// Bytes of content that have arrived on this connection with the source.
        received_bytes: u64,
        /// Bytes that the source's file system holds; zero as long as that is not known.
        #[serde(default)]
        expected_bytes: u64,
        /// Whether the source itself has dialled, rather than somebody who forwards a port.
        #[serde(default)]
        direct: bool,
        /// Of a device, bytes that the pass has made sure to be the same on both sides. Of a tree
        /// nothing but what has arrived tells how far it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        settled_bytes: Option<u64>,
    },
    /// A pass is complete and on disk.
    Passed(Passed),
    /// What the verification found.
    Verified(Verified),
    /// The journal is gone.
    Finished,
    /// The order could not be carried out.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// Which way out there is.
        reason: Reason,
        /// For people.
        message: String,
    },
}

/// What a pass has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Passed {
    /// Which pass of this move.
    pub pass: u32,
    /// Names in the tree; none of a device.
    pub entries: u64,
    /// Bytes of its files, or of the device.
    pub bytes: u64,
    /// Files whose content was compared or fetched.
    pub compared_files: u64,
    /// Bytes of content that arrived, before compression.
    pub received_bytes: u64,
    /// Names that were deleted on the target.
    pub deleted: u64,
    /// Files that changed while they were read, or went away meanwhile.
    pub unsteady: u64,
    /// Whether the source itself had dialled, rather than somebody who forwards a port.
    #[serde(default)]
    pub direct: bool,
    /// What of the volume is not carried over.
    pub losses: Vec<Lost>,
    /// Whether that is all of the volume. Targets of the version before only told the losses of what
    /// the pass had listed.
    #[serde(default)]
    pub losses_of_all: bool,
    /// Whether attributes of the namespace `trusted` are among them: a source without `CAP_SYS_ADMIN`,
    /// which no pod of a move has, does not see them. Of a device there are none.
    #[serde(default)]
    pub sees_trusted: bool,
}

/// Something that is not carried over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lost {
    /// What of it.
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
    /// Inode flags such as immutable or append-only.
    Flags,
}

/// What a verification found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verified {
    /// The root over what the source said.
    pub expected: String,
    /// The root over what is on disk.
    pub found: String,
    /// Files whose content was read back.
    pub files: u64,
    /// Bytes that were.
    pub bytes: u64,
    /// How many differences there are.
    pub different: u64,
    /// How many of them are files that changed while they were read.
    #[serde(default)]
    pub unknown: u64,
    /// The first of them, with their paths.
    pub differences: Vec<String>,
}

/// Why an order could not be carried out, by what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// The target has no room left.
    Full,
    /// Something still writes to the source.
    Busy,
    /// Content is not what the source read.
    Corrupt,
    /// The source cannot read something, or gave up for another reason that it names.
    Source,
    /// The target cannot be what the source is, because of a name.
    Unfit,
    /// The target can never have what the source has.
    TooSmall,
    /// Something else on the target's disk failed.
    Target,
    /// The peer is not of this move, of another version, or breaks the protocol.
    Peer,
    /// The certificates cannot be used.
    Credentials,
    /// The order makes no sense.
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
            Error::Peer(_) | Error::Unreadable { .. } => Self::Source,
            Error::Refused(_) | Error::Protocol(_) => Self::Peer,
            Error::Full { .. } | Error::Tree { .. } | Error::Journal(_) => Self::Target,
            Error::Corrupt { .. } => Self::Corrupt,
            Error::Busy { .. } => Self::Busy,
            Error::CaseClash { .. } => Self::Unfit,
            Error::TooSmall { .. } => Self::TooSmall,
            Error::Credentials(_) => Self::Credentials,
        }
    }

    /// What a program ends with for this reason; 2 is that of a wrong command line.
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
        let said = Answer::from(&Error::Busy {
            path: crate::path::TreePath::root(),
        });
        let text = serde_json::to_string(&said).unwrap();
        assert!(
            text.starts_with(r#"{"failed":{"reason":"busy","message":""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), said);
    }
}
