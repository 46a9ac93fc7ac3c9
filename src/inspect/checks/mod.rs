//! What `liqo-csi doctor` looks for. Each check is a function from what is known
//! to what is wrong; none of them asks the cluster anything.

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

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Severity {
    /// Something does not work.
    Error,
    /// Something will not work, or not as its user expects.
    Warning,
    /// Worth knowing.
    Note,
}

/// What is wrong with an object, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// Kind and name.
    pub(crate) object: String,
    /// One or two sentences.
    pub(crate) problem: String,
    /// One or two sentences, or a command.
    pub(crate) mend: String,
}

impl Finding {
    fn error(object: impl Into<String>, problem: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::new(Severity::Error, object, problem, mend)
    }

    fn warning(object: impl Into<String>, problem: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::new(Severity::Warning, object, problem, mend)
    }

    fn note(object: impl Into<String>, problem: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::new(Severity::Note, object, problem, mend)
    }

    fn new(
        severity: Severity,
        object: impl Into<String>,
        problem: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            object: object.into(),
            problem: problem.into(),
            mend: mend.into(),
        }
    }
}

type Check = fn(&Installation) -> Vec<Finding>;

/// All checks.
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
    driver::wishes,
    classes::exist,
    classes::parameters,
    classes::real_class,
    classes::defaults,
    classes::allow_list,
    classes::binding_mode,
    classes::allowed_topologies,
    classes::expansion,
    classes::names_of_others,
    changes::classes_agree,
    changes::attributes_classes,
    nodes::registration,
    nodes::virtual_nodes,
    nodes::plugins,
    nodes::real_drivers,
    nodes::capacity,
    volumes::unwell,
    changes::failed_expansions,
    changes::failed_modifications,
    snapshots::unwell,
    snapshots::unfinished_imports,
    volumes::pods_on_twins,
    volumes::stray_attachments,
    volumes::attach_errors,
    volumes::failed_mounts,
    offloading::carried_out,
    offloading::liqo_beside,
    offloading::defined,
    offloading::certificates,
    offloading::namespaces,
    offloading::clusters,
    offloading::networks,
    sessions::expiry,
    daemons::stay_at_home,
    transfers::unfinished_imports,
    transfers::unfinished_releases,
];

/// Everything that is wrong, the worst first.
pub(crate) fn examine(installation: &Installation) -> Vec<Finding> {
    let mut findings: Vec<Finding> = ALL.iter().flat_map(|check| check(installation)).collect();
    findings.sort();
    findings
}

#[cfg(test)]
mod tests;
