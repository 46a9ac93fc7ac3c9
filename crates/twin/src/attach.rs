//! Attaches the PV of a twin to a node, and detaches it, through the real driver's own attacher.
//!
//! The driver's `VolumeAttachment` names the twin's PV, so that it counts for the limit of the node and
//! protects the PV. It does not have the name that Kubernetes would give it: Kubernetes deletes
//! attachments with such a name when no pod needs them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec},
};
use kube::{ResourceExt, api::ObjectMeta};
use serde_json::json;
use tokio::time::Instant;

use super::{
    PublishError, UnpublishError,
    claimed::{epoch_served, remembered, virtual_volume},
    consumers::{health, pods, user},
    data_path,
    moves::may_publish,
    reading,
    reading::twin_volume_in,
};
use crate::{
    cluster::{
        ApiError, Cluster, Precondition, facts,
        slim::{Attachment, Driver, marked_volume},
    },
    fleet::{NodeKind, Registry},
    observe::crash::{self, Step},
    placement::moving::{Caller, DetachDecision, NodeHealth, UserPod, detach_decision},
    volume::{
        Access, AccessMode, Capabilities, Capability, DataPath, Owner, RealSource, VolumeId, VolumeMode,
        VolumeName, digest, mark,
        moving::{VolumeMark, epoch_mark, epoch_of},
    },
};

const RECHECK: Duration = Duration::from_secs(2);

/// Name of this driver's attachment of a PV to a node.
#[must_use]
pub fn attachment_name(volume: &str, node: &str) -> String {
    format!("liqo-{}", digest(40, [volume, node]))
}

/// Attaches the volume to a node, and returns how the node reaches its data.
pub async fn publish(
    home: &Cluster,
    registry: &Registry,
    id: &VolumeId,
    caller: &Caller,
    node: &str,
    requested: &Capabilities,
    deadline: Instant,
) -> Result<DataPath, PublishError> {
    let volume = &id.name;
    let twin = find_twin(home, id).await?;
    may_publish(home, registry, id, caller, &twin).await?;
    let capable = capabilities_of(&twin)?;
    if !capable.contains(requested) {
        let have = capable
            .access_modes()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>();
        let what = format!(
            "its twin is a {:?} with {}",
            capable.volume_mode(),
            have.join(", ")
        );
        return Err(PublishError::Incapable(volume.clone(), what));
    }
    let Some(found) = reading::node(home, node).await? else {
        return Err(PublishError::NoNode {
            cluster: home.id().to_string(),
            node: node.to_owned(),
        });
    };
    // A pod that bypasses the scheduler may be on it.
    if let NodeKind::Virtual(remote) = registry.behind(&found) {
        return Err(PublishError::Unusable(format!(
            "the volume {volume} is in this cluster, so it cannot be used on the node {node}, which represents the cluster {}: let its \
             pod run on a node of this cluster, or move the volume",
            remote.id
        )));
    }
    let real = real_volume(home, volume, &twin).await?;
    let driver = match reading::driver(&real) {
        Some(name) => find_driver(home, name).await?,
        None => None,
    };
    let mut path = data_path::of(&real, driver.as_ref()).map_err(PublishError::Unusable)?;
    // Kubernetes assumes that volumes are attached, unless the CSIDriver says otherwise.
    let attach = driver.is_none_or(|driver| driver.attach);
    if let (RealSource::Csi(source), true) = (&path.source, attach) {
        let wanted = attachment(home, id, &real.name_any(), node, &source.driver);
        path.attachment = Box::pin(attach_and_wait(home, volume, &wanted, deadline)).await?;
        // A move may have gated the volume in the meantime, because it saw no attachment.
        let twin = find_twin(home, id).await?;
        may_publish(home, registry, id, caller, &twin).await?;
    }
    Ok(path)
}

/// Undoes what [`publish`] did for a node, or for every node. Works without the twin and its PV.
pub async fn unpublish(
    home: &Cluster,
    id: &VolumeId,
    node: Option<&str>,
    deadline: Instant,
) -> Result<(), UnpublishError> {
    let mut outcome = Ok(());
    for attachment in attachments_of(home, id, node).await? {
        if let Err(in_use) = may_detach(home, id, &attachment.spec.node_name).await {
            outcome = Err(in_use);
            continue;
        }
        let exactly = Precondition {
            uid: attachment.uid().unwrap_or_default(),
            resource_version: None,
        };
        detach_and_wait(home, &attachment, exactly, deadline).await?;
    }
    outcome
}

/// Whether a volume may be detached from a node, read live. Kubernetes has one attachment for each handle
/// and node, whichever PV it names: so it does not matter whether the attachment is a mover's.
async fn may_detach(home: &Cluster, id: &VolumeId, node: &str) -> Result<(), UnpublishError> {
    let Some(virtual_pv) = virtual_volume(home, &id.name).await? else {
        return Ok(());
    };
    let mark = VolumeMark::read(virtual_pv.annotations());
    let leads_elsewhere = epoch_served(&virtual_pv).is_some_and(|served| served != id.epoch);
    let Some(claim) = virtual_pv.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Ok(());
    };
    if matches!(mark, Ok(None)) || leads_elsewhere {
        return Ok(());
    }
    let name = facts::claim_name(claim);
    let on_it = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    let mut pods = pods(home, &name.namespace, &name.name).await?;
    pods.retain(on_it);
    if pods.is_empty() {
        return Ok(());
    }
    let pods: Vec<UserPod> = pods.iter().map(|pod| user(pod, None)).collect();
    let found = home.all::<Node>().get(node).await?;
    let health = found.map_or(NodeHealth::NotReady, |found| health(&found));
    match detach_decision(&mark, &pods, health) {
        DetachDecision::Allow => Ok(()),
        DetachDecision::Later(pod) => Err(UnpublishError::InUse {
            volume: id.name.clone(),
            node: node.to_owned(),
            pod,
        }),
    }
}

/// The driver's attachments of a volume to a node, or to all nodes, read live by the names that the watch
/// shows. The watch may lag: if it shows none, the name follows from the twin's PV. If the PV is not
/// known, or the watch is broken, all attachments with the label of the volume are listed.
async fn attachments_of(
    home: &Cluster,
    id: &VolumeId,
    node: Option<&str>,
) -> Result<Vec<VolumeAttachment>, ApiError> {
    let attachments = home.all::<VolumeAttachment>();
    let is_requested = |on: &str| node.is_none_or(|node| node == on);
    let watched = &home.views().attachments;
    let seen = watched.of_topic(id.name.as_str());
    let is_its = |seen: &&Arc<Attachment>| seen.epoch == id.epoch && is_requested(&seen.node);
    let seen = seen.iter().filter(is_its);
    let mut names: Vec<String> = seen.map(|seen| seen.name.clone()).collect();
    if names.is_empty() {
        match (node, real_volume_name(home, id).await?) {
            (Some(node), Some(real)) => names.push(attachment_name(&real, node)),
            _ => return list_attachments(home, id, node).await,
        }
    }
    let mut held = Vec::new();
    for name in names {
        let found = attachments.get(&name).await?;
        held.extend(found.filter(|found| is_of_epoch(found, id) && is_requested(&found.spec.node_name)));
    }
    if held.is_empty() && watched.outdated_since().is_some() {
        return list_attachments(home, id, node).await;
    }
    Ok(held)
}

/// Whether an attachment of this driver is of this epoch of the volume: a volume that moves from node to
/// node is attached in two epochs.
fn is_of_epoch(found: &VolumeAttachment, id: &VolumeId) -> bool {
    let epoch = epoch_of(found.annotations());
    marked_volume(found.labels()).as_ref() == Some(&id.name) && epoch == Ok(id.epoch)
}

/// The attachments with the label of the volume, listed where neither the watch nor a name shows one:
/// while the watch is broken, or when the twin and its PV are deleted.
async fn list_attachments(
    home: &Cluster,
    id: &VolumeId,
    node: Option<&str>,
) -> Result<Vec<VolumeAttachment>, ApiError> {
    let ours = mark::volume_selector(home.id(), &id.name);
    let mut found = home.all::<VolumeAttachment>().list(Some(&ours)).await?;
    found.retain(|found| is_of_epoch(found, id) && node.is_none_or(|node| found.spec.node_name == node));
    Ok(found)
}

/// The PV of the volume's twin: named by the twin or, without a twin, by the virtual PV.
async fn real_volume_name(home: &Cluster, id: &VolumeId) -> Result<Option<String>, ApiError> {
    let twins = home.stored::<PersistentVolumeClaim>();
    let twin = twins.get(&id.name.home_twin(id.epoch)).await?;
    if let Some(name) = twin.as_ref().and_then(reading::volume_name) {
        return Ok(Some(name.to_owned()));
    }
    let virtual_pv = virtual_volume(home, &id.name).await?;
    let remembered = virtual_pv
        .as_ref()
        .and_then(|virtual_pv| remembered(virtual_pv, id.epoch));
    Ok(remembered.and_then(twin_volume_in))
}

/// A node to which a volume is attached. "Attached nowhere" is taken from a working watch: csi-provisioner
/// calls `DeleteVolume` only for a detached volume, and that of the real class only for a detached PV.
pub(super) async fn attached_to(home: &Cluster, id: &VolumeId) -> Result<Option<String>, ApiError> {
    let watched = &home.views().attachments;
    let is_current = watched.outdated_since().is_none();
    let seen = watched.of_topic(id.name.as_str());
    if is_current && !seen.iter().any(|seen| seen.epoch == id.epoch) {
        return Ok(None);
    }
    let held = attachments_of(home, id, None).await?;
    Ok(held.into_iter().next().map(|held| held.spec.node_name))
}

/// Deletes an attachment of this driver in exactly the version that was found unused, and waits until it
/// is deleted. An attachment that [`publish`] confirms in the meantime stays.
pub async fn detach_unneeded(
    home: &Cluster,
    attachment: &VolumeAttachment,
    deadline: Instant,
) -> Result<(), UnpublishError> {
    let (volume, epoch) = (
        marked_volume(attachment.labels()),
        epoch_of(attachment.annotations()),
    );
    if let (Some(name), Ok(epoch)) = (volume, epoch) {
        let cluster = home.id().clone();
        let id = VolumeId { cluster, name, epoch };
        may_detach(home, &id, &attachment.spec.node_name).await?;
    }
    let exactly = Precondition {
        uid: attachment.uid().unwrap_or_default(),
        resource_version: attachment.resource_version(),
    };
    detach_and_wait(home, attachment, exactly, deadline).await
}

async fn find_twin(home: &Cluster, id: &VolumeId) -> Result<PersistentVolumeClaim, PublishError> {
    let no_twin = |why: String| PublishError::NoTwin {
        volume: id.name.clone(),
        cluster: home.id().to_string(),
        why,
    };
    let name = id.name.home_twin(id.epoch);
    let found = home.stored::<PersistentVolumeClaim>().get(&name).await?;
    let twin = found.ok_or_else(|| no_twin("it does not exist".to_owned()))?;
    let owner = Owner::of_volume(home.id().clone(), id.name.clone(), id.epoch);
    owner
        .recognise(twin.labels(), twin.annotations())
        .map_err(|foreign| no_twin(foreign.to_string()))?;
    Ok(twin)
}

async fn real_volume(
    home: &Cluster,
    volume: &VolumeName,
    twin: &PersistentVolumeClaim,
) -> Result<PersistentVolume, PublishError> {
    let unusable = |what: &str| {
        let twin = twin.name_any();
        let namespace = home.storage_namespace();
        PublishError::Unusable(format!(
            "the twin {namespace}/{twin} of the volume {volume} {what}"
        ))
    };
    if reading::is_releasing(twin) {
        return Err(unusable(
            "is being released (liqo-csi release pvc): use the claim again when it has its real class",
        ));
    }
    if twin.metadata.deletion_timestamp.is_some() {
        return Err(unusable(
            "is being deleted: recovery retains its PV and creates the twin again",
        ));
    }
    let name = reading::real_volume(home, twin).ok_or_else(|| unusable("is not bound"))?;
    let found = home.all::<PersistentVolume>().get(&name).await?;
    let real = found.ok_or_else(|| unusable("has lost its PV: the data may be lost"))?;
    if !reading::is_bound_to(&real, twin) {
        return Err(unusable("names a PV that is bound to another claim"));
    }
    Ok(real)
}

/// The capabilities of a twin, from its spec.
pub(super) fn capabilities_of(twin: &PersistentVolumeClaim) -> Result<Capabilities, PublishError> {
    let spec = twin.spec.as_ref();
    let modes = spec
        .and_then(|spec| spec.access_modes.as_ref())
        .into_iter()
        .flatten();
    let access = match facts::volume_mode(spec.and_then(|spec| spec.volume_mode.as_deref())) {
        VolumeMode::Filesystem => Access::Mount {
            fs_type: None,
            flags: Vec::new(),
        },
        VolumeMode::Block => Access::Block,
    };
    let capabilities = facts::access_modes(modes)
        .into_iter()
        .map(|mode: AccessMode| Capability {
            mode,
            access: access.clone(),
        });
    Capabilities::new(capabilities).map_err(|error| {
        PublishError::Unusable(format!(
            "the twin {} has an invalid spec: {error}",
            twin.name_any()
        ))
    })
}

/// The driver as the watch shows it; waits until the watch shows all drivers.
async fn find_driver(home: &Cluster, name: &str) -> Result<Option<Driver>, ApiError> {
    home.views().drivers.complete().await;
    Ok(home
        .views()
        .drivers
        .get(name)
        .map(|driver| Driver::clone(&driver)))
}

fn attachment(
    home: &Cluster,
    id: &VolumeId,
    real_volume: &str,
    node: &str,
    driver: &str,
) -> VolumeAttachment {
    let labels = BTreeMap::from([
        (mark::MANAGED_BY.to_owned(), mark::MANAGED_BY_US.to_owned()),
        (mark::HOME_CLUSTER.to_owned(), home.id().to_string()),
        (mark::VOLUME.to_owned(), id.name.to_string()),
    ]);
    VolumeAttachment {
        metadata: ObjectMeta {
            name: Some(attachment_name(real_volume, node)),
            labels: Some(labels),
            annotations: Some(epoch_mark(id.epoch)),
            ..ObjectMeta::default()
        },
        spec: VolumeAttachmentSpec {
            attacher: driver.to_owned(),
            node_name: node.to_owned(),
            source: VolumeAttachmentSource {
                persistent_volume_name: Some(real_volume.to_owned()),
                inline_volume_spec: None,
            },
        },
        status: None,
    }
}

async fn attach_and_wait(
    home: &Cluster,
    volume: &VolumeName,
    wanted: &VolumeAttachment,
    deadline: Instant,
) -> Result<BTreeMap<String, String>, PublishError> {
    let (attachments, name) = (home.all::<VolumeAttachment>(), wanted.name_any());
    let mut changes = home.views().attachments.subscribe(volume.as_str());
    let mut refused = None;
    // Whether this call has created or confirmed the attachment.
    let mut confirmed = false;
    loop {
        match attachments.get(&name).await? {
            None => {
                let created = crash::around(Step::AttachmentCreate, attachments.create(wanted)).await?;
                confirmed = created.is_some();
            }
            Some(found) if found.metadata.deletion_timestamp.is_some() => {
                // An earlier unpublish is deleting it.
                confirmed = false;
            }
            Some(found) if !confirmed => {
                confirmed = confirm(home, &found).await?;
                continue;
            }
            Some(found) => {
                let status = found.status.unwrap_or_default();
                if status.attached {
                    return Ok(status.attachment_metadata.unwrap_or_default());
                }
                if let Some(error) = status.attach_error {
                    // The real attacher retries; its error is returned only when the deadline has passed.
                    refused = Some(PublishError::Refused {
                        node: wanted.spec.node_name.clone(),
                        driver: wanted.spec.attacher.clone(),
                        message: error.message.unwrap_or_default(),
                        code: error.error_code,
                    });
                }
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(refused.unwrap_or_else(|| {
                PublishError::StillWaiting(format!(
                    "the PV {} (VolumeAttachment {name}, attacher {}) to the node {}",
                    wanted
                        .spec
                        .source
                        .persistent_volume_name
                        .as_deref()
                        .unwrap_or_default(),
                    wanted.spec.attacher,
                    wanted.spec.node_name,
                ))
            }));
        }
        changes.next(left.min(RECHECK)).await;
    }
}

/// Writes to an existing attachment, so that the cleanup, which saw it unused, cannot delete it. False if
/// the attachment no longer exists.
async fn confirm(home: &Cluster, found: &VolumeAttachment) -> Result<bool, ApiError> {
    // A new value each time: a patch that changes nothing leaves the resource version unchanged.
    let patch = json!({"metadata": {
        "uid": found.uid(),
        "annotations": {mark::CONFIRMED: found.resource_version()},
    }});
    let attachments = home.all::<VolumeAttachment>();
    let confirmed = crash::around(
        Step::AttachmentConfirm,
        attachments.merge(&found.name_any(), &patch),
    )
    .await;
    match confirmed {
        // Another object has this name.
        Err(error) if error.is_conflict() => Ok(false),
        other => Ok(other?.is_some()),
    }
}

async fn detach_and_wait(
    home: &Cluster,
    attachment: &VolumeAttachment,
    exactly: Precondition,
    deadline: Instant,
) -> Result<(), UnpublishError> {
    let (attachments, name) = (home.all::<VolumeAttachment>(), attachment.name_any());
    let volume = attachment.labels().get(mark::VOLUME).map_or("", String::as_str);
    let mut changes = home.views().attachments.subscribe(volume);
    let deleted = crash::around(Step::AttachmentDelete, attachments.delete(&name, exactly)).await;
    match deleted {
        // Another object has this name, so this one is deleted; or it has another version, and stays.
        Err(error) if error.is_conflict() => return Ok(()),
        other => other?,
    }
    loop {
        let found = attachments.get(&name).await?;
        let Some(found) = found.filter(|found| found.uid() == attachment.uid()) else {
            return Ok(());
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let error = found.status.and_then(|status| status.detach_error);
            return Err(UnpublishError::StillWaiting {
                attachment: format!("VolumeAttachment {name} ({})", found.spec.attacher),
                why: error.and_then(|error| error.message),
            });
        }
        changes.next(left.min(RECHECK)).await;
    }
}
