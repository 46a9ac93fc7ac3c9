//! The gRPC code of each failure of the node plugin. Kubelet takes CANCELLED, `DEADLINE_EXCEEDED`,
//! UNAVAILABLE, `RESOURCE_EXHAUSTED` and ABORTED to mean that the operation may have been done, and
//! any other code that it was not.

use tonic::Code;

use crate::csi::status::Coded;
use crate::node::{
    blocking::Stuck,
    direct::DirectError,
    driver::DriverError,
    error::VolumeError,
    format::FormatError,
    mounts::MountError,
    publication::{PublishError, UnpublishError},
    registry::RegistryError,
    secrets::SecretError,
    state::StateError,
    upkeep::UpkeepError,
    volumes::{StageError, UnstageError},
};

impl Coded for StageError {
    fn code(&self) -> Code {
        match self {
            Self::VolumeError(it) => volume_code(it),
            Self::VolumeMode { .. } => Code::InvalidArgument,
            Self::Elsewhere { .. } | Self::OtherSource { .. } => Code::FailedPrecondition,
        }
    }
}

impl Coded for UnstageError {
    fn code(&self) -> Code {
        match self {
            Self::VolumeError(it) => volume_code(it),
            Self::Published { .. } | Self::Unrecorded { .. } => Code::FailedPrecondition,
        }
    }
}

impl Coded for PublishError {
    fn code(&self) -> Code {
        match self {
            Self::VolumeError(it) => volume_code(it),
            Self::Stage(it) => it.code(),
            Self::Different { .. } => Code::AlreadyExists,
            Self::SingleWriter { .. } => Code::FailedPrecondition,
        }
    }
}

impl Coded for UnpublishError {
    fn code(&self) -> Code {
        match self {
            Self::VolumeError(it) => volume_code(it),
            Self::Unrecorded { .. } => Code::FailedPrecondition,
        }
    }
}

impl Coded for UpkeepError {
    fn code(&self) -> Code {
        match self {
            Self::VolumeError(it) => volume_code(it),
            Self::NoVolume(_) | Self::NoPath { .. } => Code::NotFound,
            Self::Measure { .. } => Code::Internal,
        }
    }
}

fn volume_code(error: &VolumeError) -> Code {
    match error {
        VolumeError::Busy(_) => Code::Aborted,
        VolumeError::Stuck(Stuck::Slow { .. }) => Code::DeadlineExceeded,
        VolumeError::Stuck(Stuck::Aborted { .. }) => Code::Unavailable,
        VolumeError::State(it) => state(it),
        VolumeError::Driver(it) => driver(it),
        VolumeError::Direct(it) => direct(it),
        VolumeError::Mount(it) => mount(it),
    }
}

fn state(error: &StateError) -> Code {
    match error {
        StateError::Io { .. } | StateError::Corrupt { .. } | StateError::Foreign { .. } => Code::Internal,
        StateError::Version { .. } => Code::FailedPrecondition,
    }
}

fn driver(error: &DriverError) -> Code {
    match error {
        DriverError::Registry(it) => registry(it),
        DriverError::Refused { code, .. } => *code,
        DriverError::Gone { .. } => Code::Unavailable,
        DriverError::Slow { .. } => Code::DeadlineExceeded,
        DriverError::Secret { error, .. } => match error {
            SecretError::Unreadable { passing: true, .. } => Code::Unavailable,
            SecretError::Unreadable { passing: false, .. } | SecretError::Forbidden { .. } => {
                Code::FailedPrecondition
            }
        },
        DriverError::Token { .. } | DriverError::AccessMode(_) => Code::FailedPrecondition,
    }
}

fn registry(error: &RegistryError) -> Code {
    match error {
        RegistryError::Absent { .. } => Code::Unavailable,
        RegistryError::Unreadable { .. } => Code::Internal,
        RegistryError::Ambiguous { .. } | RegistryError::Untrusted { .. } => Code::FailedPrecondition,
    }
}

fn direct(error: &DirectError) -> Code {
    match error {
        DirectError::NotInTree(_) | DirectError::Host { .. } | DirectError::Nfs { .. } => Code::Internal,
        DirectError::Missing { .. }
        | DirectError::WrongKind { .. }
        | DirectError::NoDevice { .. }
        | DirectError::NotStaged(_) => Code::FailedPrecondition,
        DirectError::Format(it) => match it {
            FormatError::Inconclusive { .. }
            | FormatError::InUse { .. }
            | FormatError::UnknownType { .. } => Code::FailedPrecondition,
            FormatError::Failed { .. } => Code::Internal,
        },
        DirectError::Mount(it) => mount(it),
    }
}

fn mount(error: &MountError) -> Code {
    match error {
        MountError::Table(_) | MountError::Io { .. } => Code::Internal,
        MountError::Occupied { .. } | MountError::NotOurs { .. } => Code::FailedPrecondition,
    }
}

#[cfg(test)]
mod tests {
    use std::{io, path::PathBuf, time::Duration};

    use super::*;
    use crate::node::{consumer::MalformedTokens, in_flight::InFlight, mountinfo::MountTable};

    fn io() -> io::Error {
        io::Error::other("x")
    }

    fn at() -> PathBuf {
        "/p".into()
    }

    fn text() -> String {
        "x".into()
    }

    fn ours() -> Vec<(VolumeError, Code)> {
        let in_flight = InFlight::default();
        let _held = in_flight.enter("v").unwrap();
        let (what, limit) = (text(), Duration::ZERO);
        let (volume_id, path, found) = (text(), at(), text());
        let corrupt = StateError::Corrupt {
            volume_id: text(),
            path: at(),
            error: serde_json::from_str::<u8>("").unwrap_err(),
        };
        let newer = StateError::Version {
            volume_id: text(),
            path: at(),
            version: 2,
        };
        let unwritten = StateError::Io {
            action: "a",
            path: at(),
            error: io(),
        };
        let foreign = StateError::Foreign {
            volume_id,
            path,
            found,
        };
        vec![
            (in_flight.enter("v").unwrap_err().into(), Code::Aborted),
            (Stuck::Slow { what, limit }.into(), Code::DeadlineExceeded),
            (Stuck::Aborted { what: text() }.into(), Code::Unavailable),
            (unwritten.into(), Code::Internal),
            (corrupt.into(), Code::Internal),
            (foreign.into(), Code::Internal),
            (newer.into(), Code::FailedPrecondition),
        ]
    }

    fn drivers() -> Vec<(VolumeError, Code)> {
        let (driver, dir, passed_over) = (text(), at(), text());
        let absent = RegistryError::Absent {
            driver,
            dir,
            passed_over,
        };
        let (path, error) = (at(), io());
        let unreadable = RegistryError::Unreadable { path, error };
        let (driver, sockets) = (text(), vec![]);
        let ambiguous = RegistryError::Ambiguous { driver, sockets };
        let (driver, reason) = (text(), text());
        let untrusted = RegistryError::Untrusted { driver, reason };
        let (driver, call, reason) = (text(), "c", text());
        let gone = DriverError::Gone { driver, call, reason };
        let slow = DriverError::Slow { driver: text(), call };
        let secret = |passing| DriverError::Secret {
            driver: text(),
            error: SecretError::Unreadable {
                namespace: text(),
                name: text(),
                reason: text(),
                passing,
            },
        };
        let (driver, error) = (text(), MalformedTokens);
        let token = DriverError::Token { driver, error };
        let mut all = vec![
            (DriverError::from(absent), Code::Unavailable),
            (DriverError::from(unreadable), Code::Internal),
            (DriverError::from(ambiguous), Code::FailedPrecondition),
            (DriverError::from(untrusted), Code::FailedPrecondition),
            (gone, Code::Unavailable),
            (slow, Code::DeadlineExceeded),
            (secret(true), Code::Unavailable),
            (secret(false), Code::FailedPrecondition),
            (token, Code::FailedPrecondition),
            (DriverError::AccessMode(vec![]), Code::FailedPrecondition),
        ];
        all.extend((1..=16).map(|code| {
            let refused = DriverError::Refused {
                driver: text(),
                call,
                code: Code::from(code),
                message: text(),
            };
            (refused, Code::from(code))
        }));
        all.into_iter()
            .map(|(error, code)| (error.into(), code))
            .collect()
    }

    fn mounting() -> Vec<(VolumeError, Code)> {
        let (path, wanted) = (text(), text());
        let wrong = DirectError::WrongKind { path, wanted };
        let (path, error) = (text(), io());
        let host = DirectError::Host { path, error };
        let nfs = DirectError::Nfs {
            export: text(),
            options: Vec::new(),
            path: text(),
            cause: text(),
        };
        let (device, error) = (at(), io());
        let inconclusive = FormatError::Inconclusive { device, error };
        let (device, fs_type) = (at(), text());
        let unknown = FormatError::UnknownType { device, fs_type };
        let (device, tool, cause) = (at(), text(), text());
        let failed = FormatError::Failed { device, tool, cause };
        let (action, path, error) = (text(), at(), io());
        let kernel = MountError::Io { action, path, error };
        let (path, found) = (at(), text());
        let occupied = MountError::Occupied { path, found };
        let precondition = [
            DirectError::Missing { path: text() },
            wrong,
            DirectError::NoDevice { kind: "nfs" },
            DirectError::NotStaged(text()),
            inconclusive.into(),
            FormatError::InUse { device: at() }.into(),
            unknown.into(),
            occupied.into(),
            MountError::NotOurs {
                path: at(),
                found: "f",
            }
            .into(),
        ];
        let internal = [
            DirectError::NotInTree(text()),
            host,
            nfs,
            failed.into(),
            kernel.into(),
            MountError::from(MountTable::parse(b"x").unwrap_err()).into(),
        ];
        let precondition = precondition.map(|it| (it.into(), Code::FailedPrecondition));
        precondition
            .into_iter()
            .chain(internal.map(|it| (it.into(), Code::Internal)))
            .collect()
    }

    #[test]
    fn every_error_has_the_code_that_the_kubelet_expects() {
        for (it, code) in [ours(), drivers(), mounting()].into_iter().flatten() {
            assert_eq!(volume_code(&it), code, "{it:?}");
            let open = matches!(
                code,
                Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::Unavailable
                    | Code::ResourceExhausted
                    | Code::Aborted
            );
            assert_eq!(it.is_final(), !open, "{it:?}");
        }
    }

    #[test]
    fn each_operation_has_its_own_message() {
        let (id, p) = (String::from("v"), std::path::PathBuf::from("/p"));
        let different = PublishError::Different {
            volume_id: id.clone(),
            target: p.clone(),
        };
        let alone = PublishError::SingleWriter {
            volume_id: id.clone(),
            at: p.clone(),
        };
        let absent = UpkeepError::NoPath {
            volume_id: id.clone(),
            path: p.clone(),
        };
        let published = UnstageError::Published {
            volume_id: id.clone(),
            target: p,
        };
        assert_eq!(different.code(), Code::AlreadyExists);
        assert_eq!(alone.code(), Code::FailedPrecondition);
        assert_eq!(absent.code(), Code::NotFound);
        assert_eq!(UpkeepError::NoVolume(id).code(), Code::NotFound);
        assert_eq!(published.code(), Code::FailedPrecondition);
    }
}
