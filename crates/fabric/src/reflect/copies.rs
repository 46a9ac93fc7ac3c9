//! The copies in one remote namespace. Which of them have to be looked at is told by the views;
//! what is done rests on live reads of both objects. What a copy says is known by its version
//! once it was read or written, so that one that did not change is not read again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
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
    brake::Brake,
    cluster::{ApiError, Cause, Cluster, Precondition, events::Events},
    observe::crash::{self, Step as Write},
    offload::{
        Seen,
        reflection::{
            Glimpse, HOME_OBJECT_UID, Kind, Known, Marks, Original, Outlook, Print, Slice, Step, Wanted,
            decide, found, name_of_copy, name_of_original, outlook, patch, wanted,
        },
    },
    remote::{Owner, Question},
};

/// The remote namespace is asked so often whether it is still ours, if something is to be written.
const CHECK: Duration = Duration::from_secs(30);
/// After somebody else changed a copy it is looked at again so soon.
const SOON: Duration = Duration::from_secs(1);
/// A name that others have is looked at so often.
const WHILE_TAKEN: Duration = Duration::from_secs(30);
/// Whose name is taken hears of it so often.
const TELL: Duration = Duration::from_mins(30);

/// Between which namespaces, and with what.
pub(super) struct Ends {
    pub(super) home: Cluster,
    pub(super) there: Cluster,
    /// The namespace there.
    pub(super) remote: String,
    pub(super) owner: Owner,
    /// The uid of the `NamespaceOffloading`.
    pub(super) offloading: String,
    pub(super) marks: Marks,
    pub(super) source: Arc<Source>,
    /// Whether there are routes between the pods of the two clusters.
    pub(super) routed: bool,
    pub(super) routes: Arc<Current>,
    pub(super) turns: Arc<Semaphore>,
    pub(super) events: Events,
}

/// The copies in one remote namespace.
pub(crate) struct Copies {
    pub(super) ends: Ends,
    pub(super) seen: PerKind<Glimpse>,
    memory: Mutex<Memory>,
}

/// What was done of late.
#[derive(Default)]
struct Memory {
    /// What each copy says.
    known: HashMap<String, Known>,
    /// When what is looked at again although nothing changes.
    again: BTreeMap<String, Instant>,
    brake: Brake<Print>,
    /// The objects whose names others have, and when they were told so.
    taken: HashMap<String, Instant>,
    /// The copies that the cluster refuses, or changes as they are written.
    unkept: HashSet<String>,
    /// When it was told that there are too many objects.
    too_many: Option<Instant>,
    /// When the namespace there was last seen to be ours.
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

    /// What may differ, as far as both sides were read: as kind and name of a copy.
    pub(super) fn unsettled(&self) -> BTreeSet<String> {
        let mut unsettled = BTreeSet::new();
        for kind in self.kinds().iter().copied().filter(|kind| self.is_read(*kind)) {
            let (here, there) = (self.ends.source.names(kind), self.seen.of(kind).all());
            let here = here.iter().map(String::as_str);
            let names: BTreeSet<&str> = here.chain(there.iter().map(|it| it.name.as_str())).collect();
            let is_unsettled = |name: &&str| self.outlook(kind, name).1 != Outlook::Settled;
            let all = names.into_iter().filter(is_unsettled);
            unsettled.extend(all.map(|name| key(kind, name)));
        }
        unsettled
    }

    pub(super) fn kinds(&self) -> &'static [Kind] {
        kinds(self.ends.routed)
    }

    /// Whether both sides were read once, and all that what is copied depends on.
    pub(super) fn is_read(&self, kind: Kind) -> bool {
        let is_read = |kind| {
            let versions = [self.ends.source.version(kind), self.seen.of(kind).version()];
            versions.iter().all(|version| *version.borrow() > 0)
        };
        let depends = || self.ends.routes.get().is_some() && is_read(Kind::Service);
        is_read(kind) && (kind != Kind::EndpointSlice || depends())
    }

    /// What is to be copied under this name.
    fn original(&self, kind: Kind, name: &str) -> Option<Arc<Original>> {
        match self.ends.source.of(kind) {
            Of::Objects(view) => view.of_topic(name).pop(),
            Of::Slices(_) => self.slice_original(name),
        }
    }

    /// Whether a pod finds there what it would find here: the objects that it names, and all Services. What
    /// is not copied is not waited for.
    pub(crate) fn serve(&self, named: &[(Kind, String)]) -> bool {
        let services = self.ends.source.names(Kind::Service);
        let services = services.iter().map(|name| (Kind::Service, name));
        let mut all = services.chain(named.iter().map(|(kind, name)| (*kind, name)));
        self.is_read(Kind::Service) && all.all(|(kind, name)| self.is_current(kind, name))
    }

    /// Whether this object was copied as it is here, whatever others have changed of the copy since.
    fn is_current(&self, kind: Kind, name: &str) -> bool {
        if !self.is_read(kind) {
            return false;
        }
        let copy = name_of_copy(kind, name, &self.ends.marks.home);
        let Some(here) = self.original(kind, &copy) else {
            return true;
        };
        let (key, memory) = (key(kind, &copy), self.memory());
        memory.taken.contains_key(&key)
            || memory.unkept.contains(&key)
            || memory.known.get(&key).is_some_and(|it| it.print == here.print)
    }

    /// What is to be copied under this name, and what the views tell of the copy.
    fn outlook(&self, kind: Kind, name: &str) -> (Option<Arc<Original>>, Outlook) {
        let here = self.original(kind, name);
        let there = self.seen.of(kind).get(&format!("{}/{name}", self.ends.remote));
        let wanted = here.as_ref().map(|it| &it.print);
        let outlook = outlook(
            wanted,
            there.as_deref(),
            self.memory().known.get(&key(kind, name)),
        );
        (here, outlook)
    }

    /// Sees to one copy, by its kind and name.
    pub(super) async fn see_to(&self, key: &str) -> Result<(), ApiError> {
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
        let (here, outlook) = self.outlook(K::KIND, name);
        if outlook == Outlook::Settled {
            self.memory().settle(&key, here.is_some());
            return Ok(());
        }
        // Few are held in full at the same time. It is never closed.
        let _turn = self.ends.turns.acquire().await;
        if !self.is_ours().await? {
            self.look_again(key, CHECK);
            return Ok(());
        }
        let is_taken = self.memory().taken.contains_key(&key);
        let there = if outlook == Outlook::Missing && !is_taken {
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
            let held = self.memory().brake.holds(&key, &wanted.original.print);
            if let Some(left) = held {
                self.look_again(key, left);
                return Ok(());
            }
        }
        let outcome = self.write::<K>(name, wanted.as_ref(), there).await;
        match (&outcome, &wanted) {
            (Err(error), _) if error.is_conflict() => {
                self.look_again(key, SOON);
                return Ok(());
            }
            (Err(error), Some(wanted)) if error.is_refusal() => {
                self.memory().unkept.insert(key);
                self.tell::<K>(name, wanted, "ReflectionRefused", &error.to_string())
                    .await;
            }
            _ => {}
        }
        outcome
    }

    /// What the remote namespace has under this name.
    async fn read<K: Copied>(&self, name: &str) -> Result<Option<Value>, ApiError> {
        let copies = self.ends.there.within::<K>(&self.ends.remote);
        Ok(copies.get(name).await?.map(json))
    }

    /// Whether an object there says what it is to say.
    fn is_alike(&self, kind: Kind, here: &Original, there: &Value) -> bool {
        let there = found(kind, there.clone(), &self.ends.marks);
        let is_alike = decide(Some(&here.print), Some(&there)) == Step::Nothing;
        if is_alike {
            self.memory()
                .know(key(kind, &here.copy), there.version, there.print);
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
        let step = decide(wanted.map(|it| &it.original.print), seen.as_ref());
        if step != Step::Taken {
            self.memory().taken.remove(&key);
        }
        match (step, wanted, there) {
            (Step::Create, Some(wanted), _) => {
                if self.create::<K>(wanted).await? {
                    return Ok(());
                }
                // Something has the name that the views do not show, or not yet.
                let there = self.read::<K>(name).await?;
                let seen = there.map(|it| found(K::KIND, it, &self.ends.marks));
                if seen.is_some_and(|seen| !seen.ours) {
                    self.is_taken::<K>(name, wanted).await;
                } else {
                    self.look_again(key, SOON);
                }
            }
            (Step::Patch, Some(wanted), Some(there)) => {
                let patch = patch(K::KIND, &there, &wanted.object, &self.ends.marks);
                let patched = crash::around(Write::ReflectPatch, copies.merge(name, &patch)).await?;
                self.note(wanted, patched, "changed a copy");
            }
            (Step::Replace, Some(wanted), Some(there)) => {
                self.delete::<K>(name, &there).await?;
                self.create::<K>(wanted).await?;
            }
            (Step::Delete, _, Some(there)) => self.delete::<K>(name, &there).await?,
            (Step::Taken, Some(wanted), _) => self.is_taken::<K>(name, wanted).await,
            _ => {}
        }
        Ok(())
    }

    /// What the copy of this name is to be, read live; `None` if there is to be none.
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

    /// False, if something of that name is there by now.
    async fn create<K: Copied>(&self, wanted: &Wanted) -> Result<bool, ApiError> {
        let copies = self.ends.there.within::<K>(&self.ends.remote);
        let copy: K = serde_json::from_value(wanted.object.clone())
            .map_err(|error| copies.failure("copy", Cause::Malformed(error.to_string())))?;
        let made = crash::around(Write::ReflectCreate, copies.create(&copy)).await?;
        let is_made = made.is_some();
        if is_made {
            self.note(wanted, made, "made a copy");
        }
        Ok(is_made)
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
        self.say(&key(K::KIND, name), "deleted a copy");
        Ok(())
    }

    /// Whether the namespace there is still the one that was made for ours: another one may have
    /// its name by now.
    pub(super) async fn is_ours(&self) -> Result<bool, ApiError> {
        let checked = self.memory().checked;
        if checked.is_some_and(|at| at.elapsed() < CHECK) {
            return Ok(true);
        }
        let Ends {
            owner, there, remote, ..
        } = &self.ends;
        let why = match owner.look(there, remote, Question::Presence).await {
            Seen::Ours { deleting: false, .. } => {
                self.memory().checked = Some(Instant::now());
                return Ok(true);
            }
            Seen::Unknown(why) => {
                let unknown = Cause::Unavailable(why);
                return Err(there.within::<ConfigMap>(remote).failure("copy", unknown));
            }
            Seen::Foreign(why) => why,
            Seen::Absent | Seen::Ours { .. } => "it is going".to_owned(),
        };
        tracing::info!(cluster = %there.id(), namespace = remote, why, "nothing is copied into a namespace");
        Ok(false)
    }

    async fn is_taken<K: Copied>(&self, name: &str, wanted: &Wanted) {
        let key = key(K::KIND, name);
        self.look_again(key.clone(), WHILE_TAKEN);
        let is_told = |memory: &Memory| memory.taken.get(&key).is_some_and(|at| at.elapsed() < TELL);
        if is_told(&self.memory()) {
            return;
        }
        let (cluster, remote) = (self.ends.there.id(), &self.ends.remote);
        let note = format!(
            "it is not copied: the namespace {remote} of cluster {cluster} has a {:?} {name} already, which this \
             driver did not make and leaves as it is",
            K::KIND
        );
        let told = self.tell::<K>(name, wanted, "RemoteNameTaken", &note).await;
        let at = if told {
            Instant::now()
        } else {
            Instant::now() - TELL
        };
        self.memory().taken.insert(key, at);
    }

    /// Whether there was a turn to tell this on the object at home.
    async fn tell<K: Copied>(&self, name: &str, wanted: &Wanted, reason: &str, note: &str) -> bool {
        if self.ends.source.take_turn().is_err() {
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

    /// Tells on the `NamespaceOffloading` which kinds have more objects than are copied.
    pub(super) async fn tell_too_many(&self) {
        let too_many = |kind: &&Kind| self.ends.source.has_too_many(**kind);
        let kinds: Vec<String> = self
            .kinds()
            .iter()
            .filter(too_many)
            .map(|it| format!("{it:?}s"))
            .collect();
        let is_told = self.memory().too_many.is_some_and(|at| at.elapsed() < TELL);
        if kinds.is_empty() || is_told || self.ends.source.take_turn().is_err() {
            return;
        }
        self.memory().too_many = Some(Instant::now());
        let note = format!(
            "the namespace has more {} than are copied, which are {} of a kind: the rest is not in the cluster {}. \
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

    /// This was written, and became that.
    fn note<K: Copied>(&self, wanted: &Wanted, became: Option<K>, what: &str) {
        let Original { copy, print, .. } = &wanted.original;
        let key = key(K::KIND, copy);
        self.say(&key, what);
        self.memory().brake.note(key.clone(), print.clone());
        if let Some(became) = became
            && !self.is_alike(K::KIND, &wanted.original, &json(became))
        {
            self.memory().unkept.insert(key);
        }
    }

    fn say(&self, key: &str, what: &str) {
        let Ends { there, remote, .. } = &self.ends;
        tracing::debug!(cluster = %there.id(), namespace = remote, object = key, "{what}");
    }

    fn look_again(&self, key: String, after: Duration) {
        self.memory().again.insert(key, Instant::now() + after);
    }

    /// What is to be looked at again now.
    pub(super) fn due(&self) -> Vec<String> {
        let now = Instant::now();
        let mut memory = self.memory();
        let due = memory.again.extract_if(.., |_, when| *when <= now);
        due.map(|(key, _)| key).collect()
    }

    /// In what time something is.
    pub(super) fn next(&self) -> Option<Duration> {
        let next = self.memory().again.values().min().copied()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn know(&mut self, key: String, version: String, print: Print) {
        self.unkept.remove(&key);
        self.known.insert(key, Known { version, print });
    }

    /// Nothing is to be done about it.
    fn settle(&mut self, key: &str, is_copied: bool) {
        self.taken.remove(key);
        self.unkept.remove(key);
        if !is_copied {
            self.known.remove(key);
        }
    }
}

pub(super) fn key(kind: Kind, name: &str) -> String {
    format!("{kind:?}/{name}")
}
