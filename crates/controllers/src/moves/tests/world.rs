//! A home cluster with a claim in use, the cluster `milan` as the target of its move, and fakes of the
//! other controllers.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, from_value, json};
use tokio::time;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    Metrics, Settings,
    api::volume_move::{MoveRequest, VolumeMove},
    cluster::{
        ApiError, Cluster, Rights,
        events::Events,
        testing::{FakeApi, Life},
    },
    fleet::{Link, Registry},
    gate::{Applied, GateError, MovedVolume, Movers, Place, ReadsOn},
    movers::{Cold, CopyProgress, MoveHelpers},
    moves::{
        Context,
        follow::{FollowError, MoveKey, MoveLoop, StepOutcome},
    },
    placement::{
        Declared,
        moving::{ClaimStep, Copied, Helpers, Live, Outcome, Pass, Roots, Side, Stage},
    },
    rounds::Rounds,
    volume::{ClaimMark, Epoch, Marks, VolumeName, mark},
    watched::Watched,
};

pub(super) const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
pub(super) const MOVE: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";
pub(super) const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
pub(super) const THE_MOVE: &str = "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves/m";
pub(super) const POD: &str = "/api/v1/namespaces/shop/pods/web-0";
const VOLUMES: &str = "/api/v1/persistentvolumes";
/// The PV of the source.
pub(super) const REAL: &str = "/api/v1/persistentvolumes/real-1";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
/// The claim in the remote cluster.
pub(super) const TARGET: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
/// No move takes more steps until its end, including those that only wait. On a busy machine one takes minutes.
const MOST_STEPS: usize = 3000;

fn the_move() -> MoveKey {
    MoveKey {
        namespace: "shop".into(),
        name: "m".into(),
        uid: MOVE.into(),
    }
}

pub(super) fn name() -> String {
    format!("pvc-{UID}")
}

pub(super) fn volume_path() -> String {
    format!("{VOLUMES}/{}", name())
}

pub(super) fn source_path() -> String {
    format!("/api/v1/namespaces/liqo-storage/persistentvolumeclaims/{UID}")
}

/// The twin of the source after its recovery.
pub(super) fn source_again() -> String {
    format!("{}-2", source_path())
}

/// The target twin of a move to this cluster.
pub(super) fn target_at_home() -> String {
    format!("{}-1", source_path())
}

/// The claims that name the PV of a remote source: the twin, and that of the mover while it is gated there.
pub(super) fn claims_there(api: &FakeApi) -> Vec<Value> {
    let claims = api
        .store()
        .below("/api/v1/namespaces/shop/persistentvolumeclaims/");
    claims
        .into_iter()
        .filter(|claim| claim["spec"]["volumeName"] == "real-1")
        .collect()
}

/// A world that runs on its own until it is dropped.
pub(super) struct World {
    pub(super) home_api: Arc<FakeApi>,
    pub(super) there: Arc<FakeApi>,
    pub(super) home: Cluster,
    pub(super) registry: Registry,
    pub(super) watched: Watched,
    pub(super) events: Events,
    pub(super) settings: Settings,
    pub(super) metrics: Metrics,
    pub(super) movers: FakeMovers,
    broken: Arc<Mutex<Vec<String>>>,
    _stops: DropGuard,
}

/// What movers would do, at once.
#[derive(Default)]
pub(super) struct FakeMovers(Mutex<State>);

#[derive(Default)]
pub(super) struct State {
    present: [bool; 2],
    copied: Copied,
    /// Whether source and target differ.
    pub(super) differs: bool,
    /// Whether the passes before the cut-over never converge.
    pub(super) never_converges: bool,
    pub(super) passes: Vec<Pass>,
    /// Why an API server rejects them.
    pub(super) refused: Option<String>,
    /// Why nothing is copied while the pods run.
    pub(super) cold: Option<Cold>,
    /// The node where the source is read.
    pub(super) node: Option<&'static str>,
}

pub(super) fn claim_marks(handed_over: bool, epoch: Epoch) -> Marks {
    Marks {
        home: "home".parse().unwrap(),
        volume: VolumeName::from_request(&name()),
        claim: Some(ClaimMark {
            namespace: "shop".into(),
            name: "data".into(),
            uid: UID.into(),
        }),
        request_name: name(),
        fingerprint: None,
        handed_over,
        epoch,
    }
}

impl World {
    /// A claim that a pod uses, and a new move of it.
    pub(super) async fn new(spec: Value) -> Self {
        let (home_api, there) = (Arc::new(FakeApi::start().await), Arc::new(FakeApi::start().await));
        populate(&home_api);
        Self::of(home_api, there, Rights::ALL, spec).await
    }

    /// A move of a claim whose volume is in the remote cluster, where the driver has these rights, to a node at home.
    pub(super) async fn remote(rights: Rights, accept_loss: Value) -> Self {
        let (home_api, there) = (Arc::new(FakeApi::start().await), Arc::new(FakeApi::start().await));
        populate(&home_api);
        put_elsewhere(&home_api, &there);
        let spec = json!({
            "claims": ["data"], "target": {"nodeName": "n1"}, "quiesce": {"mode": "Evict"}, "retainSource": "0s",
            "acceptLoss": accept_loss,
        });
        Self::of(home_api, there, rights, spec).await
    }

    /// A move to the cluster, where the driver has these rights, of a volume with the policy Retain.
    pub(super) async fn retained(rights: Rights) -> Self {
        let (home_api, there) = (Arc::new(FakeApi::start().await), Arc::new(FakeApi::start().await));
        populate(&home_api);
        home_api.change(&volume_path(), |volume| {
            volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        });
        let spec = json!({"claims": ["data"], "target": {"cluster": "milan"}, "quiesce": {"mode": "Evict"}});
        Self::of(home_api, there, rights, spec).await
    }

    async fn of(home_api: Arc<FakeApi>, there: Arc<FakeApi>, rights: Rights, spec: Value) -> Self {
        ask(&home_api, &spec);
        let home = home_api.cluster().await;
        let declared = Declared::with_same_names("milan");
        let registry = Registry::fixed([(declared, Link::up(&there, rights).await)]);
        let watched = Watched::start(&home);
        watched.complete().await;
        home.views().moves.complete().await;
        let stop = CancellationToken::new();
        let broken = Arc::default();
        for api in [&home_api, &there] {
            let kubernetes = keep(Arc::clone(api), Arc::clone(&broken));
            tokio::spawn(stop.clone().run_until_cancelled_owned(kubernetes));
        }
        Self {
            events: Events::new(home.client().clone()),
            settings: Settings {
                allowed_classes: BTreeSet::from(["fast".to_owned()]),
                ..Settings::for_test(Duration::from_mins(10))
            },
            metrics: Metrics::default(),
            movers: FakeMovers::default(),
            home_api,
            there,
            home,
            registry,
            watched,
            broken,
            _stops: stop.drop_guard(),
        }
    }

    /// A move to the cluster that evicts the pods, and retains nothing.
    pub(super) async fn evicting() -> Self {
        Self::new(json!({
            "claims": ["data"], "target": {"cluster": "milan"}, "quiesce": {"mode": "Evict"}, "retainSource": "0s",
        }))
        .await
    }

    pub(super) fn context(&self) -> Context<'_, FakeMovers> {
        Context {
            home: &self.home,
            registry: &self.registry,
            watched: &self.watched,
            events: &self.events,
            settings: &self.settings,
            metrics: &self.metrics,
            helpers: &self.movers,
        }
    }

    pub(super) fn read(&self) -> Option<VolumeMove> {
        from_value(self.home_api.object(THE_MOVE)?).unwrap()
    }

    pub(super) fn stage(&self) -> Stage {
        self.read().expect("the move is gone").stage().unwrap()
    }

    /// Runs the move until `enough`, or its end.
    pub(super) async fn carry(&self, enough: impl Fn(&Self) -> bool) {
        let context = self.context();
        let mut the_loop = MoveLoop::new(&context, the_move());
        let mut steps = 0;
        while !enough(self) {
            steps += 1;
            let status = || self.read().map(|of| of.status);
            assert!(steps <= MOST_STEPS, "it does not end: {:#?}", status());
            match Box::pin(the_loop.step()).await {
                Ok(StepOutcome::Again) => {}
                Ok(StepOutcome::Over(_)) => return,
                Ok(StepOutcome::Wait(_)) => time::sleep(Duration::from_millis(5)).await,
                Err(FollowError::Api(error)) => panic!("{error}"),
                Err(trouble) => panic!("{trouble}"),
            }
            self.check();
        }
    }

    /// One round of the loop.
    pub(super) async fn round(&self) -> Result<(), ApiError> {
        self.round_after(None).await
    }

    /// One round of a loop whose rounds have failed for this long.
    pub(super) async fn round_after(&self, failing: Option<Duration>) -> Result<(), ApiError> {
        let context = self.context();
        let mut the_loop = MoveLoop::new(&context, the_move());
        the_loop.failing = failing.map(|failing| time::Instant::now() - failing);
        the_loop.round().await
    }

    /// The status and the message of a condition of the move.
    pub(super) fn condition(&self, wanted: &str) -> Option<(String, String)> {
        let conditions = self.read()?.status?.conditions;
        let found = conditions.into_iter().find(|one| one.type_ == wanted);
        found.map(|one| (one.status, one.message))
    }

    pub(super) fn event(&self, reason: &str) -> Option<Value> {
        let events = self
            .home_api
            .store()
            .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
        events.into_iter().find(|event| event["reason"] == reason)
    }

    /// Runs steps until the move would have continued if it could, and checks that it waits.
    pub(super) async fn waits(&self, why: &str) {
        let context = self.context();
        let mut the_loop = MoveLoop::new(&context, the_move());
        let (mut steps, mut waited) = (0, 0);
        while waited < 20 {
            steps += 1;
            assert!(steps <= MOST_STEPS, "it does not come to wait");
            match Box::pin(the_loop.step()).await.unwrap() {
                StepOutcome::Again => {}
                StepOutcome::Over(_) => panic!("it is over: {why}"),
                StepOutcome::Wait(_) => {
                    waited += 1;
                    time::sleep(Duration::from_millis(5)).await;
                }
            }
            self.check();
        }
    }

    /// Runs the move to its end.
    pub(super) async fn to_the_end(&self) {
        self.carry(|_| false).await;
    }

    /// Runs the move with a controller that dies with the write after this many. False if the move has
    /// ended before that.
    pub(super) async fn die_after(&self, writes: usize) -> bool {
        let life = Life::of_writes(writes);
        for api in [&self.home_api, &self.there] {
            api.live(Some(life.clone()));
        }
        let died = tokio::select! {
            () = Box::pin(self.carry(|_| false)) => false,
            () = life.over() => true,
        };
        for api in [&self.home_api, &self.there] {
            api.live(None);
        }
        died
    }

    /// The invariants.
    pub(super) fn check(&self) {
        let broken = self.broken.lock().unwrap().clone();
        assert!(broken.is_empty(), "{broken:?}");
    }

    /// The claim is like any other, and its data is at the target.
    pub(super) fn assert_moved(&self) {
        self.check();
        self.assert_whole("v2:milan:", ":1");
        let target = self.there.object(TARGET).expect("there is no twin");
        assert_eq!(target["metadata"]["labels"][mark::MOVE], Value::Null);
        assert_eq!(target["metadata"]["annotations"][mark::HANDED_OVER], "true");
        assert_eq!(
            self.home_api.object(&source_path()),
            None,
            "the source was not released"
        );
    }

    /// The claim is like any other, and its data is at the source.
    pub(super) fn assert_back(&self) {
        self.check();
        self.assert_whole("v1:home:", "");
        assert_eq!(self.there.object(TARGET), None, "the unfinished copy is left");
        let source = self.home_api.object(&source_path()).expect("the source is gone");
        let marked = source["metadata"]["annotations"][mark::SOURCE_OF]
            .as_str()
            .unwrap_or_default();
        assert!(!marked.starts_with("moving"), "{marked}");
    }

    /// The claim has the data of the source, in the epoch after the target's, and no mark of the move.
    pub(super) fn assert_recovered(&self) {
        self.check();
        self.assert_whole("v2:home:", ":2");
        assert_eq!(
            self.home_api.object(&source_path()),
            None,
            "the previous twin still exists"
        );
        let twin = self.home_api.object(&source_again()).expect("the source is gone");
        assert_eq!(twin["metadata"]["annotations"][mark::EPOCH], "2");
        assert_eq!(twin["metadata"]["annotations"][mark::SOURCE_OF], Value::Null);
        let real = self.home_api.object(REAL).expect("the data is gone");
        assert_eq!(real["spec"]["claimRef"]["uid"], twin["metadata"]["uid"]);
        assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    }

    pub(super) fn assert_whole(&self, start: &str, end: &str) {
        let claim = self.home_api.object(CLAIM).expect("the claim is gone");
        let volume = self.home_api.object(&volume_path()).expect("the PV is gone");
        assert_eq!(claim["status"]["phase"], "Bound");
        assert_eq!(claim["metadata"]["uid"], UID);
        assert_eq!(claim["metadata"]["annotations"][mark::MOVE], Value::Null);
        assert_eq!(volume["spec"]["claimRef"]["uid"], UID);
        assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete");
        assert_eq!(volume["status"]["phase"], "Bound");
        assert_eq!(
            volume["spec"]["csi"]["volumeHandle"],
            format!("{start}{}{end}", name())
        );
        for object in [&claim, &volume] {
            let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
            assert!(finalizers.clone().all(|one| one != mark::MOVE), "{object}");
        }
        assert_eq!(self.movers.lock().present, [false; 2], "movers are left");
    }
}

/// The claim `data`, which the pod `web-0` of a `StatefulSet` uses on the node `n1`.
fn populate(api: &FakeApi) {
    let served = json!({"groupVersion": "storage.liqo.io/v1alpha1", "resources": []});
    api.put("/apis/storage.liqo.io/v1alpha1", served);
    let labels = |more: Value| {
        let mut labels = json!({"topology.storage.liqo.io/node": "n1"});
        labels
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        labels
    };
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let mut in_use = ready.clone();
    in_use["volumesInUse"] = json!([format!("kubernetes.io/csi/storage.liqo.io^v1:home:{}", name())]);
    let here = json!({"topology.storage.liqo.io/cluster": "home"});
    api.put(
        "/api/v1/nodes/n1",
        json!({"metadata": {"labels": labels(here)}, "status": in_use}),
    );
    let stands = json!({"to": "milan", "topology.storage.liqo.io/cluster": "milan"});
    api.put(
        "/api/v1/nodes/milan",
        json!({"metadata": {"labels": stands}, "status": ready}),
    );
    api.put(
        CLAIM,
        json!({
            "metadata": {"uid": UID, "annotations": {"volume.kubernetes.io/storage-provisioner": "storage.liqo.io"}},
            "spec": {
                "volumeName": name(), "storageClassName": "liqo", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        }),
    );
    let here = json!({"key": "topology.storage.liqo.io/cluster", "operator": "In", "values": ["home"]});
    api.put(
        &volume_path(),
        json!({
            "metadata": {"finalizers": ["kubernetes.io/pv-protection"], "labels": {"team": "blue"}},
            "spec": {
                "csi": {"driver": "storage.liqo.io", "volumeHandle": format!("v1:home:{}", name())},
                "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data", "uid": UID},
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "liqo",
            },
            "status": {"phase": "Bound"},
        }),
    );
    let marks = claim_marks(true, Epoch::NEVER_MOVED);
    api.put(
        &source_path(),
        json!({
            "metadata": {"labels": marks.labels(), "annotations": marks.annotations(), "finalizers": [mark::TWIN_FINALIZER]},
            "spec": {"volumeName": "real-1", "storageClassName": "slow"},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        }),
    );
    real_volume(api, "real-1", &source_path());
    let owner = json!({"kind": "StatefulSet", "name": "web", "uid": "s", "apiVersion": "apps/v1", "controller": true});
    api.put(
        POD,
        json!({
            "metadata": {"ownerReferences": [owner]},
            "spec": {
                "nodeName": "n1", "containers": [],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
            },
            "status": {"phase": "Running"},
        }),
    );
    let source = json!({"persistentVolumeName": name()});
    let attacher = json!({"spec": {"attacher": "storage.liqo.io", "nodeName": "n1", "source": source}});
    api.put(&format!("{ATTACHMENTS}/outer"), attacher);
}

/// Puts the twin of the claim, and the real PV, into the remote cluster.
fn put_elsewhere(home: &FakeApi, there: &FakeApi) {
    home.remove(&source_path());
    home.remove(REAL);
    home.change(&volume_path(), |volume| {
        let csi = &mut volume["spec"]["csi"];
        csi["volumeHandle"] = format!("v1:milan:{}", name()).into();
        csi["volumeAttributes"] =
            json!({crate::twin::TWIN_NAMESPACE: "shop", crate::twin::TWIN_NAME: "data"});
        let term = &mut volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
        term["matchExpressions"][0]["values"] = json!(["milan"]);
    });
    home.change(POD, |pod| pod["spec"]["nodeName"] = "milan".into());
    home.change(&format!("{ATTACHMENTS}/outer"), |attachment| {
        attachment["spec"]["nodeName"] = "milan".into();
    });
    home.change("/api/v1/nodes/n1", |node| {
        node["status"]["volumesInUse"] = json!([]);
    });
    let marks = claim_marks(true, Epoch::NEVER_MOVED);
    there.put(
        TARGET,
        json!({
            "metadata": {"labels": marks.labels(), "annotations": marks.annotations(), "finalizers": [mark::TWIN_FINALIZER]},
            "spec": {
                "volumeName": "real-1", "storageClassName": "slow", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        }),
    );
    real_volume(there, "real-1", TARGET);
    there.change(REAL, |real| {
        real["spec"]["claimRef"]["namespace"] = "shop".into();
        real["spec"]["claimRef"]["name"] = "data".into();
    });
}

/// Creates the move as a user would.
fn ask(api: &FakeApi, spec: &Value) {
    api.put(
        THE_MOVE,
        json!({
            "apiVersion": "storage.liqo.io/v1alpha1", "kind": "VolumeMove",
            "metadata": {"uid": MOVE, "generation": 1}, "spec": spec,
        }),
    );
}

/// The real PV of a twin.
fn real_volume(api: &FakeApi, real: &str, twin: &str) {
    let uid = api.object(twin).unwrap()["metadata"]["uid"].clone();
    api.put(
        &format!("{VOLUMES}/{real}"),
        json!({
            "spec": {
                "csi": {"driver": "real.test", "volumeHandle": format!("h-{real}")},
                "claimRef": {"uid": uid, "namespace": "liqo-storage", "name": "x"},
                "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Delete",
            },
            "status": {"phase": "Bound"},
        }),
    );
}

/// Kubernetes and the sidecars, forever: each of them reacts to what it sees.
async fn keep(api: Arc<FakeApi>, broken: Arc<Mutex<Vec<String>>>) {
    let mut changes = api.store().changes();
    loop {
        changes.borrow_and_update();
        while bind(&api, &broken)
            || bind_again(&api)
            || collect_garbage(&api)
            || bind_there(&api, &broken)
            || stop_pods(&api)
            || provision(&api, TARGET)
            || provision(&api, &target_at_home())
            || remove_volumes(&api)
        {}
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// The PV controller; and csi-provisioner, which deletes what it sees Released.
fn bind(api: &FakeApi, broken: &Mutex<Vec<String>>) -> bool {
    let (claim, volume) = (api.object(CLAIM), api.object(&volume_path()));
    let is_its = |volume: &Value| {
        claim
            .as_ref()
            .is_some_and(|claim| volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"])
    };
    if let Some(volume) = &volume {
        let phase = if is_its(volume) { "Bound" } else { "Released" };
        if phase == "Released"
            && volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
            && claim.is_some()
        {
            broken
                .lock()
                .unwrap()
                .push("csi-provisioner deletes the volume of a claim".into());
        }
        if volume["status"]["phase"] != phase {
            return api.change(&volume_path(), |volume| volume["status"]["phase"] = phase.into());
        }
    }
    // In the remote cluster this is the twin, which the provisioner there binds.
    let Some(claim) = claim
        .as_ref()
        .filter(|claim| claim["spec"]["volumeName"] == name().as_str())
    else {
        return false;
    };
    let phase = if volume.as_ref().is_some_and(is_its) {
        "Bound"
    } else {
        "Lost"
    };
    claim["status"]["phase"] != phase && api.change(CLAIM, |claim| claim["status"]["phase"] = phase.into())
}

/// The PV controller, for the new twin of a recovered source.
fn bind_again(api: &FakeApi) -> bool {
    let (Some(twin), Some(real)) = (api.object(&source_again()), api.object(REAL)) else {
        return false;
    };
    let is_its = real["spec"]["claimRef"]["uid"] == twin["metadata"]["uid"];
    is_its
        && twin["status"]["phase"] != "Bound"
        && api.change(&source_again(), |twin| twin["status"]["phase"] = "Bound".into())
}

/// Deletes the claim of the mover of a remote source together with its owner, the twin.
fn collect_garbage(api: &FakeApi) -> bool {
    let claims = claims_there(api);
    let is_there = |uid: &Value| claims.iter().any(|claim| claim["metadata"]["uid"] == *uid);
    let is_left = |claim: &&Value| {
        let owner = &claim["metadata"]["ownerReferences"][0]["uid"];
        !owner.is_null() && !is_there(owner)
    };
    let Some(left) = claims.iter().find(is_left) else {
        return false;
    };
    let name = left["metadata"]["name"].as_str().unwrap();
    api.remove(&format!("/api/v1/namespaces/shop/persistentvolumeclaims/{name}"));
    true
}

/// The PV controller and csi-provisioner in the cluster of a remote source.
fn bind_there(api: &FakeApi, broken: &Mutex<Vec<String>>) -> bool {
    let is_it = |real: &Value| real["spec"]["claimRef"]["namespace"] == "shop";
    let Some(real) = api.object(REAL).filter(is_it) else {
        return false;
    };
    let claims = claims_there(api);
    let is_its = |claim: &Value| real["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"];
    let is_bound = claims.iter().any(is_its);
    if !is_bound && !claims.is_empty() && real["spec"]["persistentVolumeReclaimPolicy"] == "Delete" {
        broken
            .lock()
            .unwrap()
            .push("csi-provisioner deletes the volume of the source".into());
    }
    let phase = if is_bound { "Bound" } else { "Released" };
    if real["status"]["phase"] != phase {
        return api.change(REAL, |real| real["status"]["phase"] = phase.into());
    }
    claims.iter().any(|claim| {
        let phase = match claim["status"]["phase"].as_str() {
            _ if is_its(claim) => "Bound",
            Some("Bound" | "Lost") => "Lost",
            _ => "Pending",
        };
        let path = format!(
            "/api/v1/namespaces/shop/persistentvolumeclaims/{}",
            claim["metadata"]["name"].as_str().unwrap()
        );
        claim["status"]["phase"] != phase
            && api.change(&path, |claim| claim["status"]["phase"] = phase.into())
    })
}

/// The kubelet, csi-attacher, and the `StatefulSet` that recreates the pod. The pod gets no node: its
/// claim is not bound.
fn stop_pods(api: &FakeApi) -> bool {
    let Some(pod) = api
        .object(POD)
        .filter(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
    else {
        return false;
    };
    api.remove(POD);
    api.change("/api/v1/nodes/n1", |node| {
        node["status"]["volumesInUse"] = json!([]);
    });
    api.remove(&format!("{ATTACHMENTS}/outer"));
    let mut again = pod;
    again["metadata"] = json!({"ownerReferences": again["metadata"]["ownerReferences"]});
    again["spec"]["nodeName"] = Value::Null;
    again["status"]["phase"] = "Pending".into();
    api.put(POD, again);
    true
}

/// The real provisioner of the target.
fn provision(api: &FakeApi, path: &str) -> bool {
    let waits = |twin: &Value| {
        twin["spec"]["volumeName"].is_null() && !twin["metadata"]["labels"][mark::VOLUME].is_null()
    };
    let Some(twin) = api.object(path).filter(waits) else {
        return false;
    };
    let real = format!("real-of-{}", twin["metadata"]["uid"].as_str().unwrap());
    real_volume(api, &real, path);
    api.change(path, |twin| {
        twin["spec"]["volumeName"] = real.as_str().into();
        twin["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    })
}

/// The protection of PVs: one that is being deleted and not Bound is removed.
fn remove_volumes(api: &FakeApi) -> bool {
    let goes = |volume: &Value| {
        let only = volume["metadata"]["finalizers"] == json!(["kubernetes.io/pv-protection"]);
        !volume["metadata"]["deletionTimestamp"].is_null() && only && volume["status"]["phase"] != "Bound"
    };
    let is_gone = api.object(&volume_path()).is_some_and(|volume| goes(&volume));
    if is_gone {
        api.remove(&volume_path());
    }
    is_gone
}

impl FakeMovers {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

fn index(side: Side) -> usize {
    match side {
        Side::Source => 0,
        Side::Target => 1,
    }
}

impl MoveHelpers for FakeMovers {
    fn progress(&self, _: &MovedVolume) -> Option<CopyProgress> {
        None
    }

    async fn obstacles(&self, _: &MovedVolume, _: &MoveRequest) -> Result<Vec<String>, GateError> {
        Ok(self.lock().refused.iter().cloned().collect())
    }

    async fn cold(&self, _: &MovedVolume, _: &MoveRequest) -> Result<Option<Cold>, GateError> {
        Ok(self.lock().cold)
    }

    async fn observe(
        &self,
        moved: &MovedVolume,
        _: &MoveRequest,
        during: &Stage,
    ) -> Result<Movers, GateError> {
        let state = self.lock();
        let helpers = |side, place: &Place| match place {
            Place::Unreachable(why) => Live::Unknown(why.clone()),
            _ if state.present[index(side)] => Live::Known(Helpers::Ready),
            _ => Live::Known(Helpers::Absent),
        };
        let mut movers = Movers {
            source: helpers(Side::Source, &moved.source.place),
            target: helpers(Side::Target, &moved.target.place),
            copied: Live::Known(Copied {
                converged: state.copied.converged || state.cold.is_some(),
                ..state.copied.clone()
            }),
            reads_on: state.present[index(Side::Source)].then(|| ReadsOn {
                node: state.node.unwrap_or("n1").to_owned(),
                unfit: None,
            }),
        };
        if *during == Stage::Ended(Outcome::Failed) {
            movers.copied = Live::Known(Copied::default());
        }
        Ok(movers)
    }

    async fn apply(
        &self,
        moved: &MovedVolume,
        _: &MoveRequest,
        step: &ClaimStep,
    ) -> Result<Applied, GateError> {
        match step {
            ClaimStep::MakeTarget { mark } => return make_target(moved, mark).await,
            ClaimStep::MakeHelpers(side) => self.lock().present[index(*side)] = true,
            ClaimStep::PauseSource => self.lock().present[index(Side::Source)] = false,
            ClaimStep::RemoveHelpers(side) => self.lock().present[index(*side)] = false,
            ClaimStep::StartPass(pass) => {
                let mut state = self.lock();
                state.passes.push(*pass);
                match pass {
                    Pass::Warm => state.copied.converged = !state.never_converges,
                    Pass::Final(gate) => state.copied.finished = Some(*gate),
                    Pass::Finish(gate) => state.copied.journal_off = Some(*gate),
                    Pass::Verify(gate) => {
                        let roots = if state.differs {
                            Roots::Differ("a/b".into())
                        } else {
                            Roots::Equal
                        };
                        state.copied.compared = Some((*gate, roots));
                    }
                }
            }
            other => panic!("{other:?} is not asked of movers"),
        }
        Ok(Applied::Done)
    }
}

async fn make_target(
    moved: &MovedVolume,
    mark: &crate::volume::moving::TargetMark,
) -> Result<Applied, GateError> {
    let Place::Site(site) = &moved.target.place else {
        panic!("the target is not reached");
    };
    let marks = claim_marks(false, mark.epoch);
    let (mut labels, mut annotations) = (marks.labels(), marks.annotations());
    labels.extend(mark.labels());
    annotations.extend(mark.annotations());
    let twin: PersistentVolumeClaim = from_value(json!({
        "metadata": {"name": site.name(), "namespace": site.namespace(), "labels": labels, "annotations": annotations},
        "spec": {"storageClassName": "fast"},
    }))
    .unwrap();
    let made = site.twins().create(&twin).await?;
    Ok(if made.is_some() {
        Applied::Done
    } else {
        Applied::ChangedMeanwhile
    })
}
