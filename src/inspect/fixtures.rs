//! The objects of a healthy cluster for tests: each test breaks one of them.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};

use super::{Installation, Listing, Setup, Storage};
use crate::{topology::Node, volume::mark};

pub(super) const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

pub(super) fn object<K: DeserializeOwned>(object: Value) -> K {
    from_value(object).unwrap()
}

/// A complete listing of these objects.
pub(super) fn listing<K: DeserializeOwned + kube::Resource>(
    objects: impl IntoIterator<Item = Value>,
) -> Listing<K> {
    Listing::of(objects.into_iter().map(object).collect())
}

pub(super) fn claim() -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "data", "uid": UID, "finalizers": ["kubernetes.io/pvc-protection"]},
        "spec": {"storageClassName": "liqo", "volumeName": format!("pvc-{UID}"),
            "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    })
}

pub(super) fn volume() -> Value {
    json!({
        "metadata": {"name": format!("pvc-{UID}")},
        "spec": {
            "storageClassName": "liqo",
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "shop", "name": "data", "uid": UID},
            "csi": {"driver": "storage.liqo.io", "volumeHandle": format!("v1:home:pvc-{UID}")},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.storage.liqo.io/node", "operator": "In", "values": ["one"]}]}]}},
        },
        "status": {"phase": "Bound"},
    })
}

pub(super) fn twin() -> Value {
    json!({
        "metadata": {
            "namespace": "liqo-storage", "name": UID, "uid": "twin",
            "labels": {
                mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home",
                mark::VOLUME: format!("pvc-{UID}"),
            },
            "annotations": {
                mark::CLAIM_NAMESPACE: "shop", mark::CLAIM_NAME: "data", mark::CLAIM_UID: UID,
                mark::HANDED_OVER: "true",
            },
            "finalizers": ["storage.liqo.io/twin"],
        },
        "spec": {"storageClassName": "fast", "volumeName": "pvc-twin"},
        "status": {"phase": "Bound"},
    })
}

pub(super) fn real() -> Value {
    json!({
        "metadata": {"name": "pvc-twin"},
        "spec": {
            "storageClassName": "fast",
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "liqo-storage", "name": UID, "uid": "twin"},
            "csi": {"driver": "real.example", "volumeHandle": "1"},
        },
        "status": {"phase": "Bound"},
    })
}

pub(super) fn classes() -> [Value; 2] {
    [
        json!({"metadata": {"name": "liqo"}, "provisioner": "storage.liqo.io",
            "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": {"realStorageClass": "fast", "csi.storage.k8s.io/fstype": "ext4"}}),
        json!({"metadata": {"name": "fast"}, "provisioner": "real.example",
            "volumeBindingMode": "WaitForFirstConsumer"}),
    ]
}

/// A node with the labels of the driver.
pub(super) fn node(name: &str) -> Node {
    let labels = [
        ("topology.storage.liqo.io/cluster", "home"),
        ("topology.storage.liqo.io/node", name),
    ];
    Node {
        name: name.to_owned(),
        labels: labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..Node::default()
    }
}

/// Two nodes, and one volume on the first of them.
pub(super) fn storage() -> Storage {
    let nodes: Listing<PersistentVolume> = listing([
        json!({"metadata": {"name": "one"}}),
        json!({"metadata": {"name": "two"}}),
    ]);
    Storage {
        home: Some("home".parse().unwrap()),
        namespace: Some("liqo-storage".into()),
        classes: listing(classes()),
        claims: listing([claim()]),
        twins: listing([twin()]),
        volumes: listing([volume(), real()]),
        nodes: nodes.map(|named| node(&named.metadata.name.unwrap())),
        unschedulable: std::collections::BTreeMap::new(),
        events: Listing::default(),
        consumers: Listing::default(),
    }
}

/// The claim of [`storage`], changed.
pub(super) fn claim_with(change: impl FnOnce(&mut Value)) -> Listing<PersistentVolumeClaim> {
    changed(claim(), change)
}

/// The twin of [`storage`], changed.
pub(super) fn twin_with(change: impl FnOnce(&mut Value)) -> Listing<PersistentVolumeClaim> {
    changed(twin(), change)
}

fn changed<K: DeserializeOwned + kube::Resource>(
    mut value: Value,
    change: impl FnOnce(&mut Value),
) -> Listing<K> {
    change(&mut value);
    listing([value])
}

/// A controller with all its sidecars.
pub(super) fn deployment() -> Value {
    let sidecar = |name: &str, flags: &[&str]| {
        let common = ["--leader-election", "--timeout=60s", "--kube-api-qps=100"];
        let flags = [&common, flags].concat();
        json!({"name": name, "image": format!("registry.example/{name}:v1"), "args": flags})
    };
    json!({
        "metadata": {"namespace": "liqo-csi", "name": "liqo-csi-controller"},
        "spec": {"replicas": 2, "selector": {}, "template": {"spec": {
            "serviceAccountName": "liqo-csi-controller",
            "containers": [
                {"name": "driver", "args": ["controller", "--storage-namespace=liqo-storage"]},
                sidecar("csi-provisioner", &["--strict-topology", "--extra-create-metadata"]),
                sidecar("csi-attacher", &[]),
            ],
        }}},
        "status": {"readyReplicas": 2},
    })
}

pub(super) fn drivers() -> [Value; 2] {
    [
        json!({"metadata": {"name": "storage.liqo.io"}, "spec": {"attachRequired": true, "podInfoOnMount": true,
            "storageCapacity": true, "fsGroupPolicy": "ReadWriteOnceWithFSType", "volumeLifecycleModes": ["Persistent"]}}),
        json!({"metadata": {"name": "real.example"}, "spec": {"fsGroupPolicy": "ReadWriteOnceWithFSType"}}),
    ]
}

pub(super) fn csi_node(name: &str, drivers: &[&str]) -> Value {
    let drivers: Vec<Value> = drivers
        .iter()
        .map(|driver| json!({"name": driver, "nodeID": name, "topologyKeys": ["topology.storage.liqo.io/cluster"]}))
        .collect();
    json!({"metadata": {"name": name}, "spec": {"drivers": drivers}})
}

pub(super) fn attachment(name: &str, attacher: &str, volume: &str, nested: bool) -> Value {
    let labels = if nested {
        json!({mark::VOLUME: format!("pvc-{UID}")})
    } else {
        Value::Null
    };
    json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"attacher": attacher, "nodeName": "one", "source": {"persistentVolumeName": volume}},
        "status": {"attached": true},
    })
}

/// A correct installation of the driver, with the volume of [`storage`], attached.
pub(super) fn installation() -> Installation {
    let outer = attachment("csi-1", "storage.liqo.io", &format!("pvc-{UID}"), false);
    let nested = attachment("liqo-1", "real.example", "pvc-twin", true);
    Installation {
        now: "2026-01-01T12:00:00Z".parse().unwrap(),
        setup: Setup {
            controllers: listing([deployment()]),
        },
        storage: storage(),
        namespace: listing([json!({"metadata": {"name": "liqo-storage"}})]),
        drivers: listing(drivers()),
        csi_nodes: listing(["one", "two"].map(|name| csi_node(name, &["storage.liqo.io", "real.example"]))),
        capacities: listing([json!({
            "metadata": {"name": "all", "namespace": "liqo-csi"}, "storageClassName": "liqo", "nodeTopology": {},
        })]),
        attachments: listing([outer, nested]),
        node_plugins: listing([json!({
            "metadata": {"name": "liqo-csi-node", "namespace": "liqo-csi"},
            "spec": {"selector": {}, "template": {}},
            "status": {"desiredNumberScheduled": 2, "numberReady": 2, "currentNumberScheduled": 2, "numberMisscheduled": 0},
        })]),
        ..Installation::default()
    }
}
