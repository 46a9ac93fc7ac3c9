//! Opens the scheduling gates of pods whose claims have to be looked up first. A pod with a claim of
//! another driver gets a node affinity for home in the same write; a missing claim is waited for.

use std::time::Duration;

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};

use super::{reports::Reports, watched::Watched};
use crate::{
    cluster::{ApiError, Cluster, facts, slim::claims_of, unless_conflict},
    observe::crash::{self, Step},
    offload::{CLAIMS_GATE, GateStep, IN_BOTH_CLUSTERS, Tie, gate_step, held_at_home},
    rounds::{Rounds, each},
    volume::DRIVER_NAME,
};

pub(super) struct ClaimGates<'a> {
    home: &'a Cluster,
    watched: &'a Watched,
    /// The scheduler emits no events for a pod with a gate: this loop reports what the pod waits for.
    reports: Mutex<Reports>,
}

impl<'a> ClaimGates<'a> {
    pub(super) fn new(home: &'a Cluster, watched: &'a Watched, reports: Reports) -> Self {
        Self {
            home,
            watched,
            reports: Mutex::new(reports),
        }
    }

    async fn reconcile(&self, namespace: &str, name: &str) -> Result<(), ApiError> {
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
                let mut reports = self.reports.lock().await;
                reports
                    .warn_object(&pod.object_ref(&()), "WaitingForClaim", &why)
                    .await;
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
            return Ok(tie_of_driver(driver.as_deref()));
        }
        match class {
            None => Ok(Tie::Unknown(format!(
                "the claim {namespace}/{name} has no class, and the cluster has no default class"
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
                    tie_of_driver(Some(&found.provisioner))
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

fn tie_of_driver(driver: Option<&str>) -> Tie {
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
    /// For claims that this driver does not watch: bound ones of other drivers.
    const RESYNC: Duration = Duration::from_secs(10);
    /// Each pod waits this long.
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
        each(&gated, async |pod| {
            self.reconcile(&pod.consumer.namespace, &pod.consumer.name).await
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{events::Events, testing::FakeApi};

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
        let reports = Reports::new(Events::new(home.client().clone()));
        let mut gates = ClaimGates::new(&home, &watched, reports);
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
            // The class does not matter: the driver of the bound volume decides.
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
