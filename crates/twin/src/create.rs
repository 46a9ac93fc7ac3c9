//! `CreateVolume`: observe, decide, do one step, and repeat until the volume is ready, the request
//! fails or the deadline has passed. The twin records all state, so any call, of any replica, can
//! take the next step.

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
    earlier_data,
    finalizer::remove_finalizer,
    moves::is_of_move,
    not_taken::{record_refusal, rejected},
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
    volume::{Parameters, SpecError, can_be_attached, mark},
};

/// Reason of the event that a twin has a PV which was not provisioned for it.
pub const EXISTING_VOLUME: &str = "TwinOnExistingVolume";

/// Creates the volume, or continues to.
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
                if !waiter.wait(deadline, || may_need_step(&site)).await {
                    return Err(still_waiting(&site, what).await);
                }
            }
            Err(error) => {
                match &error {
                    CreateError::Elsewhere(_) => record_refusal(&site, policy, request, &observation).await,
                    CreateError::SourceElsewhere { cluster, .. } => {
                        source::record_source_cluster(home, observation.claim.as_ref(), cluster).await;
                    }
                    _ => {}
                }
                return Err(error);
            }
        }
        claim = target::claim(home, request).await?;
    }
}

/// The outcome of one step.
enum Progress {
    /// The volume is ready.
    Done(ProvisionedVolume),
    /// Observe again at once.
    Again,
    /// Observe again after a change; the value is the state that is waited for.
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
        CreateStep::Create if adopt::pv_to_adopt(observation.claim.as_ref()).is_some() => {
            let wanted = adopt::pv_to_adopt(observation.claim.as_ref()).unwrap_or_default();
            let wanted = wanted.to_owned();
            Box::pin(adopt::adopt(site, request, observation, wanted)).await?;
            Progress::Again
        }
        CreateStep::Create => {
            check_request(site, request, observation.claim.as_ref())?;
            let make = make_twin(site, registry, policy, events, request, observation, deadline);
            match Box::pin(make).await? {
                Next::Observe => Progress::Again,
                Next::AwaitBinding => Progress::Await("bound"),
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
            withdraw_twin(site, request, observation, why, deadline).await?;
            Progress::Again
        }
        CreateStep::Retain => {
            retain_or_warn(site, events, request, observation).await?;
            Progress::Again
        }
        CreateStep::HandOver => {
            if hand_over(site, observation).await? {
                warn_of_earlier_data(site, events, observation).await;
                Progress::Done(provisioned(site, request, observation))
            } else {
                Progress::Again
            }
        }
        CreateStep::Answer => Progress::Done(provisioned(site, request, observation)),
        CreateStep::Refuse(refusal) => return Err(refused(site, refusal)),
    })
}

/// Refuses what a volume of this driver would lack.
fn check_request(
    site: &Site,
    request: &CreateRequest,
    claim: Option<&PersistentVolumeClaim>,
) -> Result<(), SpecError> {
    let class = claim.and_then(|claim| reading::class(site.home(), claim));
    if let Some(secret) = class
        .as_ref()
        .and_then(|class| Parameters::secret_in(&class.parameters))
    {
        return Err(SpecError::Secret(secret.clone()));
    }
    if site.remote_cluster().is_none() && !can_be_attached(request.spec.capabilities.access_modes()) {
        return Err(SpecError::NotAttachable);
    }
    Ok(())
}

/// Withdraws the twin; an error if the request fails with it. A twin that has changed in the meantime
/// stays, and the call continues: it must not return a final code.
async fn withdraw_twin(
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

/// What to do after the twin was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Wait for the provisioner of the real class.
    AwaitBinding,
    /// Observe again: the driver binds the twin itself, or `CreateVolume` may return before it is bound.
    Observe,
}

async fn make_twin(
    site: &Site,
    registry: &Registry,
    policy: &Policy,
    events: &Events,
    request: &CreateRequest,
    observation: &Observation,
    deadline: Instant,
) -> Result<Next, CreateError> {
    // Before the plan: a twin in another cluster than its source is impossible whatever the plan.
    let source = source::find_source(site, registry, request, observation).await?;
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
        Some(source) => Some(Box::pin(source::data_source(site, request, &planned, source)).await?),
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
    // None: another call has created it, most likely an earlier one of ours; the caller reads it.
    let created = created.map_err(|error| rejected(site, error))?;
    // The PV of such a twin is not checked.
    if planned.answered_early
        && let Some(mut created) = created.filter(|created| source::is_changed_copy(&twin, created))
    {
        // Kubernetes changes a new claim at once, and exactly one version is deleted.
        while !withdraw(site.cluster(), &created, deadline).await? {
            match site.twins().get(site.name()).await? {
                Some(found) if found.uid() == created.uid() => created = found,
                _ => break,
            }
        }
        let flaw = "an admission webhook or policy in its cluster has changed the class or the dataSource of the twin";
        return Err(refused(site, Refusal::NoCopy(flaw)));
    }
    if observation.facts.retain && !site.cluster().rights().volume_changes {
        warn_not_retained(site, events, observation).await;
    }
    let ours_to_bind =
        planned.provisioner.as_deref() == Some(NO_PROVISIONER) && site.remote_cluster().is_none();
    Ok(if ours_to_bind || planned.answered_early {
        Next::Observe
    } else {
        Next::AwaitBinding
    })
}

/// Binds the twin to a static PV: reserves the PV, and writes its name to the twin, or Kubernetes would
/// check the twin only after a while.
async fn prebind(site: &Site, volume: &str, observation: &Observation) -> Result<(), CreateError> {
    let Some(twin) = &observation.twin else {
        return Ok(());
    };
    if !reserve(site, volume, twin).await? {
        return Ok(());
    }
    let patch = json!({"metadata": {"uid": twin.uid()}, "spec": {"volumeName": volume}});
    let named = crash::around(Step::TellVolume, site.twins().merge(&twin.name_any(), &patch)).await;
    unless_conflict(named)?;
    Ok(())
}

/// Reserves a PV for the twin; false if another claim has it. Without the uid in `claimRef`: with a uid,
/// a reservation whose twin is deleted would leave the PV Released forever.
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

/// Marks the twin as handed over. False if the twin was replaced or is being deleted. The resource
/// version is not checked: Kubernetes is still writing to the twin, and a withdrawal only deletes the
/// version that it has read.
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

/// Emits an event if the twin at home got a PV that was not provisioned for it. The controller checks those in remote
/// clusters, where a twin may be bound only later.
async fn warn_of_earlier_data(site: &Site, events: &Events, observation: &Observation) {
    let (Some(real), Some(claim), None) = (&observation.volume, &observation.claim, site.remote_cluster())
    else {
        return;
    };
    if let Some(note) = earlier_data(site, real) {
        events
            .warn(&reading::claim_mark(claim), EXISTING_VOLUME, &note)
            .await;
    }
}

/// Applies the user's reclaim policy Retain; without the right to do so, emits an event.
async fn retain_or_warn(
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
        // A PV that has changed, or is now retained, is observed again.
        other => Ok(other.map(drop)?),
    }
}

async fn warn_not_retained(site: &Site, events: &Events, observation: &Observation) {
    if let Some(claim) = &observation.claim {
        let note = format!(
            "The reclaim policy Retain is not enforced in the cluster {}: this driver may not change PersistentVolumes there, \
             so the reclaim policy of the real class decides what happens to the data",
            site.cluster_name()
        );
        events
            .warn(&reading::claim_mark(claim), "RetainNotApplied", &note)
            .await;
    }
}

fn provisioned(site: &Site, request: &CreateRequest, observation: &Observation) -> ProvisionedVolume {
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
        // A volume that is not bound yet will be as large as requested.
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

/// The newest warning event about a twin: the error that the real provisioner reports to the user.
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

/// Whether a step may be due: a twin changes several times while Kubernetes binds it.
fn may_need_step(site: &Site) -> bool {
    let volumes = site.cluster().views().volumes.of_twin(site.name());
    if volumes.iter().any(|volume| !volume.twin_uid.is_empty()) {
        return true;
    }
    site.seen()
        .is_none_or(|twin| twin.phase != Phase::Pending || twin.deleting || twin.node.is_none())
}
