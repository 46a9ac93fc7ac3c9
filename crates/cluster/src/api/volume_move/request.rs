//! The spec of a `VolumeMove`, parsed. The API server refuses nearly everything that is refused here; the
//! checks are repeated for objects from before a rule existed.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    CutoverMode, Loss, Mover, Quantity, QuiesceMode, Route, Target, TargetAccessMode, Verify, VolumeMove,
    VolumeMoveSpec, VolumeMoveStatus, Warm,
};
use crate::{
    api::parse_duration,
    placement::moving::{OverDue, Quiesce, Requested},
    volume::{AccessMode, ClaimName, ClusterId, parse_quantity},
};

/// More claims than one pod usually mounts.
const MOST_CLAIMS: usize = 8;

#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is requested independently, in any combination"
)]
pub struct MoveRequest {
    /// The claims: at least one, each once.
    pub claims: Vec<ClaimName>,
    /// The target of their volumes.
    pub target: MoveTarget,
    /// The real storage class there, if one is named.
    pub storage_class: Option<String>,
    /// The access modes of the twins there, if any are named.
    pub access_modes: Option<BTreeSet<AccessMode>>,
    /// Whether the cut-over starts automatically, once little is left to copy.
    pub cuts_over_by_itself: bool,
    /// Whether the cut-over is requested now.
    pub cutover_requested: bool,
    /// For how long the volumes may be unavailable.
    pub max_downtime: Duration,
    /// The number of passes after which the rest counts as little.
    pub max_passes: u32,
    /// How the pods are stopped.
    pub quiesce: Quiesce,
    /// How long that may take.
    pub drain_deadline: Duration,
    /// What is copied while pods use the volumes.
    pub warm: Warm,
    /// What is verified.
    pub verify: Verify,
    /// The routes that may be taken.
    pub routes: Vec<Route>,
    /// Maximum number of bytes per second.
    pub bandwidth: Option<u64>,
    /// The accepted losses.
    pub accept_loss: Vec<Loss>,
    /// The options of the movers.
    pub mover: Mover,
    pub retain_source: Duration,
    /// Whether no new step is begun.
    pub paused: bool,
    /// Whether the move is cancelled.
    pub cancel: bool,
    /// Whether the source is recovered if the target is lost.
    pub recover_source: bool,
    /// Whether this is a dry run.
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveTarget {
    /// A node that can use the volumes.
    Node(String),
    /// Any node of this cluster.
    Cluster(ClusterId),
}

/// An invalid spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.{field} of the VolumeMove {name}: {why}")]
pub struct RequestError {
    name: String,
    field: &'static str,
    why: String,
}

type Wrong = (&'static str, String);

impl TryFrom<&VolumeMove> for MoveRequest {
    type Error = RequestError;

    fn try_from(of: &VolumeMove) -> Result<Self, RequestError> {
        let namespace = of.namespace().unwrap_or_default();
        parsed(&namespace, &of.spec).map_err(|(field, why)| RequestError {
            name: format!("{namespace}/{}", of.name_any()),
            field,
            why,
        })
    }
}

impl MoveRequest {
    /// The current request of the user. `held_off` says that a cut-over has failed recently, so that the
    /// next one does not start automatically at once.
    #[must_use]
    pub fn requested(&self, held_off: bool) -> Requested {
        Requested {
            cancel: self.cancel,
            recover: self.recover_source,
            paused: self.paused,
            cutover: self.cutover_requested || (self.cuts_over_by_itself && !held_off),
            quiesce: self.quiesce,
        }
    }

    /// The request of a deleted `VolumeMove`: only that the previous state is restored.
    #[must_use]
    pub fn of_nobody(claim: &ClaimName, cluster: &ClusterId) -> Self {
        Self {
            claims: vec![claim.clone()],
            target: MoveTarget::Cluster(cluster.clone()),
            storage_class: None,
            access_modes: None,
            cuts_over_by_itself: false,
            cutover_requested: false,
            max_downtime: Duration::ZERO,
            max_passes: 1,
            quiesce: Quiesce::Wait,
            drain_deadline: Duration::ZERO,
            warm: Warm::None,
            verify: Verify::Incremental,
            routes: Vec::new(),
            bandwidth: None,
            accept_loss: Vec::new(),
            mover: Mover::default(),
            retain_source: Duration::ZERO,
            paused: true,
            cancel: true,
            recover_source: false,
            dry_run: false,
        }
    }

    /// Which limits are exceeded, as far as the status has their start times.
    #[must_use]
    pub fn overdue(&self, status: &VolumeMoveStatus, now: Timestamp) -> OverDue {
        let is_over = |since: Timestamp, most: Duration| {
            let passed = Duration::try_from(now.duration_since(since));
            passed.is_ok_and(|passed| passed >= most)
        };
        let since = status
            .downtime
            .as_ref()
            .and_then(|downtime| downtime.since.as_ref());
        OverDue {
            drain: status
                .gated_at
                .as_ref()
                .is_some_and(|gated| is_over(gated.0, self.drain_deadline)),
            downtime: since.is_some_and(|since| is_over(since.0, self.max_downtime)),
            retention: status.retained_until.as_ref().is_some_and(|until| now >= until.0),
        }
    }
}

fn parsed(namespace: &str, spec: &VolumeMoveSpec) -> Result<MoveRequest, Wrong> {
    let (cutover, quiesce) = (&spec.cutover, &spec.quiesce);
    let bandwidth = spec.transport.bandwidth.as_ref();
    let modes = access_modes(&spec.target.access_modes);
    Ok(MoveRequest {
        claims: claims(namespace, &spec.claims)?,
        target: target(&spec.target)?,
        storage_class: spec.target.storage_class_name.clone(),
        access_modes: (!modes.is_empty()).then_some(modes),
        cuts_over_by_itself: cutover.mode == CutoverMode::Auto,
        cutover_requested: cutover.requested,
        max_downtime: some_time("cutover.maxDowntime", &cutover.max_downtime)?,
        max_passes: u32::try_from(cutover.max_passes)
            .ok()
            .filter(|passes| *passes > 0)
            .ok_or_else(|| ("cutover.maxPasses", "it must be at least 1".to_owned()))?,
        quiesce: match quiesce.mode {
            QuiesceMode::Wait => Quiesce::Wait,
            QuiesceMode::Evict => Quiesce::Evict,
        },
        drain_deadline: some_time("quiesce.deadline", &quiesce.deadline)?,
        warm: spec.warm,
        verify: spec.verify,
        routes: spec.transport.allow.clone(),
        bandwidth: bandwidth.map(bytes).transpose()?,
        accept_loss: spec.accept_loss.clone(),
        mover: spec.mover.clone().unwrap_or_default(),
        retain_source: time("retainSource", &spec.retain_source)?,
        paused: spec.paused,
        cancel: spec.cancel,
        recover_source: spec.recover_source,
        dry_run: spec.dry_run,
    })
}

fn claims(namespace: &str, names: &[String]) -> Result<Vec<ClaimName>, Wrong> {
    let distinct: BTreeSet<&String> = names.iter().collect();
    let wrong = |why: &str| Err(("claims", why.to_owned()));
    if names.is_empty() || names.len() > MOST_CLAIMS {
        return wrong("it must name 1 to 8 claims");
    }
    if distinct.len() < names.len() {
        return wrong("it names a claim twice");
    }
    let full = names.iter().map(|name| ClaimName {
        namespace: namespace.to_owned(),
        name: name.clone(),
    });
    Ok(full.collect())
}

fn target(target: &Target) -> Result<MoveTarget, Wrong> {
    match (&target.node_name, &target.cluster) {
        (Some(node), None) => Ok(MoveTarget::Node(node.clone())),
        (None, Some(cluster)) => {
            let id = cluster.parse::<ClusterId>();
            id.map(MoveTarget::Cluster)
                .map_err(|error| ("target.cluster", error.to_string()))
        }
        _ => Err((
            "target",
            "it must name one target: nodeName or cluster".to_owned(),
        )),
    }
}

fn access_modes(modes: &[TargetAccessMode]) -> BTreeSet<AccessMode> {
    let mode = |mode: &TargetAccessMode| match mode {
        TargetAccessMode::ReadWriteOnce => AccessMode::ReadWriteOnce,
        TargetAccessMode::ReadOnlyMany => AccessMode::ReadOnlyMany,
        TargetAccessMode::ReadWriteMany => AccessMode::ReadWriteMany,
        TargetAccessMode::ReadWriteOncePod => AccessMode::ReadWriteOncePod,
    };
    modes.iter().map(mode).collect()
}

/// A limit of zero bytes per second would be a hidden pause.
fn bytes(quantity: &Quantity) -> Result<u64, Wrong> {
    parse_quantity(&quantity.0)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| {
            let why = "it must be a number of bytes per second, such as 64Mi; set paused to stop the copying";
            ("transport.bandwidth", why.to_owned())
        })
}

fn some_time(field: &'static str, text: &str) -> Result<Duration, Wrong> {
    let time = time(field, text)?;
    if time.is_zero() {
        return Err((field, "it must be longer than zero".to_owned()));
    }
    Ok(time)
}

fn time(field: &'static str, text: &str) -> Result<Duration, Wrong> {
    parse_duration(text).ok_or_else(|| {
        let why = format!("{text:?} is not a duration: write 90s, 10m or 1h30m");
        (field, why)
    })
}
