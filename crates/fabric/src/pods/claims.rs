//! The claims of a pod in its cluster, and what the pod uses that the cluster does not provide.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::{CSIDriver, StorageClass},
};
use kube::ResourceExt;

use super::Pods;
use crate::{
    cluster::{ApiError, facts},
    offload::{
        IN_BOTH_CLUSTERS,
        pods::{Waiting, claims, inline_drivers},
    },
    places::Place,
    raw::RawPod,
    volume::{ClaimName, DRIVER_NAME, Owner, VolumeId, mark, twin_in},
};

/// The remote claim for a claim of a home pod.
pub(super) enum ClaimThere {
    Named(String),
    /// No usable claim, with the reason.
    Missing(String),
}

impl Pods<'_> {
    /// The remote claim with the data of the claim `name`. It is found by the volume handle: the twin keeps its name
    /// when the volume is bound to another claim here.
    pub(super) async fn claim_there(
        &self,
        place: &Place,
        home: &RawPod,
        namespace: &str,
        name: &str,
    ) -> Result<ClaimThere, ApiError> {
        let own = home.namespace().unwrap_or_default();
        let here = self.places.home.within::<PersistentVolumeClaim>(&own);
        let there = place.cluster.within::<PersistentVolumeClaim>(namespace);
        let (here, same_name) = tokio::try_join!(here.get(name), there.get(name))?;
        let cluster = &self.cluster;
        let missing = |why| Ok(ClaimThere::Missing(why));
        let usable = |claim: &PersistentVolumeClaim| {
            let named = claim.name_any();
            if claim.metadata.deletion_timestamp.is_some() {
                let why = format!("the claim {namespace}/{named} of the cluster {cluster} is being deleted");
                return Ok(ClaimThere::Missing(why));
            }
            Ok(ClaimThere::Named(named))
        };
        let is_a_twin =
            |claim: &PersistentVolumeClaim| mark::manager(claim.labels()) == Some(mark::MANAGED_BY_US);
        match (&here, &same_name) {
            (None, Some(claim)) if !is_a_twin(claim) => return usable(claim),
            // For a bound claim the uid is not enough: a move may have left another twin behind.
            (Some(here), Some(claim))
                if phase(here).is_none_or(|phase| phase == "Pending")
                    && claim.annotations().get(mark::CLAIM_UID) == here.metadata.uid.as_ref() =>
            {
                return usable(claim);
            }
            _ => {}
        }
        if let Some((id, twin)) = self.volume_of(here.as_ref()).await? {
            if id.cluster != *cluster {
                return missing(format!(
                    "the data of the claim {own}/{name} is in the cluster {}, not in {cluster}: let the pod run there, or move \
                     the volume with liqo-csi move volume {own}/{name} --target-cluster {cluster}",
                    id.cluster
                ));
            }
            if twin.namespace != namespace {
                return missing(format!(
                    "the data of the claim {own}/{name} is in the namespace {} of the cluster {cluster}, and this pod runs in \
                     {namespace} there: offload its namespace under that name, or move the volume with liqo-csi \
                     move volume {own}/{name} --target-cluster ID",
                    twin.namespace
                ));
            }
            let owner = Owner::of_volume(self.places.home.id().clone(), id.name.clone(), id.epoch);
            let found = there.get(&twin.name).await?;
            return match found {
                Some(found) if owner.recognise(found.labels(), found.annotations()).is_ok() => usable(&found),
                _ => missing(format!(
                    "the cluster {cluster} has no twin {twin} of the volume of the claim {own}/{name}"
                )),
            };
        }
        let Some(claim) = same_name else {
            return missing(format!(
                "the cluster {cluster} has no claim {namespace}/{name} (yet): use a storage class of this driver, or create \
                 the claim there"
            ));
        };
        if !is_a_twin(&claim) && self.is_in_both(here.as_ref()).await? {
            return usable(&claim);
        }
        missing(format!(
            "the claim {namespace}/{name} of the cluster {cluster} is not the twin of {own}/{name}: the data of this pod is \
             not there"
        ))
    }

    /// The volume that a claim is bound to, and where its twin is, if it is one of this driver.
    async fn volume_of(
        &self,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Result<Option<(VolumeId, ClaimName)>, ApiError> {
        let Some(claim) = claim.filter(|claim| phase(claim) == Some("Bound")) else {
            return Ok(None);
        };
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let found = match name {
            Some(name) => self.places.home.all::<PersistentVolume>().get(name).await?,
            None => None,
        };
        let Some(spec) = found.and_then(|volume| volume.spec) else {
            return Ok(None);
        };
        // A claim and its PV must name each other: a PV that names another claim is bound to that
        // one.
        let is_its = spec.claim_ref.is_some_and(|of| of.uid == claim.metadata.uid);
        let source = spec.csi.filter(|csi| is_its && csi.driver == DRIVER_NAME);
        Ok(source.and_then(|csi| {
            let twin = twin_in(&csi.volume_attributes.unwrap_or_default())?;
            Some((csi.volume_handle.parse().ok()?, twin))
        }))
    }

    /// The first claim of the pod whose volume is in this cluster: the pod can run in no other one.
    pub(super) async fn claim_with_data(&self, home: &RawPod) -> Result<Option<String>, ApiError> {
        let own = home.namespace().unwrap_or_default();
        let all = self.places.home.within::<PersistentVolumeClaim>(&own);
        for name in claims(&home.json()) {
            let volume = self.volume_of(all.get(&name).await?.as_ref()).await?;
            if volume.is_some_and(|(id, _)| id.cluster == self.cluster) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Whether a pod with this claim can run in any cluster: the claim is bound to a volume of another driver, and an
    /// administrator declared that all clusters have such a claim.
    pub(super) async fn is_anywhere(&self, home: &RawPod, name: &str) -> Result<bool, ApiError> {
        let own = home.namespace().unwrap_or_default();
        let claim = self
            .places
            .home
            .within::<PersistentVolumeClaim>(&own)
            .get(name)
            .await?;
        let is_bound = claim.as_ref().and_then(phase) == Some("Bound");
        Ok(is_bound
            && self.is_in_both(claim.as_ref()).await?
            && self.volume_of(claim.as_ref()).await?.is_none())
    }

    /// Whether an administrator declared that both clusters have a claim of this name.
    async fn is_in_both(&self, claim: Option<&PersistentVolumeClaim>) -> Result<bool, ApiError> {
        let is_declared = |annotations: &std::collections::BTreeMap<String, String>| {
            annotations
                .get(IN_BOTH_CLUSTERS)
                .is_some_and(|value| value == "true")
        };
        let Some(claim) = claim else {
            return Ok(false);
        };
        if is_declared(claim.annotations()) {
            return Ok(true);
        }
        let Some(class) = facts::claim_class(claim).filter(|class| !class.is_empty()) else {
            return Ok(false);
        };
        let found = self.places.home.all::<StorageClass>().get(class).await?;
        Ok(found.is_some_and(|class| is_declared(class.annotations())))
    }

    /// Why the pod waits for something other than claims that its cluster does not provide.
    pub(super) async fn unavailable_there(
        &self,
        home: &RawPod,
        place: &Place,
        namespace: &str,
    ) -> Result<Option<Waiting>, ApiError> {
        if let Some(missing) = self.missing(home, place, namespace).await? {
            return Ok(Some(missing));
        }
        for driver in inline_drivers(&home.json()) {
            match place.cluster.all::<CSIDriver>().get(&driver).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    return Ok(Some(Waiting {
                        reason: "PodNotSupported",
                        message: format!(
                            "it has an inline volume of the CSI driver {driver}, which the cluster {} does not have: install \
                             it there, or keep the pod on nodes of this cluster",
                            self.cluster
                        ),
                    }));
                }
                // Without the right it is unknown here; the remote kubelet reports it.
                Err(error) if error.is_forbidden() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}
