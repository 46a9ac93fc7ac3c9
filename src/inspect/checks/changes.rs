//! Volumes that are expanded or get other attributes: whether their classes allow it, and where it fails.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::VolumeAttributesClass};
use kube::ResourceExt;

use super::{Finding, Installation, Severity, classes};
use crate::{
    cluster::facts,
    inspect::{cases, events, names::full_name},
    placement::IN_USE,
    volume::{DRIVER_NAME, ResizeStage, attributes_class, quantity},
};

/// The sidecars retry each minute; a failure that lasts longer needs an administrator.
const LONG: SignedDuration = SignedDuration::from_mins(10);

/// A virtual class and the real ones behind it agree about expansion.
pub(super) fn classes_agree(installation: &Installation) -> Vec<Finding> {
    let pairs = classes::pairs(installation);
    let disagreeing = pairs.into_iter().filter_map(|(ours, real)| {
        let name = real.name_any();
        let allows = |class: &k8s_openapi::api::storage::v1::StorageClass| {
            class.allow_volume_expansion == Some(true)
        };
        match (allows(ours), allows(real)) {
            (true, false) => Some(Finding::warning(
                classes::title(ours),
                format!(
                    "It allows expansion, but the real class {name} does not: claims that request more keep their size."
                ),
                format!(
                    "If its driver can expand volumes: kubectl patch storageclass {name} -p '{{\"allowVolumeExpansion\": true}}'. If not, remove allowVolumeExpansion from the virtual class."
                ),
            )),
            (false, true) => Some(Finding::note(
                classes::title(ours),
                format!("It does not allow expansion, and the real class {name} does."),
                format!(
                    "If its claims may be expanded: kubectl patch storageclass {} -p '{{\"allowVolumeExpansion\": true}}', and the same in the chart's value storageClasses.",
                    ours.name_any()
                ),
            )),
            (true, true) | (false, false) => None,
        }
    });
    disagreeing.collect()
}

/// A `VolumeAttributesClass` of this driver names one that volumes can have.
pub(super) fn attributes_classes(installation: &Installation) -> Vec<Finding> {
    let all = &installation.attributes_classes;
    all.iter()
        .filter(|class| class.driver_name == DRIVER_NAME)
        .filter_map(|class| attributes_class_finding(installation, class))
        .collect()
}

fn attributes_class_finding(installation: &Installation, class: &VolumeAttributesClass) -> Option<Finding> {
    const ANOTHER: &str =
        "Its parameters cannot be changed: delete it and create it again, or create another one.";
    let title = format!("VolumeAttributesClass {}", class.name_any());
    let all = &installation.attributes_classes;
    let named = match attributes_class(class.parameters.iter().flatten()) {
        Ok(Some(named)) => named,
        Ok(None) => {
            let problem = "It does not name the attributes class of twins, so no volume can have it.";
            return Some(Finding::error(title, problem, ANOTHER));
        }
        Err(problem) => {
            let problem = format!("Every claim with it is refused: {problem}.");
            return Some(Finding::error(title, problem, ANOTHER));
        }
    };
    let Some(real) = all.named(None, &named) else {
        return all.is_complete().then(|| {
            Finding::warning(
                title,
                format!("It names {named}, which does not exist in this cluster: volumes in this cluster cannot have it."),
                format!("Create the VolumeAttributesClass {named} of the real driver, unless only remote clusters have it."),
            )
        });
    };
    let pairs = classes::pairs(installation);
    let is_behind = |driver: &str| pairs.iter().any(|(_, real)| real.provisioner == driver);
    let driver = &real.driver_name;
    if pairs.is_empty() || is_behind(driver) {
        return None;
    }
    let problem = if driver == DRIVER_NAME {
        format!("It names {named}, which is virtual itself.")
    } else {
        format!(
            "It names {named} of the driver {driver}, which is not the driver of any real class of this driver: no volume here can have it."
        )
    };
    Some(Finding::warning(title, problem, ANOTHER))
}

/// Claims whose expansion fails.
pub(super) fn failed_expansions(installation: &Installation) -> Vec<Finding> {
    our_claims(installation)
        .filter_map(|claim| failed_expansion(installation, claim))
        .collect()
}

fn failed_expansion(installation: &Installation, claim: &PersistentVolumeClaim) -> Option<Finding> {
    let size = facts::claim_size(claim);
    let wanted = size.growing_to()?;
    let (kind, why) = facts::RESIZE_ERRORS
        .iter()
        .find_map(|kind| Some((*kind, facts::message_if_true(claim, kind)?)))?;
    let is_final = matches!(
        size.stage,
        Some(ResizeStage::ControllerInfeasible | ResizeStage::NodeInfeasible)
    );
    if !is_final && !has_failed_for_long(installation, claim, "VolumeResizeFailed") {
        return None;
    }
    let smaller = format!(
        "request a smaller size, which may be any above {}",
        quantity(size.capacity)
    );
    let fix = if kind == facts::NODE_RESIZE_ERROR {
        "The volume is expanded, but its file system is not: see the events of its pod, in the cluster where the pod runs. The next start of a pod retries it.".to_owned()
    } else if why.contains(IN_USE) {
        "Stop the pods that use it; then it is expanded automatically.".to_owned()
    } else if is_final {
        format!("Fix the cause, or {smaller}.")
    } else {
        format!("Fix the cause; the expansion is retried each minute. Or {smaller}.")
    };
    Some(failing(
        claim,
        is_final,
        format!(
            "It cannot be expanded from {} to {}: {}.",
            quantity(size.capacity),
            quantity(wanted),
            why.trim_end_matches('.')
        ),
        fix,
    ))
}

/// Claims whose change of attributes fails.
pub(super) fn failed_modifications(installation: &Installation) -> Vec<Finding> {
    let failed = |claim: &PersistentVolumeClaim| {
        let change = claim.status.as_ref()?.modify_volume_status.as_ref()?;
        let why = facts::message_if_true(claim, facts::MODIFY_VOLUME_ERROR)?;
        let is_final = change.status == "Infeasible";
        if !is_final && !has_failed_for_long(installation, claim, "VolumeModifyFailed") {
            return None;
        }
        Some(failing(
            claim,
            is_final,
            format!(
                "It cannot get the attributes of {}: {}.",
                change
                    .target_volume_attributes_class_name
                    .as_deref()
                    .unwrap_or("its class"),
                why.trim_end_matches('.')
            ),
            "Fix the cause, or choose another VolumeAttributesClass, which is possible at any time."
                .to_owned(),
        ))
    };
    our_claims(installation).filter_map(failed).collect()
}

fn our_claims(installation: &Installation) -> impl Iterator<Item = &PersistentVolumeClaim> {
    let storage = &installation.storage;
    let claims = storage.claims.iter();
    claims.filter(|claim| cases::is_ours(claim, storage))
}

/// A finding about a claim whose change fails: an error if retries cannot help.
fn failing(claim: &PersistentVolumeClaim, is_final: bool, problem: String, fix: String) -> Finding {
    let severity = if is_final {
        Severity::Error
    } else {
        Severity::Warning
    };
    let title = format!("PersistentVolumeClaim {}", full_name(claim));
    Finding::new(severity, title, problem, fix)
}

/// The transition time of a condition does not show since when it is true, because sidecars write the
/// condition again each time. Its events do, until they expire.
fn has_failed_for_long(installation: &Installation, claim: &PersistentVolumeClaim, reason: &str) -> bool {
    let first = events::first(&installation.storage.events, claim, reason);
    let age = |first: Timestamp| installation.now.duration_since(first);
    first.is_none_or(|first| age(first) >= LONG)
}
