//! Complete imports against a fake API server, interrupted after every write. Kubernetes' PV controller is
//! simulated, and csi-provisioner in front of the real `CreateVolume`.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use super::*;
use crate::{
    cluster::{
        events::Events,
        testing::{Act, FakeApi, Fault, Store},
    },
    fleet::Registry,
    placement::transfer::Obstacle,
    topology::{CLUSTER_KEY, NODE_KEY, Segments},
    twin::{CreateError, CreateRequest, Policy, create},
    volume::{
        Access, AccessMode, Capabilities, Capability, DRIVER_NAME, Parameters, SizeRange, VolumeName,
        VolumeSpec, mark,
    },
};

const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
const CLAIMS: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/";
const TWINS: &str = "/api/v1/namespaces/liqo-storage/persistentvolumeclaims/";
const VOLUMES: &str = "/api/v1/persistentvolumes/";
const REAL: &str = "/api/v1/persistentvolumes/pv-1";
const OLD_UID: &str = "11111111-1111-4111-8111-111111111111";
/// The numbers of writes until the PV is marked, and until the claim is created again; each dry run of the
/// new claim counts.
const MARKED: usize = 2;
const MADE: usize = 5;
mod by_others;
mod owned;
mod races;
mod reverted;

const POD: &str = "/api/v1/namespaces/shop/pods/web";

/// Long enough for a busy machine.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_mins(1);

/// The beginning of the message of an import that waits for the controller.
pub(super) const AWAITS_CONTROLLER: &str = "waiting for the controller to adopt";

/// A cluster without the claim `shop/data`, any PV, and any twin.
pub(super) async fn empty_cluster() -> (FakeApi, Cluster) {
    let api = FakeApi::start().await;
    let cluster = api.cluster().await;
    (api, cluster)
}

pub(super) fn quiet(cluster: &Cluster) -> Context<'_> {
    Context {
        cluster,
        storage_namespace: "liqo-storage",
        timeout: TEST_TIMEOUT,
        dry_run: false,
        report: &|_| (),
    }
}

pub(super) fn claim() -> ClaimName {
    ClaimName {
        namespace: "shop".into(),
        name: "data".into(),
    }
}

struct World {
    api: Arc<FakeApi>,
    home: Cluster,
    has_driver: bool,
}

impl World {
    /// A claim of a real class with its PV, which no pod uses.
    async fn new(policy: &str) -> Self {
        let api = Arc::new(FakeApi::start().await);
        api.put("/api/v1/namespaces/shop", json!({"metadata": {"uid": "shop-1"}}));
        for node in ["n1", "n2"] {
            let labels = json!({CLUSTER_KEY: "home", NODE_KEY: node, "kubernetes.io/hostname": node});
            api.put(
                &format!("/api/v1/nodes/{node}"),
                json!({"metadata": {"labels": labels}}),
            );
        }
        for (name, provisioner) in [("liqo", DRIVER_NAME), ("fast", "real.test")] {
            let class = json!({"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"});
            api.put(&format!("/apis/storage.k8s.io/v1/storageclasses/{name}"), class);
        }
        api.put(
            CLAIM,
            json!({
                "metadata": {
                    "uid": OLD_UID, "labels": {"app": "db"},
                    "annotations": {"team": "blue", "pv.kubernetes.io/bind-completed": "yes"},
                    "finalizers": ["kubernetes.io/pvc-protection"],
                },
                "spec": {
                    "storageClassName": "fast", "volumeName": "pv-1", "accessModes": ["ReadWriteOnce"],
                    "volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}},
                    "dataSource": {"kind": "PersistentVolumeClaim", "name": "origin"},
                },
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
            }),
        );
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]});
        api.put(
            REAL,
            json!({
                "metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
                "spec": {
                    "storageClassName": "fast", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                    "volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": policy,
                    "claimRef": {"namespace": "shop", "name": "data", "uid": OLD_UID},
                    "csi": {"driver": "real.test", "volumeHandle": "h"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
                },
                "status": {"phase": "Bound"},
            }),
        );
        let home = api.cluster().await;
        tokio::spawn(kubernetes(Arc::clone(&api)));
        Self {
            api,
            home,
            has_driver: false,
        }
    }

    /// Runs the controller, too.
    fn with_driver(mut self) -> Self {
        tokio::spawn(driver(Arc::clone(&self.api), self.home.clone()));
        self.has_driver = true;
        self
    }

    async fn import(&self) -> Result<(), TransferError> {
        self.run(false, TEST_TIMEOUT).await
    }

    async fn undo(&self) -> Result<(), TransferError> {
        self.run(true, TEST_TIMEOUT).await
    }

    async fn run(&self, undo: bool, timeout: Duration) -> Result<(), TransferError> {
        self.run_telling(undo, timeout, &|_| {}).await
    }

    async fn run_telling(
        &self,
        undo: bool,
        timeout: Duration,
        report: &dyn Fn(&str),
    ) -> Result<(), TransferError> {
        let context = Context {
            cluster: &self.home,
            storage_namespace: "liqo-storage",
            timeout,
            dry_run: false,
            report,
        };
        let claim: ClaimName = "shop/data".parse().unwrap();
        if undo {
            return undo_import(&context, &claim).await;
        }
        let request = ImportRequest {
            claim,
            class: None,
            force_managed: false,
        };
        import(&context, &request).await
    }

    /// Imports until any clients have done this many writes, and stops; at the latest when it waits for the
    /// controller, which does not run.
    async fn import_and_die_after(&self, writes: usize) {
        let waits = Notify::new();
        let report = |what: &str| {
            if !self.has_driver && what.starts_with(AWAITS_CONTROLLER) {
                waits.notify_one();
            }
        };
        let mut changes = self.api.store().changes();
        let enough = async {
            while self.api.writes() < writes {
                changes.changed().await.unwrap();
            }
        };
        tokio::select! {
            _ = self.run_telling(false, TEST_TIMEOUT, &report) => {}
            () = enough => {}
            () = waits.notified() => {}
        }
    }

    fn claim(&self) -> Value {
        self.api.object(CLAIM).unwrap()
    }

    /// The PV, which must never be deleted.
    fn real(&self) -> Value {
        self.api.object(REAL).expect("the data is lost")
    }

    fn assert_imported(&self, policy: &str) {
        let (claim, real) = (self.claim(), self.real());
        assert_ne!(claim["metadata"]["uid"], OLD_UID);
        assert_eq!(claim["spec"]["storageClassName"], "liqo");
        assert_eq!(claim["spec"]["dataSource"], Value::Null);
        assert_eq!(claim["metadata"]["labels"]["app"], "db");
        assert_eq!(claim["metadata"]["annotations"]["team"], "blue");
        assert_eq!(claim["status"]["phase"], "Bound");
        let twin = self.api.store().below(TWINS);
        assert_eq!(twin.len(), 1);
        assert_eq!(real["spec"]["claimRef"]["uid"], twin[0]["metadata"]["uid"]);
        self.assert_clean(policy);
    }

    fn assert_as_before(&self, policy: &str) {
        let (claim, real) = (self.claim(), self.real());
        assert_eq!(claim["spec"]["storageClassName"], "fast");
        assert_eq!(claim["spec"]["volumeName"], "pv-1");
        assert_eq!(claim["spec"]["dataSource"]["name"], "origin");
        assert_eq!(claim["status"]["phase"], "Bound");
        assert_eq!(claim["metadata"]["annotations"][mark::IMPORT_UNDONE], Value::Null);
        assert_eq!(claim["metadata"]["annotations"][mark::ADOPT], Value::Null);
        assert_eq!(claim["metadata"]["annotations"][mark::AWAITS_VOLUME], Value::Null);
        assert_eq!(real["spec"]["claimRef"]["uid"], claim["metadata"]["uid"]);
        assert!(self.api.store().below(TWINS).is_empty(), "a twin is left");
        self.assert_clean(policy);
    }

    fn assert_clean(&self, policy: &str) {
        let real = self.real();
        assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], policy);
        for key in [
            mark::IMPORT,
            mark::ADOPT_FOR,
            mark::POLICY_BEFORE,
            OTHERS_ANNOTATION,
        ] {
            assert_eq!(real["metadata"]["annotations"][key], Value::Null, "{key}");
        }
    }
}

/// Set on a PV that names a user's claim without a uid, so that any later claim of that name could bind to
/// it, for example after the namespace was deleted.
pub(super) const OTHERS_ANNOTATION: &str = "anybodys";

async fn kubernetes(api: Arc<FakeApi>) {
    let mut changes = api.store().changes();
    let mut controller = VolumeController::default();
    loop {
        for volume in api.store().below(VOLUMES) {
            follow(&api, &volume);
        }
        controller.look_at_claims(&api);
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Simulates kube-controller-manager for claims: it processes those that have changed. (It processes all of
/// them every 15 seconds, for which no test waits.)
#[derive(Default)]
pub(super) struct VolumeController {
    /// The versions that it has processed, by name.
    seen: HashMap<String, Value>,
}

impl VolumeController {
    pub(super) fn look_at_claims(&mut self, api: &FakeApi) {
        for claim in api.store().below(CLAIMS) {
            let (metadata, spec) = (&claim["metadata"], &claim["spec"]);
            let path = format!("{CLAIMS}{}", metadata["name"].as_str().unwrap());
            // Kubernetes removes the finalizer of a claim when no pod uses it.
            if !metadata["deletionTimestamp"].is_null() && api.object(POD).is_none() {
                api.remove(&path);
                continue;
            }
            let version = &metadata["resourceVersion"];
            if self.seen.insert(path.clone(), version.clone()).as_ref() == Some(version) {
                continue;
            }
            let volume = spec["volumeName"].as_str().map(|name| format!("{VOLUMES}{name}"));
            let volume = volume.and_then(|path| api.object(&path));
            if claim["status"]["phase"] != "Bound"
                && let Some(volume) = volume.filter(|it| it["spec"]["claimRef"]["uid"] == metadata["uid"])
            {
                bind(api, &volume, &path, &metadata["uid"]);
            }
        }
    }
}

fn bind(api: &FakeApi, volume: &Value, claim: &str, uid: &Value) {
    let path = format!("{VOLUMES}{}", volume["metadata"]["name"].as_str().unwrap());
    api.change(&path, |volume| {
        volume["spec"]["claimRef"]["uid"] = uid.clone();
        volume["status"]["phase"] = "Bound".into();
    });
    api.change(claim, |claim| {
        claim["spec"]["volumeName"] = volume["metadata"]["name"].clone();
        claim["status"] = json!({"phase": "Bound", "capacity": volume["spec"]["capacity"]});
    });
}

/// Simulates kube-controller-manager for a PV: it binds the claim in its `claimRef`, if that names no PV,
/// and notices when the claim is gone or has another PV.
pub(super) fn follow(api: &FakeApi, volume: &Value) {
    let path = format!("{VOLUMES}{}", volume["metadata"]["name"].as_str().unwrap());
    let named = &volume["spec"]["claimRef"];
    let (Some(namespace), Some(name)) = (named["namespace"].as_str(), named["name"].as_str()) else {
        return;
    };
    let claim_path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
    let claim = api.object(&claim_path);
    let its_volume = claim.as_ref().map(|claim| claim["spec"]["volumeName"].clone());
    let is_its = its_volume.as_ref() == Some(&volume["metadata"]["name"]);
    if named["uid"].is_null() {
        if namespace == "shop" && volume["metadata"]["annotations"][OTHERS_ANNOTATION].is_null() {
            api.change(&path, |volume| {
                volume["metadata"]["annotations"][OTHERS_ANNOTATION] = "true".into();
            });
        }
        if let Some(claim) = claim.filter(|_| is_its) {
            bind(api, volume, &claim_path, &claim["metadata"]["uid"]);
        }
    } else if claim.is_some_and(|claim| claim["metadata"]["uid"] == named["uid"]) {
        if its_volume.is_some_and(|name| name.is_null()) {
            bind(api, volume, &claim_path, &named["uid"]);
        } else if !is_its {
            api.change(&path, |volume| {
                volume["spec"]["claimRef"].as_object_mut().unwrap().remove("uid");
                volume["status"]["phase"] = "Available".into();
            });
        } else if volume["status"]["phase"] != "Bound" {
            api.change(&path, |volume| volume["status"]["phase"] = "Bound".into());
        }
    } else if volume["status"]["phase"] != "Released" {
        if volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete" {
            api.remove(&path);
        } else {
            api.change(&path, |volume| volume["status"]["phase"] = "Released".into());
        }
    }
}

/// csi-provisioner in front of this driver, and the controller that completes imports.
async fn driver(api: Arc<FakeApi>, home: Cluster) {
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let Some(claim) = api.object(CLAIM) else { continue };
        if claim["spec"]["storageClassName"] != "liqo" || !claim["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        if claim["status"]["phase"] == "Bound" {
            settled(&api);
        } else if provision_within(&api, &home, &claim, Duration::from_secs(2))
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn provision(api: &FakeApi, home: &Cluster, claim: &Value) -> Result<(), CreateError> {
    provision_within(api, home, claim, TEST_TIMEOUT).await
}

async fn provision_within(
    api: &FakeApi,
    home: &Cluster,
    claim: &Value,
    timeout: Duration,
) -> Result<(), CreateError> {
    let uid = claim["metadata"]["uid"].as_str().unwrap();
    let name = format!("pvc-{uid}");
    let Some(node) = claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].as_str() else {
        return Ok(());
    };
    let request = request(&name, node);
    let events = Events::new(home.client().clone());
    let until = Instant::now() + timeout;
    let made = create(
        home,
        &Registry::default(),
        &Policy::default(),
        &events,
        &request,
        until,
    )
    .await?;
    assert_eq!(made.bytes, 1 << 30, "its capacity is the PV's");
    let still = api
        .object(CLAIM)
        .is_some_and(|claim| claim["metadata"]["uid"] == uid);
    api.put(
        &format!("{VOLUMES}{name}"),
        json!({
            "spec": {
                "csi": {"driver": DRIVER_NAME, "volumeHandle": format!("v1:home:{name}"), "volumeAttributes": made.context},
                "claimRef": {"namespace": "shop", "name": "data", "uid": uid},
                "persistentVolumeReclaimPolicy": "Retain",
            },
            "status": {"phase": "Bound"},
        }),
    );
    if still {
        api.change(CLAIM, |claim| {
            claim["spec"]["volumeName"] = name.into();
            claim["status"]["phase"] = "Bound".into();
        });
    }
    Ok(())
}

fn settled(api: &FakeApi) {
    let Some(real) = api.object(REAL) else { return };
    let Some(record) = real["metadata"]["annotations"][mark::IMPORT].as_str() else {
        return;
    };
    let record: Value = serde_json::from_str(record).unwrap();
    let policy = record["policy"].clone();
    api.change(REAL, |real| {
        real["spec"]["persistentVolumeReclaimPolicy"] = policy;
        let annotations = real["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(mark::IMPORT);
        annotations.remove(mark::ADOPT_FOR);
    });
}

fn request(name: &str, node: &str) -> CreateRequest {
    let capability = Capability {
        mode: AccessMode::ReadWriteOnce,
        access: Access::Mount {
            fs_type: None,
            flags: Vec::new(),
        },
    };
    CreateRequest {
        volume: VolumeName::from_request(name),
        request_name: name.to_owned(),
        spec: VolumeSpec {
            size: SizeRange::new(1 << 30, 0).unwrap(),
            capabilities: Capabilities::new([capability]).unwrap(),
            parameters: Parameters {
                claim: Some("shop/data".parse().unwrap()),
                ..Parameters::default()
            },
            source: None,
            attributes: None,
        },
        requisite: vec![Segments::of_node(&"home".parse().unwrap(), node)],
        preferred: Vec::new(),
    }
}

fn pod(api: &FakeApi) {
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    api.put(
        POD,
        json!({"spec": {"volumes": volumes, "containers": []}, "status": {"phase": "Pending"}}),
    );
}

fn reported(error: &TransferError) -> Vec<Obstacle> {
    match error {
        TransferError::NotImported(_, ImportRefusal::Obstacles(all))
        | TransferError::RolledBack(_, _, Interruption::Obstacles(all)) => all.clone(),
        other => panic!("no obstacles: {other}"),
    }
}

#[tokio::test]
async fn a_claim_gets_a_class_of_this_driver_and_keeps_its_volume() {
    for policy in ["Delete", "Retain"] {
        let world = World::new(policy).await.with_driver();
        world.import().await.unwrap();
        world.assert_imported(policy);
        let node = &world.claim()["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
        assert_eq!(node, "n2", "where the PV can be reached");
        // A second run has nothing to do.
        let writes = world.api.writes();
        world.import().await.unwrap();
        assert_eq!(world.api.writes(), writes);
        world.assert_imported(policy);
        assert!(matches!(
            world.undo().await,
            Err(TransferError::NotUndone(_, UndoRefusal::Finished))
        ));
    }
}

#[tokio::test]
async fn an_import_resumes_after_a_crash_at_any_write() {
    for writes in MARKED..=MADE + 3 {
        let world = World::new("Delete").await.with_driver();
        world.import_and_die_after(writes).await;
        world.import().await.unwrap();
        world.assert_imported("Delete");
    }
}

#[tokio::test]
async fn an_import_can_be_undone_after_a_crash_at_any_write() {
    for writes in MARKED..=MADE + 3 {
        // Without the driver the last step is never reached; with it some tries may be too late.
        let world = World::new("Delete").await;
        world.import_and_die_after(writes).await;
        world.undo().await.unwrap();
        world.assert_as_before("Delete");

        let world = World::new("Delete").await.with_driver();
        world.import_and_die_after(writes).await;
        match world.undo().await {
            Ok(()) => world.assert_as_before("Delete"),
            Err(TransferError::NotUndone(_, UndoRefusal::Finished)) => {
                world.import().await.unwrap();
                world.assert_imported("Delete");
            }
            Err(other) => panic!("after {writes} writes: {other}"),
        }
    }
}

#[tokio::test]
async fn an_undo_resumes_after_a_crash_at_any_write() {
    for until in 1..=8 {
        let world = World::new("Delete").await;
        // With a bound twin, as if the controller crashed before it answered.
        world.import_and_die_after(MADE).await;
        let claim = world.claim();
        let _unanswered = provision(&world.api, &world.home, &claim).await;
        let uid = claim["metadata"]["uid"].as_str().unwrap();
        world.api.remove(&format!("{VOLUMES}pvc-{uid}"));
        world.api.change(CLAIM, |claim| {
            claim["spec"].as_object_mut().unwrap().remove("volumeName");
            claim["status"] = json!({"phase": "Pending"});
        });
        let before = world.api.writes();
        let mut changes = world.api.store().changes();
        let enough = async {
            while world.api.writes() < before + until {
                changes.changed().await.unwrap();
            }
        };
        tokio::select! {
            _ = world.undo() => {}
            () = enough => {}
        }
        world.undo().await.unwrap();
        world.assert_as_before("Delete");
    }
}

#[tokio::test]
async fn concurrent_imports_of_one_claim_do_no_harm() {
    let world = World::new("Delete").await.with_driver();
    let (one, other) = tokio::join!(world.import(), world.import());
    one.unwrap();
    other.unwrap();
    world.assert_imported("Delete");
}

#[tokio::test]
async fn a_concurrent_import_and_undo_lose_no_data() {
    for pause in [0, 5, 10, 20, 40, 80] {
        let world = World::new("Delete").await.with_driver();
        let undo = async {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            world.undo().await
        };
        let _whoever_wins = tokio::join!(world.import(), undo);
        world.real();
        if world.undo().await.is_ok() {
            world.assert_as_before("Delete");
        } else {
            world.import().await.unwrap();
            world.assert_imported("Delete");
        }
    }
}

#[tokio::test]
async fn all_obstacles_are_reported_at_once_without_a_write() {
    let world = World::new("Delete").await;
    pod(&world.api);
    let attachment = json!({"spec": {"attacher": "real.test", "nodeName": "n2", "source": {"persistentVolumeName": "pv-1"}}});
    world
        .api
        .put("/apis/storage.k8s.io/v1/volumeattachments/a", attachment);
    world.api.change(CLAIM, |claim| {
        claim["metadata"]["annotations"]["meta.helm.sh/release-name"] = "shop".into();
        claim["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
        claim["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadOnlyMany"]);
    });
    let error = world.import().await.unwrap_err();
    assert_eq!(reported(&error).len(), 6, "{error}");
    world.assert_clean("Delete");
    assert_eq!(world.claim()["metadata"]["uid"], OLD_UID);
}

#[tokio::test]
async fn a_claim_of_a_stateful_set_replica_is_not_imported() {
    let world = World::new("Delete").await;
    let set = json!({"spec": {
        "replicas": 1, "selector": {}, "serviceName": "s", "template": {},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
    }});
    let sets = "/apis/apps/v1/namespaces/shop/statefulsets/";
    world.api.put(&format!("{sets}db"), set);
    let old = world.api.object(CLAIM).unwrap();
    world.api.put(
        &format!("{CLAIMS}data-db-0"),
        json!({"metadata": {"uid": "x"}, "spec": old["spec"], "status": old["status"]}),
    );
    let context = Context {
        cluster: &world.home,
        storage_namespace: "liqo-storage",
        timeout: TEST_TIMEOUT,
        dry_run: true,
        report: &|_| {},
    };
    let request = ImportRequest {
        claim: "shop/data-db-0".parse().unwrap(),
        class: None,
        force_managed: false,
    };
    let error = import(&context, &request).await.unwrap_err();
    let wanted = Obstacle::StatefulSet {
        set: "db".into(),
        ordinal: 0,
        deletes: false,
    };
    assert!(reported(&error).contains(&wanted), "{error}");
}

/// Spark makes a pod the controller of claims that pods use by name.
#[tokio::test]
async fn a_claim_that_a_pod_controls_is_no_ephemeral_volume() {
    let world = World::new("Delete").await;
    world.api.change(CLAIM, |claim| {
        claim["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "w", "controller": true}]);
    });
    let obstacles = async || reported(&world.import().await.unwrap_err());
    assert_eq!(
        obstacles().await,
        [Obstacle::Ephemeral("web".into())],
        "its pod is gone"
    );
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "other"}}]);
    let pod = json!({"metadata": {"uid": "w"}, "spec": {"containers": [], "volumes": volumes}});
    world.api.put("/api/v1/namespaces/shop/pods/web", pod);
    let controlled = Obstacle::Controlled {
        kind: "Pod".into(),
        name: "web".into(),
    };
    assert_eq!(obstacles().await, [controlled]);
}

#[tokio::test]
async fn a_pod_created_before_the_deletion_rolls_back() {
    let world = World::new("Delete").await;
    world.import_and_die_after(MARKED).await;
    pod(&world.api);
    let error = world.import().await.unwrap_err();
    assert!(matches!(error, TransferError::RolledBack(..)), "{error}");
    world.assert_as_before("Delete");
}

#[tokio::test]
async fn a_claim_that_would_be_refused_is_detected_by_dry_run() {
    let world = World::new("Delete").await;
    let quota = "exceeded quota: liqo";
    world
        .api
        .fault(Fault::new("POST", "persistentvolumeclaims", Act::Forbid(quota)));
    let error = world.import().await.unwrap_err();
    assert!(
        matches!(&reported(&error)[..], [Obstacle::NotAccepted(why)] if why.contains(quota)),
        "{error}"
    );
    world.assert_clean("Delete");
}

#[tokio::test]
async fn a_claim_created_by_others_meanwhile_gets_the_data() {
    let world = World::new("Delete").await;
    let theirs = json!({
        "metadata": {"uid": "theirs"},
        "spec": {
            "storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": "Pending"},
    });
    let collection = CLAIM.strip_suffix("/data").unwrap();
    // The first POST is the dry run.
    world.api.before("POST", collection, |_| {});
    world.api.before("POST", collection, move |store| {
        store.put(CLAIM, theirs);
    });
    let error = world.import().await.unwrap_err();
    assert!(
        matches!(error, TransferError::RolledBack(_, _, Interruption::NameTaken)),
        "{error}"
    );
    assert_eq!(world.claim()["metadata"]["uid"], "theirs");
    assert_eq!(world.real()["spec"]["claimRef"]["uid"], "theirs");
    world.assert_clean("Delete");
}

#[tokio::test]
async fn a_claim_deleted_before_the_end_keeps_its_data() {
    let world = World::new("Delete").await;
    world.import_and_die_after(MADE).await;
    let claim = world.claim();
    provision(&world.api, &world.home, &claim).await.unwrap();
    // The user deletes the claim, and csi-provisioner the volume, before the controller completes the
    // import.
    world.api.remove(CLAIM);
    for twin in world.api.store().below(TWINS) {
        world
            .api
            .remove(&format!("{TWINS}{}", twin["metadata"]["name"].as_str().unwrap()));
    }
    world
        .api
        .until(|store| store.get(REAL).unwrap()["status"]["phase"] == "Released")
        .await;
    let virtual_volume = format!("{VOLUMES}pvc-{}", claim["metadata"]["uid"].as_str().unwrap());
    world.api.remove(&virtual_volume);
    // The command creates the claim again.
    let world = world.with_driver();
    world.import().await.unwrap();
    world.assert_imported("Delete");
}

#[tokio::test]
async fn an_adopt_annotation_alone_gives_no_access() {
    let world = World::new("Delete").await;
    world.api.change(CLAIM, |claim| {
        claim["metadata"]["uid"] = "22222222-2222-4222-8222-222222222222".into();
        claim["metadata"]["annotations"][mark::ADOPT] = "pv-1".into();
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "n2".into();
        claim["spec"]["storageClassName"] = "liqo".into();
        claim["status"] = json!({"phase": "Pending"});
    });
    world.api.change(REAL, |real| {
        real["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
    let error = provision(&world.api, &world.home, &world.claim())
        .await
        .unwrap_err();
    assert!(matches!(error, CreateError::Adopt(_)), "{error}");
    assert!(error.to_string().contains("may be adopted"), "{error}");
    assert!(world.api.store().below(TWINS).is_empty());
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let world = World::new("Delete").await;
    let context = Context {
        cluster: &world.home,
        storage_namespace: "liqo-storage",
        timeout: TEST_TIMEOUT,
        dry_run: true,
        report: &|what| assert!(what.contains("is possible (dry run)"), "{what}"),
    };
    let request = ImportRequest {
        claim: "shop/data".parse().unwrap(),
        class: Some("liqo".into()),
        force_managed: false,
    };
    import(&context, &request).await.unwrap();
    assert_eq!(world.claim()["metadata"]["uid"], OLD_UID);
    world.assert_clean("Delete");
}
