//! Why the data of a move could not be copied, or differs. Each error names the path in the tree.

use std::{borrow::Cow, io};

use rustix::io::Errno;

use crate::{message::BadMessage, path::TreePath, piece::BadPiece, wire::WireError};

/// Why a session ended early. No error loses data: the next session continues from the journal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection broke, or the peer did not answer for too long. Dial again.
    #[error("the connection to the peer broke: {0}")]
    Cut(#[source] io::Error),
    /// The peer failed and reported why.
    #[error("the peer failed: {0}")]
    Peer(String),
    /// The peer belongs to another move, or has another version.
    #[error("the peer was refused: {0}")]
    Refused(String),
    /// The peer violated the protocol.
    #[error("the peer violated the protocol: {0}")]
    Protocol(String),
    /// The target's file system or quota is full. The source is unchanged.
    #[error("the target is full: writing '{path}' failed: {source}")]
    Full {
        /// The path of the file.
        path: TreePath,
        /// The error of the kernel.
        source: io::Error,
    },
    /// Reading or writing the tree failed.
    #[error("{doing} '{path}' failed: {source}")]
    Tree {
        /// The operation.
        doing: Cow<'static, str>,
        /// The path in the tree.
        path: TreePath,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The source could not read a file.
    #[error("the source cannot read '{path}': {source}")]
    Unreadable {
        /// The file.
        path: TreePath,
        /// The error of the kernel at the source.
        source: io::Error,
    },
    /// Another process has a lease on a file, as file servers have for their clients, and has not given it up in time.
    /// The kernel ends the lease soon, so that a later attempt succeeds.
    #[error(
        "'{path}' is under a lease of another process, such as a file server: it can be read when that has given the lease up"
    )]
    Leased {
        /// The file.
        path: TreePath,
    },
    /// The received bytes are not those that were sent.
    #[error("'{path}' arrived with other bytes than the source read (chunk {chunk})")]
    Corrupt {
        /// The file.
        path: TreePath,
        /// The number of the MiB.
        chunk: u64,
    },
    /// A file changed in a final pass, in which no process may write to the source.
    #[error("'{path}' changed during the final pass: something still writes to the source")]
    Busy {
        /// The first of these files.
        path: TreePath,
    },
    /// Two names of the source that the target's file system does not distinguish.
    #[error("'{path}' differs from another name only by case, and the target's file system ignores case")]
    CaseClash {
        /// One of the two.
        path: TreePath,
    },
    /// A file system, or a message, cannot hold an inode with everything that is copied.
    #[error("'{path}' cannot be copied: {problem}")]
    Unfit {
        /// The path in the tree.
        path: TreePath,
        /// The property that does not fit.
        problem: &'static str,
    },
    /// The target is smaller than the content of the source.
    #[error("the target is too small: its capacity is {capacity} {what}, and the source has {needed}")]
    TooSmall {
        /// Bytes or inodes.
        what: &'static str,
        /// The capacity of the target.
        capacity: u64,
        /// The amount in use at the source.
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
    /// Whether the target had no space left, for content or for its journal.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. }) || matches!(self, Self::Journal(error) if is_no_space(error))
    }

    /// Names the path at which an operation on the tree failed.
    pub(crate) fn tree(doing: impl Into<Cow<'static, str>>, path: &TreePath) -> impl FnOnce(Errno) -> Self {
        move |errno| {
            let (doing, path) = (doing.into(), path.clone());
            match errno {
                Errno::NOSPC | Errno::DQUOT => Self::Full {
                    path,
                    source: errno.into(),
                },
                Errno::AGAIN => Self::Leased { path },
                // See `At::xattrs` and `At::set_attributes`.
                Errno::TOOBIG => Self::Unfit {
                    path,
                    problem: "its extended attributes are too large",
                },
                Errno::MLINK => Self::Unfit {
                    path,
                    problem: "the target's file system allows no more hard links to it, and the copy needs one more than the source has",
                },
                Errno::OVERFLOW => Self::Unfit {
                    path,
                    problem: "the target's file system cannot hold the time of its last change",
                },
                Errno::FBIG => Self::Unfit {
                    path,
                    problem: "the target's file system cannot hold a file of this size",
                },
                errno => Self::Tree {
                    doing,
                    path,
                    source: errno.into(),
                },
            }
        }
    }

    /// The same at the source: no space there means that a process could not write its data, not that the target is full.
    pub(crate) fn at_source(doing: &'static str, path: &TreePath) -> impl FnOnce(Errno) -> Self {
        move |errno| match errno {
            Errno::NOSPC | Errno::DQUOT => Self::Tree {
                doing: doing.into(),
                path: path.clone(),
                source: errno.into(),
            },
            errno => Self::tree(doing, path)(errno),
        }
    }

    /// Names the path for an error of the standard library.
    pub(crate) fn file(doing: &'static str, path: &TreePath) -> impl FnOnce(io::Error) -> Self {
        move |error| match Errno::from_io_error(&error) {
            Some(errno) => Self::tree(doing, path)(errno),
            None => Self::Tree {
                doing: doing.into(),
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

/// Whether a file system or quota had no space left.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_too_many_links_does_not_fit() {
        let error = Error::tree("linking", &TreePath::root())(Errno::MLINK);
        assert!(matches!(error, Error::Unfit { .. }), "{error}");
    }

    /// As after a write to a thin volume whose pool is full, or to an NFS server.
    #[test]
    fn a_source_without_space_is_no_full_target() {
        let error = Error::at_source("synchronising", &TreePath::root())(Errno::NOSPC);
        assert!(
            !error.is_full() && !error.to_string().contains("target"),
            "{error}"
        );
    }
}
