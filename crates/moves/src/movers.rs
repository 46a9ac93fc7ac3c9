//! Creates and observes what a move needs in addition to its gate: the twin at the target and, on each side, the
//! mover that reads or writes the volume. All objects are found by names and labels. The only state in memory
//! is the progress of the copies, which can be requested from the movers again.
//!
//! ```text
//!            home (this driver's namespace)                remote (the twin's namespace)
//!  Secret with certificates ── one for each pod ──────────▶ Secret, owned by its pod
//!  PV, claim ── pod of the mover ◀── relay ── port-forward ──▶ pod of the mover ── the twin
//! ```
//!
//! While the PV of a remote source is gated there, its mover mounts it with a claim of its own (`gate::remote`).
//!
//! `target` creates the twin; `volume`, `certificates` and `pod` build the other objects, `side` observes
//! those of one side, `making` creates and deletes them, `relay` builds the pod between both sides, `orders`
//! sends orders to the target's mover, and `dry_run` asks the API servers before the move begins.

mod certificates;
mod dry_run;
mod making;
mod names;
mod orders;
mod pod;
mod relay;
mod shadow;
mod side;
mod target;
#[cfg(test)]
mod tests;
mod volume;

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

pub(super) use self::names::is_mover;
pub use self::orders::{CopyProgress, RunningPass};
pub use self::target::target_class;
pub(super) use self::volume::{claim_there, is_claim_there, name_of_claim_there, node_affinity};
use self::{
    orders::Orders,
    side::{MoverSide, Until},
};
use crate::{
    api::volume_move::{Amounts, MoveRequest, MoveTarget, Mover, Quantity, Warm},
    cluster::ApiError,
    gate::{Applied, GateError, MovedVolume, Movers},
    offload::nanos,
    placement::{
        ClassError,
        moving::{ClaimStep, Helpers, Live, Pass, RollbackTo, Side, Stage},
    },
    twin::{NoAttributes, Policy},
    volume::{AccessMode, SpecError, VolumeName, moving::is_gated},
};

/// The clusters' side of a move, without the objects of its gate.
pub trait MoveHelpers: Send + Sync {
    /// Observes the movers of one claim.
    fn observe(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        stage: &Stage,
    ) -> impl Future<Output = Result<Movers, GateError>> + Send;

    /// The progress of the copy of a claim, if it has begun and this replica knows it.
    fn progress(&self, moved: &MovedVolume) -> Option<CopyProgress>;

    /// Everything that blocks the move, in sentences; nothing is created. An unreachable cluster is an error,
    /// not an obstacle.
    fn obstacles(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
    ) -> impl Future<Output = Result<Vec<String>, GateError>> + Send;

    /// Why nothing of the claim is copied while pods use it; `None` if it is.
    fn cold(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
    ) -> impl Future<Output = Result<Option<Cold>, GateError>> + Send;

    /// Takes a step that concerns movers, or creates the target twin.
    fn apply(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        step: &ClaimStep,
    ) -> impl Future<Output = Result<Applied, GateError>> + Send;
}

/// Settings for the pods of moves.
#[derive(Clone, Debug)]
pub struct HelperSettings {
    /// The namespace of this driver, with the movers at home.
    pub namespace: String,
    pub image: String,
    pub pull_policy: String,
    /// Image pull Secrets, in the namespace of this driver.
    pub pull_secrets: Vec<String>,
    pub relay_account: String,
    /// What users may choose.
    pub policy: Policy,
    /// The most that users may set as a request or limit of movers; `None` is any amount.
    pub most: Amounts,
}

impl HelperSettings {
    /// Which resources of the movers are more than users may set.
    #[must_use]
    pub fn excess(&self, mover: &Mover) -> Vec<String> {
        let resources = mover.resources.clone().unwrap_or_default();
        let kinds = [("requests", resources.requests), ("limits", resources.limits)];
        let all = kinds.into_iter().flat_map(|(kind, wanted)| {
            let wanted = wanted.unwrap_or_default();
            [
                (kind, "cpu", wanted.cpu, &self.most.cpu),
                (kind, "memory", wanted.memory, &self.most.memory),
            ]
        });
        let excess = all.filter_map(|(kind, resource, wanted, most)| {
            let (Quantity(wanted), Quantity(most)) = (wanted?, most.as_ref()?);
            // API servers accept larger quantities than fit here.
            let fits = matches!((nanos(&wanted), nanos(most)), (Some(wanted), Some(most)) if wanted <= most);
            (!fits).then(|| {
                format!(
                    "spec.mover.resources.{kind}.{resource} is {wanted}, and this driver allows {most} (mover.maxResources of its \
                     chart)"
                )
            })
        });
        excess.collect()
    }
}

/// The movers in the real clusters.
pub struct ClusterHelpers {
    settings: HelperSettings,
    orders: Orders,
    /// The uids of pods whose Secrets exist.
    with_secret: Mutex<BTreeSet<String>>,
}

/// Why the target of a move gets no twin.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error(transparent)]
    Class(#[from] ClassError),
    #[error(
        "spec.target.storageClassName names the class {class:?}, which is neither the one that a new claim would get there nor in the allow-list of the driver ({}): ask an administrator to allow it (allowedRealStorageClasses of the chart), or move to the class of a new claim, without naming one",
        if .allowed.is_empty() { "it is empty".to_owned() } else { .allowed.join(", ") }
    )]
    NotAllowed {
        class: String,
        /// The allow-list.
        allowed: Vec<String>,
    },
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Attributes(#[from] NoAttributes),
    #[error(
        "the class {0} has statically created volumes that are bound with their first pod, and a move does not wait for a pod: choose another class"
    )]
    StaticVolumes(String),
    #[error("{0}")]
    Unfit(String),
    #[error(transparent)]
    Api(ApiError),
}

/// Why movers cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The mover's PV is derived from this one.
    #[error("the PersistentVolume {0} of the moved volume does not exist, or refers to another twin")]
    NoVolume(VolumeName),
    #[error(
        "spec.warm of the VolumeMove is Live, but {0}: set it to Auto or None, and nothing is copied until the pods have stopped"
    )]
    NotLive(Cold),
    #[error("copies are not made from snapshots yet: set spec.warm of the VolumeMove to Auto, Live or None")]
    FromSnapshot,
    #[error(
        "{kind} {name} in cluster {cluster} has a name that this move needs, but was not created for it: find its owner, and delete it"
    )]
    Foreign {
        kind: String,
        /// The namespace, if it has one, and the name.
        name: String,
        cluster: String,
    },
    #[error("no certificates can be issued for the movers: {0}")]
    Certificates(String),
    #[error("there is no kubeconfig for the cluster {0}: it is unreachable")]
    NoKubeconfig(String),
}

/// Why nothing is copied while pods use the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cold {
    #[error("spec.warm is None")]
    Requested,
    /// Kubernetes admits no second pod with the volume.
    #[error("its access mode is ReadWriteOncePod")]
    OnePod,
    /// Kubelet identifies a device by its PV, and the mover would use another PV.
    #[error("it is of mode Block, and in this cluster")]
    Block,
}

/// The desired state of the helpers of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HelperGoal {
    Needed,
    /// They will be needed after the drain.
    NeededLater,
    /// They are deleted for a time, and will be needed again.
    Paused,
    /// If they still run, they have one order left; none is created for it.
    FinishOnly,
    /// They are deleted.
    Deleted,
}

impl ClusterHelpers {
    #[must_use]
    pub fn new(settings: HelperSettings) -> Self {
        Self {
            settings,
            orders: Orders::default(),
            with_secret: Mutex::default(),
        }
    }

    /// This replica no longer leads: it sends no more orders. Movers may still carry out earlier ones.
    pub fn on_leadership_lost(&self) {
        self.orders.forget_all();
    }

    fn has_secret(&self, pod: &str) -> bool {
        let with_secret = self.with_secret.lock().unwrap_or_else(PoisonError::into_inner);
        with_secret.contains(pod)
    }

    fn add_secret(&self, pod: String) {
        let mut with_secret = self.with_secret.lock().unwrap_or_else(PoisonError::into_inner);
        with_secret.insert(pod);
    }

    fn forget_secret(&self, pod: &str) {
        let mut with_secret = self.with_secret.lock().unwrap_or_else(PoisonError::into_inner);
        with_secret.remove(pod);
    }
}

impl MoveHelpers for ClusterHelpers {
    fn progress(&self, moved: &MovedVolume) -> Option<CopyProgress> {
        self.orders.progress(moved)
    }

    async fn obstacles(&self, moved: &MovedVolume, of: &MoveRequest) -> Result<Vec<String>, GateError> {
        Box::pin(self.refused(moved, of)).await
    }

    async fn cold(&self, moved: &MovedVolume, of: &MoveRequest) -> Result<Option<Cold>, GateError> {
        Ok(cold(moved, of, &volume::outer(moved).await?))
    }

    async fn observe(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        stage: &Stage,
    ) -> Result<Movers, GateError> {
        Box::pin(self.observe_movers(moved, of, stage)).await
    }

    async fn apply(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        step: &ClaimStep,
    ) -> Result<Applied, GateError> {
        match step {
            ClaimStep::MakeTarget { mark } => {
                Box::pin(target::make(moved, &self.settings.policy, of, mark)).await
            }
            ClaimStep::MakeHelpers(side) => Box::pin(self.make(moved, of, *side)).await,
            ClaimStep::RemoveHelpers(side) => Box::pin(self.remove(moved, *side, Until::End)).await,
            ClaimStep::PauseSource => Box::pin(self.remove(moved, Side::Source, Until::Again)).await,
            ClaimStep::StartPass(pass) => {
                if let Pass::Final(_) | Pass::Verify(_) = pass {
                    let others = moved.users_of_target().await?;
                    self.orders.record_users(moved, &others);
                }
                self.orders.start(moved, of, *pass, &self.settings)
            }
            _ => Ok(Applied::NotHandled),
        }
    }
}

impl ClusterHelpers {
    async fn observe_movers(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        stage: &Stage,
    ) -> Result<Movers, GateError> {
        let outer = moved.volumes().get(moved.volume().as_str()).await?;
        let outer = outer.as_ref();
        let is_warm = is_warm(moved, of, stage, outer);
        let (source, target) = tokio::try_join!(
            MoverSide::find(moved, Side::Source, &self.settings, outer),
            MoverSide::find(moved, Side::Target, &self.settings, outer)
        )?;
        let dialled = target.as_known().and_then(MoverSide::address);
        let reads_on = match source.as_known() {
            Some(side_objects) => {
                side_objects
                    .reads_on(matches!(stage, Stage::Copying { .. }))
                    .await
            }
            None => None,
        };
        let helpers_of = async |side_objects: &Live<MoverSide<'_>>, goal| match side_objects {
            Live::Unknown(why) => Ok(Live::Unknown(why.clone())),
            Live::Known(side_objects) => match goal {
                HelperGoal::Needed => side_objects.state(self, of, dialled).await,
                HelperGoal::NeededLater => Ok(Live::Known(match side_objects.presence(Until::Again) {
                    Helpers::Absent => Helpers::Ready,
                    found => found,
                })),
                HelperGoal::Paused => Ok(Live::Known(side_objects.presence(Until::Again))),
                HelperGoal::FinishOnly => Ok(Live::Known(match side_objects.presence(Until::End) {
                    Helpers::Incomplete if side_objects.runs() => Helpers::Ready,
                    found => found,
                })),
                HelperGoal::Deleted => Ok(Live::Known(side_objects.presence(Until::End))),
            },
        };
        Ok(Movers {
            source: helpers_of(&source, goal(stage, Side::Source, is_warm)).await?,
            target: helpers_of(&target, goal(stage, Side::Target, is_warm)).await?,
            copied: self.orders.copied(moved, of, stage, is_warm),
            reads_on,
        })
    }

    async fn make(&self, moved: &MovedVolume, of: &MoveRequest, side: Side) -> Result<Applied, GateError> {
        if of.warm == Warm::Snapshot {
            return Err(HelperError::FromSnapshot.into());
        }
        let outer = volume::outer(moved).await?;
        if side == Side::Source && cold(moved, of, &outer).is_some() && !is_gated(outer.annotations()) {
            // The mover was needed while the volume was gated, and pods have the volume again.
            return self.remove(moved, side, Until::Again).await;
        }
        let side_objects = MoverSide::find(moved, side, &self.settings, Some(&outer)).await?;
        let target = match side {
            Side::Source => MoverSide::find(moved, Side::Target, &self.settings, Some(&outer)).await?,
            Side::Target => Live::Unknown(String::new()),
        };
        let target = target.as_known().and_then(MoverSide::address);
        reachable(side_objects, side)?.make(self, of, target).await
    }

    async fn remove(&self, moved: &MovedVolume, side: Side, until: Until) -> Result<Applied, GateError> {
        match side {
            Side::Source => self.orders.stop_waiting(moved),
            Side::Target => self.orders.forget(moved),
        }
        let side_objects = MoverSide::find(moved, side, &self.settings, None).await?;
        reachable(side_objects, side)?.remove(self, until).await
    }
}

fn reachable(side_objects: Live<MoverSide<'_>>, side: Side) -> Result<MoverSide<'_>, GateError> {
    match side_objects {
        Live::Known(side_objects) => Ok(side_objects),
        Live::Unknown(why) => Err(GateError::Unreachable {
            side: side.as_str(),
            why,
        }),
    }
}

/// Whether the volume is copied while pods use it.
fn is_warm(moved: &MovedVolume, of: &MoveRequest, stage: &Stage, outer: Option<&PersistentVolume>) -> bool {
    let is_before = matches!(stage, Stage::Preparing | Stage::Copying { .. } | Stage::Gating(_));
    !is_before || outer.is_none_or(|outer| cold(moved, of, outer).is_none())
}

/// Why a mover cannot use the volume together with its pods, if so.
fn cold(moved: &MovedVolume, of: &MoveRequest, outer: &PersistentVolume) -> Option<Cold> {
    let is_home = moved.source.id.cluster == *moved.home.id();
    if of.warm == Warm::None {
        Some(Cold::Requested)
    } else if volume::access_modes(outer).contains(&AccessMode::ReadWriteOncePod) {
        Some(Cold::OnePod)
    } else if is_home && volume::is_block(outer) {
        Some(Cold::Block)
    } else {
        None
    }
}

fn goal(stage: &Stage, side: Side, is_warm: bool) -> HelperGoal {
    match stage {
        Stage::Preparing | Stage::Copying { .. } | Stage::Gating(_) if side == Side::Source && !is_warm => {
            HelperGoal::NeededLater
        }
        // The mover that ran together with the pods is deleted with them.
        Stage::Draining(_)
        | Stage::Rollback {
            to: RollbackTo::Copying,
            ..
        } if side == Side::Source => HelperGoal::Paused,
        Stage::Preparing
        | Stage::Copying { .. }
        | Stage::Gating(_)
        | Stage::Draining(_)
        | Stage::Finishing(_)
        | Stage::Verifying(_) => HelperGoal::Needed,
        Stage::Committed(_) if side == Side::Target => HelperGoal::FinishOnly,
        Stage::Checking
        | Stage::Rollback { .. }
        | Stage::Committed(_)
        | Stage::Retaining(_)
        | Stage::Recovering(_)
        | Stage::Ended(_) => HelperGoal::Deleted,
    }
}
