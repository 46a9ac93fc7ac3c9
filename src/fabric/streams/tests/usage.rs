//! What pods use.

use super::*;
use crate::offload::usage::{Container, Counters, Sample};

const ASKED: &str = "GET /metrics/resource";

fn counters() -> Counters {
    let mut counters = Counters::default();
    counters.take(vec![Sample {
        container: Container {
            namespace: "shop".into(),
            pod: "web".into(),
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

/// A question, while these nodes answer.
async fn answered(world: &World, nodes: &[(&str, Result<Counters, String>)]) -> (StatusCode, String) {
    let mut answering = Vec::new();
    for (node, usage) in nodes {
        let (mut questions, usage) = (world.meters.answer_for(node), usage.clone());
        answering.push(tokio::spawn(async move {
            while let Some(asked) = questions.next().await {
                asked.send(usage.clone()).unwrap();
            }
        }));
    }
    let answer = world.asked(ASKED, "").await;
    for one in answering {
        one.abort();
        one.await.unwrap_err();
    }
    answer
}

#[tokio::test]
async fn who_collects_metrics_is_told_of_all_nodes() {
    let world = World::new(Act::Echo).await;
    let (status, head) = answered(&world, &[]).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(head.contains("looks after no virtual node"), "{head}");
    let pod = "container_cpu_usage_seconds_total{container=\"app\",namespace=\"shop\",pod=\"web\"} 5.000000000 60000\n";
    let (status, head) = answered(&world, &[("milan", Ok(counters()))]).await;
    assert_eq!(status, StatusCode::OK, "{head}");
    for line in [
        pod,
        "\nnode_memory_working_set_bytes 1024 60000\n",
        "\nresource_scrape_error 0\n",
    ] {
        assert!(head.contains(line), "{line} is not in {head}");
    }
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    let silent = Err("the cluster rome serves no metrics.k8s.io".to_owned());
    let (status, head) = answered(&world, &[("milan", Ok(counters())), ("rome", silent.clone())]).await;
    assert_eq!(status, StatusCode::OK);
    assert!(head.contains(pod) && !head.contains("\nnode_"), "{head}");
    assert!(
        head.contains("# rome: the cluster rome serves no metrics.k8s.io\n"),
        "{head}"
    );
    assert!(head.contains("\nresource_scrape_error 1\n"), "{head}");
    let (status, head) = answered(&world, &[("rome", silent)]).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(head.contains("serves no metrics.k8s.io"), "{head}");
}

#[tokio::test]
async fn it_takes_the_right_that_metrics_take() {
    let world = World::new(Act::Echo).await;
    let nobody = world.ca.issue("system:nobodies");
    let mut call = world.call(Some(nobody)).await.unwrap();
    let (status, head) = call.ask(ASKED, "").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{head}");
    assert!(
        head.contains("verb=get, resource=nodes, subresource=metrics)"),
        "{head}"
    );
    let asked = world.home.object(REVIEW).unwrap()["spec"]["resourceAttributes"].clone();
    assert_eq!(
        (&asked["subresource"], &asked["verb"]),
        (&json!("metrics"), &json!("get"))
    );
    assert_eq!(
        world.call(None).await.unwrap().ask(ASKED, "").await.0,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        world.asked("POST /metrics/resource", "").await.0,
        StatusCode::METHOD_NOT_ALLOWED
    );
}
