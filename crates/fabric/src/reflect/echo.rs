//! Events of a remote namespace about pods and claims of ours, told at home about the pod or claim
//! that they are for. Nothing is kept of an event but that it was told.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{ResourceExt, api::ObjectMeta, runtime::watcher};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use super::copies::Ends;
use crate::{
    cluster::{ApiError, Watched, short, view::Slim},
    marks::{HOME_POD_UID, HOME_UID},
    offload::is_name,
    volume::{Marks, digest, mark},
};

/// Who tells them at home.
const COMPONENT: &str = "liqo-csi-fabric";
/// Digits of the hash by which an event at home is called after that there.
const DIGITS: usize = 16;
/// The longest name of an object.
const LONGEST_NAME: usize = 253;
/// The longest reason that Kubernetes takes.
const LONGEST_REASON: usize = 128;
/// So many wait for their turn; those that come then are not told.
const MOST_WAITING: usize = 1000;
/// So many are remembered as told. More are told again, which changes nothing at home.
const MOST_TOLD: usize = 20_000;
/// After an API server has failed it is left alone for so long.
const PAUSE: Duration = Duration::from_secs(5);

/// What waits to be told, and what was.
pub(super) struct Echo {
    heard: Arc<Mutex<BTreeMap<String, Heard>>>,
    news: watch::Receiver<u64>,
    /// How often what was counted when it was told, by its hash; `None` until it was read what is
    /// at home from before.
    told: Option<HashMap<String, i32>>,
    /// When the next may be told.
    next: Option<Instant>,
    _watch: Watched<Nothing>,
}

/// What is kept of events in view.
#[derive(PartialEq)]
struct Nothing(Infallible);

impl Slim for Nothing {
    fn topic(&self) -> &str {
        match self.0 {}
    }
}

/// An event there.
#[derive(Clone, Debug)]
struct Heard {
    about: About,
    field: Option<String>,
    reason: String,
    message: String,
    warning: bool,
    count: i32,
    first: Option<Time>,
    last: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Pod,
    Claim,
}

/// The object that an event is about, there or at home.
#[derive(Clone, Debug)]
struct About {
    of: Of,
    name: String,
    uid: String,
}

impl Echo {
    pub(super) fn new(ends: &Ends) -> Self {
        let heard: Arc<Mutex<BTreeMap<String, Heard>>> = Arc::default();
        let (changed, news) = watch::channel(0);
        let waiting = Arc::clone(&heard);
        let hear = move |event: Event| {
            if let Some((hash, event)) = Heard::read(event) {
                let mut waiting = lock(&waiting);
                if waiting.len() < MOST_WAITING || waiting.contains_key(&hash) {
                    waiting.insert(hash, event);
                    changed.send_modify(|count| *count += 1);
                }
            }
            None
        };
        let watch = ends
            .there
            .watch_in(&ends.remote, watcher::Config::default(), hear, |room| room);
        // It begins when it is asked.
        drop(watch.version());
        Self {
            heard,
            news,
            told: None,
            next: None,
            _watch: watch,
        }
    }

    /// Changes when an event was heard.
    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.news.clone()
    }

    /// In what time one may be told, if one waits.
    pub(super) fn next(&self) -> Option<Duration> {
        let next = self.next.filter(|_| !lock(&self.heard).is_empty())?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Tells at home what was heard, as fast as events may be made there. An event is a courtesy:
    /// one that cannot be told for good is forgotten.
    pub(super) async fn pass_on(&mut self, ends: &Ends) {
        if self.next.is_some_and(|next| next > Instant::now()) || lock(&self.heard).is_empty() {
            return;
        }
        self.next = self
            .tell(ends)
            .await
            .unwrap_or_else(|error| {
                tracing::debug!(%error, "events of a remote cluster wait");
                Some(PAUSE)
            })
            .map(|pause| Instant::now() + pause);
    }

    /// In what time to go on, if something is left.
    async fn tell(&mut self, ends: &Ends) -> Result<Option<Duration>, ApiError> {
        let told = match &mut self.told {
            Some(told) if told.len() < MOST_TOLD => told,
            told => told.insert(told_before(ends).await?),
        };
        loop {
            let waiting = lock(&self.heard)
                .first_key_value()
                .map(|(hash, it)| (hash.clone(), it.clone()));
            let Some((hash, event)) = waiting else {
                return Ok(None);
            };
            if told.get(&hash).is_none_or(|count| *count < event.count) {
                if let Err(wait) = ends.source.take_turn() {
                    return Ok(Some(wait));
                }
                match event.tell(ends, &hash, told.contains_key(&hash)).await {
                    Err(error) if error.is_transient() => return Err(error),
                    Err(error) => tracing::warn!(%error, "an event of a remote cluster could not be told"),
                    Ok(()) => {}
                }
                told.insert(hash.clone(), event.count);
            }
            let mut heard = lock(&self.heard);
            // It may have been counted on meanwhile.
            if heard.get(&hash).is_some_and(|now| now.count <= event.count) {
                heard.remove(&hash);
            }
        }
    }
}

/// What whoever led before told at home.
async fn told_before(ends: &Ends) -> Result<HashMap<String, i32>, ApiError> {
    let events = ends.home.within::<Event>(&ends.owner.namespace);
    let ours = format!("{}={}", mark::MANAGED_BY, mark::MANAGED_BY_US);
    let told = events.pick(Some(&ours), None, |event| {
        let name = event.name_any();
        let (_, hash) = name.rsplit_once('.')?;
        Some((hash.to_owned(), event.count.unwrap_or(1)))
    });
    Ok(told.await?.into_iter().take(MOST_TOLD / 2).collect())
}

impl Heard {
    /// An event about a pod or a claim, and its hash.
    fn read(event: Event) -> Option<(String, Self)> {
        let about = event.involved_object;
        let of = match about.kind.as_deref()? {
            "Pod" => Of::Pod,
            "PersistentVolumeClaim" => Of::Claim,
            _ => return None,
        };
        let series = event.series.as_ref();
        let count = series.and_then(|it| it.count).or(event.count).unwrap_or(1);
        let at = event.event_time.map(|it| Time(it.0));
        let last = series.and_then(|it| it.last_observed_time.clone());
        let last = last
            .map(|it| Time(it.0))
            .or(event.last_timestamp)
            .or_else(|| at.clone());
        let mut reason = event.reason.unwrap_or_default();
        reason.truncate(reason.floor_char_boundary(LONGEST_REASON));
        let name = about.name.filter(|name| is_name(name))?;
        let hash = digest(DIGITS, [event.metadata.uid.as_deref()?]);
        let heard = Self {
            about: About {
                of,
                name,
                uid: about.uid?,
            },
            field: about.field_path.map(|it| short(&it)),
            reason,
            message: short(&event.message.unwrap_or_default()),
            warning: event.type_.as_deref() == Some("Warning"),
            count: count.max(1),
            first: event.first_timestamp.or(at),
            last,
        };
        Some((hash, heard))
    }

    /// Makes the event at home, or counts it on there; nothing, if what it is about is not ours.
    async fn tell(&self, ends: &Ends, hash: &str, again: bool) -> Result<(), ApiError> {
        let Some(about) = self.about.at_home(ends).await? else {
            return Ok(());
        };
        let namespace = &ends.owner.namespace;
        let events = ends.home.within::<Event>(namespace);
        let kept = about.name.floor_char_boundary(LONGEST_NAME - DIGITS - 1);
        let name = format!("{}.{hash}", about.name[..kept].trim_end_matches(['-', '.']));
        if !again && events.create(&self.event(ends, &name, about)).await?.is_some() {
            return Ok(());
        }
        let counted = json!({"count": self.count, "lastTimestamp": self.last, "message": self.message});
        events.merge(&name, &counted).await.map(drop)
    }

    fn event(&self, ends: &Ends, name: &str, about: About) -> Event {
        let namespace = ends.owner.namespace.clone();
        let kind = match about.of {
            Of::Pod => "Pod",
            Of::Claim => "PersistentVolumeClaim",
        };
        let ours = [(mark::MANAGED_BY.to_owned(), mark::MANAGED_BY_US.to_owned())];
        let cluster = ends.there.id().to_string();
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.clone()),
                labels: Some(ours.into()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some(kind.to_owned()),
                namespace: Some(namespace),
                name: Some(about.name),
                uid: Some(about.uid),
                field_path: self.field.clone(),
                ..ObjectReference::default()
            },
            reason: Some(self.reason.clone()),
            message: Some(self.message.clone()),
            type_: Some(if self.warning { "Warning" } else { "Normal" }.to_owned()),
            count: Some(self.count),
            first_timestamp: self.first.clone(),
            last_timestamp: self.last.clone(),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(cluster.clone()),
            source: Some(EventSource {
                component: Some(COMPONENT.to_owned()),
                host: Some(cluster),
            }),
            ..Event::default()
        }
    }
}

impl About {
    /// The object at home that one there is for, if it is for one and that is still there.
    async fn at_home(&self, ends: &Ends) -> Result<Option<Self>, ApiError> {
        let namespace = &ends.owner.namespace;
        let (name, uid) = match self.of {
            Of::Pod => {
                let pod = ends.there.within::<Pod>(&ends.remote).get(&self.name).await?;
                let pod = pod.filter(|pod| pod.uid().as_ref() == Some(&self.uid));
                let pod = pod.filter(|pod| pod.annotations().get(HOME_UID) == Some(&ends.owner.home_uid));
                let uid = pod.and_then(|pod| pod.annotations().get(HOME_POD_UID).cloned());
                (self.name.clone(), uid)
            }
            Of::Claim => {
                let claims = ends.there.within::<PersistentVolumeClaim>(&ends.remote);
                let claim = claims.get(&self.name).await?;
                let claim = claim.filter(|claim| claim.uid().as_ref() == Some(&self.uid));
                let marks = claim.and_then(|claim| Marks::read(claim.labels(), claim.annotations()).ok());
                let marks = marks.filter(|marks| marks.home == ends.owner.home);
                let of = marks.and_then(|marks| marks.claim);
                let of = of.filter(|of| of.namespace == *namespace && is_name(&of.name));
                of.map_or_else(Default::default, |of| (of.name, Some(of.uid)))
            }
        };
        let Some(uid) = uid else { return Ok(None) };
        let now = match self.of {
            Of::Pod => ends
                .home
                .within::<Pod>(namespace)
                .get(&name)
                .await?
                .and_then(|it| it.uid()),
            Of::Claim => {
                let claims = ends.home.within::<PersistentVolumeClaim>(namespace);
                claims.get(&name).await?.and_then(|it| it.uid())
            }
        };
        let about = Self {
            of: self.of,
            name,
            uid,
        };
        Ok((now.as_ref() == Some(&about.uid)).then_some(about))
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
