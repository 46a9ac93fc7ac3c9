//! Offloaded namespaces, and the fabric.

use serde_json::json;

use super::*;
use crate::inspect::offloading::Offloading;

fn asked(phase: &str, conditions: &Value) -> Value {
    json!({
        "apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
        "metadata": {"name": "offloading", "namespace": "shop"}, "spec": {},
        "status": {"offloadingPhase": phase, "remoteNamespacesConditions": {"milan": conditions}},
    })
}

fn ready(status: &str, reason: &str, message: &str, since: &str) -> Value {
    json!([
        {"type": "OffloadingRequired", "status": "True", "reason": "ClusterSelected"},
        {"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": since},
    ])
}

fn cluster(conditions: &Value) -> Value {
    json!({
        "apiVersion": "storage.liqo.io/v1alpha1", "kind": "RemoteCluster", "metadata": {"name": "milan"},
        "spec": {"fabric": {}}, "status": {"conditions": conditions},
    })
}

fn unreachable(spec: Value) -> Value {
    let unmet = json!([{"type": "Ready", "status": "False", "reason": "Unreachable", "message": "no answer", "lastTransitionTime": LONG_AGO}]);
    let mut cluster = cluster(&unmet);
    cluster["spec"] = spec;
    cluster
}

fn routed(name: &str, cidr: &str) -> Value {
    let met = json!([{"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": LONG_AGO}]);
    let mut cluster = cluster(&met);
    cluster["metadata"]["name"] = name.into();
    cluster["spec"]["fabric"]["network"] = json!({"mode": "Routed", "podCIDRs": [cidr]});
    cluster
}

fn lease(holder: &str, renewed: &str) -> Value {
    json!({
        "metadata": {"name": "storage-liqo-io-fabric", "namespace": "liqo-csi"},
        "spec": {"holderIdentity": holder, "renewTime": renewed},
    })
}

const LONG_AGO: &str = "2026-01-01T11:00:00Z";
const JUST_NOW: &str = "2026-01-01T11:59:50Z";

/// One namespace, offloaded to one cluster by a running fabric.
fn good() -> Offloading {
    let met = json!([{"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": LONG_AGO}]);
    Offloading {
        asked: listing([asked("Ready", &ready("True", "NamespaceCreated", "", LONG_AGO))]),
        clusters: listing([cluster(&met)]),
        daemons: Listing::default(),
        fabrics: listing([json!({
            "metadata": {"name": "liqo-csi-fabric", "namespace": "liqo-csi"},
            "spec": {"selector": {}, "template": {"spec": {"serviceAccountName": "liqo-csi-fabric", "containers": []}}},
        })]),
        leases: listing([lease("a", "2026-01-01T11:59:50.000000Z")]),
        liqo: Ok(None),
        is_undefined: false,
        certificates: listing([
            request(
                "decided",
                FABRIC,
                &json!({"conditions": [{"type": "Approved", "status": "True"}]}),
            ),
            request("of-a-kubelet", "system:node:worker-1", &json!({})),
        ]),
    }
}

const FABRIC: &str = "system:serviceaccount:liqo-csi:liqo-csi-fabric";

fn request(name: &str, user: &str, status: &Value) -> Value {
    let spec = json!({
        "request": "", "signerName": "kubernetes.io/kubelet-serving", "username": user, "usages": ["server auth"],
    });
    json!({"metadata": {"name": name}, "spec": spec, "status": status})
}

fn with(installation: &mut Installation, change: impl FnOnce(&mut Offloading)) {
    installation.offloading = good();
    change(&mut installation.offloading);
}

fn unready(installation: &mut Installation, phase: &str, reason: &str, message: &str, since: &str) {
    with(installation, |it| {
        it.asked = listing([asked(phase, &ready("False", reason, message, since))]);
    });
}

#[test]
fn offloaded_namespaces_are_checked() {
    const OBJECT: &str = "NamespaceOffloading shop/offloading";
    assert_found(&[
        (
            "a foreign namespace",
            |it| unready(it, "AllFailed", "CreationLoopBackOff", "it is taken.", JUST_NOW),
            E,
            [OBJECT, "the cluster milan: it is taken.", "retries"],
        ),
        (
            "held by claims",
            |it| unready(it, "Terminating", "Terminating", "data", LONG_AGO),
            W,
            [
                OBJECT,
                "is not deleted: data",
                "liqo-csi unoffload namespace shop --dry-run",
            ],
        ),
        (
            "a cluster that does not answer",
            |it| unready(it, "InProgress", "Creating", "no answer", LONG_AGO),
            W,
            [
                OBJECT,
                "still not ready in the cluster milan: no answer",
                "clusters",
            ],
        ),
        (
            "not processed",
            |it| {
                with(it, |it| {
                    let mut waiting = asked("Ready", &json!([]));
                    waiting["metadata"]["creationTimestamp"] = LONG_AGO.into();
                    waiting["status"] = Value::Null;
                    it.asked = listing([waiting]);
                });
            },
            W,
            [
                OBJECT,
                "has not processed it",
                "describe namespaceoffloading -n shop",
            ],
        ),
        (
            "nothing selected",
            |it| {
                with(it, |it| {
                    let unmet =
                        json!([{"type": "OffloadingRequired", "status": "False", "message": "no node"}]);
                    it.asked = listing([asked("NoClusterSelected", &unmet)]);
                });
            },
            W,
            [OBJECT, "milan: no node", "clusterSelector"],
        ),
    ]);
}

#[test]
fn the_fabric_is_checked() {
    assert_found(&[
        (
            "no fabric",
            |it| with(it, |it| it.fabrics = Listing::default()),
            E,
            [
                "NamespaceOffloading shop/offloading",
                "Nothing carries it out",
                "fabric.enabled",
            ],
        ),
        (
            "a lease without a holder",
            |it| with(it, |it| it.leases = Listing::default()),
            E,
            [
                "Deployment liqo-csi/liqo-csi-fabric",
                "None of its pods is active",
                "kubectl logs -n liqo-csi -l app.kubernetes.io/component=fabric",
            ],
        ),
        (
            "a lease that was released",
            |it| {
                with(it, |it| {
                    it.leases = listing([lease("", "2026-01-01T11:59:50.000000Z")]);
                });
            },
            E,
            [
                "Deployment liqo-csi/liqo-csi-fabric",
                "None of its pods is active",
                "kubectl logs -n liqo-csi -l app.kubernetes.io/component=fabric",
            ],
        ),
        (
            "a lease that was not renewed",
            |it| {
                with(it, |it| {
                    it.leases = listing([lease("a", "2026-01-01T11:00:00.000000Z")]);
                });
            },
            E,
            [
                "Deployment liqo-csi/liqo-csi-fabric",
                "None of its pods is active",
                "kubectl logs -n liqo-csi -l app.kubernetes.io/component=fabric",
            ],
        ),
        (
            "Liqo beside",
            |it| with(it, |it| it.liqo = Ok(Some("VirtualNodes".into()))),
            W,
            [
                "Deployment liqo-csi/liqo-csi-fabric",
                "VirtualNodes",
                "fabric.enabled",
            ],
        ),
        (
            "a cluster that is not ready",
            |it| {
                with(it, |it| {
                    let unmet = json!([{"type": "Ready", "status": "False", "reason": "Denied", "message": "no right.",
                        "lastTransitionTime": LONG_AGO}]);
                    it.clusters = listing([cluster(&unmet)]);
                });
            },
            E,
            ["RemoteCluster milan", "offloaded to it: no right.", "clusters"],
        ),
        (
            "a cluster of another tool that is not ready",
            |it| {
                let spec = json!({"nodeSelector": {"matchLabels": {"to": "milan"}}, "kubeconfigSecretRef": {"name": "milan"}});
                with(it, |it| it.clusters = listing([unreachable(spec)]));
            },
            E,
            ["RemoteCluster milan", "created there: no answer.", "clusters"],
        ),
        (
            "a cluster that Liqo declares and that is not ready",
            |it| {
                let spec = json!({"discoveredFrom": {"fabric": "Liqo"}});
                with(it, |it| it.clusters = listing([unreachable(spec)]));
            },
            W,
            ["RemoteCluster milan", "created there: no answer.", "clusters"],
        ),
        (
            "a cluster without a status",
            |it| with(it, |it| it.clusters = listing([cluster(&json!([]))])),
            E,
            ["RemoteCluster milan", "not written its status", "clusters"],
        ),
    ]);
}

#[test]
fn what_blocks_the_fabric_is_reported_as_a_note() {
    assert_found(&[
        (
            "a kind that is not defined",
            |it| with(it, |it| (it.asked, it.is_undefined) = (Listing::default(), true)),
            N,
            [
                "Deployment liqo-csi/liqo-csi-fabric",
                "not defined",
                "liqo-csi crds --offloading | kubectl create -f -",
            ],
        ),
        (
            "certificates that wait",
            |it| {
                with(it, |it| {
                    it.certificates = listing(["one", "two"].map(|name| request(name, FABRIC, &json!({}))));
                });
            },
            N,
            [
                "CertificateSigningRequest one",
                "have no logs",
                "kubectl certificate approve one two;",
            ],
        ),
    ]);
}

#[test]
fn addresses_of_routed_clusters_are_checked() {
    assert_found(&[
        (
            "two clusters with the same addresses",
            |it| {
                with(it, |it| {
                    it.clusters =
                        listing([routed("milan", "10.64.0.0/16"), routed("turin", "10.64.128.0/20")]);
                });
            },
            W,
            [
                "RemoteCluster milan",
                "(10.64.0.0/16) and those of turin (10.64.128.0/20)",
                "podCIDRs",
            ],
        ),
        (
            "addresses that are none",
            |it| with(it, |it| it.clusters = listing([routed("milan", "fd00:::/8")])),
            E,
            [
                "RemoteCluster milan",
                "invalid ranges: fd00:::/8.",
                "10.64.0.0/16",
            ],
        ),
    ]);
}

#[test]
fn working_and_liqo_offloading_causes_no_finding() {
    let good: &[Break] = &[
        |it| with(it, |_| {}),
        |it| {
            with(it, |it| {
                let isolated = |name| {
                    let mut cluster = routed(name, "10.64.0.0/16");
                    cluster["spec"]["fabric"]["network"]["mode"] = "Isolated".into();
                    cluster
                };
                it.clusters = listing([
                    routed("milan", "10.64.0.0/16"),
                    routed("turin", "10.65.0.0/16"),
                    isolated("bari"),
                ]);
            });
        },
        // The creation has just begun.
        |it| unready(it, "InProgress", "Creating", "it is being made", JUST_NOW),
        |it| unready(it, "Terminating", "Terminating", "it goes", JUST_NOW),
        |it| with(it, |it| it.fabrics = Listing::refused("forbidden")),
        |it| with(it, |it| it.leases = Listing::refused("forbidden")),
        // Whether they are Liqo's is unknown.
        |it| {
            with(it, |it| {
                (it.fabrics, it.liqo) = (Listing::default(), Err("forbidden".into()));
            });
        },
        |it| {
            with(it, |it| {
                (it.fabrics, it.liqo) = (Listing::default(), Ok(Some("webhook".into())));
            });
        },
    ];
    for change in good {
        let mut installation = installation();
        change(&mut installation);
        assert_eq!(examine(&installation), []);
    }
}

#[test]
fn daemon_sets_that_run_on_virtual_nodes_are_found() {
    let everything = json!([{"operator": "Exists"}]);
    let affinity = |operator: &str| {
        let term = json!({"matchExpressions": [{"key": "liqo.io/type", "operator": operator, "values": ["virtual-node"]}]});
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}})
    };
    let found = |pod: Value, fabric: Value| {
        let mut installation = installation();
        with(&mut installation, |it| {
            let mut cluster = cluster(&json!([]));
            cluster["spec"]["fabric"] = fabric;
            it.clusters = listing([cluster]);
            let metadata = json!({"name": "agent", "namespace": "monitoring"});
            let spec = json!({"selector": {}, "template": {"spec": pod}});
            it.daemons = listing([json!({"metadata": metadata, "spec": spec})]);
        });
        let mut findings = examine(&installation).into_iter();
        findings.any(|it| it.object == "DaemonSet monitoring/agent" && it.problem.contains("those of milan"))
    };
    let named = json!([{"key": "virtual-node.liqo.io/not-allowed", "value": "true"}]);
    let other = json!([{"key": "gpu", "operator": "Exists"}, {"operator": "Exists", "effect": "NoSchedule"}]);
    let linux = json!({"kubernetes.io/os": "linux"});
    for (what, is_found, pod) in [
        (
            "tolerates everything",
            true,
            json!({"containers": [], "tolerations": everything}),
        ),
        (
            "names the taint",
            true,
            json!({"containers": [], "tolerations": named}),
        ),
        (
            "on linux",
            true,
            json!({"containers": [], "tolerations": everything, "nodeSelector": linux}),
        ),
        (
            "tolerates something else",
            false,
            json!({"containers": [], "tolerations": other}),
        ),
        ("tolerates nothing", false, json!({"containers": []})),
        (
            "kept off",
            false,
            json!({"containers": [], "tolerations": everything, "affinity": affinity("NotIn")}),
        ),
        (
            "meant for them",
            true,
            json!({"containers": [], "tolerations": everything, "affinity": affinity("In")}),
        ),
    ] {
        assert_eq!(found(pod, json!({})), is_found, "{what}");
    }
    let taint = json!({"key": "kosmos.io/node", "value": "true", "effect": "NoSchedule"});
    let pod = json!({"containers": [], "tolerations": named});
    assert!(
        !found(pod, json!({"taints": [taint]})),
        "another taint keeps it off"
    );
}

#[test]
fn the_reason_why_a_namespace_is_not_offloaded_is_reported() {
    use crate::inspect::checks::offloading::why_not_offloaded;
    let now = "2026-01-01T12:00:00Z".parse().unwrap();
    let why = |change: fn(&mut Offloading)| {
        let mut offloading = good();
        change(&mut offloading);
        why_not_offloaded(&offloading, now)
    };
    for (change, words) in [
        (
            (|it| it.fabrics = Listing::default()) as fn(&mut Offloading),
            "neither liqo-csi fabric",
        ),
        (
            |it| it.leases = Listing::default(),
            "no pod of liqo-csi fabric is active",
        ),
        (|it| it.leases = Listing::refused("forbidden"), "cannot be read"),
        (
            |it| it.liqo = Ok(Some("its webhook".to_owned())),
            "Liqo is installed (its webhook)",
        ),
        (|_| (), "a kind that was just defined is noticed"),
    ] {
        let said = why(change);
        assert!(said.contains(words), "{said}");
    }
}
