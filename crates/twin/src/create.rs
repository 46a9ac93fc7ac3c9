//! Making a volume: look, decide, do one step, look again, until there is an
//! answer or the caller's time is up. The twin carries all there is to know, so
//! it does not matter which call, or which replica, takes the next step.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::{
    CreateError, CreateRequest, Policy, ProvisionedVolume, Site, TWIN_CLASS, TWIN_NAME, TWIN_NAMESPACE,
    TWIN_VOLUME, adopt,
    attributes::{check, mapped},
    claim_copy::remove_copy,
    finalizer::remove_finalizer,
    moves::is_of_move,
    not_taken::{not_taken, note_refusal},
    observation::Observation,
    plan::plan,
    planned::Plan,
    reading,
    reclaim::retain,
    record::{self, Chosen},
    site, source, target,
    waiter::TwinWaiter,
    withdraw::withdraw,
};
use crate::{
    cluster::{ApiError, Cause, Cluster, events::Events, facts, unless_conflict},
    fleet::Registry,
    observe::crash::{self, Step},
    placement::{Afterwards, CreateStep, NO_PROVISIONER, Phase, Refusal, Withdrawal},
    topology::Segments,
    volume::mark,
};

/// Makes the volume, or goes on making it.
pub async fn create(
    home: &Cluster,
    registry: &Registry,
    policy: &Policy,
    events: &Events,
    request: &CreateRequest,
    deadline: Instant,
) -> Result<ProvisionedVolume, CreateError> {
    let mut claim = target::claim(home, request).await?;
    let site = Box::pin(site::find_new(home, registry, request, &claim)).await?;
    let mut waiter = TwinWaiter::of(&site);
    loop {
        let mut observation = Box::pin(Observation::take(&site, registry, request, claim)).await?;
        match take_step(
            &site,
            registry,
            policy,
            events,
            request,
            deadline,
            &mut observation,
        )
        .await
        {
            Ok(Progress::Done(made)) => return Ok(made),
            Ok(Progress::Again) => {}
            Ok(Progress::Await(what)) => {
                if !waiter.wait(deadline, || wants_attention(&site)).await {
                    return Err(still_waiting(&site, what).await);
                }
            }
            Err(error) => {
                match &error {
                    CreateError::Elsewhere(_) => note_refusal(&site, policy, request, &observation).await,
                    CreateError::SourceElsewhere { cluster, .. } => {
                        source::note_miss(home, observation.claim.as_ref(), cluster).await;
                    }
                    _ => {}
                }
                return Err(error);
            }
        }
        claim = target::claim(home, request).await?;
    }
}

/// How far a step has brought the volume.
enum Progress {
    /// The answer.
    Done(ProvisionedVolume),
    /// Another look.
    Again,
    /// Another look when something has changed; this is what is waited for.
    Await(&'static str),
}

async fn take_step(
    site: &Site,
    registry: &Registry,
    policy: &Policy,
    events: &Events,
    request: &CreateRequest,
    deadline: Instant,
    observation: &mut Observation,
) -> Result<Progress, CreateError> {
    if observation.twin.as_ref().is_some_and(reading::is_releasing) {
        return Err(refused(site, Refusal::Releasing));
    }
    if let Some(twin) = &observation.twin
        && is_of_move(site.home(), twin).await
    {
        return Err(refused(site, Refusal::Moves));
    }
    Ok(match observation.step(site, request).await? {
        CreateStep::Create if adopt::wish(observation.claim.as_ref()).is_some() => {
            let wanted = adopt::wish(observation.claim.as_ref()).unwrap_or_default();
            let wanted = wanted.to_owned();
            Box::pin(adopt::adopt(site, request, observation, wanted)).await?;
            Progress::Again
        }
        CreateStep::Create => {
            let make = make_twin(site, registry, policy, events, request, observation);
            match Box::pin(make).await? {
                Next::Look => Progress::Again,
                Next::Binding => Progress::Await("bound"),
            }
        }
        CreateStep::RemoveCopy => {
            if let Some(copy) = &observation.copy {
                remove_copy(site, copy).await?;
            }
            Progress::Again
        }
        CreateStep::Wait => Progress::Await("bound"),
        CreateStep::AwaitGone => {
            if let Some(twin) = &observation.twin {
                remove_finalizer(site.cluster(), twin).await?;
            }
            Progress::Await("gone")
        }
        CreateStep::PreBind { volume } => {
            prebind(site, &volume, observation).await?;
            Progress::Await("bound")
        }
        CreateStep::Withdraw(why) => {
            take_back(site, request, observation, why, deadline).await?;
            Progress::Again
        }
        CreateStep::Retain => {
            retain_or_tell(site, events, request, observation).await?;
            Progress::Again
        }
        CreateStep::HandOver => {
            if hand_over(site, observation).await? {
                Progress::Done(made(site, request, observation))
            } else {
                Progress::Again
            }
        }
        CreateStep::Answer => Progress::Done(made(site, request, observation)),
        CreateStep::Refuse(refusal) => return Err(refused(site, refusal)),
    })
}

/// Withdraws the twin; an error if that ends the matter. A twin that changed and
/// still stands ends nothing: no final code is answered then.
async fn take_back(
    site: &Site,
    request: &CreateRequest,
    observation: &Observation,
    why: Withdrawal,
    deadline: Instant,
) -> Result<(), CreateError> {
    tracing::info!(volume = %request.volume, twin = site.place(), cluster = site.cluster_name(), ?why, "withdrawing the twin");
    let mut reason = None;
    if let Some(twin) = &observation.twin {
        if why == Withdrawal::DriverRefused {
            reason = last_warning(site, twin).await;
        }
        if !withdraw(site.cluster(), twin, deadline).await? {
            return Ok(());
        }
    }
    match why.afterwards() {
        Afterwards::DecideAgain => Ok(()),
        Afterwards::Elsewhere(what) => Err(CreateError::Elsewhere(with_reason(what, reason))),
        Afterwards::Refuse(refusal) => Err(refused(site, refusal)),
    }
}

/// What to do after a twin was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Wait for the real class's provisioner.
    Binding,
    /// Look again: it is ours to bind, or may be answered for.
    Look,
}

async fn make_twin(
    site: &Site,
    registry: &Registry,
    policy: &Policy,
    events: &Events,
    request: &CreateRequest,
    observation: &Observation,
) -> Result<Next, CreateError> {
    // First: in another cluster than its source's it would not be made, whatever the plan.
    let source = source::within_reach(site, registry, request, observation).await?;
    let planned = match plan(site, policy, request, observation).await? {
        Plan::Make(planned) => planned,
        Plan::Unfit(reason) => return Err(CreateError::Elsewhere(reason)),
    };
    let attributes = request
        .spec
        .attributes
        .as_deref()
        .map(|named| mapped(site, named));
    if let Some(class) = attributes {
        check::<CreateError>(site, class, planned.provisioner.as_deref()).await?;
    }
    let source = match source {
        Some(source) => Some(Box::pin(source::copied(site, request, &planned, source)).await?),
        None => None,
    };
    let chosen = Chosen {
        source,
        class: &planned.class,
        provisioner: planned.provisioner.as_deref(),
        node: planned.node.as_deref(),
        access_modes: planned.access_modes.as_deref(),
        attributes,
        adopted: None,
    };
    let twin = record::twin(site, request, observation.claim.as_ref(), &chosen);
    let created = crash::around(Step::TwinCreate, site.twins().create(&twin)).await;
    // None: somebody was faster, most likely ourselves; the next look tells.
    created.map_err(|error| not_taken(site, error))?;
    if observation.facts.retain && !site.cluster().rights().volume_changes {
        tell_not_retained(site, events, observation).await;
    }
    let ours_to_bind =
        planned.provisioner.as_deref() == Some(NO_PROVISIONER) && site.remote_cluster().is_none();
    Ok(if ours_to_bind || planned.answered_early {
        Next::Look
    } else {
        Next::Binding
    })
}

/// Binds the twin to a volume that nobody provisions: reserves the volume, and
/// tells the twin, or Kubernetes would look at it again only after a while.
async fn prebind(site: &Site, volume: &str, observation: &Observation) -> Result<(), CreateError> {
    let Some(twin) = &observation.twin else {
        return Ok(());
    };
    if !reserve(site, volume, twin).await? {
        return Ok(());
    }
    let told = json!({"metadata": {"uid": twin.uid()}, "spec": {"volumeName": volume}});
    let told = crash::around(Step::TellVolume, site.twins().merge(&twin.name_any(), &told)).await;
    unless_conflict(told)?;
    Ok(())
}

/// Reserves a volume for the twin; false if somebody else was faster. Without the
/// uid in `claimRef`: with it, a reservation whose twin went away would turn the
/// PV Released for ever.
async fn reserve(site: &Site, volume: &str, twin: &PersistentVolumeClaim) -> Result<bool, ApiError> {
    let volumes = site.volumes();
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
    let reserved = crash::around(Step::Prebind, volumes.merge(volume, &patch)).await;
    Ok(unless_conflict(reserved)?.is_some())
}

/// Marks the twin as its user's. False if it is not the twin that was looked at,
/// or on its way out. Its version does not matter: Kubernetes is still writing on
/// it, and whoever withdraws it names the version he saw.
async fn hand_over(site: &Site, observation: &Observation) -> Result<bool, CreateError> {
    let Some(twin) = &observation.twin else {
        return Ok(false);
    };
    let patch = json!({"metadata": {
        "uid": twin.uid(),
        "annotations": {mark::HANDED_OVER: "true"},
    }});
    let marked = crash::around(Step::HandOver, site.twins().merge(&twin.name_any(), &patch)).await;
    let marked = unless_conflict(marked)?;
    Ok(marked.is_some_and(|twin| twin.metadata.deletion_timestamp.is_none()))
}

/// The user asked for Retain; where we lack the right to see to it, he must know.
async fn retain_or_tell(
    site: &Site,
    events: &Events,
    request: &CreateRequest,
    observation: &Observation,
) -> Result<(), CreateError> {
    let Some(volume) = &observation.volume else {
        return Ok(());
    };
    match retain(site, &request.volume, volume, Step::Retain).await {
        Err(error) if matches!(error.cause, Cause::Forbidden(_)) => {
            if let Some(claim) = &observation.claim {
                let note = format!("The reclaim policy Retain cannot be applied to the real volume: {error}");
                events
                    .warn(&reading::claim_mark(claim), "RetainNotApplied", &note)
                    .await;
            }
            Err(error.into())
        }
        // One that has changed is looked at again, as is one that is retained.
        other => Ok(other.map(drop)?),
    }
}

async fn tell_not_retained(site: &Site, events: &Events, observation: &Observation) {
    if let Some(claim) = &observation.claim {
        let note = format!(
            "The reclaim policy Retain is not enforced in the cluster {}: this driver may not change PersistentVolumes there, \
             so what becomes of the data is up to the reclaim policy of the real class",
            site.cluster_name()
        );
        events
            .warn(&reading::claim_mark(claim), "RetainNotApplied", &note)
            .await;
    }
}

fn made(site: &Site, request: &CreateRequest, observation: &Observation) -> ProvisionedVolume {
    let twin = observation.twin.as_ref();
    let of_volume = observation
        .volume
        .as_ref()
        .and_then(|volume| volume.spec.as_ref()?.capacity.as_ref()?.get("storage"));
    let of_twin = twin.and_then(|twin| twin.status.as_ref()?.capacity.as_ref()?.get("storage"));
    let capacity = of_volume.or(of_twin).and_then(facts::bytes);
    let volume = observation
        .volume
        .as_ref()
        .map(ResourceExt::name_any)
        .unwrap_or_default();
    ProvisionedVolume {
        cluster: site.cluster().id().clone(),
        // What is answered for before it is bound will be as large as it was asked to be.
        bytes: capacity.unwrap_or_else(|| request.spec.size.request()),
        topology: if observation.topology.is_empty() {
            vec![Segments::of_cluster(site.cluster().id())]
        } else {
            observation.topology.clone()
        },
        context: BTreeMap::from([
            (TWIN_NAMESPACE.to_owned(), site.namespace().to_owned()),
            (TWIN_NAME.to_owned(), site.name().to_owned()),
            (TWIN_VOLUME.to_owned(), volume),
            (
                TWIN_CLASS.to_owned(),
                twin.and_then(reading::class_name).unwrap_or_default().to_owned(),
            ),
        ]),
    }
}

fn refused(site: &Site, refusal: Refusal) -> CreateError {
    CreateError::Refused {
        twin: site.place(),
        cluster: site.cluster_name(),
        refusal,
    }
}

async fn still_waiting(site: &Site, awaited: &'static str) -> CreateError {
    let why = match site.twins().get(site.name()).await {
        Ok(Some(twin)) => last_warning(site, &twin).await,
        _ => None,
    };
    CreateError::StillWaiting {
        twin: site.place(),
        cluster: site.cluster_name(),
        awaited,
        why,
    }
}

/// The newest warning about a twin: what the real provisioner says, the user must hear.
pub async fn last_warning(site: &Site, twin: &PersistentVolumeClaim) -> Option<String> {
    site.cluster()
        .newest_warning(site.namespace(), &twin.uid()?)
        .await
}

fn with_reason(what: String, reason: Option<String>) -> String {
    match reason {
        Some(reason) => format!("{what}: {reason}"),
        None => what,
    }
}

/// Whether something has to be done: a twin on its way is changed several times before that.
fn wants_attention(site: &Site) -> bool {
    let volumes = site.cluster().views().volumes.of_twin(site.name());
    if volumes.iter().any(|volume| !volume.twin_uid.is_empty()) {
        return true;
    }
    site.seen()
        .is_none_or(|twin| twin.phase != Phase::Pending || twin.deleting || twin.node.is_none())
}
