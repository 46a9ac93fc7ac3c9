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
        (true, Origin::Gone) if deleting => Look::Collectable,
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
    fn persists(&mut self, twin: &Twin, look: Look) -> bool {
        let now = Instant::now();
        let (known, since) = self.since.entry(twin.uid.clone()).or_insert((look, now));
        if *known != look {
            (*known, *since) = (look, now);
        }
        since.elapsed() >= self.grace
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
            Ok(()) => Ok(()),
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
            if !self.persists(twin, look) {
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
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        cluster::{
            events::Events,
            testing::{Act, FakeApi, Fault},
        },
        volume::DRIVER_NAME,
    };

    const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
    const TWIN: &str =
        "/api/v1/namespaces/liqo-storage/persistentvolumeclaims/0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
    const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
    const VOLUME: &str = "/api/v1/persistentvolumes/pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

    fn put_twin(api: &FakeApi, handed_over: bool, with_claim: bool) {
        let marks = Marks {
            home: "home".parse().unwrap(),
            volume: VolumeName::from_request(&format!("pvc-{UID}")),
            claim: with_claim.then(|| ClaimMark {
                namespace: "shop".into(),
                name: "data".into(),
                uid: UID.into(),
            }),
            request_name: format!("pvc-{UID}"),
            fingerprint: None,
            handed_over,
        };
        api.put(
            TWIN,
            json!({
                "metadata": {
                    "labels": marks.labels(),
                    "annotations": marks.annotations(),
                    "finalizers": [crate::twin::FINALIZER],
                },
                "spec": {"storageClassName": "real"},
                "status": {"phase": "Pending"},
            }),
        );
    }

    fn put_claim(api: &FakeApi, uid: &str) {
        let annotations = json!({"volume.kubernetes.io/storage-provisioner": DRIVER_NAME});
        api.put(
            CLAIM,
            json!({"metadata": {"uid": uid, "annotations": annotations}, "spec": {}}),
        );
    }

    fn put_volume(api: &FakeApi) {
        let handle = format!("v1:home:pvc-{UID}");
        api.put(
            VOLUME,
            json!({"spec": {"csi": {"driver": DRIVER_NAME, "volumeHandle": handle}}}),
        );
    }

    /// A round when everything looks as it looks for this long.
    async fn round_after(api: &FakeApi, looked: Duration) -> Result<(), ApiError> {
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        round_with(&home, &watched, looked).await
    }

    async fn round_with(home: &Cluster, watched: &Watched, looked: Duration) -> Result<(), ApiError> {
        let settings = Settings {
            namespace: "ours".into(),
            identity: "a".into(),
            grace: Duration::from_mins(10),
            allowed_classes: BTreeSet::new(),
        };
        let metrics = Metrics::default();
        let reports = Reports::new(Events::new(home.client().clone()));
        let registry = Registry::default();
        let mut orphans = Orphans::new(home, &registry, watched, reports, &settings, &metrics);
        orphans.round().await?;
        for (_, since) in orphans.since.values_mut() {
            *since -= looked;
        }
        orphans.round().await
    }

    const LONG: Duration = Duration::from_mins(11);

    fn events(api: &FakeApi) -> Vec<Value> {
        api.store().below("/apis/events.k8s.io/v1/namespaces/")
    }

    #[tokio::test]
    async fn what_nobody_was_given_is_collected_after_the_grace_period() {
        let api = FakeApi::start().await;
        put_twin(&api, false, true);
        round_after(&api, Duration::from_mins(9)).await.unwrap();
        assert!(api.object(TWIN).is_some());
        round_after(&api, LONG).await.unwrap();
        assert!(api.object(TWIN).is_none());
    }

    #[tokio::test]
    async fn a_claim_of_the_same_name_is_another_claim() {
        let api = FakeApi::start().await;
        put_twin(&api, false, true);
        put_claim(&api, "another");
        round_after(&api, LONG).await.unwrap();
        assert!(api.object(TWIN).is_none());
    }

    #[tokio::test]
    async fn a_twin_with_claim_or_volume_stays() {
        let api = FakeApi::start().await;
        put_twin(&api, false, true);
        put_claim(&api, UID);
        round_after(&api, LONG).await.unwrap();
        assert!(api.object(TWIN).is_some());

        api.remove(CLAIM);
        put_volume(&api);
        round_after(&api, LONG).await.unwrap();
        assert!(api.object(TWIN).is_some());
    }

    #[tokio::test]
    async fn what_is_read_live_decides() {
        for put in [put_volume as fn(&FakeApi), |api| put_claim(api, UID)] {
            let api = FakeApi::start().await;
            put_twin(&api, false, true);
            let home = api.cluster().await;
            let watched = Watched::start(&home);
            watched.complete().await;
            // From now on the views see nothing new.
            for kind in ["persistentvolumes", "persistentvolumeclaims"] {
                api.fault(Fault::new("GET", kind, Act::Gone));
            }
            api.cut_watches();
            put(&api);
            round_with(&home, &watched, LONG).await.unwrap();
            assert!(api.object(TWIN).is_some());
        }
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_not_collected() {
        for path in ["persistentvolumes/", "namespaces/shop/"] {
            let api = FakeApi::start().await;
            put_twin(&api, false, true);
            api.fault(Fault::new("GET", path, Act::Refuse(403)));
            assert!(round_after(&api, LONG).await.is_err(), "{path}");
            assert!(api.object(TWIN).is_some(), "{path}");
        }
    }

    #[tokio::test]
    async fn what_was_given_away_is_reported_and_left_alone() {
        let api = FakeApi::start().await;
        put_twin(&api, true, true);
        let before = api.object(TWIN);
        round_after(&api, LONG).await.unwrap();
        assert_eq!(api.object(TWIN), before);
        assert_eq!(events(&api)[0]["reason"], "OrphanedTwin");
        assert_eq!(events(&api)[0]["regarding"]["namespace"], "liqo-storage");
    }

    #[tokio::test]
    async fn a_twin_without_a_claim_is_reported_and_left_alone() {
        let api = FakeApi::start().await;
        put_twin(&api, false, false);
        round_after(&api, LONG).await.unwrap();
        assert!(api.object(TWIN).is_some());
        assert_eq!(events(&api).len(), 1);
    }

    #[tokio::test]
    async fn who_deletes_a_reported_twin_is_not_held_up() {
        let api = FakeApi::start().await;
        put_twin(&api, true, true);
        api.change(TWIN, |twin| {
            twin["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
        round_after(&api, LONG).await.unwrap();
        assert!(api.object(TWIN).is_none());
    }
}
