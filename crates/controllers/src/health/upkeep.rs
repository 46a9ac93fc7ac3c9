//! Upkeep of healthy volumes, which rarely need any.

use std::sync::{Arc, Mutex};

use super::{
    ByNeed, Health, Settled,
    reporting::shows_bound,
    volume_status::{Part, VolumeStatus},
};
use crate::{
    cluster::{ApiError, slim::Twin},
    imported, mirror,
    placement::{
        ClaimUpdate, Diagnosis, ObservedSize, Phase, PolicyFacts, PolicyStep, ReclaimPolicy, claim_update,
        has_finished, must_be_raised, policy_step,
    },
    retention,
    rounds::each,
    sync::sync,
    twin::{EXISTING_VOLUME, Site, add_finalizer, earlier_data, finish_expansion, holder_uid, mark_holder},
    watched::{Claim, VirtualVolume},
};

/// How often a write is retried after a conflict.
const ATTEMPTS: usize = 3;

impl Health<'_> {
    pub(super) async fn maintain_all(&mut self, by_need: &ByNeed) -> Result<(), ApiError> {
        let this = &*self;
        let settled = Mutex::new(Vec::new());
        let maintained = each(
            by_need.healthy.iter().chain(&by_need.waiting),
            async |volume_status| {
                let maintained = this.maintain(volume_status).await;
                let now = maintained.as_ref().ok().and_then(Option::as_ref);
                let earlier_data = now.and_then(|now| now.earlier_data.clone());
                if let (Some(now), Ok(mut settled)) = (now, settled.lock()) {
                    let is_shown = shows_bound(volume_status, earlier_data.as_deref());
                    settled.push((Arc::clone(&volume_status.volume), now.clone(), is_shown));
                }
                let mut done = maintained.map(|_| ());
                if volume_status.diagnosis == Diagnosis::Bound {
                    // The condition is updated even if the upkeep failed.
                    done = done.and(this.show_bound(volume_status, earlier_data.as_deref()).await);
                }
                volume_status.tolerate(&this.failures, Part::Upkeep, done)
            },
        )
        .await;
        for (volume, now, is_shown) in settled.into_inner().unwrap_or_default() {
            let before = self.settled.insert(volume.name.clone(), now.clone());
            if let (Some(note), Some(claim)) = (&now.earlier_data, &volume.claim)
                && before.is_none_or(|it| it.earlier_data != now.earlier_data)
                && !is_shown
            {
                self.reports.note(claim, EXISTING_VOLUME, note).await;
            }
        }
        maintained
    }

    /// Upkeep of a healthy volume. Returns a value for a remote volume that needs no further check of its
    /// PV.
    async fn maintain(&self, volume_status: &VolumeStatus) -> Result<Option<Settled>, ApiError> {
        let (Ok(site), Some(twin)) = (&volume_status.site, &volume_status.twin) else {
            return Ok(None);
        };
        let volume = &volume_status.volume;
        if let (Some(claim), Some(mark)) = (&volume_status.claim, &volume.claim)
            && claim.carried != twin.carried
        {
            Box::pin(sync(site, &volume.volume, mark)).await?;
        }
        let settled = self.maintain_volume(site, volume, twin).await?;
        if !twin.protected && !twin.deleting && site.protects() {
            Box::pin(add_finalizer(site, &volume.volume)).await?;
        }
        if let Some(claim) = &volume_status.claim {
            Box::pin(self.follow_size(site, volume, claim, twin)).await?;
        }
        Ok(settled)
    }

    /// Ends expansions that no kubelet ends: of twins at home, which no pod mounts, and of claims whose
    /// pods run in another cluster.
    async fn follow_size(
        &self,
        site: &Site,
        volume: &VirtualVolume,
        claim: &Claim,
        twin: &Twin,
    ) -> Result<(), ApiError> {
        if site.remote_cluster().is_none() {
            let seen = ObservedSize {
                claim: claim.size,
                volume: volume.bytes,
            };
            if has_finished(twin.size, seen) {
                finish_expansion(site, &volume.volume, &volume.name).await?;
            }
            return Ok(());
        }
        let Some(mark) = &volume.claim else {
            return Ok(());
        };
        if must_be_raised(claim.size, volume.bytes, twin.size) {
            return mirror::capacity(self.home, volume, mark, twin.size).await;
        }
        match claim_update(claim.size, twin.size) {
            Some(ClaimUpdate::Grown(_)) => mirror::growth(self.home, mark, twin.size).await,
            Some(ClaimUpdate::NodeInfeasible) => mirror::node_refusal(site, mark).await,
            None => Ok(()),
        }
    }

    /// Upkeep of the PV of a healthy twin.
    async fn maintain_volume(
        &self,
        site: &Site,
        volume: &VirtualVolume,
        twin: &Twin,
    ) -> Result<Option<Settled>, ApiError> {
        if twin.phase != Phase::Bound {
            return Ok(None);
        }
        if site.remote_cluster().is_some() {
            let known = self.settled.get(&volume.name);
            let is_known = |it: &&Settled| it.twin == twin.uid && it.retain == volume.retain;
            return match known.filter(is_known) {
                Some(known) => Ok(Some(known.clone())),
                None => Box::pin(self.check_remote_pv(site, volume, twin)).await,
            };
        }
        let real = twin
            .real_volume
            .as_ref()
            .and_then(|name| self.home.views().volumes.real(name));
        let Some(real) = real else {
            return Ok(None);
        };
        if real.released {
            // The record of the release determines its policy.
            return Ok(None);
        }
        if real.imported {
            Box::pin(imported::settle(site, volume, &real.name)).await?;
            return Ok(None);
        }
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

    /// Checks the PV of a remote twin once it is bound, because PVs there are not watched. `None` if it
    /// has to be checked again.
    async fn check_remote_pv(
        &self,
        site: &Site,
        volume: &VirtualVolume,
        twin: &Twin,
    ) -> Result<Option<Settled>, ApiError> {
        let (Some(name), true) = (&twin.real_volume, site.cluster().rights().volume_changes) else {
            // The right may be granted later.
            return Ok(None);
        };
        for _ in 0..ATTEMPTS {
            let found = site.volumes().get(name).await?;
            let Some(real) = found.filter(|real| holder_uid(real) == Some(twin.uid.as_str())) else {
                return Ok(None);
            };
            let earlier_data = earlier_data(site, &real);
            if mark_holder(site, &volume.volume, real).await?.is_some()
                && let Some(retain) = Box::pin(retention::follow(site, volume, name)).await?
            {
                return Ok(Some(Settled {
                    twin: twin.uid.clone(),
                    retain,
                    earlier_data,
                }));
            }
        }
        Ok(None)
    }
}
