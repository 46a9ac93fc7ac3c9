//! Calls to an API server, each within a bounded time. Transient failures are retried within it; every error
//! names object, cluster and cause.

use std::{fmt::Debug, io, sync::Arc, time::Duration};

use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::Status,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Semaphore, time::Instant};

use super::{Calls, Cluster, HOME_PAGE, REMOTE_PAGE, lean::Lean, pages::next_page};
use crate::{offload::cut, volume::DRIVER_NAME};

/// More objects than any cluster has of the listed kinds: a longer list is an error.
const MOST_OBJECTS: u32 = 250_000;
/// Maximum size of a list of a remote cluster, as JSON: tens of thousands of claims.
const MOST_LISTED: usize = 32 << 20;
/// Maximum length of a message of an API server. Some servers send entire web pages, and messages become
/// part of objects.
const LONGEST_MESSAGE: usize = 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The error of one call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {verb} {object} in cluster {cluster}: {cause}")]
pub struct ApiError {
    verb: &'static str,
    object: String,
    cluster: String,
    pub cause: Cause,
}

/// Why a call failed, as far as callers distinguish it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The server cannot be reached, is overloaded or fails. It may recover.
    #[error("{0}")]
    Unavailable(String),
    /// The server does not accept the credentials, which may be renewed; what they would allow is unknown.
    #[error("{0}")]
    Unauthorized(String),
    /// The object has changed since it was read.
    #[error("{0}")]
    Conflict(String),
    /// The caller, which is the driver or the user of a command, lacks a permission, or a quota or admission policy forbids
    /// the call.
    #[error("{0}; check the rights of that user, quotas and admission policies")]
    Forbidden(String),
    /// The server refuses this content.
    #[error("{0}")]
    Invalid(String),
    /// There is no such resource or namespace.
    #[error("{0}")]
    NotFound(String),
    /// The answer is malformed, or too long.
    #[error("the answer cannot be used: {0}")]
    Malformed(String),
}

impl ApiError {
    /// Whether the caller should read again and decide again.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self.cause, Cause::Conflict(_))
    }

    /// Whether the driver lacks a permission, or a policy forbids the call.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self.cause, Cause::Forbidden(_))
    }

    /// Whether the API server refuses the content: a policy forbids it, or it is invalid.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self.cause, Cause::Forbidden(_) | Cause::Invalid(_))
    }

    /// Whether the object would be too large. API servers and etcd report that with different codes.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.cause.to_string().contains("too large")
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.cause,
            Cause::Timeout(_) | Cause::Unavailable(_) | Cause::Unauthorized(_)
        )
    }
}

#[cfg(any(test, feature = "testkit"))]
impl From<&str> for Cause {
    fn from(why: &str) -> Self {
        Self::Unavailable(why.to_owned())
    }
}

#[cfg(any(test, feature = "testkit"))]
impl ApiError {
    #[must_use]
    pub fn for_test(cause: Cause) -> Self {
        Self {
            verb: "read",
            object: "Pod a/b".into(),
            cluster: "home".into(),
            cause,
        }
    }
}

/// `None` after a conflict: the object was changed concurrently, and nothing was written.
pub fn unless_conflict<T>(outcome: Result<Option<T>, ApiError>) -> Result<Option<T>, ApiError> {
    match outcome {
        Err(error) if error.is_conflict() => Ok(None),
        other => other,
    }
}

/// Identifies the object to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    /// The uid, so that no other object of the same name is deleted.
    pub uid: String,
    /// The version, if the object must not have changed since it was read.
    pub resource_version: Option<String>,
}

/// Objects of one kind, in one namespace or everywhere.
pub struct Objects<K> {
    api: Api<Lean<K>>,
    kind: String,
    /// The plural name in API paths.
    plural: String,
    namespace: Option<String>,
    cluster: String,
    calls: Calls,
    /// Limits concurrent lists, because remote clusters may be arbitrarily large.
    lists: Option<Arc<Semaphore>>,
}

impl<K> Objects<K>
where
    K: Resource,
{
    pub(super) fn new(api: Api<Lean<K>>, cluster: &Cluster) -> Self
    where
        K: Resource<DynamicType = ()>,
    {
        Self::of_type(api, &(), cluster)
    }

    /// Objects of a kind that may be known only at run time.
    pub(super) fn of_type(api: Api<Lean<K>>, kind: &K::DynamicType, cluster: &Cluster) -> Self {
        Self {
            namespace: api.namespace().map(str::to_owned),
            api,
            kind: K::kind(kind).into_owned(),
            plural: K::plural(kind).into_owned(),
            cluster: cluster.id().to_string(),
            calls: cluster.calls().clone(),
            lists: cluster.0.lists.clone(),
        }
    }
}

impl<K> Objects<K> {
    pub(super) fn error(&self, verb: &'static str, name: &str, cause: Cause) -> ApiError {
        ApiError {
            verb,
            object: self.describe(name),
            cluster: self.cluster.clone(),
            cause,
        }
    }

    /// The error that an operation on objects of this kind failed.
    #[must_use]
    pub fn failure(&self, verb: &'static str, cause: Cause) -> ApiError {
        self.error(verb, "", cause)
    }

    fn describe(&self, name: &str) -> String {
        match (&self.namespace, name) {
            (Some(namespace), "") => format!("every {} of namespace {namespace}", self.kind),
            (None, "") => format!("every {}", self.kind),
            (Some(namespace), name) => format!("{} {namespace}/{name}", self.kind),
            (None, name) => format!("{} {name}", self.kind),
        }
    }
}

impl<K> Objects<K>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    /// Reads the object of this name live.
    pub async fn get(&self, name: &str) -> Result<Option<K>, ApiError> {
        let found = self.bounded("read", name, || self.api.get_opt(name)).await?;
        Ok(unwrapped(found))
    }

    /// Reads the object of this name live. `None` only if the API server itself reports that exactly this
    /// object does not exist, not if a proxy has no such path.
    pub async fn get_or_gone(&self, name: &str) -> Result<Option<K>, ApiError> {
        let found = self.bounded("read", name, || async {
            match self.api.get(name).await {
                Err(kube::Error::Api(status)) if is_gone(&status, &self.plural, name) => Ok(None),
                other => other.map(|Lean(found)| Some(found)),
            }
        });
        found.await
    }

    /// Lists all objects with these labels live, page by page.
    pub async fn list(&self, labels: Option<&str>) -> Result<Vec<K>, ApiError> {
        self.select(labels, None).await
    }

    /// Lists all objects with these labels and fields live, page by page.
    pub async fn select(&self, labels: Option<&str>, fields: Option<&str>) -> Result<Vec<K>, ApiError> {
        self.pick(labels, fields, Some).await
    }

    /// Lists the objects that match `wanted` live; at most one page of others is in memory.
    pub async fn find(&self, wanted: impl Fn(&K) -> bool) -> Result<Vec<K>, ApiError> {
        self.pick(None, None, |object| wanted(&object).then_some(object))
            .await
    }

    /// Lists the objects with these labels and fields live, and keeps what `wanted` returns; at most one
    /// page of others is in memory.
    pub async fn pick<T>(
        &self,
        labels: Option<&str>,
        fields: Option<&str>,
        wanted: impl Fn(K) -> Option<T>,
    ) -> Result<Vec<T>, ApiError> {
        let _turn = match &self.lists {
            Some(lists) => lists.acquire().await.ok(),
            None => None,
        };
        let limited = self.lists.is_some();
        let (mut found, mut held) = (Vec::new(), 0);
        let size = if limited { REMOTE_PAGE } else { HOME_PAGE };
        let mut params = ListParams::default().limit(size);
        params.label_selector = labels.map(str::to_owned);
        params.field_selector = fields.map(str::to_owned);
        let mut seen = 0;
        while seen < MOST_OBJECTS {
            let asked = params.clone();
            let page = self.bounded("list", "", || async {
                let mut params = asked.clone();
                let page = next_page(&self.api, &mut params, Some(size)).await?;
                Ok((page, params.limit))
            });
            let (page, limit) = page.await?;
            params.limit = limit;
            let Some(page) = page else { continue };
            if let Some(name) = page.too_large {
                // Callers must not assume that an object that is missing in the list does not exist.
                let why = format!("{name} exceeds the size limit for one object");
                return Err(self.error("list", "", Cause::Malformed(why)));
            }
            seen += limit.unwrap_or(size);
            for Lean(object) in page.objects {
                let size = if limited { length(&object) } else { 0 };
                if let Some(object) = wanted(object) {
                    held = size.saturating_add(held);
                    found.push(object);
                }
            }
            if held > MOST_LISTED {
                let why = format!("the list is longer than {} MiB", MOST_LISTED >> 20);
                return Err(self.error("list", "", Cause::Malformed(why)));
            }
            match page.metadata.continue_ {
                Some(next) if !next.is_empty() => params.continue_token = Some(next),
                _ => return Ok(found),
            }
        }
        Err(self.error(
            "list",
            "",
            Cause::Malformed("the list has too many objects".to_owned()),
        ))
    }

    /// Creates the object; `None` if the name is taken, possibly by an earlier attempt whose answer was
    /// lost.
    pub async fn create(&self, object: &K) -> Result<Option<K>, ApiError> {
        let name = object.meta().name.clone().unwrap_or_default();
        let params = PostParams {
            field_manager: Some(DRIVER_NAME.to_owned()),
            ..PostParams::default()
        };
        let object = Lean(object.clone());
        self.bounded("create", &name, || async {
            match self.api.create(&params, &object).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
                other => other.map(|Lean(created)| Some(created)),
            }
        })
        .await
    }

    /// Checks by a dry run whether the API server would accept the object.
    pub async fn try_create(&self, object: &K) -> Result<(), ApiError> {
        let name = object.meta().name.clone().unwrap_or_default();
        let params = PostParams {
            dry_run: true,
            field_manager: Some(DRIVER_NAME.to_owned()),
        };
        let object = Lean(object.clone());
        let tried = self.bounded("create", &name, || self.api.create(&params, &object));
        tried.await.map(drop)
    }

    /// Creates or changes the object as `kubectl apply --server-side` does, with force. Fields that this
    /// driver applied before and that are missing in `object` are removed.
    pub async fn apply(&self, name: &str, object: &serde_json::Value) -> Result<K, ApiError> {
        let params = PatchParams::apply(DRIVER_NAME).force();
        let applied = self.bounded("apply", name, || async {
            self.api.patch(name, &params, &Patch::Apply(object)).await
        });
        applied.await.map(|Lean(object)| object)
    }

    /// Applies a JSON merge patch; `None` if there is no such object. If the patch contains
    /// `metadata.resourceVersion`, a concurrent change is a conflict.
    pub async fn merge(&self, name: &str, patch: &serde_json::Value) -> Result<Option<K>, ApiError> {
        let params = PatchParams {
            field_manager: Some(DRIVER_NAME.to_owned()),
            ..PatchParams::default()
        };
        self.bounded("change", name, || async {
            absent_is_none(self.api.patch(name, &params, &Patch::Merge(patch)).await).map(unwrapped)
        })
        .await
    }

    /// Whether the API server would accept a JSON merge patch: it applies everything but does not store the object.
    pub async fn try_merge(&self, name: &str, patch: &serde_json::Value) -> Result<(), ApiError> {
        let params = PatchParams {
            dry_run: true,
            field_manager: Some(DRIVER_NAME.to_owned()),
            ..PatchParams::default()
        };
        self.bounded("change", name, || async {
            self.api
                .patch(name, &params, &Patch::Merge(patch))
                .await
                .map(drop)
        })
        .await
    }

    /// Applies a JSON merge patch to the status; `None` if there is no such object.
    pub async fn merge_status(&self, name: &str, patch: &serde_json::Value) -> Result<Option<K>, ApiError> {
        self.change_status(name, &Patch::Merge(patch)).await
    }

    /// Applies a JSON merge patch to the status of this very object, not of another one of its name; `None` if it no
    /// longer exists, or is changed at the same time. Its version, read live, is sent for that: the API server ignores the
    /// uid in changes of the status of a custom resource (apiextensions-apiserver, `statusStrategy.PrepareForUpdate`).
    pub async fn merge_status_of(
        &self,
        object: &K,
        mut patch: serde_json::Value,
    ) -> Result<Option<K>, ApiError> {
        let (name, uid) = (object.name_any(), object.uid());
        let Some(live) = self.get(&name).await?.filter(|it| it.uid() == uid) else {
            return Ok(None);
        };
        patch["metadata"]["resourceVersion"] = live.resource_version().into();
        unless_conflict(self.merge_status(&name, &patch).await)
    }

    /// Applies a strategic merge patch to the status of a built-in kind, which merges lists by the key of
    /// their items; `None` if there is no such object.
    pub async fn merge_status_lists(
        &self,
        name: &str,
        patch: &serde_json::Value,
    ) -> Result<Option<K>, ApiError> {
        self.change_status(name, &Patch::Strategic(patch)).await
    }

    /// Applies a JSON merge patch to the approval of a `CertificateSigningRequest`; `None` if there is no
    /// such object.
    pub async fn merge_approval(&self, name: &str, patch: &serde_json::Value) -> Result<Option<K>, ApiError> {
        self.merge_below("approve", "approval", name, patch).await
    }

    /// Applies a JSON merge patch to a subresource of the object; `None` if there is no such object or
    /// subresource.
    pub async fn merge_subresource(
        &self,
        part: &str,
        name: &str,
        patch: &serde_json::Value,
    ) -> Result<Option<K>, ApiError> {
        self.merge_below("change", part, name, patch).await
    }

    async fn merge_below(
        &self,
        verb: &'static str,
        part: &str,
        name: &str,
        patch: &serde_json::Value,
    ) -> Result<Option<K>, ApiError> {
        let params = PatchParams {
            field_manager: Some(DRIVER_NAME.to_owned()),
            ..PatchParams::default()
        };
        self.bounded(verb, name, || async {
            let patched = self
                .api
                .patch_subresource(part, name, &params, &Patch::Merge(patch))
                .await;
            absent_is_none(patched).map(unwrapped)
        })
        .await
    }

    async fn change_status(
        &self,
        name: &str,
        patch: &Patch<&serde_json::Value>,
    ) -> Result<Option<K>, ApiError> {
        let params = PatchParams {
            field_manager: Some(DRIVER_NAME.to_owned()),
            ..PatchParams::default()
        };
        self.bounded("change the status of", name, || async {
            absent_is_none(self.api.patch_status(name, &params, patch).await).map(unwrapped)
        })
        .await
    }

    /// Deletes exactly this object. Success if it is gone already.
    pub async fn delete(&self, name: &str, exactly: Precondition) -> Result<(), ApiError> {
        self.delete_within(name, exactly, None).await
    }

    /// Deletes exactly this object, with this grace period in seconds at most.
    pub async fn delete_within(
        &self,
        name: &str,
        exactly: Precondition,
        grace: Option<u32>,
    ) -> Result<(), ApiError> {
        let params = DeleteParams {
            grace_period_seconds: grace,
            preconditions: Some(Preconditions {
                uid: Some(exactly.uid),
                resource_version: exactly.resource_version,
            }),
            ..DeleteParams::default()
        };
        self.bounded("delete", name, || async {
            absent_is_none(self.api.delete(name, &params).await).map(|_| ())
        })
        .await
    }

    async fn bounded<T, F>(&self, verb: &'static str, name: &str, call: impl Fn() -> F) -> Result<T, ApiError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let described = || self.describe(name);
        bounded(&self.calls, &self.cluster, verb, described, call).await
    }
}

/// Makes a call within a bounded time, and retries it while its failure is transient.
pub(super) async fn bounded<T, F>(
    calls: &Calls,
    cluster: &str,
    verb: &'static str,
    described: impl Fn() -> String,
    call: impl Fn() -> F,
) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let (began, Calls { timeout, metrics, .. }) = (Instant::now(), calls);
    // Futures of kube are large, and every operation awaits several of them.
    let outcome = Box::pin(tokio::time::timeout(*timeout, retried(call))).await;
    let outcome = outcome.unwrap_or(Err(Cause::Timeout(*timeout)));
    let answer = outcome.as_ref().map(|_| ());
    metrics.record(cluster, verb, answer, began.elapsed());
    outcome.map_err(|cause| ApiError {
        verb,
        object: described(),
        cluster: cluster.to_owned(),
        cause,
    })
}

/// The length of an object as JSON.
fn length(object: &impl Serialize) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0 += text.len();
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, object) {
        Ok(()) => counter.0,
        Err(_) => usize::MAX,
    }
}

fn unwrapped<K>(object: Option<Lean<K>>) -> Option<K> {
    object.map(|Lean(object)| object)
}

/// Whether nothing is served under a path. API servers report that in plain text, which kube's
/// `is_not_found` does not recognize.
pub(super) fn is_unserved(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether the API server reports that an object of this kind and name does not exist.
fn is_gone(status: &Status, plural: &str, name: &str) -> bool {
    let details = status.details.as_ref();
    status.is_not_found() && details.is_some_and(|it| it.name == name && it.kind == plural)
}

fn absent_is_none<T>(outcome: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match outcome {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        other => other.map(Some),
    }
}

/// Repeats the call while its failure is transient; the caller bounds the time.
async fn retried<T, F>(call: impl Fn() -> F) -> Result<T, Cause>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let started = tokio::time::Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let cause = match call().await {
            Ok(answer) => return Ok(answer),
            Err(error) => cause(error),
        };
        // Waiting half a minute for an overloaded server would make it worse; the callers retry themselves.
        let (Cause::Unavailable(_) | Cause::Unauthorized(_)) = cause else {
            return Err(cause);
        };
        if started.elapsed() > LONGEST_PAUSE * 3 {
            return Err(cause);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn cause(error: kube::Error) -> Cause {
    match error {
        kube::Error::Api(status) => {
            let message = short(&status.message);
            match status.code {
                409 => Cause::Conflict(message),
                // The uid in the patch is that of another object of this name.
                422 if is_another(&status) => Cause::Conflict(message),
                403 => Cause::Forbidden(message),
                404 => Cause::NotFound(message),
                401 => Cause::Unauthorized(message),
                // A long list that was not read in time (410) can be read again.
                408 | 410 | 429 | 500..=599 => Cause::Unavailable(message),
                _ => Cause::Invalid(message),
            }
        }
        kube::Error::SerdeError(error) => Cause::Malformed(short(&error.to_string())),
        kube::Error::Service(error) if super::cap::is_limit_exceeded(error.as_ref()) => {
            Cause::Malformed(error.to_string())
        }
        kube::Error::FromUtf8(error) => Cause::Malformed(error.to_string()),
        other => Cause::Unavailable(plain(&other)),
    }
}

fn is_another(status: &Status) -> bool {
    let details = status.details.iter();
    let mut causes = details.flat_map(|details| &details.causes);
    causes.any(|cause| cause.field == "metadata.uid")
}

/// The message of an error, without the text that kube puts before it: that names kube's own types and
/// repeats the answer as Rust prints it.
#[must_use]
pub fn plain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        if let Some(status) = answer(error) {
            said.push(short(match status.message.as_str() {
                "" => &status.reason,
                message => message,
            }));
            break;
        }
        let wraps = error.is::<kube::Error>();
        let text = error.to_string();
        let is_said = said.iter().any(|known| known.contains(&text));
        let is_wrapper = wraps && next.is_some();
        if !is_wrapper && !is_said {
            said.push(text);
        }
    }
    short(&said.join(": "))
}

/// The answer of the API server that an error wraps.
fn answer<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Status> {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

/// A message, cut to the length that is kept.
#[must_use]
pub fn short(message: &str) -> String {
    cut(message, LONGEST_MESSAGE)
}

#[cfg(test)]
mod tests;
