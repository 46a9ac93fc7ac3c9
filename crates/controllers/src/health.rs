//! Checks the twin of every volume. A handed-over twin is deleted only by `DeleteVolume`; if another
//! client deletes it, the user gets an event at once, and its data is retained as long as that is
//! possible. A condition of the claim reports the state of the twin.

mod due;
mod reporting;
mod texts;
mod upkeep;
mod volume_status;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use self::{
    due::{DueVolumes, Scope, VolumeCounts},
    texts::{data_state, describe_twin, diagnosis, event_text, misplaced, superseded},
    volume_status::{Failures, Part, VolumeStatus},
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

/// A view that is outdated for this long is not just in its first list, or resuming a watch without
/// changes.
const LONGEST_LIST: Duration = RUNS_AGAIN.saturating_add(Duration::from_secs(15));
/// If reading one twin takes this long, no other twin of the cluster is read in the same round.
const SLOW: Duration = Duration::from_secs(5);

/// The volumes of a round, by what they need.
#[derive(Default)]
struct ByNeed {
    healthy: Vec<VolumeStatus>,
    waiting: Vec<VolumeStatus>,
    unhealthy: Vec<VolumeStatus>,
    left_behind: Vec<VolumeStatus>,
    /// Claims with the marks of their twins.
    marked: Vec<ClaimName>,
}

/// A remote twin whose PV was found as desired.
#[derive(Clone, PartialEq, Eq)]
struct Settled {
    /// Its uid.
    twin: String,
    /// Whether its PV has to be retained.
    retain: bool,
    /// Why the PV may contain data that the claim has not written, if so.
    earlier_data: Option<String>,
}

/// The loop that checks volumes.
pub(super) struct Health<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    reports: Reports,
    metrics: &'a Metrics,
    /// The cluster of the twins.
    cluster: ClusterId,
    due: DueVolumes,
    counts: VolumeCounts,
    /// Volumes whose remote twins' PVs were found as desired.
    settled: HashMap<String, Settled>,
    failures: Failures,
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
            due: DueVolumes::new(watched),
            home,
            registry,
            watched,
            reports,
            metrics,
            cluster,
            counts: VolumeCounts::default(),
            settled: HashMap::new(),
            failures: Failures::default(),
        }
    }

    /// The cluster of the twins, if it is reachable.
    fn reached(&self) -> Option<Cluster> {
        if self.cluster == *self.home.id() {
            return Some(self.home.clone());
        }
        self.registry.get(&self.cluster).ok()?.reach().ok()
    }

    /// The volumes to check in this round.
    fn volumes(&mut self) -> Vec<Arc<VirtualVolume>> {
        let Scope::Some(mut names) = self.due.take(self.reached()) else {
            let mut all = self.watched.volumes.virtual_volumes_in(&self.cluster);
            all.retain(|volume| !self.watched.volumes.is_further(volume));
            self.counts.clear();
            let names: HashSet<&str> = all.iter().map(|volume| volume.name.as_str()).collect();
            self.settled.retain(|name, _| names.contains(name.as_str()));
            self.failures.keep(|name| names.contains(name));
            return all;
        };
        names.extend(self.counts.unhealthy().cloned());
        let mut volumes = Vec::new();
        for name in names {
            match self.watched.volumes.virtual_volume(&name) {
                Some(volume)
                    if volume.cluster == self.cluster && !self.watched.volumes.is_further(&volume) =>
                {
                    volumes.push(volume);
                }
                _ => self.counts.record(&name, None),
            }
        }
        volumes
    }

    /// Checks a volume; `None` if the view of its cluster or its twins is not complete yet.
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
                diagnosis: without_view(diagnosis(&volume, claim.as_deref(), None)),
                misplaced: None,
                is_remote: volume.cluster != *self.home.id(),
                is_outdated: true,
                volume,
                claim,
                site,
                twin: None,
            });
        };
        // The object with the name of the twin may be another claim, or the twin of another volume.
        let twin = site.seen().filter(|twin| is_twin_of(twin, &volume));
        let remote = site.remote_cluster().is_some();
        let mut diagnosis = diagnosis(&volume, claim.as_deref(), twin.as_deref());
        let view = site.view();
        let is_outdated = view
            .outdated_since()
            .is_some_and(|since| since.elapsed() >= LONGEST_LIST);
        if is_outdated {
            // The last known state may be outdated.
            diagnosis = without_view(diagnosis);
        } else if *view.version().borrow() == 0 {
            return None;
        }
        Some(VolumeStatus {
            diagnosis,
            misplaced: None,
            is_remote: remote,
            is_outdated,
            volume,
            claim,
            site: Ok(site),
            twin,
        })
    }

    /// Reads a twin whose view is outdated, if that is permitted. If not, the data is retained, whatever
    /// happens to the twin.
    async fn read(&self, mut volume_status: VolumeStatus) -> VolumeStatus {
        let Ok(site) = &volume_status.site else {
            return volume_status;
        };
        let volume = &volume_status.volume;
        let error = match site.twins().get(site.name()).await {
            Ok(found) => {
                let twin = found.as_ref().and_then(slim::twin);
                let twin = twin.filter(|twin| is_twin_of(twin, volume)).map(Arc::new);
                volume_status.diagnosis = diagnosis(volume, volume_status.claim.as_deref(), twin.as_deref());
                volume_status.twin = twin;
                return volume_status;
            }
            Err(error) => error,
        };
        let kept = if error.is_forbidden() {
            let recovery = self.recovery(site, volume, volume_status.twin.as_deref());
            match Box::pin(recovery.retain_unread(&error)).await {
                Ok(Rescue::Kept { real, .. }) => format!(
                    ". Its PersistentVolume {real} there is retained until they are restored, so its data is kept whatever \
                     happens to the twin"
                ),
                Ok(Rescue::FalseAlarm) => String::new(),
                Ok(other) => format!(". {}", data_state(site, volume, &other)),
                Err(error) => format!(". Its data cannot be retained: {error}"),
            }
        } else {
            String::new()
        };
        let why = format!(
            "the claims of namespace {} in the cluster {} can be neither listed nor watched, nor can this one be read: {error}. If \
             this driver lost its rights there, for example because the namespace is no longer offloaded, restore them{kept}",
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
                let note = format!("the state of the twin of this volume is unknown: {why}");
                return self.report(volume_status, &note).await;
            }
        };
        let recovery = self.recovery(site, volume, volume_status.twin.as_deref());
        let rescue = match diagnosis {
            Diagnosis::Terminating => Box::pin(recovery.recover(Goal::Rescue)).await,
            Diagnosis::Vanished => Box::pin(recovery.recover(Goal::Restore)).await,
            Diagnosis::Returning => Box::pin(recovery.recover(Goal::Reunite)).await,
            Diagnosis::Lost => Ok(Rescue::Hopeless),
            Diagnosis::Superseded => return self.report(volume_status, &superseded(site, volume)).await,
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
        if let (Diagnosis::Returning, Ok(progress @ (Rescue::Underway | Rescue::FalseAlarm))) =
            (diagnosis, &rescue)
        {
            let note = event_text(site, volume, diagnosis, Ok(progress));
            return self.update_condition(volume_status, &note).await;
        }
        let is_reported = match &rescue {
            Ok(Rescue::FalseAlarm) => false,
            // A twin that is deleted while its data is being retained was announced by the first event.
            Ok(Rescue::Underway) => diagnosis != Diagnosis::Vanished || !self.reports.has_report(&claim.uid),
            // The user gets an event also if nothing can be done now.
            _ => true,
        };
        if is_reported {
            let note = event_text(site, volume, diagnosis, rescue.as_ref());
            let reported = self.report(volume_status, &note).await;
            return rescue.map(drop).and(reported);
        }
        rescue.map(drop)
    }

    /// Reports the warnings in its cluster about a twin that is not bound yet.
    async fn await_bound(&mut self, volume_status: &VolumeStatus) -> Result<(), ApiError> {
        let Ok(site) = &volume_status.site else {
            return Ok(());
        };
        let found = site.twins().get(site.name()).await?;
        let Some(twin) = found.filter(|twin| site.is_twin(&volume_status.volume.volume, twin)) else {
            return Ok(());
        };
        let why = last_warning(site, &twin).await;
        let twin = describe_twin(site);
        match why {
            Some(why) => {
                self.report(volume_status, &format!("{twin} is not bound: {why}"))
                    .await
            }
            None if volume_status.is_remote => {
                let note = format!("{twin} is bound when its pod arrives there");
                self.update_condition(volume_status, &note).await
            }
            // The view will show it as bound in a moment.
            None => Ok(()),
        }
    }

    /// Checks the volumes, counts them, and groups them by what they need.
    async fn examine_all(&mut self) -> ByNeed {
        let mut by_need = ByNeed::default();
        let mut unreachable_clusters = HashSet::new();
        for volume in self.volumes() {
            let name = volume.name.clone();
            let Some(mut volume_status) = self.examine(volume) else {
                self.counts.record(&name, None);
                continue;
            };
            let cluster = volume_status.volume.cluster.clone();
            if volume_status.has_to_be_read() && !unreachable_clusters.contains(&cluster) {
                let began = Instant::now();
                volume_status = Box::pin(self.read(volume_status)).await;
                if began.elapsed() >= SLOW {
                    unreachable_clusters.insert(cluster);
                }
            }
            let class = volume_status.volume.class.clone();
            self.counts.record(&name, Some((class, volume_status.diagnosis)));
            if !matches!(volume_status.diagnosis, Diagnosis::Bound | Diagnosis::Pending) {
                self.settled.remove(&name);
            }
            if let Some(claim) = &volume_status.claim
                && claim.bears_marks_of_its_twin
            {
                by_need.marked.push(claim.name.clone());
            }
            match volume_status.diagnosis {
                Diagnosis::Bound => {
                    let site = volume_status.site.as_ref().ok();
                    volume_status.misplaced = site.and_then(|site| misplaced(site, &volume_status.volume));
                    by_need.healthy.push(volume_status);
                }
                Diagnosis::Pending => by_need.waiting.push(volume_status),
                Diagnosis::Ending if volume_status.is_leftover() => {
                    by_need.left_behind.push(volume_status);
                }
                Diagnosis::Ending | Diagnosis::Moving => {}
                _ => by_need.unhealthy.push(volume_status),
            }
        }
        for ((class, diagnosis), count) in self.counts.by_kind() {
            self.metrics
                .volumes(&self.cluster, class, diagnosis.name(), *count);
        }
        by_need
    }

    /// Rescues data before anything else. After one failed call a cluster gets no more calls in this
    /// round, so that its volumes do not delay all others.
    async fn repair_all(&mut self, by_need: &ByNeed) -> Result<(), ApiError> {
        let mut outcome = Ok(());
        let mut unreachable_clusters = HashSet::new();
        for volume_status in by_need.unhealthy.iter().chain(&by_need.waiting) {
            let cluster = &volume_status.volume.cluster;
            if unreachable_clusters.contains(cluster) {
                continue;
            }
            let done = if volume_status.diagnosis == Diagnosis::Pending {
                self.await_bound(volume_status).await
            } else {
                self.repair(volume_status).await
            };
            let lost = done.as_ref().is_err_and(ApiError::is_transient);
            if lost && volume_status.is_remote {
                unreachable_clusters.insert(cluster.clone());
            }
            outcome = outcome.and(volume_status.tolerate(&self.failures, Part::Repair, done));
        }
        outcome
    }
}

/// The diagnosis of a volume whose twin is unreachable: some states are intended nonetheless.
fn without_view(diagnosis: Diagnosis) -> Diagnosis {
    match diagnosis {
        Diagnosis::Ending | Diagnosis::Moving => diagnosis,
        _ => Diagnosis::Unreachable,
    }
}

/// Whether a twin is that of the current epoch of a volume.
fn is_twin_of(twin: &slim::Twin, volume: &VirtualVolume) -> bool {
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
            self.report_healthy(volume_status).await;
        }
        let maintained = self.maintain_all(&by_need).await;
        let released = each(&by_need.left_behind, async |volume_status| {
            match &volume_status.site {
                Ok(site) => {
                    let recovery = self.recovery(site, &volume_status.volume, None);
                    let released = Box::pin(recovery.release()).await;
                    volume_status.tolerate(&self.failures, Part::Release, released)
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
