//! The twin of a volume that is to be changed (grown, given another attributes class), found
//! and read live, with what a change rests on.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    ChangeError, Site,
    claimed::{epoch_served, named_claim, remembered, virtual_volume},
    last_warning,
    moves::{exists, may_change},
    reading, twin_in,
    waiter::settled_twin,
};
use crate::{
    cluster::{ApiError, Cluster, unless_conflict},
    fleet::Registry,
    observe::crash::{self, Step},
    placement::{
        Class,
        moving::{ChangeBeside, change_beside},
    },
    volume::{VolumeId, mark},
};

/// A volume that is to be changed.
pub(super) struct Changing {
    pub(super) site: Site,
    /// The PV that users see, if there is one.
    pub(super) outer: Option<PersistentVolume>,
    id: VolumeId,
}

impl Changing {
    /// Finds the volume, from what its PV remembers.
    pub(super) async fn find(
        home: &Cluster,
        registry: &Registry,
        id: &VolumeId,
    ) -> Result<Self, ChangeError> {
        let outer = virtual_volume(home, &id.name).await?;
        let served = outer.as_ref().and_then(epoch_served).unwrap_or(id.epoch);
        if let ChangeBeside::MovedOn(current) = change_beside(id.epoch, served, false, false) {
            let id = id.clone();
            return Err(ChangeError::MovedOn { id, current });
        }
        let remembered = outer.as_ref().and_then(|outer| remembered(outer, id.epoch));
        let remembered = remembered.and_then(twin_in);
        let site = Site::of_volume(home, registry, id, remembered.as_ref())?;
        let site = site.ok_or_else(|| ChangeError::NoVolume(id.clone()))?;
        Ok(Self {
            site,
            outer,
            id: id.clone(),
        })
    }

    /// The twin, as long as it lives and has its PV: Kubernetes changes nothing else.
    pub(super) async fn twin(&self, deadline: Instant) -> Result<PersistentVolumeClaim, ChangeError> {
        let site = &self.site;
        let found = settled_twin(site, deadline).await?;
        let Some(twin) = found.filter(|found| site.is_twin(&self.id.name, found)) else {
            return Err(match self.outer {
                // Nobody has such a volume.
                None => ChangeError::NoVolume(self.id.clone()),
                Some(_) => self.not_now("is not there: the events of the volume's claim say why"),
            });
        };
        if reading::is_releasing(&twin) {
            return Err(self
                .not_now("is being released (liqo-csi release pvc): change the claim when that has ended"));
        }
        match may_change(site.home(), &self.id, &twin, false).await {
            ChangeBeside::Go => {}
            ChangeBeside::Later => {
                return Err(
                    self.not_now("belongs to a move of the volume: the claim is changed when that has ended")
                );
            }
            ChangeBeside::MovedOn(current) => {
                let id = self.id.clone();
                return Err(ChangeError::MovedOn { id, current });
            }
        }
        if twin.metadata.deletion_timestamp.is_some() {
            return Err(self.not_now("is being deleted: its data is to be rescued first"));
        }
        if reading::phase(&twin) != "Bound" {
            return Err(self.not_now(if site.remote_cluster().is_some() {
                "is bound when its pod arrives there, and changes then"
            } else {
                "is not bound yet"
            }));
        }
        Ok(twin)
    }

    /// The PV of the twin, where PVs can be read.
    pub(super) async fn real_volume(
        &self,
        twin: &PersistentVolumeClaim,
    ) -> Result<Option<PersistentVolume>, ApiError> {
        match reading::volume_name(twin) {
            Some(name) if self.site.shows_volumes() => self.site.volumes().get(name).await,
            _ => Ok(None),
        }
    }

    /// Whether a move has locked the claim: what is copied must not change, and the target would stay
    /// as it is. A change that had begun before is finished.
    async fn is_locked(&self, claim: Option<&PersistentVolumeClaim>) -> bool {
        let lock = claim.and_then(|claim| claim.annotations().get(mark::MOVE));
        match lock.map(|by| by.parse()) {
            None => false,
            Some(Ok(by)) => exists(self.site.home(), &by).await,
            // It may be the lock of a newer version.
            Some(Err(_)) => true,
        }
    }

    /// The class of the twin, if classes can be read there.
    pub(super) fn class(&self, twin: &PersistentVolumeClaim) -> Option<Arc<Class>> {
        reading::class(self.site.cluster(), twin)
    }

    /// Asks for something else in the spec of exactly this version of the twin, by what its claim is now, as this step;
    /// false if the twin has changed meanwhile, and has to be read again. What the API server does
    /// not take as a matter of principle is `refused`.
    pub(super) async fn request(
        &self,
        twin: &PersistentVolumeClaim,
        step: Step,
        spec: impl FnOnce(Option<&PersistentVolumeClaim>) -> Value,
        refused: impl FnOnce(ApiError) -> ChangeError,
    ) -> Result<bool, ChangeError> {
        let claim = match &self.outer {
            Some(outer) => named_claim(self.site.home(), outer).await?,
            None => None,
        };
        if self.is_locked(claim.as_ref()).await {
            return Err(self.not_now("is being moved: the claim is changed when that has ended"));
        }
        let patch = json!({
            "metadata": {"uid": twin.uid(), "resourceVersion": twin.resource_version()},
            "spec": spec(claim.as_ref()),
        });
        let asked = crash::around(step, self.site.twins().merge(&twin.name_any(), &patch)).await;
        match unless_conflict(asked) {
            Err(error) if error.is_refusal() => Err(refused(error)),
            other => Ok(other?.is_some()),
        }
    }

    /// Time is up, and the twin is not what it is to be.
    pub(super) async fn still_waiting(&self, twin: &PersistentVolumeClaim, awaited: String) -> ChangeError {
        ChangeError::StillWaiting {
            twin: self.site.place(),
            cluster: self.site.cluster_name(),
            awaited,
            why: last_warning(&self.site, twin).await,
        }
    }

    fn not_now(&self, why: &'static str) -> ChangeError {
        ChangeError::NotNow {
            twin: self.site.place(),
            cluster: self.site.cluster_name(),
            why,
        }
    }
}
