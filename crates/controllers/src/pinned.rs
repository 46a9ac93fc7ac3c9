//! Pods with `spec.nodeName` bypass the scheduler, so that no node is selected for their claims, which
//! would stay Pending forever. This loop selects it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use super::watched::{Claim, Watched};
use crate::{
    cluster::{
        ApiError, Cluster,
        events::{Events, Weight},
        slim::{PendingPod, SELECTED_NODE},
    },
    observe::crash::{self, Step},
    rounds::Rounds,
    volume::DRIVER_NAME,
};

/// The pause before a node is selected again after the volume could not be provisioned for it.
/// It doubles with every attempt.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// The loop for pods that bypass the scheduler.
pub(super) struct Pinned<'a> {
    home: &'a Cluster,
    watched: &'a Watched,
    events: &'a Events,
    /// When the node of a claim was last selected, and for how long not to do it again.
    selected_at: HashMap<String, (Instant, Duration)>,
}

impl<'a> Pinned<'a> {
    pub(super) fn new(home: &'a Cluster, watched: &'a Watched, events: &'a Events) -> Self {
        Self {
            home,
            watched,
            events,
            selected_at: HashMap::new(),
        }
    }

    /// Claims of this driver's classes without a selected node, each with a pod that has a node.
    fn waiting(&self) -> Vec<(Arc<Claim>, Arc<PendingPod>)> {
        let mut waiting = Vec::new();
        for pod in self.watched.pods.all() {
            for claim in pod.claims.iter().filter(|_| pod.node.is_some()) {
                let claim = self.watched.claims.get(claim);
                if let Some(claim) = claim.filter(|claim| self.is_ours(claim)) {
                    waiting.push((claim, Arc::clone(&pod)));
                }
            }
        }
        waiting
    }

    fn is_ours(&self, claim: &Claim) -> bool {
        let class = claim
            .class
            .as_ref()
            .and_then(|name| self.home.views().classes.get(name));
        claim.pending
            && !claim.has_node
            && !claim.deleting
            && class.is_some_and(|class| class.provisioner == DRIVER_NAME)
    }

    fn is_due(&self, uid: &str) -> bool {
        self.selected_at
            .get(uid)
            .is_none_or(|(since, pause)| since.elapsed() >= *pause)
    }

    async fn select_node(&mut self, claim: &Claim, pod: &PendingPod) -> Result<(), ApiError> {
        let claims = self.home.within::<PersistentVolumeClaim>(&claim.name.namespace);
        let Some(found) = claims.get(&claim.name.name).await? else {
            return Ok(());
        };
        let still_waits = found.uid().as_deref() == Some(&claim.uid)
            && found.spec.as_ref().is_some_and(|spec| spec.volume_name.is_none())
            && found.metadata.deletion_timestamp.is_none()
            && !found.annotations().contains_key(SELECTED_NODE);
        if !still_waits || !self.is_waiting(pod).await? {
            return Ok(());
        }
        let patch = json!({"metadata": {
            "resourceVersion": found.resource_version(),
            "annotations": {SELECTED_NODE: pod.node},
        }});
        let selected = crash::around(Step::SelectNode, claims.merge(&claim.name.name, &patch)).await;
        match selected {
            // Another client has changed the claim.
            Err(error) if error.is_conflict() => return Ok(()),
            other => other?,
        };
        let pause = self
            .selected_at
            .get(&claim.uid)
            .map_or(FIRST_PAUSE, |(_, pause)| (*pause * 2).min(LONGEST_PAUSE));
        self.selected_at
            .insert(claim.uid.clone(), (Instant::now(), pause));
        let note = format!(
            "the pod {} bypasses the scheduler: its node {} was selected",
            pod.consumer.name,
            pod.node.as_deref().unwrap_or_default()
        );
        self.events
            .publish_on_claim(&claim.mark(), Weight::Normal, "NodeSelected", &note)
            .await;
        Ok(())
    }

    /// Whether the pod still exists, on the same node.
    async fn is_waiting(&self, pod: &PendingPod) -> Result<bool, ApiError> {
        let found = self
            .home
            .within::<Pod>(&pod.consumer.namespace)
            .get(&pod.consumer.name)
            .await?;
        Ok(found.is_some_and(|found| {
            found.metadata.deletion_timestamp.is_none()
                && found.spec.is_some_and(|spec| spec.node_name == pod.node)
        }))
    }
}

impl Rounds for Pinned<'_> {
    const NAME: &'static str = "pinned";
    /// The end of a pause triggers no event.
    const RESYNC: Duration = Duration::from_secs(5);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        vec![
            self.watched.pods.changes_of(|pod| pod.node.is_some()),
            self.watched.claims.version(),
            self.home.views().classes.version(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        self.selected_at
            .retain(|_, (since, pause)| since.elapsed() < *pause * 3);
        let mut outcome = Ok(());
        for (claim, pod) in self.waiting() {
            if self.is_due(&claim.uid) {
                outcome = outcome.and(self.select_node(&claim, &pod).await);
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cluster::testing::FakeApi;

    const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";

    fn world(api: &FakeApi) {
        for (name, provisioner) in [("liqo", DRIVER_NAME), ("other", "real.example")] {
            let path = format!("/apis/storage.k8s.io/v1/storageclasses/{name}");
            api.put(&path, json!({"provisioner": provisioner}));
        }
        put_claim(api, "data", "liqo", &json!({}));
        put_pod(
            api,
            "n1",
            &json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]),
        );
    }

    fn put_claim(api: &FakeApi, name: &str, class: &str, annotations: &Value) {
        let path = format!("/api/v1/namespaces/shop/persistentvolumeclaims/{name}");
        api.put(
            &path,
            json!({
                "metadata": {"annotations": annotations},
                "spec": {"storageClassName": class},
                "status": {"phase": "Pending"},
            }),
        );
    }

    fn put_pod(api: &FakeApi, node: &str, volumes: &Value) {
        api.put(
            "/api/v1/namespaces/shop/pods/pod",
            json!({
                "spec": {"nodeName": node, "containers": [], "volumes": volumes},
                "status": {"phase": "Pending"},
            }),
        );
    }

    fn selected(api: &FakeApi, claim: &str) -> Value {
        let path = format!("/api/v1/namespaces/shop/persistentvolumeclaims/{claim}");
        api.object(&path).unwrap()["metadata"]["annotations"][SELECTED_NODE].clone()
    }

    async fn round(api: &FakeApi) {
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        let events = Events::new(home.client().clone());
        Pinned::new(&home, &watched, &events).round().await.unwrap();
    }

    #[tokio::test]
    async fn a_pinned_pods_claim_gets_its_node() {
        let api = FakeApi::start().await;
        world(&api);
        round(&api).await;
        assert_eq!(selected(&api, "data"), "n1");
        let events = api
            .store()
            .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
        assert_eq!(events[0]["reason"], "NodeSelected");
    }

    #[tokio::test]
    async fn the_claim_of_a_generic_ephemeral_volume_gets_its_node() {
        let api = FakeApi::start().await;
        world(&api);
        put_claim(&api, "pod-scratch", "liqo", &json!({}));
        put_pod(&api, "n2", &json!([{"name": "scratch", "ephemeral": {}}]));
        round(&api).await;
        assert_eq!(selected(&api, "pod-scratch"), "n2");
        assert!(selected(&api, "data").is_null());
    }

    #[tokio::test]
    async fn other_claims_get_no_node() {
        let api = FakeApi::start().await;
        world(&api);
        put_claim(&api, "data", "other", &json!({}));
        round(&api).await;
        assert!(selected(&api, "data").is_null(), "not our class");

        put_claim(&api, "data", "liqo", &json!({SELECTED_NODE: "n9"}));
        round(&api).await;
        assert_eq!(selected(&api, "data"), "n9", "it has a node");

        put_claim(&api, "data", "liqo", &json!({}));
        put_pod(
            &api,
            "",
            &json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]),
        );
        round(&api).await;
        assert!(selected(&api, "data").is_null(), "the scheduler will choose");

        world(&api);
        api.change(CLAIM, |claim| claim["spec"]["volumeName"] = "pv".into());
        round(&api).await;
        assert!(selected(&api, "data").is_null(), "it is being bound");
    }

    #[tokio::test]
    async fn a_removed_node_is_not_selected_again_at_once() {
        let api = FakeApi::start().await;
        world(&api);
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        let events = Events::new(home.client().clone());
        let mut pinned = Pinned::new(&home, &watched, &events);
        pinned.round().await.unwrap();
        let seen = |has_node| {
            let mut version = watched.claims.version();
            let claims = watched.claims.clone();
            async move {
                let known = |_: &u64| {
                    claims
                        .get("shop/data")
                        .is_some_and(|claim| claim.has_node == has_node)
                };
                version.wait_for(known).await.unwrap();
            }
        };
        seen(true).await;
        put_claim(&api, "data", "liqo", &json!({}));
        seen(false).await;
        pinned.round().await.unwrap();
        assert!(selected(&api, "data").is_null());
        for (since, _) in pinned.selected_at.values_mut() {
            *since -= FIRST_PAUSE;
        }
        pinned.round().await.unwrap();
        assert_eq!(selected(&api, "data"), "n1");
        assert_eq!(pinned.selected_at.values().next().unwrap().1, FIRST_PAUSE * 2);
    }
}
