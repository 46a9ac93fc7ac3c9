//! Events on home Services in a namespace with pods in a cluster without routes. The pods there have no address at home,
//! and those at home have none there: nothing else would show that a Service does not lead to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::select_all;
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::{Resource, ResourceExt};
use serde_json::Value;
use tokio::time::{self, Instant};

use super::{Pods, changes::reference};
use crate::{
    cluster::{
        ApiError,
        view::{Changed, Feed},
    },
    offload::{
        Labels, Unreached, is_in_ranges, is_name,
        pods::{named_addresses, short_namespaces},
        reflection::{Original, slices_of},
    },
    places::Sources,
    raw::RawPod,
    reflect::Source,
    seen::SeenPod,
};

/// How long a Service may lack endpoints without a report, because its pods may be starting.
pub(super) const LACKING_AFTER: Duration = Duration::from_secs(30);
/// The pause before the next check if nothing changes.
const IDLE: Duration = Duration::from_hours(1);
/// The shortest pause between two checks, so that changes are handled together.
const PACE: Duration = Duration::from_secs(1);

/// Namespaces that are looked up for a pod.
const MOST_LOOKED_UP: usize = 8;
/// For how long it is remembered whether a namespace exists: many pods have the same template.
const REMEMBERED: Duration = Duration::from_mins(1);
const MOST_REMEMBERED: usize = 1000;

/// The namespaces that were looked up, and whether they exist.
#[derive(Default)]
pub(super) struct Existing(Mutex<BTreeMap<String, (bool, Instant)>>);

impl Existing {
    fn get(&self, name: &str) -> Option<bool> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (exists, when) = all.get(name)?;
        (when.elapsed() < REMEMBERED).then_some(*exists)
    }

    fn record(&self, name: &str, exists: bool) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST_REMEMBERED {
            all.clear();
        }
        all.insert(name.to_owned(), (exists, Instant::now()));
        exists
    }
}

/// The Services of a namespace, and their changes.
pub(super) struct Watch {
    source: Arc<Source>,
    changes: Feed<Original>,
    /// Whether pods of the namespace run in the cluster.
    is_occupied: bool,
    /// The state from which `lacking` was derived: the versions of Services and slices, and the changes in [`Unreached`].
    found_in: Option<[u64; 3]>,
    /// The Services without endpoints in the cluster, and when that is reported; `None` if it was.
    lacking: BTreeMap<String, Option<Instant>>,
}

pub(super) type Watches = BTreeMap<String, Watch>;

impl Watch {
    /// Finds the Services all of whose ready endpoints are at home, when pods of the namespace run in the cluster.
    fn find_lacking(&mut self, namespace: &str, known: &Unreached, after: Duration) {
        if !self.is_occupied {
            (self.found_in, self.lacking) = (None, BTreeMap::new());
            return;
        }
        let (services, slices) = (self.source.services(), self.source.slices());
        let versions = [services.version(), slices.version()].map(|it| *it.borrow());
        let now = [versions[0], versions[1], known.changes(namespace)];
        if self.found_in.replace(now) == Some(now) {
            return;
        }
        let lacks = |service: &str| {
            let slices = slices.of_topic(&slices_of(service));
            !known.selects_any(namespace, service) && slices.iter().any(|it| it.has_ready())
        };
        let services = services.all();
        let names: BTreeSet<&str> = services
            .iter()
            .map(|it| it.copy.as_str())
            .filter(|it| lacks(it))
            .collect();
        self.lacking.retain(|name, _| names.contains(name.as_str()));
        for name in names {
            let due = || Some(Instant::now() + after);
            self.lacking.entry(name.to_owned()).or_insert_with(due);
        }
    }
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
        let (mut watches, mut known) = (Watches::new(), Unreached::default());
        while self.is_isolated() {
            let clusters = self.places.home.views().remote_clusters.version();
            let mut triggers = vec![self.home.version(), clusters];
            follow(&mut watches, &sources.borrow_and_update());
            known.keep_namespaces(|namespace| watches.contains_key(namespace));
            triggers.extend(watches.values().map(|it| it.source.services().version()));
            for (namespace, service) in self.newly_unreached(&pods, &mut watches, &mut known) {
                self.report_unreached(&namespace, &service).await;
            }
            let occupied = watches.values().filter(|it| it.is_occupied);
            triggers.extend(occupied.map(|it| it.source.slices().version()));
            let due = self.report_lacking(&mut watches, &known).await;
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
    pub(super) fn newly_unreached(
        &self,
        pods: &Feed<SeenPod>,
        watches: &mut Watches,
        known: &mut Unreached,
    ) -> Vec<(String, String)> {
        let mut unreached = Vec::new();
        let pods = match pods.take() {
            Changed::These(pods) => Some(pods),
            Changed::Everything => None,
        };
        let touched: BTreeSet<&str> = pods.iter().flatten().map(|pod| pod.namespace()).collect();
        for (namespace, watch) in watches {
            let services = watch.source.services();
            let (names, is_new): (Vec<String>, _) =
                if let (Changed::These(these), Some(_)) = (watch.changes.take(), &pods) {
                    (these.iter().map(|it| it.copy.clone()).collect(), false)
                } else {
                    let mut names = known.services(namespace);
                    names.extend(services.all().iter().map(|it| it.copy.clone()));
                    (names, true)
                };
            if names.is_empty() && !is_new && !touched.contains(namespace.as_str()) {
                continue;
            }
            let here = self.running_in(namespace);
            watch.is_occupied = !here.is_empty();
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
    pub(super) async fn report_lacking(&self, watches: &mut Watches, known: &Unreached) -> Option<Instant> {
        for (namespace, watch) in watches.iter_mut() {
            watch.find_lacking(namespace, known, self.lacking_after);
            for (service, due) in &mut watch.lacking {
                if due.is_some_and(|due| due <= Instant::now()) && watch.source.may_emit().is_ok() {
                    *due = None;
                    self.report_service(namespace, service, "EndpointsNotReachable", |it| self.lack(it))
                        .await;
                }
            }
        }
        let all = watches.values().flat_map(|it| it.lacking.values());
        all.flatten().min().copied()
    }

    /// What a Service lacks, and the ways out.
    fn lack(&self, service: &Service) -> String {
        let cluster = &self.cluster;
        let selector = service.spec.as_ref().and_then(|it| it.selector.as_ref());
        let (why, ways_out) = if selector.is_none_or(BTreeMap::is_empty) {
            (
                "it has no selector, and the endpoints that were written for it here are not copied there, as there are no \
                 routes",
                "If that cluster reaches their addresses, create EndpointSlices with them in the namespace there, and set \
                 liqo.io/skip-reflection on those here (on the Endpoints, if they were written as such)",
            )
        } else {
            (
                "all its ready endpoints are in this cluster, to which there are no routes",
                "Run its pods in that cluster, too",
            )
        };
        format!(
            "pods of its namespace run in the cluster {cluster}, where it has no endpoints: {why} (spec.fabric.network of \
             RemoteCluster {cluster} is Isolated). {ways_out}, or set liqo.io/skip-reflection on it if no pod there uses it, \
             or see docs/offloading-reference.md#networks"
        )
    }

    /// The namespaces of this cluster that short names in the pod may mean, except those that have their own name in
    /// remote clusters.
    pub(super) async fn existing(&self, home: &RawPod, pod: &Value) -> BTreeSet<String> {
        self.existing_of(home, short_namespaces(pod)).await
    }

    /// Which of these namespaces exist in this cluster and have another name, or none, in remote clusters.
    pub(super) async fn existing_of(&self, home: &RawPod, named: BTreeSet<&str>) -> BTreeSet<String> {
        let named = named.into_iter();
        let named = named.filter(|it| is_name(it) && !self.keeps_its_name(it));
        let mut existing = BTreeSet::new();
        for name in named.take(MOST_LOOKED_UP) {
            let exists = match self.existing.get(name) {
                Some(exists) => exists,
                None => match self.places.home.all::<Namespace>().get(name).await {
                    Ok(found) => self.existing.record(name, found.is_some()),
                    Err(error) => {
                        tracing::warn!(pod = home.key(), namespace = name, %error, "failed to find a namespace that a pod may name");
                        false
                    }
                },
            };
            if exists {
                existing.insert(name.to_owned());
            }
        }
        existing
    }

    /// Emits an event on a pod that has addresses of Services of this cluster: each cluster has its own.
    pub(super) async fn report_addresses(&self, home: &RawPod, pod: &Value) {
        let places = named_addresses(pod);
        if places.is_empty() {
            return;
        }
        let addresses = places.iter().flat_map(|(_, found)| found).copied().collect();
        let of_services = match self.of_services(home, &addresses).await {
            Ok(of_services) => of_services,
            Err(error) => {
                tracing::warn!(pod = home.key(), %error, "failed to find the Services whose addresses a pod may have");
                return;
            }
        };
        let (mut named, mut fields) = (BTreeSet::new(), BTreeSet::new());
        for (place, found) in places {
            for service in found.iter().filter_map(|it| of_services.get(it)) {
                named.insert(service.clone());
                fields.insert(place.clone());
            }
        }
        if named.is_empty() {
            return;
        }
        let list = |all: BTreeSet<String>| all.into_iter().collect::<Vec<_>>().join(", ");
        let note = format!(
            "{} has the address of these Services in this cluster: {}. In the cluster {} no Service has it, or another one: use \
             the names of the Services, or keep the pod on nodes of this cluster",
            list(fields),
            list(named),
            self.cluster
        );
        self.events
            .warn_object(reference(home), "HomeNamespaceName", &note)
            .await;
    }

    /// Which of the addresses belong to Services of this cluster, with the name of the Service if it is in the
    /// pod's namespace.
    pub(super) async fn of_services(
        &self,
        home: &RawPod,
        addresses: &BTreeSet<IpAddr>,
    ) -> Result<BTreeMap<IpAddr, String>, ApiError> {
        let ranges = self.places.home.service_ranges().await;
        let known = addresses.iter().filter(|ip| is_in_ranges(**ip, &ranges));
        let mut all: BTreeMap<IpAddr, String> = known.map(|ip| (*ip, ip.to_string())).collect();
        if all.is_empty() && !ranges.is_empty() {
            return Ok(all);
        }
        let namespace = home.namespace().unwrap_or_default();
        let services = self.places.home.service_addresses(&namespace).await;
        let named = services.as_ref().as_ref().map_err(Clone::clone)?;
        let named = named.iter().filter(|(ip, _)| addresses.contains(ip));
        all.extend(named.map(|(ip, name)| (*ip, name.clone())));
        Ok(all)
    }

    async fn report_unreached(&self, namespace: &str, name: &str) {
        let cluster = &self.cluster;
        let note = format!(
            "pods that it selects run in the cluster {cluster}, to which there are no routes (spec.fabric.network of \
             RemoteCluster {cluster} is Isolated): they have no address here, are no endpoints of this Service, and nothing \
             in this cluster reaches them by it. Run their clients in that cluster, or see \
             docs/offloading-reference.md#networks"
        );
        self.report_service(namespace, name, "PodsNotReachable", |_| note.clone())
            .await;
    }

    async fn report_service(
        &self,
        namespace: &str,
        name: &str,
        reason: &str,
        note: impl Fn(&Service) -> String,
    ) {
        let service = match self.places.home.within::<Service>(namespace).get(name).await {
            Ok(Some(service)) => service,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(namespace, service = name, %error, "failed to read a Service whose pods are not reachable");
                return;
            }
        };
        self.events
            .warn_object(service.object_ref(&()), reason, &note(&service))
            .await;
    }
}

/// Watches the Services of exactly these namespaces.
pub(super) fn follow(watches: &mut Watches, sources: &Sources) {
    watches.retain(|namespace, watch| {
        let now = sources.get(namespace);
        now.is_some_and(|now| Arc::ptr_eq(now, &watch.source))
    });
    for (namespace, source) in sources {
        let watch = || Watch {
            source: Arc::clone(source),
            changes: source.services().feed(),
            is_occupied: false,
            found_in: None,
            lacking: BTreeMap::new(),
        };
        watches.entry(namespace.clone()).or_insert_with(watch);
    }
}
