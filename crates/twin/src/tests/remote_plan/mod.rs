//! Twins in a remote cluster, with one fake API server for each side. Creation is here; refusals are in
//! `refusal`, deletion is in `deletion`, copies are in `source`.

mod deletion;
mod kosmos;
mod refusal;
mod source;

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{A_MOMENT, CLAIM, GIB, TEST_TIMEOUT, UID, assert_no_copy};
use crate::{
    ChangeError, CreateError, CreateRequest, DeleteError, NoSite, Policy, ProvisionedVolume, TWIN_CLASS,
    TWIN_NAME, TWIN_NAMESPACE, TWIN_VOLUME,
    cluster::{
        Cluster, Rights,
        events::Events,
        testing::{Act, FakeApi, Fault},
    },
    create, delete,
    errors::FindError,
    expand,
    fleet::{Link, Registry},
    placement::{ClassMap, Declared, Mapped, Namespaces, Refusal},
    site::find_existing,
    topology::{CLUSTER_KEY, Segments},
    volume::{
        Access, AccessMode, BindingPolicy, Capabilities, Capability, Epoch, Foreign, Refused, SizeRange,
        VolumeId, VolumeName, digest, mark,
    },
};

const REFUSALS: &str = "/api/v1/namespaces/ours/configmaps/liqo-csi-refusals";
const TWIN: &str = "/api/v1/namespaces/shop-home/persistentvolumeclaims/data";

/// A home cluster with one virtual node, and the cluster that it represents.
struct World {
    home_api: FakeApi,
    there: FakeApi,
    home: Cluster,
    declared: Declared,
    rights: Rights,
    request: CreateRequest,
    policy: Policy,
}

impl World {
    async fn new() -> Self {
        let (home_api, there) = (FakeApi::start().await, FakeApi::start().await);
        let labels = json!({"to": "milan", CLUSTER_KEY: "milan"});
        home_api.put("/api/v1/nodes/to-milan", json!({"metadata": {"labels": labels}}));
        class(&home_api, "liqo", "storage.liqo.io", "WaitForFirstConsumer");
        class(&there, "real", "real.test", "WaitForFirstConsumer");
        class(&there, "instant", "real.test", "Immediate");
        there.put("/api/v1/nodes/r1", json!({"metadata": {"labels": {}}}));
        claim(&home_api, &json!({}));
        let home = home_api.cluster().await;
        Self {
            home_api,
            there,
            home,
            declared: declared(),
            rights: Rights::ALL,
            request: request(),
            policy: Policy {
                namespace: "ours".into(),
                ..Policy::default()
            },
        }
    }

    async fn registry(&self) -> Registry {
        Registry::fixed([(self.declared.clone(), Link::up(&self.there, self.rights).await)])
    }

    async fn create(&self) -> Result<ProvisionedVolume, CreateError> {
        self.create_with(&self.registry().await).await
    }

    async fn create_with(&self, registry: &Registry) -> Result<ProvisionedVolume, CreateError> {
        self.create_within(registry, TEST_TIMEOUT).await
    }

    /// Creates a twin that is never bound.
    async fn create_in_vain(&self) {
        let outcome = self.create_within(&self.registry().await, A_MOMENT).await;
        assert!(
            matches!(outcome, Err(CreateError::StillWaiting { .. })),
            "{outcome:?}"
        );
    }

    async fn create_within(
        &self,
        registry: &Registry,
        time: Duration,
    ) -> Result<ProvisionedVolume, CreateError> {
        let events = Events::new(self.home.client().clone());
        let until = Instant::now() + time;
        create(&self.home, registry, &self.policy, &events, &self.request, until).await
    }

    async fn delete(&self) -> Result<(), DeleteError> {
        self.delete_within(&self.registry().await, TEST_TIMEOUT).await
    }

    /// Begins to delete a volume whose data is not deleted yet.
    async fn delete_in_vain(&self, registry: &Registry) {
        let outcome = self.delete_within(registry, A_MOMENT).await;
        assert!(
            matches!(outcome, Err(DeleteError::StillWaiting { .. })),
            "{outcome:?}"
        );
    }

    async fn delete_within(&self, registry: &Registry, time: Duration) -> Result<(), DeleteError> {
        let id = VolumeId::never_moved("milan".parse().unwrap(), self.request.volume.clone());
        let events = Events::new(self.home.client().clone());
        delete(&self.home, registry, &events, &id, Instant::now() + time).await
    }

    fn twin(&self) -> Option<Value> {
        self.there.object(TWIN)
    }

    /// The size in the remembered refusal.
    fn noted(&self) -> Option<u64> {
        let notes = self.home_api.object(REFUSALS)?;
        let mut notes = notes["data"].as_object()?.values();
        let text = notes.next()?.as_str()?;
        assert_eq!(notes.next(), None);
        Some(Refused::parse(text)?.bytes)
    }

    /// Creates the PV at home, like csi-provisioner.
    fn remember(&self, made: ProvisionedVolume) {
        let attributes: BTreeMap<_, _> = made.context;
        let handle = format!("v1:milan:pvc-{UID}");
        self.home_api.put(
            &format!("/api/v1/persistentvolumes/pvc-{UID}"),
            json!({"spec": {"csi": {"driver": "storage.liqo.io", "volumeHandle": handle, "volumeAttributes": attributes}}}),
        );
    }

    /// Another PV of a claim with the name of the twin.
    fn left_over(&self, name: &str, annotations: &Value, uid: Option<&str>) {
        self.there.put(
            &format!("/api/v1/persistentvolumes/{name}"),
            json!({
                "metadata": {"annotations": annotations},
                "spec": {
                    "claimRef": {"namespace": "shop-home", "name": "data", "uid": uid},
                    "persistentVolumeReclaimPolicy": "Retain",
                },
                "status": {"phase": if uid.is_some() { "Released" } else { "Available" }},
            }),
        );
    }

    /// Binds the twin like the real provisioner.
    async fn bind(&self) {
        self.there.until(|store| store.get(TWIN).is_some()).await;
        let uid = self.twin().unwrap()["metadata"]["uid"].clone();
        self.there.put(
            "/api/v1/persistentvolumes/pv",
            json!({
                "spec": {
                    "capacity": {"storage": "2Gi"}, "persistentVolumeReclaimPolicy": "Delete",
                    "claimRef": {"namespace": "shop-home", "name": "data", "uid": uid},
                },
                "status": {"phase": "Bound"},
            }),
        );
        self.there.change(TWIN, |twin| {
            twin["spec"]["volumeName"] = json!("pv");
            twin["status"] = json!({"phase": "Bound"});
        });
    }
}

fn declared() -> Declared {
    Declared {
        namespaces: Namespaces {
            mapping: [("shop".to_owned(), Mapped::To("shop-home".into()))].into(),
            same_name: false,
        },
        classes: ClassMap {
            default: Some("real".into()),
            ..ClassMap::default()
        },
        ..Declared::plain("milan")
    }
}

fn class(api: &FakeApi, name: &str, provisioner: &str, binding: &str) {
    let class = json!({"provisioner": provisioner, "volumeBindingMode": binding});
    api.put(&format!("/apis/storage.k8s.io/v1/storageclasses/{name}"), class);
}

fn claim(api: &FakeApi, more: &Value) {
    let mut annotations = json!({"volume.kubernetes.io/selected-node": "to-milan", "team": "shop"});
    annotations
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    api.put(
        CLAIM,
        json!({"metadata": {"uid": UID, "annotations": annotations}, "spec": {"storageClassName": "liqo"}}),
    );
}

/// The same request, for the pod on the virtual node.
fn request() -> CreateRequest {
    let mut request = super::request();
    request.spec.parameters.real_class = None;
    request.requisite = vec![Segments::of_cluster(&"milan".parse().unwrap())];
    request
}

fn elsewhere(outcome: Result<ProvisionedVolume, CreateError>) -> String {
    match outcome {
        Err(CreateError::Elsewhere(why) | CreateError::NotThisClaim(why)) => why,
        Err(miss @ CreateError::SourceElsewhere { .. }) => miss.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_wait_for_first_consumer_twin_is_confirmed_at_once() {
    let world = World::new().await;
    let made = world.create().await.unwrap();
    assert_eq!(made.cluster.as_str(), "milan");
    assert_eq!(made.topology, [Segments::of_cluster(&made.cluster)]);
    assert_eq!(made.bytes, GIB.unsigned_abs());
    assert_eq!(made.context[TWIN_NAMESPACE], "shop-home");
    assert_eq!(made.context[TWIN_NAME], "data");
    assert_eq!(made.context[TWIN_CLASS], "real");
    let twin = world.twin().unwrap();
    assert_eq!(twin["spec"]["storageClassName"], "real");
    assert_eq!(twin["metadata"]["annotations"]["team"], "shop");
    assert_eq!(twin["metadata"]["annotations"][mark::HANDED_OVER], "true");
    assert_eq!(twin["metadata"]["finalizers"], json!([mark::TWIN_FINALIZER]));
    // And again, as csi-provisioner does when the response got lost.
    assert_eq!(world.create().await.unwrap(), made);
}

#[tokio::test]
async fn an_immediate_class_is_confirmed_when_bound() {
    let mut world = World::new().await;
    world.declared.classes.default = Some("instant".into());
    world.create_in_vain().await;
    world.bind().await;
    let made = world.create().await.unwrap();
    assert_eq!(made.bytes, 2 * GIB.unsigned_abs());
    assert_eq!(made.context[TWIN_VOLUME], "pv");
}

#[tokio::test]
async fn a_volume_that_must_be_bound_gets_a_selected_node() {
    let mut world = World::new().await;
    world.request.spec.parameters.binding_policy = Some(BindingPolicy::WaitForBound);
    world.create_in_vain().await;
    let annotations = world.twin().unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations["volume.kubernetes.io/selected-node"], "r1");

    // If the nodes may not be read, no node is selected.
    let mut blind = World::new().await;
    blind.request.spec.parameters.binding_policy = Some(BindingPolicy::WaitForBound);
    blind.rights.nodes = false;
    assert!(matches!(blind.create().await, Err(CreateError::Spec(_))));
    assert!(blind.twin().is_none());
}

#[tokio::test]
async fn all_claims_of_a_pod_get_the_same_node() {
    let mut world = World::new().await;
    let there = &world.there;
    class(there, "other", "other.test", "WaitForFirstConsumer");
    there.remove("/api/v1/nodes/r1");
    // Each class has most capacity on another node, and only one of them cannot have the second volume.
    for (node, real, other) in [("a", "9Gi", "20Gi"), ("b", "20Gi", "0"), ("c", "5Gi", "30Gi")] {
        there.put(
            &format!("/api/v1/nodes/{node}"),
            json!({"metadata": {"labels": {"n": node}}}),
        );
        let drivers = ["real.test", "other.test"].map(|name| json!({"name": name, "nodeID": node}));
        there.put(
            &format!("/apis/storage.k8s.io/v1/csinodes/{node}"),
            json!({"spec": {"drivers": drivers}}),
        );
        for (class, room) in [("real", real), ("other", other)] {
            there.put(
                &format!("/apis/storage.k8s.io/v1/namespaces/s/csistoragecapacities/{class}-{node}"),
                json!({"storageClassName": class, "capacity": room, "nodeTopology": {"matchLabels": {"n": node}}}),
            );
            let driver = format!("/apis/storage.k8s.io/v1/csidrivers/{class}.test");
            there.put(&driver, json!({"spec": {"storageCapacity": true}}));
        }
    }
    for (name, real) in [("liqo", "real"), ("liqo-other", "other")] {
        world.home_api.put(
            &format!("/apis/storage.k8s.io/v1/storageclasses/{name}"),
            json!({
                "provisioner": "storage.liqo.io", "volumeBindingMode": "WaitForFirstConsumer",
                "parameters": {"realStorageClass": real},
            }),
        );
    }
    world.home = world.home_api.cluster().await;
    // If only the hash decided, it would be the node that only one of the volumes can have.
    let drawing_b = (0..99).map(|n| n.to_string()).find(|lot| {
        let drawn = ["a", "b", "c"]
            .into_iter()
            .min_by_key(|node| digest(16, [lot, *node]));
        drawn == Some("b")
    });
    let claims =
        ["data", "second"].map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    world.home_api.put(
        "/api/v1/namespaces/shop/pods/user",
        json!({"metadata": {"uid": drawing_b}, "spec": {"volumes": claims}, "status": {"phase": "Pending"}}),
    );
    let second = json!({
        "metadata": {"uid": "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a222", "annotations": {"volume.kubernetes.io/selected-node": "to-milan"}},
        "spec": {"storageClassName": "liqo-other", "resources": {"requests": {"storage": "1Gi"}}},
    });
    world
        .home_api
        .put("/api/v1/namespaces/shop/persistentvolumeclaims/second", second);
    // As if requested in parallel: neither call sees the other's twin.
    let mut told = Vec::new();
    for (name, uid, real) in [
        ("data", UID, "real"),
        ("second", "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a222", "other"),
    ] {
        world.request.request_name = format!("pvc-{uid}");
        world.request.volume = VolumeName::from_request(&world.request.request_name);
        let parameters = &mut world.request.spec.parameters;
        parameters.binding_policy = Some(BindingPolicy::WaitForBound);
        parameters.real_class = Some(real.into());
        parameters.claim.as_mut().unwrap().name = name.into();
        world.declared.classes.default = None;
        world.create_in_vain().await;
        let path = format!("/api/v1/namespaces/shop-home/persistentvolumeclaims/{name}");
        let twin = world.there.object(&path).unwrap();
        world.there.remove(&path);
        told.push(twin["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].clone());
    }
    assert_eq!(told[0], told[1]);
    assert_ne!(told[0], "b");
}

#[tokio::test]
async fn a_volume_made_beforehand_binds_with_its_pod_or_never() {
    let mut world = World::new().await;
    class(
        &world.there,
        "static",
        "kubernetes.io/no-provisioner",
        "WaitForFirstConsumer",
    );
    world.there.put(
        "/api/v1/persistentvolumes/made",
        json!({
            "spec": {
                "storageClassName": "static", "capacity": {"storage": "2Gi"},
                "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            },
            "status": {"phase": "Available"},
        }),
    );
    world.declared.classes.default = Some("static".into());
    world.request.spec.parameters.binding_policy = Some(BindingPolicy::WaitForBound);
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Spec(_)), "{error}");
    assert!(error.to_string().contains("Optimistic"), "{error}");
    assert!(world.twin().is_none());

    world.request.spec.parameters.binding_policy = Some(BindingPolicy::Optimistic);
    world.create().await.unwrap();
    assert!(world.twin().is_some());
}

#[tokio::test]
async fn the_mapping_of_a_class_counts_before_its_parameter() {
    let mut world = World::new().await;
    world.request.spec.parameters.real_class = Some("gold".into());
    world.declared.classes.mapping = [("liqo".to_owned(), "real".to_owned())].into();
    world.create().await.unwrap();
    assert_eq!(world.twin().unwrap()["spec"]["storageClassName"], "real");

    world.there.remove(TWIN);
    world.home_api.change(CLAIM, |claim| {
        claim["spec"] = json!({});
        claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"] = "liqo".into();
    });
    world.create().await.unwrap();
    assert_eq!(world.twin().unwrap()["spec"]["storageClassName"], "real");
}

#[tokio::test]
async fn the_remote_twin_may_have_other_access_modes() {
    let world = World::new().await;
    claim(&world.home_api, &json!({mark::LIQO_ACCESS_MODES: "RWX"}));
    world.create().await.unwrap();
    assert_eq!(
        world.twin().unwrap()["spec"]["accessModes"],
        json!(["ReadWriteMany"])
    );
}

/// A user has created the PV again, with only driver and handle.
#[tokio::test]
async fn the_twin_that_no_pv_records_is_found_for_a_change() {
    let mut world = World::new().await;
    let mut made = world.create().await.unwrap();
    world.bind().await;
    made.context.clear();
    world.remember(made);
    let id = VolumeId::never_moved("milan".parse().unwrap(), world.request.volume.clone());
    for all_claims in [true, false] {
        world.rights.all_claims = all_claims;
        let (registry, wanted) = (world.registry().await, SizeRange::new(4 * GIB, 0).unwrap());
        let until = Instant::now() + TEST_TIMEOUT;
        let refused = expand(&world.home, &registry, &id, wanted, until).await;
        // By its class, which was found.
        assert!(
            matches!(refused, Err(ChangeError::NotExpandable(_))),
            "{refused:?}"
        );
    }
}

/// The same; during a move, a volume has a twin of each epoch.
#[tokio::test]
async fn a_twin_that_no_pv_records_is_found_by_its_epoch() {
    const MOVED: &str = "/api/v1/namespaces/shop-home/persistentvolumeclaims/a-data";
    let mut world = World::new().await;
    world.create().await.unwrap();
    let mut moved = world.twin().unwrap();
    moved["metadata"]["annotations"][mark::EPOCH] = "1".into();
    world.there.put(MOVED, moved);
    let never_moved = VolumeId::never_moved("milan".parse().unwrap(), world.request.volume.clone());
    let moved = VolumeId {
        epoch: Epoch::NEVER_MOVED.next().unwrap(),
        ..never_moved.clone()
    };
    for all_claims in [true, false] {
        world.rights.all_claims = all_claims;
        let registry = world.registry().await;
        for (id, name) in [(&never_moved, "data"), (&moved, "a-data")] {
            let site = find_existing(&world.home, &registry, id).await.unwrap().unwrap();
            assert_eq!((site.namespace(), site.name()), ("shop-home", name));
        }
    }

    world.there.remove(MOVED);
    let unknown = async |world: &World| {
        let found = find_existing(&world.home, &world.registry().await, &moved).await;
        matches!(found, Err(FindError::NoRecord(_)))
    };
    assert!(unknown(&world).await, "not all namespaces were read");
    world.rights.all_claims = true;
    let found = find_existing(&world.home, &world.registry().await, &moved).await;
    assert!(found.unwrap().is_none());
    world.home_api.put(
        "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan",
        json!({
            "spec": {"kubeconfigSecretRef": {"name": "milan"}, "fabric": {}},
            "status": {"virtualNode": {"clusterUid": "before"}},
        }),
    );
    let system = json!({"metadata": {"uid": "after"}});
    world.there.put("/api/v1/namespaces/kube-system", system);
    assert!(unknown(&world).await, "it is another cluster");
}

#[tokio::test]
async fn minimal_rights_are_enough() {
    let mut world = World::new().await;
    world.rights = Rights::default();
    let made = world.create().await.unwrap();
    assert_eq!(made.bytes, GIB.unsigned_abs());
    assert!(world.twin().unwrap()["metadata"]["finalizers"].is_null());
    let asked = world.there.requests();
    let beyond = |request: &&String| !request.contains("/shop-home/");
    assert_eq!(asked.iter().find(beyond), None);

    // No class is named, and none may be read.
    world.there.remove(TWIN);
    world.declared.classes.default = None;
    assert!(elsewhere(world.create().await).contains("has to be named"));
}
