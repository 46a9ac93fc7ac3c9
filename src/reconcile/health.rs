//! Is every volume's twin well? A twin is only deleted by `DeleteVolume`; when it
//! is deleted or vanishes otherwise, the user hears of it at once and the data is
//! rescued as long as that is possible. What a remote cluster says about a twin is
//! told at home, where its user looks.

mod condition;
mod due;
mod patient;
mod telling;

use std::{collections::HashSet, sync::Arc, time::Duration};

use kube::ResourceExt;
use tokio::{sync::watch, time::Instant};

use self::{
    condition::{Condition, diagnose, note, prospects},
    due::{Census, Due, Scope},
    patient::Patient,
};
use super::{
    Metrics, Reports,
    recovery::{self, Rescue},
    retention,
    rounds::{Rounds, each},
    sync::sync,
    watched::{VirtualVolume, Watched},
};
use crate::{
    cluster::{
        ApiError, Cluster,
        registry::{Registry, Unreachable},
        slim::{self, Phase, Twin},
    },
    placement::{PolicyFacts, PolicyStep, ReclaimPolicy, policy_step},
    twin::{Site, holder_uid, last_warning, mark_holder},
    volume::{ClusterId, VolumeId},
};

/// Twins that cannot be watched for so long are not just being listed.
const LONGEST_LIST: Duration = Duration::from_mins(1);
/// A cluster that takes so long for one twin is not asked for the next in the same round.
const SLOW: Duration = Duration::from_secs(5);

/// What is to be done in a round, by who needs it.
#[derive(Default)]
struct Ward {
    well: Vec<Patient>,
    /// Twins that are not bound yet.
    waiting: Vec<Patient>,
    ill: Vec<Patient>,
    left_behind: Vec<Patient>,
}

/// The loop that looks after volumes.
pub(super) struct Health<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    reports: Reports,
    metrics: &'a Metrics,
    /// The only cluster whose volumes are looked after; all of them if none is named.
    only: Option<ClusterId>,
    /// What changed, where it is only the home cluster's volumes that are looked after.
    due: Option<Due>,
    census: Census,
    /// Remote twins, by uid, whose PVs were seen to be as they should, and whether
    /// that was to be retained.
    settled: HashSet<(String, bool)>,
}

impl<'a> Health<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        registry: &'a Registry,
        watched: &'a Watched,
        reports: Reports,
        metrics: &'a Metrics,
    ) -> Self {
        Self {
            home,
            registry,
            watched,
            reports,
            metrics,
            only: None,
            due: None,
            census: Census::default(),
            settled: HashSet::new(),
        }
    }

    /// Looks after the volumes of one cluster only.
    pub(super) fn only(mut self, cluster: ClusterId) -> Self {
        self.due = (cluster == *self.home.id()).then(|| Due::new(self.home, self.watched));
        self.only = Some(cluster);
        self
    }

    /// The volumes that this round looks at.
    fn volumes(&mut self) -> Vec<VirtualVolume> {
        let scope = match &mut self.due {
            Some(due) => due.take(self.home),
            None => Scope::All,
        };
        let Scope::Some(mut names) = scope else {
            self.census.clear();
            return match &self.only {
                Some(cluster) => self.watched.virtual_volumes_in(cluster),
                None => self.watched.virtual_volumes(),
            };
        };
        names.extend(self.census.unwell().cloned());
        let mut volumes = Vec::new();
        for name in names {
            match self.watched.virtual_volume(&name) {
                Some(volume) if volume.cluster == *self.home.id() => volumes.push(volume),
                _ => self.census.note(&name, None),
            }
        }
        volumes
    }

    /// Looks at a volume; `None` if its cluster or its twins were not seen yet.
    fn examine(&self, volume: VirtualVolume) -> Option<Patient> {
        let claim = volume.claim.as_ref().and_then(|mark| self.watched.claim(mark));
        let id = VolumeId {
            cluster: volume.cluster.clone(),
            name: volume.volume.clone(),
        };
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
            let ending = diagnose(&volume, claim.as_deref(), true, None) == Condition::Ending;
            return Some(Patient {
                condition: if ending {
                    Condition::Ending
                } else {
                    Condition::Unreachable
                },
                is_remote: volume.cluster != *self.home.id(),
                is_outdated: true,
                volume,
                claim,
                site,
                twin: None,
            });
        };
        // Its place may be taken by the twin of another volume, or by no twin at all.
        let twin = site.seen().filter(|twin| twin.volume == volume.volume);
        let remote = site.remote_cluster().is_some();
        let mut condition = diagnose(&volume, claim.as_deref(), remote, twin.as_deref());
        let view = site.view();
        let is_outdated = view
            .outdated_since()
            .is_some_and(|since| since.elapsed() >= LONGEST_LIST);
        if is_outdated {
            // What was seen last is no news.
            if condition != Condition::Ending {
                condition = Condition::Unreachable;
            }
        } else if *view.version().borrow() == 0 {
            return None;
        }
        Some(Patient {
            condition,
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
    async fn read(&self, mut patient: Patient) -> Patient {
        let Ok(site) = &patient.site else { return patient };
        let volume = &patient.volume;
        let error = match site.twins().get(site.name()).await {
            Ok(found) => {
                let twin = found.as_ref().and_then(slim::twin);
                let twin = twin.filter(|twin| twin.volume == volume.volume).map(Arc::new);
                let remote = site.remote_cluster().is_some();
                patient.condition = diagnose(volume, patient.claim.as_deref(), remote, twin.as_deref());
                patient.twin = twin;
                return patient;
            }
            Err(error) => error,
        };
        let kept = if error.is_forbidden() {
            let kept = recovery::keep_unread(site, volume, patient.twin.as_deref(), &error).await;
            match kept {
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
        patient.site = Err(why);
        patient
    }

    /// What a healthy volume needs, seldom anything. Returns the key of its twin in `settled`
    /// when there is nothing more to see to.
    async fn maintain(&self, patient: &Patient) -> Result<Option<(String, bool)>, ApiError> {
        let (Ok(site), Some(twin)) = (&patient.site, &patient.twin) else {
            return Ok(None);
        };
        let volume = &patient.volume;
        if let (Some(claim), Some(mark)) = (&patient.claim, &volume.claim)
            && claim.carried != twin.carried
        {
            Box::pin(sync(site, &volume.volume, mark)).await?;
        }
        if twin.phase != Phase::Bound {
            return Ok(None);
        }
        if site.remote_cluster().is_some() {
            let key = (twin.uid.clone(), volume.retain);
            let settled = self.settled.contains(&key) || Box::pin(self.settle(site, volume, twin)).await?;
            return Ok(settled.then_some(key));
        }
        let real = twin
            .real_volume
            .as_ref()
            .and_then(|name| self.home.views().volumes.get(name));
        let Some(real) = real else {
            return Ok(None);
        };
        let policy = |retain| {
            if retain {
                ReclaimPolicy::Retain
            } else {
                ReclaimPolicy::Delete
            }
        };
        let step = policy_step(PolicyFacts {
            wanted: policy(volume.retain),
            has: policy(real.retain),
            replaced: real.policy_replaced,
            bound: real.phase == "Bound",
        });
        if step != PolicyStep::Leave {
            Box::pin(retention::follow(site, volume, &real.name)).await?;
        }
        Ok(None)
    }

    /// Looks at the PV of a remote twin once it is bound: nobody watches it. False if
    /// it has to be looked at again.
    async fn settle(&self, site: &Site, volume: &VirtualVolume, twin: &Twin) -> Result<bool, ApiError> {
        let (Some(name), true) = (&twin.real_volume, site.cluster().rights().volume_changes) else {
            // Rights may come.
            return Ok(false);
        };
        let found = site.volumes().get(name).await?;
        let Some(real) = found.filter(|real| holder_uid(real) == Some(twin.uid.as_str())) else {
            return Ok(false);
        };
        if !mark_holder(site, &volume.volume, &real).await? {
            return Ok(false);
        }
        Box::pin(retention::follow(site, volume, name)).await
    }

    async fn treat(&mut self, patient: &Patient) -> Result<(), ApiError> {
        let (volume, condition) = (&patient.volume, patient.condition);
        let site = match &patient.site {
            Ok(site) => site,
            Err(why) => {
                let note = format!("nothing can be told of the twin of this volume: {why}");
                return self.tell(patient, &note).await;
            }
        };
        let rescue = match condition {
            Condition::Terminating => Box::pin(recovery::rescue(site, volume, patient.twin.as_deref())).await,
            Condition::Vanished => Box::pin(recovery::restore(site, volume)).await,
            Condition::Returning => Box::pin(recovery::reunite(site, volume)).await,
            Condition::Lost => Ok(Rescue::Hopeless),
            Condition::Healthy | Condition::Waiting | Condition::Ending | Condition::Unreachable => {
                return Ok(());
            }
        };
        let Some(claim) = &volume.claim else {
            return rescue.map(drop);
        };
        let worth_telling = match &rescue {
            Ok(Rescue::FalseAlarm) => false,
            Ok(Rescue::Hopeless) => true,
            _ if condition == Condition::Returning => false,
            // A twin that vanishes while it is rescued is what they were told to expect.
            Ok(Rescue::Underway) => condition != Condition::Vanished || !self.reports.any(&claim.uid),
            // A user hears of it also when nothing can be done right now.
            _ => true,
        };
        if worth_telling {
            let note = note(site, volume, condition, rescue.as_ref());
            let told = self.tell(patient, &note).await;
            return rescue.map(drop).and(told);
        }
        rescue.map(drop)
    }

    /// A twin that is not bound yet: what its cluster says about it, if it complains.
    async fn await_bound(&mut self, patient: &Patient) -> Result<(), ApiError> {
        let Ok(site) = &patient.site else { return Ok(()) };
        let owner = site.owner(&patient.volume.volume);
        let found = site.twins().get(site.name()).await?;
        let Some(twin) = found.filter(|twin| owner.recognise(twin.labels(), twin.annotations()).is_ok())
        else {
            return Ok(());
        };
        let why = last_warning(site, &twin).await;
        let place = format!("the twin {} in the cluster {}", site.place(), site.cluster_name());
        let Some(why) = why else {
            let note = format!("{place} is bound when its pod arrives there");
            return self.mirror(patient, &note).await;
        };
        self.tell(patient, &format!("{place} is not bound: {why}")).await
    }

    /// Examines the volumes, counts, and says who needs what.
    async fn admit(&mut self) -> Ward {
        let mut ward = Ward::default();
        let mut silent = HashSet::new();
        for volume in self.volumes() {
            let name = volume.name.clone();
            let Some(mut patient) = self.examine(volume) else {
                self.census.note(&name, None);
                continue;
            };
            let cluster = patient.volume.cluster.clone();
            if patient.has_to_be_read() && !silent.contains(&cluster) {
                let began = Instant::now();
                patient = Box::pin(self.read(patient)).await;
                if began.elapsed() >= SLOW {
                    silent.insert(cluster);
                }
            }
            self.census.note(&name, Some(patient.condition));
            match patient.condition {
                Condition::Healthy => ward.well.push(patient),
                Condition::Waiting => ward.waiting.push(patient),
                Condition::Ending if patient.is_left_behind() => ward.left_behind.push(patient),
                Condition::Ending => {}
                _ => ward.ill.push(patient),
            }
        }
        for condition in Condition::ALL {
            let count = self.census.count(condition);
            let cluster = self.only.as_ref().unwrap_or(self.home.id());
            self.metrics.volumes(cluster, condition.name(), count);
        }
        ward
    }

    /// Data first. Who does not answer for one volume is not asked for the next, or
    /// the volumes of one cluster would keep those of all others waiting.
    async fn treat_all(&mut self, ward: &Ward) -> Result<(), ApiError> {
        let mut outcome = Ok(());
        let mut silent = HashSet::new();
        for patient in ward.ill.iter().chain(&ward.waiting) {
            let cluster = &patient.volume.cluster;
            if silent.contains(cluster) {
                continue;
            }
            let done = if patient.condition == Condition::Waiting {
                self.await_bound(patient).await
            } else {
                self.treat(patient).await
            };
            let lost = done.as_ref().is_err_and(ApiError::is_transient);
            if lost && patient.is_remote {
                silent.insert(cluster.clone());
            }
            outcome = outcome.and(patient.alone(done));
        }
        outcome
    }

    async fn maintain_all(&mut self, ward: &Ward) -> Result<(), ApiError> {
        let this = &*self;
        let settled = std::sync::Mutex::new(HashSet::new());
        let maintained = each(ward.well.iter().chain(&ward.waiting), async |patient| {
            let key = this.maintain(patient).await;
            if let (Ok(Some(key)), Ok(mut settled)) = (&key, settled.lock()) {
                settled.insert(key.clone());
            }
            let mut done = key.map(|_| ());
            if patient.condition == Condition::Healthy && patient.is_remote {
                // People are told how it is, whatever cannot be seen to.
                done = done.and(this.show(patient).await);
            }
            patient.alone(done)
        })
        .await;
        self.settled = settled.into_inner().unwrap_or_default();
        maintained
    }
}

impl Rounds for Health<'_> {
    const NAME: &'static str = "health";
    const REST: Duration = Duration::from_secs(30);

    fn due(&self) -> Option<Duration> {
        self.due.as_ref().map(Due::left)
    }

    fn signs(&self) -> Vec<watch::Receiver<u64>> {
        let views = self.home.views();
        vec![
            views.twins.version(),
            views.volumes.version(),
            self.watched.volumes.version(),
            self.watched.claims.version(),
            self.registry.news(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let ward = self.admit().await;
        let treated = self.treat_all(&ward).await;
        for patient in &ward.well {
            if let Some(claim) = &patient.volume.claim {
                self.recovered(claim).await;
            }
        }
        let maintained = self.maintain_all(&ward).await;
        let released = each(&ward.left_behind, async |patient| match &patient.site {
            Ok(site) => patient.alone(Box::pin(recovery::release(site, &patient.volume)).await),
            Err(_) => Ok(()),
        })
        .await;
        let outcome = treated.and(maintained).and(released);
        if let (Ok(()), Some(due)) = (&outcome, &mut self.due) {
            due.done();
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
