//! Mirrors events of a remote namespace on remote pods and twins: as events on their home pods and claims.

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

const COMPONENT: &str = "liqo-csi-fabric";
/// Digits of the hash of the remote event's uid in the name of the event at home.
const DIGITS: usize = 16;
/// The longest name of an object.
const LONGEST_NAME: usize = 253;
/// The longest reason that Kubernetes accepts.
const LONGEST_REASON: usize = 128;
/// Pending events; further ones are dropped.
const MOST_WAITING: usize = 1000;
/// Events remembered as mirrored. Others are mirrored again, which changes nothing at home.
const MOST_REMEMBERED: usize = 20_000;
/// The pause after a failed request.
const PAUSE: Duration = Duration::from_secs(5);

pub(super) struct EventMirror {
    pending: Arc<Mutex<BTreeMap<String, RemoteEvent>>>,
    changes: watch::Receiver<u64>,
    /// The mirrored counts, by hash; `None` until the events of earlier leaders are listed.
    mirrored: Option<HashMap<String, i32>>,
    /// When the next may be mirrored.
    next: Option<Instant>,
    _watch: Watched<Nothing>,
}

/// The view keeps no events.
#[derive(PartialEq)]
struct Nothing(Infallible);

impl Slim for Nothing {
    fn topic(&self) -> &str {
        match self.0 {}
    }
}

#[derive(Clone, Debug)]
struct RemoteEvent {
    regarding: Regarding,
    field: Option<String>,
    reason: String,
    message: String,
    warning: bool,
    count: i32,
    first: Option<Time>,
    last: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pod,
    Claim,
}

/// The object of an event, there or at home.
#[derive(Clone, Debug)]
struct Regarding {
    kind: Kind,
    name: String,
    uid: String,
}

impl EventMirror {
    pub(super) fn new(ends: &Ends) -> Self {
        let pending: Arc<Mutex<BTreeMap<String, RemoteEvent>>> = Arc::default();
        let (sender, changes) = watch::channel(0);
        let waiting = Arc::clone(&pending);
        let collect = move |event: Event| {
            if let Some((hash, event)) = RemoteEvent::read(event) {
                let mut waiting = lock(&waiting);
                if waiting.len() < MOST_WAITING || waiting.contains_key(&hash) {
                    waiting.insert(hash, event);
                    sender.send_modify(|count| *count += 1);
                }
            }
            None
        };
        let watch = ends
            .there
            .watch_in(&ends.remote, watcher::Config::default(), collect, |budgets| {
                budgets
            });
        // Starts the watch.
        drop(watch.version());
        Self {
            pending,
            changes,
            mirrored: None,
            next: None,
            _watch: watch,
        }
    }

    /// Changes when an event was received.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// The time until the next pending event may be mirrored.
    pub(super) fn next(&self) -> Option<Duration> {
        let next = self.next.filter(|_| !lock(&self.pending).is_empty())?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Mirrors pending events, as fast as the rate limit of the namespace permits. Events that cannot be mirrored are
    /// dropped: nothing depends on them.
    pub(super) async fn mirror(&mut self, ends: &Ends) {
        if self.next.is_some_and(|next| next > Instant::now()) || lock(&self.pending).is_empty() {
            return;
        }
        self.next = self
            .mirror_pending(ends)
            .await
            .unwrap_or_else(|error| {
                tracing::debug!(%error, "events of a remote cluster wait");
                Some(PAUSE)
            })
            .map(|pause| Instant::now() + pause);
    }

    /// Returns the time until the next attempt, if events are left.
    async fn mirror_pending(&mut self, ends: &Ends) -> Result<Option<Duration>, ApiError> {
        let mirrored = match &mut self.mirrored {
            Some(mirrored) if mirrored.len() < MOST_REMEMBERED => mirrored,
            mirrored => mirrored.insert(mirrored_before(ends).await?),
        };
        loop {
            let waiting = lock(&self.pending)
                .first_key_value()
                .map(|(hash, it)| (hash.clone(), it.clone()));
            let Some((hash, event)) = waiting else {
                return Ok(None);
            };
            if mirrored.get(&hash).is_none_or(|count| *count < event.count) {
                if let Err(wait) = ends.source.may_emit() {
                    return Ok(Some(wait));
                }
                match event.write(ends, &hash, mirrored.contains_key(&hash)).await {
                    Err(error) if error.is_transient() => return Err(error),
                    Err(error) => {
                        tracing::warn!(%error, "an event of a remote cluster could not be mirrored");
                    }
                    Ok(()) => {}
                }
                mirrored.insert(hash.clone(), event.count);
            }
            let mut pending = lock(&self.pending);
            // The count of the event may have grown meanwhile.
            if pending.get(&hash).is_some_and(|now| now.count <= event.count) {
                pending.remove(&hash);
            }
        }
    }
}

/// The counts of events that earlier leaders have mirrored.
async fn mirrored_before(ends: &Ends) -> Result<HashMap<String, i32>, ApiError> {
    let events = ends.home.within::<Event>(&ends.owner.namespace);
    let ours = format!("{}={}", mark::MANAGED_BY, mark::MANAGED_BY_US);
    let mirrored = events.pick(Some(&ours), None, |event| {
        let name = event.name_any();
        let (_, hash) = name.rsplit_once('.')?;
        Some((hash.to_owned(), event.count.unwrap_or(1)))
    });
    Ok(mirrored.await?.into_iter().take(MOST_REMEMBERED / 2).collect())
}

impl RemoteEvent {
    /// An event on a pod or a claim, and its hash.
    fn read(event: Event) -> Option<(String, Self)> {
        let regarding = event.involved_object;
        let kind = match regarding.kind.as_deref()? {
            "Pod" => Kind::Pod,
            "PersistentVolumeClaim" => Kind::Claim,
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
        let name = regarding.name.filter(|name| is_name(name))?;
        let hash = digest(DIGITS, [event.metadata.uid.as_deref()?]);
        let remote = Self {
            regarding: Regarding {
                kind,
                name,
                uid: regarding.uid?,
            },
            field: regarding.field_path.map(|it| short(&it)),
            reason,
            message: short(&event.message.unwrap_or_default()),
            warning: event.type_.as_deref() == Some("Warning"),
            count: count.max(1),
            first: event.first_timestamp.or(at),
            last,
        };
        Some((hash, remote))
    }

    /// Creates the event at home, or updates its count. Does nothing if it is not about an object of ours.
    async fn write(&self, ends: &Ends, hash: &str, again: bool) -> Result<(), ApiError> {
        let Some(regarding) = self.regarding.at_home(ends).await? else {
            return Ok(());
        };
        let namespace = &ends.owner.namespace;
        let events = ends.home.within::<Event>(namespace);
        let kept = regarding.name.floor_char_boundary(LONGEST_NAME - DIGITS - 1);
        let name = format!("{}.{hash}", regarding.name[..kept].trim_end_matches(['-', '.']));
        if !again
            && events
                .create(&self.event(ends, &name, regarding))
                .await?
                .is_some()
        {
            return Ok(());
        }
        let counted = json!({"count": self.count, "lastTimestamp": self.last, "message": self.message});
        events.merge(&name, &counted).await.map(drop)
    }

    fn event(&self, ends: &Ends, name: &str, regarding: Regarding) -> Event {
        let namespace = ends.owner.namespace.clone();
        let kind = match regarding.kind {
            Kind::Pod => "Pod",
            Kind::Claim => "PersistentVolumeClaim",
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
                name: Some(regarding.name),
                uid: Some(regarding.uid),
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

impl Regarding {
    /// The object at home that this remote one belongs to, if that still exists. Read live: an event must not appear on
    /// another object of the same name.
    async fn at_home(&self, ends: &Ends) -> Result<Option<Self>, ApiError> {
        let namespace = &ends.owner.namespace;
        let (name, uid) = match self.kind {
            Kind::Pod => {
                let pod = ends.there.within::<Pod>(&ends.remote).get(&self.name).await?;
                let pod = pod.filter(|pod| pod.uid().as_ref() == Some(&self.uid));
                let pod = pod.filter(|pod| pod.annotations().get(HOME_UID) == Some(&ends.owner.home_uid));
                let uid = pod.and_then(|pod| pod.annotations().get(HOME_POD_UID).cloned());
                (self.name.clone(), uid)
            }
            Kind::Claim => {
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
        let now = match self.kind {
            Kind::Pod => ends
                .home
                .within::<Pod>(namespace)
                .get(&name)
                .await?
                .and_then(|it| it.uid()),
            Kind::Claim => {
                let claims = ends.home.within::<PersistentVolumeClaim>(namespace);
                claims.get(&name).await?.and_then(|it| it.uid())
            }
        };
        let regarding = Self {
            kind: self.kind,
            name,
            uid,
        };
        Ok((now.as_ref() == Some(&regarding.uid)).then_some(regarding))
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
