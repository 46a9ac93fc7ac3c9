//! The resource requests of pods, as the scheduler counts them, and whether a node has enough left. Pods with
//! `spec.nodeName` bypass the scheduler, and a virtual node has no kubelet to reject them.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    Amounts,
    capacity::{nanos, written},
};

const ONE: i128 = 1_000_000_000;
const PODS: &str = "pods";

/// Quantities in billionths, by resource.
pub type Requests = BTreeMap<Box<str>, i128>;

/// The part of a pod's spec that determines its requests.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Requesting {
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    resources: Resources,
    overhead: Amounts,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    resources: Resources,
    restart_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: Amounts,
}

impl Requesting {
    /// The request of the pod: the sum of its containers, or of its init containers if larger, or that of the
    /// pod itself; and one pod.
    #[must_use]
    pub fn requests(&self) -> Requests {
        let mut sum = Requests::new();
        for container in &self.containers {
            add(&mut sum, &read(&container.resources.requests));
        }
        // Sidecars keep running; each other init container runs beside the sidecars before it.
        let (mut sidecars, mut begins) = (Requests::new(), Requests::new());
        for container in &self.init_containers {
            let mut now = read(&container.resources.requests);
            if container.restart_policy.as_deref() == Some("Always") {
                add(&mut sidecars, &now);
                now.clone_from(&sidecars);
            } else {
                add(&mut now, &sidecars);
            }
            for (resource, amount) in now {
                let most = begins.entry(resource).or_default();
                *most = amount.max(*most);
            }
        }
        add(&mut sum, &sidecars);
        for (resource, amount) in begins {
            let most = sum.entry(resource).or_default();
            *most = amount.max(*most);
        }
        sum.extend(read(&self.resources.requests));
        add(&mut sum, &read(&self.overhead));
        sum.insert(PODS.into(), ONE);
        sum
    }
}

fn read(amounts: &Amounts) -> Requests {
    let all = amounts.iter();
    all.map(|(name, amount)| (name.as_str().into(), nanos(amount).unwrap_or_default()))
        .collect()
}

pub fn add(sum: &mut Requests, more: &Requests) {
    for (resource, amount) in more {
        let sum = sum.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

pub fn subtract(sum: &mut Requests, less: &Requests) {
    for (resource, amount) in less {
        if let Some(sum) = sum.get_mut(resource) {
            *sum = sum.saturating_sub(*amount);
        }
    }
    sum.retain(|_, amount| *amount != 0);
}

/// The part of a request that exceeds another one.
pub fn beyond<'a>(asked: &mut Requests, other: impl IntoIterator<Item = (&'a str, i128)>) {
    for (resource, amount) in other {
        if let Some(asked) = asked.get_mut(resource) {
            *asked = asked.saturating_sub(amount).max(0);
        }
    }
}

/// Which resource a node lacks for a pod, given the requests of other pods.
#[must_use]
pub fn exceeded(offered: &Amounts, others: &Requests, asked: &Requests) -> Option<String> {
    asked.iter().find_map(|(resource, asked)| {
        let offers = offered
            .get(&**resource)
            .and_then(|it| nanos(it))
            .unwrap_or_default();
        let others = others.get(resource).copied().unwrap_or_default();
        let left = offers.saturating_sub(others).max(0);
        (*asked > left && *asked > 0).then(|| {
            let amount = |nanos| written(resource, nanos);
            format!(
                "it requests {} {resource}, but its node has only {} of {} left",
                amount(*asked),
                amount(left),
                amount(offers)
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn requests(spec: &Value) -> BTreeMap<String, String> {
        let spec = Requesting::deserialize(spec).unwrap();
        let all = spec.requests().into_iter();
        all.map(|(name, amount)| (name.to_string(), written(&name, amount)))
            .collect()
    }

    fn container(cpu: &str, policy: &Value) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}, "restartPolicy": policy})
    }

    #[test]
    fn requests_of_a_pod_are_computed_as_by_the_scheduler() {
        let (none, always) = (Value::Null, json!("Always"));
        let app = [container("100m", &none), container("200m", &none)];
        for (init, cpu) in [
            (vec![], "300m"),
            (vec![container("500m", &none)], "500m"),
            (vec![container("100m", &none)], "300m"),
            (vec![container("100m", &always)], "400m"),
            (vec![container("100m", &always), container("500m", &none)], "600m"),
            (vec![container("500m", &none), container("100m", &always)], "500m"),
        ] {
            let spec = json!({"containers": app, "initContainers": init});
            assert_eq!(requests(&spec)["cpu"], cpu, "{init:?}");
        }
        let whole = json!({
            "containers": app, "resources": {"requests": {"cpu": "2"}}, "overhead": {"cpu": "1", "memory": "1Mi"},
        });
        assert_eq!(requests(&whole)["cpu"], "3");
        assert_eq!(
            (
                requests(&whole)["pods"].as_str(),
                requests(&whole)["memory"].as_str()
            ),
            ("1", "1048576")
        );
    }

    #[test]
    fn the_resource_that_a_node_lacks_is_named() {
        let offered: Amounts = [("pods".into(), "2".into()), ("cpu".into(), "1".into())].into();
        let asks = |cpu: &str| {
            let spec = json!({"containers": [container(cpu, &Value::Null)]});
            Requesting::deserialize(&spec).unwrap().requests()
        };
        let mut others = Requests::new();
        assert_eq!(exceeded(&offered, &others, &asks("1")), None);
        add(&mut others, &asks("600m"));
        let why = exceeded(&offered, &others, &asks("500m")).unwrap();
        assert_eq!(why, "it requests 500m cpu, but its node has only 400m of 1 left");
        add(&mut others, &asks("0"));
        assert!(
            exceeded(&offered, &others, &asks("0"))
                .unwrap()
                .contains("1 pods")
        );
        let gpu = json!({"containers": [{"resources": {"requests": {"gpu": "1"}}}]});
        let gpu = Requesting::deserialize(&gpu).unwrap().requests();
        assert!(
            exceeded(&offered, &Requests::new(), &gpu)
                .unwrap()
                .contains("gpu")
        );
        subtract(&mut others, &asks("0"));
        subtract(&mut others, &asks("600m"));
        assert!(others.is_empty());
    }
}
