//! What can go wrong with a twin, one enum per operation.

use super::NoAttributes;
use crate::{
    cluster::ApiError,
    fleet::Unreachable,
    placement::{
        AdoptRefusal, ClassError, DeleteRefusal, RealRefusal, Refusal, SourceRefusal, Unmapped,
        moving::PublishBeside,
    },
    volume::{ClusterId, Epoch, SpecError, VolumeId, VolumeName},
};

/// Why a claim has no place for its twin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSite {
    /// The cluster cannot be used right now.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The claim's namespace is not offloaded.
    #[error(transparent)]
    Unmapped(#[from] Unmapped),
    /// Several clusters claim the node.
    #[error(
        "the node {node} is claimed by several clusters ({clusters}): their node selectors must not overlap"
    )]
    Disputed {
        /// The node.
        node: String,
        /// Their ids.
        clusters: String,
    },
}

/// Why `CreateVolume` has no volume to answer with.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// No real class.
    #[error(transparent)]
    Class(#[from] ClassError),
    /// It asks for what cannot be had where it would be.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// It asks for attributes that it cannot have where it would be.
    #[error(transparent)]
    Attributes(#[from] NoAttributes),
    /// There is no place for its twin, or none that can be reached.
    #[error(transparent)]
    NoSite(#[from] NoSite),
    /// The node that was chosen cannot have the volume; another one may.
    #[error("{0}")]
    Elsewhere(String),
    /// The cluster cannot have this very claim. That says nothing about others, so it
    /// is not to change what room they are shown there.
    #[error("{0}")]
    NotThisClaim(String),
    /// What it should be a copy of is not where its pod was sent.
    #[error("{source_name} is {place}, and a copy of it can only be made there")]
    SourceElsewhere {
        /// The snapshot or volume.
        source_name: String,
        /// Where it is, for people.
        place: String,
        /// Its cluster.
        cluster: ClusterId,
    },
    /// There will be no volume.
    #[error("{refusal} (twin {twin} in cluster {cluster})")]
    Refused {
        /// The twin, or whatever has its place, as namespace/name.
        twin: String,
        /// Its cluster.
        cluster: String,
        /// Why not.
        refusal: Refusal,
    },
    /// What it should be a copy of does not exist.
    #[error("{0}")]
    NoSource(String),
    /// It is not known whether that exists.
    #[error("the source of the volume cannot be read: {0}")]
    SourceUnknown(String),
    /// It cannot be a copy of that.
    #[error(transparent)]
    Source(#[from] SourceRefusal),
    /// The PV that its claim asks to adopt is not given to it.
    #[error(transparent)]
    Adopt(#[from] AdoptRefusal),
    /// The API server does not take the twin, as a matter of principle: nothing was made.
    #[error("{0}")]
    NotAccepted(ApiError),
    /// The cluster cannot be asked right now.
    #[error("{0}")]
    Api(#[from] ApiError),
    /// It takes longer than the caller has time.
    #[error("the twin {twin} in cluster {cluster} is not {awaited} yet{}", because(.why.as_deref()))]
    StillWaiting {
        /// The twin, as namespace/name.
        twin: String,
        /// Its cluster.
        cluster: String,
        /// What is waited for.
        awaited: &'static str,
        /// What others say about it.
        why: Option<String>,
    },
}

/// Why a volume is not deleted, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// It must not be deleted.
    #[error("{refusal} (twin {twin} in cluster {cluster})")]
    Refused {
        /// The twin, or whatever has its place, as namespace/name.
        twin: String,
        /// Its cluster.
        cluster: String,
        /// Why not.
        refusal: DeleteRefusal,
    },
    /// It is not known whether it is gone.
    #[error("it is not known whether the volume is gone: {0}")]
    Unknown(String),
    /// Its cluster cannot be asked right now.
    #[error("it is not known whether the volume is gone: {0}")]
    Unreachable(#[from] Unreachable),
    /// The cluster cannot be asked right now.
    #[error("{0}")]
    Api(#[from] ApiError),
    /// It takes longer than the caller has time.
    #[error("{what} still exists in cluster {cluster}{}", because(.why.as_deref()))]
    StillWaiting {
        /// The object that is waited for.
        what: String,
        /// Its cluster.
        cluster: String,
        /// What others say about it.
        why: Option<String>,
    },
}

/// Why a volume cannot be used on a node, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Its twin is not there.
    #[error("the volume {volume} has no twin in cluster {cluster}: {why}")]
    NoTwin {
        /// The volume.
        volume: VolumeName,
        /// Where it was looked for.
        cluster: String,
        /// What is there instead.
        why: String,
    },
    /// There is no such node.
    #[error("the cluster {cluster} has no node {node:?}")]
    NoNode {
        /// The cluster.
        cluster: String,
        /// The node.
        node: String,
    },
    /// The volume is not what it is asked to be.
    #[error("the volume {0} was not made for this: {1}")]
    Incapable(VolumeName, String),
    /// The volume cannot be used in its present state.
    #[error("{0}")]
    Unusable(String),
    /// It is being moved, or has moved.
    #[error("the volume {volume} in the cluster {cluster} is not attached: {beside}")]
    Beside {
        /// The volume.
        volume: VolumeName,
        /// The cluster that its handle names.
        cluster: ClusterId,
        /// Why not.
        beside: PublishBeside,
    },
    /// Its cluster cannot be asked right now.
    #[error("{0}")]
    Unreachable(String),
    /// The real driver refuses to attach it.
    #[error("the volume cannot be attached to {node} by {driver}: {message}")]
    Refused {
        /// The node.
        node: String,
        /// The real driver.
        driver: String,
        /// What it said.
        message: String,
        /// Its gRPC code, when Kubernetes passes it on.
        code: Option<i32>,
    },
    /// The cluster cannot be asked right now.
    #[error("{0}")]
    Api(#[from] ApiError),
    /// It takes longer than the caller has time.
    #[error("{0} is not attached yet")]
    StillWaiting(String),
}

/// Why a volume does not become what it is to be, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is no such volume.
    #[error("no volume has the id \"{0}\"")]
    NoVolume(VolumeId),
    /// Its twin is not in a state in which anything can be changed.
    #[error("the twin {twin} in cluster {cluster} {why}")]
    NotNow {
        /// The twin, as namespace/name.
        twin: String,
        /// Its cluster.
        cluster: String,
        /// What state it is in.
        why: &'static str,
    },
    /// The volume of this handle is another one now.
    #[error(
        "the volume \"{id}\" has moved: the epoch of its data, which counts its moves, is {current}. Change the claim when its \
         PersistentVolume names that"
    )]
    MovedOn {
        /// The id that was given.
        id: VolumeId,
        /// The epoch of the data.
        current: Epoch,
    },
    /// Volumes like this one never grow.
    #[error("{0}")]
    NotExpandable(String),
    /// It is larger than it may become.
    #[error("the volume {volume} has {has} already, more than the limit of {limit}")]
    TooLarge {
        /// The volume.
        volume: VolumeName,
        /// Its size.
        has: String,
        /// What it may have.
        limit: String,
    },
    /// The real driver does not let it grow.
    #[error("the twin {twin} in cluster {cluster} does not grow: {refusal}")]
    NotGrown {
        /// The twin, as namespace/name.
        twin: String,
        /// Its cluster.
        cluster: String,
        /// What the driver says.
        refusal: RealRefusal,
    },
    /// It cannot have these attributes.
    #[error(transparent)]
    Attributes(#[from] NoAttributes),
    /// The real driver does not give it these attributes.
    #[error(
        "the twin {twin} in cluster {cluster} is not changed to the VolumeAttributesClass {class}: {refusal}"
    )]
    NotModified {
        /// The twin, as namespace/name.
        twin: String,
        /// Its cluster.
        cluster: String,
        /// The class.
        class: String,
        /// What the driver says.
        refusal: RealRefusal,
    },
    /// The API server does not take the larger size, as a matter of principle.
    #[error("{0}")]
    NotAccepted(ApiError),
    /// Its cluster cannot be asked right now.
    #[error("{0}")]
    Unreachable(#[from] Unreachable),
    /// Its cluster cannot be asked right now.
    #[error("{0}")]
    Api(#[from] ApiError),
    /// It takes longer than the caller has time.
    #[error("the twin {twin} in cluster {cluster} is not {awaited} yet{}", because(.why.as_deref()))]
    StillWaiting {
        /// The twin, as namespace/name.
        twin: String,
        /// Its cluster.
        cluster: String,
        /// What is waited for.
        awaited: String,
        /// What others say about it.
        why: Option<String>,
    },
}

/// Why a volume is not yet detached.
#[derive(Debug, thiserror::Error)]
pub enum UnpublishError {
    /// The cluster cannot be asked right now.
    #[error("{0}")]
    Api(#[from] ApiError),
    /// It takes longer than the caller has time.
    #[error("{attachment} still exists{}", because(.why.as_deref()))]
    StillWaiting {
        /// The object that is waited for.
        attachment: String,
        /// What the real driver says about it.
        why: Option<String>,
    },
    /// The volume is being moved, and a pod still runs with it.
    #[error(
        "the volume {volume} stays attached to the node {node}: it is being moved, and the pod {pod} there still uses it. It is \
         detached when that pod has gone"
    )]
    InUse {
        /// The volume.
        volume: VolumeName,
        /// The node.
        node: String,
        /// The pod, with its namespace.
        pod: String,
    },
}

/// What others say, behind what is the matter.
pub(super) fn because(why: Option<&str>) -> String {
    why.map_or_else(String::new, |why| format!(": {why}"))
}
