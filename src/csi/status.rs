//! The table from the errors of the domain to gRPC codes. Every `match` lists every case, so that a
//! new error must get a code.
//!
//! csi-provisioner reads more into the codes of `CreateVolume` than their names say: after
//! `CANCELLED`, `DEADLINE_EXCEEDED`, `UNAVAILABLE` and `ABORTED` it assumes that the volume is still
//! being created, after `RESOURCE_EXHAUSTED` that the pod has to run elsewhere, and after every other
//! code that there is no volume and will be none.

use tonic::{Code, Status};

use crate::{
    offload::{LONGEST_MESSAGE, cut},
    placement::{DeleteRefusal, RealRefusal, Refusal, moving::AttachDecision},
    twin::{ChangeError, CreateError, DeleteError, NoSite, PublishError, UnpublishError},
    volume::{SpecError, VolumeIdError},
};

/// An error with a code. `.map_err(Coded::status)` and not `?`: the errors are of other crates, and so is
/// `Status`, so that `From` cannot be implemented here.
pub(super) trait Coded: std::fmt::Display + Sized {
    fn code(&self) -> Code;

    fn status(self) -> Status {
        // The sidecars write it to objects, and parts of it may be from a remote cluster.
        Status::new(self.code(), cut(&self.to_string(), LONGEST_MESSAGE))
    }
}

mod snapshots;

impl Coded for Status {
    fn code(&self) -> Code {
        Self::code(self)
    }

    fn status(self) -> Status {
        self
    }
}

impl Coded for VolumeIdError {
    fn code(&self) -> Code {
        match self {
            Self::Foreign(_) => Code::NotFound,
            // After a downgrade: reporting that there is no such volume would leak it.
            Self::UnknownVersion(_) => Code::Unavailable,
        }
    }
}

impl Coded for SpecError {
    fn code(&self) -> Code {
        match self {
            Self::NegativeSize(_)
            | Self::EmptyRange { .. }
            | Self::NoCapability
            | Self::MixedVolumeModes
            | Self::TwoFsTypes(..)
            | Self::TwoSetsOfFlags(..)
            | Self::UnknownAccessMode(_)
            | Self::UnknownParameter(_)
            | Self::Secret(_)
            | Self::NotAttachable
            | Self::UnknownAttribute(_)
            | Self::IncompleteClaimName { .. }
            | Self::UnknownBindingPolicy(_)
            | Self::UnknownRestoreTopology(_)
            | Self::NotRemotely { .. }
            | Self::NoBoolean { .. }
            | Self::EmptyParameter(_) => Code::InvalidArgument,
        }
    }
}

impl Coded for CreateError {
    fn code(&self) -> Code {
        match self {
            // An administrator can add missing attributes, and csi-resizer would retry
            // INVALID_ARGUMENT only after a long time.
            Self::Class(_) | Self::NotAccepted(_) | Self::Attributes(_) | Self::Adopt(_) => {
                Code::FailedPrecondition
            }
            Self::NoSource(_) => Code::NotFound,
            Self::Source(refusal) => refusal.code(),
            Self::Spec(error) => error.code(),
            Self::NoSite(error) => error.code(),
            Self::Elsewhere(_) | Self::NotThisClaim(_) | Self::SourceElsewhere { .. } => {
                Code::ResourceExhausted
            }
            Self::Refused { refusal, .. } => refusal.code(),
            Self::Api(_) | Self::SourceUnknown(_) => Code::Unavailable,
            Self::StillWaiting { .. } => Code::DeadlineExceeded,
        }
    }
}

impl Coded for NoSite {
    fn code(&self) -> Code {
        match self {
            // The cluster may be available soon, and the pod of the claim waits for it.
            Self::Unreachable(_) | Self::Unmapped(_) => Code::Unavailable,
            Self::Disputed { .. } => Code::FailedPrecondition,
        }
    }
}

impl Coded for Refusal {
    fn code(&self) -> Code {
        match self {
            Self::Differs(_) => Code::AlreadyExists,
            Self::ClaimGone => Code::NotFound,
            Self::Foreign(_)
            | Self::NodeDisagrees { .. }
            | Self::Loops(_)
            | Self::Vanished
            | Self::Losing
            | Self::Releasing
            | Self::Moves
            | Self::Lost
            | Self::HandedOverElsewhere
            | Self::Nowhere(_)
            | Self::NoCopy(_) => Code::FailedPrecondition,
        }
    }
}

impl Coded for DeleteError {
    fn code(&self) -> Code {
        match self {
            Self::Refused {
                refusal:
                    DeleteRefusal::Claimed(_)
                    | DeleteRefusal::Foreign(_)
                    | DeleteRefusal::Attached(_)
                    | DeleteRefusal::Releasing
                    | DeleteRefusal::Gated
                    | DeleteRefusal::ToBeCopied(_)
                    | DeleteRefusal::Moves,
                ..
            } => Code::FailedPrecondition,
            Self::Unknown(_) | Self::Unreachable(_) | Self::Api(_) => Code::Unavailable,
            Self::StillWaiting { .. } => Code::DeadlineExceeded,
        }
    }
}

impl Coded for PublishError {
    fn code(&self) -> Code {
        match self {
            Self::NoTwin { .. } | Self::NoNode { .. } => Code::NotFound,
            Self::Incapable(..) => Code::InvalidArgument,
            Self::Unusable(_)
            | Self::Moved {
                decision: AttachDecision::MovedOn { .. } | AttachDecision::MoveOver,
                ..
            } => Code::FailedPrecondition,
            // The code of the real driver, unless it says that the call has succeeded.
            Self::Refused { code, .. } => match code.map(Code::from) {
                None | Some(Code::Ok | Code::Unknown) => Code::Internal,
                Some(code) => code,
            },
            Self::Unreachable(_)
            | Self::Api(_)
            | Self::Moved {
                decision: AttachDecision::Allow | AttachDecision::Moving | AttachDecision::Unknown(_),
                ..
            } => Code::Unavailable,
            Self::StillWaiting(_) => Code::DeadlineExceeded,
        }
    }
}

impl Coded for ChangeError {
    fn code(&self) -> Code {
        match self {
            Self::NoVolume(_) => Code::NotFound,
            // csi-resizer then lets users request a smaller size.
            Self::NotExpandable(_)
            | Self::TooLarge { .. }
            | Self::NotAccepted(_)
            | Self::NotGrown {
                refusal: RealRefusal::Infeasible(_),
                ..
            } => Code::OutOfRange,
            // csi-resizer then lets users choose another class.
            Self::Attributes(_)
            | Self::NotModified {
                refusal: RealRefusal::Infeasible(_),
                ..
            } => Code::InvalidArgument,
            Self::NotGrown {
                refusal: RealRefusal::InUse(_),
                ..
            } => Code::FailedPrecondition,
            // A final code, because nothing is in progress, but one that csi-resizer retries: the
            // claim of a volume that has moved has another handle then.
            Self::NotNow { .. } | Self::MovedOn { .. } | Self::NotGrown { .. } | Self::NotModified { .. } => {
                Code::Internal
            }
            Self::Unknown(_) | Self::Unreachable(_) | Self::Api(_) => Code::Unavailable,
            Self::StillWaiting { .. } => Code::DeadlineExceeded,
        }
    }
}

impl Coded for UnpublishError {
    fn code(&self) -> Code {
        match self {
            Self::Api(_) | Self::InUse { .. } => Code::Unavailable,
            Self::StillWaiting { .. } => Code::DeadlineExceeded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{ApiError, Cause},
        placement::{AdoptRefusal, ClassError},
        topology::AffinityError,
        volume::{ClaimMark, Epoch, Foreign},
    };

    fn api() -> ApiError {
        ApiError::for_test(Cause::Unavailable("down".into()))
    }

    fn still_waiting() -> CreateError {
        CreateError::StillWaiting {
            twin: "liqo-storage/x".into(),
            cluster: "home".into(),
            awaited: "bound",
            why: Some("out of disks".into()),
        }
    }

    fn source_elsewhere() -> CreateError {
        CreateError::SourceElsewhere {
            source_name: "the snapshot s".into(),
            place: "in this cluster".into(),
            cluster: "home".parse().unwrap(),
        }
    }

    fn attach_refused(code: Option<i32>) -> PublishError {
        PublishError::Refused {
            node: "n".into(),
            driver: "d".into(),
            message: "full".into(),
            code,
        }
    }

    fn code(error: impl Coded) -> Code {
        error.status().code()
    }

    fn not_attached(decision: AttachDecision) -> Code {
        code(PublishError::Moved {
            volume: crate::volume::VolumeName::from_request("v"),
            cluster: "home".parse().unwrap(),
            decision,
        })
    }

    fn not_made(refusal: Refusal) -> Code {
        code(CreateError::Refused {
            twin: "liqo-storage/x".into(),
            cluster: "home".into(),
            refusal,
        })
    }

    fn not_adopted() -> CreateError {
        AdoptRefusal::NotRetained("pv".into()).into()
    }

    fn not_deleted(refusal: DeleteRefusal) -> Code {
        code(DeleteError::Refused {
            twin: "liqo-storage/x".into(),
            cluster: "home".into(),
            refusal,
        })
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table, one row a line")]
    fn each_error_has_its_grpc_code() {
        let foreign = || Foreign::OtherClaim("x".into());
        let volume = || crate::volume::VolumeName::from_request("v");
        let class = ClassError::NoDefault {
            cluster: "home".parse().unwrap(),
            virtual_defaults: vec![],
        };
        let disagrees = Refusal::NodeDisagrees {
            selected: None,
            requested: "n".into(),
        };
        let claim = ClaimMark {
            namespace: "shop".into(),
            name: "data".into(),
            uid: "u".into(),
        };
        let table = [
            (VolumeIdError::Foreign("x".into()).code(), Code::NotFound),
            (
                VolumeIdError::UnknownVersion("v3:x".into()).code(),
                Code::Unavailable,
            ),
            (SpecError::NoCapability.code(), Code::InvalidArgument),
            (code(CreateError::Class(class)), Code::FailedPrecondition),
            (code(CreateError::NotAccepted(api())), Code::FailedPrecondition),
            (code(not_adopted()), Code::FailedPrecondition),
            (
                code(CreateError::Elsewhere("full".into())),
                Code::ResourceExhausted,
            ),
            (
                code(CreateError::NotThisClaim("ephemeral".into())),
                Code::ResourceExhausted,
            ),
            (code(source_elsewhere()), Code::ResourceExhausted),
            (code(CreateError::Api(api())), Code::Unavailable),
            (code(still_waiting()), Code::DeadlineExceeded),
            (not_made(Refusal::Differs(vec![])), Code::AlreadyExists),
            (not_made(Refusal::ClaimGone), Code::NotFound),
            (not_made(Refusal::Foreign(foreign())), Code::FailedPrecondition),
            (not_made(disagrees), Code::FailedPrecondition),
            (not_made(Refusal::Loops("l".into())), Code::FailedPrecondition),
            (not_made(Refusal::Vanished), Code::FailedPrecondition),
            (not_made(Refusal::Losing), Code::FailedPrecondition),
            (not_made(Refusal::Releasing), Code::FailedPrecondition),
            (not_deleted(DeleteRefusal::Releasing), Code::FailedPrecondition),
            (not_made(Refusal::Moves), Code::FailedPrecondition),
            (not_deleted(DeleteRefusal::Gated), Code::FailedPrecondition),
            (not_deleted(DeleteRefusal::Moves), Code::FailedPrecondition),
            (not_attached(AttachDecision::Moving), Code::Unavailable),
            (
                not_attached(AttachDecision::Unknown("down".into())),
                Code::Unavailable,
            ),
            (not_attached(AttachDecision::MoveOver), Code::FailedPrecondition),
            (
                not_attached(AttachDecision::MovedOn {
                    asked: Epoch::NEVER_MOVED,
                    current: "1".parse().unwrap(),
                }),
                Code::FailedPrecondition,
            ),
            (not_made(Refusal::Lost), Code::FailedPrecondition),
            (not_made(Refusal::HandedOverElsewhere), Code::FailedPrecondition),
            (
                not_made(Refusal::Nowhere(AffinityError::NoNode(1))),
                Code::FailedPrecondition,
            ),
            (not_made(Refusal::NoCopy("older")), Code::FailedPrecondition),
            (
                not_deleted(DeleteRefusal::Foreign(foreign())),
                Code::FailedPrecondition,
            ),
            (
                not_deleted(DeleteRefusal::Claimed(claim)),
                Code::FailedPrecondition,
            ),
            (
                not_deleted(DeleteRefusal::Attached("n".into())),
                Code::FailedPrecondition,
            ),
            (
                not_deleted(DeleteRefusal::ToBeCopied("shop/copy".into())),
                Code::FailedPrecondition,
            ),
            (code(DeleteError::Unknown("down".into())), Code::Unavailable),
            (code(DeleteError::Api(api())), Code::Unavailable),
            (
                code(PublishError::NoTwin {
                    volume: volume(),
                    cluster: "home".into(),
                    why: String::new(),
                }),
                Code::NotFound,
            ),
            (
                code(PublishError::NoNode {
                    cluster: "home".into(),
                    node: "n".into(),
                }),
                Code::NotFound,
            ),
            (
                code(PublishError::Incapable(volume(), String::new())),
                Code::InvalidArgument,
            ),
            (
                code(PublishError::Unusable(String::new())),
                Code::FailedPrecondition,
            ),
            (code(attach_refused(None)), Code::Internal),
            (code(attach_refused(Some(0))), Code::Internal),
            (code(attach_refused(Some(8))), Code::ResourceExhausted),
            (code(PublishError::Api(api())), Code::Unavailable),
            (
                code(PublishError::StillWaiting(String::new())),
                Code::DeadlineExceeded,
            ),
            (
                code(UnpublishError::InUse {
                    volume: volume(),
                    node: String::new(),
                    pod: String::new(),
                }),
                Code::Unavailable,
            ),
            (code(UnpublishError::Api(api())), Code::Unavailable),
        ];
        for (at, (got, expected)) in table.into_iter().enumerate() {
            assert_eq!(got, expected, "row {at}");
        }
    }

    #[test]
    fn a_long_reason_is_cut() {
        let status = SpecError::UnknownParameter("x".repeat(100_000)).status();
        let length = status.message().len();
        assert!((4000..4200).contains(&length), "{length}");
    }

    #[test]
    fn a_timeout_includes_the_reason() {
        let status = still_waiting().status();
        assert_eq!(
            status.message(),
            "the twin liqo-storage/x in cluster home is not bound yet: out of disks"
        );
    }
}
