//! Checks whether the API servers would accept the objects of a move (quota, Pod Security, rights, webhooks),
//! by a dry run for each kind of object. Nothing is created.

use std::net::Ipv4Addr;

use k8s_openapi::{
    ByteString,
    api::core::v1::{PersistentVolume, Secret},
};
use kube::ResourceExt;

use super::{
    ClusterHelpers, GateError, HelperError, MoveRequest, MovedVolume, certificates,
    names::{Names, Role},
    shadow::{PodObject, ShadowPod},
    side::MoverSide,
    target, volume,
};
use crate::{
    api::volume_move::Warm,
    cluster::{ApiError, Cause},
    placement::moving::{Live, Side},
    volume::moving::TargetMark,
};

/// An address that is never used (RFC 5737): the address of the target is not known yet.
const EXAMPLE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

impl ClusterHelpers {
    /// What blocks the move: options that are not possible, and objects that API servers refuse in a dry run.
    pub(super) async fn refused(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
    ) -> Result<Vec<String>, GateError> {
        let mut found = Vec::new();
        if of.warm == Warm::Snapshot {
            found.push(HelperError::FromSnapshot.to_string());
        }
        let outer = volume::outer(moved).await?;
        if let (Warm::Live, Some(cold)) = (of.warm, super::cold(moved, of, &outer)) {
            found.push(HelperError::NotLive(cold).to_string());
        }
        found.extend(Box::pin(self.twin_refused(moved, of)).await?);
        for side in [Side::Source, Side::Target] {
            found.extend(Box::pin(self.mover_refused(moved, of, side, &outer)).await?);
        }
        for tried in Box::pin(moved.try_gate_there()).await? {
            found.extend(refusal(tried)?);
        }
        Ok(found)
    }

    async fn twin_refused(&self, moved: &MovedVolume, of: &MoveRequest) -> Result<Option<String>, GateError> {
        let mark = TargetMark {
            by: moved.by.clone(),
            epoch: moved.target.id.epoch,
        };
        let wanted = match target::wanted(moved, &self.settings.policy, of, &mark).await {
            Ok(Some(wanted)) => wanted,
            Ok(None) => return Ok(None),
            Err(GateError::Target(error)) => return Ok(Some(error.to_string())),
            Err(error) => return Err(error),
        };
        let twins = moved.site(Side::Target)?.twins();
        Ok(refusal(twins.try_create(&wanted).await)?)
    }

    async fn mover_refused(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        side: Side,
        outer: &PersistentVolume,
    ) -> Result<Vec<String>, GateError> {
        let side_objects = match MoverSide::find(moved, side, &self.settings, Some(outer)).await? {
            Live::Known(side_objects) => side_objects,
            // The gate reports the unreachable cluster.
            Live::Unknown(_) => return Ok(Vec::new()),
        };
        let Some(cluster) = side_objects.cluster else {
            return Ok(Vec::new());
        };
        let name = Names::of(moved).of_role(Role::Mover(side));
        let no_secret = Secret::default();
        let Some(mut wanted) = side_objects.mover(of, Some(EXAMPLE.into()), &no_secret) else {
            return Ok(Vec::new());
        };
        // A mover that is created after the drain has no pods whose level it could have.
        wanted.level = None;
        let pod = wanted.made(&self.settings, &name);
        let secret_owner = PodObject::Pod(&pod).secret_owner();
        let within = side_objects.namespace;
        let tried = match side_objects.origin {
            Some(origin) => {
                let shadow = ShadowPod::making(pod, origin);
                cluster.within(within).try_create(&shadow).await
            }
            None => cluster.within(within).try_create(&pod).await,
        };
        let mut found: Vec<String> = refusal(tried)?.into_iter().collect();
        let Some(secret_owner) = secret_owner else {
            return Ok(found);
        };
        let data = [("key.pem".to_owned(), ByteString(Vec::new()))].into();
        let mut secret = certificates::secret_of_pod(moved, side, &secret_owner, data);
        // The owner of the Secret, the pod, has no uid yet.
        secret.metadata.owner_references = None;
        let namespace = secret.namespace().unwrap_or_default();
        let tried = cluster.within::<Secret>(&namespace).try_create(&secret).await;
        found.extend(refusal(tried)?);
        Ok(found)
    }
}

/// Why an object would be rejected. An existing object of that name is reported elsewhere.
fn refusal(tried: Result<(), ApiError>) -> Result<Option<String>, ApiError> {
    match tried {
        Ok(()) => Ok(None),
        Err(error) if error.is_conflict() => Ok(None),
        Err(error) if error.is_refusal() || matches!(error.cause, Cause::NotFound(_)) => {
            Ok(Some(error.to_string()))
        }
        Err(error) => Err(error),
    }
}
