//! Is every volume's twin well? A twin is only deleted by `DeleteVolume`; when it
//! is deleted or vanishes otherwise, the user hears of it at once and the data is
//! rescued as long as that is possible.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::PersistentVolume;
use tokio::sync::watch;

use super::{
    Metrics, Reports,
    recovery::{self, Rescue},
    rounds::{Rounds, each},
    sync::sync,
    watched::{Claim, VirtualVolume, Watched},
};
use crate::{
    cluster::{
        ApiError, Cluster, facts,
        slim::{Phase, Twin, Volume},
    },
    placement::ReclaimPolicy,
    twin::{name_of, retain},
    volume::ClaimMark,
};

/// How a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Condition {
    Healthy,
    /// Being deleted, or not in use by a claim: what happens to its twin is meant.
    Ending,
    /// Its twin is being deleted behind our back.
    Terminating,
    /// It has no twin.
    Vanished,
    /// Its twin has no PV.
    Lost,
}

impl Condition {
    const ALL: [Self; 5] = [
        Self::Healthy,
        Self::Ending,
        Self::Terminating,
        Self::Vanished,
        Self::Lost,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Ending => "ending",
            Self::Terminating => "twin-terminating",
            Self::Vanished => "twin-vanished",
            Self::Lost => "twin-lost",
        }
    }
}

fn diagnose(volume: &VirtualVolume, claim: Option<&Claim>, twin: Option<&Twin>) -> Condition {
    let ending = !volume.bound || volume.deleting || claim.is_some_and(|claim| claim.deleting);
    match twin {
        _ if ending => Condition::Ending,
        None => Condition::Vanished,
        Some(twin) if twin.deleting => Condition::Terminating,
        Some(twin) if twin.phase == Phase::Lost => Condition::Lost,
        Some(_) => Condition::Healthy,
    }
}

/// The loop that looks after volumes.
pub(super) struct Health<'a> {
    home: &'a Cluster,
    watched: &'a Watched,
    reports: Reports,
    metrics: &'a Metrics,
}

impl<'a> Health<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        watched: &'a Watched,
        reports: Reports,
        metrics: &'a Metrics,
    ) -> Self {
        Self {
            home,
            watched,
            reports,
            metrics,
        }
    }

    fn twin(&self, volume: &VirtualVolume) -> Option<std::sync::Arc<Twin>> {
        let key = format!("{}/{}", self.home.storage_namespace(), name_of(&volume.volume));
        self.home.views().twins.get(&key)
    }

    /// What a healthy volume needs, seldom anything.
    async fn maintain(
        &self,
        volume: &VirtualVolume,
        claim: Option<&Claim>,
        twin: &Twin,
    ) -> Result<(), ApiError> {
        if let (Some(claim), Some(mark)) = (claim, &volume.claim)
            && claim.carried != twin.carried
        {
            Box::pin(sync(self.home, &volume.volume, mark)).await?;
        }
        let real = twin
            .real_volume
            .as_ref()
            .and_then(|name| self.home.views().volumes.get(name));
        let Some(real) = real.filter(|_| twin.phase == Phase::Bound) else {
            return Ok(());
        };
        if volume.retain && !real.retain {
            Box::pin(self.retain(volume, &real)).await?;
        }
        if real.rescued && real.phase == "Bound" {
            Box::pin(recovery::finish(self.home, volume, &real.name)).await?;
        }
        Ok(())
    }

    /// The user wants the data to stay: so it is said where it counts, if they still do.
    async fn retain(&self, volume: &VirtualVolume, real: &Volume) -> Result<(), ApiError> {
        let volumes = self.home.all::<PersistentVolume>();
        let (wish, real) = tokio::try_join!(volumes.get(&volume.name), volumes.get(&real.name))?;
        let policy = |volume: &Option<PersistentVolume>| {
            let spec = volume.as_ref().and_then(|volume| volume.spec.as_ref());
            facts::reclaim_policy(spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()))
        };
        match &real {
            Some(found)
                if policy(&wish) == ReclaimPolicy::Retain && policy(&real) != ReclaimPolicy::Retain =>
            {
                retain(self.home, found).await
            }
            _ => Ok(()),
        }
    }

    async fn treat(&mut self, volume: &VirtualVolume, condition: Condition) -> Result<(), ApiError> {
        let rescue = match condition {
            Condition::Healthy | Condition::Ending => return Ok(()),
            Condition::Terminating => Box::pin(recovery::rescue(self.home, volume)).await,
            Condition::Vanished => Box::pin(recovery::restore(self.home, volume)).await,
            Condition::Lost => Ok(Rescue::Hopeless),
        };
        // A user hears of it also when nothing can be done right now.
        let (known, outcome) = match rescue {
            Ok(rescue) => (Some(rescue), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let Some(claim) = &volume.claim else {
            return outcome;
        };
        // A twin that vanishes while it is rescued is what they were told to expect.
        let expected = condition == Condition::Vanished && known == Some(Rescue::Underway);
        if known != Some(Rescue::FalseAlarm) && !(expected && self.reports.any(&claim.uid)) {
            let note = self.note(volume, condition, known);
            self.reports.warn(claim, reason(condition), &note).await;
        }
        outcome
    }

    fn note(&self, volume: &VirtualVolume, condition: Condition, rescue: Option<Rescue>) -> String {
        let twin = format!("{}/{}", self.home.storage_namespace(), name_of(&volume.volume));
        let what = match condition {
            Condition::Terminating => {
                format!("the twin {twin} of this volume is being deleted, not by this driver")
            }
            Condition::Lost => format!("the PersistentVolume of the twin {twin} is gone"),
            _ => format!("the twin {twin} of this volume is gone, not by this driver"),
        };
        let then = match rescue {
            Some(Rescue::Underway) => "Its PersistentVolume is retained, and a twin is made onto it again",
            Some(Rescue::Hopeless) => "Its data may be lost; no empty volume takes its place",
            Some(Rescue::FalseAlarm) | None => "Its data will be rescued if that is still possible",
        };
        format!("{what}. {then}")
    }

    /// Who was told that a volume is ill is told that it is well again.
    async fn recovered(&mut self, claim: &ClaimMark) {
        if self.reports.any(&claim.uid) {
            let note = "the volume has its twin again";
            self.reports.well(claim, "TwinRecovered", note).await;
        }
    }
}

fn reason(condition: Condition) -> &'static str {
    match condition {
        Condition::Terminating => "TwinTerminating",
        Condition::Lost => "TwinLost",
        _ => "TwinVanished",
    }
}

impl Rounds for Health<'_> {
    const NAME: &'static str = "health";
    const REST: Duration = Duration::from_mins(1);

    fn signs(&self) -> Vec<watch::Receiver<u64>> {
        let views = self.home.views();
        vec![
            views.twins.version(),
            views.volumes.version(),
            self.watched.volumes.version(),
            self.watched.claims.version(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let mut counts: HashMap<Condition, usize> = HashMap::new();
        let (mut healthy, mut ill) = (Vec::new(), Vec::new());
        for volume in self.watched.virtual_volumes() {
            let claim = volume.claim.as_ref().and_then(|mark| self.watched.claim(mark));
            let twin = self.twin(&volume);
            let condition = diagnose(&volume, claim.as_deref(), twin.as_deref());
            *counts.entry(condition).or_default() += 1;
            match (condition, twin) {
                (Condition::Healthy, Some(twin)) => healthy.push((volume, claim, twin)),
                (Condition::Healthy | Condition::Ending, _) => {}
                _ => ill.push((volume, condition)),
            }
        }
        for condition in Condition::ALL {
            self.metrics.volumes(
                condition.name(),
                counts.get(&condition).copied().unwrap_or_default(),
            );
        }

        // Data first.
        let mut outcome = Ok(());
        for (volume, condition) in &ill {
            outcome = outcome.and(self.treat(volume, *condition).await);
        }
        for claim in healthy.iter().filter_map(|(volume, ..)| volume.claim.as_ref()) {
            self.recovered(claim).await;
        }
        let this = &*self;
        let maintained = each(&healthy, async |(volume, claim, twin)| {
            this.maintain(volume, claim.as_deref(), twin).await
        });
        outcome.and(maintained.await)
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
