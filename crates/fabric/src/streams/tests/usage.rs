//! The usage of pods.

use super::*;
use crate::offload::usage::{Container, Counters, Sample};

const METRICS: &str = "GET /metrics/resource";

fn counters(pod: &str) -> Counters {
    let mut counters = Counters::default();
    counters.take(vec![Sample {
        container: Container {
            namespace: "shop".into(),
            pod: pod.into(),
            name: "app".into(),
        },
        run: ("a".into(), None),
        at: 60_000,
        window: 10_000,
        cpu: 500_000_000,
        memory: 1024,
    }]);
    counters
}

/// Answers usage requests for a node during the test.
fn answer(world: &World, node: &str, usage: Result<Counters, String>) {
    let mut requests = world.meters.serve(node);
    tokio::spawn(async move {
        while let Some(reply) = requests.next().await {
            reply.send(usage.clone()).unwrap();
        }
    });
}

#[tokio::test]
async fn each_node_serves_the_usage_of_its_own_pods() {
    let world = World::new(Act::Echo).await;
    let (status, head) = world.request(METRICS, "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(head.contains("does not run the node"), "{head}");
    answer(&world, "to-milan", Ok(counters("web")));
    answer(&world, "to-rome", Ok(counters("db")));
    for (address, pod, other) in [(world.address, "web", "db"), (world.other, "db", "web")] {
        let (status, head) = world.request_at(address, METRICS, "").await;
        assert_eq!(status, StatusCode::OK, "{head}");
        let cpu = format!(
            "container_cpu_usage_seconds_total{{container=\"app\",namespace=\"shop\",pod=\"{pod}\"}} 5.000000000 60000\n"
        );
        for line in [
            cpu.as_str(),
            "\nnode_memory_working_set_bytes 1024 60000\n",
            "\nresource_scrape_error 0\n",
            "text/plain; version=0.0.4",
        ] {
            assert!(head.contains(line), "{line} is not in {head}");
        }
        assert!(!head.contains(&format!("pod=\"{other}\"")), "{head}");
    }
}

#[tokio::test]
async fn unknown_usage_is_answered_with_the_reason() {
    let world = World::new(Act::Echo).await;
    answer(&world, "to-milan", Ok(counters("web")));
    answer(
        &world,
        "to-rome",
        Err("the cluster rome serves no metrics.k8s.io".to_owned()),
    );
    let (status, head) = world.request_at(world.other, METRICS, "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(
        head.contains("to-rome: the cluster rome serves no metrics.k8s.io"),
        "{head}"
    );
    assert_eq!(world.request(METRICS, "").await.0, StatusCode::OK);
}

#[tokio::test]
async fn usage_needs_the_right_on_nodes_metrics() {
    let world = World::new(Act::Echo).await;
    let nobody = world.ca.issue("system:nobodies");
    let mut call = world.call(Some(nobody)).await.unwrap();
    let (status, head) = call.request(METRICS, "").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{head}");
    assert!(
        head.contains("verb=get, resource=nodes, subresource=metrics, node=to-milan)"),
        "{head}"
    );
    let asked = world.home.object(REVIEW).unwrap()["spec"]["resourceAttributes"].clone();
    assert_eq!(
        (&asked["subresource"], &asked["verb"]),
        (&json!("metrics"), &json!("get"))
    );
    assert_eq!(
        world.call(None).await.unwrap().request(METRICS, "").await.0,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        world.request("POST /metrics/resource", "").await.0,
        StatusCode::METHOD_NOT_ALLOWED
    );
}
