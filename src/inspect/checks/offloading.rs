//! Offloaded namespaces, and the fabric that creates them.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease};
use kube::ResourceExt;

use super::{Finding, Installation, Severity};
use crate::{
    api::{
        namespace_offloading::{NamespaceOffloading, READY, RemoteCondition},
        remote_cluster::{self, RemoteCluster},
    },
    fabric,
    inspect::{names::full_name, offloading::Offloading},
    offload::{Phase, PodNetwork},
};

/// A lease that was renewed longer ago is not held by a running pod.
const STALE: SignedDuration = SignedDuration::from_mins(1);
/// An unfinished deletion that takes longer than this needs help.
const LONG: SignedDuration = SignedDuration::from_mins(1);

/// Namespaces are offloaded, and the fabric or Liqo carries that out.
pub(super) fn carried_out(installation: &Installation) -> Vec<Finding> {
    let offloading = &installation.offloading;
    let Some(first) = offloading.asked.iter().next() else {
        return Vec::new();
    };
    // Where Liqo is installed, it processes them; if that is unknown, nothing is reported.
    if !matches!(offloading.liqo, Ok(None)) {
        return Vec::new();
    }
    match why_inactive(offloading, installation.now) {
        Some(Inactive::NotInstalled) => {
            let others = offloading.asked.iter().len().saturating_sub(1);
            let and = if others > 0 {
                format!(", like {others} more")
            } else {
                String::new()
            };
            vec![Finding::error(
                title(first),
                format!("Nothing carries it out{and}: neither liqo-csi fabric nor Liqo is installed."),
                "Set the chart's value fabric.enabled. To delete one that will never be carried out, remove its finalizer: \
                 docs/offloading.md#when-unoffloading-does-not-end.",
            )]
        }
        Some(Inactive::Idle) => {
            let of = offloading.fabrics.iter().next().map(full_name);
            vec![Finding::error(
                format!("Deployment {}", of.unwrap_or_default()),
                "None of its pods is active: its lease is not held. Namespaces are neither offloaded nor unoffloaded.",
                format!("See its pods and their logs: {}", logs(offloading)),
            )]
        }
        // It is active, unless that is unknown.
        None if offloading.fabrics.is_complete() && offloading.leases.is_complete() => {
            let all = offloading.asked.iter();
            all.filter_map(|object| unprocessed(object, offloading, installation.now))
                .collect()
        }
        None => Vec::new(),
    }
}

/// An object that the fabric does not process, for example because a webhook refuses its status.
fn unprocessed(object: &NamespaceOffloading, offloading: &Offloading, now: Timestamp) -> Option<Finding> {
    let created = object.metadata.creation_timestamp.as_ref()?.0;
    let is_waiting = object.status.is_none() && now.duration_since(created) >= LONG;
    is_waiting.then(|| {
        Finding::warning(
            title(object),
            "The fabric is active and has not processed it, so its namespace is not offloaded.",
            format!(
                "kubectl describe namespaceoffloading -n {} {} shows what refuses it. If there is no event: {}",
                object.namespace().unwrap_or_default(),
                object.name_any(),
                logs(offloading)
            ),
        )
    })
}

/// Why namespaces are not offloaded.
enum Inactive {
    NotInstalled,
    Idle,
}

/// Why the fabric does not offload namespaces, if that is certain.
fn why_inactive(offloading: &Offloading, now: Timestamp) -> Option<Inactive> {
    if offloading.fabrics.lacks(|_| true) {
        return Some(Inactive::NotInstalled);
    }
    let is_held = |lease: &Lease| {
        let spec = lease.spec.as_ref();
        let renewed = spec.and_then(|it| it.renew_time.as_ref());
        let holder = spec.and_then(|it| it.holder_identity.as_ref());
        holder.is_some_and(|it| !it.is_empty()) && renewed.is_some_and(|it| now.duration_since(it.0) < STALE)
    };
    offloading.leases.lacks(is_held).then_some(Inactive::Idle)
}

/// How to read the logs of the fabric.
fn logs(offloading: &Offloading) -> String {
    let namespace = offloading.fabrics.iter().find_map(ResourceExt::namespace);
    format!(
        "kubectl logs -n {} -l app.kubernetes.io/component=fabric",
        namespace.unwrap_or_default()
    )
}

/// Why an offloaded namespace has no status yet, as far as that is known.
pub(in crate::inspect) fn why_not_offloaded(offloading: &Offloading, now: Timestamp) -> String {
    if let Ok(Some(how)) = &offloading.liqo {
        return format!(
            "Liqo is installed ({how}), and has not processed it yet: see its controller-manager"
        );
    }
    match why_inactive(offloading, now) {
        Some(Inactive::NotInstalled) => {
            "nothing processes it: neither liqo-csi fabric (fabric.enabled of the chart) nor \
                                           Liqo is installed"
                .to_owned()
        }
        Some(Inactive::Idle) => {
            format!(
                "nothing processes it: no pod of liqo-csi fabric is active, see {}",
                logs(offloading)
            )
        }
        None if !offloading.fabrics.is_complete() || !offloading.leases.is_complete() => {
            "it was not processed yet, and whether liqo-csi fabric runs cannot be read".to_owned()
        }
        None => format!(
            "liqo-csi fabric runs and has not processed it yet. It will: a kind that was just defined is \
             noticed within some seconds. If this lasts, see {}",
            logs(offloading)
        ),
    }
}

/// The fabric and Liqo are not both installed.
pub(super) fn liqo_installed(installation: &Installation) -> Vec<Finding> {
    let Ok(Some(how)) = &installation.offloading.liqo else {
        return Vec::new();
    };
    let all = installation.offloading.fabrics.iter();
    all.map(|fabric| {
        Finding::warning(
            format!("Deployment {}", full_name(fabric)),
            format!(
                "Liqo is installed ({how}), and NamespaceOffloadings are Liqo's: this fabric does nothing."
            ),
            "Set the chart's value fabric.enabled to false. The objects that the fabric has created are kept.",
        )
    })
    .collect()
}

/// The kind `NamespaceOffloading` is defined where a fabric is installed.
pub(super) fn defined(installation: &Installation) -> Vec<Finding> {
    let offloading = &installation.offloading;
    let fabrics = offloading.fabrics.iter();
    let missing = fabrics.filter(|_| offloading.is_undefined);
    missing
        .map(|fabric| {
            Finding::note(
                format!("Deployment {}", full_name(fabric)),
                "NamespaceOffloadings are not defined here, so no namespace is offloaded.",
                "To offload namespaces: helm upgrade, with the chart's value fabric.definition not false; or \
                 liqo-csi crds --offloading | kubectl create -f -",
            )
        })
        .collect()
}

/// The serving certificates that the fabric requests are approved.
pub(super) fn certificates(installation: &Installation) -> Vec<Finding> {
    let offloading = &installation.offloading;
    let accounts: Vec<String> = offloading.fabrics.iter().filter_map(account).collect();
    let all = offloading.certificates.iter();
    let undecided = all.filter(|request| {
        let status = request.status.as_ref();
        let is_decided = status.is_some_and(|it| it.conditions.iter().flatten().next().is_some());
        let is_asked_by_it = request
            .spec
            .username
            .as_ref()
            .is_some_and(|user| accounts.contains(user));
        request.spec.signer_name == fabric::SERVING_SIGNER && is_asked_by_it && !is_decided
    });
    let names: Vec<String> = undecided.map(ResourceExt::name_any).collect();
    let Some(first) = names.first() else {
        return Vec::new();
    };
    vec![Finding::note(
        format!("CertificateSigningRequest {first}"),
        "The serving certificate of the fabric is not approved. Where the API server verifies those of kubelets \
         (--kubelet-certificate-authority), pods of virtual nodes have no logs, exec, attach and port-forward until then.",
        format!(
            "kubectl certificate approve {}; or set the chart's value fabric.streams.approveCertificates.",
            names.join(" ")
        ),
    )]
}

/// The user of the pods of a Deployment in requests to the API server.
fn account(fabric: &Deployment) -> Option<String> {
    let pods = fabric.spec.as_ref()?.template.spec.as_ref()?;
    let account = pods.service_account_name.as_deref()?;
    let namespace = fabric.metadata.namespace.as_deref()?;
    Some(format!("system:serviceaccount:{namespace}:{account}"))
}

/// Each offloaded namespace exists in the selected clusters.
pub(super) fn namespaces(installation: &Installation) -> Vec<Finding> {
    let all = installation.offloading.asked.iter();
    all.flat_map(|object| of_namespace(object, installation.now))
        .collect()
}

fn of_namespace(object: &NamespaceOffloading, now: Timestamp) -> Vec<Finding> {
    let Some(status) = &object.status else {
        return Vec::new();
    };
    let conditions = &status.remote_namespaces_conditions;
    if status.offloading_phase == Some(Phase::NoClusterSelected) && !object.is_leaving() {
        let causes = conditions.iter().filter_map(|(cluster, all)| {
            let unmet = all.iter().find(|it| it.status != "True")?;
            Some(format!("{cluster}: {}", unmet.message))
        });
        let causes: Vec<String> = causes.collect();
        let why = if causes.is_empty() {
            "no RemoteCluster has spec.fabric".to_owned()
        } else {
            causes.join("; ")
        };
        return vec![Finding::warning(
            title(object),
            format!("No cluster is selected, so its pods stay here or wait: {why}."),
            "Change its clusterSelector (liqo-csi offload namespace), or the labels of the virtual nodes.",
        )];
    }
    let unready = conditions
        .keys()
        .filter_map(|cluster| Some((cluster, object.condition(cluster, READY)?)))
        .filter(|(_, ready)| ready.status != "True");
    unready
        .filter_map(|(cluster, ready)| unready_in(object, cluster, ready, now))
        .collect()
}

fn unready_in(
    object: &NamespaceOffloading,
    cluster: &str,
    ready: &RemoteCondition,
    now: Timestamp,
) -> Option<Finding> {
    let since = ready.last_transition_time.parse::<Timestamp>();
    let is_long = since.is_ok_and(|then| now.duration_since(then) >= LONG);
    let message = ready.message.trim_end_matches('.');
    let unoffload = format!(
        "liqo-csi unoffload namespace {} --dry-run lists the volumes that block it; the solutions are in \
         docs/offloading.md#when-unoffloading-does-not-end.",
        object.namespace().unwrap_or_default()
    );
    let (severity, problem, fix) = match ready.reason.as_str() {
        "CreationLoopBackOff" => (
            Severity::Error,
            format!("It cannot be created in the cluster {cluster}: {message}."),
            "Fix the cause; the fabric retries. Until then no new pods run in that cluster.",
        ),
        "Terminating" if is_long => (
            Severity::Warning,
            format!("Its namespace in the cluster {cluster} is not deleted: {message}."),
            unoffload.as_str(),
        ),
        _ if is_long => (
            Severity::Warning,
            format!("It is still not ready in the cluster {cluster}: {message}."),
            "liqo-csi clusters shows the state of the cluster.",
        ),
        _ => return None,
    };
    Some(Finding::new(severity, title(object), problem, fix))
}

/// The remote clusters can be used.
pub(super) fn clusters(installation: &Installation) -> Vec<Finding> {
    let all = installation.offloading.clusters.iter();
    all.filter(|it| it.metadata.deletion_timestamp.is_none())
        .filter_map(unusable)
        .collect()
}

fn unusable(cluster: &RemoteCluster) -> Option<Finding> {
    let status = cluster.status.as_ref();
    let mut conditions = status.into_iter().flat_map(|it| &it.conditions);
    let why = match conditions.find(|it| it.type_ == remote_cluster::READY) {
        Some(ready) if ready.status == "True" => return None,
        Some(ready) => ready.message.trim_end_matches('.').to_owned(),
        None => "the controller has not written its status yet".to_owned(),
    };
    // A cluster that another tool declares may not be meant for volumes.
    let (severity, lacks) = match (&cluster.spec.fabric, &cluster.spec.discovered_from) {
        (Some(_), _) => (Severity::Error, "no namespace can be offloaded to it"),
        (None, None) => (Severity::Error, "no volume can be created there"),
        (None, Some(_)) => (Severity::Warning, "no volume can be created there"),
    };
    let object = format!("RemoteCluster {}", cluster.name_any());
    let problem = format!("It is not ready, so {lacks}: {why}.");
    Some(Finding::new(
        severity,
        object,
        problem,
        "liqo-csi clusters shows more.",
    ))
}

/// The ranges of addresses of remote pods are valid, and no two clusters share addresses.
pub(super) fn networks(installation: &Installation) -> Vec<Finding> {
    let all = installation.offloading.clusters.iter();
    let routed = all.filter_map(|it| Some((it.name_any(), it.spec.fabric.as_ref()?.network.routed()?)));
    let routed: Vec<(String, PodNetwork)> = routed.collect();
    let unread = routed
        .iter()
        .filter(|(_, network)| !network.unread().is_empty())
        .map(|(cluster, network)| {
            Finding::error(
                format!("RemoteCluster {cluster}"),
                format!(
                    "spec.fabric.network.podCIDRs has invalid ranges: {}. Pods there have no address here.",
                    network.unread().join(", ")
                ),
                "Write them as 10.64.0.0/16 or fd00:64::/48.",
            )
        });
    let pairs = routed
        .iter()
        .enumerate()
        .flat_map(|(at, one)| routed.iter().skip(at + 1).map(move |other| (one, other)));
    let shared = pairs.filter_map(|((one, of_one), (other, of_other))| {
        let (a, b) = of_one.overlap(of_other)?;
        Some(Finding::warning(
            format!("RemoteCluster {one}"),
            format!(
                "Its podCIDRs ({a}) and those of {other} ({b}) overlap: either cluster can direct Services of \
                 this one to pods of the other."
            ),
            "List the addresses of the pods of each cluster in spec.fabric.network.podCIDRs; routed pod networks must not overlap.",
        ))
    });
    unread.chain(shared).collect()
}

fn title(object: &NamespaceOffloading) -> String {
    format!("NamespaceOffloading {}", full_name(object))
}
