//! Creates the missing objects of one side, and deletes them. Each write may be the last one before a crash:
//! created objects are found again, and objects that belong to a pod have its uid as owner.

use std::{fmt::Debug, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{
    ClusterHelpers, GateError, HelperError, MoveRequest, certificates,
    names::{Names, Role},
    shadow::{PodObject, SecretOwner, ShadowPod, shadow_uid},
    side::{MoverSide, PodState, Until, is_deleting},
    volume,
};
use crate::{
    cluster::{ApiError, Cluster, Objects, Precondition, unless_conflict},
    gate::Applied,
    observe::crash::{self, Step},
    placement::moving::Side,
};

/// Random part of a Secret's name: the Secret of an earlier pod may be in deletion.
const NONCE_DIGITS: usize = 8;

impl MoverSide<'_> {
    /// Creates what is missing; what has to be replaced is only deleted.
    pub(super) async fn make(
        &self,
        helpers: &ClusterHelpers,
        of: &MoveRequest,
        target: Option<IpAddr>,
    ) -> Result<Applied, GateError> {
        if self.loses_volume() {
            return self.remove(helpers, Until::Again).await;
        }
        if self.is_leaving() {
            return Ok(Applied::ChangedMeanwhile);
        }
        let Some(cluster) = self.cluster else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let issued = match self.issued().await? {
            Some(issued) if certificates::is_old(&issued, self.renewal, Timestamp::now()) => {
                return self.forget_certificates(&issued).await;
            }
            Some(issued) => issued,
            None => self.issue().await?,
        };
        if self.is_home && !Box::pin(self.create_volume()).await? {
            return Ok(Applied::ChangedMeanwhile);
        }
        let Some(wanted) = self.mover(of, target, &issued) else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let (settings, role) = (&helpers.settings, Role::Mover(self.side));
        let state = self.mover_state(helpers, &wanted.fingerprint(settings));
        let pod = |secret: &str| wanted.made(settings, secret);
        let made = self.make_pod(helpers, cluster, role, state, pod).await?;
        if let PodChange::Created(secret_owner) = &made {
            let secret = certificates::of_pod(self.moved, self.side, &issued, secret_owner);
            self.create_secret(helpers, cluster, secret_owner, secret).await?;
        }
        let relayed = match self.side {
            Side::Target => self.make_relay(helpers, of).await?,
            Side::Source => false,
        };
        Ok(if relayed || !matches!(made, PodChange::Unchanged) {
            Applied::Done
        } else {
            Applied::ChangedMeanwhile
        })
    }

    async fn make_relay(&self, helpers: &ClusterHelpers, of: &MoveRequest) -> Result<bool, GateError> {
        let (relay, settings) = (self.relay(of)?, &helpers.settings);
        let fingerprint = relay.as_ref().map(|relay| relay.fingerprint(settings));
        let state = self.pod_state(helpers, &self.relays, &[], fingerprint.as_deref());
        let home = &self.moved.home;
        let Some(relay) = relay else {
            // The relay was created for a route that is no longer used.
            let PodState::Outdated(written) = state else {
                return Ok(false);
            };
            return Ok(delete_written(home, self.ours, written).await?);
        };
        let pod = |secret: &str| relay.made(settings, secret);
        let made = self.make_pod(helpers, home, Role::Relay, state, pod).await?;
        if let PodChange::Created(secret_owner) = &made {
            let kubeconfigs = self.kubeconfigs()?;
            let secret = certificates::secret_of_pod(self.moved, self.side, secret_owner, kubeconfigs);
            self.create_secret(helpers, home, secret_owner, secret).await?;
        }
        Ok(!matches!(made, PodChange::Unchanged))
    }

    /// Takes one step for a pod: deletes an outdated one, or creates a missing one. The caller creates its
    /// Secret, which is owned by the created object.
    async fn make_pod(
        &self,
        helpers: &ClusterHelpers,
        cluster: &Cluster,
        role: Role,
        state: PodState<'_>,
        pod: impl Fn(&str) -> Pod,
    ) -> Result<PodChange, GateError> {
        let secret_owner = match state {
            PodState::Missing => {
                let nonce = Uuid::new_v4().simple().to_string();
                let name = Names::of(self.moved).of_role(role);
                let wanted = pod(&format!("{name}-{}", &nonce[..NONCE_DIGITS]));
                self.write_pod(cluster, role, wanted).await?
            }
            PodState::Outdated(written) => {
                if let Some(secret_owner) = written.secret_owner() {
                    helpers.forget_secret(&secret_owner.owner.uid);
                }
                delete_written(cluster, self.namespace_of(role), written).await?;
                return Ok(PodChange::Changed);
            }
            PodState::MissingSecret(secret_owner) => Some(secret_owner),
            PodState::Waiting(_) | PodState::Running => return Ok(PodChange::Unchanged),
        };
        Ok(secret_owner.map_or(PodChange::Changed, PodChange::Created))
    }

    async fn write_pod(
        &self,
        cluster: &Cluster,
        role: Role,
        pod: Pod,
    ) -> Result<Option<SecretOwner>, GateError> {
        let namespace = self.namespace_of(role);
        Ok(match self.origin {
            Some(origin) if role != Role::Relay => {
                let shadow = ShadowPod::making(pod, origin);
                let written = self.written(&cluster.within(namespace), &shadow).await?;
                PodObject::Shadow(&written).secret_owner()
            }
            _ => {
                let written = self.written(&cluster.within(namespace), &pod).await?;
                PodObject::Pod(&written).secret_owner()
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
            None => self.existing(objects, &wanted.name_any()).await,
        }
    }

    fn namespace_of(&self, role: Role) -> &str {
        match role {
            Role::Mover(_) => self.namespace,
            Role::Relay => self.ours,
        }
    }

    /// Creates the Secret that a pod waits for. An existing one of this name belongs to this pod.
    async fn create_secret(
        &self,
        helpers: &ClusterHelpers,
        cluster: &Cluster,
        secret_owner: &SecretOwner,
        secret: Secret,
    ) -> Result<(), GateError> {
        let secrets = cluster.within::<Secret>(&secret_owner.namespace);
        crash::around(Step::MoveMakePodSecret, secrets.create(&secret)).await?;
        helpers.add_secret(secret_owner.owner.uid.clone());
        Ok(())
    }

    async fn issue(&self) -> Result<Secret, GateError> {
        let wanted = certificates::issued(self.moved, self.ours)?;
        let secrets = self.moved.home.within::<Secret>(self.ours);
        let created = crash::around(Step::MoveIssue, secrets.create(&wanted)).await?;
        match created {
            Some(created) => Ok(created),
            None => self.existing(&secrets, &wanted.name_any()).await,
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

    /// Creates the PV of a mover at home, and its claim. False if the twin is not bound yet.
    async fn create_volume(&self) -> Result<bool, GateError> {
        let home = &self.moved.home;
        let volume = if let Some(volume) = &self.volume {
            if self.has_earlier_claim() {
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
                None => self.existing(&volumes, &wanted.name_any()).await?,
            }
        };
        if self.claim.is_none() {
            let wanted = volume::claim(self.moved, self.side, self.ours, &volume);
            let claims = home.within::<PersistentVolumeClaim>(self.ours);
            let created = crash::around(Step::MoveMakeMoverClaim, claims.create(&wanted)).await?;
            if created.is_none() {
                self.existing(&claims, &wanted.name_any()).await?;
            }
        }
        Ok(true)
    }

    /// The existing object of this name, if it was created for this side.
    async fn existing<K>(&self, objects: &Objects<K>, name: &str) -> Result<K, GateError>
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

    /// Deletes what exists and may be deleted now.
    pub(super) async fn remove(&self, helpers: &ClusterHelpers, until: Until) -> Result<Applied, GateError> {
        let mut is_done = false;
        let home = &self.moved.home;
        // If the cluster is no longer declared, only objects at home can be deleted.
        let cluster = self.cluster.unwrap_or(home);
        let movers = self.movers.iter().filter(|pod| shadow_uid(pod).is_none());
        let movers = movers.filter(|pod| !is_deleting(*pod)).map(PodObject::Pod);
        let shadows = self.shadows.iter().filter(|shadow| !is_deleting(*shadow));
        let relays = self
            .relays
            .iter()
            .filter(|pod| !is_deleting(*pod))
            .map(PodObject::Pod);
        let there = movers.chain(shadows.map(PodObject::Shadow));
        let there = there.map(|written| (cluster, self.namespace, written));
        for (cluster, namespace, written) in there.chain(relays.map(|pod| (home, self.ours, pod))) {
            if let Some(secret_owner) = written.secret_owner() {
                helpers.forget_secret(&secret_owner.owner.uid);
            }
            is_done |= delete_written(cluster, namespace, written).await?;
        }
        if let Some(claim) = self.claim.as_ref().filter(|claim| !is_deleting(*claim)) {
            let claims = home.within::<PersistentVolumeClaim>(self.ours);
            is_done |= delete(&claims, claim, Step::MoveDeleteMoverClaim).await?;
        }
        if let Some(volume) = self.volume.as_ref().filter(|_| self.volume_may_go(until)) {
            let volumes = home.all::<PersistentVolume>();
            is_done |= delete(&volumes, volume, Step::MoveDeleteMoverVolume).await?;
        }
        if let Some(issued) = self.certificates.as_ref().filter(|_| until == Until::End) {
            is_done |= self.forget_certificates(issued).await? == Applied::Done;
        }
        Ok(if is_done {
            Applied::Done
        } else {
            Applied::ChangedMeanwhile
        })
    }
}

/// The result of a step for a pod.
enum PodChange {
    Unchanged,
    Changed,
    /// A pod that needs a Secret.
    Created(SecretOwner),
}

async fn delete_written(
    cluster: &Cluster,
    namespace: &str,
    written: PodObject<'_>,
) -> Result<bool, ApiError> {
    match written {
        PodObject::Pod(pod) => delete(&cluster.within(namespace), pod, Step::MoveDeletePod).await,
        PodObject::Shadow(shadow) => delete(&cluster.within(namespace), shadow, Step::MoveDeletePod).await,
    }
}

/// Deletes exactly this object; false if another one has its name by now.
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
