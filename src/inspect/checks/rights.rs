//! The rights that the controller's service account needs. The chart grants them; an authorizer of the
//! cluster, or a role that was edited, may take them away.

use std::collections::BTreeMap;

use super::{Finding, Installation};

/// A verb that an account needs on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inspect) struct Right {
    pub(in crate::inspect) verb: &'static str,
    pub(in crate::inspect) group: &'static str,
    /// With its subresource, if any: `pods/eviction`.
    pub(in crate::inspect) resource: &'static str,
    /// The whole cluster, if none.
    pub(in crate::inspect) namespace: Option<String>,
}

const OWN: &str = "storage.liqo.io";
const STORAGE: &str = "storage.k8s.io";
const SNAPSHOTS: &str = "snapshot.storage.k8s.io";

/// The rights that the driver itself needs with any values of the chart, without those of its sidecars.
pub(in crate::inspect) fn needed(own: &str, twins: &str) -> Vec<Right> {
    let everywhere: &[(&str, &str, &[&str])] = &[
        ("", "namespaces", &["get"]),
        ("", "persistentvolumeclaims", &["get", "list", "watch", "patch"]),
        ("", "persistentvolumeclaims/status", &["patch"]),
        ("", "persistentvolumes", &["get", "list", "watch", "patch"]),
        ("", "nodes", &["get", "list", "watch", "patch"]),
        ("", "pods", &["get", "list", "watch"]),
        ("", "events", &["create", "patch"]),
        (OWN, "volumemoves", &["get", "list", "watch"]),
        (
            OWN,
            "remoteclusters",
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        (OWN, "remoteclusters/status", &["patch"]),
        (STORAGE, "csinodes", &["get", "list", "watch", "create", "patch"]),
        (STORAGE, "storageclasses", &["get", "list", "watch"]),
        (STORAGE, "csidrivers", &["get", "list", "watch"]),
        (STORAGE, "volumeattributesclasses", &["get", "list", "watch"]),
        (STORAGE, "csistoragecapacities", &["get", "list", "watch"]),
        (
            STORAGE,
            "volumeattachments",
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        (SNAPSHOTS, "volumesnapshotclasses", &["get", "list"]),
        (SNAPSHOTS, "volumesnapshots", &["get"]),
        (
            SNAPSHOTS,
            "volumesnapshotcontents",
            &["get", "list", "watch", "patch"],
        ),
    ];
    let with_twins: &[(&str, &str, &[&str])] = &[
        ("", "persistentvolumeclaims", &["create", "delete"]),
        (
            SNAPSHOTS,
            "volumesnapshots",
            &["get", "list", "watch", "create", "delete"],
        ),
        ("", "events", &["list"]),
    ];
    let at_home: &[(&str, &str, &[&str])] = &[
        ("coordination.k8s.io", "leases", &["get", "create", "update"]),
        ("", "secrets", &["get", "list", "watch"]),
        (STORAGE, "csistoragecapacities", &["create", "patch", "delete"]),
    ];
    let spread = |table: &[(&'static str, &'static str, &[&'static str])], namespace: Option<&str>| {
        let one = |(group, resource, verbs): &(&'static str, &'static str, &[&'static str])| {
            let right = |verb: &&'static str| Right {
                verb,
                group,
                resource,
                namespace: namespace.map(str::to_owned),
            };
            verbs.iter().map(right).collect::<Vec<_>>()
        };
        table.iter().flat_map(one).collect::<Vec<_>>()
    };
    [
        spread(everywhere, None),
        spread(with_twins, Some(twins)),
        spread(at_home, Some(own)),
    ]
    .concat()
}

/// The controller has its rights.
pub(super) fn controller(installation: &Installation) -> Vec<Finding> {
    let Some((namespace, account)) = installation.setup.service_account() else {
        return Vec::new();
    };
    let mut missing = BTreeMap::<(String, String), Vec<&str>>::new();
    for right in &installation.missing_rights {
        let group = if right.group.is_empty() {
            String::new()
        } else {
            format!(".{}", right.group)
        };
        let place = right.namespace.as_ref().map_or_else(
            || "in the whole cluster".to_owned(),
            |namespace| format!("in the namespace {namespace}"),
        );
        missing
            .entry((format!("{}{group}", right.resource), place))
            .or_default()
            .push(right.verb);
    }
    missing
        .into_iter()
        .map(|((resource, place), verbs)| {
            Finding::error(
                format!("ServiceAccount {namespace}/{account}"),
                format!("The controller may not {} {resource} {place}.", verbs.join(", ")),
                "Apply the roles of the chart again (helm upgrade), and find out what has removed the right.",
            )
        })
        .collect()
}
