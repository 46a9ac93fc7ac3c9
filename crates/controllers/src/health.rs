//! Is every volume's twin well? One that was handed over is only deleted by `DeleteVolume`;
//! when it is deleted or vanishes otherwise, the user hears of it at once and the data is
//! rescued as long as that is possible. How the twin is, the claim says, where its user
//! looks.

mod due;
mod telling;
mod upkeep;
mod volume_status;
mod words;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use self::{
    due::{Census, Due, Scope},
    volume_status::VolumeStatus,
    words::{diagnosis, name_of_twin, note, prospects, superseded},
};
use super::{
    Metrics, Reports,
    recovery::{Goal, Recovery, Rescue},
    watched::{VirtualVolume, Watched},
};
use crate::{
    cluster::{ApiError, Cluster, slim, view::RUNS_AGAIN},
    fleet::{Registry, Unreachable},
    placement::Diagnosis,
    rounds::{Rounds, each},
    twin::{Site, clean_claim, last_warning},
    volume::{ClaimName, ClusterId},
};

/// Twins that cannot be watched for so long are not just being listed, nor is their watch one
/// that was interrupted and has nothing to say.
const LONGEST_LIST: Duration = RUNS_AGAIN.saturating_add(Duration::from_secs(15));
/// A cluster that takes so long for one twin is not asked for the next in the same round.
const SLOW: Duration = Duration::from_secs(5);

/// The volumes of a round, by what they need.
#[derive(Default)]
struct ByNeed {
    healthy: Vec<VolumeStatus>,
    /// Twins that are not bound yet.
    waiting: Vec<VolumeStatus>,
    unhealthy: Vec<VolumeStatus>,
    left_behind: Vec<VolumeStatus>,
    /// Claims that bear the marks of their twins.
    marked: Vec<ClaimName>,
}

/// The uid of a twin, and whether its PV was to be retained.
type Settled = (String, bool);

/// The loop that looks after volumes.
pub(super) struct Health<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    reports: Reports,
    metrics: &'a Metrics,
    /// The cluster whose volumes are looked after.
    cluster: ClusterId,
    due: Due,
    census: Census,
    /// Volumes whose remote twins' PVs were seen to be as they should.
    settled: HashMap<String, Settled>,
}

impl<'a> Health<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        registry: &'a Registry,
        watched: &'a Watched,
        reports: Reports,
        metrics: &'a Metrics,
        cluster: ClusterId,
    ) -> Self {
        Self {
            due: Due::new(watched),
            home,
            registry,
            watched,
            reports,
            metrics,
            cluster,
            census: Census::default(),
            settled: HashMap::new(),
        }
    }

    /// The cluster of the twins, if it is reached.
    fn reached(&self) -> Option<Cluster> {
        if self.cluster == *self.home.id() {
            return Some(self.home.clone());
        }
        self.registry.get(&self.cluster).ok()?.reach().ok()
    }

    /// The volumes that this round looks at.
    fn volumes(&mut self) -> Vec<Arc<VirtualVolume>> {
        let Scope::Some(mut names) = self.due.take(self.reached()) else {
            let mut all = self.watched.volumes.virtual_volumes_in(&self.cluster);
            all.retain(|volume| !self.watched.volumes.is_further(volume));
            self.census.clear();
            let names: HashSet<&str> = all.iter().map(|volume| volume.name.as_str()).collect();
            self.settled.retain(|name, _| names.contains(name.as_str()));
            return all;
        };
        names.extend(self.census.unwell().cloned());
        let mut volumes = Vec::new();
        for name in names {
            match self.watched.volumes.virtual_volume(&name) {
                Some(volume)
                    if volume.cluster == self.cluster && !self.watched.volumes.is_further(&volume) =>
                {
                    volumes.push(volume);
                }
                _ => self.census.note(&name, None),
            }
        }
        volumes
    }

    /// Looks at a volume; `None` if its cluster or its twins were not seen yet.
    fn examine(&self, volume: Arc<VirtualVolume>) -> Option<VolumeStatus> {
        let claim = volume.claim.as_ref().and_then(|mark| self.watched.claim(mark));
        let id = volume.id();
        let site = match Site::of_volume(self.home, self.registry, &id, volume.twin.as_ref()) {
            Ok(Some(site)) => Ok(site),
            Ok(None) => Err(format!(
                "the PersistentVolume {} does not say where its twin is",
                volume.name
            )),
            Err(Unreachable::Connecting { .. }) => return None,
            Err(Unreachable::Unknown { .. }) if !self.registry.is_complete() => return None,
            Err(unreachable) => Err(unreachable.to_string()),
        };
        let Ok(site) = site else {
            return Some(VolumeStatus {
                diagnosis: unseen(diagnosis(&volume, claim.as_deref(), None)),
                is_remote: volume.cluster != *self.home.id(),
                is_outdated: true,
                volume,
                claim,
                site,
                twin: None,
            });
        };
        // Its place may be taken by the twin of another volume, or by no twin at all.
        let twin = site.seen().filter(|twin| holds(twin, &volume));
        let remote = site.remote_cluster().is_some();
        let mut diagnosis = diagnosis(&volume, claim.as_deref(), twin.as_deref());
        let view = site.view();
        let is_outdated = view
            .outdated_since()
            .is_some_and(|since| since.elapsed() >= LONGEST_LIST);
        if is_outdated {
            // What was seen last is no news.
            diagnosis = unseen(diagnosis);
        } else if *view.version().borrow() == 0 {
            return None;
        }
        Some(VolumeStatus {
            diagnosis,
            is_remote: remote,
            is_outdated,
            volume,
            claim,
            site: Ok(site),
            twin,
        })
    }

    /// A twin that cannot be watched is read by itself, if at least that is allowed. If it
    /// is not, whatever may become of the twin, its data is kept.
    async fn read(&self, mut volume_status: VolumeStatus) -> VolumeStatus {
        let Ok(site) = &volume_status.site else {
            return volume_status;
        };
        let volume = &volume_status.volume;
        let error = match site.twins().get(site.name()).await {
            Ok(found) => {
                let twin = found.as_ref().and_then(slim::twin);
                let twin = twin.filter(|twin| holds(twin, volume)).map(Arc::new);
                volume_status.diagnosis = diagnosis(volume, volume_status.claim.as_deref(), twin.as_deref());
                volume_status.twin = twin;
                return volume_status;
            }
            Err(error) => error,
        };
        let kept = if error.is_forbidden() {
            let recovery = self.recovery(site, volume, volume_status.twin.as_deref());
            match Box::pin(recovery.keep_unread(&error)).await {
                Ok(Rescue::Kept { real, .. }) => format!(
                    ". Its PersistentVolume {real} there is retained until they are, so its data stays whatever becomes \
                     of the twin"
                ),
                Ok(Rescue::FalseAlarm) => String::new(),
                Ok(other) => format!(". {}", prospects(site, volume, &other)),
                Err(error) => format!(". Its data cannot be seen to: {error}"),
            }
        } else {
            String::new()
        };
        let why = format!(
            "the claims of namespace {} in the cluster {} cannot be listed and watched, nor this one be read: {error}. If \
             this driver lost its rights there, as when the namespace is no longer offloaded, give them back{kept}",
            site.namespace(),
            site.cluster_name()
        );
        volume_status.site = Err(why);
        volume_status
    }

    fn recovery<'b>(
        &'b self,
        site: &'b Site,
        volume: &'b VirtualVolume,
        seen: Option<&'b slim::Twin>,
    ) -> Recovery<'b> {
        Recovery {
            site,
            registry: self.registry,
            volume,
            seen,
        }
    }

    async fn repair(&mut self, volume_status: &VolumeStatus) -> Result<(), ApiError> {
        let (volume, diagnosis) = (&volume_status.volume, volume_status.diagnosis);
        let site = match &volume_status.site {
            Ok(site) => site,
            Err(why) => {
                let note = format!("nothing can be told of the twin of this volume: {why}");
                return self.tell(volume_status, &note).await;
            }
        };
        let recovery = self.recovery(site, volume, volume_status.twin.as_deref());
        let rescue = match diagnosis {
            Diagnosis::Terminating => Box::pin(recovery.reach(Goal::Rescue)).await,
            Diagnosis::Vanished => Box::pin(recovery.reach(Goal::Restore)).await,
            Diagnosis::Returning => Box::pin(recovery.reach(Goal::Reunite)).await,
            Diagnosis::Lost => Ok(Rescue::Hopeless),
            Diagnosis::Superseded => return self.tell(volume_status, &superseded(site, volume)).await,
            Diagnosis::Bound
            | Diagnosis::Pending
            | Diagnosis::Ending
            | Diagnosis::Moving
            | Diagnosis::Unreachable => {
                return Ok(());
            }
        };
        let Some(claim) = &volume.claim else {
            return rescue.map(drop);
        };
        if let (Diagnosis::Returning, Ok(on_its_way @ (Rescue::Underway | Rescue::FalseAlarm))) =
            (diagnosis, &rescue)
        {
            let note = note(site, volume, diagnosis, Ok(on_its_way));
            return self.mirror(volume_status, &note).await;
        }
        let worth_telling = match &rescue {
            Ok(Rescue::FalseAlarm) => false,
            // A twin that vanishes while it is rescued is what they were told to expect.
            Ok(Rescue::Underway) => diagnosis != Diagnosis::Vanished || !self.reports.any(&claim.uid),
            // A user hears of it also when nothing can be done right now.
            _ => true,
        };
        if worth_telling {
            let note = note(site, volume, diagnosis, rescue.as_ref());
            let told = self.tell(volume_status, &note).await;
            return rescue.map(drop).and(told);
        }
        rescue.map(drop)
    }

    /// A twin that is not bound yet: what its cluster says about it, if it complains.
    async fn await_bound(&mut self, volume_status: &VolumeStatus) -> Result<(), ApiError> {
        let Ok(site) = &volume_status.site else {
            return Ok(());
        };
        let found = site.twins().get(site.name()).await?;
        let Some(twin) = found.filter(|twin| site.is_twin(&volume_status.volume.volume, twin)) else {
            return Ok(());
        };
        let why = last_warning(site, &twin).await;
        let twin = name_of_twin(site);
        match why {
            Some(why) => {
                self.tell(volume_status, &format!("{twin} is not bound: {why}"))
                    .await
            }
            None if volume_status.is_remote => {
                let note = format!("{twin} is bound when its pod arrives there");
                self.mirror(volume_status, &note).await
            }
            // It is seen to be bound in a moment.
            None => Ok(()),
        }
    }

    /// Examines the volumes, counts, and says who needs what.
    async fn examine_all(&mut self) -> ByNeed {
        let mut by_need = ByNeed::default();
        let mut silent = HashSet::new();
        for volume in self.volumes() {
            let name = volume.name.clone();
            let Some(mut volume_status) = self.examine(volume) else {
                self.census.note(&name, None);
                continue;
            };
            let cluster = volume_status.volume.cluster.clone();
            if volume_status.has_to_be_read() && !silent.contains(&cluster) {
                let began = Instant::now();
                volume_status = Box::pin(self.read(volume_status)).await;
                if began.elapsed() >= SLOW {
                    silent.insert(cluster);
                }
            }
            let class = volume_status.volume.class.clone();
            self.census.note(&name, Some((class, volume_status.diagnosis)));
            if !matches!(volume_status.diagnosis, Diagnosis::Bound | Diagnosis::Pending) {
                self.settled.remove(&name);
            }
            if let Some(claim) = &volume_status.claim
                && claim.bears_marks_of_its_twin
            {
                by_need.marked.push(claim.name.clone());
            }
            match volume_status.diagnosis {
                Diagnosis::Bound => by_need.healthy.push(volume_status),
                Diagnosis::Pending => by_need.waiting.push(volume_status),
                Diagnosis::Ending if volume_status.is_left_behind() => {
                    by_need.left_behind.push(volume_status);
                }
                Diagnosis::Ending | Diagnosis::Moving => {}
                _ => by_need.unhealthy.push(volume_status),
            }
        }
        for ((class, diagnosis), count) in self.census.counts() {
            self.metrics
                .volumes(&self.cluster, class, diagnosis.name(), *count);
        }
        by_need
    }

    /// Data first. Who does not answer for one volume is not asked for the next, or
    /// the volumes of one cluster would keep those of all others waiting.
    async fn repair_all(&mut self, by_need: &ByNeed) -> Result<(), ApiError> {
        let mut outcome = Ok(());
        let mut silent = HashSet::new();
        for volume_status in by_need.unhealthy.iter().chain(&by_need.waiting) {
            let cluster = &volume_status.volume.cluster;
            if silent.contains(cluster) {
                continue;
            }
            let done = if volume_status.diagnosis == Diagnosis::Pending {
                self.await_bound(volume_status).await
            } else {
                self.repair(volume_status).await
            };
            let lost = done.as_ref().is_err_and(ApiError::is_transient);
            if lost && volume_status.is_remote {
                silent.insert(cluster.clone());
            }
            outcome = outcome.and(volume_status.alone(done));
        }
        outcome
    }
}

/// How a volume is whose twin cannot be seen: what happens to some is intended all the same.
fn unseen(diagnosis: Diagnosis) -> Diagnosis {
    match diagnosis {
        Diagnosis::Ending | Diagnosis::Moving => diagnosis,
        _ => Diagnosis::Unreachable,
    }
}

/// Whether a twin is that of a volume as it is now, and not of before or after a move.
fn holds(twin: &slim::Twin, volume: &VirtualVolume) -> bool {
    twin.volume == volume.volume && twin.epoch == volume.epoch
}

impl Rounds for Health<'_> {
    const NAME: &'static str = "health";
    const RESYNC: Duration = Duration::from_secs(30);

    fn due(&self) -> Option<Duration> {
        Some(self.due.left())
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let is_home = self.cluster == *self.home.id();
        let (claims, links) = (self.watched.claims.version(), self.registry.changes());
        let twins = if is_home {
            self.home.views().twins.version()
        } else {
            self.registry.twin_changes(&self.cluster)
        };
        let cluster = self.cluster.clone();
        let volumes = self.watched.volumes.changes_of(move |volume| match volume {
            slim::Volume::Virtual(volume) => volume.cluster == cluster,
            slim::Volume::Real(_) => is_home,
            slim::Volume::OtherVersion(_) | slim::Volume::Movers(_) | slim::Volume::Free(_) => false,
        });
        vec![twins, volumes, claims, links]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let by_need = self.examine_all().await;
        let treated = self.repair_all(&by_need).await;
        for volume_status in &by_need.healthy {
            if let Some(claim) = &volume_status.volume.claim {
                self.recovered(claim).await;
            }
        }
        let maintained = self.maintain_all(&by_need).await;
        let released = each(&by_need.left_behind, async |volume_status| {
            match &volume_status.site {
                Ok(site) => {
                    let recovery = self.recovery(site, &volume_status.volume, None);
                    volume_status.alone(Box::pin(recovery.release()).await)
                }
                Err(_) => Ok(()),
            }
        })
        .await;
        let cleaned = each(&by_need.marked, async |claim| clean_claim(self.home, claim).await).await;
        let outcome = treated.and(maintained).and(released).and(cleaned);
        if outcome.is_ok() {
            self.due.done();
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
