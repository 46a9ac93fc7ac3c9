//! Twins against a fake API server, with a stand-in for the controllers that a
//! real cluster has: a provisioner that binds twins and reclaims their PVs, and
//! an attacher.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::{
    cluster::{
        Cluster,
        events::Events,
        registry::Registry,
        testing::{Act, FakeApi, Fault},
    },
    placement::{DeleteRefusal, Refusal},
    topology::{CLUSTER_KEY, NODE_KEY},
    volume::{
        Access, AccessMode, Capabilities, Capability, ClaimName, Parameters, RealSource, SizeRange, VolumeId,
        mark,
    },
};

const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
const GIB: i64 = 1 << 30;
const TWINS: &str = "/api/v1/namespaces/liqo-storage/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";

/// What the stand-in controllers do.
#[derive(Clone, Copy, PartialEq)]
enum Real {
    /// Their work.
    Works,
    /// Nothing.
    Idle,
    /// Take the node away from twins.
    SaysElsewhere,
}

struct World {
    api: Arc<FakeApi>,
    home: Cluster,
    policy: Policy,
    order: Order,
    deadline: Duration,
}

impl World {
    async fn new(real: Real) -> Self {
        let api = Arc::new(FakeApi::start().await);
        furnish(&api);
        let home = api.cluster().await;
        if real != Real::Idle {
            tokio::spawn(controllers(Arc::clone(&api), real));
        }
        Self {
            api,
            home,
            policy: Policy::default(),
            order: order(),
            deadline: Duration::from_secs(10),
        }
    }

    fn id(&self) -> VolumeId {
        VolumeId {
            cluster: self.home.id().clone(),
            name: self.order.volume.clone(),
        }
    }

    fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }

    async fn create(&self) -> Result<Made, CreateError> {
        let events = Events::new(self.home.client().clone());
        let (home, registry) = (&self.home, &Registry::default());
        create(home, registry, &self.policy, &events, &self.order, self.until()).await
    }

    async fn delete(&self) -> Result<(), DeleteError> {
        delete(&self.home, &Registry::default(), &self.id(), self.until()).await
    }

    async fn publish(&self, node: &str) -> Result<crate::volume::DataPath, PublishError> {
        let asked = &self.order.spec.capabilities;
        publish(&self.home, &self.order.volume, node, asked, self.until()).await
    }

    fn twin(&self) -> Option<Value> {
        self.api.object(&twin_path())
    }

    fn impatient(mut self) -> Self {
        self.deadline = Duration::from_millis(300);
        self
    }
}

fn twin_path() -> String {
    format!("{TWINS}/{UID}")
}

fn furnish(api: &FakeApi) {
    for node in ["n1", "n2"] {
        let labels = json!({CLUSTER_KEY: "home", NODE_KEY: node, "kubernetes.io/hostname": node});
        api.put(
            &format!("/api/v1/nodes/{node}"),
            json!({"metadata": {"labels": labels}}),
        );
        let drivers = json!([{"name": "real.test", "nodeID": node, "topologyKeys": []}]);
        api.put(
            &format!("/apis/storage.k8s.io/v1/csinodes/{node}"),
            json!({"spec": {"drivers": drivers}}),
        );
    }
    let spec = json!({"attachRequired": true, "podInfoOnMount": true});
    api.put(
        "/apis/storage.k8s.io/v1/csidrivers/real.test",
        json!({"spec": spec}),
    );
    class(api, "liqo", "storage.liqo.io", "WaitForFirstConsumer", "Delete");
    class(api, "real", "real.test", "WaitForFirstConsumer", "Delete");
    class(api, "instant", "real.test", "Immediate", "Delete");
    class(
        api,
        "static",
        "kubernetes.io/no-provisioner",
        "WaitForFirstConsumer",
        "Delete",
    );
    claim(api, "n1");
}

fn class(api: &FakeApi, name: &str, provisioner: &str, binding: &str, reclaim: &str) {
    let class = json!({
        "provisioner": provisioner, "volumeBindingMode": binding, "reclaimPolicy": reclaim,
    });
    api.put(&format!("/apis/storage.k8s.io/v1/storageclasses/{name}"), class);
}

fn claim(api: &FakeApi, node: &str) {
    let annotations = json!({
        "volume.kubernetes.io/selected-node": node,
        "volume.beta.kubernetes.io/storage-class": "evil",
        "storage.liqo.io/handed-over": "true",
        "team": "shop",
    });
    let claim = json!({
        "metadata": {"uid": UID, "annotations": annotations, "labels": {"app": "db"}},
        "spec": {"storageClassName": "liqo"},
    });
    api.put(CLAIM, claim);
}

fn order() -> Order {
    let capability = Capability {
        mode: AccessMode::ReadWriteOnce,
        access: Access::Mount {
            fs_type: None,
            flags: Vec::new(),
        },
    };
    let request_name = format!("pvc-{UID}");
    Order {
        volume: VolumeName::from_request(&request_name),
        request_name,
        spec: VolumeSpec {
            size: SizeRange::new(GIB, 0).unwrap(),
            capabilities: Capabilities::new([capability]).unwrap(),
            parameters: Parameters {
                real_class: Some("real".into()),
                binding_policy: None,
                claim: Some(ClaimName {
                    namespace: "shop".into(),
                    name: "data".into(),
                }),
                volume: None,
            },
            source: None,
        },
        requisite: vec![Segments::of_node(&"home".parse().unwrap(), "n1")],
    }
}

/// Stands in for controller manager, real provisioner and real attacher.
async fn controllers(api: Arc<FakeApi>, real: Real) {
    let mut changes = api.store().changes();
    loop {
        for twin in api.store().below(TWINS) {
            reconcile_twin(&api, &twin, real);
        }
        for volume in api.store().below(VOLUMES) {
            reconcile_volume(&api, &volume);
        }
        for attachment in api.store().below(ATTACHMENTS) {
            reconcile_attachment(&api, &attachment);
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn path(collection: &str, object: &Value) -> String {
    format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap())
}

fn reconcile_twin(api: &FakeApi, twin: &Value, real: Real) {
    const NODE: &str = "volume.kubernetes.io/selected-node";
    let annotations = &twin["metadata"]["annotations"];
    let settled = twin["status"]["phase"] == "Bound" || !twin["metadata"]["deletionTimestamp"].is_null();
    if settled {
        return;
    }
    if real == Real::SaysElsewhere {
        if !annotations[NODE].is_null() {
            api.change(&path(TWINS, twin), |twin| {
                twin["metadata"]["annotations"]
                    .as_object_mut()
                    .unwrap()
                    .remove(NODE);
            });
        }
        return;
    }
    let reserved = api
        .store()
        .below(VOLUMES)
        .into_iter()
        .find(|volume| volume["spec"]["claimRef"]["name"] == twin["metadata"]["name"]);
    let volume = match (reserved, twin["spec"]["storageClassName"].as_str()) {
        (Some(mut volume), _) => {
            volume["spec"]["claimRef"]["uid"] = twin["metadata"]["uid"].clone();
            volume
        }
        (None, Some("static")) => return,
        (None, _) => real_volume(twin),
    };
    let name = volume["metadata"]["name"].clone();
    let capacity = volume["spec"]["capacity"].clone();
    api.put(&path(VOLUMES, &volume), volume);
    api.change(&path(TWINS, twin), |twin| {
        twin["spec"]["volumeName"] = name;
        twin["status"] = json!({"phase": "Bound", "capacity": capacity});
    });
}

fn real_volume(twin: &Value) -> Value {
    let uid = twin["metadata"]["uid"].as_str().unwrap();
    let claim = json!({"namespace": "liqo-storage", "name": twin["metadata"]["name"], "uid": uid});
    let node = &twin["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
    let affinity = match node.as_str() {
        Some(node) => on(node),
        None => Value::Null,
    };
    json!({
        "metadata": {"name": format!("pvc-{uid}")},
        "spec": {
            "claimRef": claim,
            "capacity": twin["spec"]["resources"]["requests"],
            "accessModes": twin["spec"]["accessModes"],
            "volumeMode": twin["spec"]["volumeMode"],
            "persistentVolumeReclaimPolicy": "Delete",
            "nodeAffinity": affinity,
            "csi": {"driver": "real.test", "volumeHandle": "h-1", "volumeAttributes": {"a": "b"}},
        },
        "status": {"phase": "Bound"},
    })
}

fn on(node: &str) -> Value {
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}})
}

fn reconcile_volume(api: &FakeApi, volume: &Value) {
    let claim = &volume["spec"]["claimRef"];
    let bound = !claim["uid"].is_null() && claim["namespace"] == "liqo-storage";
    let twin = claim["name"]
        .as_str()
        .map(|name| api.object(&format!("{TWINS}/{name}")));
    if !bound || twin != Some(None) || volume["status"]["phase"] == "Released" {
        return;
    }
    if volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete" {
        api.remove(&path(VOLUMES, volume));
    } else {
        api.change(&path(VOLUMES, volume), |volume| {
            volume["status"]["phase"] = "Released".into();
        });
    }
}

fn reconcile_attachment(api: &FakeApi, attachment: &Value) {
    let path = path(ATTACHMENTS, attachment);
    if !attachment["metadata"]["deletionTimestamp"].is_null() {
        api.remove(&path);
    } else if attachment["status"]["attached"] != true {
        api.change(&path, |attachment| {
            attachment["metadata"]["finalizers"] = json!(["external-attacher/real"]);
            attachment["status"] = json!({"attached": true, "attachmentMetadata": {"lun": "7"}});
        });
    }
}

/// Where the stand-in's volumes are: the real affinity and our cluster.
fn here(node: &str) -> Segments {
    Segments::of_cluster(&"home".parse().unwrap()).with("kubernetes.io/hostname", node)
}

fn refusal(outcome: Result<Made, CreateError>) -> Refusal {
    match outcome {
        Err(CreateError::Refused { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_volume_is_made_where_its_consumer_is() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    assert_eq!(made.bytes, 1 << 30);
    assert_eq!(made.topology, [here("n1")]);
    assert_eq!(made.context[TWIN_NAME], UID);

    let twin = world.twin().unwrap();
    assert_eq!(made.context[TWIN_VOLUME], twin["spec"]["volumeName"]);
    let annotations = &twin["metadata"]["annotations"];
    assert_eq!(annotations["team"], "shop");
    assert_eq!(annotations[mark::CLAIM_UID], UID);
    assert_eq!(annotations[mark::HANDED_OVER], "true");
    assert_eq!(
        annotations["volume.beta.kubernetes.io/storage-class"],
        Value::Null
    );
    assert_eq!(twin["metadata"]["labels"]["app"], "db");
    assert_eq!(twin["spec"]["storageClassName"], "real");
}

#[tokio::test]
async fn asking_again_gives_the_same_volume_and_writes_nothing() {
    let world = World::new(Real::Works).await;
    let first = world.create().await.unwrap();
    let writes = world.api.writes();
    assert_eq!(
        writes,
        2,
        "the twin and its hand-over: {:?}",
        world.api.requests()
    );
    assert_eq!(world.create().await.unwrap(), first);
    assert_eq!(world.api.writes(), writes);
}

#[tokio::test]
async fn time_running_out_is_not_final_and_says_why() {
    let world = World::new(Real::Idle).await.impatient();
    world.create().await.unwrap_err();
    let uid = world.twin().unwrap()["metadata"]["uid"].clone();
    let event = json!({
        "involvedObject": {"uid": uid}, "type": "Warning", "message": "out of disks",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    });
    world.api.put("/api/v1/namespaces/liqo-storage/events/e", event);
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::StillWaiting { .. }), "{error}");
    assert!(
        error.to_string().ends_with("is not bound yet: out of disks"),
        "{error}"
    );

    // Whoever comes later finds it and goes on.
    tokio::spawn(controllers(Arc::clone(&world.api), Real::Works));
    let patient = World {
        deadline: Duration::from_secs(10),
        ..world
    };
    patient.create().await.unwrap();
}

#[tokio::test]
async fn elsewhere_is_what_the_real_driver_says() {
    let world = World::new(Real::SaysElsewhere).await;
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Elsewhere(_)), "{error}");
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_node_without_the_real_driver_gets_no_twin() {
    let world = World::new(Real::Works).await;
    let csi_node = "/apis/storage.k8s.io/v1/csinodes/n1";
    let mut news = world.home.views().csi_nodes.subscribe("n1");
    world.api.put(csi_node, json!({"spec": {"drivers": []}}));
    news.next(Duration::from_secs(10)).await;
    let error = world.create().await.unwrap_err();
    assert!(
        matches!(&error, CreateError::Elsewhere(why) if why.contains("real.test")),
        "{error}"
    );
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn a_foreign_object_in_the_twins_place_is_left_alone() {
    let world = World::new(Real::Works).await;
    world
        .api
        .put(&twin_path(), json!({"metadata": {"labels": {"app": "other"}}}));
    assert!(matches!(refusal(world.create().await), Refusal::Foreign(_)));
    assert!(matches!(
        world.delete().await,
        Err(DeleteError::Refused {
            refusal: DeleteRefusal::Foreign(_),
            ..
        })
    ));
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn a_claim_is_known_by_its_uid() {
    let world = World::new(Real::Idle).await.impatient();
    world.create().await.unwrap_err();
    assert!(world.twin().is_some());
    world
        .api
        .change(CLAIM, |claim| claim["metadata"]["uid"] = "another".into());
    assert_eq!(refusal(world.create().await), Refusal::ClaimGone);
    assert_eq!(world.twin(), None, "the twin of the claim that is gone must go");
}

#[tokio::test]
async fn an_old_request_is_not_followed() {
    let world = World::new(Real::Works).await;
    claim(&world.api, "n2");
    assert!(matches!(
        refusal(world.create().await),
        Refusal::NodeDisagrees { .. }
    ));
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn another_node_means_another_twin() {
    let mut world = World::new(Real::Idle).await.impatient();
    world.create().await.unwrap_err();
    claim(&world.api, "n2");
    world.order.requisite = vec![Segments::of_node(world.home.id(), "n2")];
    world.deadline = Duration::from_secs(10);
    tokio::spawn(controllers(Arc::clone(&world.api), Real::Works));
    // The stand-in may have bound the first twin on n1 meanwhile; both ways lead to n2 or say so.
    match world.create().await {
        Ok(made) => assert_eq!(made.topology, [here("n2")]),
        Err(error) => assert!(matches!(error, CreateError::Elsewhere(_)), "{error}"),
    }
}

#[tokio::test]
async fn another_request_under_the_same_name_is_refused() {
    let mut world = World::new(Real::Works).await;
    world.create().await.unwrap();
    world.order.spec.size = SizeRange::new(2 * GIB, 0).unwrap();
    assert!(matches!(refusal(world.create().await), Refusal::Differs(_)));
}

#[tokio::test]
async fn a_twin_that_vanished_is_never_made_again() {
    let world = World::new(Real::Works).await;
    world.create().await.unwrap();
    world
        .api
        .put(&format!("{VOLUMES}/pvc-{UID}"), json!({"spec": {}}));
    world.api.remove(&twin_path());
    assert_eq!(refusal(world.create().await), Refusal::Vanished);
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn retain_is_enforced_on_the_real_volume() {
    let world = World::new(Real::Works).await;
    let mut news = world.home.views().classes.subscribe("liqo");
    class(
        &world.api,
        "liqo",
        "storage.liqo.io",
        "WaitForFirstConsumer",
        "Retain",
    );
    news.next(Duration::from_secs(10)).await;
    let made = world.create().await.unwrap();
    let volume = format!("{VOLUMES}/{}", made.context[TWIN_VOLUME]);
    assert_eq!(
        world.api.object(&volume).unwrap()["spec"]["persistentVolumeReclaimPolicy"],
        "Retain"
    );

    world.delete().await.unwrap();
    assert_eq!(world.twin(), None);
    assert_eq!(world.api.object(&volume).unwrap()["status"]["phase"], "Released");
}

#[tokio::test]
async fn a_static_volume_is_reserved_for_the_twin() {
    let mut world = World::new(Real::Works).await;
    for node in ["n1", "n2"] {
        let volume = json!({
            "spec": {
                "storageClassName": "static", "capacity": {"storage": "2Gi"}, "nodeAffinity": on(node),
                "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": "/mnt/x"},
            },
            "status": {"phase": "Available"},
        });
        world.api.put(&format!("{VOLUMES}/disk-{node}"), volume);
    }
    world.order.spec.parameters.real_class = Some("static".into());
    let made = world.create().await.unwrap();
    assert_eq!(made.context[TWIN_VOLUME], "disk-n1");
    assert_eq!(made.bytes, 2 << 30);
    let path = world.publish("n1").await.unwrap();
    assert!(matches!(path.source, RealSource::Local { .. }));
    assert!(
        world.api.store().below(ATTACHMENTS).is_empty(),
        "nothing to attach"
    );
}

#[tokio::test]
async fn without_a_room_no_static_twin() {
    let mut world = World::new(Real::Works).await;
    world.order.spec.parameters.real_class = Some("static".into());
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Elsewhere(_)), "{error}");
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_request_without_a_claim_gets_a_node_of_our_choice() {
    let mut world = World::new(Real::Works).await;
    world.order.spec.parameters.claim = None;
    world.order.requisite = Vec::new();
    world.order.volume = VolumeName::from_request("Sanity");
    let made = world.create().await.unwrap();
    assert!(made.topology == [here("n1")] || made.topology == [here("n2")]);

    world.order.volume = VolumeName::from_request("Immediate");
    world.order.spec.parameters.real_class = Some("instant".into());
    let made = world.create().await.unwrap();
    assert_eq!(made.topology, [Segments::of_cluster(world.home.id())]);
}

#[tokio::test]
async fn no_class_is_an_error_that_says_so() {
    let mut world = World::new(Real::Works).await;
    for (class, expected) in [
        (Some("none"), "does not exist"),
        (Some("liqo"), "virtual"),
        (None, "default"),
    ] {
        world.order.spec.parameters.real_class = class.map(str::to_owned);
        let error = world.create().await.unwrap_err();
        assert!(matches!(error, CreateError::Class(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_quota_is_a_final_error() {
    let world = World::new(Real::Works).await;
    world
        .api
        .fault(Fault::new("POST", "persistentvolumeclaims", Act::Refuse(403)));
    assert!(matches!(world.create().await, Err(CreateError::NotAccepted(_))));
}

#[tokio::test]
async fn every_write_may_fail_once() {
    for act in [Act::Refuse(500), Act::DoAndRefuse(504), Act::Refuse(429)] {
        let world = World::new(Real::Works).await;
        for method in ["POST", "PATCH", "DELETE"] {
            world.api.fault(Fault::new(method, "/", act).times(1));
        }
        world.create().await.unwrap();
        world.publish("n1").await.unwrap();
        unpublish(&world.home, &world.order.volume, Some("n1"), world.until())
            .await
            .unwrap();
        world.delete().await.unwrap();
        assert!(world.api.store().below(VOLUMES).is_empty(), "{act:?}");
    }
}

#[tokio::test]
async fn conflicts_are_read_again() {
    let world = World::new(Real::Works).await;
    world
        .api
        .fault(Fault::new("PATCH", "persistentvolumeclaims", Act::Refuse(409)).times(2));
    world.create().await.unwrap();
}

#[tokio::test]
async fn an_unreachable_cluster_is_no_answer() {
    let world = World::new(Real::Works).await;
    world.create().await.unwrap();
    world.api.fault(Fault::new("GET", "/api", Act::Hang));
    assert!(matches!(world.create().await, Err(CreateError::Api(_))));
    assert!(matches!(world.delete().await, Err(DeleteError::Api(_))));
    assert!(matches!(world.publish("n1").await, Err(PublishError::Api(_))));
}

#[tokio::test]
async fn deleted_means_that_the_real_volume_is_gone() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    let volume = format!("{VOLUMES}/{}", made.context[TWIN_VOLUME]);
    // The real driver fails to delete: the stand-in leaves PVs in phase Released alone.
    world.api.change(&volume, |volume| {
        volume["status"] = json!({"phase": "Released", "message": "disk is busy"});
    });
    let world = world.impatient();
    let error = world.delete().await.unwrap_err();
    assert!(error.to_string().contains("disk is busy"), "{error}");
    assert_eq!(world.twin(), None, "the twin goes at once");

    let error = world.delete().await.unwrap_err();
    assert!(
        matches!(error, DeleteError::StillWaiting { .. }),
        "found again without the twin: {error}"
    );
    world.api.remove(&volume);
    world.delete().await.unwrap();
    world.delete().await.unwrap();
}

#[tokio::test]
async fn an_attached_volume_is_not_deleted() {
    let world = World::new(Real::Works).await;
    world.create().await.unwrap();
    world.publish("n1").await.unwrap();
    assert!(matches!(
        world.delete().await,
        Err(DeleteError::Refused { refusal: DeleteRefusal::Attached(node), .. }) if node == "n1"
    ));
    assert!(world.twin().is_some());
}

#[tokio::test]
async fn publishing_attaches_under_a_name_of_our_own() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    let path = world.publish("n1").await.unwrap();
    assert_eq!(path.attachment["lun"], "7");
    let RealSource::Csi(source) = &path.source else {
        panic!("{path:?}")
    };
    assert_eq!(
        (source.driver.as_str(), source.handle.as_str()),
        ("real.test", "h-1")
    );
    assert!(source.wants.pod_info);

    let name = attachment_name(&made.context[TWIN_VOLUME], "n1");
    assert!(
        !name.starts_with("csi-"),
        "Kubernetes deletes what bears the name it would have given"
    );
    assert!(world.api.object(&format!("{ATTACHMENTS}/{name}")).is_some());
    assert_eq!(world.publish("n1").await.unwrap(), path);

    unpublish(&world.home, &world.order.volume, Some("n2"), world.until())
        .await
        .unwrap();
    assert_eq!(world.api.store().below(ATTACHMENTS).len(), 1);
    unpublish(&world.home, &world.order.volume, Some("n1"), world.until())
        .await
        .unwrap();
    assert!(world.api.store().below(ATTACHMENTS).is_empty());
    unpublish(&world.home, &world.order.volume, Some("n1"), world.until())
        .await
        .unwrap();
}

#[tokio::test]
async fn what_cannot_be_published() {
    let world = World::new(Real::Works).await;
    assert!(matches!(
        world.publish("n1").await,
        Err(PublishError::NoTwin { .. })
    ));
    world.create().await.unwrap();
    assert!(matches!(
        world.publish("n9").await,
        Err(PublishError::NoNode { .. })
    ));
    let many = Capability {
        mode: AccessMode::ReadWriteMany,
        access: Access::Mount {
            fs_type: None,
            flags: Vec::new(),
        },
    };
    let asked = Capabilities::new([many]).unwrap();
    let refused = publish(&world.home, &world.order.volume, "n1", &asked, world.until()).await;
    assert!(matches!(refused, Err(PublishError::Incapable(..))));
}

#[tokio::test]
async fn the_real_attachers_word_is_passed_on() {
    let world = World::new(Real::Idle).await;
    let claim_twin = tokio::spawn({
        let api = Arc::clone(&world.api);
        async move {
            api.until(|store| store.get(&twin_path()).is_some()).await;
            reconcile_twin(&api, &api.object(&twin_path()).unwrap(), Real::Works);
        }
    });
    let made = world.create().await.unwrap();
    claim_twin.await.unwrap();

    let world = world.impatient();
    assert!(matches!(
        world.publish("n1").await,
        Err(PublishError::StillWaiting(_))
    ));
    let name = attachment_name(&made.context[TWIN_VOLUME], "n1");
    world.api.change(&format!("{ATTACHMENTS}/{name}"), |attachment| {
        attachment["status"] = json!({
            "attached": false, "attachError": {"message": "too many disks", "errorCode": 8},
        });
    });
    let error = world.publish("n1").await.unwrap_err();
    assert!(
        matches!(error, PublishError::Refused { code: Some(8), .. }),
        "{error}"
    );
}

#[tokio::test]
async fn lists_what_was_handed_over() {
    let world = World::new(Real::Works).await;
    assert_eq!(list(&world.home, &Registry::default()).await.unwrap(), []);
    world.create().await.unwrap();
    let listed = list(&world.home, &Registry::default()).await.unwrap();
    assert_eq!(listed[0].volume, world.order.volume);
    assert_eq!(listed[0].bytes, 1 << 30);
    assert!(
        validate(&world.home, &Registry::default(), &world.id())
            .await
            .unwrap()
            .is_some()
    );
    world.delete().await.unwrap();
    assert_eq!(list(&world.home, &Registry::default()).await.unwrap(), []);
    assert!(
        validate(&world.home, &Registry::default(), &world.id())
            .await
            .unwrap()
            .is_none()
    );
}
