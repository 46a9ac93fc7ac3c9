//! The timeout of calls to an API server, the metrics of their duration and outcome, and the rights
//! that it could not evaluate. The duration of a watch ends when the watch has begun or failed to
//! begin.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::Cause;
use crate::observe::log::Ongoing;

/// Buckets: from an API server on the same network to a call that times out.
const SECONDS: [f64; 8] = [0.002, 0.01, 0.05, 0.2, 1.0, 3.0, 10.0, 30.0];

/// How calls to an API server are made.
#[derive(Clone)]
pub struct Calls {
    pub timeout: Duration,
    pub metrics: Metrics,
    pub(super) unanswered: Unanswered,
}

impl Calls {
    #[must_use]
    pub fn new(timeout: Duration, metrics: Metrics) -> Self {
        Self {
            timeout,
            metrics,
            unanswered: Unanswered::default(),
        }
    }

    /// Calls without exported metrics.
    #[must_use]
    pub fn without_metrics(timeout: Duration) -> Self {
        Self::new(timeout, Metrics::default())
    }

    /// Drops what was recorded about other clusters than these.
    pub(crate) fn keep(&self, is_known: impl Fn(&str) -> bool) {
        self.metrics.keep(&is_known);
        self.unanswered.keep(is_known);
    }
}

/// Which rights API servers could not evaluate, and why: logged when that changes, not at each check.
#[derive(Clone, Default)]
pub(super) struct Unanswered(Arc<Mutex<HashMap<String, Ongoing>>>);

impl Unanswered {
    /// Records the answer to an access review, or why there is none; returns whether that is a new
    /// failure. The question begins with the id of the cluster.
    pub(super) fn is_news(&self, question: String, failure: Option<&str>) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = failure {
            return all.entry(question).or_default().is_news(why);
        }
        all.remove(&question);
        false
    }

    fn keep(&self, is_known: impl Fn(&str) -> bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|question, _| question.split(' ').next().is_some_and(&is_known));
    }
}

/// Durations of calls to API servers. Cheap to clone; exported only if registered.
#[derive(Clone)]
pub struct Metrics {
    took: Family<Call, Histogram, fn() -> Histogram>,
    /// The labels in use, which are removed together with their cluster.
    used: Arc<Mutex<HashSet<Call>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    cluster: String,
    verb: &'static str,
    outcome: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            took: Family::new_with_constructor(times),
            used: Arc::default(),
        }
    }
}

fn times() -> Histogram {
    Histogram::new(SECONDS)
}

impl Metrics {
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_with_unit(
            "liqo_csi_api_request",
            "How long a call to the API server of a cluster takes, repeated attempts included, by verb and outcome",
            Unit::Seconds,
            metrics.took.clone(),
        );
        metrics
    }

    /// Records a call, by its verb in error messages.
    pub(crate) fn record(
        &self,
        cluster: &str,
        verb: &'static str,
        outcome: Result<(), &Cause>,
        took: Duration,
    ) {
        let verb = match verb {
            "read" => "get",
            "change" | "change the status of" => "patch",
            other => other,
        };
        let outcome = outcome.map_or_else(name, |()| "success");
        self.observe(cluster, verb, outcome, took);
    }

    pub(super) fn observe(&self, cluster: &str, verb: &'static str, outcome: &'static str, took: Duration) {
        let call = Call {
            cluster: cluster.to_owned(),
            verb,
            outcome,
        };
        let mut used = self.used();
        self.took.get_or_create(&call).observe(took.as_secs_f64());
        used.insert(call);
    }

    fn keep(&self, is_known: impl Fn(&str) -> bool) {
        let mut used = self.used();
        for call in used.extract_if(|call| !is_known(&call.cluster)) {
            self.took.remove(&call);
        }
    }

    fn used(&self) -> MutexGuard<'_, HashSet<Call>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(cause: &Cause) -> &'static str {
    match cause {
        Cause::Timeout(_) => "timeout",
        Cause::Unavailable(_) => "unavailable",
        Cause::Unauthorized(_) => "unauthorized",
        Cause::Forbidden(_) => "forbidden",
        Cause::Invalid(_) => "invalid",
        Cause::Conflict(_) => "conflict",
        Cause::NotFound(_) => "not_found",
        Cause::Malformed(_) => "malformed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_recorded_by_cluster_verb_and_outcome() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let took = Duration::from_millis(20);
        metrics.record("milan", "change the status of", Ok(()), took);
        metrics.record("milan", "read", Err(&Cause::Timeout(took)), took);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for expected in [
            r#"liqo_csi_api_request_seconds_count{cluster="milan",verb="patch",outcome="success"} 1"#,
            r#"liqo_csi_api_request_seconds_count{cluster="milan",verb="get",outcome="timeout"} 1"#,
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn questions_are_dropped_with_their_cluster() {
        let calls = Calls::without_metrics(Duration::ZERO);
        let is_news = |cluster| {
            let question = format!("{cluster} None get  pods");
            calls.unanswered.is_news(question, Some("no role"))
        };
        assert!(is_news("home") && is_news("milan"));
        calls.keep(|id| id == "home");
        assert!(is_news("milan") && !is_news("home"));
    }
}
