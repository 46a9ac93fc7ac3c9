//! Errors of API servers and nodes on a forwarded port.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use futures::{SinkExt, StreamExt};
use mover::throttle::Throttle;
use tokio::{io::DuplexStream, time::Instant};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

use super::{cluster::FakeCluster, reserved};
use crate::relay::{
    Relay,
    lane::Lane,
    tunnel::{MAX_FRAME, Tunnel, TunnelError},
};

type Server = WebSocketStream<DuplexStream>;

const PORT: u16 = 7401;

async fn tunnel() -> (Tunnel, Server) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let server = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
    (Tunnel::over(Box::new(ours), PORT).await, server)
}

/// A tunnel whose port was announced, with the first message on each channel.
async fn announced() -> (Tunnel, Server) {
    let (tunnel, mut server) = tunnel().await;
    let [low, high] = PORT.to_le_bytes();
    for channel in [0, 1] {
        server
            .send(Message::binary(vec![channel, low, high]))
            .await
            .unwrap();
    }
    (tunnel, server)
}

#[tokio::test]
async fn errors_of_a_port_forward_are_reported() {
    let (mut tunnel, mut server) = announced().await;
    let told = [&[1], &b"connection refused\n"[..]].concat();
    server.send(Message::binary(told)).await.unwrap();
    let error = tunnel.first().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "its node cannot connect to the port: connection refused"
    );
}

#[tokio::test]
async fn a_refusal_is_reported_with_the_text_of_the_api_server() {
    let api = FakeCluster::start().await;
    let error = Tunnel::open(&api.end("forbidden", PORT))
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with("the API server does not forward the port: "),
        "{error}"
    );
    assert!(
        error.contains("you may not") && !error.contains("Status {"),
        "{error}"
    );
}

#[tokio::test]
async fn an_open_port_without_a_server_is_detected() {
    let api = FakeCluster::start().await;
    let nobody = reserved();
    let port = nobody.local_addr().unwrap().port();
    let mut tunnel = Tunnel::open(&api.end("pod", port)).await.unwrap();
    assert!(matches!(tunnel.first().await, Err(TunnelError::Unreached(_))));
}

#[tokio::test]
async fn unexpected_data_ends_the_connection() {
    for wrong in [
        Message::binary(vec![]),
        Message::binary(vec![0, 1, 2]),
        Message::binary(vec![0, 1, 2, 3]),
        Message::binary(vec![2, 1, 2]),
        Message::binary(vec![255]),
        Message::text("0"),
    ] {
        let (mut tunnel, mut server) = tunnel().await;
        server.send(wrong.clone()).await.unwrap();
        let outcome = tunnel.first().await;
        assert!(
            matches!(outcome, Err(TunnelError::Protocol(_))),
            "{wrong:?}: {outcome:?}"
        );
    }
}

#[tokio::test]
async fn a_frame_that_is_too_long_breaks_the_tunnel() {
    let (mut tunnel, mut server) = announced().await;
    let sending = tokio::spawn(async move { server.send(Message::binary(vec![0; MAX_FRAME + 1])).await });
    assert!(matches!(tunnel.first().await, Err(TunnelError::Broken(_))));
    sending.abort();
}

#[tokio::test(start_paused = true)]
async fn a_quiet_connection_is_kept_by_pings_and_a_dead_one_is_not() {
    let (mut tunnel, mut server) = announced().await;
    let begun = Instant::now();
    let answering = tokio::spawn(async move {
        // The server answers pings while it reads.
        while begun.elapsed() < Duration::from_mins(10) {
            let _ = tokio::time::timeout(Duration::from_secs(1), server.next()).await;
        }
        server
    });
    let error = tunnel.first().await.unwrap_err();
    assert!(matches!(error, TunnelError::NoTraffic), "{error}");
    let lived = begun.elapsed();
    assert!(
        (Duration::from_mins(11)..Duration::from_mins(12)).contains(&lived),
        "{lived:?}"
    );
    drop(answering.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_reads_nothing_times_out() {
    let (mut tunnel, mut server) = announced().await;
    // The pod sends, but does not read.
    server.send(Message::binary(vec![0; 1000])).await.unwrap();
    let outcome = loop {
        let frame = tunnel.first().await.unwrap();
        let Some(frame) = frame else { continue };
        // The duplex buffers 64 KiB.
        let mut frame = Some(frame);
        let mut sent = Ok(());
        for _ in 0..200 {
            let Some(next) = frame.take() else { break };
            sent = tunnel.writer.send(next).await;
            if sent.is_err() {
                break;
            }
            server.send(Message::binary(vec![0; 1000])).await.unwrap();
            frame = tunnel.reader.next().await.unwrap();
        }
        break sent;
    };
    assert!(matches!(outcome, Err(TunnelError::Stalled)), "{outcome:?}");
}

/// The target reads again long after the source has closed the connection.
#[tokio::test(start_paused = true)]
async fn the_last_data_of_an_end_that_has_closed_arrives() {
    let cluster = FakeCluster::start().await;
    let ends = [cluster.end("source", PORT), cluster.end("target", PORT)];
    let [source, target] = ends;
    let bandwidth = Throttle::new(None);
    let relay = Relay {
        source,
        target,
        bandwidth,
    };
    let ((mut from, mut source), (to, mut target)) = (announced().await, announced().await);
    let frame = |at: u8| Message::binary([vec![0], vec![at; 30_000]].concat());
    // The buffers hold two frames each.
    tokio::spawn(async move {
        for at in 0..5 {
            source.send(frame(at)).await.unwrap();
        }
    });
    let first = from.first().await.unwrap().unwrap();
    let relaying = tokio::spawn(async move {
        let lane = Lane::new(0, Arc::new(relay));
        let _ = lane.exchange(first, from, to, &AtomicU64::new(0)).await;
    });
    tokio::time::sleep(Duration::from_secs(45)).await;
    let mut arrived = Vec::new();
    while let Some(Ok(message)) = target.next().await {
        if message.is_binary() {
            arrived.push(message);
        }
    }
    assert!(
        arrived == (0..5).map(frame).collect::<Vec<_>>(),
        "{} of 5",
        arrived.len()
    );
    relaying.await.unwrap();
}
