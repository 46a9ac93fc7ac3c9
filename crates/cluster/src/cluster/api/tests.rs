//! Answers, faults and conflicts of an API server, and the resulting errors.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use super::*;
use crate::cluster::testing::{Act, FakeApi, Fault};

const PATH: &str = "/api/v1/namespaces/ns/configmaps/x";

async fn with(faults: impl IntoIterator<Item = Fault>) -> (FakeApi, Objects<ConfigMap>) {
    let api = FakeApi::start().await;
    for fault in faults {
        api.fault(fault);
    }
    let objects = api.cluster_unwatched().await.within("ns");
    (api, objects)
}

fn asked(api: &FakeApi) -> usize {
    let requests = api.requests();
    requests
        .iter()
        .filter(|request| request.contains("configmaps"))
        .count()
}

fn config_map() -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": "x", "namespace": "ns"}})).unwrap()
}

#[tokio::test]
async fn an_absent_object_is_none() {
    let (_api, objects) = with([]).await;
    assert_eq!(objects.get("x").await, Ok(None));
    assert_eq!(objects.merge("x", &json!({})).await, Ok(None));
    let exactly = Precondition {
        uid: "u".into(),
        resource_version: None,
    };
    assert_eq!(objects.delete("x", exactly).await, Ok(()));
    assert_eq!(objects.list(None).await, Ok(vec![]));
}

/// A proxy without a backend answers so. The twin behind it must not count as deleted.
#[tokio::test]
async fn a_404_of_a_proxy_does_not_mean_absence() {
    for method in ["GET", "PATCH", "DELETE"] {
        let (api, objects) = with([Fault::new(method, "configmaps", Act::Refuse(404))]).await;
        api.put(PATH, json!({}));
        let exactly = Precondition {
            uid: "u".into(),
            resource_version: None,
        };
        let outcome = match method {
            "GET" => objects.get("x").await.map(drop),
            "PATCH" => objects.merge("x", &json!({})).await.map(drop),
            _ => objects.delete("x", exactly).await,
        };
        assert!(outcome.is_err(), "{method}");
    }
}

#[tokio::test]
async fn transient_errors_are_retried() {
    for code in [410, 429, 500, 503, 504] {
        let (_api, objects) = with([Fault::new("GET", "configmaps", Act::Refuse(code)).times(2)]).await;
        assert_eq!(objects.get("x").await, Ok(None), "{code}");
    }
}

#[tokio::test]
async fn a_create_whose_answer_was_lost_reports_an_existing_object() {
    let (api, objects) = with([Fault::new("POST", "configmaps", Act::DoAndRefuse(504)).times(1)]).await;
    assert_eq!(objects.create(&config_map()).await, Ok(None));
    assert!(api.object(PATH).is_some());
}

#[tokio::test]
async fn a_call_to_a_hanging_server_ends_after_the_call_timeout() {
    let api = FakeApi::start().await;
    let objects = api.impatient_cluster().await.within::<ConfigMap>("ns");
    api.fault(Fault::new("GET", "configmaps", Act::Hang));
    let error = objects.get("x").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read ConfigMap ns/x in cluster home: no answer within 1s"
    );
    assert!(error.is_transient());
}

#[tokio::test]
async fn persistent_transient_errors_are_reported_within_the_call_timeout() {
    let api = FakeApi::start().await;
    let objects = api.impatient_cluster().await.within::<ConfigMap>("ns");
    api.fault(Fault::new("GET", "configmaps", Act::Refuse(503)));
    assert!(objects.get("x").await.unwrap_err().is_transient());
}

#[tokio::test]
async fn permanent_errors_are_not_retried() {
    for (code, transient) in [(403, false), (422, false), (409, false)] {
        let (api, objects) = with([Fault::new("PATCH", "configmaps", Act::Refuse(code))]).await;
        let error = objects.merge("x", &json!({})).await.unwrap_err();
        assert_eq!((error.is_transient(), asked(&api)), (transient, 1), "{code}");
    }
}

#[tokio::test]
async fn oversized_and_malformed_answers_are_errors() {
    for act in [Act::Oversize, Act::Garbage] {
        let (_api, objects) = with([Fault::new("GET", "configmaps", act)]).await;
        let error = objects.get("x").await.unwrap_err();
        assert!(matches!(error.cause, Cause::Malformed(_)), "{act:?}: {error}");
    }
}

#[tokio::test]
async fn another_object_of_the_same_name_is_not_deleted() {
    let (api, objects) = with([]).await;
    api.put(PATH, json!({"metadata": {"uid": "new"}}));
    let exactly = |uid: &str| Precondition {
        uid: uid.into(),
        resource_version: None,
    };
    assert!(
        objects
            .delete("x", exactly("old"))
            .await
            .unwrap_err()
            .is_conflict()
    );
    assert!(api.object(PATH).is_some());
    objects.delete("x", exactly("new")).await.unwrap();
    assert!(api.object(PATH).is_none());
}

#[tokio::test]
async fn a_list_is_read_page_by_page() {
    let (api, objects) = with([]).await;
    for number in 0..600 {
        api.put(&format!("/api/v1/namespaces/ns/configmaps/c{number}"), json!({}));
    }
    assert_eq!(objects.list(None).await.unwrap().len(), 600);
    assert_eq!(asked(&api), 3);
}

#[tokio::test]
async fn a_long_message_is_cut() {
    let page: &'static str = Box::leak("ä".repeat(1 << 20).into_boxed_str());
    let (_api, objects) = with([Fault::new("GET", "configmaps", Act::Forbid(page))]).await;
    let said = objects.get("x").await.unwrap_err().to_string();
    assert!(
        said.contains("ää…") && said.len() < 2 * LONGEST_MESSAGE,
        "{}",
        said.len()
    );
    assert_eq!(short("short"), "short");
}

#[tokio::test]
async fn a_patch_for_another_object_of_that_name_is_a_conflict() {
    let (api, objects) = with([]).await;
    api.put(PATH, json!({"metadata": {"uid": "new"}}));
    let patch = json!({"metadata": {"uid": "old"}, "data": {"color": "red"}});
    let error = objects.merge("x", &patch).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    assert!(api.object(PATH).unwrap()["data"].is_null());
}

fn put_large(api: &FakeApi, name: &str, bytes: usize) {
    let path = format!("/api/v1/namespaces/ns/configmaps/{name}");
    api.put(&path, json!({"data": {"large": "x".repeat(bytes)}}));
}

#[tokio::test]
async fn a_page_that_is_too_large_is_read_in_parts() {
    let api = FakeApi::start().await;
    let cluster = api.remote_cluster("milan", crate::cluster::Rights::ALL).await;
    for number in 0..6 {
        put_large(&api, &number.to_string(), 1 << 20);
    }
    let all = cluster.within::<ConfigMap>("ns").list(None).await.unwrap();
    assert_eq!(all.len(), 6);
    assert!(asked(&api) > 2, "one page would be too large");
}

/// A large home cluster has lists that no remote cluster may have. Lists of that size would take the test too long.
#[tokio::test]
async fn lists_of_commands_are_not_limited() {
    let api = FakeApi::start().await;
    let remote = api.remote_cluster("milan", crate::cluster::Rights::ALL).await;
    assert!(remote.within::<ConfigMap>("ns").lists.is_some());
    let mut config = kube::Config::new(api.url().parse().unwrap());
    config.root_cert = Some(Vec::new());
    let command = Cluster::connect_unwatched_with(config, "home", Duration::from_secs(30)).await;
    assert!(command.unwrap().within::<ConfigMap>("ns").lists.is_none());
}

#[tokio::test]
async fn an_object_that_is_too_large_by_itself_is_named_and_not_left_out() {
    let api = FakeApi::start().await;
    let cluster = api.remote_cluster("milan", crate::cluster::Rights::ALL).await;
    put_large(&api, "small", 1);
    put_large(&api, "whale", 5 << 20);
    let error = cluster.within::<ConfigMap>("ns").list(None).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Malformed(_)), "{error}");
    assert!(error.to_string().contains("ns/whale"), "{error}");
}
