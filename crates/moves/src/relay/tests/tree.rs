//! The two sides of the engine, as pods would run them, connected only by the relay.

use std::{fs, net::TcpListener, path::Path};

use mover::{
    credentials::{Identity, MoveId, issue},
    error::Error,
    lanes::{Acceptor, CONTROL_LANES, connect},
    source::Source,
    target::{PassOptions, PassReport, Target},
    throttle::Throttle,
    verify::Scope,
};
use tokio::{sync::oneshot, time::timeout};

use super::{TEST_TIMEOUT, cluster::FakeCluster, run_relay};

const FILES: u64 = 24;
const FILE: usize = 2 << 20;
const DATA_LANES: u32 = 2;

/// Incompressible bytes.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(length).collect()
}

fn serve(root: &Path, id: &MoveId, identity: &Identity, listener: &TcpListener) -> Result<(), Error> {
    let source = Source::open(root)?;
    loop {
        let accept = || listener.accept().map(|(socket, _)| socket);
        let served = connect(id, identity, DATA_LANES, accept)
            .and_then(|lanes| source.serve(lanes, &Throttle::new(None)));
        match served {
            Err(error) if error.is_cut() => {}
            served => return served,
        }
    }
}

fn receive(target: &mut Target, acceptor: &Acceptor) -> Result<PassReport, Error> {
    let lanes = acceptor.accept(TEST_TIMEOUT)?.expect("the source came");
    let mut session = target.session(lanes);
    let report = session.pass(PassOptions {
        last: true,
        reread: false,
    })?;
    session.end();
    Ok(report)
}

/// The engine blocks its thread, and a failed test must not wait for it.
async fn engine<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = oneshot::channel();
    std::thread::spawn(move || done.send(work()).is_ok());
    timeout(TEST_TIMEOUT, outcome).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_arrives_although_the_connections_break_and_little_is_sent_twice() {
    let id = MoveId::new("0b5c2e9a-7d1f-4a54-9a0e-2f3f3f1f0c11", 1).unwrap();
    let (for_source, for_target) = issue(&id).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    for root in [&from, &to] {
        fs::create_dir(root).unwrap();
    }
    for file in 0..FILES {
        fs::write(from.join(format!("file-{file}")), noise(file, FILE)).unwrap();
    }
    let content = FILES * FILE as u64;

    let (home, remote) = (FakeCluster::start().await, FakeCluster::start().await);
    let at_source = TcpListener::bind("127.0.0.1:0").unwrap();
    let at_target = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = home.end("source", at_source.local_addr().unwrap().port());
    let target = remote.end("target", at_target.local_addr().unwrap().port());
    let _relay = run_relay(source, target, None, CONTROL_LANES + DATA_LANES);

    let root = from.clone();
    let source_id = id.clone();
    let serving = tokio::spawn(engine(move || serve(&root, &source_id, &for_source, &at_source)));
    let acceptor = Acceptor::new(at_target, &id, &for_target).unwrap();
    let mut target = Target::open(&to, &id).unwrap();
    let first = tokio::spawn(engine(move || {
        (receive(&mut target, &acceptor), target, acceptor)
    }));
    while remote.to_pods() < content / 2 {
        assert!(!first.is_finished(), "it was over before it was cut");
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    home.cut();
    remote.cut();
    let (cut, mut target, acceptor) = first.await.unwrap();
    assert!(cut.unwrap_err().is_cut());

    let again = move || receive(&mut target, &acceptor).map(|report| (report, target));
    let (report, target) = engine(again).await.unwrap();
    assert_eq!(report.bytes, content);
    let found = engine(move || target.verify(Scope::All)).await.unwrap();
    assert!(found.is_equal(), "{:?}", found.differences);
    for file in 0..FILES {
        let name = format!("file-{file}");
        assert!(
            fs::read(from.join(&name)).unwrap() == fs::read(to.join(&name)).unwrap(),
            "{name}"
        );
    }
    #[expect(clippy::cast_precision_loss, reason = "a ratio need not be exact")]
    let ratio = remote.to_pods() as f64 / content as f64;
    assert!(
        (1.0..=1.1).contains(&ratio),
        "{ratio} times the content went to the target"
    );
    serving.await.unwrap().unwrap();
}
