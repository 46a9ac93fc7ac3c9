//! Copies changes of a home pod to its remote pod. A change that is refused there is reported on the home pod,
//! retried with back-off, and delays no other change.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt;
use serde_json::Value;

use super::act::Writer;
use crate::{
    backoff::Backoff,
    cluster::{ApiError, Cause, Objects, short},
    observe::crash::{self, Step},
    offload::pods::{Change, Patch, as_carried, not_kept},
    raw::RawPod,
};

/// Recent patches, by home pod and change.
#[derive(Default)]
pub(super) struct Sent(Mutex<Backoff<String>>);

impl Sent {
    fn remaining(&self, key: &str, patch: &String) -> Option<Duration> {
        self.lock().remaining(key, patch)
    }

    fn record(&self, key: String, patch: String) {
        self.lock().record(key, patch);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Backoff<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Outcome {
    /// The remote pod after the change.
    Applied(Box<RawPod>),
    RetryAfter(Duration),
    /// The remote pod was replaced or deleted: a watch will show it.
    Outdated,
}

impl Writer<'_> {
    /// Applies the changes. Returns the time until a retry, if one failed. That is no error, so that the status is
    /// copied home all the same.
    pub(super) async fn apply_changes(
        &self,
        home: &RawPod,
        remote: &RawPod,
        pods: &Objects<RawPod>,
    ) -> Option<Duration> {
        let ended = home.as_home().ended;
        let wanted = as_carried(home.json(), &self.pods.settings());
        let (mut remote, mut again) = (remote.clone(), None::<Duration>);
        for change in Change::ALL
            .into_iter()
            .filter(|it| !ended || *it == Change::Metadata)
        {
            let mut left = 0;
            while let Some(patch) = change.patches(&wanted, &remote.json()).into_iter().nth(left) {
                match self.apply(change, patch, home, &remote, pods).await {
                    Outcome::Applied(written) => remote = *written,
                    Outcome::RetryAfter(when) => {
                        left += 1;
                        again = Some(again.map_or(when, |it| it.min(when)));
                    }
                    Outcome::Outdated => return again,
                }
            }
        }
        again
    }

    async fn apply(
        &self,
        change: Change,
        Patch { about, patch }: Patch,
        home: &RawPod,
        remote: &RawPod,
        pods: &Objects<RawPod>,
    ) -> Outcome {
        let (key, text) = (format!("{}/{change:?}/{about}", home.uid()), patch.to_string());
        if let Some(left) = self.pods.sent.remaining(&key, &text) {
            return Outcome::RetryAfter(left);
        }
        let outcome = send(change, pods, remote, patch.clone()).await;
        if outcome.as_ref().is_err_and(ApiError::is_conflict) {
            return Outcome::Outdated;
        }
        self.pods.sent.record(key.clone(), text.clone());
        match outcome {
            Ok(Some(written)) => {
                // The change cannot be reverted: a running container can be neither replaced nor, if
                // ephemeral, removed.
                if let Some(field) = not_kept(&patch, &written.json()) {
                    let why = format!("it does not keep {field} as it was sent");
                    self.report_refused_change(home, change, &why).await;
                }
                tracing::debug!(
                    pod = self.observed.key,
                    ?change,
                    about,
                    "applied a change to the remote pod"
                );
                return Outcome::Applied(Box::new(written));
            }
            Ok(None) if self.is_gone(pods, remote).await => return Outcome::Outdated,
            Ok(None) => {
                self.report_refused_change(home, change, "it does not serve the subresource for that")
                    .await;
            }
            Err(error) if error.is_refusal() => {
                self.report_refused_change(home, change, &error.cause.to_string())
                    .await;
            }
            Err(error) => {
                tracing::warn!(pod = self.observed.key, ?change, about, %error, "failed to change a remote pod; will retry");
            }
        }
        Outcome::RetryAfter(self.pods.sent.remaining(&key, &text).unwrap_or_default())
    }

    /// Whether the pod was deleted: 404 may also mean that the cluster lacks the subresource.
    async fn is_gone(&self, pods: &Objects<RawPod>, remote: &RawPod) -> bool {
        let found = pods.get(&remote.name_any()).await;
        found.is_ok_and(|found| found.is_none_or(|it| it.uid() != remote.uid()))
    }

    async fn report_refused_change(&self, home: &RawPod, change: Change, why: &str) {
        let note = format!(
            "the {} of this pod are not applied to its pod in the cluster {}: {}",
            change.describe(),
            self.pods.cluster,
            short(why)
        );
        tracing::info!(
            pod = self.observed.key,
            note,
            "the remote cluster refuses a change of a pod"
        );
        let about = reference(home);
        self.pods
            .events
            .warn_object(about, "RemoteChangeRefused", &note)
            .await;
    }
}

pub(super) fn reference(home: &RawPod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: home.namespace(),
        name: Some(home.name_any()),
        uid: Some(home.uid().to_owned()),
        ..ObjectReference::default()
    }
}

/// The remote pod after the patch; `None` if there is none, or the cluster does not serve the subresource.
async fn send(
    change: Change,
    pods: &Objects<RawPod>,
    remote: &RawPod,
    mut patch: Value,
) -> Result<Option<RawPod>, ApiError> {
    for (key, value) in remote.exactly().as_object().into_iter().flatten() {
        patch["metadata"][key] = value.clone();
    }
    let name = remote.name_any();
    let written = crash::around(Step::PodChange, async {
        match change.subresource() {
            Some(part) => pods.merge_subresource(part, &name, &patch).await,
            None => pods.merge(&name, &patch).await,
        }
    });
    match written.await {
        // Some API servers answer in plain text for a path that they do not serve.
        Err(error) if matches!(error.cause, Cause::NotFound(_)) => Ok(None),
        other => other,
    }
}
