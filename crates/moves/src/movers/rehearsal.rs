//! What speaks against the objects of a move, as the API servers say that are to take them: quota,
//! Pod Security, rights and webhooks, asked in a dry run of every kind of object. Nothing is made.

use std::net::Ipv4Addr;

use k8s_openapi::{
    ByteString,
    api::core::v1::{PersistentVolume, Secret},
};
use kube::ResourceExt;

use super::{
    ClusterHelpers, GateError, HelperError, MoveRequest, MovedVolume, certificates,
    names::{Names, Role},
    shadow::{ShadowPod, Written},
    side::Ground,
    target, volume,
};
use crate::{
    api::volume_move::Warm,
    cluster::{ApiError, Cause},
    placement::moving::{Live, Side},
    volume::moving::TargetMark,
};

/// An address that nobody has (RFC 5737): where the target will be is not known yet.
const EXAMPLE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

impl ClusterHelpers {
    /// All that is refused.
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
        let ground = match Ground::find(moved, side, &self.settings, Some(outer)).await? {
            Live::Known(ground) => ground,
            // That it does not answer is seen by the gate.
            Live::Silent(_) => return Ok(Vec::new()),
        };
        let Some(cluster) = ground.cluster else {
            return Ok(Vec::new());
        };
        let name = Names::of(moved).of_role(Role::Mover(side));
        let nobody = Secret::default();
        let Some(wanted) = ground.mover(of, Some(EXAMPLE.into()), &nobody) else {
            return Ok(Vec::new());
        };
        let pod = wanted.made(&self.settings, &name);
        let keeper = Written::Pod(&pod).keeper();
        let within = ground.namespace;
        let tried = match ground.origin {
            Some(origin) => {
                let shadow = ShadowPod::making(pod, origin);
                cluster.within(within).try_create(&shadow).await
            }
            None => cluster.within(within).try_create(&pod).await,
        };
        let mut found: Vec<String> = refusal(tried)?.into_iter().collect();
        let Some(keeper) = keeper else {
            return Ok(found);
        };
        let data = [("key.pem".to_owned(), ByteString(Vec::new()))].into();
        let mut secret = certificates::secret_of_pod(moved, side, &keeper, data);
        // The pod that it would go with has no uid.
        secret.metadata.owner_references = None;
        let namespace = secret.namespace().unwrap_or_default();
        let tried = cluster.within::<Secret>(&namespace).try_create(&secret).await;
        found.extend(refusal(tried)?);
        Ok(found)
    }
}

/// Why an object would not be taken. That one of its name is there is looked at elsewhere.
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
