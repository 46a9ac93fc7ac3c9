//! The checks of `liqo-csi doctor`. Each check is a function from the observed installation to its findings;
//! no check calls an API server.

mod changes;
mod classes;
mod controller;
mod daemons;
mod driver;
mod namespaces;
mod nodes;
pub(super) mod offloading;
pub(super) mod rights;
mod sessions;
mod snapshots;
mod transfers;
mod volumes;

use serde::Serialize;

use super::Installation;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Severity {
    /// Something does not work.
    Error,
    /// Something will not work, or not as its user expects.
    Warning,
    /// For information.
    Note,
}

/// A problem of an object, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// Kind and name.
    pub(crate) object: String,
    /// One or two sentences.
    pub(crate) problem: String,
    /// One or two sentences, or a command.
    pub(crate) fix: String,
}

impl Finding {
    fn error(object: impl Into<String>, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Severity::Error, object, problem, fix)
    }

    fn warning(object: impl Into<String>, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Severity::Warning, object, problem, fix)
    }

    fn note(object: impl Into<String>, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Severity::Note, object, problem, fix)
    }

    fn new(
        severity: Severity,
        object: impl Into<String>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            object: object.into(),
            problem: problem.into(),
            fix: fix.into(),
        }
    }
}

type Check = fn(&Installation) -> Vec<Finding>;

pub(crate) const ALL: &[Check] = &[
    namespaces::storage_namespace,
    namespaces::quotas_on_twins,
    namespaces::quotas_that_do_not_apply,
    controller::deployment,
    controller::provisioner,
    controller::attacher,
    controller::pods,
    rights::controller,
    driver::object,
    driver::fs_group,
    driver::kubelet_features,
    classes::exist,
    classes::parameters,
    classes::real_class,
    classes::defaults,
    classes::allow_list,
    classes::binding_mode,
    classes::allowed_topologies,
    classes::expansion,
    classes::conflicts,
    changes::classes_agree,
    changes::attributes_classes,
    nodes::registration,
    nodes::virtual_nodes,
    nodes::plugins,
    nodes::real_drivers,
    nodes::capacity,
    volumes::problems,
    changes::failed_expansions,
    changes::failed_modifications,
    snapshots::snapshotter,
    snapshots::problems,
    snapshots::unfinished_imports,
    volumes::pods_on_twins,
    volumes::stray_attachments,
    volumes::attach_errors,
    volumes::failed_mounts,
    volumes::left_there,
    offloading::carried_out,
    offloading::liqo_installed,
    offloading::defined,
    offloading::certificates,
    offloading::namespaces,
    offloading::clusters,
    offloading::networks,
    sessions::expiry,
    daemons::virtual_nodes,
    transfers::unfinished_imports,
    transfers::unfinished_releases,
    transfers::stopped_moves,
];

/// The findings of all checks, errors first.
pub(crate) fn examine(installation: &Installation) -> Vec<Finding> {
    let mut findings: Vec<Finding> = ALL.iter().flat_map(|check| check(installation)).collect();
    findings.sort();
    findings
}

#[cfg(test)]
mod tests;
