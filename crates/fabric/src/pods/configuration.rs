//! The `ConfigMap`s and Secrets of a pod. Its remote pod is created when their copies are as new as
//! the pod: within one cluster, a pod never starts with an older `ConfigMap` than the one that
//! existed when the pod was created, nor without an optional one that existed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use serde_json::Value;

use super::{Pods, changes::reference};
use crate::{
    cluster::ApiError,
    offload::{
        pods::{Destination, Waiting, configuration, creates_secrets},
        reflection::{Kind, Original, name_of_copy, why_not_copied},
    },
    places::Place,
    raw::RawPod,
    reflect::{Copied, Copies, NoCopy},
};

/// The longest wait for a copy: some copies are never written.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The reason of a pod that requires an object that neither cluster has.
const MISSING: &str = "ConfigurationMissing";
/// The reason for a pod, and for an object at home, if the cluster refuses the copy of an object.
pub(super) const REFLECTION_REFUSED: &str = "ReflectionRefused";

/// Whether an object exists at home, and is copied.
enum Here {
    Absent,
    Copied,
    /// It exists and is not copied, for this reason.
    NotCopied(String),
}

impl Pods<'_> {
    /// The time until the next check, if the remote pod has to wait for copies.
    pub(super) fn wait_for_copies(&self, home: &RawPod) -> Option<Duration> {
        let (key, named) = (home.key(), configuration(&home.json()));
        if self.copies(home).is_some_and(|it| it.are_current(&named)) {
            self.copying.forget(&key);
            return None;
        }
        let waited = self.copying.record(&key, home.uid());
        if waited >= self.longest_copying {
            tracing::info!(
                pod = key,
                cluster = %self.cluster,
                "creating a remote pod although copies of the objects it uses are missing or outdated"
            );
            return None;
        }
        Some(FIRST_PAUSE.max(waited / 2))
    }

    /// Why the pod waits for an object that it requires and that is not in its cluster, unless it is about to be copied.
    pub(super) async fn missing(
        &self,
        home: &RawPod,
        place: &Place,
        namespace: &str,
    ) -> Result<Option<Waiting>, ApiError> {
        let copies = self.copies(home);
        for (kind, name) in required(home) {
            if copies.as_ref().is_some_and(|it| it.includes(kind, &name)) {
                continue;
            }
            let own = home.namespace().unwrap_or_default();
            let waiting = match kind {
                Kind::ConfigMap => {
                    self.missing_there::<ConfigMap>(&own, &name, place, namespace)
                        .await?
                }
                Kind::Secret => {
                    self.missing_there::<Secret>(&own, &name, place, namespace)
                        .await?
                }
                Kind::Service | Kind::EndpointSlice => None,
            };
            // A volume that creates the Secret is mounted only once the pod is there.
            let is_created_there = |waiting: &Waiting| {
                kind == Kind::Secret && waiting.reason == MISSING && creates_secrets(&home.json())
            };
            let waiting = waiting.filter(|it| !is_created_there(it));
            if waiting.is_some() {
                return Ok(waiting);
            }
        }
        Ok(None)
    }

    /// Reads live an object that is missing in the remote cluster: it is never copied, or does not
    /// exist at home either. A kubelet would wait for it, too. The pod waits at home, because the
    /// object may turn out to be one that is never copied.
    async fn missing_there<K: Copied>(
        &self,
        own: &str,
        name: &str,
        place: &Place,
        namespace: &str,
    ) -> Result<Option<Waiting>, ApiError> {
        let (kind, cluster) = (K::KIND, &self.cluster);
        let waiting = match self.here::<K>(own, name).await? {
            Here::Copied => return Ok(None),
            Here::NotCopied(why) => Waiting {
                reason: "PodNotSupported",
                message: format!(
                    "it requires the {kind:?} {name}, which the cluster {cluster} does not have, and which is not copied: {why}. \
                     Create one in the namespace {namespace} there, or keep the pod on nodes of this cluster"
                ),
            },
            Here::Absent => Waiting {
                reason: MISSING,
                message: format!(
                    "it requires the {kind:?} {name}, which neither this cluster nor the cluster {cluster} has: create it in the \
                     namespace {own}"
                ),
            },
        };
        let is_there = self.is_there::<K>(name, place, namespace).await?;
        Ok((!is_there).then_some(waiting))
    }

    /// Reads live whether an object at home is copied.
    async fn here<K: Copied>(&self, own: &str, name: &str) -> Result<Here, ApiError> {
        let Some(here) = self.places.home.within::<K>(own).get(name).await? else {
            return Ok(Here::Absent);
        };
        let here = serde_json::to_value(here).unwrap_or_default();
        let why = why_not_copied(K::KIND, &here, self.places.home.id().as_str()).map(|why| why.to_string());
        let too_many = || {
            let most = self.places.copies(own, &self.cluster)?.limit(K::KIND)?;
            Some(format!("the namespace has more than {most} {:?}s", K::KIND))
        };
        Ok(why.or_else(too_many).map_or(Here::Copied, Here::NotCopied))
    }

    async fn is_there<K: Copied>(
        &self,
        name: &str,
        place: &Place,
        namespace: &str,
    ) -> Result<bool, ApiError> {
        let copy = name_of_copy(K::KIND, name, self.places.home.id().as_str());
        let found = place.cluster.within::<K>(namespace).get(&copy).await?;
        Ok(found.is_some())
    }

    /// The optional objects that are never copied and that the remote cluster does not have, with the reasons.
    /// `imagePullSecrets` do not count: nodes there may pull the images without them.
    async fn left_out(&self, home: &RawPod, place: &Place, namespace: &str) -> Result<Vec<String>, ApiError> {
        let (copies, own) = (self.copies(home), home.namespace().unwrap_or_default());
        let mut pod = home.json();
        pod["spec"]["imagePullSecrets"] = Value::Null;
        let mut left_out = Vec::new();
        for ((kind, name), is_required) in configuration(&pod) {
            if is_required || copies.as_ref().is_some_and(|it| it.includes(kind, &name)) {
                continue;
            }
            let why = match kind {
                Kind::ConfigMap => {
                    self.why_left_out::<ConfigMap>(&own, &name, place, namespace)
                        .await?
                }
                Kind::Secret => self.why_left_out::<Secret>(&own, &name, place, namespace).await?,
                Kind::Service | Kind::EndpointSlice => None,
            };
            left_out.extend(why.map(|why| format!("{kind:?} {name} ({why})")));
        }
        Ok(left_out)
    }

    async fn why_left_out<K: Copied>(
        &self,
        own: &str,
        name: &str,
        place: &Place,
        namespace: &str,
    ) -> Result<Option<String>, ApiError> {
        let Here::NotCopied(why) = self.here::<K>(own, name).await? else {
            return Ok(None);
        };
        let is_there = self.is_there::<K>(name, place, namespace).await?;
        Ok((!is_there).then_some(why))
    }

    /// Why the cluster refuses the copy of an object that the pod requires, if it does.
    pub(super) fn refused_copy(&self, home: &RawPod) -> Option<String> {
        let copies = self.copies(home)?;
        required(home).find_map(|(kind, name)| match copies.no_copy(kind, &name)? {
            NoCopy::Refused(why) => Some(format!(
                "the cluster {} refuses a copy of the {kind:?} {name}, which it requires: {why}",
                self.cluster
            )),
            NoCopy::Taken => None,
        })
    }

    /// Emits an event about optional objects without which the pod runs there, although they exist here.
    pub(super) async fn report_left_out(
        &self,
        home: &RawPod,
        place: &Place,
        namespace: &str,
    ) -> Result<(), ApiError> {
        let left_out = self.left_out(home, place, namespace).await?;
        if !left_out.is_empty() {
            let note = format!(
                "the pod runs without these optional objects in the cluster {}, which does not have them, and to which they are \
                 not copied: {}. Create them in the namespace {namespace} there, or keep the pod on nodes of this cluster",
                self.cluster,
                left_out.join(", ")
            );
            self.events.warn_object(reference(home), "NotCopied", &note).await;
        }
        Ok(())
    }

    /// Emits events about objects of which the pod has another version in the remote cluster than
    /// at home, or none, and about those that name Services of home.
    pub(super) async fn report_configuration(&self, home: &RawPod, destination: &Destination<'_>) {
        let Some(copies) = self.copies(home) else {
            return;
        };
        let (mut taken, mut refused, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for ((kind, name), _) in configuration(&home.json()) {
            match copies.no_copy(kind, &name) {
                Some(NoCopy::Taken) => taken.push(format!("{kind:?} {name}")),
                Some(NoCopy::Refused(why)) => refused.push(format!("{kind:?} {name} ({why})")),
                None => {
                    let original = copies.original_of(kind, &name);
                    others.extend(original.map(|it| (format!("{kind:?} {name}"), it)));
                }
            }
        }
        let naming = self.naming_services(home, &others, destination).await;
        let cluster = &self.cluster;
        let naming = (!naming.is_empty()).then(|| {
            let note = format!(
                "these objects name Services by an address, or by a namespace that has another name in the cluster {cluster} or is \
                 not offloaded: {}. Such a name leads to nothing or to others there: use the name of the Service alone, or the \
                 namespaceMappingStrategy EnforceSameName, or keep the pod on nodes of this cluster",
                naming.join(", ")
            );
            ("HomeNamespaceName", note)
        });
        let taken = (!taken.is_empty()).then(|| {
            let note = format!(
                "the pod has these objects of the namespace {} in the cluster {cluster}, which this driver did not \
                 create, and not those of its own namespace: {}. If that is intended, set liqo.io/skip-reflection on the ones here; \
                 otherwise delete the ones there and then the pod",
                destination.namespace,
                taken.join(", ")
            );
            ("RemoteNameTaken", note)
        });
        let refused = (!refused.is_empty()).then(|| {
            let note = format!(
                "the pod runs in the cluster {cluster} without these optional objects or with older ones, because the cluster \
                 refuses the copies: {}",
                refused.join(", ")
            );
            (REFLECTION_REFUSED, note)
        });
        for (reason, note) in taken.into_iter().chain(refused).chain(naming) {
            self.events.warn_object(reference(home), reason, &note).await;
        }
    }

    /// Which of these objects contain names of Services of this cluster that lead elsewhere in the remote one.
    async fn naming_services(
        &self,
        home: &RawPod,
        copied: &[(String, Arc<Original>)],
        destination: &Destination<'_>,
    ) -> Vec<String> {
        let own = home.namespace().unwrap_or_default();
        let short = copied
            .iter()
            .flat_map(|(_, it)| &it.short_names)
            .map(String::as_str);
        let existing = self
            .existing_of(home, short.filter(|it| *it != own).collect())
            .await;
        let addresses = copied.iter().flat_map(|(_, it)| &it.addresses).copied().collect();
        let of_services = match self.of_services(home, &addresses).await {
            Ok(of_services) => of_services,
            Err(error) => {
                tracing::warn!(pod = home.key(), %error, "failed to read the addresses of Services, to compare those in the configuration of a pod");
                BTreeMap::new()
            }
        };
        let leads_elsewhere = |it: &Original| {
            let short = it.short_names.iter().filter(|it| existing.contains(*it));
            let mut named = it.namespaces.iter().chain(short);
            named.any(|it| destination.leads_elsewhere(&own, it))
                || it.addresses.iter().any(|it| of_services.contains_key(it))
        };
        let naming = copied.iter().filter(|(_, it)| leads_elsewhere(it));
        naming.map(|(name, _)| name.clone()).collect()
    }

    fn copies(&self, home: &RawPod) -> Option<Arc<Copies>> {
        self.places
            .copies(&home.namespace().unwrap_or_default(), &self.cluster)
    }
}

/// The objects that a pod requires.
fn required(home: &RawPod) -> impl Iterator<Item = (Kind, String)> + use<> {
    let all = configuration(&home.json()).into_iter();
    all.filter_map(|(object, is_required)| is_required.then_some(object))
}
