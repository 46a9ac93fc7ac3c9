//! Making what one side lacks, and removing what is there. Each write may be the last one before a
//! crash: what was made is found again, and what goes with a pod names its uid.

use std::{fmt::Debug, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{
    ClusterHelpers, GateError, HelperError, MoveRequest, certificates,
    names::{Names, Role},
    shadow::{Keeper, ShadowPod, Written, shadow_of},
    side::{Ground, PodNow, is_going},
    volume,
};
use crate::{
    cluster::{ApiError, Cluster, Objects, Precondition, unless_conflict},
    gate::Applied,
    observe::crash::{self, Step},
    placement::moving::Side,
};

/// Of a Secret's name, so that it is never one that still goes with an earlier pod.
const NONCE_DIGITS: usize = 8;

impl Ground<'_> {
    /// Makes what is missing. What has to go first is only deleted.
    pub(super) async fn make(
        &self,
        helpers: &ClusterHelpers,
        of: &MoveRequest,
        target: Option<IpAddr>,
    ) -> Result<Applied, GateError> {
        if self.is_leaving() {
            return Ok(Applied::ChangedMeanwhile);
        }
        let Some(cluster) = self.cluster else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let issued = match self.issued().await? {
            Some(issued) if certificates::is_old(&issued, Timestamp::now()) => {
                return self.forget_certificates(&issued).await;
            }
            Some(issued) => issued,
            None => self.issue().await?,
        };
        if self.is_home && !Box::pin(self.has_volume()).await? {
            return Ok(Applied::ChangedMeanwhile);
        }
        let Some(wanted) = self.mover(of, target, &issued) else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let (settings, role) = (&helpers.settings, Role::Mover(self.side));
        let state = self.mover_now(helpers, &wanted.form(settings));
        let pod = |secret: &str| wanted.made(settings, secret);
        let made = self.make_pod(helpers, cluster, role, state, pod).await?;
        if let Made::New(keeper) = &made {
            let secret = certificates::of_pod(self.moved, self.side, &issued, keeper);
            self.equip(helpers, cluster, keeper, secret).await?;
        }
        let relayed = match self.side {
            Side::Target => self.make_relay(helpers, of).await?,
            Side::Source => false,
        };
        Ok(if relayed || !matches!(made, Made::Nothing) {
            Applied::Done
        } else {
            Applied::ChangedMeanwhile
        })
    }

    async fn make_relay(&self, helpers: &ClusterHelpers, of: &MoveRequest) -> Result<bool, GateError> {
        let (relay, settings) = (self.relay(of)?, &helpers.settings);
        let form = relay.as_ref().map(|relay| relay.form(settings));
        let state = self.pod_now(helpers, &self.relays, &[], form.as_deref());
        let home = &self.moved.home;
        let Some(relay) = relay else {
            // It was made for a route that is not taken any more.
            let PodNow::Outdated(written) = state else {
                return Ok(false);
            };
            return Ok(delete_written(home, self.ours, written).await?);
        };
        let pod = |secret: &str| relay.made(settings, secret);
        let made = self.make_pod(helpers, home, Role::Relay, state, pod).await?;
        if let Made::New(keeper) = &made {
            let kubeconfigs = self.kubeconfigs()?;
            let secret = certificates::secret_of_pod(self.moved, self.side, keeper, kubeconfigs);
            self.equip(helpers, home, keeper, secret).await?;
        }
        Ok(!matches!(made, Made::Nothing))
    }

    /// One step for a pod: it is deleted if it is to be replaced, and else made. Its Secret is the
    /// caller's matter, and goes with what was written.
    async fn make_pod(
        &self,
        helpers: &ClusterHelpers,
        cluster: &Cluster,
        role: Role,
        state: PodNow<'_>,
        pod: impl Fn(&str) -> Pod,
    ) -> Result<Made, GateError> {
        let keeper = match state {
            PodNow::Missing => {
                let nonce = Uuid::new_v4().simple().to_string();
                let name = Names::of(self.moved).of_role(role);
                let wanted = pod(&format!("{name}-{}", &nonce[..NONCE_DIGITS]));
                self.write_pod(cluster, role, wanted).await?
            }
            PodNow::Outdated(written) => {
                if let Some(keeper) = written.keeper() {
                    helpers.unequip(&keeper.owner.uid);
                }
                delete_written(cluster, self.namespace_of(role), written).await?;
                return Ok(Made::Something);
            }
            PodNow::Unequipped(keeper) => Some(keeper),
            PodNow::Waits(_) | PodNow::Runs => return Ok(Made::Nothing),
        };
        Ok(keeper.map_or(Made::Something, Made::New))
    }

    async fn write_pod(&self, cluster: &Cluster, role: Role, pod: Pod) -> Result<Option<Keeper>, GateError> {
        let namespace = self.namespace_of(role);
        Ok(match self.origin {
            Some(origin) if role != Role::Relay => {
                let shadow = ShadowPod::making(pod, origin);
                let written = self.written(&cluster.within(namespace), &shadow).await?;
                Written::Shadow(&written).keeper()
            }
            _ => {
                let written = self.written(&cluster.within(namespace), &pod).await?;
                Written::Pod(&written).keeper()
            }
        })
    }

    async fn written<K>(&self, objects: &Objects<K>, wanted: &K) -> Result<K, GateError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let created = crash::around(Step::MoveMakePod, objects.create(wanted)).await?;
        match created {
            Some(created) => Ok(created),
            None => self.made_before(objects, &wanted.name_any()).await,
        }
    }

    fn namespace_of(&self, role: Role) -> &str {
        match role {
            Role::Mover(_) => self.namespace,
            Role::Relay => self.ours,
        }
    }

    /// Makes the Secret that a pod waits for. One of this name is this pod's.
    async fn equip(
        &self,
        helpers: &ClusterHelpers,
        cluster: &Cluster,
        keeper: &Keeper,
        secret: Secret,
    ) -> Result<(), GateError> {
        let secrets = cluster.within::<Secret>(&keeper.namespace);
        crash::around(Step::MoveMakePodSecret, secrets.create(&secret)).await?;
        helpers.equip(keeper.owner.uid.clone());
        Ok(())
    }

    async fn issue(&self) -> Result<Secret, GateError> {
        let wanted = certificates::issued(self.moved, self.ours)?;
        let secrets = self.moved.home.within::<Secret>(self.ours);
        let created = crash::around(Step::MoveIssue, secrets.create(&wanted)).await?;
        match created {
            Some(created) => Ok(created),
            None => self.made_before(&secrets, &wanted.name_any()).await,
        }
    }

    async fn forget_certificates(&self, issued: &Secret) -> Result<Applied, GateError> {
        let secrets = self.moved.home.within::<Secret>(self.ours);
        let deleted = delete(&secrets, issued, Step::MoveForgetCertificates);
        Ok(if deleted.await? {
            Applied::Done
        } else {
            Applied::ChangedMeanwhile
        })
    }

    /// Makes the PV of a mover at home, and its claim. False if the twin is not bound yet.
    async fn has_volume(&self) -> Result<bool, GateError> {
        let home = &self.moved.home;
        let volume = if let Some(volume) = &self.volume {
            if self.names_an_earlier_claim() {
                let patch = volume::naming_no_uid(volume);
                let (volumes, name) = (home.all::<PersistentVolume>(), volume.name_any());
                let freed = crash::around(Step::MoveMakeMoverVolume, volumes.merge(&name, &patch)).await;
                unless_conflict(freed)?;
            }
            volume.clone()
        } else {
            let Ok(wanted) = volume::volume(self.moved, self.side, self.ours).await? else {
                return Ok(false);
            };
            let volumes = home.all::<PersistentVolume>();
            match crash::around(Step::MoveMakeMoverVolume, volumes.create(&wanted)).await? {
                Some(created) => created,
                None => self.made_before(&volumes, &wanted.name_any()).await?,
            }
        };
        if self.claim.is_none() {
            let wanted = volume::claim(self.moved, self.side, self.ours, &volume);
            let claims = home.within::<PersistentVolumeClaim>(self.ours);
            let created = crash::around(Step::MoveMakeMoverClaim, claims.create(&wanted)).await?;
            if created.is_none() {
                self.made_before(&claims, &wanted.name_any()).await?;
            }
        }
        Ok(true)
    }

    /// What has the name already, if it was made for this side.
    async fn made_before<K>(&self, objects: &Objects<K>, name: &str) -> Result<K, GateError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let found = objects.get(name).await?;
        let names = Names::of(self.moved);
        let side = self.side;
        let is_issued = name == names.certificates();
        let ours = |found: &K| names.is_ours(found, if is_issued { Side::Target } else { side });
        let foreign = || HelperError::Foreign {
            kind: K::kind(&()).into_owned(),
            name: name.to_owned(),
            cluster: self
                .cluster
                .map_or_else(String::new, |cluster| cluster.id().to_string()),
        };
        Ok(found.filter(ours).ok_or_else(foreign)?)
    }

    /// Deletes what is there and may go now.
    pub(super) async fn remove(&self, helpers: &ClusterHelpers) -> Result<Applied, GateError> {
        let mut is_done = false;
        let home = &self.moved.home;
        // Of a cluster that is gone only what is here can be deleted.
        let cluster = self.cluster.unwrap_or(home);
        let movers = self.movers.iter().filter(|pod| shadow_of(pod).is_none());
        let movers = movers.filter(|pod| !is_going(*pod)).map(Written::Pod);
        let shadows = self.shadows.iter().filter(|shadow| !is_going(*shadow));
        let relays = self.relays.iter().filter(|pod| !is_going(*pod)).map(Written::Pod);
        let there = movers.chain(shadows.map(Written::Shadow));
        let there = there.map(|written| (cluster, self.namespace, written));
        for (cluster, namespace, written) in there.chain(relays.map(|pod| (home, self.ours, pod))) {
            if let Some(keeper) = written.keeper() {
                helpers.unequip(&keeper.owner.uid);
            }
            is_done |= delete_written(cluster, namespace, written).await?;
        }
        if let Some(claim) = self.claim.as_ref().filter(|claim| !is_going(*claim)) {
            let claims = home.within::<PersistentVolumeClaim>(self.ours);
            is_done |= delete(&claims, claim, Step::MoveDeleteMoverClaim).await?;
        }
        if let Some(volume) = self.volume.as_ref().filter(|_| self.volume_may_go()) {
            let volumes = home.all::<PersistentVolume>();
            is_done |= delete(&volumes, volume, Step::MoveDeleteMoverVolume).await?;
        }
        if let Some(issued) = &self.certificates {
            is_done |= self.forget_certificates(issued).await? == Applied::Done;
        }
        Ok(if is_done {
            Applied::Done
        } else {
            Applied::ChangedMeanwhile
        })
    }
}

/// What making a pod came to.
enum Made {
    Nothing,
    Something,
    /// A pod that waits for a Secret.
    New(Keeper),
}

async fn delete_written(cluster: &Cluster, namespace: &str, written: Written<'_>) -> Result<bool, ApiError> {
    match written {
        Written::Pod(pod) => delete(&cluster.within(namespace), pod, Step::MoveDeletePod).await,
        Written::Shadow(shadow) => delete(&cluster.within(namespace), shadow, Step::MoveDeletePod).await,
    }
}

/// Deletes exactly this object; false if it is another one by now.
async fn delete<K>(objects: &Objects<K>, object: &K, step: Step) -> Result<bool, ApiError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let exactly = Precondition {
        uid: object.uid().unwrap_or_default(),
        resource_version: None,
    };
    let deleted = crash::around(step, objects.delete(&object.name_any(), exactly)).await;
    Ok(unless_conflict(deleted.map(Some))?.is_some())
}
