//! Which requests are passed on, and which are refused.

use super::*;
use crate::streams::{refusal::passed_on, request::Kind};

/// Bytes of which no two pieces are alike.
fn noise(length: u32) -> Vec<u8> {
    (0..length / 4)
        .flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

#[tokio::test]
async fn exec_streams_ten_mebibytes_unchanged() {
    let world = World::new(Act::Echo).await;
    let mut call = world.call_as_api_server().await;
    let (status, head) = call
        .send(EXEC, &format!("{SPDY}Authorization: Bearer x\r\n"))
        .await;
    assert_eq!(status, StatusCode::SWITCHING_PROTOCOLS);
    let head = head.to_lowercase();
    for header in [
        "upgrade: spdy/3.1",
        "connection: upgrade",
        "x-stream-protocol-version: v4.channel.k8s.io",
    ] {
        assert!(head.contains(header), "{head}");
    }
    assert!(!head.contains("set-cookie"), "{head}");

    let received = world.remote.requests().pop().unwrap();
    assert_eq!(
        received.line,
        "POST /api/v1/namespaces/shop-home/pods/web/exec\
         ?container=app&command=cat&stdin=true&stdout=true&stderr=false&tty=false"
    );
    assert_eq!(received.headers["authorization"], "Bearer of-the-driver");
    let versions: Vec<_> = received
        .headers
        .get_all("x-stream-protocol-version")
        .iter()
        .collect();
    assert_eq!(versions, ["v5.channel.k8s.io", "v4.channel.k8s.io"]);

    let sent = noise(10 << 20);
    let (mut reader, mut writer) = tokio::io::split(call.0);
    let said = sent.clone();
    let saying = tokio::spawn(async move {
        writer.write_all(&said).await.unwrap();
        writer.shutdown().await.unwrap();
        writer
    });
    assert_eq!(world.metrics.open_now(Kind::Exec), 1);
    let mut echoed = Vec::new();
    reader.read_to_end(&mut echoed).await.unwrap();
    assert!(echoed == sent, "{} bytes of {}", echoed.len(), sent.len());
    drop(saying.await.unwrap());
    while world.metrics.open_now(Kind::Exec) > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_caller_that_closed_its_side_still_receives_the_answer() {
    let world = World::new(Act::ReverseAtEnd).await;
    let mut call = world.stream("POST /attach/shop/web/app?input=1&output=1").await;
    let mut sent = noise(1 << 20);
    call.0.write_all(&sent).await.unwrap();
    call.0.shutdown().await.unwrap();
    sent.reverse();
    assert!(call.read_to_end().await == sent);
}

#[tokio::test]
async fn data_sent_before_a_remote_close_arrives() {
    let world = World::new(Act::SendAndClose("exit 3")).await;
    let mut call = world.stream("GET /portForward/shop/web?port=80").await;
    assert_eq!(call.read_to_end().await, b"exit 3");
    let received = world.remote.requests().pop().unwrap();
    assert_eq!(
        received.line,
        "GET /api/v1/namespaces/shop-home/pods/web/portforward?ports=80"
    );
}

#[tokio::test]
async fn a_log_is_passed_on_as_it_is_written() {
    let (lines, written) = watch::channel(Vec::new());
    let world = World::bounded(
        Act::Log(written),
        Bounds {
            // A followed log may have no data for longer than the timeout of other answers.
            answer: Duration::from_millis(1),
            ..Bounds::default()
        },
    )
    .await;
    let mut call = world.call_as_api_server().await;
    let (status, _) = call.send(&format!("{LOGS}?follow=true&tailLines=5"), "").await;
    assert_eq!(status, StatusCode::OK);
    for line in ["one\n", "two\n"] {
        lines.send_modify(|all| all.push(line));
        let mut chunk = vec![0; "4\r\none\n\r\n".len()];
        call.0.read_exact(&mut chunk).await.unwrap();
        assert_eq!(chunk, format!("4\r\n{line}\r\n").into_bytes());
    }
    assert_eq!(world.metrics.open_now(Kind::Logs), 1);
    lines.send_modify(|all| all.push(""));
    let mut end = vec![0; 5];
    call.0.read_exact(&mut end).await.unwrap();
    assert_eq!(end, b"0\r\n\r\n");
    assert_eq!(
        world.remote.requests().pop().unwrap().line,
        "GET /api/v1/namespaces/shop-home/pods/web/log?container=app&follow=true&tailLines=5"
    );
    // The connection is good for the next request.
    assert_eq!(call.request("GET /pods", "").await.0, StatusCode::NOT_FOUND);
    assert_eq!(world.metrics.open_now(Kind::Logs), 0);
}

#[tokio::test]
async fn errors_of_the_remote_api_server_are_passed_on() {
    const BODY: &str = r#"{"kind":"Status","code":400,"message":"container app is waiting to start"}"#;
    for (code, of_log) in [
        (400, 400),
        (403, 403),
        (404, 400),
        (409, 400),
        (500, 500),
        (503, 500),
    ] {
        let world = World::new(Act::Refuse(code, BODY)).await;
        let (status, head) = world.request(EXEC, SPDY).await;
        assert_eq!(status.as_u16(), code);
        // Clients parse a Status in answer to a stream, but would print it as a log.
        assert!(
            head.ends_with(BODY) && head.contains("content-type: application/json"),
            "{head}"
        );
        // With a code for which API servers pass the text on.
        let (status, head) = world.request(LOGS, "").await;
        assert_eq!(status.as_u16(), of_log);
        assert!(
            head.ends_with("\r\n\r\ncontainer app is waiting to start"),
            "{head}"
        );
    }
    // The user is not the one whose credentials are refused there.
    let world = World::new(Act::Refuse(401, BODY)).await;
    for (line, headers, code) in [(EXEC, SPDY, 502), (LOGS, "", 500)] {
        let (status, head) = world.request(line, headers).await;
        assert_eq!(status.as_u16(), code);
        assert!(
            head.contains("the cluster milan: it does not accept the credentials"),
            "{head}"
        );
    }
}

#[tokio::test]
async fn an_answer_without_an_upgrade_is_an_error() {
    let world = World::new(Act::NoUpgrade).await;
    let (status, head) = world.request(EXEC, SPDY).await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert!(head.contains("200 OK to a request for a stream"), "{head}");
    let endless = "x".repeat(1 << 20).leak();
    let world = World::new(Act::Refuse(500, endless)).await;
    assert_eq!(world.request(EXEC, SPDY).await.0, StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn an_unanswered_request_times_out() {
    let bounds = Bounds {
        answer: Duration::from_millis(50),
        ..Bounds::default()
    };
    let world = World::bounded(Act::NoAnswer, bounds).await;
    for (line, headers, code) in [(EXEC, SPDY, 504), (LOGS, "", 500)] {
        let (status, head) = world.request(line, headers).await;
        assert_eq!(status.as_u16(), code);
        assert!(
            head.contains("the cluster milan has not answered within 50ms"),
            "{head}"
        );
    }
    assert_eq!(world.metrics.open_now(Kind::Exec), 0);
}

#[tokio::test]
async fn only_the_remote_pod_of_the_live_home_pod_is_reached() {
    let annotation = |name: &str| format!("/metadata/annotations/fabric.storage.liqo.io~1{name}");
    let milan = "remote-cluster";
    for (is_home, name, value, status, expected) in [
        (
            false,
            "home-pod-uid",
            json!("of-another"),
            StatusCode::CONFLICT,
            "does not run for the pod",
        ),
        (
            false,
            "home-pod-uid",
            json!(""),
            StatusCode::CONFLICT,
            "does not run for the pod",
        ),
        (
            false,
            "home-uid",
            json!("of-another"),
            StatusCode::CONFLICT,
            "does not run for the pod",
        ),
        (
            true,
            "remote-namespace",
            json!("other"),
            StatusCode::NOT_FOUND,
            "has no pod other/web",
        ),
        (
            true,
            "remote-namespace",
            json!("../x"),
            StatusCode::NOT_FOUND,
            "was not given to a remote cluster",
        ),
        (
            true,
            "remote-namespace",
            json!(""),
            StatusCode::NOT_FOUND,
            "was not given to a remote cluster",
        ),
        (
            true,
            milan,
            json!("rome"),
            StatusCode::SERVICE_UNAVAILABLE,
            "the cluster rome is not known",
        ),
        (
            true,
            milan,
            json!(""),
            StatusCode::NOT_FOUND,
            "was not given to a remote cluster",
        ),
    ] {
        let world = World::new(Act::Echo).await;
        let (api, path) = if is_home {
            (&world.home, POD)
        } else {
            (&world.there, POD_THERE)
        };
        World::change(api, path, &annotation(name), value);
        for (line, headers, kind) in [(EXEC, SPDY, Kind::Exec), (LOGS, "", Kind::Logs)] {
            let (answered, head) = world.request(line, headers).await;
            assert_eq!(answered, passed_on(kind, status), "{head}");
            assert!(head.contains(expected), "{head}");
        }
        assert!(world.remote.requests().is_empty(), "{expected}");
    }
}

#[tokio::test]
async fn annotations_do_not_expose_namespaces_of_other_users() {
    const THEIRS: &str = "/api/v1/namespaces/theirs/pods/web";
    let world = World::new(Act::Echo).await;
    world.there.put(THEIRS, json!({"spec": {"containers": []}}));
    world.home.change(POD, |pod| {
        pod["metadata"]["annotations"]["fabric.storage.liqo.io/remote-namespace"] = json!("theirs");
    });
    let (answered, head) = world.request(EXEC, SPDY).await;
    assert_eq!(answered, StatusCode::NOT_FOUND, "{head}");
    let asked = |request: &String| *request == format!("GET {THEIRS}");
    assert!(!world.there.requests().iter().any(asked), "it was asked");
    // A pod that has started keeps its remote namespace without a mapping.
    world.home.change(POD, |pod| {
        pod["status"] = json!({"conditions": [
            {"type": "fabric.storage.liqo.io/RemotePodStarted", "status": "True", "message": "uid"},
        ]});
    });
    let (answered, head) = world.request(EXEC, SPDY).await;
    assert_eq!(answered, StatusCode::CONFLICT, "{head}");
}

#[tokio::test]
async fn a_recreated_home_pod_does_not_reach_the_old_remote_pod() {
    let world = World::new(Act::Echo).await;
    World::change(&world.home, POD, "/metadata/uid", json!("of-the-next"));
    assert_eq!(world.request(EXEC, SPDY).await.0, StatusCode::CONFLICT);
    world.there.remove(POD_THERE);
    assert_eq!(world.request(EXEC, SPDY).await.0, StatusCode::NOT_FOUND);
    world.home.remove(POD);
    let (status, head) = world.request(EXEC, SPDY).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(head.contains("there is no pod shop/web"), "{head}");
    assert!(world.remote.requests().is_empty());
}

#[tokio::test]
async fn a_node_serves_only_its_own_pods() {
    let world = World::new(Act::Echo).await;
    for (line, headers, code) in [(EXEC, SPDY, 404), (LOGS, "", 400)] {
        let (status, head) = world.request_at(world.other, line, headers).await;
        assert_eq!(status.as_u16(), code, "{head}");
        assert!(
            head.contains("there is no pod shop/web on the node to-rome"),
            "{head}"
        );
        let asked = world.home.object(REVIEW).unwrap()["spec"]["resourceAttributes"].clone();
        assert_eq!(asked["name"], "to-rome");
    }
    World::change(&world.home, POD, "/spec/nodeName", json!("to-rome"));
    assert_eq!(world.request(EXEC, SPDY).await.0, StatusCode::NOT_FOUND);
    let here = world.request_at(world.other, EXEC, SPDY).await;
    assert_eq!(here.0, StatusCode::SWITCHING_PROTOCOLS, "{}", here.1);
    assert_eq!(world.remote.requests().len(), 1);
}

#[tokio::test]
async fn a_port_serves_no_node_after_its_cluster_is_deleted() {
    let world = World::new(Act::Echo).await;
    world.home.remove(&remote_cluster("rome"));
    loop {
        let (status, head) = world.request_at(world.other, EXEC, SPDY).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        if head.contains("no virtual node has the port") {
            break;
        }
    }
    // Other ports are still served.
    assert_eq!(world.request(EXEC, SPDY).await.0, StatusCode::SWITCHING_PROTOCOLS);
}

#[tokio::test]
async fn streams_need_an_upgrade_request() {
    let world = World::new(Act::Echo).await;
    for headers in ["", "Connection: Upgrade\r\nUpgrade: h2c\r\n"] {
        assert_eq!(world.request(EXEC, headers).await.0, StatusCode::BAD_REQUEST);
    }
    let post = LOGS.replace("GET", "POST");
    assert_eq!(
        world.request(&post, "Content-Length: 0\r\n").await.0,
        StatusCode::METHOD_NOT_ALLOWED
    );
    assert!(world.remote.requests().is_empty());
}

#[tokio::test]
async fn concurrent_streams_are_limited() {
    let bounds = Bounds {
        streams: 2,
        ..Bounds::default()
    };
    let world = World::bounded(Act::Echo, bounds).await;
    let streams = (world.stream(EXEC).await, world.stream(EXEC).await);
    assert_eq!(world.request(EXEC, SPDY).await.0, StatusCode::TOO_MANY_REQUESTS);
    drop(streams);
    while world.request(EXEC, SPDY).await.0 != StatusCode::SWITCHING_PROTOCOLS {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn open_streams_are_cut_at_shutdown() {
    let (_lines, written) = watch::channel(vec!["one\n"]);
    for (act, line, headers) in [
        (Act::Echo, EXEC, SPDY),
        (
            Act::Log(written),
            "GET /containerLogs/shop/web/app?follow=true",
            "",
        ),
    ] {
        let bounds = Bounds {
            shutdown: Duration::from_millis(50),
            ..Bounds::default()
        };
        let world = World::bounded(act, bounds).await;
        let mut call = world.call_as_api_server().await;
        call.send(line, headers).await;
        world.stop.cancel();
        world.served.await.unwrap();
        // With or without a clean close.
        let mut rest = Vec::new();
        let _ = call.0.read_to_end(&mut rest).await;
        assert!(TcpStream::connect(world.address).await.is_err(), "nobody listens");
    }
}
