//! Resource usage of the pods of a virtual node, in the format of kubelets. A remote cluster reports the
//! recent average CPU of a container, but collectors expect counters. They are integrated here, and written
//! in Prometheus' text format, because `prometheus-client` cannot write timestamps. Nothing is read or sent
//! here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::capacity;

const MILLIS: u128 = 1000;
const NANOS: u128 = 1_000_000_000;
/// Initial value of a counter, in nanoseconds: metrics-server ignores containers with zero CPU usage.
const LEAST: u128 = 1_000_000;
/// Implausible values are rejected: a million cores, in billionths.
const MOST_CPU: u128 = 1_000_000 * NANOS;

/// A container of a home pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Container {
    pub namespace: String,
    pub pod: String,
    pub name: String,
}

/// The usage of a container as reported by a remote cluster. Times are in milliseconds since 1970, by its
/// clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub container: Container,
    /// The uid of its remote pod, and when the container was started, if known.
    pub run: (String, Option<i64>),
    /// When it was measured.
    pub at: i64,
    /// The measured period before that, in milliseconds.
    pub window: u64,
    /// Average CPU usage in that period, in billionths of a core.
    pub cpu: u64,
    /// Memory usage, in bytes.
    pub memory: u64,
}

impl Sample {
    /// Parses quantities such as `12m` and `64Mi`; `None` if implausible.
    #[must_use]
    pub fn amounts(cpu: &str, memory: &str) -> Option<(u64, u64)> {
        let nanos = |text| u128::try_from(capacity::nanos(text)?).ok();
        let cpu = nanos(cpu).filter(|cpu| *cpu <= MOST_CPU)?;
        let memory = nanos(memory)? / NANOS;
        Some((u64::try_from(cpu).ok()?, u64::try_from(memory).ok()?))
    }
}

#[derive(Clone, Debug)]
struct Counter {
    last: Sample,
    /// Processor time used, in nanoseconds.
    used: u128,
}

/// The counters of one node.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    containers: BTreeMap<Container, Counter>,
    /// The CPU time of all containers that ever ran, in nanoseconds of a core.
    used: u128,
    /// When the latest sample was measured.
    at: i64,
}

impl Counters {
    /// Replaces the samples. Containers without one are dropped; the counter of a restarted container starts
    /// again.
    pub fn take(&mut self, samples: Vec<Sample>) {
        let named: BTreeSet<Container> = samples.iter().map(|it| it.container.clone()).collect();
        self.containers.retain(|container, _| named.contains(container));
        for sample in samples {
            self.at = self.at.max(sample.at);
            let known = self.containers.get(&sample.container);
            let known = known.filter(|it| it.last.run == sample.run);
            if known.is_some_and(|it| sample.at <= it.last.at) {
                continue;
            }
            let more = match known {
                Some(known) => spent(&sample, sample.at.abs_diff(known.last.at)),
                None => spent(&sample, lived(&sample)).max(LEAST),
            };
            let used = known.map_or(0, |it| it.used).saturating_add(more);
            self.used = self.used.saturating_add(more);
            let container = sample.container.clone();
            self.containers.insert(container, Counter { last: sample, used });
        }
    }

    /// Writes the metrics of containers, pods, and the node.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let all = || self.containers.values();
        let mut pods: BTreeMap<(&str, &str), Counter> = BTreeMap::new();
        for one in all() {
            let of = &one.last.container;
            let sum = pods.entry((&of.namespace, &of.pod));
            sum.and_modify(|sum| {
                sum.used = sum.used.saturating_add(one.used);
                sum.last.memory = sum.last.memory.saturating_add(one.last.memory);
                sum.last.at = sum.last.at.max(one.last.at);
            })
            .or_insert_with(|| one.clone());
        }
        let container = |of: &Container| {
            format!(
                "{{container=\"{}\",namespace=\"{}\",pod=\"{}\"}}",
                of.name, of.namespace, of.pod
            )
        };
        let pod = |of: &Container| format!("{{namespace=\"{}\",pod=\"{}\"}}", of.namespace, of.pod);

        head(&mut text, "container_cpu_usage_seconds_total", "counter");
        for Counter { last, used } in all() {
            let name = container(&last.container);
            line(
                &mut text,
                "container_cpu_usage_seconds_total",
                &name,
                &seconds(*used),
                last.at,
            );
        }
        head(&mut text, "container_memory_working_set_bytes", "gauge");
        for Counter { last, .. } in all() {
            let name = container(&last.container);
            line(
                &mut text,
                "container_memory_working_set_bytes",
                &name,
                &last.memory.to_string(),
                last.at,
            );
        }
        head(&mut text, "container_start_time_seconds", "gauge");
        for Counter { last, .. } in all() {
            if let Some(started) = last.run.1.and_then(|it| u128::try_from(it).ok()) {
                let (name, started) = (container(&last.container), seconds(started * NANOS / MILLIS));
                line(
                    &mut text,
                    "container_start_time_seconds",
                    &name,
                    &started,
                    last.at,
                );
            }
        }
        head(&mut text, "pod_cpu_usage_seconds_total", "counter");
        for Counter { last, used } in pods.values() {
            let name = pod(&last.container);
            line(
                &mut text,
                "pod_cpu_usage_seconds_total",
                &name,
                &seconds(*used),
                last.at,
            );
        }
        head(&mut text, "pod_memory_working_set_bytes", "gauge");
        for Counter { last, .. } in pods.values() {
            let name = pod(&last.container);
            line(
                &mut text,
                "pod_memory_working_set_bytes",
                &name,
                &last.memory.to_string(),
                last.at,
            );
        }
        if self.at != 0 {
            let memory = all().fold(0_u64, |sum, it| sum.saturating_add(it.last.memory));
            head(&mut text, "node_cpu_usage_seconds_total", "counter");
            line(
                &mut text,
                "node_cpu_usage_seconds_total",
                "",
                &seconds(self.used),
                self.at,
            );
            head(&mut text, "node_memory_working_set_bytes", "gauge");
            line(
                &mut text,
                "node_memory_working_set_bytes",
                "",
                &memory.to_string(),
                self.at,
            );
        }
        text
    }
}

/// CPU time in that many milliseconds, in nanoseconds of a core.
fn spent(sample: &Sample, millis: u64) -> u128 {
    u128::from(sample.cpu).saturating_mul(u128::from(millis)) / MILLIS
}

/// The measured time of a container without a counter, in milliseconds.
fn lived(sample: &Sample) -> u64 {
    let age = sample.run.1.map(|started| sample.at.saturating_sub(started));
    let age = age.and_then(|it| u64::try_from(it).ok());
    age.map_or(sample.window, |age| age.min(sample.window))
}

fn seconds(nanos: u128) -> String {
    format!("{}.{:09}", nanos / NANOS, nanos % NANOS)
}

fn head(text: &mut String, name: &str, kind: &str) {
    let _infallible = writeln!(text, "# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: &str, at: i64) {
    let _infallible = writeln!(text, "{name}{labels} {value} {at}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(container: &str, at: i64, cpu: u64) -> Sample {
        Sample {
            container: Container {
                namespace: "shop".into(),
                pod: "web".into(),
                name: container.into(),
            },
            run: ("a".into(), Some(0)),
            at,
            window: 15_000,
            cpu,
            memory: 64 << 20,
        }
    }

    fn value(counters: &Counters, name: &str) -> Option<String> {
        let text = counters.text();
        let found = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(found.trim().to_owned())
    }

    #[test]
    fn a_rate_becomes_a_counter() {
        let web = "container_cpu_usage_seconds_total{container=\"web\",namespace=\"shop\",pod=\"web\"}";
        let mut counters = Counters::default();
        counters.take(vec![sample("web", 60_000, 500_000_000)]);
        assert_eq!(value(&counters, web).unwrap(), "7.500000000 60000");
        counters.take(vec![sample("web", 60_000, 500_000_000)]);
        assert_eq!(
            value(&counters, web).unwrap(),
            "7.500000000 60000",
            "nothing new was measured"
        );
        counters.take(vec![sample("web", 70_500, 1_000_000_000)]);
        assert_eq!(value(&counters, web).unwrap(), "18.000000000 70500");
        let mut again = sample("web", 72_000, 1_000_000_000);
        again.run.1 = Some(71_000);
        counters.take(vec![again]);
        assert_eq!(
            value(&counters, web).unwrap(),
            "1.000000000 72000",
            "it was restarted"
        );
        assert_eq!(
            value(&counters, "node_cpu_usage_seconds_total").unwrap(),
            "19.000000000 72000"
        );
        assert_eq!(
            value(&counters, "container_start_time_seconds").unwrap(),
            "{container=\"web\",namespace=\"shop\",pod=\"web\"} 71.000000000 72000"
        );
    }

    #[test]
    fn usage_of_pods_and_nodes_is_the_sum_of_their_containers() {
        let mut counters = Counters::default();
        counters.take(vec![sample("web", 60_000, 200_000_000), sample("log", 61_000, 0)]);
        let pod = "{namespace=\"shop\",pod=\"web\"}";
        let of_pod = |name: &str| value(&counters, &format!("{name}{pod}")).unwrap();
        assert_eq!(of_pod("pod_cpu_usage_seconds_total"), "3.001000000 61000");
        assert_eq!(of_pod("pod_memory_working_set_bytes"), "134217728 61000");
        assert_eq!(
            value(&counters, "node_memory_working_set_bytes").unwrap(),
            "134217728 61000"
        );
        assert_eq!(value(&Counters::default(), "node_"), None);
    }

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        assert_eq!(Sample::amounts("12345678n", "20Mi"), Some((12_345_678, 20 << 20)));
        assert_eq!(Sample::amounts("250m", "1000Ki"), Some((250_000_000, 1_024_000)));
        assert_eq!(Sample::amounts("0", "0"), Some((0, 0)));
        for (cpu, memory) in [("-1", "1"), ("1", "-1"), ("x", "1"), ("1", ""), ("1E", "1")] {
            let read = Sample::amounts(cpu, memory);
            assert!(read.is_none() || memory.is_empty(), "{cpu} {memory}: {read:?}");
        }
    }

    proptest! {
        #[test]
        fn counters_never_decrease(
            rounds in proptest::collection::vec(proptest::collection::vec((0..3_usize, any::<i64>(), any::<u64>()), 0..4), 1..6),
        ) {
            let mut counters = Counters::default();
            let mut before = counters.clone();
            for round in rounds {
                let names = ["a", "b", "c"];
                counters.take(round.into_iter().map(|(at, when, cpu)| sample(names[at], when, cpu)).collect());
                prop_assert!(counters.used >= before.used);
                for (container, counter) in &counters.containers {
                    prop_assert!(counter.used >= LEAST);
                    prop_assert!(before.containers.get(container).is_none_or(|it| it.used <= counter.used));
                }
                let _is_written = counters.text();
                before = counters.clone();
            }
        }
    }
}
