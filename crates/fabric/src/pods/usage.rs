//! The usage of the pods of a virtual node, from the metrics API of their cluster. It is read on request, and only for
//! remote pods of this node.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt, api::ObjectMeta, core::NamespaceResourceScope};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Pods;
use crate::{
    cluster::{ApiError, Cause},
    marks::HOME,
    meters::Usage,
    offload::usage::{Container, Counters, Sample},
    seen::SeenPod,
};

/// How long a result is reused: metrics-server measures every 15 s or so.
const AGE: Duration = Duration::from_secs(5);
/// `PodMetrics` of `metrics.k8s.io`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PodMetrics {
    metadata: ObjectMeta,
    timestamp: String,
    window: String,
    #[serde(default)]
    containers: Vec<ContainerMetrics>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ContainerMetrics {
    name: String,
    #[serde(default)]
    usage: BTreeMap<String, String>,
}

impl Resource for PodMetrics {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "PodMetrics".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "metrics.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1beta1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Pods<'_> {
    /// Answers requests for the usage. Never returns.
    pub(super) async fn serve_usage(&self) {
        let mut requests = self.meters.serve(&self.node);
        let (mut counters, mut read) = (Counters::default(), None::<(Instant, Result<(), String>)>);
        while let Some(reply) = requests.next().await {
            if reply.is_closed() {
                continue;
            }
            if read.as_ref().is_none_or(|(when, _)| when.elapsed() >= AGE) {
                let samples = self.samples().await;
                let outcome = samples.map(|samples| counters.take(samples));
                if let Err(why) = &outcome
                    && read
                        .as_ref()
                        .is_none_or(|(_, last)| last.as_ref().err() != Some(why))
                {
                    tracing::warn!(node = self.node, why, "the usage of pods cannot be read");
                }
                read = Some((Instant::now(), outcome));
            }
            let outcome = read.as_ref().map_or(Ok(()), |(_, outcome)| outcome.clone());
            let usage: Usage = outcome.map(|()| counters.clone());
            // Fails if the request has timed out meanwhile.
            let _ = reply.send(usage);
        }
    }

    /// The usage of each container.
    async fn samples(&self) -> Result<Vec<Sample>, String> {
        let pods = self.running().await.map_err(|error| error.to_string())?;
        let namespaces: BTreeSet<String> = pods
            .iter()
            .map(|(_, there)| there.namespace().to_owned())
            .collect();
        let place = self.places.reach(&self.cluster).await?;
        let ours = format!("{HOME}={}", self.places.home.id());
        let lists = namespaces.iter().map(|namespace| {
            let all = place.cluster.within::<PodMetrics>(namespace);
            let ours = &ours;
            async move { all.list(Some(ours)).await }
        });
        let (mut all, mut failed, mut answered) = (HashMap::new(), None, false);
        for list in join_all(lists).await {
            match list {
                Ok(list) => {
                    answered = true;
                    all.extend(list.into_iter().map(|it| ((namespace(&it), it.name_any()), it)));
                }
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed.filter(|_| !answered) {
            return Err(self.explain(&error));
        }
        let measured = pods.iter().filter_map(|(home, there)| {
            let metrics = all.get(&(there.namespace().to_owned(), there.name().to_owned()))?;
            Some(of_pod(home, there, metrics))
        });
        Ok(measured.flatten().collect())
    }

    /// The running home pods of this node, and their remote pods.
    async fn running(&self) -> Result<Vec<(Arc<SeenPod>, Arc<SeenPod>)>, ApiError> {
        let home_uid = self.places.home_uid().await?;
        let running = self.home.all().into_iter().filter_map(|home| {
            let (cluster, namespace) = home.place()?;
            let there = self.there.get(namespace, home.name())?;
            let is_here = cluster == self.cluster.as_str() && home.state.claimed;
            (is_here && there.runs_for(&home, home_uid)).then(|| (Arc::clone(&home), there))
        });
        Ok(running.collect())
    }

    fn explain(&self, error: &ApiError) -> String {
        let cluster = &self.cluster;
        match &error.cause {
            Cause::NotFound(_) => {
                format!("the cluster {cluster} serves no metrics.k8s.io: install metrics-server there")
            }
            Cause::Forbidden(_) => format!(
                "the cluster {cluster} does not let this one read metrics.k8s.io: see remoteAccess.level fabric of the chart \
                 ({error})"
            ),
            _ => error.to_string(),
        }
    }
}

fn namespace(pod: &impl ResourceExt) -> String {
    pod.namespace().unwrap_or_default()
}

/// The usage of the containers of one pod. Container names that the home pod does not have are dropped: the remote
/// cluster may invent any.
fn of_pod(home: &SeenPod, there: &SeenPod, metrics: &PodMetrics) -> Vec<Sample> {
    let Some((at, window)) = when(metrics) else {
        return Vec::new();
    };
    let is_known = |name: &str| home.containers.iter().any(|it| **it == *name);
    let started = |name: &str| {
        let mut since = there.since.iter();
        since.find(|(of, _)| **of == *name).map(|(_, at)| *at)
    };
    let known = metrics.containers.iter().filter(|it| is_known(&it.name));
    let samples = known.filter_map(|it| {
        let (cpu, memory) = Sample::amounts(it.usage.get("cpu")?, it.usage.get("memory")?)?;
        Some(Sample {
            container: Container {
                namespace: home.namespace().to_owned(),
                pod: home.name().to_owned(),
                name: it.name.clone(),
            },
            run: (there.uid().to_owned(), started(&it.name)),
            at,
            window,
            cpu,
            memory,
        })
    });
    samples.collect()
}

/// When a pod was measured, and for how long, in milliseconds.
fn when(metrics: &PodMetrics) -> Option<(i64, u64)> {
    let at: Timestamp = metrics.timestamp.parse().ok()?;
    let window: SignedDuration = metrics.window.parse().ok()?;
    Some((at.as_millisecond(), u64::try_from(window.as_millis()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_go_prints_them() {
        for (window, millis) in [
            ("15s", 15_000),
            ("1m0.5s", 60_500),
            ("30.013s", 30_013),
            ("250ms", 250),
        ] {
            let metrics = PodMetrics {
                metadata: ObjectMeta::default(),
                timestamp: "1970-01-01T00:01:00Z".into(),
                window: window.into(),
                containers: Vec::new(),
            };
            assert_eq!(when(&metrics), Some((60_000, millis)), "{window}");
        }
    }
}
