//! Finds orphaned twins, and carries out what [`crate::placement::orphans`] decides: after a grace period
//! it deletes or reports them.

mod left;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use tokio::{sync::watch, time::Instant};

use self::left::LeftVolumes;
use super::{
    Metrics, Reports, Settings,
    recovery::{RealVolumes, STEPS},
    watched::{Watched, names_another_volume},
};
use crate::{
    cluster::{ApiError, Cluster, slim::Twin},
    fleet::Registry,
    observe::crash::Step,
    placement::{
        orphans::{
            MoveRole, Origin, OrphanFacts, OrphanState, OrphanStep, OrphanTwin, Place, orphan_step,
            seen_state,
        },
        recovery::Read,
    },
    rounds::Rounds,
    twin::{
        CreateError, Site, exists, is_of_move, is_releasing, is_seen_of_move, reading::volume_name, withdraw,
    },
    volume::{
        ClaimMark, ClusterId, Marks, VolumeId, VolumeIdError, VolumeName,
        moving::{MoveUid, SourceMark, TwinMarkError, TwinMarks},
    },
};

/// How long to wait until one twin is deleted.
const DELETE_TIMEOUT: Duration = Duration::from_secs(20);

/// The grace period for twins at home that another client is deleting: the longer one is for twins that
/// no client has touched. In a remote cluster, that may be a fabric that deletes a namespace.
const DELETED_GRACE: Duration = Duration::from_secs(30);

/// The move that has taken the data of a twin to another epoch.
fn superseded_by(marks: &Result<TwinMarks, TwinMarkError>) -> Option<&MoveUid> {
    match marks.as_ref().ok()?.source.as_ref()? {
        SourceMark::Superseded { by, .. } => Some(by),
        SourceMark::Moving { .. } | SourceMark::RolledBack { .. } => None,
    }
}

/// The loop for orphaned twins.
pub(super) struct Orphans<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    reports: Reports,
    grace: Duration,
    metrics: &'a Metrics,
    /// The cluster of the twins.
    cluster: ClusterId,
    /// Since when a twin, by its uid, is in its state.
    since: HashMap<String, (OrphanState, Instant)>,
    left: LeftVolumes,
}

impl<'a> Orphans<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        registry: &'a Registry,
        watched: &'a Watched,
        reports: Reports,
        settings: &Settings,
        metrics: &'a Metrics,
        cluster: ClusterId,
    ) -> Self {
        Self {
            home,
            registry,
            watched,
            reports,
            grace: settings.grace,
            metrics,
            cluster,
            since: HashMap::new(),
            left: LeftVolumes::unknown(),
        }
    }

    /// Records the state of a twin; true once it has lasted for the grace period.
    fn has_lasted(&mut self, cluster: &Cluster, twin: &Twin, state: OrphanState) -> bool {
        let now = Instant::now();
        let (known, since) = self.since.entry(twin.uid.clone()).or_insert((state, now));
        if *known != state {
            (*known, *since) = (state, now);
        }
        let grace = if twin.deleting && cluster.id() == self.home.id() {
            self.grace.min(DELETED_GRACE)
        } else {
            self.grace
        };
        since.elapsed() >= grace
    }

    /// Deletes a twin if a live read confirms its state.
    async fn delete(&self, cluster: &Cluster, seen: &Twin) -> Result<(), ApiError> {
        let twins = cluster.within::<PersistentVolumeClaim>(&seen.namespace);
        let found = twins.get(&seen.name).await?;
        let Some(twin) = found.filter(|twin| twin.uid().as_deref() == Some(&seen.uid)) else {
            return Ok(());
        };
        let Ok(marks) = Marks::read(twin.labels(), twin.annotations()) else {
            return Ok(());
        };
        let Some(site) = self.site(cluster, &twin, &marks) else {
            return Ok(());
        };
        let reals = RealVolumes {
            site: &site,
            volume: &marks.volume,
            remembered: None,
            twin: twin.uid(),
        };
        let moves = TwinMarks::read(twin.labels(), twin.annotations());
        let of_move = match superseded_by(&moves) {
            Some(by) if !exists(self.home, by).await => MoveRole::Left,
            None if !is_of_move(self.home, &twin).await => MoveRole::No,
            _ => MoveRole::Yes,
        };
        let mut facts = OrphanFacts {
            twin: OrphanTwin {
                handed_over: marks.handed_over,
                deleting: twin.metadata.deletion_timestamp.is_some(),
                releasing: is_releasing(&twin),
                of_move,
            },
            real: volume_name(&twin).map(str::to_owned),
            object: twin,
            place: Read::NotYet,
            origin: Read::NotYet,
            rights: cluster.rights().volume_changes,
            reals: Read::NotYet,
        };
        for _ in 0..STEPS {
            match orphan_step(&facts) {
                OrphanStep::ReadPlace => {
                    facts.place = Read::Known(self.place_of_volume(cluster, &marks).await?);
                }
                OrphanStep::ReadOrigin => facts.origin = Read::Known(self.origin_now(&marks).await?),
                OrphanStep::ReadReal(name) => {
                    facts.reals = Read::Known(reals.read(name, true).await?);
                }
                OrphanStep::Keep(keep) => match reals.keep(keep, Step::Rescue).await? {
                    Some(kept) => facts.reals = Read::Known(kept),
                    // The PV has changed: the next round reads it.
                    None => break,
                },
                OrphanStep::Withdraw { twin, kept } => {
                    if let Some(real) = kept {
                        tracing::warn!(
                            cluster = %cluster.id(), twin = site.place(), real,
                            "another client is deleting a twin without a known volume: its PersistentVolume is retained"
                        );
                    }
                    let action = if facts.twin.deleting {
                        "removing the finalizer of a twin that is being deleted"
                    } else {
                        "deleting a twin that was never handed over"
                    };
                    tracing::info!(twin = seen.name, volume = %marks.volume, "{action}");
                    return match withdraw(cluster, twin, Instant::now() + DELETE_TIMEOUT).await {
                        Err(CreateError::Api(error)) => Err(error),
                        Err(error) => {
                            tracing::info!(twin = seen.name, %error, "the twin is not deleted yet");
                            Ok(())
                        }
                        Ok(_) => Ok(()),
                    };
                }
                OrphanStep::KeepFinalizer { real, why } => {
                    tracing::warn!(
                        cluster = %cluster.id(), twin = site.place(), real, why,
                        "another client is deleting a twin without a known volume, and its PersistentVolume cannot be retained: the finalizer of this driver stays on the twin. Grant the right, or set the reclaim policy to Retain and remove the finalizer"
                    );
                    break;
                }
                OrphanStep::Leave => break,
            }
        }
        Ok(())
    }

    fn site(&self, cluster: &Cluster, twin: &PersistentVolumeClaim, marks: &Marks) -> Option<Site> {
        if cluster.id() == self.home.id() {
            return Some(Site::local(self.home, &marks.volume, marks.epoch));
        }
        let remote = self.registry.get(cluster.id()).ok()?;
        let namespace = twin.namespace().unwrap_or_default();
        Site::recorded(self.home, remote, namespace, twin.name_any(), marks.epoch).ok()
    }

    async fn origin_now(&self, marks: &Marks) -> Result<Origin, ApiError> {
        let Some(claim) = &marks.claim else {
            return Ok(Origin::Unknown);
        };
        let claims = self.home.within::<PersistentVolumeClaim>(&claim.namespace);
        let found = claims.get(&claim.name).await?;
        let may_get_it = |found: &PersistentVolumeClaim| {
            found.uid().as_deref() == Some(&claim.uid) && !names_another_volume(found)
        };
        Ok(if found.as_ref().is_some_and(may_get_it) {
            Origin::Live
        } else {
            Origin::Gone
        })
    }

    /// Where the data is, according to the PV of the volume, which is searched under the names that
    /// csi-provisioner gives it.
    async fn place_of_volume(&self, cluster: &Cluster, marks: &Marks) -> Result<Place, ApiError> {
        let volumes = self.home.all::<PersistentVolume>();
        let asked_for = &marks.request_name;
        let other_name =
            !asked_for.is_empty() && asked_for != marks.volume.as_str() && asked_for.len() <= 253;
        let mut found = volumes.get(marks.volume.as_str()).await?;
        if found.is_none() && other_name {
            found = volumes.get(&asked_for.to_lowercase()).await?;
        }
        let Some(found) = found else {
            return Ok(Place::Nowhere);
        };
        let handle = found.spec.and_then(|spec| Some(spec.csi?.volume_handle));
        let id = match handle.unwrap_or_default().parse::<VolumeId>() {
            Ok(id) => id,
            Err(VolumeIdError::Foreign(_)) => {
                VolumeId::never_moved(self.home.id().clone(), marks.volume.clone())
            }
            Err(VolumeIdError::UnknownVersion(_)) => return Ok(Place::Unreadable),
        };
        let is_here = id.cluster == *cluster.id() && id.epoch == marks.epoch;
        Ok(if is_here { Place::Here } else { Place::Elsewhere })
    }

    async fn report(&mut self, cluster: &Cluster, twin: &Twin, state: OrphanState) {
        let on = ClaimMark {
            namespace: twin.namespace.clone(),
            name: twin.name.clone(),
            uid: twin.uid.clone(),
        };
        let claim = twin
            .claim
            .as_ref()
            .map(|claim| format!("{}/{}", claim.namespace, claim.name));
        let what = match state {
            OrphanState::LeftByMove => format!(
                "it is the source of a move of the volume {} of the claim {}, and the VolumeMove was deleted, so that nothing \
                 releases it. It is not deleted: if that data is not needed, delete this claim",
                twin.volume,
                claim.as_deref().unwrap_or("<unknown>"),
            ),
            _ => format!(
                "the volume {} ({}, of the claim {}) has no PersistentVolume. The twin is not deleted, since it may hold data: recover \
                 it by hand, or delete this claim",
                twin.volume,
                state.reason(),
                claim.as_deref().unwrap_or("<unknown>"),
            ),
        };
        let note = format!(
            "{what}: its own PersistentVolume is retained then, and the data is deleted when you set the reclaim policy of that \
             PersistentVolume back to Delete"
        );
        if cluster.id() == self.home.id() {
            self.reports.warn(&on, "OrphanedTwin", &note).await;
        } else {
            // Events in a remote cluster would need rights that the driver has no other use for.
            let place = format!("{}/{}", on.namespace, on.name);
            tracing::warn!(cluster = %cluster.id(), twin = place, "{note}");
        }
    }

    /// The cluster, if it is reachable.
    fn reached(&self) -> Option<Cluster> {
        if self.cluster == *self.home.id() {
            return Some(self.home.clone());
        }
        let remote = self.registry.get(&self.cluster).ok()?;
        let cluster = remote.reach().ok()?;
        for namespace in remote.namespaces.named() {
            // Starts a watch of this namespace, if not all namespaces may be watched at once.
            drop(cluster.twins_in(namespace));
        }
        Some(cluster)
    }

    /// Twins of a cluster without a PV of their volume, and their states.
    fn orphaned(&self, cluster: &Cluster) -> Vec<(Arc<Twin>, OrphanState)> {
        let here = self.watched.volumes.virtual_volumes_in(&self.cluster);
        let here: HashSet<_> = here.iter().map(|volume| (&volume.volume, volume.epoch)).collect();
        let mut twins = cluster.all_twins();
        twins.retain(|twin| !here.contains(&(&twin.volume, twin.epoch)));
        if twins.is_empty() {
            return Vec::new();
        }
        let everywhere = self.watched.volumes.virtual_volumes();
        let everywhere: HashSet<&VolumeName> = everywhere.iter().map(|volume| &volume.volume).collect();
        let unreadable: BTreeSet<String> = self.watched.volumes.of_other_versions().into_iter().collect();
        let moves = self.home.views().moves.all();
        let state = |twin: Arc<Twin>| {
            let place = if unreadable.contains(twin.volume.as_str()) {
                Place::Unreadable
            } else if everywhere.contains(&twin.volume) {
                Place::Elsewhere
            } else {
                Place::Nowhere
            };
            let origin = match &twin.claim {
                None => Origin::Unknown,
                Some(mark) => match self.watched.claim(mark) {
                    Some(claim) if !claim.names_another_volume => Origin::Live,
                    _ => Origin::Gone,
                },
            };
            // The twins of a move have no PV of their epoch; an existing move handles them.
            let of_move = match superseded_by(&twin.moves) {
                Some(by) if !moves.iter().any(|one| one.uid == by.as_str()) => MoveRole::Left,
                _ if is_seen_of_move(&twin) => MoveRole::Yes,
                _ => MoveRole::No,
            };
            let seen = OrphanTwin {
                handed_over: twin.handed_over,
                deleting: twin.deleting,
                releasing: twin.releasing,
                of_move,
            };
            seen_state(seen, place, origin).map(|state| (twin, state))
        };
        twins.into_iter().filter_map(state).collect()
    }
}

impl Rounds for Orphans<'_> {
    const NAME: &'static str = "orphans";
    const RESYNC: Duration = Duration::from_mins(1);

    fn grace(&self) -> Option<Duration> {
        Some(self.grace)
    }

    /// None: a twin that looks orphaned for a moment is being created or deleted.
    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        Vec::new()
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        // Nothing is known of an unreachable cluster: its orphans keep their age, and the metric its value.
        let Some(cluster) = self.reached() else {
            return Ok(());
        };
        // While PVs cannot be watched, that of a new volume is not shown, and its twin is no orphan. What is deleted is
        // read live.
        let shows_all = self.watched.volumes.outdated_since().is_none();
        let orphaned = self.orphaned(&cluster);
        let uids: HashSet<&str> = orphaned.iter().map(|(twin, _)| twin.uid.as_str()).collect();
        self.since.retain(|uid, _| uids.contains(uid.as_str()));

        let mut outcome = Ok(());
        let mut reported: HashMap<OrphanState, usize> = HashMap::new();
        for &(ref twin, state) in &orphaned {
            let may_act = shows_all || state == OrphanState::Collectable;
            if !self.has_lasted(&cluster, twin, state) || !may_act {
                continue;
            }
            // The view may not show a new move yet.
            if state == OrphanState::LeftByMove
                && let Some(by) = superseded_by(&twin.moves)
                && exists(self.home, by).await
            {
                continue;
            }
            match state {
                OrphanState::BeingCreated => {}
                OrphanState::Collectable => outcome = outcome.and(self.delete(&cluster, twin).await),
                OrphanState::Unclaimed | OrphanState::HandedOver | OrphanState::LeftByMove => {
                    self.report(&cluster, twin, state).await;
                    *reported.entry(state).or_default() += 1;
                }
            }
        }
        if !shows_all {
            return outcome;
        }
        match self.report_left_volumes(&cluster).await {
            Ok(count) => *reported.entry(OrphanState::LeftByMove).or_default() += count,
            Err(error) => outcome = outcome.and(Err(error)),
        }
        for state in OrphanState::REPORTED {
            let count = reported.get(&state).copied().unwrap_or_default();
            self.metrics.orphans(&self.cluster, state.reason(), count);
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
