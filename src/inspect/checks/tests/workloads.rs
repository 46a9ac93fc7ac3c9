//! The controller, the node plugin, and the nodes.

use serde_json::{Value, json};

use super::{super::rights, *};

#[test]
fn nodes_are_checked() {
    assert_found(&[
        (
            "no plugin",
            |it| it.csi_nodes = listing([csi_node("one", &["storage.liqo.io", "real.example"])]),
            W,
            ["Node two", "No pod of the node plugin", "node.nodeSelector"],
        ),
        (
            "not registered",
            |it| {
                it.csi_nodes = listing([
                    csi_node("one", &["storage.liqo.io", "real.example"]),
                    csi_node("two", &[]),
                ]);
                it.pods = listing([json!({
                    "metadata": {"namespace": "liqo-csi", "name": "node-2", "labels": {"app.kubernetes.io/component": "node"}},
                    "spec": {"nodeName": "two", "containers": []},
                })]);
            },
            E,
            ["Node two", "liqo-csi/node-2", "kubectl logs -n liqo-csi node-2"],
        ),
        (
            "other cluster's label",
            |it| it.storage.home = "renamed".parse().ok(),
            E,
            [
                "Node one",
                "is home and should be renamed",
                "kubectl label node one topology.storage.liqo.io/cluster-",
            ],
        ),
        (
            "virtual node",
            |it| {
                let mut nodes: Vec<_> = it.storage.nodes.iter().cloned().collect();
                nodes[1].labels = [("liqo.io/type".to_owned(), "virtual-node".to_owned())].into();
                let mut both = nodes.into_iter();
                let names: Listing<k8s_openapi::api::core::v1::Node> =
                    listing([json!({"metadata": {}}), json!({"metadata": {}})]);
                it.storage.nodes = names.map(|_| both.next().unwrap());
                it.csi_nodes = listing([csi_node("one", &["storage.liqo.io", "real.example"])]);
            },
            W,
            ["Node two", "virtual", "Keep pods"],
        ),
        (
            "no node plugin",
            |it| it.node_plugins = Listing::default(),
            E,
            ["storage.liqo.io", "no node plugin", "Install"],
        ),
        (
            "plugin not ready",
            |it| {
                let mut set: Value = serde_json::to_value(it.node_plugins.iter().next().unwrap()).unwrap();
                set["status"]["numberReady"] = 1.into();
                it.node_plugins = listing([set]);
            },
            W,
            ["DaemonSet liqo-csi/liqo-csi-node", "1 of 2", "pods"],
        ),
        (
            "no plugin ready",
            |it| {
                let mut set: Value = serde_json::to_value(it.node_plugins.iter().next().unwrap()).unwrap();
                set["status"]["numberReady"] = 0.into();
                it.node_plugins = listing([set]);
            },
            E,
            ["DaemonSet liqo-csi/liqo-csi-node", "0 of 2", "events"],
        ),
        (
            "real driver nowhere",
            |it| it.csi_nodes = listing(["one", "two"].map(|name| csi_node(name, &["storage.liqo.io"]))),
            E,
            ["CSIDriver real.example", "No kubelet", "node plugin"],
        ),
        (
            "no capacity published",
            |it| it.capacities = Listing::default(),
            E,
            ["StorageClass liqo", "one, two", "controller"],
        ),
    ]);
}

#[test]
fn nodes_that_the_node_plugin_leaves_out_are_one_note() {
    let mut installation = installation();
    let mut set: Value = serde_json::to_value(installation.node_plugins.iter().next().unwrap()).unwrap();
    set["spec"]["template"]["spec"] = json!({
        "containers": [], "nodeSelector": {"topology.storage.liqo.io/node": "one"},
    });
    installation.node_plugins = listing([set]);
    assert_eq!(examine(&installation), []);
    installation.csi_nodes = listing([csi_node("one", &["storage.liqo.io", "real.example"])]);
    let [note] = examine(&installation).try_into().unwrap();
    assert_eq!(note.severity, N);
    assert!(note.problem.contains("leaves out node two"), "{}", note.problem);
}

/// Otherwise doctor reports a right as missing that no chart grants.
#[test]
fn the_chart_grants_the_rights_that_are_checked() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/manifests/liqo-csi.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let is_role = |line: &str| matches!(line, "kind: ClusterRole" | "kind: Role");
    let roles = text.split("\n---\n").filter(|it| it.lines().any(is_role));
    let roles: Vec<Value> = roles.map(|it| serde_saphyr::from_str(it).unwrap()).collect();
    let lists = |rule: &Value, key: &str, value: &str| {
        rule[key]
            .as_array()
            .is_some_and(|all| all.iter().any(|it| it == value))
    };
    for right in rights::needed("liqo-csi", "liqo-storage") {
        let is_its = |role: &&Value| {
            let metadata = &role["metadata"];
            ["liqo-csi-controller", "liqo-csi-twins"]
                .iter()
                .any(|name| metadata["name"] == *name)
                && metadata["namespace"].as_str() == right.namespace.as_deref()
        };
        let mut granted = roles
            .iter()
            .filter(is_its)
            .flat_map(|role| role["rules"].as_array().unwrap());
        let is_granted = granted.any(|rule| {
            rule["resourceNames"].is_null()
                && lists(rule, "apiGroups", right.group)
                && lists(rule, "resources", right.resource)
                && lists(rule, "verbs", right.verb)
        });
        assert!(is_granted, "{right:?}");
    }
}

#[test]
fn pods_that_have_ended_are_no_problem() {
    let status =
        json!({"phase": "Failed", "reason": "Evicted", "conditions": [{"type": "Ready", "status": "False"}]});
    let mut installation = installation();
    installation.pods = listing([json!({
        "metadata": {"namespace": "liqo-csi", "name": "c-0"}, "spec": {"containers": []}, "status": status,
    })]);
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": UID}});
    installation.storage_pods = listing([json!({
        "metadata": {"namespace": "liqo-storage", "name": "debug"},
        "spec": {"containers": [], "volumes": [volume]}, "status": status,
    })]);
    assert_eq!(examine(&installation), []);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn the_controller_is_checked() {
    assert_found(&[
        (
            "none",
            |it| it.setup.controllers = Listing::default(),
            E,
            ["storage.liqo.io", "no controller", "Install"],
        ),
        (
            "two",
            |it| {
                let mut other = deployment();
                other["metadata"]["namespace"] = "again".into();
                it.setup.controllers = listing([deployment(), other]);
            },
            E,
            ["storage.liqo.io", "2 times", "Uninstall"],
        ),
        (
            "not ready",
            |it| deployment_with(it, |it| it["status"]["readyReplicas"] = 0.into()),
            E,
            [
                "Deployment liqo-csi/liqo-csi-controller",
                "None of its 2 pods",
                "logs",
            ],
        ),
        (
            "half ready",
            |it| deployment_with(it, |it| it["status"]["readyReplicas"] = 1.into()),
            W,
            ["Deployment", "1 of its 2", "pods"],
        ),
        (
            "no provisioner",
            |it| deployment_with(it, |it| *container(it, 1) = json!({"name": "x", "image": "y"})),
            E,
            ["Deployment", "no container csi-provisioner", "helm"],
        ),
        (
            "no attacher",
            |it| deployment_with(it, |it| *container(it, 2) = json!({"name": "x", "image": "y"})),
            E,
            ["Deployment", "no container csi-attacher", "helm"],
        ),
        (
            "flags",
            |it| deployment_with(it, |it| container(it, 1)["args"] = json!(["--strict-topology"])),
            E,
            [
                "Deployment",
                "without --extra-create-metadata",
                "--extra-create-metadata",
            ],
        ),
        (
            "no leader election",
            |it| deployment_with(it, |it| container(it, 2)["args"] = json!([])),
            E,
            [
                "Deployment",
                "csi-attacher runs 2 times without --leader-election",
                "one replica",
            ],
        ),
        (
            "impatient",
            |it| {
                deployment_with(it, |it| {
                    container(it, 2)["args"] = json!(["--leader-election", "--timeout=5s"]);
                });
            },
            W,
            ["Deployment", "--timeout=5s", "60s"],
        ),
        (
            "slow",
            |it| deployment_with(it, |it| container(it, 2)["args"] = json!(["--leader-election"])),
            N,
            ["Deployment", "5 requests a second", "controller.kubeAPI"],
        ),
        (
            "crashing pod",
            |it| {
                let state = json!({"waiting": {"reason": "CrashLoopBackOff"}});
                let ended = json!({"terminated": {"exitCode": 7, "message": "no socket"}});
                it.pods = listing([json!({
                    "metadata": {"namespace": "liqo-csi", "name": "c-0"},
                    "spec": {"nodeName": "one", "containers": []},
                    "status": {
                        "conditions": [{"type": "Ready", "status": "False"}],
                        "containerStatuses": [{"name": "driver", "ready": false, "restartCount": 3, "image": "", "imageID": "",
                            "state": state, "lastState": ended}],
                    },
                })]);
            },
            E,
            [
                "Pod liqo-csi/c-0",
                "CrashLoopBackOff, last time it ended with code 7 no socket",
                "kubectl logs",
            ],
        ),
        (
            "rights",
            |it| it.missing_rights = rights::needed("liqo-csi", "liqo-storage").split_off(20),
            E,
            ["ServiceAccount liqo-csi/liqo-csi-controller", "may not", "roles"],
        ),
    ]);
}
