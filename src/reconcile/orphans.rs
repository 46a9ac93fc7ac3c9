//! Twins that look forgotten. One that nobody was given, whose claim and PV are
//! gone, is collected after a grace period, by what is read live at that moment.
//! Everything else that looks so (a cluster restored from a backup, a retained PV
//! somebody removed) may be all that is left of somebody's data: it is reported.
//! So it is with twins in remote clusters, as far as they can be seen; and one
//! that was left behind when its claim was served elsewhere is collected too.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use tokio::{sync::watch, time::Instant};

use super::{Metrics, Reports, Settings, rounds::Rounds, watched::Watched};
use crate::{
    cluster::{ApiError, Cluster, registry::Registry, slim::Twin},
    twin::{CreateError, withdraw},
    volume::{ClaimMark, ClusterId, Marks, VolumeId, VolumeName},
};

/// For one twin to be gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// For whoever deletes a twin here: the grace period is for those nobody has looked at.
/// Elsewhere it may be a fabric that takes down a namespace.
const DELETED: Duration = Duration::from_secs(30);

/// What a twin without a PV of its volume looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Look {
    /// On its way to its user.
    InTheMaking,
    /// Nobody was given it, and nobody will be.
    Collectable,
    /// Nobody was given it, but for whom it was made cannot be told.
    Unclaimed,
    /// Somebody was given it, and it has no PV (any more).
    GivenAway,
}

impl Look {
    const REPORTED: [Self; 2] = [Self::Unclaimed, Self::GivenAway];

    fn reason(self) -> &'static str {
        match self {
            Self::InTheMaking => "in-the-making",
            Self::Collectable => "collectable",
            Self::Unclaimed => "unclaimed",
            Self::GivenAway => "given-away",
        }
    }
}

/// What became of the claim a twin was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Unknown,
    Live,
    Gone,
}

fn look(handed_over: bool, deleting: bool, origin: Origin) -> Look {
    match (handed_over, origin) {
        // Somebody deletes what was reported to them: our finalizer is not to be in the way.
        (true, Origin::Gone) | (_, Origin::Unknown) if deleting => Look::Collectable,
        (true, _) => Look::GivenAway,
        (false, Origin::Live) => Look::InTheMaking,
        (false, Origin::Gone) => Look::Collectable,
        (false, Origin::Unknown) => Look::Unclaimed,
    }
}

/// The loop for forgotten twins.
pub(super) struct Orphans<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    reports: Reports,
    grace: Duration,
    metrics: &'a Metrics,
    /// Since when a twin, by its uid, looks as it looks.
    since: HashMap<String, (Look, Instant)>,
}

impl<'a> Orphans<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        registry: &'a Registry,
        watched: &'a Watched,
        reports: Reports,
        settings: &Settings,
        metrics: &'a Metrics,
    ) -> Self {
        Self {
            home,
            registry,
            watched,
            reports,
            grace: settings.grace,
            metrics,
            since: HashMap::new(),
        }
    }

    fn origin(&self, cluster: &Cluster, twin: &Twin) -> Origin {
        match &twin.claim {
            None => Origin::Unknown,
            Some(_) if self.is_served_elsewhere(cluster, twin) => Origin::Gone,
            Some(mark) if self.watched.claim(mark).is_some() => Origin::Live,
            Some(_) => Origin::Gone,
        }
    }

    /// Whether the volume of a twin has its PV, with its data in another cluster.
    fn is_served_elsewhere(&self, cluster: &Cluster, twin: &Twin) -> bool {
        let volumes = self.watched.virtual_volumes();
        let volume = volumes.iter().find(|volume| volume.volume == twin.volume);
        volume.is_some_and(|volume| volume.cluster != *cluster.id())
    }

    /// Notes how a twin looks; true once it has for the grace period.
    fn persists(&mut self, cluster: &Cluster, twin: &Twin, look: Look) -> bool {
        let now = Instant::now();
        let (known, since) = self.since.entry(twin.uid.clone()).or_insert((look, now));
        if *known != look {
            (*known, *since) = (look, now);
        }
        let grace = if twin.deleting && cluster.id() == self.home.id() {
            self.grace.min(DELETED)
        } else {
            self.grace
        };
        since.elapsed() >= grace
    }

    /// Collects a twin if what is read now still says so.
    async fn collect(&self, cluster: &Cluster, seen: &Twin) -> Result<(), ApiError> {
        let twins = cluster.within::<PersistentVolumeClaim>(&seen.namespace);
        let found = twins.get(&seen.name).await?;
        let Some(twin) = found.filter(|twin| twin.uid().as_deref() == Some(&seen.uid)) else {
            return Ok(());
        };
        let Ok(marks) = Marks::read(twin.labels(), twin.annotations()) else {
            return Ok(());
        };
        let deleting = twin.metadata.deletion_timestamp.is_some();
        let origin = match self.place_of_volume(&marks).await? {
            Some(elsewhere) if elsewhere != *cluster.id() => Origin::Gone,
            Some(_) => return Ok(()),
            None => self.origin_now(&marks).await?,
        };
        if look(marks.handed_over, deleting, origin) != Look::Collectable {
            return Ok(());
        }
        let deed = if deleting {
            "letting a deleted twin go"
        } else {
            "collecting a twin that nobody was given"
        };
        tracing::info!(twin = seen.name, volume = %marks.volume, "{deed}");
        match withdraw(cluster, &twin, Instant::now() + PATIENCE).await {
            Err(CreateError::Api(error)) => Err(error),
            Err(error) => {
                tracing::info!(twin = seen.name, %error, "not collected yet");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    async fn origin_now(&self, marks: &Marks) -> Result<Origin, ApiError> {
        let Some(claim) = &marks.claim else {
            return Ok(Origin::Unknown);
        };
        let claims = self.home.within::<PersistentVolumeClaim>(&claim.namespace);
        let found = claims.get(&claim.name).await?;
        let same = found.is_some_and(|found| found.uid().as_deref() == Some(&claim.uid));
        Ok(if same { Origin::Live } else { Origin::Gone })
    }

    /// The cluster that a PV of the volume says its data is in, under the names
    /// csi-provisioner gives it; `None` if there is no PV.
    async fn place_of_volume(&self, marks: &Marks) -> Result<Option<ClusterId>, ApiError> {
        let volumes = self.home.all::<PersistentVolume>();
        let asked_for = &marks.request_name;
        let other_name =
            !asked_for.is_empty() && asked_for != marks.volume.as_str() && asked_for.len() <= 253;
        let mut found = volumes.get(marks.volume.as_str()).await?;
        if found.is_none() && other_name {
            found = volumes.get(&asked_for.to_lowercase()).await?;
        }
        Ok(found.map(|found| {
            let id = found
                .spec
                .and_then(|spec| spec.csi?.volume_handle.parse::<VolumeId>().ok());
            id.map_or_else(|| self.home.id().clone(), |id| id.cluster)
        }))
    }

    async fn report(&mut self, cluster: &Cluster, twin: &Twin, look: Look) {
        let on = ClaimMark {
            namespace: twin.namespace.clone(),
            name: twin.name.clone(),
            uid: twin.uid.clone(),
        };
        let claim = twin
            .claim
            .as_ref()
            .map(|claim| format!("{}/{}", claim.namespace, claim.name));
        let note = format!(
            "the volume {} ({}, made for the claim {}) has no PersistentVolume. It is left alone, since it may hold data: \
             recover it by hand, or delete this claim to dispose of it",
            twin.volume,
            look.reason(),
            claim.as_deref().unwrap_or("<unknown>"),
        );
        if cluster.id() == self.home.id() {
            self.reports.warn(&on, "OrphanedTwin", &note).await;
        } else {
            // Events over there would need rights that we have no other use for.
            let place = format!("{}/{}", on.namespace, on.name);
            tracing::warn!(cluster = %cluster.id(), twin = place, "{note}");
        }
    }

    /// Twins without a PV of their volume in their cluster, everywhere.
    fn alone(&self) -> Vec<(Cluster, Arc<Twin>)> {
        let volumes: BTreeSet<(VolumeName, ClusterId)> = self
            .watched
            .virtual_volumes()
            .into_iter()
            .map(|volume| (volume.volume, volume.cluster))
            .collect();
        let remote = self.registry.all();
        let reachable = remote.iter().filter_map(|remote| {
            let cluster = remote.reach().ok()?;
            for namespace in remote.namespaces.named() {
                // From now on watched, where not all namespaces can be at once.
                drop(cluster.twins_in(namespace));
            }
            Some(cluster)
        });
        let clusters = std::iter::once(self.home.clone()).chain(reachable);
        let mut alone = Vec::new();
        for cluster in clusters {
            for twin in cluster.all_twins() {
                if !volumes.contains(&(twin.volume.clone(), cluster.id().clone())) {
                    alone.push((cluster.clone(), twin));
                }
            }
        }
        alone
    }
}

impl Rounds for Orphans<'_> {
    const NAME: &'static str = "orphans";
    const REST: Duration = Duration::from_mins(1);

    fn grace(&self) -> Option<Duration> {
        Some(self.grace)
    }

    /// None: what looks forgotten for a moment is on its way.
    fn signs(&self) -> Vec<watch::Receiver<u64>> {
        Vec::new()
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let alone = self.alone();
        self.since
            .retain(|uid, _| alone.iter().any(|(_, twin)| twin.uid == *uid));

        let mut outcome = Ok(());
        let mut reported: HashMap<Look, usize> = HashMap::new();
        for (cluster, twin) in &alone {
            let look = look(twin.handed_over, twin.deleting, self.origin(cluster, twin));
            if !self.persists(cluster, twin, look) {
                continue;
            }
            match look {
                Look::InTheMaking => {}
                Look::Collectable => outcome = outcome.and(self.collect(cluster, twin).await),
                Look::Unclaimed | Look::GivenAway => {
                    self.report(cluster, twin, look).await;
                    *reported.entry(look).or_default() += 1;
                }
            }
        }
        for look in Look::REPORTED {
            self.metrics
                .orphans(look.reason(), reported.get(&look).copied().unwrap_or_default());
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
