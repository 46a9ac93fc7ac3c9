//! Fills a view: the watch behind it, and its behaviour when the API server refuses, hangs, or sends more
//! than the limits allow.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    sync::{PoisonError, atomic::Ordering},
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
    runtime::{utils::Backoff, watcher},
};
use serde::de::DeserializeOwned;
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;

use super::{Exhausted, NOT_FULL, OverBudget, Slim, View, ViewBudgets};
use crate::{
    cluster::{
        HOME_PAGE, REMOTE_PAGE,
        api::is_unserved,
        budget::Budget,
        cap::is_limit_exceeded,
        lean::Lean,
        pages::{key, next_page},
        plain,
    },
    observe::log::Ongoing,
};

/// A dead watch is noticed after this time, plus a few seconds. Waiters also read live now and then, and so
/// does code that deletes, or reports that an object does not exist.
const WATCH_SECONDS: u32 = 60;
/// The length of a watch while a view is full: when the watch ends, the view lists again if the budget allows it.
const WATCH_SECONDS_WHILE_FULL: u32 = 10;
/// Longest silence on a connection: API servers end each watch of this driver before.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);
/// A kind that is not served may be defined at any moment, and a caller may wait for it. A request costs
/// next to nothing.
const PAUSE_WHILE_NOT_SERVED: Duration = Duration::from_secs(5);
/// A watch that ends sooner is restarted only after this time.
const SHORTEST_WATCH: Duration = Duration::from_millis(250);
/// The pause after a limit was exceeded.
const LIMIT_PAUSE: Duration = Duration::from_mins(1);
/// A watch without a failure for longer than an attempt can take is running again.
pub const RUNS_AGAIN: Duration = READ_TIMEOUT.saturating_add(Duration::from_secs(5));

impl<S: Slim> View<S> {
    /// Watches from the first read until `stop`, and keeps what `slim` returns. A view that is never read
    /// has no watch.
    pub fn start<K, F>(api: Api<Lean<K>>, config: watcher::Config, slim: F, stop: &CancellationToken) -> Self
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
        K::DynamicType: Send + Sync,
        F: Fn(K) -> Option<S> + Send + Sync + 'static,
    {
        let config = config.timeout(WATCH_SECONDS).page_size(HOME_PAGE);
        Self::begun_with(stop, move |keeper: Self| async move {
            loop {
                let budgets = ViewBudgets::from(&Budget::home());
                let Exhausted = keeper.keep(&api, &config, &slim, &budgets).await;
                tracing::warn!(
                    url = api.resource_url(),
                    "a list exceeds the limits for a cluster; ignoring it"
                );
                keeper.set_outdated(true);
                time::sleep(LIMIT_PAUSE).await;
            }
        })
    }

    /// Watches a remote cluster within its budget. When that is exhausted, the view keeps its state, and the
    /// owner of the budget is notified. The pages may be smaller.
    pub fn start_within<K, F>(
        api: Api<Lean<K>>,
        config: watcher::Config,
        slim: F,
        budgets: impl Into<ViewBudgets<S>>,
        stop: &CancellationToken,
    ) -> Self
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
        K::DynamicType: Send + Sync,
        F: Fn(K) -> Option<S> + Send + Sync + 'static,
    {
        let page = config.page_size.map_or(REMOTE_PAGE, |it| it.min(REMOTE_PAGE));
        let config = config.timeout(WATCH_SECONDS).page_size(page);
        let budgets = budgets.into();
        Self::begun_with(stop, move |keeper: Self| async move {
            let ready = budgets
                .ready
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(ready) = ready {
                ready.await;
            }
            let Exhausted = keeper.keep(&api, &config, &slim, &budgets).await;
            let kind = api.resource_url();
            budgets
                .cluster
                .exhaust(kind.rsplit('/').next().unwrap_or_default());
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

    /// Lists and watches forever; returns only when the budget is exhausted.
    async fn keep<K, F>(
        &self,
        api: &Api<Lean<K>>,
        config: &watcher::Config,
        slim: &F,
        budgets: &ViewBudgets<S>,
    ) -> Exhausted
    where
        K: Resource + Clone + Debug + DeserializeOwned + 'static,
        F: Fn(K) -> Option<S>,
    {
        let mut failures = Failures::default();
        loop {
            let version = match self.list(api, config, slim, budgets).await {
                Ok(Ok(version)) => version,
                Ok(Err(error)) => {
                    self.interrupted(api.resource_url(), &mut failures, &error).await;
                    continue;
                }
                Err(exhausted) => return exhausted,
            };
            self.set_outdated(false);
            failures.is_over();
            if let Err(exhausted) = self
                .watch(api, config, version, slim, budgets, &mut failures)
                .await
            {
                return exhausted;
            }
        }
    }

    /// Reads everything again, page by page; returns the version from which to watch. An object that exceeds
    /// the limit is skipped, because otherwise nothing after it would ever be read.
    async fn list<K, F>(
        &self,
        api: &Api<Lean<K>>,
        config: &watcher::Config,
        slim: &F,
        budgets: &ViewBudgets<S>,
    ) -> Result<Result<String, kube::Error>, Exhausted>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
        F: Fn(K) -> Option<S>,
    {
        let mut params = ListParams {
            label_selector: config.label_selector.clone(),
            field_selector: config.field_selector.clone(),
            limit: config.page_size,
            ..ListParams::default()
        };
        let (mut listed, mut too_large) = (HashMap::new(), BTreeSet::new());
        // A list may also be endless with objects that are not kept.
        let (mut seen, mut smallest_omitted) = (0, NOT_FULL);
        loop {
            let page = match next_page(api, &mut params, config.page_size).await {
                Ok(Some(page)) => page,
                Ok(None) => continue,
                Err(error) => return Ok(Err(error)),
            };
            seen += page.objects.len().max(1);
            if seen > budgets.cluster.most_objects() {
                return Err(Exhausted);
            }
            too_large.extend(page.too_large);
            for Lean(object) in page.objects {
                let key = key(&object);
                if let Some(value) = slim(object) {
                    match self.kept(budgets, &key, value)? {
                        Ok(kept) => drop(listed.insert(key, kept)),
                        Err(OverBudget(bytes)) => smallest_omitted = smallest_omitted.min(bytes),
                    }
                }
            }
            params.continue_token = page.metadata.continue_.filter(|it| !it.is_empty());
            if params.continue_token.is_none() {
                self.note_too_large(api.resource_url(), too_large);
                self.0.smallest_omitted.store(smallest_omitted, Ordering::Relaxed);
                self.replace(listed);
                return Ok(Ok(page.metadata.resource_version.unwrap_or_default()));
            }
        }
    }

    /// Logs once which objects are not shown, because they are too large to be read.
    fn note_too_large(&self, url: &str, now: BTreeSet<String>) {
        let mut known = self.0.too_large.write().unwrap_or_else(PoisonError::into_inner);
        for key in now.difference(&known) {
            tracing::warn!(
                url,
                object = key,
                "an object exceeds the size limit: it is ignored, as if it did not exist, unless it is read \
                 by its name"
            );
        }
        *known = now;
    }

    /// Follows changes since this version, until everything has to be listed again.
    async fn watch<K, F>(
        &self,
        api: &Api<Lean<K>>,
        config: &watcher::Config,
        mut version: String,
        slim: &F,
        budgets: &ViewBudgets<S>,
        failures: &mut Failures,
    ) -> Result<(), Exhausted>
    where
        K: Resource + Clone + Debug + DeserializeOwned + 'static,
        F: Fn(K) -> Option<S>,
    {
        let mut params = WatchParams {
            label_selector: config.label_selector.clone(),
            field_selector: config.field_selector.clone(),
            ..WatchParams::default()
        };
        let mut failed = None::<Instant>;
        loop {
            params.timeout = if self.is_full() {
                Some(WATCH_SECONDS_WHILE_FULL)
            } else {
                config.timeout
            };
            let began = Instant::now();
            let watched = match api.watch(&params, &version).await {
                Ok(events) if failed.is_some() => match went_back(api, config, &version).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => Ok(events),
                    Err(error) => Err(error),
                },
                watched => watched,
            };
            let error = match watched {
                Ok(events) => {
                    let mut events = Box::pin(events);
                    loop {
                        let since = failed.map_or(Duration::ZERO, |when| when.elapsed());
                        let next = time::timeout(RUNS_AGAIN.saturating_sub(since), events.next()).await;
                        let event = match next {
                            Ok(Some(Ok(WatchEvent::Error(status)))) => {
                                break Some(kube::Error::Api(status.boxed()));
                            }
                            Ok(Some(Ok(event))) => Some(event),
                            Ok(Some(Err(error))) => break Some(error),
                            // No failure for longer than an attempt can take.
                            Err(_) if failed.is_some() => None,
                            // The watch has ended, or hangs.
                            Ok(None) | Err(_) => break None,
                        };
                        failed = None;
                        self.set_outdated(false);
                        if let Some(event) = event {
                            failures.was_refused = false;
                            let now = self.apply(event, slim, budgets)?;
                            version = now.filter(|it| !it.is_empty()).unwrap_or(version);
                        }
                    }
                }
                Err(error) => Some(error),
            };
            let Some(error) = error else {
                // An API server that ends each watch at once gets no more requests than this.
                time::sleep(SHORTEST_WATCH.saturating_sub(began.elapsed())).await;
                // Only a new list returns the objects that were omitted.
                if self.is_full() && budgets.own_allows(self.smallest_omitted()) {
                    return Ok(());
                }
                continue;
            };
            failed = Some(Instant::now());
            self.interrupted(api.resource_url(), failures, &error).await;
            // A new list shows when the access is allowed again, which a resumed watch would not, and it
            // gets past an object that is too large.
            let gone = matches!(&error, kube::Error::Api(status) if status.code == 410);
            failures.was_refused = is_refused(&error) || is_limit_exceeded(&error);
            if gone || failures.was_refused {
                return Ok(());
            }
        }
    }

    /// Applies an event of the watch; returns the new version.
    fn apply<K: Resource>(
        &self,
        event: WatchEvent<Lean<K>>,
        slim: &impl Fn(K) -> Option<S>,
        budgets: &ViewBudgets<S>,
    ) -> Result<Option<String>, Exhausted> {
        let (Lean(object), is_there) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
            WatchEvent::Deleted(object) => (object, false),
            WatchEvent::Bookmark(it) => return Ok(Some(it.metadata.resource_version)),
            WatchEvent::Error(_) => return Ok(None),
        };
        let (key, version) = (key(&object), object.meta().resource_version.clone());
        let value = is_there.then(|| slim(object)).flatten();
        let kept = value.map(|value| budgets.keep(&key, value)).transpose()?;
        if let Some(Err(OverBudget(bytes))) = kept {
            self.0.smallest_omitted.fetch_min(bytes, Ordering::Relaxed);
        }
        self.set(&key, kept.and_then(Result::ok));
        Ok(version)
    }

    /// Marks the view as outdated; returns when it may be retried.
    async fn interrupted(&self, url: &str, failures: &mut Failures, error: &kube::Error) {
        let said = plain(error);
        if failures.news.is_news(&said) {
            let kind = url.rsplit('/').next().unwrap_or_default();
            if is_unserved(error) {
                // This is not an error; code that needs the kind reports it.
                tracing::debug!(kind, "a kind is not defined; retrying");
            } else {
                tracing::warn!(kind, error = said, "a watch was interrupted");
            }
        }
        self.set_outdated(true);
        time::sleep(pause(error, &mut failures.pauses)).await;
    }
}

/// The recent failures of a watch.
#[derive(Default)]
struct Failures {
    pauses: watcher::DefaultBackoff,
    was_refused: bool,
    news: Ongoing,
}

impl Failures {
    /// Everything was listed.
    fn is_over(&mut self) {
        self.news.is_over();
        // If listing is allowed and watching is not, the list must not be repeated without a pause.
        if !self.was_refused {
            self.pauses.reset();
        }
    }
}

/// Whether the API server has not reached this version any more: after a failure, because its storage was restored from a
/// backup. A watch from this version would show nothing, and report no error, until it is reached again.
async fn went_back<K>(
    api: &Api<Lean<K>>,
    config: &watcher::Config,
    version: &str,
) -> Result<bool, kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let params = ListParams {
        label_selector: config.label_selector.clone(),
        field_selector: config.field_selector.clone(),
        limit: Some(1),
        ..ListParams::default()
    };
    let now = api.list_metadata(&params).await?.metadata.resource_version;
    let now = now.and_then(|it| it.parse::<u64>().ok());
    let then = version.parse::<u64>().ok();
    Ok(now.zip(then).is_some_and(|(now, then)| now < then))
}

/// The pause before a retry.
fn pause(error: &kube::Error, pauses: &mut impl Backoff) -> Duration {
    if is_unserved(error) {
        return PAUSE_WHILE_NOT_SERVED;
    }
    pauses.next().unwrap_or(LIMIT_PAUSE)
}

/// Whether the API server answered that the kind must not, or cannot, be watched.
fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answer(code: u16) -> kube::Error {
        let status = Status {
            code,
            ..Status::failure("scripted", "Scripted")
        };
        kube::Error::Api(status.boxed())
    }

    #[test]
    fn a_kind_that_may_be_installed_is_retried_without_long_back_off() {
        let mut pauses = watcher::DefaultBackoff::default();
        for _ in 0..20 {
            assert_eq!(pause(&answer(404), &mut pauses), Duration::from_secs(5));
        }
        let other: Vec<_> = (0..20).map(|_| pause(&answer(500), &mut pauses)).collect();
        assert!(other[19] > Duration::from_secs(20), "{other:?}");
    }
}
