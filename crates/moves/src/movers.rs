//! The hands of a move: the twin at its target, and on each side what reads or writes the volume.
//! Everything is found again by names and labels; nothing is remembered but how far the copy is,
//! which is asked again of whoever makes it.
//!
//! ```text
//!            home (this driver's namespace)                remote (the twin's namespace)
//!  Secret with certificates ── one for each pod ──────────▶ Secret, goes with its pod
//!  PV, claim ── pod of the mover ◀── relay ── port-forward ──▶ pod of the mover ── the twin
//! ```
//!
//! `target` makes the twin; `volume`, `certificates` and `pod` say what the objects are, `side`
//! looks at those of one side, `making` makes and removes them, `relay` is about the pod between
//! both, `orders` has the target's program copy, and `rehearsal` asks the API servers beforehand.

mod certificates;
mod making;
mod names;
mod orders;
mod pod;
mod rehearsal;
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

pub use self::orders::{CopyProgress, RunningPass};
pub use self::target::target_class;
pub(super) use self::volume::node_affinity;
use self::{orders::Orders, side::Ground};
use crate::{
    api::volume_move::{MoveRequest, MoveTarget, Warm},
    cluster::ApiError,
    gate::{Applied, GateError, MovedVolume, Movers},
    placement::{
        ClassError,
        moving::{ClaimStep, Helpers, Live, Side, Stage},
    },
    twin::{NoAttributes, Policy},
    volume::{AccessMode, SpecError, VolumeName, moving::is_gated},
};

/// What a move needs of clusters beside the objects of its gate.
pub trait MoveHelpers: Send + Sync {
    /// What is known of the movers of one claim.
    fn observe(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        stage: &Stage,
    ) -> impl Future<Output = Result<Movers, GateError>> + Send;

    /// How far the copy of a claim is, if it has begun and this replica was told.
    fn progress(&self, moved: &MovedVolume) -> Option<CopyProgress>;

    /// What speaks against the move, in sentences; all that is found, and nothing is made. A cluster
    /// that does not answer is not an obstacle but an error.
    fn obstacles(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
    ) -> impl Future<Output = Result<Vec<String>, GateError>> + Send;

    /// Why nothing of the claim is copied while its users have it; `None` if it is.
    fn cold(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
    ) -> impl Future<Output = Result<Option<Cold>, GateError>> + Send;

    /// Takes a step that is about movers, or makes the target's twin.
    fn apply(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        step: &ClaimStep,
    ) -> impl Future<Output = Result<Applied, GateError>> + Send;
}

/// How the pods of moves are made.
#[derive(Clone, Debug)]
pub struct HelperSettings {
    /// The namespace of this driver, where movers at home are.
    pub namespace: String,
    /// The image of movers and relays.
    pub image: String,
    /// When it is pulled.
    pub pull_policy: String,
    /// The Secrets to pull it with, in the namespace of this driver.
    pub pull_secrets: Vec<String>,
    /// The service account of relays.
    pub relay_account: String,
    /// What users may choose.
    pub policy: Policy,
}

/// The movers in the clusters themselves.
pub struct ClusterHelpers {
    settings: HelperSettings,
    orders: Orders,
    /// The uids of pods whose Secrets are known to be there.
    equipped: Mutex<BTreeSet<String>>,
}

/// Why the target of a move gets no twin.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// No real class.
    #[error(transparent)]
    Class(#[from] ClassError),
    /// The class is not one that users may choose.
    #[error(
        "spec.target.storageClassName asks for the class {class:?}, which is neither the one that a new claim would get there nor in the allow-list of the driver ({}): have it allowed (allowedRealStorageClasses of the chart), or move to the class of a new claim, without naming one",
        if .allowed.is_empty() { "it is empty".to_owned() } else { .allowed.join(", ") }
    )]
    NotAllowed {
        /// The class.
        class: String,
        /// Those that may be chosen.
        allowed: Vec<String>,
    },
    /// What the volume is cannot be had there.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Its attributes cannot be had there.
    #[error(transparent)]
    Attributes(#[from] NoAttributes),
    /// Nobody makes volumes of that class.
    #[error(
        "the class {0} has volumes that were made by hand and are bound with their first pod, which a volume that is moved does not wait for: choose another class"
    )]
    MadeByHand(String),
    /// The place cannot have it.
    #[error("{0}")]
    Unfit(String),
    /// An API server does not answer, or refuses.
    #[error(transparent)]
    Api(ApiError),
}

/// Why movers cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The PV from which that of the mover is made is not there.
    #[error("the PersistentVolume {0} of the volume that is moved is gone, or leads elsewhere")]
    NoVolume(VolumeName),
    /// What is asked for cannot be had.
    #[error(
        "spec.warm of the VolumeMove is Live, but {0}: set it to Auto or None, and nothing is copied before the pods have gone"
    )]
    NotLive(Cold),
    /// Nobody makes a snapshot for a move yet.
    #[error("copies are not made from snapshots yet: set spec.warm of the VolumeMove to Auto, Live or None")]
    FromSnapshot,
    /// Somebody else's object has the name.
    #[error(
        "{kind} {name} in cluster {cluster} was not made for this move, and has the name of what it needs: delete it, or find out whose it is"
    )]
    Foreign {
        /// What kind of object.
        kind: String,
        /// Its namespace, if it has one, and name.
        name: String,
        /// Its cluster.
        cluster: String,
    },
    /// No certificates can be issued.
    #[error("no certificates can be issued for the movers: {0}")]
    Certificates(String),
    /// The relay cannot reach a cluster.
    #[error("the kubeconfig of the cluster {0} is not known: it does not answer")]
    NoKubeconfig(String),
}

/// Why nothing is copied while the users have the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cold {
    /// Somebody wants that.
    #[error("spec.warm is None")]
    Asked,
    /// Nobody else may have it as long as they do.
    #[error("its access mode is ReadWriteOncePod")]
    OnePod,
    /// Kubelet knows a device by its PV, and that of the mover is another one.
    #[error("it is of mode Block, and in this cluster")]
    Device,
}

/// What is to become of the helpers of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// They are needed.
    Needed,
    /// They will be needed when the users have gone.
    NotYet,
    /// They have one thing left to do if they still run, and none is made for that.
    Last,
    /// They go, or have to be gone.
    Gone,
}

impl ClusterHelpers {
    /// Of this driver.
    #[must_use]
    pub fn new(settings: HelperSettings) -> Self {
        Self {
            settings,
            orders: Orders::default(),
            equipped: Mutex::default(),
        }
    }

    /// Gives no more orders: another replica moves the volumes from now on. What was told to movers
    /// before, they may still do.
    pub fn rest(&self) {
        self.orders.forget_all();
    }

    fn is_equipped(&self, pod: &str) -> bool {
        let equipped = self.equipped.lock().unwrap_or_else(PoisonError::into_inner);
        equipped.contains(pod)
    }

    fn equip(&self, pod: String) {
        let mut equipped = self.equipped.lock().unwrap_or_else(PoisonError::into_inner);
        equipped.insert(pod);
    }

    fn unequip(&self, pod: &str) {
        let mut equipped = self.equipped.lock().unwrap_or_else(PoisonError::into_inner);
        equipped.remove(pod);
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
        Box::pin(self.look(moved, of, stage)).await
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
            ClaimStep::RemoveHelpers(side) => Box::pin(self.remove(moved, *side)).await,
            ClaimStep::StartPass(pass) => self.orders.start(moved, of, *pass, &self.settings),
            _ => Ok(Applied::NotHere),
        }
    }
}

impl ClusterHelpers {
    async fn look(&self, moved: &MovedVolume, of: &MoveRequest, stage: &Stage) -> Result<Movers, GateError> {
        let outer = moved.volumes().get(moved.volume().as_str()).await?;
        let outer = outer.as_ref();
        let is_warm = is_warm(moved, of, stage, outer);
        let (source, target) = tokio::try_join!(
            Ground::find(moved, Side::Source, &self.settings, outer),
            Ground::find(moved, Side::Target, &self.settings, outer)
        )?;
        let dialled = target.as_known().and_then(Ground::address);
        let reads_on = match source.as_known() {
            Some(ground) => ground.reads_on(matches!(stage, Stage::Copying { .. })).await,
            None => None,
        };
        let looks = async |ground: &Live<Ground<'_>>, aim| match ground {
            Live::Silent(why) => Ok(Live::Silent(why.clone())),
            Live::Known(ground) => match (aim, ground.presence()) {
                (Aim::NotYet, Helpers::Absent) => Ok(Live::Known(Helpers::Ready)),
                (Aim::Last, Helpers::Incomplete) if ground.runs() => Ok(Live::Known(Helpers::Ready)),
                (Aim::NotYet | Aim::Last | Aim::Gone, found) => Ok(Live::Known(found)),
                (Aim::Needed, _) => ground.state(self, of, dialled).await,
            },
        };
        Ok(Movers {
            source: looks(&source, aim(stage, Side::Source, is_warm)).await?,
            target: looks(&target, aim(stage, Side::Target, is_warm)).await?,
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
            // It was needed while nobody else had the volume, and they have it again.
            return self.remove(moved, side).await;
        }
        let ground = Ground::find(moved, side, &self.settings, Some(&outer)).await?;
        let target = match side {
            Side::Source => Ground::find(moved, Side::Target, &self.settings, Some(&outer)).await?,
            Side::Target => Live::Silent(String::new()),
        };
        let target = target.as_known().and_then(Ground::address);
        answer(ground, side)?.make(self, of, target).await
    }

    async fn remove(&self, moved: &MovedVolume, side: Side) -> Result<Applied, GateError> {
        match side {
            Side::Source => self.orders.give_up(moved),
            Side::Target => self.orders.forget(moved),
        }
        let ground = Ground::find(moved, side, &self.settings, None).await?;
        answer(ground, side)?.remove(self).await
    }
}

fn answer(ground: Live<Ground<'_>>, side: Side) -> Result<Ground<'_>, GateError> {
    match ground {
        Live::Known(ground) => Ok(ground),
        Live::Silent(why) => Err(GateError::Silent {
            side: side.as_str(),
            why,
        }),
    }
}

/// Whether something is copied while the users have the volume.
fn is_warm(moved: &MovedVolume, of: &MoveRequest, stage: &Stage, outer: Option<&PersistentVolume>) -> bool {
    let is_before = matches!(stage, Stage::Preparing | Stage::Copying { .. } | Stage::Gating(_));
    !is_before || outer.is_none_or(|outer| cold(moved, of, outer).is_none())
}

/// Why a mover cannot have the volume beside its users, if it cannot.
fn cold(moved: &MovedVolume, of: &MoveRequest, outer: &PersistentVolume) -> Option<Cold> {
    let is_home = moved.source.id.cluster == *moved.home.id();
    if of.warm == Warm::None {
        Some(Cold::Asked)
    } else if volume::access_modes(outer).contains(&AccessMode::ReadWriteOncePod) {
        Some(Cold::OnePod)
    } else if is_home && volume::is_block(outer) {
        Some(Cold::Device)
    } else {
        None
    }
}

/// What is to become of the helpers of a side in this stage.
fn aim(stage: &Stage, side: Side, is_warm: bool) -> Aim {
    match stage {
        Stage::Preparing | Stage::Copying { .. } | Stage::Gating(_) if side == Side::Source && !is_warm => {
            Aim::NotYet
        }
        // The mover beside the users goes with them.
        Stage::Draining(_) if side == Side::Source => Aim::Gone,
        Stage::Preparing
        | Stage::Copying { .. }
        | Stage::Gating(_)
        | Stage::Draining(_)
        | Stage::Finishing(_)
        | Stage::Verifying(_) => Aim::Needed,
        Stage::Committed(_) if side == Side::Target => Aim::Last,
        Stage::Checking
        | Stage::Back { .. }
        | Stage::Committed(_)
        | Stage::Retaining(_)
        | Stage::Recovering(_)
        | Stage::Ended(_) => Aim::Gone,
    }
}
