//! Authentication and authorization.

use super::*;
use crate::cluster::testing::StoppedClock;

async fn request_with_token(world: &World, token: &str) -> (StatusCode, String) {
    let mut call = world.call(None).await.unwrap();
    let headers = format!("{SPDY}Authorization: Bearer {token}\r\n");
    call.request(EXEC, &headers).await
}

#[tokio::test]
async fn anonymous_requests_are_refused() {
    let world = World::new(Act::Echo).await;
    for headers in [SPDY.to_owned(), format!("{SPDY}Authorization: Basic YTpi\r\n")] {
        let answer = world.call(None).await.unwrap().request(EXEC, &headers).await;
        assert_eq!(answer.0, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(
        request_with_token(&world, "made up").await.0,
        StatusCode::UNAUTHORIZED
    );
    assert!(world.remote.requests().is_empty());
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused() {
    let world = World::new(Act::Echo).await;
    let shown = Ca::new().issue("system:masters");
    let refused = match world.call(Some(shown)).await {
        // TLS 1.3 reports it after the handshake.
        Ok(mut call) => call.0.read_u8().await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
}

#[tokio::test]
async fn requests_are_authorized_as_by_a_kubelet() {
    let world = World::new(Act::Echo).await;
    for (line, headers, verb) in [
        (EXEC, SPDY, "create"),
        ("GET /exec/shop/web/app?command=sh", SPDY, "create"),
        ("GET /attach/shop/web/app", SPDY, "create"),
        ("GET /portForward/shop/web", SPDY, "create"),
        (LOGS, "", "get"),
    ] {
        let nobody = world.ca.issue("system:nobodies");
        let mut call = world.call(Some(nobody)).await.unwrap();
        let (status, head) = call.request(line, headers).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        let expected = format!(
            "Forbidden (user=kube-apiserver-kubelet-client, verb={verb}, resource=nodes, subresource=proxy, \
             node=to-milan)"
        );
        assert!(head.contains(&expected), "{head}");
        let review = &world.home.object(REVIEW).unwrap()["spec"];
        assert_eq!(
            review["groups"],
            json!(["system:nobodies", "system:authenticated"])
        );
        let asked = &review["resourceAttributes"];
        assert_eq!(
            (&asked["resource"], &asked["subresource"], &asked["name"]),
            (&json!("nodes"), &json!("proxy"), &json!("to-milan"))
        );
        assert_eq!(asked["verb"], verb);
    }
    assert!(world.remote.requests().is_empty());
}

#[tokio::test]
async fn a_forbidden_caller_does_not_learn_which_pods_exist() {
    let world = World::new(Act::Echo).await;
    let nobody = world.ca.issue("system:nobodies");
    let mut call = world.call(Some(nobody)).await.unwrap();
    let (status, head) = call.request("POST /exec/shop/none/app", SPDY).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{head}");
    assert!(!head.contains("none"), "{head}");
}

#[tokio::test]
async fn tokens_are_reviewed_by_the_api_server() {
    let world = World::new(Act::Echo).await;
    let allowed = request_with_token(&world, "token-of:system:masters").await;
    assert_eq!(allowed.0, StatusCode::SWITCHING_PROTOCOLS);
    let refused = request_with_token(&world, "token-of:system:nobodies").await;
    assert_eq!(refused.0, StatusCode::FORBIDDEN);
    assert!(refused.1.contains("user=somebody"), "{}", refused.1);
    assert_eq!(world.remote.requests().len(), 1);
    // The token stays here.
    assert_eq!(
        world.remote.requests()[0].headers["authorization"],
        "Bearer of-the-driver"
    );
}

#[tokio::test]
async fn access_reviews_are_cached() {
    let world = World::new(Act::Echo).await;
    let reviews = || {
        let all = world.home.requests();
        all.iter()
            .filter(|it| it.ends_with("/subjectaccessreviews"))
            .count()
    };
    let before = reviews();
    let _clock = StoppedClock::new();
    for _ in 0..5 {
        assert_eq!(world.request(EXEC, SPDY).await.0, StatusCode::SWITCHING_PROTOCOLS);
    }
    assert_eq!(reviews() - before, 1);
}

#[tokio::test]
async fn nothing_is_relayed_while_access_reviews_fail() {
    let world = World::new(Act::Echo).await;
    world.home.fault(crate::cluster::testing::Fault::new(
        "POST",
        "/apis/authorization.k8s.io",
        crate::cluster::testing::Act::Refuse(400),
    ));
    let (status, _) = world.request(EXEC, SPDY).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(world.remote.requests().is_empty());
}

#[tokio::test]
async fn idle_connections_do_not_block_others() {
    let world = World::new(Act::Echo).await;
    let mut silent = Vec::new();
    for _ in 0..520 {
        silent.push(TcpStream::connect(world.address).await.unwrap());
    }
    assert_eq!(world.request(EXEC, SPDY).await.0, StatusCode::SWITCHING_PROTOCOLS);
}

#[tokio::test]
async fn an_invalid_token_is_reviewed_once() {
    let world = World::new(Act::Echo).await;
    let _clock = StoppedClock::new();
    for _ in 0..5 {
        assert_eq!(
            request_with_token(&world, "none").await.0,
            StatusCode::UNAUTHORIZED
        );
    }
    let asked = world.home.requests();
    let reviews = asked.iter().filter(|it| it.ends_with("/tokenreviews"));
    assert_eq!(reviews.count(), 1);
}
