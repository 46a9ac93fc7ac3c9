//! Cleans up after moves whose `VolumeMove` was deleted: its finalizer was removed by force, or an old
//! leader wrote late. Their locks and marks do not count any more, but block users and other loops, so
//! they are removed, and the claim is bound again to the volume with its data.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;
use tokio::sync::watch;

use super::{
    Context,
    follow::FollowError,
    volumes::{recorded, side},
};
use crate::{
    api::volume_move::{MoveRequest, PlannedTwin},
    cluster::{ApiError, slim::Twin, unless_conflict},
    gate::{Applied, MovedSide, MovedVolume, Place, Records, unlocked},
    movers::MoveHelpers,
    observe::crash::{self, Step},
    placement::{
        Phase,
        moving::{
            ClaimDecision, ClaimFacts, Live, Outcome, Stage, TargetTwin, VolumeNow, Waiting, leftover_step,
        },
    },
    reports::Reports,
    rounds::{Rounds, each},
    twin::{exists, twin_in},
    volume::{
        ClaimMark, ClaimName, DRIVER_NAME, Epoch, VolumeId, VolumeName, mark,
        moving::{MoveUid, MovedClaim, SourceMark, TwinMarks, VolumeMark},
    },
};

/// The most steps for one claim in one round.
const STEPS: usize = 30;

/// The loop that cleans up after deleted moves.
pub(super) struct Leftovers<'a, H> {
    context: &'a Context<'a, H>,
    reports: Reports,
}

/// A claim, possibly deleted, whose objects still have the marks of a move.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Leftover {
    by: MoveUid,
    namespace: String,
    name: String,
    claim_uid: String,
    volume: String,
}

impl<'a, H: MoveHelpers> Leftovers<'a, H> {
    pub(super) fn new(context: &'a Context<'a, H>) -> Self {
        Self {
            context,
            reports: Reports::new(context.events.clone()),
        }
    }

    /// The watched twins of all clusters.
    fn twins(&self) -> Vec<(crate::volume::ClusterId, Arc<Twin>)> {
        let home = self.context.home;
        let mut twins: Vec<_> = home
            .all_twins()
            .into_iter()
            .map(|twin| (home.id().clone(), twin))
            .collect();
        for remote in self.context.registry.all() {
            if let Ok(cluster) = remote.reach() {
                twins.extend(
                    cluster
                        .all_twins()
                        .into_iter()
                        .map(|twin| (remote.id.clone(), twin)),
                );
            }
        }
        twins
    }

    /// Finds the objects with marks of a move that the view does not show. Unreadable marks are ignored.
    async fn find(&self) -> Result<BTreeSet<Leftover>, ApiError> {
        let Context { home, watched, .. } = self.context;
        let seen: BTreeSet<String> = home
            .views()
            .moves
            .all()
            .iter()
            .map(|one| one.uid.clone())
            .collect();
        let is_unseen = |by: &MoveUid| !seen.contains(by.as_str());
        let mut found = BTreeSet::new();
        let volumes = watched.volumes.virtual_volumes();
        for (_, twin) in self.twins() {
            let (Ok(marks), Some(claim)) = (&twin.moves, &twin.claim) else {
                continue;
            };
            for by in locking_moves(&twin, marks).into_iter().filter(is_unseen) {
                found.insert(Leftover::of(by, claim, twin.volume.as_str()));
            }
        }
        for claim in watched.claims.all() {
            let by = claim.locked_by.as_deref().and_then(|by| by.parse().ok());
            let Some(by) = by.filter(is_unseen) else { continue };
            let is_its =
                |mark: &ClaimMark| mark.namespace == claim.name.namespace && mark.name == claim.name.name;
            let volume = volumes
                .iter()
                .find(|volume| volume.claim.as_ref().is_some_and(is_its));
            let volume = volume.map_or_else(
                || VolumeName::requested_for(&claim.uid),
                |volume| volume.name.clone(),
            );
            found.insert(Leftover::of(by, &claim.mark(), &volume));
        }
        for volume in volumes.iter().filter(|volume| volume.gated) {
            let Some(read) = home.all::<PersistentVolume>().get(&volume.name).await? else {
                continue;
            };
            let note = match VolumeMark::read(read.annotations()) {
                Ok(Some(VolumeMark::Gated(note))) if is_unseen(&note.by) => note,
                _ => continue,
            };
            let claim = read.spec.and_then(|spec| spec.claim_ref).unwrap_or_default();
            let mark = ClaimMark {
                namespace: claim.namespace.unwrap_or_default(),
                name: claim.name.unwrap_or_default(),
                uid: note.claim_uid.clone(),
            };
            found.insert(Leftover::of(note.by, &mark, &volume.name));
        }
        Ok(found)
    }

    /// Returns why objects are left, if that does not change without users.
    async fn clean(&self, left: &Leftover) -> Result<Option<String>, FollowError> {
        let stage = Stage::Ended(Outcome::Failed);
        for _ in 0..STEPS {
            let Some(moved) = self.moved_volume(left).await? else {
                self.unlock(left).await?;
                return Ok(None);
            };
            let request = MoveRequest::of_nobody(&moved.claim.name, &moved.target.id.cluster);
            let movers = self.context.helpers.observe(&moved, &request, &stage).await?;
            let recorded = recorded(&moved.records);
            let facts = moved.observe().await?.facts(&moved, movers, recorded);
            let step = match leftover_step(&left.by, &facts) {
                ClaimDecision::Do(step) => step,
                ClaimDecision::Await(what @ (Waiting::CommittedWithoutMove | Waiting::MarkedAgain)) => {
                    return Ok(Some(why_left(&moved, &facts, &what)));
                }
                ClaimDecision::Await(what) => {
                    tracing::warn!(claim = %moved.claim.name, by = %left.by, %what, "objects of a deleted VolumeMove are left");
                    return Ok(None);
                }
                ClaimDecision::Reached | ClaimDecision::Rollback(..) | ClaimDecision::Regate => {
                    return Ok(None);
                }
            };
            tracing::info!(claim = %moved.claim.name, by = %left.by, ?step, "cleaning up after a deleted VolumeMove");
            if moved.apply(&step).await? == Applied::NotHandled {
                self.context.helpers.apply(&moved, &request, &step).await?;
            }
        }
        Ok(None)
    }

    /// Unlocks a claim without a volume, for example one that was restored from a backup with the lock, which would
    /// keep it from being deleted.
    async fn unlock(&self, left: &Leftover) -> Result<(), ApiError> {
        let claims = self.context.home.within::<PersistentVolumeClaim>(&left.namespace);
        let is_locked = |claim: &PersistentVolumeClaim| {
            claim.uid().as_ref() == Some(&left.claim_uid)
                && claim.annotations().get(mark::MOVE).map(String::as_str) == Some(left.by.as_str())
        };
        let Some(claim) = claims.get(&left.name).await?.filter(is_locked) else {
            return Ok(());
        };
        let mut metadata = unlocked(&claim);
        metadata["uid"] = json!(claim.uid());
        metadata["resourceVersion"] = json!(claim.resource_version());
        let patch = json!({ "metadata": metadata });
        let unlocked = crash::around(Step::MoveUnlock, claims.merge(&left.name, &patch)).await;
        unless_conflict(unlocked).map(drop)
    }

    /// The volume, from its PV and the marks on its twins, because the status does not exist any more.
    /// `None` if neither exists.
    async fn moved_volume(&self, left: &Leftover) -> Result<Option<MovedVolume>, FollowError> {
        let Some(volume) = VolumeName::parse(&left.volume) else {
            return Ok(None);
        };
        let virtual_pv = self
            .context
            .home
            .all::<PersistentVolume>()
            .get(&left.volume)
            .await?;
        let served = virtual_pv
            .as_ref()
            .and_then(|virtual_pv| served(&volume, virtual_pv));
        let mut twins = BTreeMap::new();
        let (mut source, mut target, mut current) = (None, None, None);
        for (cluster, twin) in self.twins() {
            if twin.volume != volume {
                continue;
            }
            let id = VolumeId {
                cluster,
                name: volume.clone(),
                epoch: twin.epoch,
            };
            if let Ok(marks) = &twin.moves {
                if marks.source.as_ref().is_some_and(|mark| *mark.by() == left.by) {
                    source = Some(id.clone());
                }
                if marks.target.as_ref().is_some_and(|mark| mark.by == left.by) {
                    target = Some(id.clone());
                }
                if let Some(SourceMark::Superseded { by, epoch }) = &marks.source
                    && *by == left.by
                {
                    current = Some(*epoch);
                }
            }
            twins.insert(
                id.clone(),
                PlannedTwin {
                    id,
                    place: ClaimName {
                        namespace: twin.namespace.clone(),
                        name: twin.name.clone(),
                    },
                },
            );
        }
        if let Some(served) = served {
            let is_target = target.as_ref() == Some(&served.id) || Some(served.id.epoch) == current;
            if !is_target {
                source = source.or_else(|| Some(served.id.clone()));
            }
            twins.entry(served.id.clone()).or_insert(served);
        }
        let target = target.or_else(|| twins.keys().find(|id| Some(id.epoch) == current).cloned());
        let (home, registry) = (self.context.home, self.context.registry);
        let known = |id: &VolumeId| twins.get(id).map(|twin| side(home, registry, twin));
        let unknown_side = |epoch| MovedSide {
            id: VolumeId {
                cluster: home.id().clone(),
                name: volume.clone(),
                epoch,
            },
            place: Place::Gone,
        };
        let source = source.and_then(|id| known(&id));
        let target = target.and_then(|id| known(&id));
        let epoch = source
            .as_ref()
            .map_or(Epoch::NEVER_MOVED, |source| source.id.epoch);
        let Some(next) = epoch.next() else {
            return Ok(None);
        };
        if source.is_none() && target.is_none() {
            return Ok(None);
        }
        Ok(Some(MovedVolume {
            home: home.clone(),
            by: left.by.clone(),
            claim: MovedClaim {
                name: ClaimName {
                    namespace: left.namespace.clone(),
                    name: left.name.clone(),
                },
                uid: left.claim_uid.clone(),
            },
            source: source.unwrap_or_else(|| unknown_side(epoch)),
            target: target.unwrap_or_else(|| unknown_side(next)),
            records: Records::Nothing,
            mover_node: None,
            recovers: false,
            target_out_of_service: false,
        }))
    }
}

impl Leftover {
    fn of(by: MoveUid, claim: &ClaimMark, volume: &str) -> Self {
        Self {
            by,
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            claim_uid: claim.uid.clone(),
            volume: volume.to_owned(),
        }
    }

    fn claim(&self) -> ClaimMark {
        ClaimMark {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.claim_uid.clone(),
        }
    }
}

/// Why objects of a deleted move are left, and what to do.
fn why_left(moved: &MovedVolume, facts: &ClaimFacts, what: &Waiting) -> String {
    let why = format!("objects of a deleted VolumeMove are left: {what}");
    if *what != Waiting::CommittedWithoutMove || facts.volume != VolumeNow::Absent {
        return why;
    }
    let id = &moved.target.id;
    let handle = match &facts.target {
        Live::Known(TargetTwin::Exists { .. }) => format!("the volumeHandle {id}"),
        _ => "the volumeHandle of that twin".to_owned(),
    };
    format!(
        "{why}. The PersistentVolume {} was being replaced, and does not exist. The data is kept by the twin at the target: create \
         the PersistentVolume again from a backup, with {handle}, or delete this claim; the twin stays",
        id.name
    )
}

/// The moves that lock a twin against its users. A twin that was rolled back is not locked, and a superseded one only
/// if its PV may be gated in its cluster.
fn locking_moves(twin: &Twin, marks: &TwinMarks) -> Vec<MoveUid> {
    let source = match &marks.source {
        Some(SourceMark::Moving { by, .. }) => Some(by.clone()),
        Some(SourceMark::Superseded { by, .. }) if twin.phase == Phase::Lost => Some(by.clone()),
        Some(SourceMark::RolledBack { .. } | SourceMark::Superseded { .. }) | None => None,
    };
    let target = marks.target.as_ref().map(|target| target.by.clone());
    source.into_iter().chain(target).collect()
}

/// The twin in the volume handle of a PV.
fn served(volume: &VolumeName, virtual_pv: &PersistentVolume) -> Option<PlannedTwin> {
    let csi = virtual_pv
        .spec
        .as_ref()?
        .csi
        .as_ref()
        .filter(|csi| csi.driver == DRIVER_NAME)?;
    let id: VolumeId = csi.volume_handle.parse().ok()?;
    let place = csi
        .volume_attributes
        .as_ref()
        .and_then(twin_in)
        .unwrap_or(ClaimName {
            namespace: String::new(),
            name: id.name.home_twin(id.epoch),
        });
    (id.name == *volume).then_some(PlannedTwin { id, place })
}

impl<H: MoveHelpers> Rounds for Leftovers<'_, H> {
    const NAME: &'static str = "moves_left";
    const RESYNC: Duration = Duration::from_mins(2);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let Context {
            home,
            registry,
            watched,
            ..
        } = self.context;
        vec![
            home.views().moves.version(),
            watched.claims.changes_of(|claim| claim.locked_by.is_some()),
            watched
                .volumes
                .changes_of(|volume| volume.as_virtual().is_some_and(|volume| volume.gated)),
            registry.changes(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let mut gone = BTreeMap::new();
        let mut all = Vec::new();
        for left in self.find().await? {
            // The view may not show a new move yet.
            let is_gone = match gone.get(&left.by) {
                Some(is_gone) => *is_gone,
                None => !exists(self.context.home, &left.by).await,
            };
            gone.insert(left.by.clone(), is_gone);
            if is_gone {
                all.push(left);
            }
        }
        let (this, notes) = (&*self, Mutex::new(Vec::new()));
        let cleaned = each(all, async |left| {
            match this.clean(&left).await {
                Ok(why) => {
                    let note = why.map(|why| (left.claim(), why));
                    notes.lock().unwrap_or_else(PoisonError::into_inner).extend(note);
                    Ok(())
                }
                Err(FollowError::Api(error)) => Err(error),
                Err(error) => {
                    tracing::warn!(claim = left.name, namespace = left.namespace, by = %left.by, %error, "cannot clean up after a deleted VolumeMove");
                    Ok(())
                }
            }
        })
        .await;
        for (claim, note) in notes.into_inner().unwrap_or_else(PoisonError::into_inner) {
            self.reports.warn(&claim, "MoveLeftovers", &note).await;
        }
        cleaned
    }
}
