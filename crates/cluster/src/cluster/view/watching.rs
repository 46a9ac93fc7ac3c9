//! Filling a view: the watch that runs behind it, and what becomes of it when the API server
//! refuses, hangs, or sends more than is kept.

use std::{collections::HashMap, fmt::Debug, time::Duration};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Resource, ResourceExt,
    core::Status,
    runtime::{utils::Backoff, watcher},
};
use serde::de::DeserializeOwned;
use tokio::time;
use tokio_util::sync::CancellationToken;

use super::{Exhausted, Kept, Slim, View};
use crate::{
    cluster::{REMOTE_PAGE, budget::Budget, lean::Lean, plain},
    observe::log::Ongoing,
};

/// A watch that goes silent is noticed this much later, plus a few seconds. Whoever waits also
/// looks for himself, and whoever deletes or answers that nothing is there reads live.
const WATCH_SECONDS: u32 = 60;
/// Longest silence on a connection: API servers end each of our watches before.
pub(crate) const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);
const PAGE: u32 = 250;
/// A kind that is not served may be defined at any moment, and somebody wait for it. To be told so
/// costs next to nothing.
const PAUSE_WHILE_NOT_SERVED: Duration = Duration::from_secs(5);
/// Before it is tried again.
const PAUSE_AFTER_TOO_MUCH: Duration = Duration::from_mins(1);
/// A watch that was interrupted and resumed says so only by the next change. When nothing has
/// failed for longer than an attempt can be silent, it runs again.
pub const RUNS_AGAIN: Duration = SILENCE.saturating_add(Duration::from_secs(5));

impl<S: Slim> View<S> {
    /// Watches from the first question until `stop`, keeping what `slim` makes of the
    /// objects it wants. A process that nobody asks anything holds nothing.
    pub fn start<K, F>(api: Api<Lean<K>>, config: watcher::Config, slim: F, stop: &CancellationToken) -> Self
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
        K::DynamicType: Send + Sync,
        F: Fn(K) -> Option<S> + Send + Sync + 'static,
    {
        let config = config.timeout(WATCH_SECONDS).page_size(PAGE);
        Self::begun_with(stop, move |keeper: Self| async move {
            while let Err(Exhausted) = keeper.keep(&api, config.clone(), &slim, &Budget::home()).await {
                tracing::warn!(
                    url = api.resource_url(),
                    "a list is longer than what is kept of a cluster: it is not used"
                );
                keeper.set_outdated(true);
                time::sleep(PAUSE_AFTER_TOO_MUCH).await;
            }
        })
    }

    /// Watches a remote cluster while it has room. When it has none, what is known of it
    /// stays as it is, and whoever looks after the cluster hears of it. Pages may be asked for that
    /// are smaller than others.
    pub fn start_within<K, F>(
        api: Api<Lean<K>>,
        config: watcher::Config,
        slim: F,
        budget: &Budget,
        stop: &CancellationToken,
    ) -> Self
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
        K::DynamicType: Send + Sync,
        F: Fn(K) -> Option<S> + Send + Sync + 'static,
    {
        let page = config.page_size.map_or(REMOTE_PAGE, |it| it.min(REMOTE_PAGE));
        let config = config.timeout(WATCH_SECONDS).page_size(page);
        let budget = budget.clone();
        Self::begun_with(stop, move |keeper: Self| async move {
            if let Err(Exhausted) = keeper.keep(&api, config, &slim, &budget).await {
                let kind = api.resource_url();
                budget.exhaust(kind.rsplit('/').next().unwrap_or_default());
            }
        })
    }

    fn begun_with<F>(stop: &CancellationToken, keep: impl FnOnce(Self) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = stop.clone();
        Self::begun_by(Some(Box::new(move |view: Self| {
            let keep = keep(view.clone());
            tokio::spawn(async move {
                stop.run_until_cancelled_owned(keep).await;
                view.set_outdated(true);
            });
        })))
    }

    async fn keep<K, F>(
        &self,
        api: &Api<Lean<K>>,
        config: watcher::Config,
        slim: &F,
        budget: &Budget,
    ) -> Result<(), Exhausted>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
        F: Fn(K) -> Option<S>,
    {
        let mut listed = HashMap::new();
        // A list may also be endless with objects that nobody wants.
        let mut seen = 0;
        let watch = || watcher(api.clone(), config.clone()).boxed();
        let mut events = watch();
        let mut pauses = watcher::DefaultBackoff::default();
        let (mut is_listing, mut was_refused) = (true, false);
        let kind = api.resource_url();
        let kind = kind.rsplit('/').next().unwrap_or_default();
        let mut trouble = Ongoing::default();
        loop {
            let Ok(event) = time::timeout(RUNS_AGAIN, events.try_next()).await else {
                if !is_listing {
                    self.set_outdated(false);
                }
                continue;
            };
            match event {
                Ok(Some(watcher::Event::Init)) => {
                    is_listing = true;
                    listed.clear();
                    seen = 0;
                }
                Ok(Some(watcher::Event::InitApply(Lean(object)))) => {
                    seen += 1;
                    if seen > budget.most_objects() {
                        return Err(Exhausted);
                    }
                    let key = key(&object);
                    if let Some(value) = slim(object) {
                        let kept = self.kept(budget, &key, value)?;
                        listed.insert(key, kept);
                    }
                }
                Ok(Some(watcher::Event::InitDone)) => {
                    is_listing = false;
                    trouble.is_over();
                    self.replace(std::mem::take(&mut listed));
                    self.set_outdated(false);
                    // What may be listed and not watched must not be listed again and again.
                    if !was_refused {
                        pauses.reset();
                    }
                }
                Ok(Some(watcher::Event::Apply(Lean(object)))) => {
                    let key = key(&object);
                    (was_refused, is_listing) = (false, false);
                    trouble.is_over();
                    let kept = slim(object).map(|value| Kept::new(budget, &key, value));
                    self.set(&key, kept.transpose()?);
                    self.set_outdated(false);
                }
                Ok(Some(watcher::Event::Delete(Lean(object)))) => {
                    self.set(&key(&object), None);
                    self.set_outdated(false);
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    let said = plain(&error);
                    if trouble.is_news(&said) {
                        if is_not_served(&error) {
                            // Nothing is wrong with that; whoever needs the kind says so.
                            tracing::debug!(kind, "a kind is not defined: it is looked for again");
                        } else {
                            tracing::warn!(kind, error = said, "a watch was interrupted");
                        }
                    }
                    self.set_outdated(true);
                    time::sleep(pause(&error, &mut pauses)).await;
                    was_refused = is_refused(&error);
                    if was_refused {
                        // A new list says when it is allowed again; a resumed watch would not.
                        events = watch();
                    }
                }
            }
        }
    }
}

/// Before it is tried again.
fn pause(error: &watcher::Error, pauses: &mut impl Backoff) -> Duration {
    if is_not_served(error) {
        return PAUSE_WHILE_NOT_SERVED;
    }
    pauses.next().unwrap_or(PAUSE_AFTER_TOO_MUCH)
}

/// Whether the API server answered that it does not have the kind.
fn is_not_served(error: &watcher::Error) -> bool {
    status(error).is_some_and(|it| it.code == 404)
}

/// Whether the API server answered that this must not, or cannot, be watched.
fn is_refused(error: &watcher::Error) -> bool {
    status(error).is_some_and(|it| matches!(it.code, 401 | 403 | 404))
}

/// What the API server answered.
fn status(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => Some(status),
        _ => None,
    }
}

fn key<K: Resource>(object: &K) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16) -> watcher::Error {
        let status = Status {
            code,
            ..Status::failure("scripted", "Scripted")
        };
        watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn a_kind_that_may_be_defined_is_looked_for_soon_however_often_it_was_missed() {
        let mut pauses = watcher::DefaultBackoff::default();
        for _ in 0..20 {
            assert_eq!(pause(&answer(404), &mut pauses), Duration::from_secs(5));
        }
        let other: Vec<_> = (0..20).map(|_| pause(&answer(500), &mut pauses)).collect();
        assert!(other[19] > Duration::from_secs(20), "{other:?}");
    }
}
