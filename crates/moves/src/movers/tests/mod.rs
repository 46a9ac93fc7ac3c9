//! The movers of one claim against two fake API servers: the target twin (`target`), the created objects
//! (`made`), pods that Liqo creates (`shadow`), replacement and deletion (`going`), crashes in between
//! (`crashes`), the orders to the target's mover (`orders`), and the dry run (`dry_run`).

mod crashes;
mod dry_run;
mod going;
mod made;
mod orders;
mod shadow;
mod target;

use serde_json::{Value, json};

use super::*;
use crate::{
    api::volume_move::VolumeMove,
    cluster::{
        Rights,
        testing::{Act, FakeApi, Fault},
    },
    fleet::{Link, Registry},
    gate::{MovedSide, Place, Records},
    placement::{
        ClassMap, Declared,
        moving::{Copied, RollbackReason, RollbackTo},
    },
    topology::{CLUSTER_KEY, NODE_KEY},
    twin::{Site, TWIN_CLASS},
    volume::{
        ClaimMark, Epoch, Marks, VolumeId, mark,
        moving::{GateNote, GateNumber, MovedClaim, TargetMark, VolumeMark},
    },
};

const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
const MOVE: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";
const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const OURS: &str = "/api/v1/namespaces/liqo-csi";
const THERE: &str = "/api/v1/namespaces/shop-home";
const TWIN_THERE: &str = "/api/v1/namespaces/shop-home/persistentvolumeclaims/data";
const PREPARING: Stage = Stage::Preparing;
const ROLLBACK: Stage = Stage::Rollback {
    gate: None,
    to: RollbackTo::Start,
    why: RollbackReason::Cancelled,
};

/// The direction of the move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    Home,
    Within,
}

struct World {
    api: FakeApi,
    there: FakeApi,
    moved: MovedVolume,
    of: MoveRequest,
    helpers: ClusterHelpers,
}

fn name() -> String {
    format!("pvc-{UID}")
}

fn first() -> Epoch {
    Epoch::NEVER_MOVED.next().unwrap()
}

/// The twin at home with this epoch.
fn twin_at_home(epoch: Epoch) -> String {
    let name = VolumeName::from_request(&name()).home_twin(epoch);
    format!("/api/v1/namespaces/liqo-storage/persistentvolumeclaims/{name}")
}

fn marks(epoch: Epoch, handed_over: bool) -> Marks {
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

fn target_mark() -> TargetMark {
    TargetMark {
        by: MOVE.parse().unwrap(),
        epoch: first(),
    }
}

fn request(spec: Value) -> MoveRequest {
    let mut spec = spec;
    spec["claims"] = json!(["data"]);
    let object = json!({
        "apiVersion": "storage.liqo.io/v1alpha1", "kind": "VolumeMove",
        "metadata": {"name": "m", "namespace": "shop", "uid": MOVE}, "spec": spec,
    });
    let object: VolumeMove = serde_json::from_value(object).unwrap();
    MoveRequest::try_from(&object).unwrap()
}

fn helpers() -> ClusterHelpers {
    ClusterHelpers::new(HelperSettings {
        most: crate::api::volume_move::Amounts::default(),
        namespace: "liqo-csi".into(),
        image: "example.test/driver:1".into(),
        pull_policy: "IfNotPresent".into(),
        pull_secrets: vec!["registry".into()],
        relay_account: "liqo-csi-relay".into(),
        policy: Policy {
            allowed_classes: ["instant".to_owned()].into(),
            namespace: "liqo-csi".into(),
        },
    })
}

fn furnish(api: &FakeApi, there: &FakeApi, way: Way) {
    let class = |api: &FakeApi, name: &str, provisioner: &str, binding: &str, parameters: Value| {
        api.put(
            &format!("/apis/storage.k8s.io/v1/storageclasses/{name}"),
            json!({"provisioner": provisioner, "volumeBindingMode": binding, "parameters": parameters}),
        );
    };
    let none = || json!({});
    let real = json!({"realStorageClass": "real"});
    class(api, "liqo", "storage.liqo.io", "WaitForFirstConsumer", real);
    for api in [api, there] {
        class(api, "real", "real.test", "WaitForFirstConsumer", none());
        class(api, "instant", "real.test", "Immediate", none());
    }
    class(there, "mapped", "real.test", "WaitForFirstConsumer", none());
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
    api.put(
        CLAIM,
        json!({
            "metadata": {"uid": UID, "labels": {"app": "db"}, "annotations": {"team": "blue"}},
            "spec": {
                "volumeName": name(), "storageClassName": "liqo", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        }),
    );
    let cluster = if way == Way::Home { "milan" } else { "home" };
    let place = json!({"matchExpressions": [{"key": NODE_KEY, "operator": "In", "values": ["n1"]}]});
    api.put(
        &format!("{VOLUMES}/{}", name()),
        json!({
            "spec": {
                "csi": {
                    "driver": "storage.liqo.io", "volumeHandle": format!("v1:{cluster}:{}", name()), "fsType": "ext4",
                    "volumeAttributes": {TWIN_CLASS: "real"},
                },
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                "nodeAffinity": {"required": {"nodeSelectorTerms": [place]}},
                "claimRef": {"namespace": "shop", "name": "data", "uid": UID},
                "persistentVolumeReclaimPolicy": "Delete",
            },
        }),
    );
    let source = json!({
        "metadata": {
            "labels": marks(Epoch::NEVER_MOVED, true).labels(),
            "annotations": marks(Epoch::NEVER_MOVED, true).annotations(),
        },
        "spec": {"storageClassName": "real", "accessModes": ["ReadWriteOnce"]},
        "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
    });
    if way == Way::Home {
        there.put(TWIN_THERE, source);
    } else {
        api.put(&twin_at_home(Epoch::NEVER_MOVED), source);
    }
}

impl World {
    async fn new(way: Way) -> Self {
        Self::behind(way, None).await
    }

    /// With a remote cluster in which Liqo calls the home cluster `shadow_pods_of`.
    async fn behind(way: Way, shadow_pods_of: Option<&str>) -> Self {
        Self::with_rights(way, shadow_pods_of, Rights::ALL).await
    }

    async fn with_rights(way: Way, shadow_pods_of: Option<&str>, rights: Rights) -> Self {
        let (api, there) = (FakeApi::start().await, FakeApi::start().await);
        furnish(&api, &there, way);
        let home = api.cluster().await;
        let declared = Declared {
            classes: ClassMap {
                mapping: [("liqo".to_owned(), "mapped".to_owned())].into(),
                ..ClassMap::default()
            },
            shadow_pods_of: shadow_pods_of.map(str::to_owned),
            ..Declared::plain("milan")
        };
        let registry = Registry::fixed([(declared, Link::up(&there, rights).await)]);
        let side = |cluster: &str, epoch: Epoch| {
            let id = VolumeId {
                cluster: cluster.parse().unwrap(),
                name: VolumeName::from_request(&name()),
                epoch,
            };
            let place = if cluster == "home" {
                Place::Site(Box::new(Site::local(&home, &id.name, epoch)))
            } else {
                let milan = registry.get(&"milan".parse().unwrap()).unwrap();
                let site = Site::recorded(&home, milan, "shop-home".into(), "data".into(), epoch);
                Place::of(site, &registry)
            };
            MovedSide { id, place }
        };
        let (from, to, of) = match way {
            Way::Out => ("home", "milan", json!({"target": {"cluster": "milan"}})),
            Way::Home => ("milan", "home", json!({"target": {"nodeName": "n2"}})),
            Way::Within => ("home", "home", json!({"target": {"nodeName": "n2"}})),
        };
        let moved = MovedVolume {
            by: MOVE.parse().unwrap(),
            claim: MovedClaim {
                name: "shop/data".parse().unwrap(),
                uid: UID.into(),
            },
            source: side(from, Epoch::NEVER_MOVED),
            target: side(to, first()),
            records: Records::Nothing,
            mover_node: None,
            recovers: false,
            target_out_of_service: false,
            home,
        };
        Self {
            api,
            there,
            moved,
            of: request(of),
            helpers: helpers(),
        }
    }

    /// The same with a volume of mode Block.
    async fn with_device(way: Way) -> Self {
        let world = Self::new(way).await;
        let block = |object: &mut Value| object["spec"]["volumeMode"] = "Block".into();
        world.api.change(&format!("{VOLUMES}/{}", name()), block);
        world.api.change(CLAIM, block);
        if way == Way::Home {
            world.there.change(TWIN_THERE, block);
        } else {
            world.api.change(&twin_at_home(Epoch::NEVER_MOVED), block);
        }
        world
    }

    /// Gates the PV.
    fn gate(&self) {
        let gate =
            json!({"version": 1, "move": MOVE, "gate": 1, "gated": {"policy": "Delete", "claimUid": UID}});
        self.api.change(&format!("{VOLUMES}/{}", name()), |volume| {
            volume["metadata"]["annotations"][mark::GATE] = gate.to_string().into();
        });
    }

    async fn look(&self, stage: &Stage) -> Movers {
        self.helpers.observe(&self.moved, &self.of, stage).await.unwrap()
    }

    async fn step(&self, step: ClaimStep) -> Result<Applied, GateError> {
        self.helpers.apply(&self.moved, &self.of, &step).await
    }

    async fn make_target(&self) -> Result<Applied, GateError> {
        self.step(ClaimStep::MakeTarget { mark: target_mark() }).await
    }

    /// Takes the steps of a move until both sides are ready, with a fake kubelet.
    async fn prepare(&self) {
        if let Err(error) = self.try_prepare().await {
            panic!("{error}");
        }
    }

    async fn try_prepare(&self) -> Result<(), GateError> {
        self.try_prepare_for(&PREPARING).await
    }

    async fn prepare_for(&self, stage: &Stage) {
        if let Err(error) = self.try_prepare_for(stage).await {
            panic!("{error}");
        }
    }

    async fn try_prepare_for(&self, stage: &Stage) -> Result<(), GateError> {
        self.make_target().await?;
        self.bind_target();
        for _ in 0..20 {
            let seen = self.helpers.observe(&self.moved, &self.of, stage).await?;
            let sides = [(Side::Source, seen.source), (Side::Target, seen.target)];
            let missing = sides
                .into_iter()
                .find(|(_, seen)| *seen == Live::Known(Helpers::Incomplete));
            match missing {
                Some((side, _)) => {
                    self.step(ClaimStep::MakeHelpers(side)).await?;
                }
                None if self.start_pods() => {}
                None => return Ok(()),
            }
        }
        panic!("it does not come to an end");
    }

    /// The provisioner creates the PV of a twin at home.
    fn bind_target(&self) {
        let twin = twin_at_home(first());
        let Some(object) = self.api.object(&twin) else {
            return;
        };
        let uid = object["metadata"]["uid"].clone();
        let place = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]});
        self.api.put(
            &format!("{VOLUMES}/real-2"),
            json!({"spec": {
                "csi": {"driver": "real.test", "volumeHandle": "h-2"}, "capacity": {"storage": "2Gi"},
                "claimRef": {"uid": uid, "namespace": "liqo-storage"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [place]}},
            }}),
        );
        self.api.change(&twin, |twin| {
            twin["spec"]["volumeName"] = "real-2".into();
            twin["status"] = json!({"phase": "Bound"});
        });
    }

    /// The kubelets start pods whose Secrets exist. False if there was none.
    fn start_pods(&self) -> bool {
        let mut any = false;
        for (api, namespace) in [(&self.api, OURS), (&self.there, THERE)] {
            for pod in api.store().below(&format!("{namespace}/pods/")) {
                let secrets = pod["spec"]["volumes"].as_array().into_iter().flatten();
                let mut secrets = secrets.filter_map(|volume| volume["secret"]["secretName"].as_str());
                let has_secret =
                    secrets.all(|name| api.object(&format!("{namespace}/secrets/{name}")).is_some());
                let is_of_move = pod["metadata"]["labels"][mark::MOVE] == MOVE;
                let is_new = is_of_move && pod["status"]["phase"].is_null();
                if is_new && has_secret {
                    any = true;
                    let path = format!("{namespace}/pods/{}", pod["metadata"]["name"].as_str().unwrap());
                    let node = if pod["metadata"]["name"].as_str().unwrap().contains("source") {
                        "n1"
                    } else {
                        "n2"
                    };
                    api.change(&path, |pod| {
                        pod["spec"]["nodeName"] = node.into();
                        pod["status"] = json!({"phase": "Running", "podIP": "10.0.0.7"});
                    });
                }
            }
        }
        any
    }

    /// All objects of movers, by path.
    fn all(&self) -> Vec<Value> {
        let of_move = |object: &Value| object["metadata"]["labels"][mark::MOVE] == MOVE;
        let twins = [twin_at_home(first()), TWIN_THERE.to_owned()];
        let is_twin = |object: &Value| {
            let (namespace, name) = (&object["metadata"]["namespace"], &object["metadata"]["name"]);
            let of = |path: &String| path.ends_with(&format!("/{}", name.as_str().unwrap()));
            !namespace.is_null() && twins.iter().any(of)
        };
        let below = [&self.api, &self.there].map(|api| api.store().below("/api/v1/"));
        let all = below.into_iter().flatten();
        all.filter(|object| of_move(object) && !is_twin(object)).collect()
    }

    fn source_pod(&self) -> Value {
        self.pod("move-source")
    }

    fn target_pod(&self) -> Value {
        self.pod("move-target")
    }

    fn pod(&self, prefix: &str) -> Value {
        let here = self.api.store().below(&format!("{OURS}/pods/{prefix}"));
        let there = self.there.store().below(&format!("{THERE}/pods/{prefix}"));
        let mut found = here.into_iter().chain(there);
        let only = found.next().unwrap_or_else(|| panic!("there is no pod {prefix}"));
        assert_eq!(found.next(), None);
        only
    }
}

/// The only object of the move below this path.
fn only(api: &FakeApi, below: &str) -> Value {
    let found = api.store().below(below);
    let mut found = found
        .into_iter()
        .filter(|object| object["metadata"]["labels"][mark::MOVE] == MOVE);
    let only = found.next().unwrap_or_else(|| panic!("nothing is below {below}"));
    assert_eq!(found.next(), None, "more is below {below}");
    only
}

fn ready() -> Live<Helpers> {
    Live::Known(Helpers::Ready)
}
