//! Opens the scheduling gates of pods whose claims have to be looked up first. A pod with a claim of
//! another driver gets a node affinity for home in the same write, or waits if it may not run there; a missing
//! claim is waited for.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::Instant};

use super::{
    reports::Reports,
    watched::{Claim, Watched, is_in_both, of_class, of_volume},
};
use crate::{
    cluster::{
        ApiError, Cluster, facts,
        slim::{GATED, PendingPod, Volume, claims_of},
        unless_conflict,
        view::{Changed, Feed},
    },
    controller::{Controller, Next},
    observe::crash::{self, Step},
    offload::{CLAIMS_GATE, GateStep, Tie, gate_step, held_at_home, is_remote_only},
    placement::Class,
    queue::{AT_ONCE, Queue},
    volume::DRIVER_NAME,
};

/// A pod that changed while its gate was removed is read again after this time.
const SOON: Duration = Duration::from_secs(1);
/// From this age on, a pod is reported also if its gate cannot be removed because a webhook does not answer.
const YOUNG: Duration = Duration::from_secs(30);
/// A waiting pod is read again after a time equal to its age, between these limits. The objects that it waits
/// for are watched, except for bound claims of other drivers.
const SHORTEST_WAIT: Duration = Duration::from_secs(5);
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// The controller. Its keys are pods, as `namespace/name`. It reads no `NamespaceOffloading`: gates are also
/// removed in namespaces that are no longer offloaded.
pub(super) struct ClaimGates<'a> {
    home: &'a Cluster,
    watched: &'a Watched,
    pods: Feed<PendingPod>,
    claims: Feed<Claim>,
    volumes: Feed<Volume>,
    classes: Feed<Class>,
    /// The scheduler emits no events for a pod with a gate: this controller reports what the pod waits for.
    reports: Mutex<Reports>,
}

impl<'a> ClaimGates<'a> {
    pub(super) fn new(home: &'a Cluster, watched: &'a Watched, reports: Reports) -> Self {
        Self {
            home,
            pods: watched.pods.feed(),
            claims: watched.claims.feed(),
            volumes: watched.volumes.feed(),
            classes: home.views().classes.feed(),
            watched,
            reports: Mutex::new(reports),
        }
    }

    /// Adds the gated pods that wait for one of the changed objects.
    fn add_changed(&self, queue: &mut Queue) {
        let key = |pod: &PendingPod| format!("{}/{}", pod.consumer.namespace, pod.consumer.name);
        let (pods, claims) = (self.pods.take(), self.claims.take());
        let (volumes, classes) = (self.volumes.take(), self.classes.take());
        let (
            Changed::These(pods),
            Changed::These(mut claims),
            Changed::These(volumes),
            Changed::These(classes),
        ) = (pods, claims, volumes, classes)
        else {
            for pod in self.watched.pods.of_topic(GATED) {
                queue.add(key(&pod));
            }
            return;
        };
        let topics = volumes.iter().map(|it| of_volume(it.name()));
        for topic in topics.chain(classes.iter().map(|it| of_class(&it.name))) {
            claims.extend(self.watched.claims.of_topic(&topic));
        }
        let named = claims.iter().flat_map(|claim| {
            let topic = format!("{}/{}", claim.name.namespace, claim.name.name);
            self.watched.pods.of_topic(&topic)
        });
        // The feed may return an earlier state of a pod; the view has the latest.
        let changed = pods.iter().filter_map(|it| self.watched.pods.get(&key(it)));
        for pod in changed.chain(named).filter(|it| it.waits_for_claims_gate) {
            queue.add(key(&pod));
        }
    }

    async fn open_gate(&self, namespace: &str, name: &str) -> Result<Option<Duration>, ApiError> {
        let pods = self.home.within::<Pod>(namespace);
        let Some(pod) = pods.get(name).await? else {
            return Ok(None);
        };
        let gates = pod
            .spec
            .iter()
            .flat_map(|spec| spec.scheduling_gates.iter().flatten());
        let gates: Vec<&str> = gates.map(|gate| gate.name.as_str()).collect();
        if !gates.contains(&CLAIMS_GATE) || pod.metadata.deletion_timestamp.is_some() {
            return Ok(None);
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
        let clusters = &self.home.views().remote_clusters;
        // Until all clusters are read, a pod that only one of them can run might be kept at home for ever.
        clusters.complete().await;
        let is_node = |name: &str| {
            clusters
                .all()
                .iter()
                .any(|it| it.fabric_node().as_deref() == Some(name))
        };
        let is_remote = |name: &str| clusters.get(name).is_some() || is_node(name);
        match gate_step(&ties, is_remote_only(&json!(pod.spec), is_remote)) {
            GateStep::Open => {}
            GateStep::RequireHome => spec["affinity"] = home_affinity(&pod),
            GateStep::Wait(why) => {
                let mut reports = self.reports.lock().await;
                reports
                    .warn_object(&pod.object_ref(&()), "WaitingForClaim", &why)
                    .await;
                return Ok(Some(age(&pod).clamp(SHORTEST_WAIT, LONGEST_WAIT)));
            }
        }
        let patch = json!({
            "metadata": {"uid": pod.uid(), "resourceVersion": pod.resource_version()},
            "spec": spec,
        });
        let opened = crash::around(Step::OpenClaimsGate, pods.merge(name, &patch)).await;
        if let Err(error) = &opened
            && (error.is_refusal() || error.is_transient() && age(&pod) >= YOUNG)
        {
            let note = format!(
                "the scheduling gate {CLAIMS_GATE} cannot be removed from the pod, and the controller tries again. If a webhook or \
                 policy refuses the update or changes more of the pod with it, leave out the service account of the controller \
                 there: {error}"
            );
            let mut reports = self.reports.lock().await;
            reports
                .warn_object(&pod.object_ref(&()), "WriteRefused", &note)
                .await;
        }
        // After a conflict: the view of pods does not show every change.
        Ok(unless_conflict(opened)?.is_none().then_some(SOON))
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
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let mut driver = None;
        if let Some(volume) = volume.filter(|name| !name.is_empty()) {
            let Some(found) = self.home.all::<PersistentVolume>().get(volume).await? else {
                return Ok(Tie::Unknown(format!(
                    "the claim {namespace}/{name} names the PersistentVolume {volume}, which does not exist"
                )));
            };
            let csi = found.spec.and_then(|spec| spec.csi);
            let name = csi.map_or_else(|| "in Kubernetes itself".to_owned(), |csi| csi.driver);
            driver = Some(name);
        }
        if driver.as_deref() == Some(DRIVER_NAME) {
            return Ok(Tie::Ours);
        }
        let wanted = facts::claim_class(&claim);
        let class = match wanted {
            Some(class) if !class.is_empty() => self.home.all::<StorageClass>().get(class).await?,
            _ => None,
        };
        if class.as_ref().is_some_and(is_in_both) {
            return Ok(Tie::Both);
        }
        let Some(driver) = driver.or_else(|| class.map(|class| class.provisioner)) else {
            return Ok(Tie::Unknown(match wanted {
                None => {
                    format!("the claim {namespace}/{name} has no class, and the cluster has no default class")
                }
                // Kubernetes binds it without a pod, to a PersistentVolume that exists.
                Some("") => format!("the claim {namespace}/{name} has the class \"\" and is not bound"),
                Some(class) => format!("the class {class} of the claim {namespace}/{name} does not exist"),
            }));
        };
        Ok(if driver == DRIVER_NAME {
            Tie::Ours
        } else {
            Tie::Home(format!("the claim {namespace}/{name}, of the driver {driver},"))
        })
    }
}

/// The time since the object was created.
fn age(object: &impl ResourceExt) -> Duration {
    let made = object.creation_timestamp();
    let age = made.and_then(|made| Timestamp::now().duration_since(made.0).try_into().ok());
    age.unwrap_or_default()
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

impl Controller for ClaimGates<'_> {
    const NAME: &'static str = "claim-gates";
    const AT_ONCE: usize = AT_ONCE;

    async fn changes(&self, queue: &mut Queue) -> Next {
        // Taken before the feeds are read, so that no change in between is missed.
        let triggers = vec![
            self.watched.pods.version(),
            self.watched.claims.version(),
            self.watched.volumes.version(),
            self.home.views().classes.version(),
        ];
        self.add_changed(queue);
        Next {
            triggers,
            at: Instant::now() + LONGEST_WAIT,
            works: true,
        }
    }

    async fn reconcile(&self, key: &str) -> Result<Option<Duration>, ApiError> {
        match key.split_once('/') {
            Some((namespace, name)) => self.open_gate(namespace, name).await,
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::select_all;
    use tokio::time;

    use super::*;
    use crate::{
        cluster::{
            events::Events,
            testing::{Act, FakeApi, Fault},
        },
        offload::IN_BOTH_CLUSTERS,
    };

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
        put_pod(api, POD, claims);
    }

    fn put_pod(api: &FakeApi, path: &str, claims: &[&str]) {
        let volumes = claims
            .iter()
            .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
        api.put(
            path,
            json!({"spec": {
                "schedulingGates": [{"name": "theirs"}, {"name": CLAIMS_GATE}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
                "volumes": volumes.collect::<Vec<_>>(),
            }, "status": {"phase": "Pending"}}),
        );
    }

    async fn gates<'a>(home: &'a Cluster, watched: &'a Watched) -> ClaimGates<'a> {
        watched.complete().await;
        ClaimGates::new(home, watched, Reports::new(Events::new(home.client().clone())))
    }

    async fn after_two_reconciles(api: &FakeApi) -> (Value, Value) {
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        let gates = gates(&home, &watched).await;
        for _ in 0..2 {
            gates.reconcile("shop/db-0").await.unwrap();
        }
        let spec = api.object(POD).unwrap()["spec"].clone();
        let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        (
            spec["schedulingGates"].clone(),
            terms["nodeSelectorTerms"][0]["matchExpressions"].clone(),
        )
    }

    #[tokio::test]
    async fn the_affinity_of_a_pod_follows_its_claims() {
        let theirs = json!([{"name": "theirs"}]);
        let zone = json!({"key": "zone", "operator": "Exists"});
        let home = json!({"key": "liqo.io/type", "operator": "NotIn", "values": ["virtual-node"]});
        for (claims, terms) in [
            (&["ours"][..], json!([zone])),
            (&["ours", "shared"][..], json!([zone])),
            (&["ours", "tied"][..], json!([zone, home])),
            (&["old"][..], json!([zone, home])),
            (&["bound"][..], json!([zone])),
            (&["bound-shared"][..], json!([zone])),
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
            claim(&api, "bound-shared", "nfs", Some("pv-2"));
            api.put(
                "/api/v1/persistentvolumes/pv-2",
                json!({"spec": {"csi": {"driver": "nfs.csi.k8s.io", "volumeHandle": "share"}}}),
            );
            pod(&api, claims);
            assert_eq!(
                after_two_reconciles(&api).await,
                (theirs.clone(), terms),
                "{claims:?}"
            );
        }
    }

    /// Reconciles the pod, which keeps its gate, and returns the note of its event.
    async fn why_it_waits(api: &FakeApi) -> String {
        let (gates, _) = after_two_reconciles(api).await;
        assert_eq!(gates.as_array().unwrap().len(), 2);
        let events = api
            .store()
            .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
        let [event] = &events[..] else {
            panic!("{events:?}")
        };
        event["note"].as_str().unwrap().to_owned()
    }

    /// Such a pod can run nowhere: the scheduler would select a virtual node, where no driver creates the volume.
    #[tokio::test]
    async fn a_remote_only_pod_with_a_home_claim_is_reported() {
        for selector in [
            json!({"liqo.io/type": "virtual-node"}),
            json!({"liqo.io/remote-cluster-id": "milan"}),
            json!({"kubernetes.io/hostname": "virtual-milan"}),
        ] {
            let api = FakeApi::start().await;
            world(&api);
            claim(&api, "tied", "local-path", None);
            api.put(
                "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan",
                json!({"spec": {"fabric": {"nodeName": "virtual-milan"}}}),
            );
            pod(&api, &["tied"]);
            api.change(POD, |pod| pod["spec"]["nodeSelector"] = selector);
            let why = why_it_waits(&api).await;
            assert!(
                why.contains(
                    "the claim shop/tied, of the driver rancher.io/local-path, is in this cluster only"
                ),
                "{why}"
            );
            api.change(POD, |pod| pod["spec"]["nodeSelector"] = Value::Null);
            let (gates, _) = after_two_reconciles(&api).await;
            assert_eq!(gates, json!([{"name": "theirs"}]));
        }
    }

    /// A volume of this driver may name the claim in its claimRef.
    #[tokio::test]
    async fn a_claim_without_class_is_waited_for_until_it_is_bound() {
        let api = FakeApi::start().await;
        claim(&api, "static", "", None);
        pod(&api, &["static"]);
        assert_eq!(
            why_it_waits(&api).await,
            "the claim shop/static has the class \"\" and is not bound"
        );
    }

    #[tokio::test]
    async fn a_claim_that_does_not_exist_is_waited_for() {
        let api = FakeApi::start().await;
        world(&api);
        pod(&api, &["data"]);
        assert_eq!(why_it_waits(&api).await, "the claim shop/data does not exist");
        claim(&api, "data", "liqo", None);
        let (gates, _) = after_two_reconciles(&api).await;
        assert_eq!(gates, json!([{"name": "theirs"}]));
    }

    /// The policy of the chart refuses what a webhook adds to the write of the controller.
    #[tokio::test]
    async fn a_gate_that_cannot_be_removed_is_reported() {
        let api = FakeApi::start().await;
        world(&api);
        claim(&api, "ours", "liqo", None);
        pod(&api, &["ours"]);
        api.fault(Fault::new("PATCH", POD, Act::Forbid("and nothing else")));
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        let gates = gates(&home, &watched).await;
        for _ in 0..2 {
            gates.reconcile("shop/db-0").await.unwrap_err();
        }
        let events = api
            .store()
            .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
        let [event] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(event["reason"], "WriteRefused");
        let note = event["note"].as_str().unwrap();
        assert!(
            note.contains("webhook") && note.contains("and nothing else"),
            "{note}"
        );
        api.heal();
        gates.reconcile("shop/db-0").await.unwrap();
        let spec = api.object(POD).unwrap()["spec"].clone();
        assert_eq!(spec["schedulingGates"], json!([{"name": "theirs"}]));
    }

    /// Each pod waits for another object. When that is created, only this pod is reconciled.
    #[tokio::test]
    async fn a_change_reconciles_only_the_pods_that_wait_for_it() {
        let api = FakeApi::start().await;
        world(&api);
        claim(&api, "no-class", "absent", None);
        claim(&api, "no-volume", "liqo", Some("pv-1"));
        claim(&api, "default", "", None);
        api.change("/api/v1/namespaces/shop/persistentvolumeclaims/default", |it| {
            it["spec"]["storageClassName"] = Value::Null;
        });
        let pods = ["absent", "no-class", "no-volume", "default"];
        for name in pods {
            put_pod(&api, &format!("/api/v1/namespaces/shop/pods/{name}"), &[name]);
        }
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        let gates = gates(&home, &watched).await;
        let mut queue = Queue::default();
        let mut next = gates.changes(&mut queue).await;
        let mut all = queue.take(9);
        all.sort();
        assert_eq!(
            all,
            ["shop/absent", "shop/default", "shop/no-class", "shop/no-volume"]
        );
        for key in all {
            let again = gates.reconcile(&key).await.unwrap();
            assert!(again >= Some(SHORTEST_WAIT), "{key} waits");
            queue.done(&key, None);
        }
        let appear: [(&str, &dyn Fn()); 4] = [
            ("absent", &|| claim(&api, "absent", "liqo", None)),
            ("no-class", &|| {
                let class = json!({"provisioner": DRIVER_NAME});
                api.put("/apis/storage.k8s.io/v1/storageclasses/absent", class);
            }),
            ("no-volume", &|| {
                let handle = "v1:home:pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
                let csi = json!({"driver": DRIVER_NAME, "volumeHandle": handle});
                api.put("/api/v1/persistentvolumes/pv-1", json!({"spec": {"csi": csi}}));
            }),
            ("default", &|| claim(&api, "default", "liqo", None)),
        ];
        for (pod, appears) in appear {
            appears();
            let mut taken = Vec::new();
            while taken.is_empty() {
                let changes = next.triggers.iter_mut().map(|it| Box::pin(it.changed()));
                let seen = time::timeout(Duration::from_mins(1), select_all(changes)).await;
                seen.unwrap_or_else(|_| panic!("the view never showed what {pod} waits for"))
                    .0
                    .unwrap();
                next = gates.changes(&mut queue).await;
                taken = queue.take(9);
            }
            assert_eq!(taken, [format!("shop/{pod}")]);
            assert_eq!(gates.reconcile(&taken[0]).await.unwrap(), None);
            queue.done(&taken[0], None);
            let path = format!("/api/v1/namespaces/shop/pods/{pod}");
            let spec = api.object(&path).unwrap()["spec"].clone();
            assert_eq!(spec["schedulingGates"], json!([{"name": "theirs"}]), "{pod}");
            // The removed gate is a change of the pod, too; no pod is reconciled for it.
            while watched
                .pods
                .get(&format!("shop/{pod}"))
                .unwrap()
                .waits_for_claims_gate
            {
                let changed = time::timeout(Duration::from_mins(1), next.triggers[0].changed()).await;
                changed.expect("the view never showed the removed gate").unwrap();
            }
            next = gates.changes(&mut queue).await;
            assert!(queue.take(9).is_empty());
        }
    }
}
