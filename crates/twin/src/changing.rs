//! A volume that the user wants to change (expand, or give another attributes class), and its twin, read
//! live.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    ChangeError, Site,
    claimed::{VirtualPv, epoch_served, named_claim},
    last_warning,
    moves::{exists, may_change},
    reading,
    site::find_by,
    waiter::settled_twin,
};
use crate::{
    cluster::{ApiError, Cluster, unless_conflict},
    fleet::Registry,
    observe::crash::{self, Step},
    placement::{
        Class,
        moving::{ChangeDecision, change_decision},
    },
    volume::{VolumeId, mark},
};

pub(super) struct VolumeChange {
    pub(super) site: Site,
    /// The virtual PV, if it exists.
    pub(super) virtual_pv: Option<PersistentVolume>,
    id: VolumeId,
}

impl VolumeChange {
    /// Finds the twin as the virtual PV records it, otherwise by a search.
    pub(super) async fn find(
        home: &Cluster,
        registry: &Registry,
        id: &VolumeId,
    ) -> Result<Self, ChangeError> {
        let virtual_pv = VirtualPv::read(home, &id.name).await?;
        let served = virtual_pv.0.as_deref().and_then(epoch_served).unwrap_or(id.epoch);
        if let ChangeDecision::MovedOn(current) = change_decision(id.epoch, served, false) {
            let id = id.clone();
            return Err(ChangeError::MovedOn { id, current });
        }
        let site = find_by(home, registry, id, &virtual_pv).await?;
        let site = site.ok_or_else(|| ChangeError::NoVolume(id.clone()))?;
        Ok(Self {
            site,
            virtual_pv: virtual_pv.0.map(|found| *found),
            id: id.clone(),
        })
    }

    /// The twin, if it is bound and not being deleted: Kubernetes changes no other claims.
    pub(super) async fn twin(&self, deadline: Instant) -> Result<PersistentVolumeClaim, ChangeError> {
        let site = &self.site;
        let found = settled_twin(site, deadline).await?;
        let Some(twin) = found.filter(|found| site.is_twin(&self.id.name, found)) else {
            return Err(match self.virtual_pv {
                None => ChangeError::NoVolume(self.id.clone()),
                Some(_) => self.not_now("does not exist: see the events of the volume's claim"),
            });
        };
        if reading::is_releasing(&twin) {
            return Err(self.not_now(
                "is being released (liqo-csi release pvc): change the claim when the release has ended",
            ));
        }
        match may_change(site.home(), &self.id, &twin).await {
            ChangeDecision::Allow => {}
            ChangeDecision::Later => {
                return Err(
                    self.not_now("belongs to a move of the volume: change the claim when the move has ended")
                );
            }
            ChangeDecision::MovedOn(current) => {
                let id = self.id.clone();
                return Err(ChangeError::MovedOn { id, current });
            }
        }
        if twin.metadata.deletion_timestamp.is_some() {
            return Err(self.not_now("is being deleted: wait until recovery has created it again"));
        }
        if reading::phase(&twin) != "Bound" {
            return Err(self.not_now(if site.remote_cluster().is_some() {
                "is bound only when its pod arrives there, and is changed then"
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

    /// Whether a move has locked the claim: what is copied must not change, and the target would keep the
    /// old value. A change that began before the lock is finished.
    async fn is_locked(&self, claim: Option<&PersistentVolumeClaim>) -> bool {
        let lock = claim.and_then(|claim| claim.annotations().get(mark::MOVE));
        match lock.map(|by| by.parse()) {
            None => false,
            Some(Ok(by)) => exists(self.site.home(), &by).await,
            // A newer version of the driver may have written the lock.
            Some(Err(_)) => true,
        }
    }

    /// The class of the twin, if classes can be read there.
    pub(super) fn class(&self, twin: &PersistentVolumeClaim) -> Option<Arc<Class>> {
        reading::class(self.site.cluster(), twin)
    }

    /// Patches the spec of exactly this version of the twin, with values computed from the current claim.
    /// False if the twin has changed since it was read, and has to be read again. A permanent rejection
    /// by the API server becomes `refused`.
    pub(super) async fn request(
        &self,
        twin: &PersistentVolumeClaim,
        step: Step,
        spec: impl FnOnce(Option<&PersistentVolumeClaim>) -> Value,
        refused: impl FnOnce(ApiError) -> ChangeError,
    ) -> Result<bool, ChangeError> {
        let claim = match &self.virtual_pv {
            Some(virtual_pv) => named_claim(self.site.home(), virtual_pv).await?,
            None => None,
        };
        if self.is_locked(claim.as_ref()).await {
            return Err(self.not_now("is being moved: change the claim when the move has ended"));
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

    /// The error for a twin that did not reach the desired state before the deadline.
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
