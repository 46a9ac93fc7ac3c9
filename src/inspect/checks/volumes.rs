//! Volumes that have a problem, and pods and attachments that interfere with them.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolumeClaim},
    storage::v1::VolumeAttachment,
};
use kube::ResourceExt;

use super::{Finding, Installation, Severity};
use crate::{
    cluster::{
        facts,
        slim::{self, marked_volume},
    },
    inspect::{
        Listing, Scope, State, Storage, cases, events,
        names::{Name, full_name},
        rows::{Row, rows},
    },
    placement::Diagnosis,
    twin::consumers::uses,
    volume::{ClusterId, DRIVER_NAME, quantity},
};

/// Kubelet repeats its events every two minutes at most; an older event is about a problem that is over.
const RECENT: SignedDuration = SignedDuration::from_mins(10);

/// Volumes with a problem, and claims that wait.
pub(super) fn problems(installation: &Installation) -> Vec<Finding> {
    let storage = &installation.storage;
    let largest = largest_volumes(installation);
    let rows = rows(storage, &Scope::All).into_iter();
    rows.filter_map(|row| finding(row, storage, &largest)).collect()
}

/// The largest volume, in bytes, that any node can have in each class, as far as it is published.
fn largest_volumes(installation: &Installation) -> BTreeMap<String, u64> {
    let mut largest = BTreeMap::new();
    for capacity in installation.capacities.iter().map(facts::capacity) {
        if let Some(bytes) = capacity.largest() {
            let of_class = largest.entry(capacity.class).or_insert(bytes);
            *of_class = bytes.max(*of_class);
        }
    }
    largest
}

fn finding(row: Row, storage: &Storage, largest: &BTreeMap<String, u64>) -> Option<Finding> {
    let is_remote = row.cluster.as_deref() != storage.home.as_ref().map(ClusterId::as_str);
    let severity = match row.state {
        // `transfers::stopped_moves` reports moves that nothing continues.
        State::Bound
        | State::Waiting
        | State::Guest
        | State::Unknown
        | State::Foreign
        | State::Twin(Diagnosis::Moving) => return None,
        // It is bound when its pod arrives there.
        State::Twin(Diagnosis::Pending) if is_remote => Severity::Warning,
        State::Lost | State::Unreachable | State::Twin(_) => Severity::Error,
        State::Pending | State::Orphaned => Severity::Warning,
        State::Deleting | State::Retained | State::Abandoned => Severity::Note,
    };
    let name = |name: &Name| format!("{}/{}", name.namespace, name.name);
    let object = match (&row.claim, &row.twin, &row.real_volume) {
        (Some(claim), ..) => format!("PersistentVolumeClaim {}", name(claim)),
        (None, Some(twin), _) => format!("PersistentVolumeClaim {}", name(twin)),
        (None, None, Some(volume)) => format!("PersistentVolume {volume}"),
        _ => format!("PersistentVolume {}", row.volume),
    };
    let too_large = (row.state == State::Pending).then(|| too_large(&row, &storage.claims, largest));
    Some(Finding::new(
        severity,
        object,
        format!("{}: {}.", row.state.name(), row.message.trim_end_matches('.')),
        too_large.flatten().unwrap_or(row.advice),
    ))
}

/// What to do about a claim that no node has the capacity for: the scheduler does not say how much there is.
fn too_large(
    row: &Row,
    claims: &Listing<PersistentVolumeClaim>,
    largest: &BTreeMap<String, u64>,
) -> Option<String> {
    let (claim, class) = (row.claim.as_ref()?, row.class.as_ref()?);
    // Where it is 0, no node can have any volume, whatever the size: the claim's event says why.
    let largest = *largest.get(class).filter(|bytes| **bytes > 0)?;
    let requested = facts::claim_size(claims.named(Some(&claim.namespace), &claim.name)?).requested;
    (requested > largest).then(|| {
        format!(
            "The largest volume that a node can have in the class {class} is {}: request less, or free storage there.",
            quantity(largest)
        )
    })
}

/// No pod mounts a twin: when it ended, Kubernetes would detach the storage of the pod that owns the volume.
pub(super) fn pods_on_twins(installation: &Installation) -> Vec<Finding> {
    let twins = &installation.storage.twins;
    let mut findings = Vec::new();
    let pods = installation.storage_pods.iter();
    for pod in pods.filter(|pod| !slim::has_ended(pod)) {
        let on_it = |twin: &&PersistentVolumeClaim| {
            twin.namespace() == pod.namespace() && uses(pod, &twin.name_any())
        };
        for twin in twins.iter().filter(on_it) {
            findings.push(Finding::error(
                format!("Pod {}", full_name(pod)),
                format!("It uses the twin {} directly; when this pod ends, Kubernetes detaches the storage of the pod that owns the volume.", twin.name_any()),
                "Delete the pod and use the claim in its own namespace. The chart's admission policy (admission.enabled) rejects such pods.",
            ));
        }
    }
    findings
}

/// Every attachment of a real volume belongs to one of the virtual volume.
pub(super) fn stray_attachments(installation: &Installation) -> Vec<Finding> {
    if !installation.attachments.is_complete() || !installation.storage.volumes.is_complete() {
        return Vec::new();
    }
    let outer: Vec<(String, &str)> = installation
        .attachments
        .iter()
        .filter_map(|it| outer(installation, it))
        .collect();
    let nested = installation
        .attachments
        .iter()
        .filter_map(|it| Some((it, marked_volume(it.labels())?)));
    nested
        .filter(|(it, volume)| !outer.iter().any(|(name, node)| name == volume.as_str() && *node == it.spec.node_name))
        .map(|(it, volume)| {
            Finding::warning(
                format!("VolumeAttachment {}", it.name_any()),
                format!("It attaches the storage of {volume} to node {}, but the volume is not attached there: other nodes may be unable to attach it.", it.spec.node_name),
                "The controller removes it after a while. If it stays, see the controller's log and that of the real attacher.",
            )
        })
        .collect()
}

/// The volume of this driver, and the node, of a `VolumeAttachment` of Kubernetes.
fn outer<'a>(installation: &Installation, attachment: &'a VolumeAttachment) -> Option<(String, &'a str)> {
    if attachment.spec.attacher != DRIVER_NAME {
        return None;
    }
    let name = attachment.spec.source.persistent_volume_name.as_deref()?;
    let volume = installation.storage.volumes.named(None, name);
    // Movers attach the volume, too.
    let known = volume.and_then(cases::handle);
    Some((
        known.map_or_else(|| name.to_owned(), |id| id.name.to_string()),
        &attachment.spec.node_name,
    ))
}

/// Attachments that fail, with the error of the driver.
pub(super) fn attach_errors(installation: &Installation) -> Vec<Finding> {
    let ours = installation
        .attachments
        .iter()
        .filter(|it| it.spec.attacher == DRIVER_NAME);
    ours.filter_map(|it| {
        let status = it.status.as_ref()?;
        let (verb, error) = match (&status.attach_error, &status.detach_error) {
            (Some(error), _) if !status.attached => ("attached to", error),
            (_, Some(error)) => ("detached from", error),
            _ => return None,
        };
        let volume = it.spec.source.persistent_volume_name.as_deref().unwrap_or("?");
        Some(Finding::error(
            format!("VolumeAttachment {}", it.name_any()),
            format!(
                "The volume {volume} cannot be {verb} the node {}: {}",
                it.spec.node_name,
                error.message.as_deref().unwrap_or("no reason given")
            ),
            "It is retried. See the attacher of the real driver.",
        ))
    })
    .collect()
}

/// Pods that cannot start because of the driver, as reported by kubelet.
pub(super) fn failed_mounts(installation: &Installation) -> Vec<Finding> {
    let recent = |event: &&Event| {
        let age = events::time(event).map(|time| installation.now.duration_since(time));
        age.is_some_and(|age| age < RECENT)
    };
    let ours = |message: &str| {
        let volumes = installation
            .storage
            .volumes
            .iter()
            .filter(|volume| cases::id(volume).is_some());
        message.contains(DRIVER_NAME)
            || volumes
                .filter_map(|volume| volume.metadata.name.as_deref())
                .any(|name| message.contains(name))
    };
    let mut newest = BTreeMap::<String, &Event>::new();
    for event in installation.failures.iter().filter(recent) {
        if !event.message.as_deref().is_some_and(ours) {
            continue;
        }
        let pod = &event.involved_object;
        let name = format!(
            "{}/{}",
            pod.namespace.as_deref().unwrap_or_default(),
            pod.name.as_deref().unwrap_or_default()
        );
        let known = newest.entry(name).or_insert(event);
        if events::time(event) > events::time(known) {
            *known = event;
        }
    }
    newest
        .into_iter()
        .map(|(pod, event)| {
            let message = event.message.as_deref().unwrap_or_default();
            let fix = if message.contains("not found in the list of registered CSI drivers") {
                "The node plugin is not registered on that node: see its pod there, and kubelet's log."
            } else {
                "See the log of the node plugin on that node, and that of the real driver."
            };
            Finding::warning(
                format!("Pod {pod}"),
                format!(
                    "{} a volume could not be mounted: {message}",
                    ago(installation, event)
                ),
                fix,
            )
        })
        .collect()
}

/// PVs in remote clusters that nothing releases, as the controller has reported them within the last hour.
pub(super) fn left_there(installation: &Installation) -> Vec<Finding> {
    let mut newest = BTreeMap::<&str, &Event>::new();
    for event in &installation.orphaned_volumes {
        let cluster = event.involved_object.name.as_deref().unwrap_or_default();
        let known = newest.entry(cluster).or_insert(event);
        if events::time(event) > events::time(known) {
            *known = event;
        }
    }
    let finding = |(cluster, event): (&str, &Event)| {
        Finding::warning(
            format!("RemoteCluster {cluster}"),
            event.message.clone().unwrap_or_default(),
            "There, their annotation storage.liqo.io/data-of names the volume, and spec.claimRef the claim.",
        )
    };
    newest.into_iter().map(finding).collect()
}

fn ago(installation: &Installation, event: &Event) -> String {
    let age = events::time(event).map(|time| installation.now.duration_since(time).as_mins());
    match age {
        Some(1) => "1 minute ago".to_owned(),
        Some(minutes) if minutes > 1 => format!("{minutes} minutes ago"),
        _ => "Just now".to_owned(),
    }
}
