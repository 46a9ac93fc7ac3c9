//! The status of a home pod: that of its remote pod, except for what the home cluster knows better, and for
//! addresses, of which only those that are reachable from home are kept.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::{Change, GATE, Waiting};
use crate::offload::{bounds::bounded, cut};

const PHASES: [&str; 5] = ["Pending", "Running", "Succeeded", "Failed", "Unknown"];
/// The container statuses, and where the spec lists their containers. Only containers of the home pod count:
/// others were added to the remote pod there.
const CONTAINERS: [(&str, &str); 3] = [
    ("containerStatuses", "containers"),
    ("initContainerStatuses", "initContainers"),
    ("ephemeralContainerStatuses", "ephemeralContainers"),
];
/// The longest message of a waiting pod.
const LONGEST_WAIT: usize = 1024;
/// Conditions that only the remote pod can have, or that it reported: those that it no longer has are
/// removed.
const OF_REMOTE: [&str; 7] = [
    "AllContainersRestarting",
    "ContainersReady",
    "Initialized",
    "PodReadyToStartContainers",
    "PodResizeInProgress",
    "PodResizePending",
    READY,
];
const READY: &str = "Ready";
/// The reason of a pod that no remote node accepts; its message is that of the remote scheduler.
pub const UNSCHEDULABLE: &str = "RemoteUnschedulable";
/// The reason of a pod that others deleted in the remote cluster.
pub const DELETED_REMOTELY: &str = "DeletedRemotely";
const DISRUPTED: &str = "DisruptionTarget";
/// Condition of a home pod that may have run: its message is the uid of the remote pod.
pub const STARTED: &str = "fabric.storage.liqo.io/RemotePodStarted";

/// The part of the remote pod's status that is used. It is stored in the home pod, so it is limited to known
/// fields and to the size that an honest cluster needs.
fn said(home: &Value, remote: &Value) -> Map<String, Value> {
    let status = &remote["status"];
    let mut said = Map::new();
    for field in ["allocatedResources", "message", "phase", "reason", "resources"] {
        said.insert(field.to_owned(), status[field].clone());
    }
    for (field, listed) in CONTAINERS {
        let names = home["spec"][listed].as_array().into_iter().flatten();
        let names = names.filter_map(|it| it["name"].as_str()).collect();
        let mut of_known = first_of(&status[field], "name", names);
        for one in &mut of_known {
            keep_requested(one, &home["spec"][listed]);
        }
        said.insert(
            field.to_owned(),
            if of_known.is_empty() {
                Value::Null
            } else {
                of_known.into()
            },
        );
    }
    let known = OF_REMOTE.into_iter().chain([DISRUPTED]).collect();
    said.insert(
        "conditions".to_owned(),
        first_of(&status["conditions"], "type", known).into(),
    );
    bounded(&said)
}

/// Removes the health of devices that the home container does not request: webhooks there have added them, and the
/// API server at home would refuse the whole status.
fn keep_requested(container: &mut Value, listed: &Value) {
    let mut listed = listed.as_array().into_iter().flatten();
    let requested = listed.find(|it| it["name"] == container["name"]);
    let requested = requested.map(|it| &it["resources"]["requests"]);
    let is_requested = |device: &Value| {
        let name = device["name"].as_str().unwrap_or_default();
        requested.is_some_and(|all| !all[name].is_null())
    };
    let Some(devices) = container["allocatedResourcesStatus"].as_array() else {
        return;
    };
    let devices: Vec<Value> = devices.iter().filter(|it| is_requested(it)).cloned().collect();
    container["allocatedResourcesStatus"] = if devices.is_empty() {
        Value::Null
    } else {
        devices.into()
    };
}

/// The first entry for each known key.
fn first_of(list: &Value, key: &str, mut known: Vec<&str>) -> Vec<Value> {
    let list = list.as_array().into_iter().flatten();
    list.filter(|it| {
        let at = known.iter().position(|known| it[key] == **known);
        at.map(|at| known.swap_remove(at)).is_some()
    })
    .cloned()
    .collect()
}

/// The merge patch that makes the home pod's status that of the remote pod, without metadata. `addresses` are
/// those at which the pod is reachable from home.
#[must_use]
pub fn remote_status(home: &Value, remote: &Value, addresses: &[IpAddr]) -> Value {
    let mut status = said(home, remote);
    let list: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    status.insert("podIP".into(), json!(addresses.first()));
    status.insert(
        "podIPs".into(),
        if list.is_empty() { Value::Null } else { list.into() },
    );
    if !PHASES.iter().any(|phase| status["phase"] == *phase) {
        status.insert("phase".into(), "Pending".into());
    }
    let is_deleted_by_others =
        home["metadata"]["deletionTimestamp"].is_null() && !remote["metadata"]["deletionTimestamp"].is_null();
    let has_ended = matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
    if is_deleted_by_others && has_ended && !is_finite(&home["spec"]) {
        status.insert("phase".into(), "Failed".into());
        if status["reason"].is_null() {
            status.insert("reason".into(), DELETED_REMOTELY.into());
            status.insert(
                "message".into(),
                "its pod in the remote cluster was deleted there".into(),
            );
        }
    }
    if let Some(why) = unscheduled(remote) {
        status.insert("reason".into(), UNSCHEDULABLE.into());
        status.insert("message".into(), why.into());
    }
    let observed = observed_generation(home, remote);
    if let Some(generation) = observed {
        status.insert("observedGeneration".into(), generation.into());
    }
    let conditions = conditions(home, remote, &status["conditions"], observed);
    status.insert("conditions".into(), conditions);
    status.into()
}

/// Whether a pod may terminate by itself, because no container is always restarted. Others terminate only because they are
/// deleted, whatever their exit code is.
#[must_use]
pub fn is_finite(spec: &Value) -> bool {
    let of_pod = spec["restartPolicy"].as_str();
    let mut containers = spec["containers"].as_array().into_iter().flatten();
    containers.all(|it| {
        let policy = it["restartPolicy"].as_str().or(of_pod);
        matches!(policy, Some("Never" | "OnFailure"))
    })
}

/// The generation of the home pod, if all of its spec was carried to the remote pod, and the kubelet there has
/// acted on it. The remote pod has a generation of its own.
fn observed_generation(home: &Value, remote: &Value) -> Option<i64> {
    let generation = |pod: &Value| pod["metadata"]["generation"].as_i64();
    let is_acted_on = remote["status"]["observedGeneration"].as_i64()? >= generation(remote)?;
    let mut of_spec = Change::ALL.into_iter().filter(|it| *it != Change::Metadata);
    let is_carried = of_spec.all(|change| change.patches(home, remote).is_empty());
    generation(home).filter(|_| is_acted_on && is_carried)
}

/// The merge patch of a pod whose remote pod, of this uid, is about to start.
#[must_use]
pub fn started_status(home: &Value, remote: &str, now: &str) -> Value {
    let started = json!({
        "type": STARTED, "status": "True", "reason": "Started", "message": remote, "lastTransitionTime": now,
    });
    let others = own(home).filter(|it| it["type"] != STARTED).cloned();
    json!({"startTime": now, "conditions": others.chain([started]).collect::<Vec<_>>()})
}

/// The merge patch of a pod that waits.
#[must_use]
pub fn waiting_status(waiting: &Waiting) -> Value {
    json!({"phase": "Pending", "reason": waiting.reason, "message": cut(&waiting.message, LONGEST_WAIT)})
}

/// The merge patch of a pod whose cluster is unreachable, so that its state is unknown.
#[must_use]
pub fn unreachable_status(home: &Value, now: &str) -> Value {
    let conditions = own(home).cloned().map(|mut condition| {
        let ready = matches!(condition["type"].as_str(), Some(READY | "ContainersReady"));
        if ready && condition["status"] == "True" {
            condition["status"] = "False".into();
            condition["reason"] = "NodeStatusUnknown".into();
            condition["message"] = "the remote cluster does not answer".into();
            condition["lastTransitionTime"] = now.into();
        }
        condition
    });
    json!({ "conditions": conditions.collect::<Vec<_>>() })
}

/// The merge patch of a pod that is disrupted: a Job may ignore such an end.
#[must_use]
pub fn disrupted_status(home: &Value, reason: &str, message: &str, now: &str) -> Value {
    let disrupted = json!({
        "type": DISRUPTED, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now,
    });
    let others = own(home).filter(|it| it["type"] != DISRUPTED).cloned();
    json!({"conditions": others.chain([disrupted]).collect::<Vec<_>>()})
}

/// The merge patch of a pod whose remote pod does not exist any more and has not terminated: it has
/// failed. `None` if it has terminated already. A pod that is being deleted gets no condition
/// `DisruptionTarget`: an eviction has set it already, and a deletion by a user is no disruption.
#[must_use]
pub fn final_status(home: &Value, reason: &str, message: &str, now: &str) -> Option<Value> {
    if matches!(home["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let mut status = if home["metadata"]["deletionTimestamp"].is_null() {
        disrupted_status(home, reason, message, now)
    } else {
        json!({"conditions": own(home).collect::<Vec<_>>()})
    };
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        if matches!(condition["type"].as_str(), Some(READY | "ContainersReady")) {
            condition["status"] = "False".into();
            condition["reason"] = "PodFailed".into();
        }
    }
    for (field, value) in [("phase", "Failed"), ("reason", reason), ("message", message)] {
        status[field] = value.into();
    }
    for (list, _) in CONTAINERS {
        if let Some(all) = home["status"][list].as_array() {
            let ended = all.iter().map(|it| ended(it, message, now));
            status[list] = ended.collect();
        }
    }
    Some(status)
}

/// The merge patch of a deleted pod, if all its containers have succeeded: the phase that a kubelet
/// sets just before it deletes a pod. `None` if it has terminated already, or if another container
/// has ended, because of the deletion or before a restart.
#[must_use]
pub fn ended_status(home: &Value) -> Option<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let statuses = list(&home["status"]["containerStatuses"]);
    let has_succeeded = |it: &Value| it["state"]["terminated"]["exitCode"] == 0;
    let have_all = !statuses.is_empty()
        && statuses.len() == list(&home["spec"]["containers"]).len()
        && statuses.iter().all(has_succeeded);
    let is_over = matches!(home["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    (have_all && !is_over).then(|| json!({"phase": "Succeeded"}))
}

/// The status of a container whose end was not observed, as kubelet writes it.
fn ended(container: &Value, message: &str, now: &str) -> Value {
    let running = &container["state"]["running"];
    let mut container = container.clone();
    if !running.is_null() {
        container["state"] = json!({"terminated": {
            "exitCode": 137, "reason": "ContainerStatusUnknown", "message": message, "startedAt": running["startedAt"],
            "finishedAt": now, "containerID": container["containerID"],
        }});
    }
    container["ready"] = false.into();
    container["started"] = false.into();
    container
}

/// The part of [`final_status`] that still fits into an object that has reached its size limit.
#[must_use]
pub fn least_final_status(status: &Value) -> Value {
    json!({"phase": status["phase"], "message": null, "containerStatuses": null, "initContainerStatuses": null})
}

/// Whether controllers act on the change: the phase, the addresses, or readiness.
#[must_use]
pub fn is_transition(before: &Value, now: &Value) -> bool {
    let readiness = |status: &Value| -> Vec<Value> {
        let all = status["conditions"].as_array().into_iter().flatten();
        let all = all.filter(|it| it["type"] == READY || it["type"] == "ContainersReady");
        all.map(|it| it["status"].clone()).collect()
    };
    before["phase"] != now["phase"]
        || before["podIPs"] != now["podIPs"]
        || readiness(before) != readiness(now)
}

fn own(home: &Value) -> impl Iterator<Item = &Value> {
    home["status"]["conditions"].as_array().into_iter().flatten()
}

/// The message of the remote scheduler, if it finds no node for the pod; or the scheduling gates
/// that keep it from searching one.
fn unscheduled(remote: &Value) -> Option<String> {
    let all = remote["status"]["conditions"].as_array()?;
    let scheduled = all.iter().find(|it| it["type"] == "PodScheduled")?;
    let gates = remote["spec"]["schedulingGates"].as_array().into_iter().flatten();
    let gates: Vec<&str> = gates.filter_map(|gate| gate["name"].as_str()).collect();
    let why = match scheduled["reason"].as_str() {
        _ if scheduled["status"] != "False" => return None,
        Some("Unschedulable") => scheduled["message"].as_str().unwrap_or_default().to_owned(),
        // The fabric's gate is removed soon. Others are added by queueing systems in the remote
        // cluster.
        Some("SchedulingGated") if !gates.is_empty() && !gates.contains(&GATE) => {
            format!("its scheduling gates there are not removed: {}", gates.join(", "))
        }
        _ => return None,
    };
    Some(cut(&why, LONGEST_WAIT))
}

/// Conditions of the home cluster stay; those of the remote pod, which are `said`, replace its previous ones.
fn conditions(home: &Value, remote: &Value, said: &Value, observed: Option<i64>) -> Value {
    let remote_ones: Vec<&Value> = said.as_array().into_iter().flatten().collect();
    let gates: Vec<&str> = home["spec"]["readinessGates"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|gate| gate["conditionType"].as_str())
        .collect();
    let is_gate = |condition: &Value| gates.iter().any(|gate| condition["type"] == *gate);
    let is_replaced = |condition: &Value| {
        let kind = condition["type"].as_str().unwrap_or_default();
        OF_REMOTE.contains(&kind) || remote_ones.iter().any(|it| it["type"] == kind)
    };
    let kept = own(home).filter(|it| !is_replaced(it) || is_gate(it));
    let met = |gate: &&str| own(home).any(|it| it["type"] == **gate && it["status"] == "True");
    let unmet: Vec<&str> = gates.iter().copied().filter(|gate| !met(gate)).collect();
    let since = |it: &Value| it["lastTransitionTime"].as_str().map(str::to_owned);
    let last_gate = own(home).filter(|it| is_gate(it)).filter_map(since).max();
    let taken = remote_ones.iter().filter(|it| !is_gate(it)).map(|&it| {
        let mut condition = it.clone();
        let generation = generation_of(home, remote, it, observed);
        if let Some(condition) = condition.as_object_mut() {
            condition.remove("observedGeneration");
            condition.extend(generation.map(|it| ("observedGeneration".to_owned(), it.into())));
        }
        if condition["type"] == READY && condition["status"] == "True" {
            // Controllers count from then on for how long a pod has been ready.
            if let Some(since) = since(it).max(last_gate.clone()) {
                condition["lastTransitionTime"] = since.into();
            }
            if !unmet.is_empty() {
                condition["status"] = "False".into();
                condition["reason"] = "ReadinessGatesNotReady".into();
                condition["message"] = format!("not met at home: {}", unmet.join(", ")).into();
            }
        }
        condition
    });
    // A kubelet also updates observedGeneration of the scheduler's condition.
    let kept = kept.cloned().map(|mut condition| {
        let is_named = condition["observedGeneration"].is_number() && condition["type"] == "PodScheduled";
        if let Some(generation) = observed.filter(|_| is_named) {
            condition["observedGeneration"] = generation.into();
        }
        condition
    });
    kept.chain(taken).collect::<Vec<_>>().into()
}

/// The generation of the home pod that a condition of the remote pod is about: while a later one is not observed,
/// that which the condition at home names.
fn generation_of(home: &Value, remote: &Value, condition: &Value, observed: Option<i64>) -> Option<i64> {
    let of_remote = condition["observedGeneration"].as_i64()?;
    let is_current = remote["metadata"]["generation"].as_i64() == Some(of_remote);
    let before = || {
        let mut before = own(home).filter(|it| it["type"] == condition["type"]);
        before.next()?["observedGeneration"].as_i64()
    };
    observed.filter(|_| is_current).or_else(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::pods::{RemoteMarks, RemoteSettings, remote_pod};

    fn condition(kind: &str, status: &str) -> Value {
        json!({"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    fn find<'a>(status: &'a Value, kind: &str) -> &'a Value {
        let all = status["conditions"].as_array().unwrap();
        all.iter().find(|it| it["type"] == kind).unwrap()
    }

    #[test]
    fn the_remote_status_is_copied_except_host_and_scheduling() {
        let home = json!({"spec": {"containers": [{"name": "web"}]}, "status": {"phase": "Pending", "qosClass": "Burstable", "conditions": [
            condition("PodScheduled", "True"), condition("Ready", "False"),
        ]}});
        let remote = json!({"status": {
            "phase": "Running", "podIP": "10.0.0.1", "hostIP": "192.0.2.1", "startTime": "2026-01-01T00:00:00Z",
            "nominatedNodeName": "n1", "containerStatuses": [{"name": "web"}], "resources": {"requests": {"cpu": "1"}},
            "conditions": [condition("PodScheduled", "False"), condition("Ready", "True")],
        }});
        let status = remote_status(&home, &remote, &[]);
        assert_eq!(status["phase"], "Running");
        assert_eq!(status["containerStatuses"], json!([{"name": "web"}]));
        assert_eq!(status["initContainerStatuses"], Value::Null);
        assert_eq!(status["resources"], json!({"requests": {"cpu": "1"}}));
        assert_eq!(find(&status, "PodScheduled")["status"], "True");
        assert_eq!(find(&status, "Ready")["status"], "True");
        for field in ["hostIP", "startTime", "nominatedNodeName", "qosClass"] {
            assert!(status.get(field).is_none(), "{field}");
        }
        assert_eq!(
            remote_status(&json!({"status": status.clone()}), &remote, &[])["conditions"],
            status["conditions"]
        );
    }

    #[test]
    fn the_started_condition_exists_only_at_home() {
        let named = |uid: &str| json!([{"type": STARTED, "status": "True", "message": uid}]);
        let home = json!({"status": {"conditions": named("remote")}});
        let remote = json!({"status": {"phase": "Running", "conditions": named("further")}});
        assert_eq!(remote_status(&home, &remote, &[])["conditions"], named("remote"));
    }

    #[test]
    fn statuses_of_ephemeral_containers_are_copied() {
        let named = |names: &[&str]| -> Value { names.iter().map(|name| json!({"name": name})).collect() };
        let remote = json!({"status": {"phase": "Running", "ephemeralContainerStatuses": named(&["debug", "theirs"])}});
        let home = json!({"spec": {"ephemeralContainers": named(&["debug", "later"])}});
        let said = |home: &Value| remote_status(home, &remote, &[])["ephemeralContainerStatuses"].clone();
        assert_eq!(said(&home), named(&["debug"]));
        assert_eq!(said(&json!({})), Value::Null);
    }

    #[test]
    fn fields_removed_from_the_remote_status_are_removed() {
        let home = json!({"status": {"conditions": [condition("PodResizePending", "True"), condition("lb", "True")]}});
        let remote = json!({"status": {"phase": "Running", "conditions": [condition("Ready", "True")]}});
        let status = remote_status(&home, &remote, &[]);
        let kinds: Vec<&Value> = status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| &it["type"])
            .collect();
        assert_eq!(kinds, ["lb", "Ready"]);
    }

    #[test]
    fn the_status_has_only_the_given_pod_ips() {
        let remote = json!({"status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}});
        let home = json!({"status": {"podIP": "10.64.0.1", "podIPs": [{"ip": "10.64.0.1"}]}});
        let status = remote_status(&home, &remote, &[]);
        assert_eq!(
            (&status["podIP"], &status["podIPs"]),
            (&Value::Null, &Value::Null)
        );
        assert!(
            status.as_object().unwrap().contains_key("podIP"),
            "the previous condition is removed"
        );
        let both = ["10.64.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let status = remote_status(&home, &remote, &both);
        assert_eq!(status["podIP"], "10.64.0.2");
        assert_eq!(status["podIPs"], json!([{"ip": "10.64.0.2"}, {"ip": "fd00::2"}]));
    }

    #[test]
    fn readiness_gates_of_the_home_pod_must_be_met() {
        let remote = json!({"status": {"phase": "Running", "conditions": [condition("Ready", "True")]}});
        let home = |gate: &str| {
            json!({
                "spec": {"readinessGates": [{"conditionType": "lb"}]},
                "status": {"conditions": [condition("lb", gate)]},
            })
        };
        let status = remote_status(&home("False"), &remote, &[]);
        assert_eq!(find(&status, "Ready")["reason"], "ReadinessGatesNotReady");
        assert_eq!(find(&status, "lb")["status"], "False");
        assert_eq!(
            find(&remote_status(&home("True"), &remote, &[]), "Ready")["status"],
            "True"
        );
    }

    #[test]
    fn a_pod_is_ready_since_its_last_gate_was_met() {
        let at = |kind: &str, minute: u8| {
            let mut condition = condition(kind, "True");
            condition["lastTransitionTime"] = format!("2026-01-01T00:0{minute}:00Z").into();
            condition
        };
        let since = |gate: u8, remote: u8| {
            let home = json!({
                "spec": {"readinessGates": [{"conditionType": "lb"}]}, "status": {"conditions": [at("lb", gate)]},
            });
            let remote = json!({"status": {"phase": "Running", "conditions": [at("Ready", remote)]}});
            find(&remote_status(&home, &remote, &[]), "Ready")["lastTransitionTime"].clone()
        };
        assert_eq!(since(5, 2), "2026-01-01T00:05:00Z");
        assert_eq!(since(2, 5), "2026-01-01T00:05:00Z");
    }

    #[test]
    fn the_observed_generation_is_set_when_the_remote_pod_has_applied_all_changes() {
        let home = |image: &str| {
            let [mut ready, mut scheduled] = ["Ready", "PodScheduled"].map(|kind| condition(kind, "True"));
            ready["observedGeneration"] = 6.into();
            scheduled["observedGeneration"] = 1.into();
            json!({
                "metadata": {"name": "web", "generation": 7},
                "spec": {"containers": [{"name": "web", "image": image}]},
                "status": {"observedGeneration": 6, "conditions": [ready, scheduled]},
            })
        };
        let remote = |observed: i64| {
            let made = remote_pod(
                &home("web:1"),
                &RemoteMarks::default(),
                &RemoteSettings::default(),
            );
            let mut remote = made.unwrap();
            remote["metadata"]["generation"] = 3.into();
            let mut ready = condition("Ready", "True");
            ready["observedGeneration"] = observed.into();
            remote["status"] =
                json!({"phase": "Running", "observedGeneration": observed, "conditions": [ready]});
            remote
        };
        for (home, remote, observed, of_condition) in [
            (home("web:1"), remote(3), json!(7), json!(7)),
            (home("web:1"), remote(2), Value::Null, json!(6)),
            (home("web:2"), remote(3), Value::Null, json!(6)),
        ] {
            let status = remote_status(&home, &remote, &[]);
            assert_eq!(status["observedGeneration"], observed);
            assert_eq!(find(&status, "Ready")["observedGeneration"], of_condition);
            let of_scheduler = if observed.is_null() { 1 } else { 7 };
            assert_eq!(find(&status, "PodScheduled")["observedGeneration"], of_scheduler);
        }
        let mut older = remote(3);
        older["status"] = json!({"phase": "Running", "conditions": [condition("Ready", "True")]});
        let status = remote_status(&home("web:1"), &older, &[]);
        assert_eq!(status["observedGeneration"], Value::Null);
        assert_eq!(find(&status, "Ready")["observedGeneration"], Value::Null);
    }

    #[test]
    fn the_health_of_devices_that_only_the_remote_pod_has_is_left_out() {
        let home = json!({"spec": {"containers": [
            {"name": "own", "resources": {"requests": {"nvidia.com/gpu": "1"}}}, {"name": "added"},
        ]}});
        let devices = |names: &[&str]| -> Value { names.iter().map(|it| json!({"name": it})).collect() };
        let with = |name: &str, devices: Value| json!({"name": name, "allocatedResourcesStatus": devices});
        let both = devices(&["nvidia.com/gpu", "rdma/hca"]);
        let remote = json!({"status": {
            "phase": "Running", "containerStatuses": [with("own", both.clone()), with("added", both)],
        }});
        let status = remote_status(&home, &remote, &[]);
        let of = |at: usize| &status["containerStatuses"][at]["allocatedResourcesStatus"];
        assert_eq!((of(0), of(1)), (&devices(&["nvidia.com/gpu"]), &Value::Null));
    }

    #[test]
    fn a_pod_that_always_restarts_has_failed_if_it_is_deleted_there() {
        let phase = |spec: Value, reason: Value, phase: &str| {
            let home = json!({ "spec": spec });
            let remote = json!({
                "metadata": {"deletionTimestamp": "now"}, "status": {"phase": phase, "reason": reason},
            });
            let status = remote_status(&home, &remote, &[]);
            (status["phase"].clone(), status["reason"].clone())
        };
        let containers = |own: Value| json!([{"name": "a"}, {"name": "b", "restartPolicy": own}]);
        let always = json!({"restartPolicy": "Always", "containers": containers(Value::Null)});
        for (spec, reason, there, expected) in [
            (
                &always,
                json!(null),
                "Succeeded",
                ("Failed", json!(DELETED_REMOTELY)),
            ),
            (&always, json!("Evicted"), "Failed", ("Failed", json!("Evicted"))),
            (&always, json!(null), "Running", ("Running", json!(null))),
            (
                &json!({"restartPolicy": "Never", "containers": containers(Value::Null)}),
                json!(null),
                "Succeeded",
                ("Succeeded", json!(null)),
            ),
            (
                &json!({"restartPolicy": "Never", "containers": containers("Always".into())}),
                json!(null),
                "Succeeded",
                ("Failed", json!(DELETED_REMOTELY)),
            ),
        ] {
            assert_eq!(
                phase(spec.clone(), reason, there),
                (json!(expected.0), expected.1)
            );
        }
    }

    #[test]
    fn an_unschedulable_remote_pod_is_reported() {
        let mut waits = condition("PodScheduled", "False");
        waits["reason"] = "Unschedulable".into();
        waits["message"] = "0/3 nodes".into();
        let status = remote_status(
            &json!({}),
            &json!({"status": {"phase": "Pending", "conditions": [waits]}}),
            &[],
        );
        assert_eq!(
            (&status["reason"], &status["message"]),
            (&json!("RemoteUnschedulable"), &json!("0/3 nodes"))
        );
    }

    #[test]
    fn a_remote_pod_with_scheduling_gates_is_reported() {
        let mut waits = condition("PodScheduled", "False");
        waits["reason"] = "SchedulingGated".into();
        let message = |gates: &[&str]| {
            let gates: Value = gates.iter().map(|name| json!({"name": name})).collect();
            let remote = json!({
                "spec": {"schedulingGates": gates}, "status": {"phase": "Pending", "conditions": [waits]},
            });
            remote_status(&json!({}), &remote, &[])["message"].clone()
        };
        let theirs = "kueue.x-k8s.io/admission";
        assert_eq!(
            message(&[theirs]),
            format!("its scheduling gates there are not removed: {theirs}")
        );
        assert_eq!(message(&[theirs, GATE]), Value::Null);
        assert_eq!(
            message(&[]),
            Value::Null,
            "it is not seen yet that the last one is gone"
        );
    }

    #[test]
    fn a_final_phase_is_never_overwritten() {
        for phase in ["Succeeded", "Failed"] {
            let home = json!({"status": {"phase": phase}});
            assert_eq!(final_status(&home, "Gone", "it is gone", "now"), None);
        }
        let home = json!({"status": {"phase": "Running", "conditions": [condition("Ready", "True")]}});
        let status = final_status(&home, "Gone", "it is gone", "now").unwrap();
        assert_eq!(status["phase"], "Failed");
        assert_eq!(find(&status, "DisruptionTarget")["status"], "True");
        assert_eq!(find(&status, "Ready")["status"], "False");
        assert_eq!(status.get("containerStatuses"), None);
    }

    /// A Job whose `podFailurePolicy` ignores disruptions counts a pod that a user deletes.
    #[test]
    fn a_deleted_pod_gets_a_disruption_condition_only_if_it_was_disrupted() {
        let ready = json!({"conditions": [condition("Ready", "True")]});
        let mut home = json!({"metadata": {"deletionTimestamp": "now"}, "status": ready});
        let kinds = |home: &Value| {
            let status = final_status(home, "Terminated", "it is gone", "now").unwrap();
            assert_eq!(
                (&status["phase"], &status["reason"]),
                (&json!("Failed"), &json!("Terminated"))
            );
            let all = status["conditions"].as_array().unwrap().iter();
            all.map(|it| it["type"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&home), ["Ready"]);
        home["status"]["conditions"] =
            disrupted_status(&home, "DeletedRemotely", "it was deleted there", "now")["conditions"].clone();
        assert_eq!(kinds(&home), ["Ready", DISRUPTED]);
    }

    #[test]
    fn a_pod_has_succeeded_only_if_all_containers_exited_with_zero() {
        let ended = |code: i64| json!({"state": {"terminated": {"exitCode": code}}});
        let runs = json!({"state": {"running": {}}});
        for (phase, containers, wanted) in [
            ("Running", vec![ended(0), ended(0)], Some("Succeeded")),
            ("Running", vec![ended(0), ended(143)], None),
            ("Running", vec![ended(0), runs], None),
            ("Running", vec![ended(0)], None),
            ("Pending", vec![], None),
            ("Failed", vec![ended(0), ended(0)], None),
        ] {
            let home = json!({
                "spec": {"containers": [{"name": "a"}, {"name": "b"}]},
                "status": {"phase": phase, "containerStatuses": containers},
            });
            let wanted = wanted.map(|phase| json!({ "phase": phase }));
            assert_eq!(ended_status(&home), wanted, "{containers:?}");
        }
    }

    /// Another finalizer may hold the home pod: what is in it must not say that its containers run.
    #[test]
    fn containers_of_a_deleted_remote_pod_are_reported_as_terminated() {
        let containers = json!([
            {"name": "ran", "ready": true, "started": true, "containerID": "c://1", "state": {"running": {"startedAt": "then"}}},
            {"name": "ended", "ready": false, "state": {"terminated": {"exitCode": 3}}},
            {"name": "never", "ready": false, "state": {"waiting": {"reason": "ContainerCreating"}}},
        ]);
        let home = json!({"status": {"phase": "Running", "containerStatuses": containers}});
        let status = final_status(&home, "Gone", "it is gone", "now").unwrap();
        let all = &status["containerStatuses"];
        let ran = &all[0]["state"]["terminated"];
        assert_eq!(
            (&ran["reason"], &ran["exitCode"]),
            (&json!("ContainerStatusUnknown"), &json!(137))
        );
        assert_eq!(
            (&ran["startedAt"], &ran["finishedAt"]),
            (&json!("then"), &json!("now"))
        );
        assert_eq!(
            (&all[0]["ready"], &all[0]["started"]),
            (&json!(false), &json!(false))
        );
        assert_eq!(all[1]["state"], containers[1]["state"]);
        assert_eq!(all[2]["state"], containers[2]["state"]);
    }

    #[test]
    fn a_pod_of_an_unreachable_cluster_is_not_ready() {
        let home = json!({"status": {"conditions": [condition("PodScheduled", "True"), condition("Ready", "True")]}});
        let status = unreachable_status(&home, "now");
        assert_eq!(find(&status, "Ready")["status"], "False");
        assert_eq!(find(&status, "PodScheduled")["status"], "True");
        let again = json!({ "status": status });
        assert_eq!(unreachable_status(&again, "later"), again["status"]);
    }

    #[test]
    fn a_status_from_a_hostile_cluster_is_bounded() {
        let home = json!({"spec": {"containers": [{"name": "web"}]}, "status": {"conditions": [condition("lb", "True")]}});
        let mut conditions: Vec<Value> = (0..10_000)
            .map(|at| condition(&format!("x.io/a{at}"), "True"))
            .collect();
        conditions.extend([
            condition(STARTED, "True"),
            condition("Ready", "True"),
            condition("Ready", "False"),
        ]);
        let mut containers: Vec<Value> = (0..1000).map(|at| json!({"name": format!("c{at}")})).collect();
        let web = json!({"name": "web", "image": "i".repeat(2 << 20), "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}});
        containers.extend([web.clone(), web]);
        let remote = json!({"status": {
            "phase": "Odd", "reason": "r".repeat(2 << 20), "message": "m".repeat(2 << 20), "conditions": conditions,
            "containerStatuses": containers,
        }});
        let status = remote_status(&home, &remote, &[]);
        let kinds: Vec<&Value> = status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| &it["type"])
            .collect();
        assert_eq!(kinds, ["lb", "Ready"]);
        assert_eq!(find(&status, "Ready")["status"], "True", "the first counts");
        assert_eq!(status["phase"], "Pending");
        let names: Vec<&Value> = status["containerStatuses"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| &it["name"])
            .collect();
        assert_eq!(names, ["web"]);
        assert_eq!(
            status["containerStatuses"][0]["state"]["running"]["startedAt"],
            "2026-01-01T00:00:00Z"
        );
        assert!(
            status.to_string().len() < 64 << 10,
            "{}",
            status.to_string().len()
        );
        let again = remote_status(&json!({"spec": home["spec"], "status": status}), &remote, &[]);
        assert_eq!(again, status, "nothing to write");
        let waiting = Waiting {
            reason: "RemoteUnreachable",
            message: "m".repeat(2 << 20),
        };
        assert!(waiting_status(&waiting).to_string().len() < 2048);
    }
}
