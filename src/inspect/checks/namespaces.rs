//! The namespace of the twins, and quotas: which ones limit twins, and which do not.

use std::collections::BTreeSet;

use k8s_openapi::{api::core::v1::ResourceQuota, apimachinery::pkg::api::resource::Quantity};
use kube::ResourceExt;

use super::{Finding, Installation, classes::pairs};
use crate::{
    cluster::facts,
    inspect::{cases, names::full_name},
};

const PER_CLASS: &str = ".storageclass.storage.k8s.io/";
/// A quota that is used up to this share is reported.
const NEARLY_FULL: f64 = 0.9;

/// The namespace exists, and is not being deleted.
pub(super) fn storage_namespace(installation: &Installation) -> Vec<Finding> {
    let Some(name) = &installation.storage.namespace else {
        return Vec::new();
    };
    let title = format!("Namespace {name}");
    match installation.namespace.named(None, name) {
        None if installation.namespace.is_complete() => vec![Finding::error(
            title,
            "It does not exist, so no twin can be created: every new claim fails.",
            format!("kubectl create namespace {name}"),
        )],
        Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => vec![Finding::error(
            title,
            format!(
                "It is being deleted, with the data of {} twins.",
                installation.storage.twins.iter().len()
            ),
            "A deletion cannot be undone; the finalizers of the twins delay it. Set the PVs of all twins to Retain now, and back the data up.",
        )],
        _ => Vec::new(),
    }
}

/// Quotas on the twins of all users together.
pub(super) fn quotas_on_twins(installation: &Installation) -> Vec<Finding> {
    let here = installation
        .quotas
        .iter()
        .filter(|quota| quota.namespace().is_some() && quota.namespace() == installation.storage.namespace);
    let pairs = pairs(installation);
    let mut findings = Vec::new();
    for quota in here {
        for (key, hard, used) in on_storage(quota) {
            let class = key.split_once(PER_CLASS).map(|(class, _)| class);
            // No twin has this class; administrators set such quotas to 0.
            if class.is_some_and(|class| !pairs.iter().any(|(_, real)| real.name_any() == class)) {
                continue;
            }
            let of_class = class.map_or_else(String::new, |class| format!(" of the class {class}"));
            let title = format!("ResourceQuota {}", full_name(quota));
            let problem = format!(
                "{key} of the volumes of all users together: {} of {} are used",
                used.0, hard.0
            );
            let full = share(used, hard) >= 1.0;
            let fix = "Raise the quota. Limit each user in the user's own namespaces, by the virtual class.";
            if full {
                findings.push(Finding::error(
                    title,
                    format!("{problem}, so no more twins{of_class} can be created."),
                    fix,
                ));
            } else if share(used, hard) >= NEARLY_FULL {
                findings.push(Finding::warning(title, format!("{problem}."), fix));
            } else {
                findings.push(Finding::note(title, format!("{problem}."), fix));
            }
        }
    }
    findings
}

/// Quotas of users for a real class, which do not limit the twins in another namespace.
pub(super) fn quotas_that_do_not_apply(installation: &Installation) -> Vec<Finding> {
    let storage = &installation.storage;
    let Some(of_twins) = &storage.namespace else {
        return Vec::new();
    };
    let users: BTreeSet<String> = storage
        .claims
        .iter()
        .filter(|claim| cases::is_ours(claim, storage))
        .filter_map(ResourceExt::namespace)
        .collect();
    let pairs = pairs(installation);
    let mut findings = Vec::new();
    let elsewhere = |quota: &&ResourceQuota| {
        quota
            .namespace()
            .is_some_and(|it| it != *of_twins && users.contains(&it))
    };
    let is_limited = |namespace: Option<String>, by: &str| {
        let mut there = installation
            .quotas
            .iter()
            .filter(|it| it.namespace() == namespace);
        there.any(|quota| on_storage(quota).any(|(key, ..)| key == by))
    };
    for quota in installation.quotas.iter().filter(elsewhere) {
        for (key, ..) in on_storage(quota) {
            let Some((class, _)) = key.split_once(PER_CLASS) else {
                continue;
            };
            let behind = pairs.iter().filter(|(_, real)| real.name_any() == class);
            let mut instead = behind.map(|(ours, _)| (ours, key.replacen(class, &ours.name_any(), 1)));
            if let Some((ours, instead)) = instead.find(|(_, by)| !is_limited(quota.namespace(), by)) {
                findings.push(Finding::note(
                    format!("ResourceQuota {}", full_name(quota)),
                    format!("{key} does not count volumes of class {}, whose twins of class {class} are in the namespace {of_twins}.", ours.name_any()),
                    format!("Limit {instead} as well."),
                ));
            }
        }
    }
    findings
}

/// The entries of a quota that limit claims: key, hard, used.
fn on_storage(quota: &ResourceQuota) -> impl Iterator<Item = (&str, &Quantity, &Quantity)> {
    let status = quota.status.as_ref();
    let hard = status
        .and_then(|status| status.hard.as_ref())
        .into_iter()
        .flatten();
    let used = status.and_then(|status| status.used.as_ref());
    hard.filter(|(key, _)| {
        key.contains("persistentvolumeclaims") || *key == "requests.storage" || key.contains(PER_CLASS)
    })
    .filter_map(move |(key, hard)| Some((key.as_str(), hard, used?.get(key)?)))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a share of petabytes need not be exact"
)]
fn share(used: &Quantity, hard: &Quantity) -> f64 {
    match (facts::bytes(used), facts::bytes(hard)) {
        (_, Some(0)) => 1.0,
        (Some(used), Some(hard)) => used as f64 / hard as f64,
        _ => 0.0,
    }
}
