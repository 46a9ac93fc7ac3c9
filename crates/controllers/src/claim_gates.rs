//! Opens the gates of pods that wait until somebody has looked their claims up. A pod with a claim of
//! another driver is held at home in the same write; a claim that does not exist is waited for.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::watched::Watched;
use crate::{
    cluster::{ApiError, Cluster, events::Events, facts, slim::claims_of, unless_conflict},
    observe::crash::{self, Step},
    offload::{CLAIMS_GATE, GateStep, IN_BOTH_CLUSTERS, Tie, gate_step, held_at_home},
    rounds::{Rounds, each},
    volume::DRIVER_NAME,
};

/// The loop.
pub(super) struct ClaimGates<'a> {
    home: &'a Cluster,
    watched: &'a Watched,
    events: &'a Events,
    /// What was last said of each pod that waits, by its uid.
    said: RefCell<HashMap<String, String>>,
}

impl<'a> ClaimGates<'a> {
    pub(super) fn new(home: &'a Cluster, watched: &'a Watched, events: &'a Events) -> Self {
        Self {
            home,
            watched,
            events,
            said: RefCell::default(),
        }
    }

    /// The scheduler says nothing of a pod with a gate: what it waits for is told in an event, once.
    async fn tell(&self, pod: &Pod, why: &str) {
        let uid = pod.uid().unwrap_or_default();
        let before = self.said.borrow_mut().insert(uid.clone(), why.to_owned());
        if before.is_some_and(|before| before == why) {
            return;
        }
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: pod.namespace(),
            name: Some(pod.name_any()),
            uid: Some(uid),
            ..ObjectReference::default()
        };
        self.events.warn_object(about, "WaitingForClaim", why).await;
    }

    async fn look(&self, namespace: &str, name: &str) -> Result<(), ApiError> {
        let pods = self.home.within::<Pod>(namespace);
        let Some(pod) = pods.get(name).await? else {
            return Ok(());
        };
        let gates = pod
            .spec
            .iter()
            .flat_map(|spec| spec.scheduling_gates.iter().flatten());
        let gates: Vec<&str> = gates.map(|gate| gate.name.as_str()).collect();
        if !gates.contains(&CLAIMS_GATE) || pod.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let mut ties = Vec::new();
        for claim in claims_of(&pod) {
            ties.push(self.tie(namespace, &claim).await?);
        }
        let others: Vec<Value> = gates
            .into_iter()
            .filter(|name| *name != CLAIMS_GATE)
            .map(|name| json!({ "name": name }))
            .collect();
        let mut spec = json!({ "schedulingGates": others });
        match gate_step(&ties) {
            GateStep::Open => {}
            GateStep::HoldHome => spec["affinity"] = home_affinity(&pod),
            GateStep::Wait(why) => {
                self.tell(&pod, &why).await;
                return Ok(());
            }
        }
        let patch = json!({
            "metadata": {"uid": pod.uid(), "resourceVersion": pod.resource_version()},
            "spec": spec,
        });
        let opened = crash::around(Step::OpenClaimsGate, pods.merge(name, &patch)).await;
        unless_conflict(opened).map(drop)
    }

    async fn tie(&self, namespace: &str, name: &str) -> Result<Tie, ApiError> {
        let claims = self.home.within::<PersistentVolumeClaim>(namespace);
        let Some(claim) = claims.get(name).await? else {
            return Ok(Tie::Unknown(format!(
                "the claim {namespace}/{name} does not exist"
            )));
        };
        if is_in_both(&claim) {
            return Ok(Tie::Both);
        }
        let class = facts::claim_class(&claim).map(str::to_owned);
        let spec = claim.spec.unwrap_or_default();
        if let Some(volume) = spec.volume_name.filter(|name| !name.is_empty()) {
            let found = self.home.all::<PersistentVolume>().get(&volume).await?;
            let Some(found) = found else {
                let why = format!(
                    "the claim {namespace}/{name} names the PersistentVolume {volume}, which does not exist"
                );
                return Ok(Tie::Unknown(why));
            };
            let driver = found.spec.and_then(|spec| spec.csi).map(|csi| csi.driver);
            return Ok(whose(driver.as_deref()));
        }
        match class {
            None => Ok(Tie::Unknown(format!(
                "the claim {namespace}/{name} has no class, and there is no default one"
            ))),
            Some(class) if class.is_empty() => Ok(Tie::Home),
            Some(class) => {
                let Some(found) = self.home.all::<StorageClass>().get(&class).await? else {
                    let why = format!("the class {class} of the claim {namespace}/{name} does not exist");
                    return Ok(Tie::Unknown(why));
                };
                Ok(if is_in_both(&found) {
                    Tie::Both
                } else {
                    whose(Some(&found.provisioner))
                })
            }
        }
    }
}

fn is_in_both(object: &impl ResourceExt) -> bool {
    object
        .annotations()
        .get(IN_BOTH_CLUSTERS)
        .is_some_and(|value| value == "true")
}

fn whose(driver: Option<&str>) -> Tie {
    if driver == Some(DRIVER_NAME) {
        Tie::Ours
    } else {
        Tie::Home
    }
}

fn home_affinity(pod: &Pod) -> Value {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let required = affinity
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.map(|required| json!(required.node_selector_terms));
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": held_at_home(terms.as_ref()),
    }}})
}

impl Rounds for ClaimGates<'_> {
    const NAME: &'static str = "claim-gates";
    /// For claims that are watched by nobody here: bound ones of other drivers.
    const RESYNC: Duration = Duration::from_secs(10);
    /// Each pod waits for so long.
    const GATHER: Duration = Duration::from_millis(50);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        vec![
            self.watched.pods.changes_of(|pod| pod.waits_for_claims_gate),
            self.watched.claims.version(),
            self.home.views().classes.version(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let mut gated = self.watched.pods.all();
        gated.retain(|pod| pod.waits_for_claims_gate);
        let waiting: HashSet<&str> = gated.iter().map(|pod| pod.uid.as_str()).collect();
        self.said
            .borrow_mut()
            .retain(|uid, _| waiting.contains(uid.as_str()));
        each(&gated, async |pod| {
            self.look(&pod.consumer.namespace, &pod.consumer.name).await
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::FakeApi;

    const POD: &str = "/api/v1/namespaces/shop/pods/db-0";

    fn world(api: &FakeApi) {
        for (name, provisioner, both) in [
            ("liqo", DRIVER_NAME, "false"),
            ("local-path", "rancher.io/local-path", "false"),
            ("nfs", "nfs.csi.k8s.io", "true"),
        ] {
            let path = format!("/apis/storage.k8s.io/v1/storageclasses/{name}");
            api.put(
                &path,
                json!({"provisioner": provisioner, "metadata": {"annotations": {IN_BOTH_CLUSTERS: both}}}),
            );
        }
    }

    fn claim(api: &FakeApi, name: &str, class: &str, volume: Option<&str>) {
        let path = format!("/api/v1/namespaces/shop/persistentvolumeclaims/{name}");
        api.put(
            &path,
            json!({"spec": {"storageClassName": class, "volumeName": volume}}),
        );
    }

    fn pod(api: &FakeApi, claims: &[&str]) {
        let volumes = claims
            .iter()
            .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
        api.put(
            POD,
            json!({"spec": {
                "schedulingGates": [{"name": "theirs"}, {"name": CLAIMS_GATE}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
                "volumes": volumes.collect::<Vec<_>>(),
            }, "status": {"phase": "Pending"}}),
        );
    }

    async fn after_a_round(api: &FakeApi) -> (Value, Value) {
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        let events = Events::new(home.client().clone());
        let mut gates = ClaimGates::new(&home, &watched, &events);
        for _ in 0..2 {
            gates.round().await.unwrap();
        }
        let spec = api.object(POD).unwrap()["spec"].clone();
        let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        (
            spec["schedulingGates"].clone(),
            terms["nodeSelectorTerms"][0]["matchExpressions"].clone(),
        )
    }

    #[tokio::test]
    async fn a_pod_goes_where_its_claims_can_be() {
        let theirs = json!([{"name": "theirs"}]);
        let zone = json!({"key": "zone", "operator": "Exists"});
        let home = json!({"key": "liqo.io/type", "operator": "NotIn", "values": ["virtual-node"]});
        for (claims, terms) in [
            (&["ours"][..], json!([zone])),
            (&["ours", "shared"][..], json!([zone])),
            (&["ours", "tied"][..], json!([zone, home])),
            (&["old"][..], json!([zone, home])),
            (&["bound"][..], json!([zone])),
            (&["absent", "tied"][..], json!([zone, home])),
        ] {
            let api = FakeApi::start().await;
            world(&api);
            claim(&api, "ours", "liqo", None);
            claim(&api, "tied", "local-path", None);
            claim(&api, "shared", "nfs", None);
            api.put(
                "/api/v1/namespaces/shop/persistentvolumeclaims/old",
                json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "local-path"}}, "spec": {}}),
            );
            // Whatever class it names: what counts is whose volume it is bound to.
            claim(&api, "bound", "local-path", Some("pv-1"));
            api.put(
                "/api/v1/persistentvolumes/pv-1",
                json!({"spec": {"csi": {"driver": DRIVER_NAME, "volumeHandle": "v1:home:pvc-1"}}}),
            );
            pod(&api, claims);
            assert_eq!(after_a_round(&api).await, (theirs.clone(), terms), "{claims:?}");
        }
    }

    #[tokio::test]
    async fn a_claim_that_does_not_exist_is_waited_for() {
        let api = FakeApi::start().await;
        world(&api);
        pod(&api, &["data"]);
        let (gates, _) = after_a_round(&api).await;
        assert_eq!(gates.as_array().unwrap().len(), 2);
        let events = api
            .store()
            .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
        let notes: Vec<&Value> = events.iter().map(|event| &event["note"]).collect();
        assert_eq!(notes, ["the claim shop/data does not exist"]);
        claim(&api, "data", "liqo", None);
        let (gates, _) = after_a_round(&api).await;
        assert_eq!(gates, json!([{"name": "theirs"}]));
    }
}
