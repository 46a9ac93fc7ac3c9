//! What the spec of a `VolumeMove` asks for, parsed once. The API server refuses nearly all that
//! is refused here; objects from before a rule was there are why it is said again.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    CutoverMode, Loss, Mover, Quantity, QuiesceMode, Route, Target, TargetAccessMode, Verify, VolumeMove,
    VolumeMoveSpec, VolumeMoveStatus, Warm,
};
use crate::{
    placement::moving::{OverDue, Quiesce, Wishes},
    volume::{AccessMode, ClaimName, ClusterId, parse_quantity},
};

/// What one pod can be expected to mount.
const MOST_CLAIMS: usize = 8;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is asked for by itself, in any combination"
)]
pub struct MoveRequest {
    /// The claims: at least one, each once.
    pub claims: Vec<ClaimName>,
    /// Where their volumes are to be.
    pub target: MoveTarget,
    /// The real storage class there, if one is named.
    pub storage_class: Option<String>,
    /// The access modes of the twins there, if any are named.
    pub access_modes: Option<BTreeSet<AccessMode>>,
    /// Whether the users are sent away by itself, once little is left to copy.
    pub cuts_over_by_itself: bool,
    /// Whether they are to be sent away now.
    pub cutover_requested: bool,
    /// For how long they may be away.
    pub max_downtime: Duration,
    /// After how many passes the rest counts as little.
    pub max_passes: u32,
    /// How they go.
    pub quiesce: Quiesce,
    /// How long that may take.
    pub drain_deadline: Duration,
    /// From what is copied beside them.
    pub warm: Warm,
    /// What is compared.
    pub verify: Verify,
    /// The routes that may be taken.
    pub routes: Vec<Route>,
    /// How many bytes are sent in a second at most.
    pub bandwidth: Option<u64>,
    /// What may be lost.
    pub accept_loss: Vec<Loss>,
    /// The pods that copy.
    pub mover: Mover,
    /// For how long the source is kept.
    pub retain_source: Duration,
    /// Whether nothing new is begun.
    pub paused: bool,
    /// Whether it is undone.
    pub cancel: bool,
    /// Whether the source is given back when the target is lost.
    pub recover_source: bool,
    /// Whether only what speaks against it is looked for.
    pub dry_run: bool,
}

/// Where volumes are to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveTarget {
    /// Where this node can use them.
    Node(String),
    /// Anywhere in this cluster.
    Cluster(ClusterId),
}

/// A spec that asks for nothing that can be done.
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
    /// What the user wishes at this moment. `held_off` says that a cut-over has failed a moment
    /// ago, so that the next one is not begun by itself at once.
    #[must_use]
    pub fn wishes(&self, held_off: bool) -> Wishes {
        Wishes {
            cancel: self.cancel,
            recover: self.recover_source,
            paused: self.paused,
            cutover: self.cutover_requested || (self.cuts_over_by_itself && !held_off),
            quiesce: self.quiesce,
        }
    }

    /// What is left to ask for when a `VolumeMove` is gone: nothing but that all be as before.
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

    /// What has lasted too long, as far as the status says when it has begun.
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
            .ok_or_else(|| ("cutover.maxPasses", "it is at least 1".to_owned()))?,
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
        return wrong("it names 1 to 8 claims");
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
        _ => Err(("target", "it names one target: nodeName or cluster".to_owned())),
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

/// A limit of nothing a second would be a pause that nobody finds.
fn bytes(quantity: &Quantity) -> Result<u64, Wrong> {
    parse_quantity(&quantity.0)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| {
            let why = "it is a number of bytes a second, such as 64Mi; set paused to stop the copying";
            ("transport.bandwidth", why.to_owned())
        })
}

fn some_time(field: &'static str, text: &str) -> Result<Duration, Wrong> {
    let time = time(field, text)?;
    if time.is_zero() {
        return Err((field, "it is longer than nothing".to_owned()));
    }
    Ok(time)
}

/// `90s`, `10m`, `1h30m`: hours, minutes and seconds, each once and in this order.
fn time(field: &'static str, text: &str) -> Result<Duration, Wrong> {
    let wrong = || (field, format!("{text:?} is no duration: write 90s, 10m or 1h30m"));
    let (mut seconds, mut rest) = (0_u64, text);
    for (unit, length) in [('h', 3600), ('m', 60), ('s', 1)] {
        let Some((amount, after)) = rest.split_once(unit) else {
            continue;
        };
        let is_number = (1..=5).contains(&amount.len()) && amount.bytes().all(|digit| digit.is_ascii_digit());
        let amount: u64 = if is_number {
            amount.parse().map_err(|_| wrong())?
        } else {
            return Err(wrong());
        };
        // 5 digits of hours are far from the end of 64 bits.
        seconds += amount * length;
        rest = after;
    }
    if text.is_empty() || !rest.is_empty() {
        return Err(wrong());
    }
    Ok(Duration::from_secs(seconds))
}
