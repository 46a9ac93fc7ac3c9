//! The usage of pods is read from their cluster.

use super::*;

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/shop-home/pods";

impl World {
    /// The usage of the node, read while its controller runs.
    async fn usage(&self) -> Result<String, String> {
        let read = async {
            loop {
                match self.meters.read("milan").await {
                    // Not yet.
                    Err(why) if why.contains("does not run") => {
                        time::sleep(Duration::from_millis(10)).await;
                    }
                    usage => break usage.map(|it| it.text()),
                }
            }
        };
        tokio::select! {
            () = self.run() => unreachable!("it runs for ever"),
            read = read => read,
        }
    }

    fn measured(&self, name: &str, labels: &Value) {
        self.there.put(
            &format!("{METRICS}/{name}"),
            json!({
                "metadata": {"labels": labels}, "timestamp": "2026-01-01T00:01:00Z", "window": "15s",
                "containers": [
                    {"name": "web", "usage": {"cpu": "200m", "memory": "64Mi"}},
                    {"name": "made\"up", "usage": {"cpu": "200m", "memory": "64Mi"}},
                ],
            }),
        );
    }
}

#[tokio::test]
async fn usage_is_served_of_containers_of_home_pods_only() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    world.there.change(THERE, |pod| {
        let started = json!({"running": {"startedAt": "2026-01-01T00:00:50Z"}});
        pod["status"]["containerStatuses"] = json!([{"name": "web", "state": started}]);
    });
    let ours = json!({"fabric.storage.liqo.io/home": "home"});
    world.measured("web", &ours);
    world.measured("other", &ours);
    // The view of pods may be behind.
    let mut text = String::new();
    while !text.contains("web") {
        text = world.usage().await.unwrap();
    }
    let web = "{container=\"web\",namespace=\"shop\",pod=\"web\"}";
    assert!(
        text.contains(&format!(
            "container_cpu_usage_seconds_total{web} 2.000000000 1767225660000\n"
        )),
        "{text}"
    );
    assert!(
        text.contains(&format!("container_memory_working_set_bytes{web} 67108864 ")),
        "{text}"
    );
    assert!(
        text.contains(&format!(
            "container_start_time_seconds{web} 1767225650.000000000 "
        )),
        "{text}"
    );
    assert!(!text.contains("other") && !text.contains("made"), "{text}");
}

#[tokio::test]
async fn missing_metrics_are_explained() {
    let world = World::with_pod(true).await;
    world.run_until(World::is_running).await;
    for (refusal, words) in [
        (Act::Refuse(404), "serves no metrics.k8s.io"),
        (Act::Forbid("not you"), "not you"),
    ] {
        world
            .there
            .fault(Fault::new("GET", "/apis/metrics.k8s.io", refusal));
        let mut why = None;
        while why.is_none() {
            why = world.usage().await.err();
        }
        assert!(why.as_ref().is_some_and(|why| why.contains(words)), "{why:?}");
        world.there.heal();
    }
}
