//! The recovery of a source after the commit, because the target was lost: the source gets the epoch after
//! the target's. In a remote cluster that is one write to its twin. At home the name of a twin contains its
//! epoch, so a second twin is created for the same PV. Each of these writes can be the first after a crash:
//!
//! ```text
//! second twin      ── created like the first one, with its own name and epoch, for the same PV
//! PV of the source ── Retain, and names the second twin
//!                  ── its own reclaim policy, once the second twin is bound
//! first twin       ── deleted
//! ```

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;

use super::{
    Applied, GateError, MovedVolume, Place, Records,
    apply::{exactly_as, outcome},
    name::{copy_of_twin, pass_to},
    twins::delete,
};
use crate::{
    cluster::ApiError,
    observe::crash::{self, Step},
    placement::moving::{AsRead, Live, Side, SourceTwin},
    twin::{Site, is_bound, is_bound_to, reading},
    volume::{
        ReclaimPolicy, VolumeId, mark,
        moving::{Manifest, MoveRecordError, SourceMark, epoch_mark},
    },
};

impl MovedVolume {
    /// The volume id of the recovered source; `None` if no epoch is left.
    pub(super) fn recovered_id(&self) -> Option<VolumeId> {
        Some(VolumeId {
            epoch: self.target.id.epoch.next()?,
            ..self.source.id.clone()
        })
    }

    /// The site of the recovered source twin.
    fn recovered_site(&self) -> Result<Site, GateError> {
        let Some(id) = self.recovered_id() else {
            return Err(self.no_epoch());
        };
        let site = self.site(Side::Source)?;
        let Some(remote) = site.remote_cluster() else {
            return Ok(Site::local(&self.home, &id.name, id.epoch));
        };
        let (namespace, name) = (site.namespace().to_owned(), site.name().to_owned());
        let found = Site::recorded(&self.home, remote.clone(), namespace, name, id.epoch);
        found.map_err(|error| GateError::Unreachable {
            side: Side::Source.as_str(),
            why: error.to_string(),
        })
    }

    fn no_epoch(&self) -> GateError {
        GateError::Record {
            volume: self.volume().clone(),
            error: MoveRecordError::NoSuccessor {
                origin: self.target.id.to_string(),
                target: self.source.id.to_string(),
                why: "there is no epoch left",
            },
        }
    }

    /// The PV to create for the source, if it is recovered.
    pub(super) fn recovered_manifest(&self) -> Result<Option<Manifest>, GateError> {
        let Records::Committed(record) = &self.records else {
            return Ok(None);
        };
        if !self.recovers {
            return Ok(None);
        }
        let id = self.recovered_id().ok_or_else(|| self.no_epoch())?;
        let twin = match &self.source.place {
            Place::Site(site) if site.remote_cluster().is_some() => site.name().to_owned(),
            _ => id.name.home_twin(id.epoch),
        };
        let manifest = record.recovered(&id, &twin);
        manifest.map(Some).map_err(|error| GateError::Record {
            volume: self.volume().clone(),
            error,
        })
    }

    pub(super) async fn recovered_now(&self) -> Result<Option<Live<SourceTwin>>, GateError> {
        if !self.recovers || !matches!(self.source.place, Place::Site(_)) {
            return Ok(None);
        }
        let site = self.recovered_site()?;
        let Some(second) = self.second_twin(&site).await? else {
            return Ok(None);
        };
        if site.remote_cluster().is_some() {
            return Ok(Some(Live::Known(SourceTwin::Recovered)));
        }
        if let Some(why) = self.binding_wait(&site, &second).await? {
            return Ok(Some(Live::Unknown(why)));
        }
        let first = self.superseded_twin().await?;
        let is_whole = first.is_none() && reading::phase(&second) == "Bound";
        Ok(is_whole.then_some(Live::Known(SourceTwin::Recovered)))
    }

    async fn second_twin(&self, site: &Site) -> Result<Option<PersistentVolumeClaim>, ApiError> {
        let found = site.twins().get(site.name()).await?;
        Ok(found.filter(|found| site.is_twin(self.volume(), found)))
    }

    /// The source twin in its state after the commit.
    async fn superseded_twin(&self) -> Result<Option<PersistentVolumeClaim>, GateError> {
        let site = self.site(Side::Source)?;
        let found = site.twins().get(site.name()).await?;
        Ok(found.filter(|found| site.is_twin(self.volume(), found)))
    }

    /// Takes the next write until the source has the epoch after the target's.
    pub(super) async fn recover_source(
        &self,
        at: &AsRead,
        policy: ReclaimPolicy,
    ) -> Result<Applied, GateError> {
        let Some((_, first)) = self.exact_twin(Side::Source, at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let site = self.recovered_site()?;
        let epoch = epoch_mark(site.epoch());
        if site.remote_cluster().is_some() {
            let mut annotations = json!(epoch);
            annotations[mark::SOURCE_OF] = json!(null);
            let patch = json!({"metadata": {"annotations": annotations}});
            return first.change(Step::MoveRecoverSource, patch).await;
        }
        let taken = || GateError::NameTaken {
            twin: site.place(),
            cluster: site.cluster_name(),
        };
        match site.twins().get(site.name()).await? {
            Some(second) if site.is_twin(self.volume(), &second) => {
                self.bind_second_twin(&site, &second, first.object, policy).await
            }
            Some(_) => Err(taken()),
            None => {
                let mut second = copy_of_twin(site.name(), first.object);
                let annotations = second.metadata.annotations.get_or_insert_default();
                annotations.remove(mark::SOURCE_OF);
                annotations.extend(epoch);
                if site.protects() {
                    second.metadata.finalizers = Some(vec![mark::TWIN_FINALIZER.to_owned()]);
                }
                outcome(crash::around(Step::MoveRecoverSource, site.twins().create(&second)).await)
            }
        }
    }

    /// Binds the PV to the second twin instead of the first one, and deletes the first one.
    async fn bind_second_twin(
        &self,
        site: &Site,
        second: &PersistentVolumeClaim,
        first: PersistentVolumeClaim,
        policy: ReclaimPolicy,
    ) -> Result<Applied, GateError> {
        let unbound = || GateError::Unbound {
            twin: site.place(),
            cluster: site.cluster_name(),
        };
        let name = reading::volume_name(second).ok_or_else(unbound)?;
        let real: PersistentVolume = site.volumes().get(name).await?.ok_or_else(unbound)?;
        if !is_bound_to(&real, second) {
            if !is_bound_to(&real, &first) {
                return Err(unbound());
            }
            let patch = pass_to(&real, second, json!({}));
            let real = exactly_as(site.volumes(), real);
            return real.change(Step::MoveRecoverVolume, patch).await;
        }
        if reading::phase(second) != "Bound" || !is_bound(&real) {
            return Ok(Applied::ChangedMeanwhile);
        }
        match self.settle(site, second, policy, Step::MoveRetainSource).await? {
            Applied::Done => delete(self.site(Side::Source)?, first, Step::MoveForgetSource).await,
            other => Ok(other),
        }
    }

    /// If the target returns, so may its pods: its twin records that the volume is at the source now, even if
    /// the twin was never handed over.
    pub(super) async fn supersede_target(&self, at: &AsRead) -> Result<Applied, GateError> {
        let Some((_, twin)) = self.exact_twin(Side::Target, at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let Some(epoch) = self.target.id.epoch.next() else {
            return Err(self.no_epoch());
        };
        let superseded = SourceMark::Superseded {
            by: self.by.clone(),
            epoch,
        };
        let patch = json!({"metadata": {
            "labels": {mark::MOVE: null},
            "annotations": {mark::HANDED_OVER: "true", mark::SOURCE_OF: superseded.to_string()},
        }});
        twin.change(Step::MoveSupersedeTarget, patch).await
    }
}
