//! Twins that look forgotten. One that nobody was given, whose claim and PV are
//! gone, is collected after a grace period, by what is read live at that moment.
//! Everything else that looks so (a cluster restored from a backup, a retained PV
//! somebody removed) may be all that is left of somebody's data: it is reported.
//! So it is with twins in remote clusters, as far as they can be seen; and one
//! that was left behind when its claim was served elsewhere is collected too.
//!
//! Whoever deletes a reported twin is not held up, but its data is kept: it may be
//! a fabric that takes down a namespace, and the volume may be known to a backup of
//! this cluster, or to another cluster that has the same id by mistake.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use tokio::{sync::watch, time::Instant};

use super::{
    Metrics, Reports, Settings,
    recovery::{self, Real},
    watched::Watched,
};
use crate::{
    cluster::{ApiError, Cluster, slim::Twin},
    fleet::Registry,
    observe::crash::Step,
    rounds::Rounds,
    twin::{CreateError, Site, exists, is_of_move, is_releasing, is_seen_of_move, retain, withdraw},
    volume::{
        ClaimMark, ClusterId, Marks, VolumeId, VolumeIdError, VolumeName,
        moving::{MoveUid, SourceMark, TwinMarkError, TwinMarks},
    },
};

/// For one twin to be gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// For whoever deletes a twin here: the grace period is for those nobody has looked at.
/// Elsewhere it may be a fabric that takes down a namespace.
const DELETED: Duration = Duration::from_secs(30);

/// What a twin without a PV of its volume looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OrphanState {
    /// On its way to its user.
    InTheMaking,
    /// Nobody was given it, and nobody will be.
    Collectable,
    /// Nobody was given it, but it is not known for whom it was made.
    Unclaimed,
    /// Somebody was given it, and it has no PV (any more).
    GivenAway,
    /// It has what its volume was before a move whose `VolumeMove` is gone.
    LeftByMove,
}

impl OrphanState {
    const REPORTED: [Self; 3] = [Self::Unclaimed, Self::GivenAway, Self::LeftByMove];

    fn reason(self) -> &'static str {
        match self {
            Self::InTheMaking => "in-the-making",
            Self::Collectable => "collectable",
            Self::Unclaimed => "unclaimed",
            Self::GivenAway => "given-away",
            Self::LeftByMove => "left-by-move",
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

/// Where the data of a volume is, according to its PV.
enum Place {
    /// It has no PV.
    Nowhere,
    /// Where its PV leads to.
    In(VolumeId),
    /// Another version of this driver made the PV, and knows.
    Unreadable,
}

/// A twin without a PV of its volume in its cluster.
struct Alone {
    cluster: Cluster,
    twin: Arc<Twin>,
    /// Whether the volume has its PV, with its data in another cluster.
    is_served_elsewhere: bool,
}

fn classify(handed_over: bool, deleting: bool, origin: Origin) -> OrphanState {
    match (handed_over, origin) {
        // Somebody deletes what was reported to them: our finalizer is not to be in the way.
        (true, _) | (_, Origin::Unknown) if deleting => OrphanState::Collectable,
        (true, _) => OrphanState::GivenAway,
        (false, Origin::Live) => OrphanState::InTheMaking,
        (false, Origin::Gone) => OrphanState::Collectable,
        (false, Origin::Unknown) => OrphanState::Unclaimed,
    }
}

/// The same of a twin as it was seen, which may be what a move has left.
fn classify_seen(twin: &Twin, origin: Origin) -> OrphanState {
    if superseded_by(&twin.moves).is_none() {
        return classify(twin.handed_over, twin.deleting, origin);
    }
    if twin.deleting {
        OrphanState::Collectable
    } else {
        OrphanState::LeftByMove
    }
}

/// The move that has taken the data of a twin elsewhere.
fn superseded_by(marks: &Result<TwinMarks, TwinMarkError>) -> Option<&MoveUid> {
    match marks.as_ref().ok()?.source.as_ref()? {
        SourceMark::Superseded { by, .. } => Some(by),
        SourceMark::Moving { .. } | SourceMark::GivenBack { .. } => None,
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
    /// The cluster whose twins are looked at.
    cluster: ClusterId,
    /// Since when a twin, by its uid, looks as it looks.
    since: HashMap<String, (OrphanState, Instant)>,
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
        }
    }

    fn origin(&self, alone: &Alone) -> Origin {
        match &alone.twin.claim {
            None => Origin::Unknown,
            Some(_) if alone.is_served_elsewhere => Origin::Gone,
            Some(mark) if self.watched.claim(mark).is_some() => Origin::Live,
            Some(_) => Origin::Gone,
        }
    }

    /// Notes how a twin looks; true once it has for the grace period.
    fn persists(&mut self, cluster: &Cluster, twin: &Twin, state: OrphanState) -> bool {
        let now = Instant::now();
        let (known, since) = self.since.entry(twin.uid.clone()).or_insert((state, now));
        if *known != state {
            (*known, *since) = (state, now);
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
        let same =
            |twin: &PersistentVolumeClaim| twin.uid().as_deref() == Some(&seen.uid) && !is_releasing(twin);
        let Some(twin) = found.filter(same) else {
            return Ok(());
        };
        let deleting = twin.metadata.deletion_timestamp.is_some();
        let moves = TwinMarks::read(twin.labels(), twin.annotations());
        let left_by = superseded_by(&moves);
        let is_of_move = match left_by {
            Some(by) => !deleting || exists(self.home, by).await,
            None => is_of_move(self.home, &twin).await,
        };
        if is_of_move {
            return Ok(());
        }
        let Ok(marks) = Marks::read(twin.labels(), twin.annotations()) else {
            return Ok(());
        };
        let origin = match self.place_of_volume(&marks).await? {
            Place::In(id) if id.cluster != *cluster.id() || id.epoch != marks.epoch => Origin::Gone,
            Place::In(_) | Place::Unreadable => return Ok(()),
            Place::Nowhere => self.origin_now(&marks).await?,
        };
        if left_by.is_none() && classify(marks.handed_over, deleting, origin) != OrphanState::Collectable {
            return Ok(());
        }
        let nobody_had_it = left_by.is_none() && !marks.handed_over && origin == Origin::Gone;
        if !nobody_had_it && !self.keep_data(cluster, &twin, &marks).await? {
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

    /// Keeps the data of a twin that somebody may have been given and somebody deletes. False if
    /// that cannot be done (yet): then our finalizer, if it is there, holds the twin.
    async fn keep_data(
        &self,
        cluster: &Cluster,
        twin: &PersistentVolumeClaim,
        marks: &Marks,
    ) -> Result<bool, ApiError> {
        let Some(site) = self.site(cluster, twin, marks) else {
            return Ok(false);
        };
        match recovery::real(&site, &marks.volume, twin, |_| false).await? {
            Real::Found(real) => {
                if !retain(&site, &marks.volume, &real, Step::Rescue).await? {
                    // The next round looks at what it has become.
                    return Ok(false);
                }
                tracing::warn!(
                    cluster = %cluster.id(), twin = site.place(), real = real.name_any(),
                    "somebody deletes a twin whose volume is not known here: its PersistentVolume is retained"
                );
                Ok(true)
            }
            Real::None => Ok(true),
            Real::OutOfReach { real, why } => {
                tracing::warn!(
                    cluster = %cluster.id(), twin = site.place(), real, why,
                    "somebody deletes a twin whose volume is not known here, and its PersistentVolume cannot be retained: our finalizer is left on the twin. Grant the right, or set the reclaim policy to Retain and take it off"
                );
                Ok(false)
            }
            // The next round looks at what it has become.
            Real::Changed => Ok(false),
        }
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
        let same = found.is_some_and(|found| found.uid().as_deref() == Some(&claim.uid));
        Ok(if same { Origin::Live } else { Origin::Gone })
    }

    /// Where the data is, according to the PV of the volume, looked for under the names
    /// that csi-provisioner gives it.
    async fn place_of_volume(&self, marks: &Marks) -> Result<Place, ApiError> {
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
        Ok(match handle.unwrap_or_default().parse::<VolumeId>() {
            Ok(id) => Place::In(id),
            Err(VolumeIdError::Foreign(_)) => Place::In(VolumeId::never_moved(
                self.home.id().clone(),
                marks.volume.clone(),
            )),
            Err(VolumeIdError::UnknownVersion(_)) => Place::Unreadable,
        })
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
                "it holds what the volume {} of the claim {} was before a move whose VolumeMove is gone, so that nothing \
                 releases it. It is left alone: if that data is not needed, delete this claim",
                twin.volume,
                claim.as_deref().unwrap_or("<unknown>"),
            ),
            _ => format!(
                "the volume {} ({}, made for the claim {}) has no PersistentVolume. It is left alone, since it may hold \
                 data: recover it by hand, or delete this claim",
                twin.volume,
                state.reason(),
                claim.as_deref().unwrap_or("<unknown>"),
            ),
        };
        let note = format!(
            "{what}: its own PersistentVolume is retained then, and its data goes when you set the reclaim policy of that back \
             to Delete"
        );
        if cluster.id() == self.home.id() {
            self.reports.warn(&on, "OrphanedTwin", &note).await;
        } else {
            // Events over there would need rights that we have no other use for.
            let place = format!("{}/{}", on.namespace, on.name);
            tracing::warn!(cluster = %cluster.id(), twin = place, "{note}");
        }
    }

    /// The cluster, if it can be reached.
    fn reached(&self) -> Option<Cluster> {
        if self.cluster == *self.home.id() {
            return Some(self.home.clone());
        }
        let remote = self.registry.get(&self.cluster).ok()?;
        let cluster = remote.reach().ok()?;
        for namespace in remote.namespaces.named() {
            // From now on watched, where not all namespaces can be at once.
            drop(cluster.twins_in(namespace));
        }
        Some(cluster)
    }

    /// Twins without a PV of their volume in their cluster.
    fn alone(&self) -> Vec<Alone> {
        let Some(cluster) = self.reached() else {
            return Vec::new();
        };
        let here = self.watched.volumes.virtual_volumes_in(&self.cluster);
        let here: HashSet<_> = here.iter().map(|volume| (&volume.volume, volume.epoch)).collect();
        let twins = cluster.all_twins();
        // What is released has no PV for a while, and is seen to by the command that does it; what
        // is moved has none of its epoch, and is seen to by the move, as long as there is one.
        let moves = self.home.views().moves.all();
        let is_left = |twin: &Twin| {
            superseded_by(&twin.moves).is_some_and(|by| !moves.iter().any(|one| one.uid == by.as_str()))
        };
        let is_alone = |twin: &&Arc<Twin>| {
            let is_here = here.contains(&(&twin.volume, twin.epoch));
            !is_here && !twin.releasing && (!is_seen_of_move(twin) || is_left(twin))
        };
        let mut alone: Vec<_> = twins.iter().filter(is_alone).collect();
        if alone.is_empty() {
            return Vec::new();
        }
        let everywhere = self.watched.volumes.virtual_volumes();
        let everywhere: HashSet<&VolumeName> = everywhere.iter().map(|volume| &volume.volume).collect();
        let unreadable: BTreeSet<String> = self.watched.volumes.of_other_versions().into_iter().collect();
        alone.retain(|twin| !unreadable.contains(twin.volume.as_str()));
        let alone = alone.into_iter().map(|twin| Alone {
            cluster: cluster.clone(),
            is_served_elsewhere: everywhere.contains(&twin.volume),
            twin: Arc::clone(twin),
        });
        alone.collect()
    }
}

impl Rounds for Orphans<'_> {
    const NAME: &'static str = "orphans";
    const RESYNC: Duration = Duration::from_mins(1);

    fn grace(&self) -> Option<Duration> {
        Some(self.grace)
    }

    /// None: what looks forgotten for a moment is on its way.
    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        Vec::new()
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let alone = self.alone();
        let uids: HashSet<&str> = alone.iter().map(|it| it.twin.uid.as_str()).collect();
        self.since.retain(|uid, _| uids.contains(uid.as_str()));

        let mut outcome = Ok(());
        let mut reported: HashMap<OrphanState, usize> = HashMap::new();
        for it in &alone {
            let Alone { cluster, twin, .. } = it;
            let state = classify_seen(twin, self.origin(it));
            if !self.persists(cluster, twin, state) {
                continue;
            }
            // What is not seen may have been made a moment ago.
            if state == OrphanState::LeftByMove
                && let Some(by) = superseded_by(&twin.moves)
                && exists(self.home, by).await
            {
                continue;
            }
            match state {
                OrphanState::InTheMaking => {}
                OrphanState::Collectable => outcome = outcome.and(self.collect(cluster, twin).await),
                OrphanState::Unclaimed | OrphanState::GivenAway | OrphanState::LeftByMove => {
                    self.report(cluster, twin, state).await;
                    *reported.entry(state).or_default() += 1;
                }
            }
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
