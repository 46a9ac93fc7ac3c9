//! The part of the table for snapshots, and for volumes that are created from them.
//!
//! csi-snapshotter takes `RESOURCE_EXHAUSTED`, too, to mean that the snapshot is still being created;
//! after every other code it forgets the snapshot that it requested.

use tonic::Code;

use super::Coded;
use crate::{
    placement::{SnapshotRefusal, SourceRefusal},
    twin::{SnapshotCreateError, SnapshotDeleteError, SnapshotReadError, SnapshotSiteError},
    volume::{SnapshotIdError, SnapshotSpecError},
};

impl Coded for SnapshotIdError {
    fn code(&self) -> Code {
        match self {
            Self::Foreign(_) => Code::NotFound,
            // After a downgrade: reporting that there is no such snapshot would leak it.
            Self::UnknownVersion(_) => Code::Unavailable,
        }
    }
}

impl Coded for SnapshotSpecError {
    fn code(&self) -> Code {
        match self {
            Self::Unknown(_) | Self::Empty(_) => Code::InvalidArgument,
        }
    }
}

impl Coded for SnapshotCreateError {
    fn code(&self) -> Code {
        match self {
            Self::NoVolume(_) | Self::NoRecord(_) => Code::NotFound,
            Self::Unsuitable(_) | Self::Class(_) | Self::NotInstalled(_) | Self::NotAccepted(_) => {
                Code::FailedPrecondition
            }
            Self::Refused { refusal, .. } => refusal.code(),
            Self::Unreachable(_) | Self::Api(_) => Code::Unavailable,
            Self::StillWaiting { .. } => Code::DeadlineExceeded,
        }
    }
}

impl Coded for SnapshotRefusal {
    fn code(&self) -> Code {
        match self {
            Self::OtherSource => Code::AlreadyExists,
            Self::Foreign(_) | Self::GivenUp | Self::Vanished => Code::FailedPrecondition,
        }
    }
}

impl Coded for SnapshotDeleteError {
    fn code(&self) -> Code {
        match self {
            Self::Site(error) => error.code(),
            Self::Foreign { .. }
            | Self::Importing { .. }
            | Self::LeftBehind { .. }
            | Self::NotAccepted(_) => Code::FailedPrecondition,
            Self::Api(_) => Code::Unavailable,
            Self::StillWaiting { .. } => Code::DeadlineExceeded,
        }
    }
}

impl Coded for SnapshotReadError {
    fn code(&self) -> Code {
        match self {
            Self::Site(error) => error.code(),
            Self::Api(_) => Code::Unavailable,
        }
    }
}

impl Coded for SnapshotSiteError {
    fn code(&self) -> Code {
        match self {
            Self::Unreachable(_) | Self::Unknown(_) | Self::Api(_) => Code::Unavailable,
        }
    }
}

impl Coded for SourceRefusal {
    fn code(&self) -> Code {
        match self {
            Self::NotUsable { .. }
            | Self::OtherNamespace { .. }
            | Self::Unreadable { .. }
            | Self::NotCsi { .. }
            | Self::OtherDriver { .. }
            | Self::OtherMode { .. } => Code::FailedPrecondition,
            Self::NotPassedOn { .. } => Code::InvalidArgument,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{ApiError, Cause},
        placement::SnapshotClassError,
        twin::CreateError,
        volume::{ForeignSnapshot, MarksError},
    };

    fn api() -> ApiError {
        ApiError::for_test(Cause::Unavailable("down".into()))
    }

    fn code(error: impl Coded) -> Code {
        error.status().code()
    }

    fn refused(refusal: SnapshotRefusal) -> Code {
        code(SnapshotCreateError::Refused {
            twin: "liqo-storage/x".into(),
            cluster: "home".into(),
            refusal,
        })
    }

    #[test]
    fn each_error_has_its_grpc_code() {
        let text = String::new;
        let foreign = || ForeignSnapshot::Unmarked(MarksError::Missing("x"));
        let no_default = SnapshotClassError::NoDefault {
            driver: text(),
            cluster: "home".parse().unwrap(),
            several: false,
        };
        let still_cutting = SnapshotCreateError::StillWaiting {
            twin: text(),
            cluster: text(),
            awaited: "cut",
            why: None,
        };
        let still_there = SnapshotDeleteError::StillWaiting {
            twin: text(),
            cluster: text(),
            why: None,
        };
        let in_its_place = SnapshotDeleteError::Foreign {
            twin: text(),
            cluster: text(),
            foreign: foreign(),
        };
        let importing = SnapshotDeleteError::Importing { content: text() };
        let left_behind = SnapshotDeleteError::LeftBehind {
            twin: text(),
            cluster: text(),
            content: text(),
        };
        let not_csi = || SourceRefusal::NotCsi { source_name: text() };
        let not_passed_on = SourceRefusal::NotPassedOn {
            source_name: text(),
            namespace: text(),
        };
        let unknown = || SnapshotSiteError::Unknown(text());
        let table = [
            (SnapshotIdError::Foreign(text()).code(), Code::NotFound),
            (SnapshotIdError::UnknownVersion(text()).code(), Code::Unavailable),
            (SnapshotSpecError::Unknown(text()).code(), Code::InvalidArgument),
            (SnapshotSpecError::Empty("x").code(), Code::InvalidArgument),
            (code(SnapshotCreateError::NoVolume(text())), Code::NotFound),
            (code(SnapshotCreateError::NoRecord(text())), Code::NotFound),
            (
                code(SnapshotCreateError::Unsuitable(text())),
                Code::FailedPrecondition,
            ),
            (
                code(SnapshotCreateError::Class(no_default)),
                Code::FailedPrecondition,
            ),
            (
                code(SnapshotCreateError::NotInstalled(text())),
                Code::FailedPrecondition,
            ),
            (
                code(SnapshotCreateError::NotAccepted(api())),
                Code::FailedPrecondition,
            ),
            (code(SnapshotCreateError::Unreachable(text())), Code::Unavailable),
            (code(SnapshotCreateError::Api(api())), Code::Unavailable),
            (code(still_cutting), Code::DeadlineExceeded),
            (refused(SnapshotRefusal::OtherSource), Code::AlreadyExists),
            (
                refused(SnapshotRefusal::Foreign(foreign())),
                Code::FailedPrecondition,
            ),
            (refused(SnapshotRefusal::GivenUp), Code::FailedPrecondition),
            (refused(SnapshotRefusal::Vanished), Code::FailedPrecondition),
            (code(SnapshotDeleteError::Site(unknown())), Code::Unavailable),
            (code(in_its_place), Code::FailedPrecondition),
            (code(left_behind), Code::FailedPrecondition),
            (code(importing), Code::FailedPrecondition),
            (
                code(SnapshotDeleteError::NotAccepted(api())),
                Code::FailedPrecondition,
            ),
            (code(SnapshotDeleteError::Api(api())), Code::Unavailable),
            (code(still_there), Code::DeadlineExceeded),
            (code(SnapshotReadError::Site(unknown())), Code::Unavailable),
            (code(SnapshotReadError::Api(api())), Code::Unavailable),
            (code(CreateError::Source(not_csi())), Code::FailedPrecondition),
            (code(CreateError::Source(not_passed_on)), Code::InvalidArgument),
            (code(CreateError::NoSource(text())), Code::NotFound),
            (code(CreateError::SourceUnknown(text())), Code::Unavailable),
        ];
        for (at, (got, expected)) in table.into_iter().enumerate() {
            assert_eq!(got, expected, "row {at}");
        }
    }
}
