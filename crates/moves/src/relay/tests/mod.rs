//! The relay between real sockets, through fake API servers.

pub(crate) mod cluster;
mod tree;
mod trouble;

use std::{num::NonZeroU64, time::Duration};

use mover::throttle::Throttle;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Instant, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::cluster::FakeCluster;
use super::{End, Relay};

const TEST_TIMEOUT: Duration = Duration::from_mins(1);

/// A port without a listener, reserved for this test.
fn reserved() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}

/// Listening source and target, each in a cluster, and a relay between them.
struct Ends {
    home: FakeCluster,
    remote: FakeCluster,
    source: TcpListener,
    target: TcpListener,
    _relay: DropGuard,
}

fn run_relay(source: End, target: End, bandwidth: Option<NonZeroU64>, connections: u32) -> DropGuard {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let bandwidth = Throttle::new(bandwidth);
    tokio::spawn(async move {
        let relay = Relay {
            source,
            target,
            bandwidth,
        };
        relay.run(connections, &stopped).await;
    });
    stop.drop_guard()
}

async fn ends(bandwidth: Option<NonZeroU64>) -> Ends {
    ends_with(bandwidth, 1).await
}

async fn ends_with(bandwidth: Option<NonZeroU64>, connections: u32) -> Ends {
    let (home, remote) = (FakeCluster::start().await, FakeCluster::start().await);
    let source = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let from = home.end("source", source.local_addr().unwrap().port());
    let to = remote.end("target", target.local_addr().unwrap().port());
    Ends {
        home,
        remote,
        source,
        target,
        _relay: run_relay(from, to, bandwidth, connections),
    }
}

impl Ends {
    async fn at_source(&self) -> TcpStream {
        timeout(TEST_TIMEOUT, self.source.accept())
            .await
            .unwrap()
            .unwrap()
            .0
    }

    async fn at_target(&self) -> TcpStream {
        timeout(TEST_TIMEOUT, self.target.accept())
            .await
            .unwrap()
            .unwrap()
            .0
    }

    /// Both ends of one connection, on which the source has sent one byte.
    async fn connected(&self) -> (TcpStream, TcpStream) {
        let mut source = self.at_source().await;
        source.write_all(b"!").await.unwrap();
        let mut target = self.at_target().await;
        assert_eq!(target.read_u8().await.unwrap(), b'!');
        (source, target)
    }
}

#[tokio::test]
async fn the_target_is_dialled_with_the_first_bytes_and_receives_all() {
    let ends = ends_with(None, 2).await;
    let _silent = ends.at_source().await;
    let mut source = ends.at_source().await;
    assert_eq!((ends.home.forwarded(), ends.remote.forwarded()), (2, 0));

    source.write_all(b"hello").await.unwrap();
    let mut target = ends.at_target().await;
    assert_eq!(ends.remote.forwarded(), 1, "not for the one that is silent");
    let mut heard = [0; 5];
    target.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");
    target.write_all(b"to you").await.unwrap();
    let mut heard = [0; 6];
    source.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"to you");

    // The data sent last arrives before the connection ends.
    target.write_all(&vec![7; 300_000]).await.unwrap();
    drop(target);
    let mut rest = Vec::new();
    timeout(TEST_TIMEOUT, source.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert!(rest == vec![7; 300_000], "{} bytes", rest.len());
}

#[tokio::test]
async fn a_slow_reader_blocks_the_sender() {
    let ends = ends(None).await;
    let (mut source, mut target) = ends.connected().await;
    let chunk: Vec<u8> = (0..64 << 10).map(|at: u32| at.to_le_bytes()[0]).collect();
    let mut taken = 0;
    // The socket buffers of the kernel contain some data; without back-pressure it would be gigabytes.
    while timeout(Duration::from_secs(1), source.write_all(&chunk))
        .await
        .is_ok()
    {
        taken += 1;
        assert!(taken < 1024, "64 MiB were taken although nobody reads");
    }
    drop(source);
    let mut heard = vec![0; chunk.len()];
    for _ in 0..taken {
        target.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, chunk);
    }
}

#[tokio::test]
async fn the_bandwidth_limit_is_kept() {
    let ends = ends(NonZeroU64::new(1 << 20)).await;
    let (mut source, mut target) = ends.connected().await;
    let started = Instant::now();
    let writing = tokio::spawn(async move { source.write_all(&vec![0; 1 << 20]).await.map(|()| source) });
    target.read_exact(&mut vec![0; 1 << 20]).await.unwrap();
    let took = started.elapsed();
    assert!(took > Duration::from_millis(800), "{took:?}");
    drop(writing.await.unwrap());
}

#[tokio::test]
async fn a_broken_connection_is_reconnected() {
    let ends = ends(None).await;
    for cut in [&ends.home, &ends.remote] {
        let (mut source, mut target) = ends.connected().await;
        cut.cut();
        assert!(matches!(
            timeout(TEST_TIMEOUT, source.read_u8()).await,
            Ok(Err(_))
        ));
        assert!(matches!(
            timeout(TEST_TIMEOUT, target.read_u8()).await,
            Ok(Err(_))
        ));
    }
    ends.connected().await;
}

#[tokio::test]
async fn missing_movers_are_waited_for() {
    let (home, remote) = (FakeCluster::start().await, FakeCluster::start().await);
    let (from, to) = (reserved(), reserved());
    let port = |socket: &TcpSocket| socket.local_addr().unwrap().port();
    let ends = [home.end("source", port(&from)), remote.end("target", port(&to))];
    let [source, target] = ends;
    let _relay = run_relay(source, target, None, 1);
    let dialled = async {
        while home.forwarded() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TEST_TIMEOUT, dialled).await.unwrap();
    let source = from.listen(16).unwrap();
    let (mut first, _) = timeout(TEST_TIMEOUT, source.accept()).await.unwrap().unwrap();
    first.write_all(b"nobody hears this").await.unwrap();
    // There is no target: the source's connection is closed, and opened again.
    assert!(matches!(timeout(TEST_TIMEOUT, first.read_u8()).await, Ok(Err(_))));
    let target = to.listen(16).unwrap();
    let (mut second, _) = timeout(TEST_TIMEOUT, source.accept()).await.unwrap().unwrap();
    second.write_all(b"!").await.unwrap();
    let (mut heard, _) = timeout(TEST_TIMEOUT, target.accept()).await.unwrap().unwrap();
    assert_eq!(heard.read_u8().await.unwrap(), b'!');
}
