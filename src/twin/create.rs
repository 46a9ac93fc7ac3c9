//! Making a volume: look, decide, do one step, look again, until there is an
//! answer or the caller's time is up. The twin carries all there is to know, so
//! it does not matter which call, or which replica, takes the next step.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::{
    CreateError, Made, Order, Policy, TWIN_NAME, TWIN_NAMESPACE, TWIN_VOLUME, name_of,
    news::News,
    place_of,
    plan::{Plan, plan},
    record::{self, Chosen},
    sight::Sight,
    withdraw::{self, retain, withdraw},
};
use crate::{
    cluster::{ApiError, Cause, Cluster, events::Events, facts, slim},
    observe::{CrashPoint, crash_point},
    placement::{Afterwards, CreateStep, NO_PROVISIONER, Refusal, Withdrawal},
    volume::{VolumeName, mark},
};

/// Makes the volume, or goes on making it.
pub async fn create(
    home: &Cluster,
    policy: &Policy,
    events: &Events,
    order: &Order,
    deadline: Instant,
) -> Result<Made, CreateError> {
    let mut news = News::of(home, name_of(&order.volume));
    loop {
        let mut sight = Box::pin(Sight::take(home, order)).await?;
        let awaited = match sight.step(home, order).await? {
            CreateStep::Create => {
                if make_twin(home, policy, order, &sight).await? == Binder::Ourselves {
                    continue;
                }
                "bound"
            }
            CreateStep::Wait => "bound",
            CreateStep::AwaitGone => {
                if let Some(twin) = &sight.twin {
                    withdraw::let_go(home, twin).await?;
                }
                "gone"
            }
            CreateStep::PreBind { volume } => {
                prebind(home, &volume, &sight).await?;
                "bound"
            }
            CreateStep::Withdraw(why) => {
                tracing::info!(volume = %order.volume, ?why, "withdrawing the twin");
                let mut reason = None;
                if let Some(twin) = &sight.twin {
                    if why == Withdrawal::DriverRefused {
                        reason = last_warning(home, twin).await;
                    }
                    withdraw(home, twin, deadline).await?;
                }
                match why.afterwards() {
                    Afterwards::DecideAgain => continue,
                    Afterwards::Elsewhere(what) => {
                        return Err(CreateError::Elsewhere(with_reason(what, reason)));
                    }
                    Afterwards::Refuse(refusal) => return Err(refused(home, order, refusal)),
                }
            }
            CreateStep::Retain => {
                retain_or_tell(home, events, &sight).await?;
                continue;
            }
            CreateStep::HandOver => {
                if !hand_over(home, &sight).await? {
                    continue;
                }
                return Ok(made(home, &sight));
            }
            CreateStep::Answer => return Ok(made(home, &sight)),
            CreateStep::Elsewhere(reason) => return Err(CreateError::Elsewhere(reason)),
            CreateStep::Refuse(refusal) => return Err(refused(home, order, refusal)),
        };
        if !news.wait(deadline, || wants_attention(home, &order.volume)).await {
            return Err(still_waiting(home, order, awaited).await);
        }
    }
}

/// Who binds a new twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binder {
    /// The real class's provisioner.
    Provisioner,
    /// We do: nobody provisions for its class.
    Ourselves,
}

async fn make_twin(
    home: &Cluster,
    policy: &Policy,
    order: &Order,
    sight: &Sight,
) -> Result<Binder, CreateError> {
    let (class, provisioner, node) = match plan(home, policy, order, sight).await? {
        Plan::Make {
            class,
            provisioner,
            node,
        } => (class, provisioner, node),
        Plan::Unfit(reason) => return Err(CreateError::Elsewhere(reason)),
    };
    let chosen = Chosen {
        class: &class,
        provisioner: provisioner.as_deref(),
        node: node.as_deref(),
    };
    let twin = record::twin(home, order, sight.claim.as_ref(), &chosen);
    crash_point(CrashPoint::BeforeTwinCreate);
    let created = home.stored::<PersistentVolumeClaim>().create(&twin).await;
    crash_point(CrashPoint::AfterTwinCreate);
    match created {
        // None: somebody was faster, most likely ourselves; the next look tells.
        Ok(_) if provisioner.as_deref() == Some(NO_PROVISIONER) => Ok(Binder::Ourselves),
        Ok(_) => Ok(Binder::Provisioner),
        Err(error) if refused_for_good(&error) => Err(CreateError::NotAccepted(error)),
        Err(error) => Err(error.into()),
    }
}

/// Quota, admission, a missing namespace: the object was not stored, and will
/// not be until somebody changes something.
fn refused_for_good(error: &ApiError) -> bool {
    matches!(
        error.cause,
        Cause::Forbidden(_) | Cause::Invalid(_) | Cause::NotFound(_)
    )
}

/// Binds the twin to a volume that nobody provisions: reserves the volume, and
/// tells the twin, or Kubernetes would look at it again only after a while.
async fn prebind(home: &Cluster, volume: &str, sight: &Sight) -> Result<(), CreateError> {
    let Some(twin) = &sight.twin else { return Ok(()) };
    if !reserve(home, volume, twin).await? {
        return Ok(());
    }
    let told = json!({"metadata": {"uid": twin.uid()}, "spec": {"volumeName": volume}});
    crash_point(CrashPoint::BeforeTellVolume);
    let told = home
        .stored::<PersistentVolumeClaim>()
        .merge(&twin.name_any(), &told)
        .await;
    crash_point(CrashPoint::AfterTellVolume);
    unless_conflict(told)?;
    Ok(())
}

/// Reserves a volume for the twin; false if somebody else was faster. Without the
/// uid in `claimRef`: with it, a reservation whose twin went away would turn the
/// PV Released for ever.
async fn reserve(home: &Cluster, volume: &str, twin: &PersistentVolumeClaim) -> Result<bool, ApiError> {
    let volumes = home.all::<PersistentVolume>();
    let Some(found) = volumes.get(volume).await? else {
        return Ok(false);
    };
    if let Some(holder) = found.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) {
        return Ok(holder.namespace == twin.metadata.namespace && holder.name == twin.metadata.name);
    }
    let claim_ref = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": twin.namespace(),
        "name": twin.name_any(),
    });
    let patch = json!({
        "metadata": {"resourceVersion": found.resource_version()},
        "spec": {"claimRef": claim_ref},
    });
    crash_point(CrashPoint::BeforePrebind);
    let reserved = volumes.merge(volume, &patch).await;
    crash_point(CrashPoint::AfterPrebind);
    Ok(unless_conflict(reserved)?.is_some())
}

/// Marks the twin as its user's. False if it is not the twin that was looked at,
/// or on its way out. Its version does not matter: Kubernetes is still writing on
/// it, and whoever withdraws it names the version he saw.
async fn hand_over(home: &Cluster, sight: &Sight) -> Result<bool, CreateError> {
    let Some(twin) = &sight.twin else { return Ok(false) };
    let patch = json!({"metadata": {
        "uid": twin.uid(),
        "annotations": {mark::HANDED_OVER: "true"},
    }});
    crash_point(CrashPoint::BeforeHandOver);
    let marked = home
        .stored::<PersistentVolumeClaim>()
        .merge(&twin.name_any(), &patch)
        .await;
    crash_point(CrashPoint::AfterHandOver);
    let marked = unless_conflict(marked)?;
    Ok(marked.is_some_and(|twin| twin.metadata.deletion_timestamp.is_none()))
}

/// The user asked for Retain; where we lack the right to see to it, he must know.
async fn retain_or_tell(home: &Cluster, events: &Events, sight: &Sight) -> Result<(), CreateError> {
    let Some(volume) = &sight.volume else {
        return Ok(());
    };
    match retain(home, volume).await {
        Err(error) if matches!(error.cause, Cause::Forbidden(_)) => {
            if let Some(claim) = &sight.claim {
                let note = format!("The reclaim policy Retain cannot be applied to the real volume: {error}");
                events
                    .warn(&record::claim_mark(claim), "RetainNotApplied", &note)
                    .await;
            }
            Err(error.into())
        }
        other => Ok(other?),
    }
}

fn made(home: &Cluster, sight: &Sight) -> Made {
    let volume = sight.volume.as_ref();
    let capacity = volume.and_then(|volume| volume.spec.as_ref()?.capacity.as_ref()?.get("storage"));
    let twin = sight.twin.as_ref().map(ResourceExt::name_any).unwrap_or_default();
    Made {
        bytes: capacity.and_then(facts::bytes).unwrap_or_default(),
        topology: sight.topology.clone(),
        context: BTreeMap::from([
            (TWIN_NAMESPACE.to_owned(), home.storage_namespace().to_owned()),
            (TWIN_NAME.to_owned(), twin),
            (
                TWIN_VOLUME.to_owned(),
                volume.map(ResourceExt::name_any).unwrap_or_default(),
            ),
        ]),
    }
}

fn refused(home: &Cluster, order: &Order, refusal: Refusal) -> CreateError {
    CreateError::Refused {
        twin: place_of(home, &order.volume),
        cluster: home.id().to_string(),
        refusal,
    }
}

async fn still_waiting(home: &Cluster, order: &Order, awaited: &'static str) -> CreateError {
    let twins = home.stored::<PersistentVolumeClaim>();
    let why = match twins.get(name_of(&order.volume)).await {
        Ok(Some(twin)) => last_warning(home, &twin).await,
        _ => None,
    };
    CreateError::StillWaiting {
        twin: place_of(home, &order.volume),
        cluster: home.id().to_string(),
        awaited,
        why,
    }
}

/// The newest warning about a twin: what the real provisioner says, the user must hear.
async fn last_warning(home: &Cluster, twin: &PersistentVolumeClaim) -> Option<String> {
    let about = format!("involvedObject.uid={},type=Warning", twin.uid()?);
    let warnings = home.stored::<Event>().select(None, Some(&about)).await.ok()?;
    let newest = warnings.into_iter().max_by_key(|warning| {
        let seen = warning.last_timestamp.as_ref().map(|time| time.0);
        let noted = warning.event_time.as_ref().map(|time| time.0);
        seen.max(noted)
    })?;
    newest.message.map(|message| message.trim().to_owned())
}

fn with_reason(what: String, reason: Option<String>) -> String {
    match reason {
        Some(reason) => format!("{what}: {reason}"),
        None => what,
    }
}

/// Somebody changed the object meanwhile: nothing was done, the next look tells.
fn unless_conflict<T>(outcome: Result<Option<T>, ApiError>) -> Result<Option<T>, ApiError> {
    match outcome {
        Err(error) if error.is_conflict() => Ok(None),
        other => other,
    }
}

/// Whether something has to be done: a twin on its way is changed several times before that.
fn wants_attention(home: &Cluster, volume: &VolumeName) -> bool {
    let volumes = home.views().volumes.of_topic(name_of(volume));
    if volumes.iter().any(|volume| !volume.twin_uid.is_empty()) {
        return true;
    }
    let twin = home.views().twins.get(&place_of(home, volume));
    twin.is_none_or(|twin| twin.phase != slim::Phase::Pending || twin.deleting || twin.node.is_none())
}
