//! Why a move's data could not be copied or is not right. Each names the place in
//! the tree, and says whose turn it is.

use std::io;

use crate::{message::BadMessage, path::TreePath, piece::BadPiece, wire::WireError};

/// Why a session ended before its work was done. Nothing is lost by any of them: the
/// next session goes on from the journal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection broke, or the peer was silent for too long. Dial again.
    #[error("the connection to the peer is gone: {0}")]
    Cut(#[source] io::Error),
    /// The peer gave up and said why.
    #[error("the peer gave up: {0}")]
    Peer(String),
    /// The peer is not the one of this move, or speaks another version.
    #[error("the peer is refused: {0}")]
    Refused(String),
    /// The peer said what the protocol does not allow.
    #[error("the peer does not keep to the protocol: {0}")]
    Protocol(String),
    /// The target's file system or quota is full. The source is as it was.
    #[error("the target is full: writing '{path}' failed: {source}")]
    Full {
        /// What was written.
        path: TreePath,
        /// What the kernel said.
        source: io::Error,
    },
    /// Reading or writing the tree failed.
    #[error("{doing} '{path}' failed: {source}")]
    Tree {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: TreePath,
        /// What the kernel said.
        source: io::Error,
    },
    /// The source could not read a file.
    #[error("the source cannot read '{path}': {source}")]
    Unreadable {
        /// The file.
        path: TreePath,
        /// What the kernel said there.
        source: io::Error,
    },
    /// Bytes are not those that were sent.
    #[error("'{path}' arrived with other bytes than the source read (chunk {chunk})")]
    Corrupt {
        /// The file.
        path: TreePath,
        /// Which MiB of it.
        chunk: u64,
    },
    /// In a final pass something changed, although nobody was to write any more.
    #[error("'{path}' changed during the final pass: something still writes to the source")]
    Busy {
        /// The first that did.
        path: TreePath,
    },
    /// Two names that the source tells apart are one on the target.
    #[error("'{path}' differs from another name only by case, and the target's file system ignores case")]
    CaseClash {
        /// One of the two.
        path: TreePath,
    },
    /// The target can never have what the source has.
    #[error("the target is too small: it has room for {room} {what}, and the source has {needed}")]
    TooSmall {
        /// Bytes or inodes.
        what: &'static str,
        /// So many the target can have.
        room: u64,
        /// So many the source has.
        needed: u64,
    },
    /// The journal cannot be read or written.
    #[error("the journal on the target cannot be used: {0}")]
    Journal(#[source] io::Error),
    /// A certificate or key cannot be used.
    #[error("the certificates of this move cannot be used: {0}")]
    Credentials(String),
}

impl Error {
    /// Whether the target had no room left, for content or for its journal.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let is_full = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            )
        };
        matches!(self, Self::Full { .. }) || matches!(self, Self::Journal(error) if is_full(error))
    }

    /// Names the place where an operation on the tree failed.
    pub(crate) fn tree(doing: &'static str, path: &TreePath) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| {
            let path = path.clone();
            if matches!(errno, rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) {
                Self::Full {
                    path,
                    source: errno.into(),
                }
            } else {
                Self::Tree {
                    doing,
                    path,
                    source: errno.into(),
                }
            }
        }
    }

    /// The same of an error of the standard library.
    pub(crate) fn file(doing: &'static str, path: &TreePath) -> impl FnOnce(io::Error) -> Self {
        move |error| match rustix::io::Errno::from_io_error(&error) {
            Some(errno) => Self::tree(doing, path)(errno),
            None => Self::Tree {
                doing,
                path: path.clone(),
                source: error,
            },
        }
    }

    /// Whether dialling again can help.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Cut(_))
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Broken(error) => Self::Cut(error),
            WireError::Frame(what) => Self::Protocol(what.to_owned()),
        }
    }
}

impl From<BadMessage> for Error {
    fn from(error: BadMessage) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl From<BadPiece> for Error {
    fn from(error: BadPiece) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl From<crate::path::BadPath> for Error {
    fn from(error: crate::path::BadPath) -> Self {
        Self::Protocol(error.to_string())
    }
}
