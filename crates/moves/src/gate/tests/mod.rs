//! A claim whose volume is moved from the home cluster to another one, against two fake API servers: the
//! claim and its PV (`volume`), the twins (`twins`), a move within one remote cluster (`name`), the recovery
//! of a source (`recover`), and the users of a volume (`users`).

mod name;
mod recover;
mod twins;
mod users;
mod volume;

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{Rights, testing::FakeApi},
    fleet::Link,
    placement::{
        Declared,
        moving::{
            AsRead, ClaimDecision, ClaimStep, Lock, MoveFacts, OverDue, Quiesce, Requested, Stage,
            VirtualVolume, claim_step,
        },
    },
    volume::{
        ClaimMark, Epoch, Marks, ReclaimPolicy, mark,
        moving::{GateNote, GateNumber, Manifest, SourceMark, TargetMark},
    },
};

const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
const MOVE: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";
const OTHER: &str = "7c5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a333";
const GATE: GateNumber = GateNumber::FIRST;
const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const TARGET: &str = "/api/v1/namespaces/shop-home/persistentvolumeclaims/data";

struct World {
    api: FakeApi,
    there: FakeApi,
    moved: MovedVolume,
}

fn name() -> String {
    format!("pvc-{UID}")
}

fn volume_path() -> String {
    format!("{VOLUMES}/{}", name())
}

fn source_path() -> String {
    format!("/api/v1/namespaces/liqo-storage/persistentvolumeclaims/{UID}")
}

fn by() -> MoveUid {
    MOVE.parse().unwrap()
}

fn epoch() -> Epoch {
    Epoch::NEVER_MOVED.next().unwrap()
}

fn id(of: &str) -> VolumeId {
    of.parse().unwrap()
}

fn note() -> GateNote {
    GateNote {
        by: by(),
        gate: GATE,
        policy: ReclaimPolicy::Delete,
        claim_uid: UID.into(),
    }
}

fn marks(handed_over: bool) -> Marks {
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
        epoch: Epoch::NEVER_MOVED,
    }
}

/// The virtual PV of the source.
fn virtual_volume() -> Value {
    json!({
        "metadata": {"finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {
            "csi": {"driver": "storage.liqo.io", "volumeHandle": format!("v1:home:{}", name())},
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data", "uid": UID},
            "persistentVolumeReclaimPolicy": "Delete",
        },
        "status": {"phase": "Bound"},
    })
}

/// The real PV of a twin.
fn real_volume(api: &FakeApi, real: &str, twin: &str, policy: &str, annotations: &Value) {
    let uid = api.object(twin).unwrap()["metadata"]["uid"].clone();
    api.put(
        &format!("{VOLUMES}/{real}"),
        json!({
            "metadata": {"annotations": annotations},
            "spec": {
                "csi": {"driver": "real.test", "volumeHandle": format!("h-{real}")},
                "claimRef": {"uid": uid},
                "persistentVolumeReclaimPolicy": policy,
            },
        }),
    );
}

impl World {
    /// A claim that is in use at home and is moved to the cluster `milan`.
    async fn new() -> Self {
        Self::with(Rights::ALL).await
    }

    async fn with(rights: Rights) -> Self {
        let (api, there) = (FakeApi::start().await, FakeApi::start().await);
        api.put(
            CLAIM,
            json!({
                "metadata": {"uid": UID, "finalizers": ["kubernetes.io/pvc-protection"]},
                "spec": {"volumeName": name(), "resources": {"requests": {"storage": "1Gi"}}},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
            }),
        );
        api.put(&volume_path(), virtual_volume());
        api.put(
            &source_path(),
            json!({
                "metadata": {"labels": marks(true).labels(), "annotations": marks(true).annotations(), "finalizers": [mark::TWIN_FINALIZER]},
                "spec": {"volumeName": "real-1"},
            }),
        );
        real_volume(&api, "real-1", &source_path(), "Delete", &json!({}));
        let home = api.cluster().await;
        let registry = Registry::fixed([(Declared::plain("milan"), Link::up(&there, rights).await)]);
        let milan = registry.get(&"milan".parse().unwrap()).unwrap();
        let target = Site::recorded(&home, milan, "shop-home".into(), "data".into(), epoch());
        let source = id(&format!("v1:home:{}", name()));
        let moved = MovedVolume {
            claim: MovedClaim {
                name: "shop/data".parse().unwrap(),
                uid: UID.into(),
            },
            by: by(),
            source: MovedSide {
                place: Place::Site(Box::new(Site::local(&home, &source.name, source.epoch))),
                id: source,
            },
            target: MovedSide {
                place: Place::of(target, &registry),
                id: id(&format!("v2:milan:{}:1", name())),
            },
            records: Records::Nothing,
            mover_node: None,
            recovers: false,
            target_out_of_service: false,
            home,
        };
        Self { api, there, moved }
    }

    /// The twin that the move has created at its target.
    fn with_target(self, policy: &str) -> Self {
        let mark = TargetMark {
            by: by(),
            epoch: epoch(),
        };
        let (mut labels, mut annotations) = (marks(false).labels(), marks(false).annotations());
        labels.extend(mark.labels());
        annotations.extend(mark.annotations());
        let metadata = json!({"labels": labels, "annotations": annotations});
        self.there.put(
            TARGET,
            json!({"metadata": metadata, "spec": {"volumeName": "real-2"}}),
        );
        real_volume(&self.there, "real-2", TARGET, policy, &json!({}));
        self
    }

    /// The record in the status before the gate, or since the commit.
    fn remember(mut self, committed: bool) -> Self {
        let mut volume = virtual_volume();
        volume["metadata"]["name"] = name().into();
        let before = SourceRecord {
            claim: self.moved.claim.clone(),
            policy: ReclaimPolicy::Delete,
            source: Manifest::of(&volume).unwrap(),
        };
        volume["spec"]["csi"]["volumeHandle"] = self.moved.target.id.to_string().into();
        self.moved.records = if committed {
            let target = Manifest::of(&volume).unwrap();
            Records::Committed(Box::new(CommitRecord::new(before, target).unwrap()))
        } else {
            Records::Source(Box::new(before))
        };
        self
    }

    async fn look(&self) -> ClaimObjects {
        self.moved.observe().await.unwrap()
    }

    async fn decide(&self, stage: Stage) -> ClaimDecision {
        let of = MoveFacts {
            at: AsRead::new(MOVE.into(), "1".into()),
            uid: by(),
            stage,
            finalizer: true,
            deleting: false,
            requested: Requested {
                cancel: false,
                recover: false,
                paused: false,
                cutover: true,
                quiesce: Quiesce::Evict,
            },
            obstacles: Some(Vec::new()),
            overdue: OverDue::default(),
        };
        let movers = Movers {
            source: Live::Known(Helpers::Absent),
            target: Live::Known(Helpers::Absent),
            copied: Live::Known(Copied::default()),
            reads_on: None,
        };
        let recorded = Recorded {
            policy: ReclaimPolicy::Delete,
            claim_uid: UID.into(),
        };
        claim_step(&of, &self.look().await.facts(&self.moved, movers, Some(recorded)))
    }

    async fn next(&self, stage: &Stage) -> ClaimDecision {
        let decision = self.decide(stage.clone()).await;
        if let ClaimDecision::Do(step) = &decision {
            assert_eq!(self.moved.apply(step).await.unwrap(), Applied::Done, "{step:?}");
        }
        decision
    }

    async fn claim_version(&self) -> AsRead {
        match self.look().await.claim {
            ClaimNow::Exists { at, .. } => at,
            ClaimNow::Absent => panic!("the claim is gone"),
        }
    }

    async fn volume(&self) -> VirtualVolume {
        match self.look().await.volume {
            VolumeNow::Exists(volume) => volume,
            VolumeNow::Absent => panic!("the PV is gone"),
        }
    }

    fn written(&self) -> Value {
        self.api.object(&volume_path()).unwrap()
    }

    /// Locks and gates the claim, and acts as Kubernetes does then.
    async fn gated(self) -> Self {
        let gating = Stage::Gating(GATE);
        for _ in 0..4 {
            self.next(&gating).await;
        }
        self.api.change(&volume_path(), |volume| {
            volume["status"]["phase"] = "Released".into();
        });
        self.api
            .change(CLAIM, |claim| claim["status"]["phase"] = "Lost".into());
        assert_eq!(self.decide(gating).await, ClaimDecision::Reached);
        self
    }
}

fn as_read(object: &Value) -> AsRead {
    let text = |key: &str| object["metadata"][key].as_str().unwrap().to_owned();
    AsRead::new(text("uid"), text("resourceVersion"))
}
