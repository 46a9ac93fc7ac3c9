//! Whether a pod that no remote node accepts, or that the remote cluster refuses, is given up: it
//! is deleted, so that its controller creates another one, which prefers other clusters. The pod
//! never runs if its remote pod is deleted before it has a node, or was refused and so does not
//! exist.

use std::time::Duration;

use serde_json::Value;

use crate::offload::is_remote_only;

/// Controllers that replace each deleted pod, by API group and kind. A Job is not one of them: it
/// counts a deleted pod as failed. Nor are kinds of which this is not documented: their pods could
/// be lost.
const REPLACING: [(&str, &str); 5] = [
    ("", "ReplicationController"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    // https://github.com/strimzi/proposals/blob/main/031-statefulset-removal.md
    ("core.strimzi.io", "StrimziPodSet"),
    // https://cloudnative-pg.io/documentation/1.21/failure_modes/
    ("postgresql.cnpg.io", "Cluster"),
];
/// The shortest time between two pods of one controller that are given up. What blocks giving up a
/// pod is read again after the same time.
const PAUSE: Duration = Duration::from_mins(1);
const LONGEST_AVOIDED: Duration = Duration::from_mins(30);
/// The maximum number of entries in the status of a namespace, which every API server at home
/// evaluates.
const MOST_AVOIDED: usize = 64;

/// A pod that waits for a remote node, or that the remote cluster refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// The uid of the controller of its home pod.
    pub controller: String,
    /// The message of the remote scheduler, or the reason of the refusal.
    pub why: String,
}

/// A cluster that new pods of a controller avoid if they can. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Avoided {
    /// The uid of the controller.
    pub controller: String,
    pub cluster: String,
    /// When a pod of the controller was last given up there.
    pub since: i64,
    pub until: i64,
}

/// Facts that are read only if a pod has waited long enough.
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one pod")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeferredFacts {
    /// Whether new pods of the namespace may run at home or in remote clusters, read live.
    pub may_run_anywhere: bool,
    /// Whether the policy exists by which the next pod avoids the cluster.
    pub is_avoidable: bool,
    /// Whether a claim of the pod has its data in the cluster.
    pub is_tied: bool,
    /// Whether an autoscaler in the cluster adds a node for the pod.
    pub scales_up: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct UnplacedFacts<'a> {
    pub pod: &'a Unplaced,
    pub cluster: &'a str,
    /// For how long the pod has been observed waiting.
    pub waited: Duration,
    /// The time after which such pods are given up; `None` for never.
    pub give_up_after: Option<Duration>,
    /// The avoided clusters in the status of the namespace.
    pub avoided: &'a [Avoided],
    /// Seconds since 1970.
    pub now: i64,
    pub deferred: Option<DeferredFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnplacedStep {
    /// The pod keeps waiting.
    Stay,
    /// The pod keeps waiting, and is checked again after this time.
    StayFor(Duration),
    /// Read the [`DeferredFacts`] and decide again.
    Read,
    /// Write this to the status as the clusters that pods of the namespace avoid, then delete the
    /// remote pod.
    GiveUp(Vec<Avoided>),
}

/// The remote pod in this cluster, if it waits for a node and may be given up: no node is nominated for it, its
/// controller replaces it however it ended, and the scheduler at home chose its node and can choose
/// another one for the next pod.
#[must_use]
pub fn unplaced(cluster: &str, home: &Value, remote: &Value) -> Option<Unplaced> {
    let is_set = |value: &Value| value.as_str().is_some_and(|it| !it.is_empty());
    let is_gated = |pod: &Value| {
        pod["spec"]["schedulingGates"]
            .as_array()
            .is_some_and(|it| !it.is_empty())
    };
    if is_set(&remote["metadata"]["deletionTimestamp"])
        || is_gated(remote)
        || is_set(&remote["spec"]["nodeName"])
        || is_set(&remote["status"]["nominatedNodeName"])
    {
        return None;
    }
    let scheduled = condition(remote, "PodScheduled")?;
    let waits = scheduled["status"] == "False" && scheduled["reason"] == "Unschedulable";
    let why = scheduled["message"].as_str().unwrap_or_default();
    waits.then(|| replaceable(cluster, home, why)).flatten()
}

/// A home pod that does not run for this reason, if its controller replaces it however it ended,
/// and the scheduler at home chose its node and can choose another one for the next pod.
#[must_use]
pub fn replaceable(cluster: &str, home: &Value, why: &str) -> Option<Unplaced> {
    let owner = controller(home).filter(|owner| replaces(owner) && may_go_back(cluster, home))?;
    Some(Unplaced {
        controller: owner["uid"].as_str().unwrap_or_default().to_owned(),
        why: why.to_owned(),
    })
}

/// Why a home pod that the scheduler could place elsewhere is not given up, and the way out, if
/// that is because of its controller.
#[must_use]
pub fn irreplaceable(cluster: &str, home: &Value) -> Option<String> {
    let owner = controller(home);
    if owner.is_some_and(replaces) || !may_go_back(cluster, home) {
        return None;
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some(match owner {
        Some(owner) => format!(
            "It does not go back by itself, because its controller, the {} {}, is not known to replace each pod that is \
             deleted. If it does, cordon the node {} and delete the pod",
            text(&owner["kind"]),
            text(&owner["name"]),
            text(&home["spec"]["nodeName"])
        ),
        None => "It does not go back by itself, because it has no controller that replaces it: delete it, and create it \
                 again with the node affinity liqo.io/type NotIn [virtual-node]"
            .to_owned(),
    })
}

fn controller(home: &Value) -> Option<&Value> {
    let owners = home["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|it| it["controller"] == true)
}

fn replaces(owner: &Value) -> bool {
    let version = owner["apiVersion"].as_str().unwrap_or_default();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    REPLACING
        .iter()
        .any(|(of, kind)| group == *of && owner["kind"] == *kind)
}

/// Whether the scheduler chose its node, and may choose another one for the next pod.
fn may_go_back(cluster: &str, home: &Value) -> bool {
    let is_deleted = home["metadata"]["deletionTimestamp"].is_string();
    !is_deleted && is_scheduled(home) && may_run_elsewhere(cluster, &home["spec"])
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = pod["status"]["conditions"].as_array()?;
    all.iter().find(|it| it["type"] == kind)
}

/// Whether the scheduler chose its node. If the template names the node, the next pod would have
/// the same one.
fn is_scheduled(pod: &Value) -> bool {
    condition(pod, "PodScheduled").is_some_and(|it| it["status"] == "True")
}

/// Whether the pod may run at home or in another cluster: neither `RuntimeClass`, selector nor affinity restricts it to
/// virtual nodes, or to this cluster and its virtual node, which may have different names.
fn may_run_elsewhere(cluster: &str, spec: &Value) -> bool {
    let is_here = |name: &str| name == cluster || spec["nodeName"] == name;
    spec["runtimeClassName"] != "liqo" && !is_remote_only(spec, is_here)
}

#[must_use]
pub fn decide_unplaced(facts: &UnplacedFacts<'_>) -> UnplacedStep {
    let Some(give_up_after) = facts.give_up_after else {
        return UnplacedStep::Stay;
    };
    let left = give_up_after.saturating_sub(facts.waited);
    if !left.is_zero() {
        return UnplacedStep::StayFor(left);
    }
    let of_controller = facts
        .avoided
        .iter()
        .filter(|it| it.controller == facts.pod.controller);
    if let Some(next) = of_controller
        .map(|it| it.since.saturating_add(pause(it, facts)))
        .max()
    {
        let left = u64::try_from(next.saturating_sub(facts.now)).unwrap_or_default();
        if left > 0 {
            // The clock of another replica may have been ahead.
            return UnplacedStep::StayFor(Duration::from_secs(left).min(PAUSE));
        }
    }
    match facts.deferred {
        None => UnplacedStep::Read,
        Some(DeferredFacts {
            may_run_anywhere: true,
            is_avoidable: true,
            is_tied: false,
            scales_up: false,
        }) => UnplacedStep::GiveUp(avoided_next(facts, give_up_after)),
        Some(_) => UnplacedStep::StayFor(PAUSE),
    }
}

/// The time between the last pod of a controller that was given up and this one. A pod that only this cluster can run
/// comes back each time.
fn pause(last: &Avoided, facts: &UnplacedFacts<'_>) -> i64 {
    if last.cluster != facts.cluster || !came_after(last, facts) {
        return seconds(PAUSE);
    }
    let half = last.until.saturating_sub(last.since) / 2;
    half.clamp(seconds(PAUSE), seconds(LONGEST_AVOIDED) / 2)
}

/// Whether the pod came to its cluster after the last one was given up. Otherwise both waited at the same time.
fn came_after(last: &Avoided, facts: &UnplacedFacts<'_>) -> bool {
    seconds(facts.waited) <= facts.now.saturating_sub(last.since)
}

/// Doubles the time for which a controller avoids the cluster, if its pods return there
/// nevertheless. The first time is longer than the next pod waits before it is given up: otherwise
/// its return would not be noticed.
fn avoided_next(facts: &UnplacedFacts<'_>, give_up_after: Duration) -> Vec<Avoided> {
    let is_this = |it: &Avoided| it.controller == facts.pod.controller && it.cluster == facts.cluster;
    let mut all = still_avoided(facts.avoided, facts.now);
    let first = seconds(PAUSE.max(give_up_after)).saturating_mul(2);
    let time = all.iter().find(|it| is_this(it)).map_or(first, |before| {
        let time = before.until.saturating_sub(before.since);
        time.saturating_mul(if came_after(before, facts) { 2 } else { 1 })
    });
    let time = time.min(seconds(LONGEST_AVOIDED));
    all.retain(|it| !is_this(it));
    all.push(Avoided {
        controller: facts.pod.controller.clone(),
        cluster: facts.cluster.to_owned(),
        since: facts.now,
        until: facts.now.saturating_add(time),
    });
    all.sort_by_key(|it| it.since);
    all.split_off(all.len().saturating_sub(MOST_AVOIDED))
}

/// The entries whose time has not passed.
#[must_use]
pub fn still_avoided(all: &[Avoided], now: i64) -> Vec<Avoided> {
    all.iter().filter(|it| it.until > now).cloned().collect()
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);
    const CLUSTER: &str = "milan";
    const FREE: DeferredFacts = DeferredFacts {
        may_run_anywhere: true,
        is_avoidable: true,
        is_tied: false,
        scales_up: false,
    };

    fn home() -> Value {
        json!({
            "metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "Other", "uid": "other"},
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "web", "controller": true},
            ]},
            "spec": {"nodeName": "virtual-milan"},
            "status": {"conditions": [{"type": "PodScheduled", "status": "True"}]},
        })
    }

    fn remote() -> Value {
        let scheduled = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"});
        json!({"metadata": {}, "spec": {}, "status": {"phase": "Pending", "conditions": [scheduled]}})
    }

    #[test]
    fn only_unscheduled_pods_that_may_be_recreated_elsewhere_are_given_up() {
        let found = unplaced(CLUSTER, &home(), &remote()).unwrap();
        assert_eq!(
            (found.controller.as_str(), found.why.as_str()),
            ("web", "0/3 nodes")
        );
        for (what, pointer, value) in [
            ("a node", "/spec/nodeName", json!("n1")),
            ("a gate", "/spec/schedulingGates", json!([{"name": "other"}])),
            ("a promised node", "/status/nominatedNodeName", json!("n1")),
            ("no conditions", "/status/conditions", json!([])),
            (
                "a node, by its condition",
                "/status/conditions/0/status",
                json!("True"),
            ),
            (
                "a gate, by its condition",
                "/status/conditions/0/reason",
                json!("SchedulingGated"),
            ),
            (
                "been deleted",
                "/metadata/deletionTimestamp",
                json!("2026-01-01T00:00:00Z"),
            ),
        ] {
            let mut pod = remote();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[field] = value;
            assert_eq!(unplaced(CLUSTER, &home(), &pod), None, "it has {what}");
        }
        for (version, kind, is_given_up) in [
            ("v1", "ReplicationController", true),
            ("apps/v1", "StatefulSet", true),
            ("apps/v1", "DaemonSet", false),
            ("batch/v1", "Job", false),
            ("example.org/v1", "ReplicaSet", false),
            ("core.strimzi.io/v1beta2", "StrimziPodSet", true),
            ("postgresql.cnpg.io/v1", "Cluster", true),
            ("example.org/v1", "Cluster", false),
            ("argoproj.io/v1alpha1", "Workflow", false),
        ] {
            let mut pod = home();
            pod["metadata"]["ownerReferences"][1]["kind"] = json!(kind);
            pod["metadata"]["ownerReferences"][1]["apiVersion"] = json!(version);
            assert_eq!(
                unplaced(CLUSTER, &pod, &remote()).is_some(),
                is_given_up,
                "{version} {kind}"
            );
        }
        let mut bare = home();
        bare["metadata"]["ownerReferences"] = json!([]);
        assert_eq!(unplaced(CLUSTER, &bare, &remote()), None);
        let mut named = home();
        named["status"]["conditions"] = json!([]);
        assert_eq!(
            unplaced(CLUSTER, &named, &remote()),
            None,
            "its template names the node"
        );
    }

    #[test]
    fn pods_that_their_controller_does_not_replace_say_so() {
        assert_eq!(irreplaceable(CLUSTER, &home()), None);
        let owned = |kind: &str| {
            let mut pod = home();
            let owner = &mut pod["metadata"]["ownerReferences"][1];
            (owner["apiVersion"], owner["kind"], owner["name"]) =
                (json!("example.org/v1"), json!(kind), json!("nightly"));
            pod
        };
        let why = irreplaceable(CLUSTER, &owned("Workflow")).unwrap();
        assert!(
            why.contains("the Workflow nightly,") && why.contains("cordon the node virtual-milan"),
            "{why}"
        );
        let mut bare = home();
        bare["metadata"]["ownerReferences"] = json!([]);
        let why = irreplaceable(CLUSTER, &bare).unwrap();
        assert!(why.contains("no controller"), "{why}");
        // Another pod would be there as well.
        let mut remote_only = owned("Workflow");
        remote_only["spec"]["runtimeClassName"] = json!("liqo");
        assert_eq!(irreplaceable(CLUSTER, &remote_only), None);
        let mut named = owned("Workflow");
        named["status"]["conditions"] = json!([]);
        assert_eq!(irreplaceable(CLUSTER, &named), None);
    }

    #[test]
    fn pods_that_run_in_remote_clusters_only_are_not_given_up() {
        let term = |key: &str, operator: &str, value: &str| json!({"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]});
        let only = term("liqo.io/type", "In", "virtual-node");
        let affinity = |terms: &[&Value]| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        for (spec, is_given_up) in [
            (json!({"runtimeClassName": "liqo"}), false),
            (json!({"runtimeClassName": "other"}), true),
            (json!({"nodeSelector": {"liqo.io/type": "virtual-node"}}), false),
            (json!({"nodeSelector": {"type": "virtual-kubelet"}}), false),
            (
                json!({"nodeSelector": {"kubernetes.io/hostname": "virtual-milan"}}),
                false,
            ),
            (
                json!({"nodeSelector": {"liqo.io/remote-cluster-id": "milan"}}),
                false,
            ),
            (
                json!({"nodeSelector": {"topology.storage.liqo.io/cluster": "milan"}}),
                false,
            ),
            (json!({"nodeSelector": {"region": "europe"}}), true),
            (affinity(&[&only]), false),
            (
                affinity(&[&term("liqo.io/remote-cluster-id", "In", "milan")]),
                false,
            ),
            (
                affinity(&[&term("liqo.io/remote-cluster-id", "In", "turin")]),
                true,
            ),
            (
                affinity(&[&only, &term("liqo.io/type", "NotIn", "virtual-node")]),
                true,
            ),
            (affinity(&[&term("region", "In", "europe")]), true),
        ] {
            let mut pod = home();
            pod["spec"] = spec;
            pod["spec"]["nodeName"] = "virtual-milan".into();
            assert_eq!(
                unplaced(CLUSTER, &pod, &remote()).is_some(),
                is_given_up,
                "{}",
                pod["spec"]
            );
        }
    }

    fn pod() -> Unplaced {
        Unplaced {
            controller: "web".into(),
            why: "0/3 nodes".into(),
        }
    }

    fn avoided(controller: &str, cluster: &str, since: i64, until: i64) -> Avoided {
        Avoided {
            controller: controller.into(),
            cluster: cluster.into(),
            since,
            until,
        }
    }

    fn decided(
        waited: u64,
        after: Option<Duration>,
        avoided: &[Avoided],
        deferred: Option<DeferredFacts>,
    ) -> UnplacedStep {
        decide_unplaced(&UnplacedFacts {
            pod: &pod(),
            cluster: CLUSTER,
            waited: Duration::from_secs(waited),
            give_up_after: after,
            avoided,
            now: 1000,
            deferred,
        })
    }

    #[test]
    fn a_pod_is_given_up_after_its_wait_if_nothing_prevents_it() {
        use UnplacedStep::{GiveUp, Read, Stay, StayFor};
        assert_eq!(decided(3600, None, &[], Some(FREE)), Stay, "it is switched off");
        assert_eq!(
            decided(20, Some(MINUTE), &[], None),
            StayFor(Duration::from_secs(40))
        );
        assert_eq!(decided(60, Some(MINUTE), &[], None), Read);
        let first = avoided("web", "milan", 1000, 1120);
        assert_eq!(decided(60, Some(MINUTE), &[], Some(FREE)), GiveUp(vec![first]));
        for holds in [
            DeferredFacts {
                may_run_anywhere: false,
                ..FREE
            },
            DeferredFacts {
                is_avoidable: false,
                ..FREE
            },
            DeferredFacts {
                is_tied: true,
                ..FREE
            },
            DeferredFacts {
                scales_up: true,
                ..FREE
            },
        ] {
            assert_eq!(
                decided(60, Some(MINUTE), &[], Some(holds)),
                StayFor(PAUSE),
                "{holds:?}"
            );
        }
    }

    #[test]
    fn at_most_one_pod_per_controller_is_given_up_per_minute() {
        let elsewhere = avoided("web", "turin", 970, 2000);
        assert_eq!(
            decided(60, Some(MINUTE), &[elsewhere], Some(FREE)),
            UnplacedStep::StayFor(Duration::from_secs(30)),
            "in whatever cluster"
        );
        let other = avoided("other", "milan", 999, 2000);
        assert!(matches!(
            decided(60, Some(MINUTE), &[other], Some(FREE)),
            UnplacedStep::GiveUp(all) if all.len() == 2
        ));
        let ahead = avoided("web", "milan", 9000, 9999);
        assert_eq!(
            decided(60, Some(MINUTE), &[ahead], None),
            UnplacedStep::StayFor(PAUSE)
        );
    }

    /// The minutes between the pods of a controller that are given up. Those of `first` wait from the start, others from
    /// when the one before was given up.
    fn minutes_between(first: usize, all: usize) -> Vec<i64> {
        let (mut avoided, mut times) = (Vec::new(), Vec::new());
        let mut waits_since = 0;
        for now in 1..20_000 {
            let step = decide_unplaced(&UnplacedFacts {
                pod: &pod(),
                cluster: CLUSTER,
                waited: Duration::from_secs(u64::try_from(now - waits_since).unwrap()),
                give_up_after: Some(MINUTE),
                avoided: &avoided,
                now,
                deferred: Some(FREE),
            });
            if let UnplacedStep::GiveUp(next) = step {
                avoided = next;
                times.push(now);
                if times.len() == all {
                    break;
                }
                waits_since = if times.len() < first { 0 } else { now };
            }
        }
        times.windows(2).map(|two| (two[1] - two[0]) / 60).collect()
    }

    #[test]
    fn pods_that_come_back_are_given_up_less_and_less_often() {
        assert_eq!(minutes_between(1, 8), [1, 2, 4, 8, 15, 15, 15]);
        assert_eq!(
            minutes_between(5, 7),
            [1, 1, 1, 1, 1, 2],
            "four did not come back"
        );
    }

    #[test]
    fn a_cluster_is_avoided_for_longer_each_time() {
        let times = |before: &[Avoided], after: Duration| match decided(
            after.as_secs(),
            Some(after),
            before,
            Some(FREE),
        ) {
            UnplacedStep::GiveUp(all) => all.iter().map(|it| (it.since, it.until)).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(times(&[], Duration::from_secs(1)), [(1000, 1120)]);
        assert_eq!(
            times(&[], MINUTE * 5),
            [(1000, 1600)],
            "longer than the next one waits"
        );
        assert_eq!(
            times(&[avoided("web", "milan", 900, 1020)], MINUTE),
            [(1000, 1240)]
        );
        assert_eq!(
            times(&[avoided("web", "milan", 0, 1500)], MINUTE),
            [(1000, 2800)],
            "half an hour at most"
        );
        assert_eq!(
            times(&[avoided("web", "milan", 800, 1000)], MINUTE),
            [(1000, 1120)],
            "it has ended"
        );
        assert_eq!(
            times(&[avoided("web", "turin", 800, 1100)], MINUTE),
            [(800, 1100), (1000, 1120)]
        );
        let many: Vec<Avoided> = (0..100)
            .map(|at| avoided(&at.to_string(), "milan", at, 5000))
            .collect();
        let all = times(&many, MINUTE);
        assert_eq!(
            (all.len(), all[0].0, all[63].0),
            (MOST_AVOIDED, 37, 1000),
            "the oldest go"
        );
    }
}
