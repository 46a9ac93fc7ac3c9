//! The errors of the operations on twins, one enum per operation.

use super::NoAttributes;
use crate::{
    cluster::ApiError,
    fleet::Unreachable,
    placement::{
        AdoptRefusal, ClassError, DeleteRefusal, RealRefusal, Refusal, SourceRefusal, Unmapped,
        moving::AttachDecision,
    },
    volume::{ClusterId, Epoch, SpecError, VolumeId, VolumeName},
};

/// Why there is no site for the twin of a claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSite {
    /// The cluster is unreachable or not declared.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The claim's namespace is not offloaded.
    #[error(transparent)]
    Unmapped(#[from] Unmapped),
    #[error(
        "the node {node} is claimed by several clusters ({clusters}): their node selectors must not overlap"
    )]
    Disputed { node: String, clusters: String },
}

/// Why `CreateVolume` failed.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error(transparent)]
    Class(#[from] ClassError),
    /// The cluster of the twin cannot provide what the request specifies.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The twin cannot have the requested `VolumeAttributesClass`.
    #[error(transparent)]
    Attributes(#[from] NoAttributes),
    /// There is no site for the twin, or its cluster is unreachable.
    #[error(transparent)]
    NoSite(#[from] NoSite),
    /// The selected node cannot have the volume; another one may.
    #[error("{0}")]
    Elsewhere(String),
    /// The cluster cannot have this particular claim. That says nothing about other claims, so it must
    /// not change the capacity that is published for them.
    #[error("{0}")]
    NotThisClaim(String),
    /// The source of the copy is not in the cluster to which the pod was sent.
    #[error("{source_name} is {place}, and a copy of it can only be made there")]
    SourceElsewhere {
        source_name: String,
        /// The place of the source, for messages.
        place: String,
        cluster: ClusterId,
    },
    /// The request has failed for this twin.
    #[error("{refusal} (twin {twin} in cluster {cluster})")]
    Refused {
        /// The twin, or the object with its name, as namespace/name.
        twin: String,
        cluster: String,
        refusal: Refusal,
    },
    /// The source of the copy does not exist.
    #[error("{0}")]
    NoSource(String),
    /// It is not known whether the source exists.
    #[error("the source of the volume cannot be read: {0}")]
    SourceUnknown(String),
    /// The source cannot be copied.
    #[error(transparent)]
    Source(#[from] SourceRefusal),
    /// The claim may not adopt the requested PV.
    #[error(transparent)]
    Adopt(#[from] AdoptRefusal),
    /// The API server rejects the twin permanently: nothing was created.
    #[error("{0}")]
    NotAccepted(ApiError),
    #[error("{0}")]
    Api(#[from] ApiError),
    /// The deadline has passed.
    #[error("the twin {twin} in cluster {cluster} is not {awaited} yet{}", because(.why.as_deref()))]
    StillWaiting {
        twin: String,
        cluster: String,
        awaited: &'static str,
        /// What the real provisioner reports.
        why: Option<String>,
    },
}

/// Why it is not known where the twin of a volume is.
#[derive(Debug, thiserror::Error)]
pub(super) enum FindError {
    /// The volume has no PV, which would record it, and not all namespaces can be searched.
    #[error("{0}")]
    NoRecord(String),
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl From<FindError> for DeleteError {
    fn from(error: FindError) -> Self {
        match error {
            FindError::NoRecord(why) => Self::Unknown(why),
            FindError::Unreachable(error) => error.into(),
            FindError::Api(error) => error.into(),
        }
    }
}

impl From<FindError> for ChangeError {
    fn from(error: FindError) -> Self {
        match error {
            FindError::NoRecord(why) => Self::Unknown(why),
            FindError::Unreachable(error) => error.into(),
            FindError::Api(error) => error.into(),
        }
    }
}

/// Why a volume is not deleted, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// The volume must not be deleted.
    #[error("{refusal} (twin {twin} in cluster {cluster})")]
    Refused {
        /// The twin, or the object with its name, as namespace/name.
        twin: String,
        cluster: String,
        refusal: DeleteRefusal,
    },
    /// It is not known whether the volume is deleted.
    #[error("cannot confirm that the volume was deleted: {0}")]
    Unknown(String),
    #[error("cannot confirm that the volume was deleted: {0}")]
    Unreachable(#[from] Unreachable),
    #[error("{0}")]
    Api(#[from] ApiError),
    /// The deadline has passed.
    #[error("{what} still exists in cluster {cluster}{}", because(.why.as_deref()))]
    StillWaiting {
        /// The object that still exists.
        what: String,
        cluster: String,
        /// What the status of the object reports.
        why: Option<String>,
    },
}

/// Why a volume cannot be attached to a node, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The twin does not exist.
    #[error("the volume {volume} has no twin in cluster {cluster}: {why}")]
    NoTwin {
        volume: VolumeName,
        cluster: String,
        /// Why, or what has its name.
        why: String,
    },
    #[error("the cluster {cluster} has no node {node:?}")]
    NoNode { cluster: String, node: String },
    /// The volume does not have the requested capabilities.
    #[error("the volume {0} does not support this request: {1}")]
    Incapable(VolumeName, String),
    /// The volume cannot be used in its present state.
    #[error("{0}")]
    Unusable(String),
    /// The volume is being moved, or has moved.
    #[error("the volume {volume} in the cluster {cluster} is not attached: {decision}")]
    Moved {
        volume: VolumeName,
        /// The cluster in the volume handle.
        cluster: ClusterId,
        decision: AttachDecision,
    },
    #[error("{0}")]
    Unreachable(String),
    /// The real driver failed to attach it.
    #[error("the volume cannot be attached to {node} by {driver}: {message}")]
    Refused {
        node: String,
        driver: String,
        message: String,
        /// Its gRPC code, if Kubernetes passes it on.
        code: Option<i32>,
    },
    #[error("{0}")]
    Api(#[from] ApiError),
    /// The deadline has passed.
    #[error("{0} is not attached yet")]
    StillWaiting(String),
}

/// Why a volume is not expanded or modified, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error("no volume has the id \"{0}\"")]
    NoVolume(VolumeId),
    /// The place of the twin is unknown.
    #[error("{0}")]
    Unknown(String),
    /// The twin cannot be changed in its present state.
    #[error("the twin {twin} in cluster {cluster} {why}")]
    NotNow {
        twin: String,
        cluster: String,
        /// The state, as the end of a sentence.
        why: &'static str,
    },
    /// The volume has moved, so that this handle is outdated.
    #[error(
        "the volume \"{id}\" has moved: the epoch of its data, which counts its moves, is {current}. Change the claim when its \
         PersistentVolume names that"
    )]
    MovedOn {
        /// The id in the request.
        id: VolumeId,
        current: Epoch,
    },
    /// Volumes like this one cannot be expanded.
    #[error("{0}")]
    NotExpandable(String),
    /// The volume is larger than the requested limit.
    #[error("the volume {volume} has {has} already, more than the limit of {limit}")]
    TooLarge {
        volume: VolumeName,
        has: String,
        /// The requested limit.
        limit: String,
    },
    /// The real driver refuses to expand it.
    #[error("the twin {twin} in cluster {cluster} is not expanded: {refusal}")]
    NotGrown {
        twin: String,
        cluster: String,
        refusal: RealRefusal,
    },
    /// The twin cannot have the requested `VolumeAttributesClass`.
    #[error(transparent)]
    Attributes(#[from] NoAttributes),
    /// The real driver refuses to change it.
    #[error(
        "the twin {twin} in cluster {cluster} is not changed to the VolumeAttributesClass {class}: {refusal}"
    )]
    NotModified {
        twin: String,
        cluster: String,
        class: String,
        refusal: RealRefusal,
    },
    /// The API server rejects the larger size permanently.
    #[error("{0}")]
    NotAccepted(ApiError),
    #[error("{0}")]
    Unreachable(#[from] Unreachable),
    #[error("{0}")]
    Api(#[from] ApiError),
    /// The deadline has passed.
    #[error("the twin {twin} in cluster {cluster} is not {awaited} yet{}", because(.why.as_deref()))]
    StillWaiting {
        twin: String,
        cluster: String,
        awaited: String,
        /// What the real driver's controllers report.
        why: Option<String>,
    },
}

/// Why a volume is not detached yet.
#[derive(Debug, thiserror::Error)]
pub enum UnpublishError {
    #[error("{0}")]
    Api(#[from] ApiError),
    /// The deadline has passed.
    #[error("{attachment} still exists{}", because(.why.as_deref()))]
    StillWaiting {
        attachment: String,
        /// What the real driver reports.
        why: Option<String>,
    },
    /// The volume is being moved, and a pod still runs with it.
    #[error(
        "the volume {volume} stays attached to the node {node}: it is being moved, and the pod {pod} there still uses it. It is \
         detached when that pod has terminated"
    )]
    InUse {
        volume: VolumeName,
        node: String,
        /// The pod, as namespace/name.
        pod: String,
    },
}

/// Formats the reason that another component reports as the end of a message.
pub(super) fn because(why: Option<&str>) -> String {
    why.map_or_else(String::new, |why| format!(": {why}"))
}
