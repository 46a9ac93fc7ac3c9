//! A node as others and the fabric make it, in turn.

use k8s_openapi::api::core::v1::NodeStatus;
use proptest::prelude::*;

use super::*;
use crate::{
    api::fabric::{NodeTaint, TaintEffect},
    cluster::facts::OUT_OF_SERVICE,
};

fn marks(labels: &[&str], taints: &[&str]) -> Marks {
    let fabric = Fabric {
        labels: labels.iter().map(|&it| (it.to_owned(), "x".to_owned())).collect(),
        taints: taints
            .iter()
            .map(|&key| NodeTaint {
                key: key.to_owned(),
                value: Some("true".to_owned()),
                effect: TaintEffect::NoSchedule,
            })
            .collect(),
        ..Fabric::default()
    };
    Marks::of("to-milan", "milan", &fabric, &Counted::default())
}

fn made(marks: &Marks, before: &VirtualNodeStatus) -> Node {
    serde_json::from_value(marks.new_node("to-milan", before)).unwrap()
}

/// As the API server applies a merge patch of metadata and taints.
fn apply(node: &mut Node, patch: &Value) {
    let labels = node.metadata.labels.get_or_insert_default();
    for (key, value) in patch["metadata"]["labels"].as_object().unwrap() {
        match value.as_str() {
            Some(value) => labels.insert(key.clone(), value.to_owned()),
            None => labels.remove(key),
        };
    }
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.insert(
        OURS.to_owned(),
        patch["metadata"]["annotations"][OURS]
            .as_str()
            .unwrap()
            .to_owned(),
    );
    if let Some(taints) = patch.pointer("/spec/taints") {
        node.spec.get_or_insert_default().taints = serde_json::from_value(taints.clone()).unwrap();
    }
}

fn taint(key: &str, effect: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        effect: effect.to_owned(),
        ..Taint::default()
    }
}

fn keys(node: &Node) -> BTreeSet<&str> {
    taints_of(node).map(|it| it.key.as_str()).collect()
}

#[test]
fn machines_have_the_labels_that_kubelets_set() {
    let counted = Counted {
        uniform: [("kubernetes.io/os".to_owned(), "linux".to_owned())].into(),
        ..Counted::default()
    };
    let node = made(
        &Marks::of("to-milan", "milan", &Fabric::default(), &counted),
        &VirtualNodeStatus::default(),
    );
    for key in ["kubernetes.io/os", "beta.kubernetes.io/os"] {
        assert_eq!(node.labels().get(key).map(String::as_str), Some("linux"), "{key}");
    }
    let mixed = made(&marks(&[], &[]), &VirtualNodeStatus::default());
    assert!(!mixed.labels().keys().any(|key| key.starts_with("beta.")));
}

#[test]
fn only_labels_and_taints_of_the_fabric_are_removed() {
    let before = marks(&["region"], &["kosmos.io/node"]);
    let mut node = made(&before, &VirtualNodeStatus::default());
    assert_eq!(before.changes(&node), None);
    node.labels_mut().insert("team".to_owned(), "a".to_owned());
    let taints = node.spec.as_mut().unwrap().taints.as_mut().unwrap();
    taints.push(taint("theirs", "NoSchedule"));
    let after = marks(&["tier"], &[]);
    let patch = after.changes(&node).unwrap();
    apply(&mut node, &patch);
    let labels = node.labels();
    assert!(labels.contains_key("tier") && labels.contains_key("team") && !labels.contains_key("region"));
    assert_eq!(keys(&node), [TAINT, "theirs"].into());
    assert_eq!(after.changes(&node), None);
}

#[test]
fn a_recreated_node_gets_labels_and_taints_that_others_had_set() {
    let marks = marks(&["region"], &[]);
    let mut node = made(&marks, &VirtualNodeStatus::default());
    node.labels_mut().insert("team".to_owned(), "a".to_owned());
    let spec = node.spec.as_mut().unwrap();
    spec.unschedulable = Some(true);
    for (key, effect) in [
        ("theirs", "NoSchedule"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        (OUT_OF_SERVICE, "NoExecute"),
    ] {
        spec.taints.as_mut().unwrap().push(taint(key, effect));
    }
    let kept = marks.of_others(&node);
    let again = made(&marks, &kept);
    assert_eq!(again.labels().get("team").map(String::as_str), Some("a"));
    assert_eq!(keys(&again), [TAINT, "theirs"].into());
    assert_eq!(again.spec.as_ref().unwrap().unschedulable, Some(true));
    assert_eq!(marks.of_others(&again), kept);
    assert_eq!(marks.changes(&again), None);
}

#[test]
fn the_taint_of_virtual_nodes_cannot_be_removed() {
    let marks = marks(&[], &[]);
    let mut node = made(&marks, &VirtualNodeStatus::default());
    node.spec.as_mut().unwrap().taints = None;
    let patch = marks.changes(&node).unwrap();
    apply(&mut node, &patch);
    assert_eq!(keys(&node), [TAINT].into());
}

#[test]
fn amounts_are_compared_by_value_and_removed_with_their_resource() {
    let health = Health {
        status: "True",
        reason: "RemoteClusterReady",
        message: String::new(),
    };
    let counted = |amounts: &[(&str, &str)]| Counted {
        amounts: Some(
            amounts
                .iter()
                .map(|&(name, amount)| (name.to_owned(), amount.to_owned()))
                .collect(),
        ),
        ..Counted::default()
    };
    let mut node = made(&marks(&[], &[]), &VirtualNodeStatus::default());
    let before = counted(&[("cpu", "1000m"), ("example.org/gpu", "2")]);
    let written = status(&node, None, &before, &health, None);
    node.status = Some(serde_json::from_value::<NodeStatus>(written).unwrap());
    let same = counted(&[("cpu", "1"), ("example.org/gpu", "2")]);
    assert!(!differs(&node, &status(&node, None, &same, &health, None)));
    let fewer = status(&node, None, &counted(&[("cpu", "1")]), &health, None);
    assert!(differs(&node, &fewer));
    let patch = status_patch(&node, &fewer);
    assert_eq!(
        patch["status"]["allocatable"],
        json!({"cpu": "1", "example.org/gpu": null})
    );
    let unknown = status(&node, None, &Counted::default(), &health, None);
    assert!(!differs(&node, &unknown), "what is not known stays");
    assert_eq!(status_patch(&node, &unknown)["status"].get("allocatable"), None);
}

#[test]
fn labels_of_administrators_take_precedence_over_suggested_ones() {
    let suggesting = |value: &str| {
        let counted = Counted {
            suggested: [("region".to_owned(), value.to_owned())].into(),
            ..Counted::default()
        };
        Marks::of("to-milan", "milan", &Fabric::default(), &counted)
    };
    let region = |node: &Node| node.labels().get("region").cloned();
    let mut theirs = made(&marks(&[], &[]), &VirtualNodeStatus::default());
    theirs.labels_mut().insert("region".to_owned(), "asia".to_owned());
    assert_eq!(suggesting("europe").changes(&theirs), None);
    let kept = suggesting("europe").of_others(&theirs);
    assert_eq!(
        region(&made(&suggesting("europe"), &kept)).as_deref(),
        Some("asia")
    );
    let mut node = made(&suggesting("europe"), &VirtualNodeStatus::default());
    let patch = suggesting("africa").changes(&node).unwrap();
    apply(&mut node, &patch);
    assert_eq!(region(&node).as_deref(), Some("africa"));
    assert_eq!(suggesting("africa").of_others(&node).labels, BTreeMap::new());
}

#[test]
fn taints_are_unique() {
    let twice = marks(&["region"], &["dedicated", "dedicated"]);
    let theirs = VirtualNodeStatus {
        taints: vec![(&taint("dedicated", "NoSchedule")).into()],
        ..VirtualNodeStatus::default()
    };
    let node = made(&twice, &theirs);
    assert_eq!(taints_of(&node).count(), 2);
    assert_eq!(twice.changes(&node), None);
}

proptest! {
    #[test]
    fn a_node_has_no_changes_after_the_patch(
        before in prop::collection::btree_set("[a-d]", 0..3), after in prop::collection::btree_set("[a-d]", 0..3),
        others in prop::collection::btree_set("[e-f]", 0..2),
    ) {
        let list = |all: &BTreeSet<String>| all.iter().cloned().collect::<Vec<_>>();
        let of = |all: &BTreeSet<String>| {
            let all = list(all);
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            marks(&all, &all)
        };
        let mut node = made(&of(&before), &VirtualNodeStatus::default());
        for other in &others {
            node.labels_mut().insert(other.clone(), "x".to_owned());
            node.spec.as_mut().unwrap().taints.as_mut().unwrap().push(taint(other, "NoExecute"));
        }
        let wanted = of(&after);
        if let Some(patch) = wanted.changes(&node) {
            apply(&mut node, &patch);
        }
        prop_assert_eq!(wanted.changes(&node), None);
        let mut expected: BTreeSet<&str> = after.union(&others).map(String::as_str).collect();
        expected.insert(TAINT);
        prop_assert_eq!(keys(&node), expected);
        let kept = wanted.of_others(&node);
        prop_assert_eq!(kept.labels.into_keys().collect::<BTreeSet<_>>(), others);
    }
}
