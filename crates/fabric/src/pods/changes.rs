//! What has changed of a home pod goes to its remote pod. What is refused there is said on the home
//! pod, tried again ever more rarely, and holds nothing else up.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt;
use serde_json::Value;

use super::act::Writer;
use crate::{
    brake::Brake,
    cluster::{ApiError, Cause, Objects, short},
    observe::crash::{self, Step},
    offload::pods::{Change, Patch, without_skipped},
    raw::RawPod,
};

/// What was sent of late, by home pod and change.
#[derive(Default)]
pub(super) struct Sent(Mutex<Brake<String>>);

impl Sent {
    fn holds(&self, key: &str, patch: &String) -> Option<Duration> {
        self.lock().holds(key, patch)
    }

    fn note(&self, key: String, patch: String) {
        self.lock().note(key, patch);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Brake<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of a change.
enum Outcome {
    /// The remote pod is this now.
    Carried(Box<RawPod>),
    /// It is tried again in that time.
    Later(Duration),
    /// The remote pod is another one by now, or gone: a watch is about to tell.
    Outdated,
}

impl Writer<'_> {
    /// Makes the remote pod follow; in what time some of it is tried again. Nothing that fails here
    /// keeps the status from home.
    pub(super) async fn carry_changes(
        &self,
        home: &RawPod,
        remote: &RawPod,
        pods: &Objects<RawPod>,
    ) -> Option<Duration> {
        let ended = home.as_home().ended;
        let wanted = without_skipped(&home.json(), &self.pods.settings());
        let (mut remote, mut again) = (remote.clone(), None::<Duration>);
        for change in Change::ALL
            .into_iter()
            .filter(|it| !ended || *it == Change::Metadata)
        {
            let mut left = 0;
            while let Some(patch) = change.patches(&wanted, &remote.json()).into_iter().nth(left) {
                match self.carry(change, patch, home, &remote, pods).await {
                    Outcome::Carried(written) => remote = *written,
                    Outcome::Later(when) => {
                        left += 1;
                        again = Some(again.map_or(when, |it| it.min(when)));
                    }
                    Outcome::Outdated => return again,
                }
            }
        }
        again
    }

    async fn carry(
        &self,
        change: Change,
        Patch { about, patch }: Patch,
        home: &RawPod,
        remote: &RawPod,
        pods: &Objects<RawPod>,
    ) -> Outcome {
        let (key, text) = (format!("{}/{change:?}/{about}", home.uid()), patch.to_string());
        if let Some(left) = self.pods.sent.holds(&key, &text) {
            return Outcome::Later(left);
        }
        let outcome = send(change, pods, remote, patch).await;
        if outcome.as_ref().is_err_and(ApiError::is_conflict) {
            return Outcome::Outdated;
        }
        self.pods.sent.note(key.clone(), text.clone());
        match outcome {
            Ok(Some(written)) => {
                tracing::debug!(pod = self.look.key, ?change, about, "a change was carried");
                return Outcome::Carried(Box::new(written));
            }
            Ok(None) if self.is_gone(pods, remote).await => return Outcome::Outdated,
            Ok(None) => self.refused(home, change, "it does not serve that").await,
            Err(error) if error.is_refusal() => {
                self.refused(home, change, &error.cause.to_string()).await;
            }
            Err(error) => {
                tracing::warn!(pod = self.look.key, ?change, about, %error, "a change could not be carried: it is tried again");
            }
        }
        Outcome::Later(self.pods.sent.holds(&key, &text).unwrap_or_default())
    }

    /// Whether the pod is not there any more. Otherwise the cluster does not know what was asked.
    async fn is_gone(&self, pods: &Objects<RawPod>, remote: &RawPod) -> bool {
        let found = pods.get(&remote.name_any()).await;
        found.is_ok_and(|found| found.is_none_or(|it| it.uid() != remote.uid()))
    }

    async fn refused(&self, home: &RawPod, change: Change, why: &str) {
        let note = format!(
            "the {} here do not change those of its pod in the cluster {}: {}",
            change.describe(),
            self.pods.cluster,
            short(why)
        );
        tracing::info!(pod = self.look.key, note, "a change is refused");
        let about = reference(home);
        self.pods
            .events
            .warn_object(about, "RemoteChangeRefused", &note)
            .await;
    }
}

/// How events refer to a home pod.
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

/// The remote pod as it has become; `None` if there is none, or the cluster cannot change this of
/// any.
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
        // Some say in plain text that they serve nothing there.
        Err(error) if matches!(error.cause, Cause::NotFound(_)) => Ok(None),
        other => other,
    }
}
