//! Expands a volume: requests more of the twin, whose own driver's controllers do the work. Every call
//! reads the state first, so any call, of any replica, can continue.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    ChangeError, Site, changing::VolumeChange, claimed::named_claim, reading, record, waiter::TwinWaiter,
};
use crate::{
    cluster::{ApiError, Cluster, facts, unless_conflict},
    fleet::Registry,
    observe::crash::{self, Step},
    placement::{ExpandFacts, ExpandStep, ObservedSize, expand_step, has_finished},
    volume::{ResizeStage, SizeRange, VolumeId, VolumeName, quantity},
};

/// An expanded volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expanded {
    pub bytes: u64,
    /// Whether kubelet has to expand the file system on a node.
    pub on_node: bool,
}

/// Conditions of a claim during an expansion, and after it failed.
const RESIZE_CONDITIONS: [&str; 4] = [
    "Resizing",
    "FileSystemResizePending",
    facts::CONTROLLER_RESIZE_ERROR,
    facts::NODE_RESIZE_ERROR,
];

/// Expands the volume, or continues to.
pub async fn expand(
    home: &Cluster,
    registry: &Registry,
    id: &VolumeId,
    wanted: SizeRange,
    deadline: Instant,
) -> Result<Expanded, ChangeError> {
    let change = VolumeChange::find(home, registry, id).await?;
    let site = &change.site;
    let mut waiter = TwinWaiter::of(site);
    loop {
        let twin = change.twin(deadline).await?;
        let waits = match next_step(&change, &twin, wanted).await? {
            ExpandStep::Done { node } => {
                let real = change.real_volume(&twin).await?;
                return Ok(expanded(&twin, real.as_ref(), node));
            }
            ExpandStep::Finish => {
                finish(site, &twin).await.map_err(not_finished)?;
                false
            }
            ExpandStep::Request(bytes) => {
                allows_expansion(&change, &twin).await?;
                // More than its capacity, but maybe less than an earlier request.
                let spec = |claim: Option<&PersistentVolumeClaim>| json!({"resources": {"requests": {"storage": record::size(bytes, claim)}}});
                let refused = ChangeError::NotAccepted;
                change.request(&twin, Step::Expand, spec, refused).await?
            }
            ExpandStep::Wait => true,
            ExpandStep::TooLarge => {
                return Err(ChangeError::TooLarge {
                    volume: id.name.clone(),
                    has: quantity(facts::claim_size(&twin).capacity),
                    limit: quantity(wanted.limit().unwrap_or_default()),
                });
            }
            ExpandStep::Refused(refusal) => {
                return Err(ChangeError::NotGrown {
                    twin: site.place(),
                    cluster: site.cluster_name(),
                    refusal,
                });
            }
        };
        if waits && !waiter.wait(deadline, || may_need_step(site, wanted)).await {
            let awaited = format!("as large as {}", quantity(wanted.required()));
            return Err(change.still_waiting(&twin, awaited).await);
        }
    }
}

/// Whether the view of the twin suggests that there is a step to take: during an expansion the twin
/// changes several times.
fn may_need_step(site: &Site, wanted: SizeRange) -> bool {
    site.seen().is_none_or(|twin| {
        let facts = ExpandFacts {
            wanted,
            twin: twin.size,
            seen: None,
            error: None,
        };
        let on_node = twin.size.stage.is_some_and(ResizeStage::is_on_node);
        twin.deleting || twin.size.has_error || on_node || expand_step(&facts) != ExpandStep::Wait
    })
}

async fn next_step(
    change: &VolumeChange,
    twin: &PersistentVolumeClaim,
    wanted: SizeRange,
) -> Result<ExpandStep, ApiError> {
    let mut facts = ExpandFacts {
        wanted,
        twin: facts::claim_size(twin),
        seen: None,
        error: facts::message_if_true(twin, facts::CONTROLLER_RESIZE_ERROR),
    };
    let step = expand_step(&facts);
    let waits = facts.twin.stage.is_some_and(ResizeStage::waits_for_node);
    if !waits || !matches!(step, ExpandStep::Request(_) | ExpandStep::Wait) {
        return Ok(step);
    }
    // The claim is only read if the decision depends on it.
    if let Some(virtual_pv) = &change.virtual_pv {
        facts.seen = seen(&change.site, virtual_pv).await?;
    }
    Ok(expand_step(&facts))
}

/// What users see of a volume whose twin is at home: its virtual PV, and the claim, read live.
async fn seen(site: &Site, virtual_pv: &PersistentVolume) -> Result<Option<ObservedSize>, ApiError> {
    if site.remote_cluster().is_some() {
        return Ok(None);
    }
    let claim = named_claim(site.home(), virtual_pv).await?;
    let claim = claim.filter(|claim| reading::holder_uid(virtual_pv) == claim.metadata.uid.as_deref());
    Ok(claim.map(|claim| ObservedSize {
        claim: facts::claim_size(&claim),
        volume: facts::volume_size(virtual_pv).unwrap_or_default(),
    }))
}

/// Kubernetes refuses these expansions, too, but with less clear messages, and for some volumes not at all.
async fn allows_expansion(change: &VolumeChange, twin: &PersistentVolumeClaim) -> Result<(), ChangeError> {
    let cluster = change.site.cluster_name();
    let class = reading::class_name(twin).unwrap_or_default();
    let refused = |why: String| Err(ChangeError::NotExpandable(why));
    if class.is_empty() {
        return refused(format!(
            "the real volume in the cluster {cluster} has no storage class, and only a class can allow expansion"
        ));
    }
    if change.class(twin).is_some_and(|class| !class.allows_expansion) {
        return refused(format!(
            "the real class {class:?} in the cluster {cluster} does not allow expansion (allowVolumeExpansion)"
        ));
    }
    let real = change.real_volume(twin).await?;
    if let Some(real) = real.filter(|real| reading::driver(real).is_none()) {
        return refused(format!(
            "the real volume {} of the class {class:?} in the cluster {cluster} is not a CSI volume, so no controller there can expand \
             it",
            real.name_any()
        ));
    }
    Ok(())
}

/// Ends the expansion of the twin of a volume at home, if its claim shows that it is finished. All is
/// read live, the claim last: of two watches one may lag, and an expanded PV beside an older claim would
/// look as if no node had to expand the file system.
pub async fn finish_expansion(site: &Site, volume: &VolumeName, name: &str) -> Result<(), ApiError> {
    let found = site.twins().get(site.name()).await?;
    let virtual_pv = site.home().all::<PersistentVolume>().get(name).await?;
    let (Some(twin), Some(virtual_pv)) = (found.filter(|found| site.is_twin(volume, found)), virtual_pv)
    else {
        return Ok(());
    };
    match seen(site, &virtual_pv).await? {
        Some(seen) if has_finished(facts::claim_size(&twin), seen) => finish(site, &twin).await,
        _ => Ok(()),
    }
}

/// If a right is missing, retrying does not help, and nothing has begun.
fn not_finished(error: ApiError) -> ChangeError {
    if error.is_forbidden() {
        ChangeError::NotAccepted(error)
    } else {
        error.into()
    }
}

/// Writes to the status of the twin what kubelet writes to a claim whose file system it has expanded.
async fn finish(site: &Site, twin: &PersistentVolumeClaim) -> Result<(), ApiError> {
    let Some(bytes) = facts::claim_size(twin).allocated else {
        return Ok(());
    };
    let patch = grown(twin, bytes);
    let (twins, name) = (site.twins(), twin.name_any());
    let finished = crash::around(Step::FinishExpansion, twins.merge_status(&name, &patch)).await;
    unless_conflict(finished).map(drop)
}

/// The patch that ends the expansion of a claim, in exactly this version.
#[must_use]
pub fn grown(claim: &PersistentVolumeClaim, bytes: u64) -> Value {
    let conditions = claim
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let others: Vec<&PersistentVolumeClaimCondition> = conditions
        .filter(|one| !RESIZE_CONDITIONS.contains(&one.type_.as_str()))
        .collect();
    json!({
        "metadata": {"uid": claim.uid(), "resourceVersion": claim.resource_version()},
        "status": {
            "capacity": {"storage": quantity(bytes)},
            "allocatedResourceStatuses": {"storage": null},
            "conditions": others,
        },
    })
}

/// The PV may be larger than requested: drivers round up.
fn expanded(twin: &PersistentVolumeClaim, real: Option<&PersistentVolume>, on_node: bool) -> Expanded {
    let size = facts::claim_size(twin);
    let real = real.and_then(facts::volume_size);
    Expanded {
        bytes: real.unwrap_or_else(|| size.capacity.max(size.allocated.filter(|_| on_node).unwrap_or(0))),
        on_node,
    }
}
