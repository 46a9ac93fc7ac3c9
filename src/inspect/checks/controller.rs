//! The controller: its Deployment, the options of its sidecars, and the pods of the driver.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ContainerStatus, Pod},
};
use kube::ResourceExt;

use super::{Finding, Installation};
use crate::{
    cluster::slim,
    inspect::{
        names::full_name,
        setup::{self, Flags},
    },
    volume::DRIVER_NAME,
};

const PROVISIONER: &str = "csi-provisioner";
const ATTACHER: &str = "csi-attacher";
/// Shorter timeouts work, because the sidecar retries the call, but look like failures when a twin takes
/// longer.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(30);
const SLOWEST: f64 = 20.0;

fn deployments(installation: &Installation) -> impl Iterator<Item = &Deployment> {
    installation.setup.controllers.iter()
}

fn title(deployment: &Deployment) -> String {
    format!("Deployment {}", full_name(deployment))
}

/// There is one controller, and it is running.
pub(super) fn deployment(installation: &Installation) -> Vec<Finding> {
    let all: Vec<&Deployment> = deployments(installation).collect();
    if all.is_empty() && installation.setup.controllers.is_complete() {
        return vec![Finding::error(
            format!("Driver {DRIVER_NAME}"),
            "There is no controller (no Deployment with the labels app.kubernetes.io/name=liqo-csi and component=controller): claims stay Pending.",
            "Install the chart.",
        )];
    }
    let mut findings = Vec::new();
    if all.len() > 1 {
        let names: Vec<_> = all.iter().map(|one| full_name(*one)).collect();
        findings.push(Finding::error(
            format!("Driver {DRIVER_NAME}"),
            format!("It is installed {} times: {}.", all.len(), names.join(", ")),
            "Uninstall all releases but one. Volumes stay.",
        ));
    }
    for one in all {
        let wanted = one.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let ready = one
            .status
            .as_ref()
            .and_then(|status| status.ready_replicas)
            .unwrap_or_default();
        if ready == 0 {
            findings.push(Finding::error(
                title(one),
                format!("None of its {wanted} pods is ready: nothing is provisioned, attached or deleted."),
                format!(
                    "kubectl describe deployment -n {} {}, and the logs of its pods.",
                    one.namespace().unwrap_or_default(),
                    one.name_any()
                ),
            ));
        } else if ready < wanted {
            findings.push(Finding::warning(
                title(one),
                format!("{ready} of its {wanted} pods are ready."),
                "See its pods.",
            ));
        }
    }
    findings
}

/// csi-provisioner has the flags that this driver needs.
pub(super) fn provisioner(installation: &Installation) -> Vec<Finding> {
    let mut findings = Vec::new();
    for deployment in deployments(installation) {
        let Some(flags) = setup::sidecar(deployment, PROVISIONER) else {
            findings.push(missing(deployment, PROVISIONER, "claims stay Pending"));
            continue;
        };
        let needed = [
            (
                "strict-topology",
                "the driver does not get the node that the scheduler selected, and claims are refused or served elsewhere",
            ),
            (
                "extra-create-metadata",
                "the driver does not get the claim of a volume, so its node, labels and annotations are unknown",
            ),
        ];
        for (flag, effect) in needed {
            if !flags.on(flag) {
                findings.push(Finding::error(
                    title(deployment),
                    format!("{PROVISIONER} runs without --{flag}: {effect}."),
                    format!("Add --{flag} to its arguments, as the chart does."),
                ));
            }
        }
        let gates = flags.get("feature-gates").unwrap_or_default();
        if gates
            .split(',')
            .any(|gate| gate.eq_ignore_ascii_case("Topology=false"))
        {
            findings.push(Finding::error(
                title(deployment),
                format!("{PROVISIONER} runs with the feature gate Topology off: pods would be scheduled without regard to where their data is."),
                "Remove Topology=false from --feature-gates.",
            ));
        }
        findings.extend(sidecar(deployment, PROVISIONER, &flags));
    }
    findings
}

/// csi-attacher exists, and its timeout is long enough.
pub(super) fn attacher(installation: &Installation) -> Vec<Finding> {
    let check = |deployment| match setup::sidecar(deployment, ATTACHER) {
        None => vec![missing(
            deployment,
            ATTACHER,
            "pods wait for their volumes forever",
        )],
        Some(flags) => sidecar(deployment, ATTACHER, &flags),
    };
    deployments(installation).flat_map(check).collect()
}

fn missing(deployment: &Deployment, name: &str, effect: &str) -> Finding {
    Finding::error(
        title(deployment),
        format!("It has no container {name}: {effect}."),
        "Apply the chart again (helm upgrade).",
    )
}

/// Checks of all sidecars.
fn sidecar(deployment: &Deployment, name: &str, flags: &Flags<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let replicas = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    if replicas > 1 && !flags.on("leader-election") {
        findings.push(Finding::error(
            title(deployment),
            format!(
                "{name} runs {replicas} times without --leader-election: all of them act on the same objects."
            ),
            "Add --leader-election to its arguments, or run one replica.",
        ));
    }
    let timeout = flags.get("timeout").and_then(duration);
    if timeout.is_none_or(|timeout| timeout < SHORTEST_TIMEOUT) {
        let now = flags.get("timeout").map_or_else(
            || "its short default timeout".to_owned(),
            |it| format!("--timeout={it}"),
        );
        findings.push(Finding::warning(
            title(deployment),
            format!("{name} runs with {now}: a call waits for the real driver and may take longer, which is then reported as a failure."),
            "Set --timeout=60s, as the chart does.",
        ));
    }
    let rate = flags
        .get("kube-api-qps")
        .and_then(|rate| rate.parse::<f64>().ok());
    if rate.is_none_or(|rate| rate < SLOWEST) {
        findings.push(Finding::note(
            title(deployment),
            format!("{name} may send {} requests a second to the API server (--kube-api-qps): many claims at once are served slowly.", rate.unwrap_or(5.0)),
            "Set the chart's value controller.kubeAPI; raise it for the sidecars of the real drivers too.",
        ));
    }
    findings
}

/// Durations as Go writes them, with the units that are usual here: `60s`, `2m`, `1m30s`.
fn duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let amount: f64 = rest[..unit_at].parse().ok()?;
        let unit_end = rest[unit_at..]
            .find(|c: char| c.is_ascii_digit())
            .map_or(rest.len(), |at| unit_at + at);
        let seconds = match &rest[unit_at..unit_end] {
            "ms" => amount / 1000.0,
            "s" => amount,
            "m" => amount * 60.0,
            "h" => amount * 3600.0,
            _ => return None,
        };
        total += Duration::try_from_secs_f64(seconds).ok()?;
        rest = &rest[unit_end..];
    }
    (total > Duration::ZERO).then_some(total)
}

/// Pods of the driver that are not ready, and why.
pub(super) fn pods(installation: &Installation) -> Vec<Finding> {
    installation
        .pods
        .iter()
        // Kubernetes keeps evicted pods; their controller has created others.
        .filter(|pod| pod.metadata.deletion_timestamp.is_none() && !slim::has_ended(pod))
        .filter_map(unready)
        .collect()
}

fn unready(pod: &Pod) -> Option<Finding> {
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.iter().flatten();
    let mut ready = conditions.clone().filter(|condition| condition.type_ == "Ready");
    if ready.any(|condition| condition.status == "True") {
        return None;
    }
    let containers = status.container_statuses.iter().flatten();
    let reason = containers
        .filter(|container| !container.ready)
        .find_map(container_problem);
    let unscheduled = conditions
        .filter(|it| it.type_ == "PodScheduled" && it.status == "False")
        .find_map(|it| it.message.clone());
    let reason = reason.or(unscheduled).or_else(|| status.message.clone());
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let place = node.map_or_else(String::new, |node| format!(" on node {node}"));
    let why = reason.map_or_else(|| ".".to_owned(), |why| format!(": {why}"));
    Some(Finding::error(
        format!("Pod {}", full_name(pod)),
        format!("It is not ready{place}{why}"),
        format!(
            "kubectl logs -n {} {} --all-containers",
            pod.namespace().unwrap_or_default(),
            pod.name_any()
        ),
    ))
}

/// What a container waits for, or how it ended.
fn container_problem(container: &ContainerStatus) -> Option<String> {
    let name = &container.name;
    let last = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let ended = last.map_or_else(String::new, |last| {
        let said = last.message.as_deref().unwrap_or_default().trim();
        format!(", last time it ended with code {} {said}", last.exit_code)
            .trim_end()
            .to_owned()
    });
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or("unknown reasons");
        let said = waiting
            .message
            .as_deref()
            .map_or_else(String::new, |message| format!(" ({message})"));
        return Some(format!("container {name} waits for {reason}{said}{ended}"));
    }
    if let Some(terminated) = &state.terminated {
        return Some(format!(
            "container {name} ended with code {}",
            terminated.exit_code
        ));
    }
    Some(format!(
        "container {name} runs but its readiness probe fails{ended}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_sidecar_flags_are_parsed() {
        assert_eq!(duration("60s"), Some(Duration::from_mins(1)));
        assert_eq!(duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(duration("1.5s"), Some(Duration::from_millis(1500)));
        for odd in ["", "5", "x", "5d", "s"] {
            assert_eq!(duration(odd), None, "{odd}");
        }
    }
}
