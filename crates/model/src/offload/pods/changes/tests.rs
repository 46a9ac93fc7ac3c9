//! Changes of home pods, and how they are carried to their remote pods.

use proptest::prelude::*;

use super::*;
use crate::offload::pods::{RemoteMarks, RemoteSettings, remote_pod};

fn home() -> Value {
    json!({
        "metadata": {
            "name": "web", "labels": {"app": "web"},
            "annotations": {"note": "one", "fabric.storage.liqo.io/remote-cluster": "milan"},
        },
        "spec": {
            "containers": [
                {"name": "web", "image": "web:1", "resources": {"requests": {"cpu": "100m", "gpu": "1"}}},
                {"name": "log", "image": "log:1", "resources": {}},
            ],
            "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "volumes": [{"name": "kube-api-access-1", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt"}},
                {"downwardAPI": {"items": [{"path": "namespace"}]}},
            ]}}],
        },
    })
}

/// The pod as stored in the remote cluster, which has changed some fields.
fn remote(home: &Value) -> Value {
    let mut remote = remote_pod(home, &RemoteMarks::default(), &RemoteSettings::default()).unwrap();
    remote["metadata"]["annotations"]["theirs"] = "kept".into();
    remote["metadata"]["labels"]["theirs"] = "kept".into();
    remote["spec"]["containers"][0]["image"] = "mirror/web:1".into();
    remote["spec"]["containers"][1]["resources"] = json!({"requests": {"cpu": "10m"}});
    let injected = json!({"name": "mesh", "image": "mesh:1", "resources": {}});
    remote["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(injected);
    remote
}

/// A merge patch (RFC 7386).
fn merged(object: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            object.as_object_mut().unwrap().remove(key);
        } else {
            merged(&mut object[key], change);
        }
    }
}

/// Sends changes until the remote pod follows; some of them are refused.
fn follow(home: &Value, remote: &mut Value, refused: &[Change]) -> Vec<Change> {
    let mut sent = Vec::new();
    for change in Change::ALL {
        let mut tried = 0;
        while let Some(Patch { patch, .. }) = change.patches(home, remote).into_iter().nth(tried) {
            sent.push(change);
            if refused.contains(&change) {
                tried += 1;
            } else {
                merged(remote, &patch);
            }
            assert!(sent.len() < 20, "it never ends: {sent:?} {patch}");
        }
    }
    sent
}

#[test]
fn an_unchanged_home_pod_causes_no_change_of_the_remote_spec() {
    let home = home();
    let mut remote = remote(&home);
    assert_eq!(follow(&home, &mut remote, &[]), []);
    // Another client has removed the record.
    remote["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove(CARRIED);
    let before = remote["spec"].clone();
    assert_eq!(follow(&home, &mut remote, &[]), [Change::Metadata]);
    assert_eq!(remote["spec"], before);
    assert_eq!(follow(&home, &mut remote, &[]), []);
}

#[test]
fn labels_and_annotations_are_updated_and_those_of_others_kept() {
    let mut home = home();
    let mut remote = remote(&home);
    home["metadata"]["labels"] = json!({"role": "primary"});
    home["metadata"]["annotations"] = json!({
        "note": "two", "new": "yes", "fabric.storage.liqo.io/home-uid": "forged", "kubernetes.io/config.hash": "x",
        "container.apparmor.security.beta.kubernetes.io/web": "unconfined",
    });
    assert_eq!(follow(&home, &mut remote, &[]), [Change::Metadata]);
    let meta = &remote["metadata"];
    assert_eq!(meta["labels"], json!({"role": "primary", "theirs": "kept"}));
    let annotations = meta["annotations"].as_object().unwrap();
    assert_eq!(
        annotations.keys().collect::<Vec<_>>(),
        [CARRIED, "new", "note", "theirs"]
    );
    home["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove("new");
    remote["metadata"]["annotations"]["note"] = "changed there".into();
    follow(&home, &mut remote, &[]);
    assert_eq!(remote["metadata"]["annotations"]["new"], Value::Null);
    assert_eq!(remote["metadata"]["annotations"]["note"], "two");
    assert_eq!(follow(&home, &mut remote, &[]), []);
}

#[test]
fn only_changed_images_are_copied() {
    let mut home = home();
    let mut remote = remote(&home);
    home["spec"]["containers"][1]["image"] = "log:2".into();
    assert_eq!(follow(&home, &mut remote, &[]), [Change::Spec]);
    let images = |remote: &Value| -> Vec<String> {
        list(&remote["spec"]["containers"])
            .map(|it| it["image"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(images(&remote), ["mirror/web:1", "log:2", "mesh:1"]);
    home["spec"]["containers"][0]["image"] = "web:2".into();
    follow(&home, &mut remote, &[]);
    assert_eq!(images(&remote), ["web:2", "log:2", "mesh:1"]);
    // The remote cluster reverts the change: it is sent only once.
    remote["spec"]["containers"][0]["image"] = "mirror/web:2".into();
    assert_eq!(follow(&home, &mut remote, &[]), []);
}

#[test]
fn deadlines_are_only_shortened_and_tolerations_only_added() {
    let mut home = home();
    let mut remote = remote(&home);
    home["spec"]["activeDeadlineSeconds"] = 60.into();
    home["spec"]["tolerations"] = json!([
        {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10},
        {"key": "b", "operator": "Exists"},
        {"key": "virtual-node.liqo.io/not-allowed", "operator": "Exists"},
        {"operator": "Exists"},
    ]);
    assert_eq!(follow(&home, &mut remote, &[]), [Change::Spec]);
    assert_eq!(remote["spec"]["activeDeadlineSeconds"], 60);
    assert_eq!(
        remote["spec"]["tolerations"],
        json!([
            {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10},
            {"key": "b", "operator": "Exists"},
        ])
    );
    // Another client has shortened the deadline there.
    remote["spec"]["activeDeadlineSeconds"] = 5.into();
    home["spec"]["activeDeadlineSeconds"] = 30.into();
    follow(&home, &mut remote, &[]);
    assert_eq!(remote["spec"]["activeDeadlineSeconds"], 5);
    assert_eq!(follow(&home, &mut remote, &[]), []);
}

#[test]
fn resources_are_resized_and_a_refused_resize_is_retried() {
    let mut home = home();
    let mut remote = remote(&home);
    home["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "200m".into();
    home["spec"]["containers"][1]["image"] = "log:2".into();
    let both = [Change::Resources, Change::Spec];
    assert_eq!(follow(&home, &mut remote, &[Change::Resources]), both);
    assert_eq!(
        remote["spec"]["containers"][1]["image"], "log:2",
        "a refusal does not block other changes"
    );
    assert_eq!(
        follow(&home, &mut remote, &[Change::Resources]),
        [Change::Resources]
    );
    assert_eq!(follow(&home, &mut remote, &[]), both);
    let resources = |at: usize| remote["spec"]["containers"][at]["resources"].clone();
    assert_eq!(resources(0), json!({"requests": {"cpu": "200m", "gpu": "1"}}));
    assert_eq!(
        resources(1),
        json!({"requests": {"cpu": "10m"}}),
        "a default there"
    );
    assert_eq!(follow(&home, &mut remote, &[]), []);
}

#[test]
fn an_ephemeral_container_is_added_to_the_remote_pod() {
    let mut home = home();
    let mut remote = remote(&home);
    remote["spec"]["ephemeralContainers"] = json!([{"name": "theirs", "image": "sh"}]);
    home["spec"]["serviceAccountName"] = "runner".into();
    home["spec"]["ephemeralContainers"] = json!([{
        "name": "debug", "image": "busybox", "targetContainerName": "web",
        "volumeMounts": [{"name": "kube-api-access-1", "mountPath": "/t"}],
        "env": [{"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}}],
    }]);
    assert_eq!(follow(&home, &mut remote, &[]), [Change::EphemeralContainers]);
    assert_eq!(
        remote["spec"]["ephemeralContainers"],
        json!([
            {"name": "theirs", "image": "sh"},
            {
                "name": "debug", "image": "busybox", "targetContainerName": "web",
                "volumeMounts": [{"name": "kube-api-access-1", "mountPath": "/t"}],
                "env": [{"name": "WHO", "value": "runner"}],
            },
        ])
    );
    assert_eq!(follow(&home, &mut remote, &[]), []);
}

#[test]
fn a_refused_ephemeral_container_does_not_block_others() {
    let mut home = home();
    let mut remote = remote(&home);
    home["spec"]["ephemeralContainers"] =
        json!([{"name": "bad", "image": "sh"}, {"name": "good", "image": "sh"}]);
    let patches = Change::EphemeralContainers.patches(&home, &remote);
    assert_eq!(
        patches.iter().map(|it| it.about.as_str()).collect::<Vec<_>>(),
        ["bad", "good"]
    );
    merged(&mut remote, &patches[1].patch);
    assert_eq!(
        remote["spec"]["ephemeralContainers"],
        json!([{"name": "good", "image": "sh"}])
    );
    assert_eq!(
        Change::EphemeralContainers.patches(&home, &remote)[0].about,
        "bad"
    );
}

fn some(text: &'static str) -> impl Strategy<Value = Option<String>> {
    proptest::option::of(text.prop_map(|it: String| it))
}

prop_compose! {
    fn any_home()(
        label in some("[ab]"), note in some("[ab]"), images in ("[ab]", "[ab]"), cpu in some("[1-3]"), memory in some("[1-3]Mi"),
        deadline in proptest::option::of(1..4_i64), seconds in proptest::option::of(1..3_i64), looks in 0..3_usize,
    ) -> Value {
        let mut pod = home();
        pod["metadata"]["labels"] = json!({"app": label});
        pod["metadata"]["annotations"] = json!({"note": note});
        let requests = json!({"cpu": cpu, "memory": memory});
        pod["spec"]["containers"] = json!([
            {"name": "web", "image": images.0, "resources": {"requests": requests}},
            {"name": "log", "image": images.1, "resources": {}},
        ]);
        pod["spec"]["activeDeadlineSeconds"] = json!(deadline);
        pod["spec"]["tolerations"] = json!([{"key": "a", "effect": "NoExecute", "tolerationSeconds": seconds}]);
        pod["spec"]["ephemeralContainers"] = (0..looks).map(|at| json!({"name": at.to_string(), "image": "sh"})).collect();
        pod
    }
}

proptest! {
    #[test]
    fn no_change_remains_after_all_changes_were_applied(
        first in any_home(), then in proptest::collection::vec(any_home(), 0..4), refused in proptest::sample::subsequence(&Change::ALL, 0..4),
    ) {
        let mut remote = remote(&first);
        for home in &then {
            follow(home, &mut remote, &refused);
        }
        let last = then.last().unwrap_or(&first);
        follow(last, &mut remote, &[]);
        prop_assert_eq!(follow(last, &mut remote, &[]), []);
        let theirs = &remote["metadata"]["annotations"]["theirs"];
        prop_assert_eq!(theirs, "kept");
        prop_assert_eq!(remote["spec"]["containers"].as_array().unwrap().len(), 3);
    }
}
