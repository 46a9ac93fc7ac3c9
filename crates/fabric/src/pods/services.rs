//! Events on home Services that select pods in a cluster without routes: such pods have no address, and nothing else
//! would show that they are no endpoints.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::select_all;
use k8s_openapi::api::core::v1::Service;
use kube::Resource;
use tokio::time;

use super::Pods;
use crate::{
    cluster::view::{Changed, Feed},
    offload::{Labels, Unreached, reflection::Original},
    places::Sources,
    reflect::Source,
    seen::SeenPod,
};

const REASON: &str = "PodsNotReachable";
/// Between two checks, so that changes are handled together.
const PACE: Duration = Duration::from_secs(1);

/// The Services of a namespace, and their changes.
struct Watch {
    source: Arc<Source>,
    changes: Feed<Original>,
}

impl Pods<'_> {
    /// Emits an event on each Service when it starts to select a pod of the cluster without routes to it.
    pub(super) async fn watch_services(&self) {
        loop {
            // Subscribed before the first check, so that no change is missed.
            let mut clusters = self.places.home.views().remote_clusters.version();
            if self.is_isolated() {
                self.watch_services_while_isolated().await;
            } else {
                let _never_fails = clusters.changed().await;
            }
        }
    }

    /// Whether there are no routes to the cluster.
    fn is_isolated(&self) -> bool {
        self.remote_cluster().is_some() && self.network().is_none()
    }

    async fn watch_services_while_isolated(&self) {
        let mut sources = self.places.sources();
        let pods = self.home.feed();
        let (mut watches, mut known) = (BTreeMap::new(), Unreached::default());
        while self.is_isolated() {
            let clusters = self.places.home.views().remote_clusters.version();
            let mut triggers = vec![self.home.version(), clusters];
            follow(&mut watches, &sources.borrow_and_update());
            known.keep_namespaces(|namespace| watches.contains_key(namespace));
            triggers.extend(watches.values().map(|it| it.source.services().version()));
            for (namespace, service) in self.newly_unreached(&pods, &watches, &mut known) {
                self.report_service(&namespace, &service).await;
            }
            let changes = triggers.iter_mut().map(|trigger| Box::pin(trigger.changed()));
            tokio::select! {
                _changed = select_all(changes) => {}
                _changed = sources.changed() => {}
            }
            time::sleep(PACE).await;
        }
    }

    /// The Services that have started to select unreachable pods, by namespace and name.
    fn newly_unreached(
        &self,
        pods: &Feed<SeenPod>,
        watches: &BTreeMap<String, Watch>,
        known: &mut Unreached,
    ) -> Vec<(String, String)> {
        let mut unreached = Vec::new();
        let pods = match pods.take() {
            Changed::These(pods) => Some(pods),
            Changed::Everything => None,
        };
        for (namespace, Watch { source, changes }) in watches {
            let services = source.services();
            let names: Vec<String> = if let (Changed::These(these), Some(_)) = (changes.take(), &pods) {
                these.iter().map(|it| it.copy.clone()).collect()
            } else {
                let mut names = known.services(namespace);
                names.extend(services.all().iter().map(|it| it.copy.clone()));
                names
            };
            if names.is_empty() {
                continue;
            }
            let here = self.running_in(namespace);
            for name in names {
                let service = services.get(&format!("{namespace}/{name}"));
                let selector = service.as_ref().map(|it| &it.selector);
                let here = here.iter().map(|pod| (pod.name().to_owned(), &pod.labels));
                if known.note_service(namespace, &name, selector, here) {
                    unreached.push((namespace.clone(), name));
                }
            }
        }
        for pod in pods.into_iter().flatten() {
            let now = self.home.get(pod.key());
            let labels: Option<&Labels> = now.as_ref().filter(|it| it.runs).map(|it| &it.labels);
            let services = known.note_pod(pod.namespace(), pod.name(), labels);
            unreached.extend(
                services
                    .into_iter()
                    .map(|service| (pod.namespace().to_owned(), service)),
            );
        }
        unreached
    }

    /// The home pods of a namespace that run in the cluster.
    pub(super) fn running_in(&self, namespace: &str) -> Vec<Arc<SeenPod>> {
        let mut pods = self.home.of_topic(namespace);
        pods.retain(|pod| pod.runs);
        pods
    }

    async fn report_service(&self, namespace: &str, name: &str) {
        let service = match self.places.home.within::<Service>(namespace).get(name).await {
            Ok(Some(service)) => service,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(namespace, service = name, %error, "failed to read a Service whose pods are not reachable");
                return;
            }
        };
        let cluster = &self.cluster;
        let note = format!(
            "pods that it selects run in the cluster {cluster}, to which there are no routes (spec.fabric.network of \
             RemoteCluster {cluster} is Isolated): they have no address here, are no endpoints of this Service, and nothing \
             in this cluster reaches them by it. Run their clients in that cluster, or see \
             docs/offloading-reference.md#networks"
        );
        self.events
            .warn_object(service.object_ref(&()), REASON, &note)
            .await;
    }
}

/// Watches the Services of exactly these namespaces.
fn follow(watches: &mut BTreeMap<String, Watch>, sources: &Sources) {
    watches.retain(|namespace, watch| {
        let now = sources.get(namespace);
        now.is_some_and(|now| Arc::ptr_eq(now, &watch.source))
    });
    for (namespace, source) in sources {
        let watch = || Watch {
            source: Arc::clone(source),
            changes: source.services().feed(),
        };
        watches.entry(namespace.clone()).or_insert_with(watch);
    }
}
