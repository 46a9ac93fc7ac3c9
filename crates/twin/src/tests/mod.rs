//! Twins against a fake API server, with fakes of the controllers of a real cluster. The fixture that the
//! tests of all operations share is here.

mod adopt;
mod attach;
mod attributes;
mod available_capacity;
mod create;
mod delete;
mod expand;
mod faults;
mod list;
mod moved;
mod release;
mod remote_plan;
mod source;
mod stand_in;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use self::stand_in::{Real, controllers};
use super::*;
use crate::{
    cluster::{Cluster, events::Events, testing::FakeApi},
    fleet::Registry,
    placement::{Refusal, moving::Caller},
    topology::{CLUSTER_KEY, NODE_KEY},
    volume::{
        Access, AccessMode, Capabilities, Capability, ClaimName, Epoch, Parameters, SizeRange, VolumeId,
    },
};

const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
const GIB: i64 = 1 << 30;
const TWINS: &str = "/api/v1/namespaces/liqo-storage/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
/// The deadline for what must happen, even on a busy machine.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The deadline for what must not happen. A passed deadline ends only waiting, no call: however slow the machine is,
/// everything before the first wait is done.
pub(super) const A_MOMENT: Duration = Duration::from_millis(300);

struct World {
    api: Arc<FakeApi>,
    home: Cluster,
    policy: Policy,
    request: CreateRequest,
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
            request: request(),
            deadline: TEST_TIMEOUT,
        }
    }

    fn id(&self) -> VolumeId {
        VolumeId::never_moved(self.home.id().clone(), self.request.volume.clone())
    }

    fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }

    async fn create(&self) -> Result<ProvisionedVolume, CreateError> {
        let events = Events::new(self.home.client().clone());
        let (home, registry) = (&self.home, &Registry::default());
        create(home, registry, &self.policy, &events, &self.request, self.until()).await
    }

    async fn delete(&self) -> Result<(), DeleteError> {
        let events = Events::new(self.home.client().clone());
        delete(
            &self.home,
            &Registry::default(),
            &events,
            &self.id(),
            self.until(),
        )
        .await
    }

    async fn publish(&self, node: &str) -> Result<crate::volume::DataPath, PublishError> {
        let asked = &self.request.spec.capabilities;
        let (registry, caller) = (Registry::default(), Caller::User);
        publish(
            &self.home,
            &registry,
            &self.id(),
            &caller,
            node,
            asked,
            self.until(),
        )
        .await
    }

    fn twin(&self) -> Option<Value> {
        self.api.object(&twin_path())
    }

    /// Creates the PV like csi-provisioner, and binds the claim to it.
    fn bind_claim(&self, made: &ProvisionedVolume) {
        bind_claim(&self.api, "home", made);
    }

    /// Shortens the deadline, for calls that must not succeed.
    fn impatient(mut self) -> Self {
        self.deadline = A_MOMENT;
        self
    }

    fn patient(mut self) -> Self {
        self.deadline = TEST_TIMEOUT;
        self
    }
}

/// Creates the virtual PV of the claim like csi-provisioner, and binds the claim to it.
fn bind_claim(api: &FakeApi, cluster: &str, made: &ProvisionedVolume) {
    let name = format!("pvc-{UID}");
    api.put(
        &format!("{VOLUMES}/{name}"),
        json!({
            "spec": {
                "csi": {
                    "driver": "storage.liqo.io", "volumeHandle": format!("v1:{cluster}:{name}"),
                    "volumeAttributes": made.context,
                },
                "claimRef": {"namespace": "shop", "name": "data", "uid": UID},
                "persistentVolumeReclaimPolicy": "Delete",
            },
            "status": {"phase": "Bound"},
        }),
    );
    api.change(CLAIM, |claim| {
        claim["spec"]["volumeName"] = name.into();
        claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes".into();
    });
}

/// The reasons of all events on the claim.
fn told(api: &FakeApi) -> Vec<String> {
    let events = api
        .store()
        .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
    let reasons = events
        .iter()
        .map(|event| event["reason"].as_str().unwrap().to_owned());
    reasons.collect()
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
        "volume.beta.kubernetes.io/storage-class": "liqo",
        "storage.liqo.io/handed-over": "true",
        "team": "shop",
        "nfs.io/storage-path": "somebody-elses",
    });
    let claim = json!({
        "metadata": {"uid": UID, "annotations": annotations, "labels": {"app": "db"}},
        "spec": {"storageClassName": "liqo"},
    });
    api.put(CLAIM, claim);
}

fn request() -> CreateRequest {
    let capability = Capability {
        mode: AccessMode::ReadWriteOnce,
        access: Access::Mount {
            fs_type: None,
            flags: Vec::new(),
        },
    };
    let request_name = format!("pvc-{UID}");
    CreateRequest {
        volume: VolumeName::from_request(&request_name),
        request_name,
        spec: VolumeSpec {
            size: SizeRange::new(GIB, 0).unwrap(),
            capabilities: Capabilities::new([capability]).unwrap(),
            parameters: Parameters {
                real_class: Some("real".into()),
                binding_policy: None,
                shared_namespace: false,
                restore_topology: None,
                claim: Some(ClaimName {
                    namespace: "shop".into(),
                    name: "data".into(),
                }),
                volume: None,
            },
            source: None,
            attributes: None,
        },
        requisite: vec![Segments::of_node(&"home".parse().unwrap(), "n1")],
        preferred: Vec::new(),
    }
}

/// Checks that the volume is refused because it does not hold a copy of its source.
#[track_caller]
fn assert_no_copy(outcome: &Result<ProvisionedVolume, CreateError>) {
    let refused = matches!(
        outcome,
        Err(CreateError::Refused {
            refusal: Refusal::NoCopy(_),
            ..
        })
    );
    assert!(refused, "{outcome:?}");
}
