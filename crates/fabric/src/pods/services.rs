//! Events on home Services in a namespace with pods in a cluster without routes. The pods there have no address at home,
//! and those at home have none there: nothing else would show that a Service does not lead to them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::select_all;
use k8s_openapi::api::core::v1::Service;
use kube::Resource;
use tokio::time::{self, Instant};

use super::Pods;
use crate::{
    cluster::view::{Changed, Feed},
    offload::{
        Labels, Unreached,
        reflection::{Original, slices_of},
    },
    places::Sources,
    reflect::Source,
    seen::SeenPod,
};

/// While pods of a namespace start, a Service may lack endpoints for a moment.
pub(super) const LACKING_AFTER: Duration = Duration::from_secs(30);
/// Before the next check if there is nothing to wait for.
const IDLE: Duration = Duration::from_hours(1);
/// Between two checks, so that changes are handled together.
const PACE: Duration = Duration::from_secs(1);

/// The Services without endpoints in the cluster, and when that is reported; `None` if it was.
type Lacking = BTreeMap<(String, String), Option<Instant>>;

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
        let mut lacking = Lacking::new();
        while self.is_isolated() {
            let clusters = self.places.home.views().remote_clusters.version();
            let mut triggers = vec![self.home.version(), clusters];
            follow(&mut watches, &sources.borrow_and_update());
            known.keep_namespaces(|namespace| watches.contains_key(namespace));
            triggers.extend(watches.values().map(|it| it.source.services().version()));
            for (namespace, service) in self.newly_unreached(&pods, &watches, &mut known) {
                self.report_unreached(&namespace, &service).await;
            }
            let occupied = watches
                .iter()
                .filter(|(namespace, _)| !self.running_in(namespace).is_empty());
            let occupied: Vec<_> = occupied
                .map(|(namespace, watch)| (namespace.as_str(), &*watch.source))
                .collect();
            triggers.extend(occupied.iter().map(|(_, source)| source.slices().version()));
            let due = self.report_lacking(&occupied, &known, &mut lacking).await;
            let changes = triggers.iter_mut().map(|trigger| Box::pin(trigger.changed()));
            tokio::select! {
                _changed = select_all(changes) => {}
                _changed = sources.changed() => {}
                () = time::sleep_until(due.unwrap_or_else(|| Instant::now() + IDLE)) => {}
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

    /// Emits an event on each Service all of whose ready endpoints are at home, when pods of its namespace run in the
    /// cluster. Returns when the next one is due.
    async fn report_lacking(
        &self,
        occupied: &[(&str, &Source)],
        known: &Unreached,
        lacking: &mut Lacking,
    ) -> Option<Instant> {
        let mut now = BTreeMap::new();
        for &(namespace, source) in occupied {
            for service in source.services().all() {
                let slices = source.slices().of_topic(&slices_of(&service.copy));
                if !known.selects_any(namespace, &service.copy) && slices.iter().any(|it| it.has_ready()) {
                    now.insert((namespace.to_owned(), service.copy.clone()), source);
                }
            }
        }
        lacking.retain(|service, _| now.contains_key(service));
        for (service, source) in now {
            let due = lacking
                .entry(service.clone())
                .or_insert_with(|| Some(Instant::now() + self.lacking_after));
            if due.is_some_and(|due| due <= Instant::now()) && source.may_emit().is_ok() {
                *due = None;
                self.report_lack(&service.0, &service.1).await;
            }
        }
        lacking.values().flatten().min().copied()
    }

    async fn report_lack(&self, namespace: &str, name: &str) {
        let cluster = &self.cluster;
        let note = format!(
            "pods of its namespace run in the cluster {cluster}, where it has no endpoints: those that are ready are endpoints \
             of this cluster alone, from which there are no routes (spec.fabric.network of RemoteCluster {cluster} is Isolated). \
             Run its pods in that cluster, too, or set liqo.io/skip-reflection on it if no pod there uses it, or see \
             docs/offloading-reference.md#networks"
        );
        self.report_service(namespace, name, "EndpointsNotReachable", &note)
            .await;
    }

    async fn report_unreached(&self, namespace: &str, name: &str) {
        let cluster = &self.cluster;
        let note = format!(
            "pods that it selects run in the cluster {cluster}, to which there are no routes (spec.fabric.network of \
             RemoteCluster {cluster} is Isolated): they have no address here, are no endpoints of this Service, and nothing \
             in this cluster reaches them by it. Run their clients in that cluster, or see \
             docs/offloading-reference.md#networks"
        );
        self.report_service(namespace, name, "PodsNotReachable", &note)
            .await;
    }

    async fn report_service(&self, namespace: &str, name: &str, reason: &str, note: &str) {
        let service = match self.places.home.within::<Service>(namespace).get(name).await {
            Ok(Some(service)) => service,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(namespace, service = name, %error, "failed to read a Service whose pods are not reachable");
                return;
            }
        };
        self.events
            .warn_object(service.object_ref(&()), reason, note)
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
