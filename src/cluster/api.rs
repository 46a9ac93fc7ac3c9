//! Calls to an API server that always end: each within a bounded time, transient
//! failures retried inside it, every error naming object, cluster and cause.

use std::{fmt::Debug, time::Duration};

use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};

use super::Cluster;
use crate::volume::DRIVER_NAME;

const PAGE: u32 = 250;
/// More than any cluster has of what we list: a list that does not end is none.
const MOST_PAGES: usize = 1000;
/// As much as people read of what an API server says. Some send whole web pages,
/// and what they say becomes part of our objects.
const LONGEST_MESSAGE: usize = 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What went wrong with one call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {verb} {object} in cluster {cluster}: {cause}")]
pub struct ApiError {
    verb: &'static str,
    object: String,
    cluster: String,
    /// Why.
    pub cause: Cause,
}

/// Why a call failed, as far as callers tell cases apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The server cannot be reached, is overloaded or broken. It may recover.
    #[error("{0}")]
    Unavailable(String),
    /// The object is not what the caller thought it was.
    #[error("{0}")]
    Conflict(String),
    /// We lack a permission, or a quota or admission policy forbids it.
    #[error("{0}; check this driver's role, quotas and admission policies")]
    Forbidden(String),
    /// The server refuses this content.
    #[error("{0}")]
    Invalid(String),
    /// There is no such resource or namespace.
    #[error("{0}")]
    NotFound(String),
    /// The answer makes no sense, or is far too long.
    #[error("the answer cannot be used: {0}")]
    Malformed(String),
}

impl ApiError {
    /// Whether to read again and decide anew.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self.cause, Cause::Conflict(_))
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.cause, Cause::Timeout(_) | Cause::Unavailable(_))
    }
}

#[cfg(test)]
impl ApiError {
    pub(crate) fn for_test(cause: Cause) -> Self {
        Self {
            verb: "read",
            object: "Pod a/b".into(),
            cluster: "home".into(),
            cause,
        }
    }
}

/// Which object exactly to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    /// Its uid: never another object of the same name.
    pub uid: String,
    /// Its version, when it must not have changed since it was read.
    pub resource_version: Option<String>,
}

/// Objects of one kind, in one namespace or everywhere.
pub struct Objects<K> {
    api: Api<K>,
    kind: String,
    namespace: Option<String>,
    cluster: String,
    timeout: Duration,
}

impl<K> Objects<K>
where
    K: Resource<DynamicType = ()>,
{
    pub(super) fn new(api: Api<K>, cluster: &Cluster) -> Self {
        Self {
            namespace: api.namespace().map(str::to_owned),
            api,
            kind: K::kind(&()).into_owned(),
            cluster: cluster.id().to_string(),
            timeout: cluster.0.call_timeout,
        }
    }
}

impl<K> Objects<K>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    /// The object of this name, read live.
    pub async fn get(&self, name: &str) -> Result<Option<K>, ApiError> {
        self.bounded("read", name, || self.api.get_opt(name)).await
    }

    /// Every object with these labels, read live, page by page.
    pub async fn list(&self, labels: Option<&str>) -> Result<Vec<K>, ApiError> {
        self.select(labels, None).await
    }

    /// Every object with these labels and fields, read live, page by page.
    pub async fn select(&self, labels: Option<&str>, fields: Option<&str>) -> Result<Vec<K>, ApiError> {
        let mut found = Vec::new();
        let mut page = ListParams::default().limit(PAGE);
        page.label_selector = labels.map(str::to_owned);
        page.field_selector = fields.map(str::to_owned);
        for _ in 0..MOST_PAGES {
            let list = self.bounded("list", "", || self.api.list(&page)).await?;
            found.extend(list.items);
            match list.metadata.continue_ {
                Some(next) if !next.is_empty() => page.continue_token = Some(next),
                _ => return Ok(found),
            }
        }
        Err(self.error("list", "", Cause::Malformed("the list does not end".to_owned())))
    }

    /// Creates the object; `None` when that name is taken, be it by ourselves in
    /// an attempt whose answer got lost.
    pub async fn create(&self, object: &K) -> Result<Option<K>, ApiError> {
        let name = object.meta().name.clone().unwrap_or_default();
        let params = PostParams {
            field_manager: Some(DRIVER_NAME.to_owned()),
            ..PostParams::default()
        };
        self.bounded("create", &name, || async {
            match self.api.create(&params, object).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
                other => other.map(Some),
            }
        })
        .await
    }

    /// Applies a JSON merge patch; `None` when there is no such object. With
    /// `metadata.resourceVersion` in it, a change in between is a conflict.
    pub async fn merge(&self, name: &str, patch: &serde_json::Value) -> Result<Option<K>, ApiError> {
        let params = PatchParams {
            field_manager: Some(DRIVER_NAME.to_owned()),
            ..PatchParams::default()
        };
        self.bounded("change", name, || async {
            absent_is_none(self.api.patch(name, &params, &Patch::Merge(patch)).await)
        })
        .await
    }

    /// Applies a JSON merge patch to the status; `None` when there is no such object.
    pub async fn merge_status(&self, name: &str, patch: &serde_json::Value) -> Result<Option<K>, ApiError> {
        let params = PatchParams {
            field_manager: Some(DRIVER_NAME.to_owned()),
            ..PatchParams::default()
        };
        self.bounded("change the status of", name, || async {
            absent_is_none(self.api.patch_status(name, &params, &Patch::Merge(patch)).await)
        })
        .await
    }

    /// Deletes exactly this object. One that is gone already is deleted.
    pub async fn delete(&self, name: &str, exactly: Precondition) -> Result<(), ApiError> {
        let params = DeleteParams {
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
        // Futures of kube are large, and every operation awaits many of them.
        let outcome = Box::pin(tokio::time::timeout(self.timeout, retried(call))).await;
        outcome
            .unwrap_or(Err(Cause::Timeout(self.timeout)))
            .map_err(|cause| self.error(verb, name, cause))
    }

    fn error(&self, verb: &'static str, name: &str, cause: Cause) -> ApiError {
        ApiError {
            verb,
            object: self.describe(name),
            cluster: self.cluster.clone(),
            cause,
        }
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

fn absent_is_none<T>(outcome: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match outcome {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        other => other.map(Some),
    }
}

/// Repeats while the failure may pass; the caller bounds the time.
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
        // Whoever waits half a minute for an overloaded server makes it worse;
        // our callers come back by themselves.
        let Cause::Unavailable(_) = cause else {
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
                403 => Cause::Forbidden(message),
                404 => Cause::NotFound(message),
                // A credential that expired (401) is renewed; what it would allow is not known.
                401 | 408 | 429 | 500..=599 => Cause::Unavailable(message),
                _ => Cause::Invalid(message),
            }
        }
        kube::Error::SerdeError(error) => Cause::Malformed(short(&error.to_string())),
        kube::Error::Service(error) if super::cap::is_too_long(error.as_ref()) => {
            Cause::Malformed(error.to_string())
        }
        kube::Error::FromUtf8(error) => Cause::Malformed(error.to_string()),
        other => Cause::Unavailable(chain(&other)),
    }
}

/// The whole chain: hyper's own message says only that something failed.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    short(&text)
}

/// A message as far as it is kept.
pub(super) fn short(message: &str) -> String {
    let end = message.floor_char_boundary(LONGEST_MESSAGE);
    let cut = if end < message.len() { "…" } else { "" };
    format!("{}{cut}", &message[..end])
}

#[cfg(test)]
mod tests;
