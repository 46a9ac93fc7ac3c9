//! The copies in one remote namespace. The views show which of them may differ; writes depend on live reads of both
//! objects. The content of a copy is remembered by its `resourceVersion`, so that an unchanged copy is not read again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{ConfigMap, ObjectReference, Secret, Service},
    discovery::v1::EndpointSlice,
};
use kube::Resource;
use serde_json::Value;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    routes::Current,
    source::{self, Copied, Of, PerKind, Source, json, kinds},
};
use crate::{
    api::namespace_offloading::{NAME, NamespaceOffloading},
    backoff::Backoff,
    cluster::{ApiError, Cause, Cluster, Precondition, events::Events, short},
    observe::crash::{self, Step as Write},
    offload::{
        Seen,
        pods::Configuration,
        reflection::{
            Comparison, CopyMetadata, Fingerprint, HOME_OBJECT_UID, Kind, Known, Marks, NotCopied, Original,
            SKIP, Slice, Step, Wanted, caveats, compare, decide, found, name_of_copy, name_of_original,
            patch, wanted, why_not_copied,
        },
    },
    remote::{Owner, Question},
};

/// How long a check that the remote namespace is ours permits writes.
const CHECK: Duration = Duration::from_secs(30);
/// The pause after a conflict.
const SOON: Duration = Duration::from_secs(1);
/// The interval of retries while an object of another owner has the name of a copy.
const WHILE_TAKEN: Duration = Duration::from_secs(30);
/// The shortest time between two events with the same content.
const REPORT_AGAIN: Duration = Duration::from_mins(30);

/// The two namespaces, and what copying between them needs.
pub(super) struct Ends {
    pub(super) home: Cluster,
    pub(super) there: Cluster,
    /// The remote namespace.
    pub(super) remote: String,
    pub(super) owner: Owner,
    /// The uid of the `NamespaceOffloading`.
    pub(super) offloading: String,
    pub(super) marks: Marks,
    pub(super) source: Arc<Source>,
    /// Whether there are routes between the pods of the two clusters.
    pub(super) routed: bool,
    pub(super) routes: Arc<Current>,
    pub(super) permits: Arc<Semaphore>,
    pub(super) events: Events,
}

/// Why there is no current copy of an object.
pub(crate) enum NoCopy {
    /// An object of others has its name.
    Taken,
    /// The cluster refuses it, for this reason.
    Refused(String),
}

/// The copies in one remote namespace.
pub(crate) struct Copies {
    pub(super) ends: Ends,
    pub(super) seen: PerKind<CopyMetadata>,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// The content of each copy when it was last read or written.
    known: HashMap<String, Known>,
    /// When copies are reconciled again even if nothing changes.
    again: BTreeMap<String, Instant>,
    backoff: Backoff<Fingerprint>,
    /// Copies whose names belong to objects of other owners, and when that was reported.
    taken: HashMap<String, Instant>,
    /// Copies that the cluster refuses, and why; or that it changes when they are written.
    not_kept: HashMap<String, Option<String>>,
    /// When too many objects were last reported.
    too_many: Option<Instant>,
    /// When the remote namespace was last read and ours.
    checked: Option<Instant>,
}

impl Copies {
    pub(super) fn new(ends: Ends) -> Self {
        Self {
            seen: source::copies(&ends.there, &ends.remote, &ends.marks, &ends.source),
            ends,
            memory: Mutex::default(),
        }
    }

    /// The keys of copies that may differ, of kinds that are listed on both sides.
    pub(super) fn unsettled(&self) -> BTreeSet<String> {
        let mut unsettled = BTreeSet::new();
        for kind in self.kinds().iter().copied().filter(|kind| self.is_read(*kind)) {
            let (here, there) = (self.ends.source.names(kind), self.seen.of(kind).all());
            let here = here.iter().map(String::as_str);
            let names: BTreeSet<&str> = here.chain(there.iter().map(|it| it.name.as_str())).collect();
            let is_unsettled = |name: &&str| self.compare(kind, name).1 != Comparison::Settled;
            let all = names.into_iter().filter(is_unsettled);
            unsettled.extend(all.map(|name| key(kind, name)));
        }
        unsettled
    }

    pub(super) fn kinds(&self) -> &'static [Kind] {
        kinds(self.ends.routed)
    }

    /// Whether both sides of a kind are listed, and for slices also Services and routes.
    pub(super) fn is_read(&self, kind: Kind) -> bool {
        let is_read = |kind| {
            let versions = [self.ends.source.version(kind), self.seen.of(kind).version()];
            versions.iter().all(|version| *version.borrow() > 0)
        };
        let depends = || self.ends.routes.get().is_some() && is_read(Kind::Service);
        is_read(kind) && (kind != Kind::EndpointSlice || depends())
    }

    /// The object at home whose copy has this name.
    fn original(&self, kind: Kind, name: &str) -> Option<Arc<Original>> {
        match self.ends.source.of(kind) {
            Of::Objects(view) => view.of_topic(name).pop(),
            Of::Slices(_) => self.slice_original(name),
        }
    }

    /// Whether the copies of the objects that a pod names, and of all Services, are current. Ignored are objects that
    /// are never copied, whose names are taken, or that the cluster changes; and those that it refuses, unless the pod
    /// requires them.
    pub(crate) fn are_current(&self, named: &Configuration) -> bool {
        let services = self.ends.source.names(Kind::Service);
        let services = services.iter().map(|name| (Kind::Service, name, false));
        let named = named.iter();
        let mut all = services.chain(named.map(|((kind, name), is_required)| (*kind, name, *is_required)));
        self.is_read(Kind::Service) && all.all(|(kind, name, required)| self.is_current(kind, name, required))
    }

    /// Whether the current version of this object was copied, even if others have changed the copy since.
    fn is_current(&self, kind: Kind, name: &str, is_required: bool) -> bool {
        if !self.is_read(kind) {
            return false;
        }
        let copy = name_of_copy(kind, name, &self.ends.marks.home);
        let Some(here) = self.original(kind, &copy) else {
            return true;
        };
        let (key, memory) = (key(kind, &copy), self.memory());
        let why = memory.not_kept.get(&key);
        memory.taken.contains_key(&key)
            || why.is_some_and(|why| why.is_none() || !is_required)
            || memory
                .known
                .get(&key)
                .is_some_and(|it| it.fingerprint == here.fingerprint)
    }

    /// Whether this object is one of those that are copied, as far as the views show.
    pub(crate) fn includes(&self, kind: Kind, name: &str) -> bool {
        let copy = name_of_copy(kind, name, &self.ends.marks.home);
        self.is_read(kind) && self.original(kind, &copy).is_some()
    }

    /// The maximum number of objects of this kind, if there are more and therefore some are not
    /// copied.
    pub(crate) fn limit(&self, kind: Kind) -> Option<usize> {
        self.ends
            .source
            .has_too_many(kind)
            .then_some(self.ends.source.most)
    }

    /// An object at home, if it is copied.
    pub(crate) fn original_of(&self, kind: Kind, name: &str) -> Option<Arc<Original>> {
        self.original(kind, &name_of_copy(kind, name, &self.ends.marks.home))
    }

    /// Why the copy of an object is missing or outdated.
    pub(crate) fn no_copy(&self, kind: Kind, name: &str) -> Option<NoCopy> {
        let copy = name_of_copy(kind, name, &self.ends.marks.home);
        let (key, memory) = (key(kind, &copy), self.memory());
        if memory.taken.contains_key(&key) {
            return Some(NoCopy::Taken);
        }
        memory.not_kept.get(&key).cloned().flatten().map(NoCopy::Refused)
    }

    /// The object at home whose copy has this name, and how the views compare the two.
    fn compare(&self, kind: Kind, name: &str) -> (Option<Arc<Original>>, Comparison) {
        let here = self.original(kind, name);
        let there = self.seen.of(kind).get(&format!("{}/{name}", self.ends.remote));
        let wanted = here.as_ref().map(|it| &it.fingerprint);
        let comparison = compare(
            wanted,
            there.as_deref(),
            self.memory().known.get(&key(kind, name)),
        );
        (here, comparison)
    }

    /// Takes the next step for the copy with this key.
    pub(super) async fn reconcile(&self, key: &str) -> Result<(), ApiError> {
        match key.split_once('/') {
            Some(("ConfigMap", name)) => self.copy::<ConfigMap>(name).await,
            Some(("Secret", name)) => self.copy::<Secret>(name).await,
            Some(("Service", name)) => self.copy::<Service>(name).await,
            Some(("EndpointSlice", name)) => self.copy::<EndpointSlice>(name).await,
            _ => Ok(()),
        }
    }

    async fn copy<K: Copied>(&self, name: &str) -> Result<(), ApiError> {
        let key = key(K::KIND, name);
        let (here, comparison) = self.compare(K::KIND, name);
        if comparison == Comparison::Settled {
            self.memory().settle(&key, here.is_some());
            return Ok(());
        }
        // Limits the full objects in memory. The semaphore is never closed.
        let _permit = self.ends.permits.acquire().await;
        if !self.is_ours().await? {
            self.requeue(key, CHECK);
            return Ok(());
        }
        let is_taken = self.memory().taken.contains_key(&key);
        let there = if comparison == Comparison::Missing && !is_taken {
            None
        } else {
            self.read::<K>(name).await?
        };
        if let (Some(here), Some(there)) = (&here, &there)
            && self.is_alike(K::KIND, here, there)
        {
            return Ok(());
        }
        let wanted = self.wanted::<K>(name).await?;
        if let Some(wanted) = &wanted {
            let paused = self
                .memory()
                .backoff
                .remaining(&key, &wanted.original.fingerprint);
            if let Some(left) = paused {
                self.requeue(key, left);
                return Ok(());
            }
        }
        let outcome = self.write::<K>(name, wanted.as_ref(), there).await;
        match (&outcome, &wanted) {
            (Err(error), _) if error.is_conflict() => {
                self.requeue(key, SOON);
                return Ok(());
            }
            (Err(error), Some(wanted)) if error.is_refusal() => {
                self.memory()
                    .not_kept
                    .insert(key, Some(short(&error.to_string())));
                self.warn::<K>(name, wanted, "ReflectionRefused", &error.to_string())
                    .await;
            }
            _ => {}
        }
        outcome
    }

    async fn read<K: Copied>(&self, name: &str) -> Result<Option<Value>, ApiError> {
        let copies = self.ends.there.within::<K>(&self.ends.remote);
        Ok(copies.get(name).await?.map(json))
    }

    /// Whether a copy has the desired content, which is then remembered.
    fn is_alike(&self, kind: Kind, here: &Original, there: &Value) -> bool {
        let there = found(kind, there.clone(), &self.ends.marks);
        let is_alike = decide(Some(&here.fingerprint), Some(&there)) == Step::Nothing;
        if is_alike {
            self.memory()
                .remember(key(kind, &here.copy), there.version, there.fingerprint);
        }
        is_alike
    }

    async fn write<K: Copied>(
        &self,
        name: &str,
        wanted: Option<&Wanted>,
        there: Option<Value>,
    ) -> Result<(), ApiError> {
        let key = key(K::KIND, name);
        let copies = self.ends.there.within::<K>(&self.ends.remote);
        let seen = there.clone().map(|it| found(K::KIND, it, &self.ends.marks));
        let step = decide(wanted.map(|it| &it.original.fingerprint), seen.as_ref());
        if step != Step::Taken {
            self.memory().taken.remove(&key);
        }
        match (step, wanted, there) {
            (Step::Create, Some(wanted), _) => {
                if self.create::<K>(wanted).await? {
                    self.report_caveats::<K>(wanted, &Value::Null).await;
                    return Ok(());
                }
                // An object has the name that the view does not show, or not yet.
                let there = self.read::<K>(name).await?;
                let seen = there.map(|it| found(K::KIND, it, &self.ends.marks));
                if seen.is_some_and(|seen| !seen.ours) {
                    self.report_name_taken::<K>(name, wanted).await;
                } else {
                    self.requeue(key, SOON);
                }
            }
            (Step::Patch, Some(wanted), Some(there)) => {
                let patch = patch(K::KIND, &there, &wanted.object, &self.ends.marks);
                let patched = crash::around(Write::ReflectPatch, copies.merge(name, &patch)).await?;
                self.record_write(wanted, patched, "changed a copy");
                self.report_caveats::<K>(wanted, &there).await;
            }
            (Step::Replace, Some(wanted), Some(there)) => {
                self.delete::<K>(name, &there).await?;
                self.create::<K>(wanted).await?;
                self.report_caveats::<K>(wanted, &there).await;
            }
            (Step::Delete, _, Some(there)) => self.delete::<K>(name, &there).await?,
            (Step::Taken, Some(wanted), _) => self.report_name_taken::<K>(name, wanted).await,
            _ => {}
        }
        Ok(())
    }

    /// The desired copy, from a live read of the object at home; `None` if there should be none.
    async fn wanted<K: Copied>(&self, name: &str) -> Result<Option<Wanted>, ApiError> {
        let (home, namespace) = (&self.ends.home, &self.ends.owner.namespace);
        let original = name_of_original(K::KIND, name, &self.ends.marks.home);
        let found = home.within::<K>(namespace).get(&original).await?;
        let Some(found) = found.map(json) else {
            return Ok(None);
        };
        Ok(match K::KIND {
            Kind::EndpointSlice => Slice::read(&found).and_then(|slice| self.slice_copy(&slice)),
            kind => wanted(kind, found, &self.ends.marks).ok(),
        })
    }

    /// Returns false if an object of that name exists.
    async fn create<K: Copied>(&self, wanted: &Wanted) -> Result<bool, ApiError> {
        let mut object = wanted.object.clone();
        let mut created = self.post::<K>(&object).await;
        if created.as_ref().is_err_and(lacks_families)
            && let Some(spec) = object["spec"].as_object_mut()
            && spec.remove("ipFamilies").is_some()
        {
            created = self.post::<K>(&object).await;
        }
        let created = created?;
        let is_made = created.is_some();
        if is_made {
            self.record_write(wanted, created, "created a copy");
        }
        Ok(is_made)
    }

    async fn post<K: Copied>(&self, object: &Value) -> Result<Option<K>, ApiError> {
        let copies = self.ends.there.within::<K>(&self.ends.remote);
        let copy: K = serde_json::from_value(object.clone())
            .map_err(|error| copies.failure("copy", Cause::Malformed(error.to_string())))?;
        crash::around(Write::ReflectCreate, copies.create(&copy)).await
    }

    /// Deletes exactly what was read.
    pub(super) async fn delete<K: Copied>(&self, name: &str, there: &Value) -> Result<(), ApiError> {
        let text = |key: &str| there["metadata"][key].as_str().map(str::to_owned);
        let exactly = Precondition {
            uid: text("uid").unwrap_or_default(),
            resource_version: text("resourceVersion"),
        };
        let copies = self.ends.there.within::<K>(&self.ends.remote);
        crash::around(Write::ReflectDelete, copies.delete(name, exactly)).await?;
        self.log(&key(K::KIND, name), "deleted a copy");
        Ok(())
    }

    /// Whether the remote namespace is still ours, read live: it may have been deleted, and another one created under
    /// its name.
    pub(super) async fn is_ours(&self) -> Result<bool, ApiError> {
        let checked = self.memory().checked;
        if checked.is_some_and(|at| at.elapsed() < CHECK) {
            return Ok(true);
        }
        let Ends {
            owner, there, remote, ..
        } = &self.ends;
        let why = match owner.observe(there, remote, Question::Presence).await {
            Seen::Ours { deleting: false, .. } => {
                self.memory().checked = Some(Instant::now());
                return Ok(true);
            }
            Seen::Unknown(why) => {
                let unknown = Cause::Unavailable(why);
                return Err(there.within::<ConfigMap>(remote).failure("copy", unknown));
            }
            Seen::Foreign(why) => why,
            Seen::Absent | Seen::Ours { .. } => "it is being deleted".to_owned(),
        };
        tracing::info!(cluster = %there.id(), namespace = remote, why, "objects are not copied into a remote namespace");
        Ok(false)
    }

    async fn report_name_taken<K: Copied>(&self, name: &str, wanted: &Wanted) {
        let key = key(K::KIND, name);
        self.requeue(key.clone(), WHILE_TAKEN);
        let is_reported = |memory: &Memory| {
            memory
                .taken
                .get(&key)
                .is_some_and(|at| at.elapsed() < REPORT_AGAIN)
        };
        if is_reported(&self.memory()) {
            return;
        }
        let (cluster, remote) = (self.ends.there.id(), &self.ends.remote);
        let note = format!(
            "it is not copied: the namespace {remote} of cluster {cluster} has a {:?} {name} already, which this \
             driver did not create and does not change",
            K::KIND
        );
        let reported = self.warn::<K>(name, wanted, "RemoteNameTaken", &note).await;
        let at = if reported {
            Instant::now()
        } else {
            Instant::now() - REPORT_AGAIN
        };
        self.memory().taken.insert(key, at);
    }

    /// Emits an event on the object at home. Returns whether the rate limit permitted it.
    async fn warn<K: Copied>(&self, name: &str, wanted: &Wanted, reason: &str, note: &str) -> bool {
        if self.ends.source.may_emit().is_err() {
            return false;
        }
        let uid = wanted.object["metadata"]["annotations"][HOME_OBJECT_UID].as_str();
        let about = ObjectReference {
            api_version: Some(K::KIND.api_version().to_owned()),
            kind: Some(format!("{:?}", K::KIND)),
            namespace: Some(self.ends.owner.namespace.clone()),
            name: Some(name_of_original(K::KIND, name, &self.ends.marks.home)),
            uid: uid.map(str::to_owned),
            ..ObjectReference::default()
        };
        self.ends.events.warn_object(about, reason, note).await;
        true
    }

    /// Emits an event on the `NamespaceOffloading` about kinds with more objects than are copied.
    pub(super) async fn report_too_many(&self) {
        let too_many = |kind: &&Kind| self.ends.source.has_too_many(**kind);
        let kinds: Vec<String> = self
            .kinds()
            .iter()
            .filter(too_many)
            .map(|it| format!("{it:?}s"))
            .collect();
        let is_reported = self
            .memory()
            .too_many
            .is_some_and(|at| at.elapsed() < REPORT_AGAIN);
        if kinds.is_empty() || is_reported || self.ends.source.may_emit().is_err() {
            return;
        }
        self.memory().too_many = Some(Instant::now());
        let note = format!(
            "the namespace has more {} than are copied, which are {} of a kind: the others are missing in the cluster {}. \
             Delete some, or set liqo.io/skip-reflection on those that no pod there needs",
            kinds.join(" and "),
            self.ends.source.most,
            self.ends.there.id()
        );
        let about = ObjectReference {
            api_version: Some(NamespaceOffloading::api_version(&()).into_owned()),
            kind: Some(NamespaceOffloading::kind(&()).into_owned()),
            namespace: Some(self.ends.owner.namespace.clone()),
            name: Some(NAME.to_owned()),
            uid: Some(self.ends.offloading.clone()),
            ..ObjectReference::default()
        };
        self.ends.events.warn_object(about, "TooManyObjects", &note).await;
    }

    /// Emits events about how a copied Service differs from the one at home, unless they were
    /// emitted before.
    async fn report_caveats<K: Copied>(&self, wanted: &Wanted, before: &Value) {
        if K::KIND != Kind::Service {
            return;
        }
        let (views, cluster) = (self.ends.home.views(), self.ends.there.id().as_str());
        let is_same_there = |namespace: &str| {
            let other = views.offloadings.get(&format!("{namespace}/{NAME}"));
            other.is_some_and(|it| it.keeps_its_name())
        };
        let remote_cluster = views.remote_clusters.get(cluster);
        let fabric = remote_cluster.as_ref().and_then(|it| it.spec.fabric.as_ref());
        let skip_labels = fabric.map(|it| it.pods.skip_labels.clone()).unwrap_or_default();
        let caveats = |of: &Value| caveats(of, cluster, is_same_there, &skip_labels);
        let known = caveats(before);
        for (reason, note) in caveats(&wanted.object) {
            if !known.contains(&(reason, note.clone())) {
                self.warn::<K>(&wanted.original.copy, wanted, reason, &note).await;
            }
        }
    }

    /// Emits an event on each Service that is marked not to be copied, once for all clusters.
    pub(super) async fn report_skipped(&self) {
        let Ends {
            home, owner, marks, ..
        } = &self.ends;
        for name in self.ends.source.newly_skipped() {
            let found = home.within::<Service>(&owner.namespace).get(&name).await;
            let Ok(Some(service)) = found else { continue };
            let about = service.object_ref(&());
            if why_not_copied(Kind::Service, &json(service), &marks.home) == Some(NotCopied::Skipped) {
                let note = format!(
                    "it is not copied, as it is marked {SKIP}: in remote clusters, pods of this namespace do not find it by \
                     its name, unless there is a Service of that name. Remove the mark if they use it"
                );
                self.ends.events.note_object(about, "NotCopied", &note).await;
            }
        }
    }

    /// Remembers the result of a write.
    fn record_write<K: Copied>(&self, wanted: &Wanted, result: Option<K>, what: &str) {
        let Original {
            copy, fingerprint, ..
        } = &wanted.original;
        let key = key(K::KIND, copy);
        self.log(&key, what);
        self.memory().backoff.record(key.clone(), fingerprint.clone());
        if let Some(result) = result
            && !self.is_alike(K::KIND, &wanted.original, &json(result))
        {
            self.memory().not_kept.insert(key, None);
        }
    }

    fn log(&self, key: &str, what: &str) {
        let Ends { there, remote, .. } = &self.ends;
        tracing::debug!(cluster = %there.id(), namespace = remote, object = key, "{what}");
    }

    fn requeue(&self, key: String, after: Duration) {
        self.memory().again.insert(key, Instant::now() + after);
    }

    /// The keys that are due again now.
    pub(super) fn due(&self) -> Vec<String> {
        let now = Instant::now();
        let mut memory = self.memory();
        let due = memory.again.extract_if(.., |_, when| *when <= now);
        due.map(|(key, _)| key).collect()
    }

    /// The time until the next key is due.
    pub(super) fn next(&self) -> Option<Duration> {
        let next = self.memory().again.values().min().copied()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn remember(&mut self, key: String, version: String, fingerprint: Fingerprint) {
        self.not_kept.remove(&key);
        self.known.insert(key, Known { version, fingerprint });
    }

    /// The copy is in its desired state.
    fn settle(&mut self, key: &str, is_copied: bool) {
        self.taken.remove(key);
        self.not_kept.remove(key);
        if !is_copied {
            self.known.remove(key);
        }
    }
}

/// Whether the cluster does not have an IP family of a Service.
fn lacks_families(error: &ApiError) -> bool {
    matches!(&error.cause, Cause::Invalid(why) if why.contains("spec.ipFamilies"))
}

pub(super) fn key(kind: Kind, name: &str) -> String {
    format!("{kind:?}/{name}")
}
