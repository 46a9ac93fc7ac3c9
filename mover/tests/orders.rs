//! The two programs as pods run them: both only listen, a relay connects them, and the target carries out
//! orders on its port.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod common;

use std::{
    fs,
    io::{self, BufRead, BufReader, Read as _, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{Pair, TEST_TIMEOUT, free};
use mover::control::{Answer, Order, Reason};

/// A program that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(pair: &Pair, side: &str, root: &Path, more: &[String]) -> Program {
    Program(command(pair, side, root, more).spawn().unwrap())
}

fn command(pair: &Pair, side: &str, root: &Path, more: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_liqo-csi-mover"));
    command
        .args([side, "--move", common::UID, "--root"])
        .arg(root)
        .arg("--credentials")
        .arg(pair.folder.path().join("credentials").join(side))
        .args(more)
        .stdout(Stdio::null());
    command
}

fn patiently(address: SocketAddr) -> TcpStream {
    let until = Instant::now() + TEST_TIMEOUT;
    loop {
        match TcpStream::connect(address) {
            Ok(connection) => return connection,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Keeps connecting the two, as the relay does.
fn relay(from: SocketAddr, to: SocketAddr, connections: usize) {
    for _ in 0..connections {
        thread::spawn(move || {
            loop {
                let source = patiently(from);
                // No connection is dialled that is not used.
                if !matches!(source.peek(&mut [0]), Ok(1)) {
                    continue;
                }
                let Ok(target) = TcpStream::connect(to) else {
                    continue;
                };
                let copy = |mut from: TcpStream, mut to: TcpStream| {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                };
                let back = (target.try_clone().unwrap(), source.try_clone().unwrap());
                let up = thread::spawn(move || copy(source, target));
                copy(back.0, back.1);
                up.join().unwrap();
            }
        });
    }
}

struct Controller(BufReader<TcpStream>);

impl Controller {
    fn line(&mut self, line: &str) -> Answer {
        let connection = self.0.get_mut();
        connection.write_all(format!("{line}\n").as_bytes()).unwrap();
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "it hung up");
            match serde_json::from_str(&line).unwrap() {
                Answer::Progress { .. } => {}
                answer => return answer,
            }
        }
    }

    fn order(&mut self, order: Order) -> Answer {
        self.line(&serde_json::to_string(&order).unwrap())
    }
}

/// Creates the certificates of both.
fn issue(pair: &Pair) {
    common::run(
        Command::new(env!("CARGO_BIN_EXE_liqo-csi-mover"))
            .args(["issue", "--move", common::UID])
            .arg(pair.folder.path().join("credentials")),
    );
}

fn listen(at: SocketAddr) -> [String; 2] {
    ["--listen".to_owned(), at.to_string()]
}

/// Both programs and their relay.
struct Programs {
    _source: Program,
    target: Program,
    control: SocketAddr,
}

impl Programs {
    fn start(pair: &Pair, source: &Path, target: &Path, more: &[String]) -> Self {
        issue(pair);
        let (from, to, control) = (free(), free(), free());
        let lanes = ["--lanes".to_owned(), "1".to_owned()];
        let orders = ["--control".to_owned(), control.to_string()];
        let started = Self {
            _source: start(pair, "source", source, &[listen(from), lanes].concat()),
            target: start(
                pair,
                "target",
                target,
                &[&listen(to)[..], &orders[..], more].concat(),
            ),
            control,
        };
        relay(from, to, 3);
        started
    }

    fn controller(&self) -> Controller {
        Controller(BufReader::new(patiently(self.control)))
    }
}

/// Whether a pass completes if the source may dial `direct`, and also waits for a forwarded connection.
fn passes(direct: SocketAddr, to: SocketAddr, is_relayed: bool) {
    let pair = Pair::new();
    fs::write(pair.source.join("file"), "content").unwrap();
    issue(&pair);
    let (from, control) = (free(), free());
    let ways = [
        "--connect".to_owned(),
        direct.to_string(),
        "--lanes".to_owned(),
        "1".to_owned(),
    ];
    let orders = ["--control".to_owned(), control.to_string()];
    let _target = start(&pair, "target", &pair.target, &[listen(to), orders].concat());
    // The target listens already when it takes orders: a source that dials too early uses the other way
    // first.
    let mut controller = Controller(BufReader::new(patiently(control)));
    let _source = start(
        &pair,
        "source",
        &pair.source,
        &[listen(from).to_vec(), ways.to_vec()].concat(),
    );
    if is_relayed {
        relay(from, to, 3);
    }
    let answer = controller.order(Order::Pass {
        last: true,
        reread: false,
    });
    assert!(matches!(answer, Answer::Passed(_)), "{answer:?}");
}

#[test]
fn a_reachable_target_is_dialled() {
    let to = free();
    passes(to, to, false);
}

#[test]
fn without_an_answer_the_relay_is_used() {
    passes(free(), free(), true);
}

/// The addresses of pods in two clusters may be the same.
#[test]
fn if_another_server_answers_the_relay_is_used() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let direct = stranger.local_addr().unwrap();
    thread::spawn(move || {
        for connection in stranger.incoming() {
            let _ = connection.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    passes(direct, free(), true);
}

#[test]
fn a_target_executes_its_orders() {
    let pair = Pair::new();
    for file in 0..50 {
        fs::write(pair.source.join(format!("file-{file}")), vec![file; 10_000]).unwrap();
    }
    let mut programs = Programs::start(&pair, &pair.source, &pair.target, &[]);
    let connect = || programs.controller();
    let pass = |last| Order::Pass { last, reread: false };
    let mut controller = connect();
    let Answer::Passed(first) = controller.order(pass(false)) else {
        panic!("no pass")
    };
    assert_eq!((first.pass, first.received_bytes), (1, 500_000));
    fs::write(pair.source.join("file-7"), "changed").unwrap();
    // Another client gives orders, and one of them is invalid.
    drop(controller);
    let refused = connect().line(r#"{"delete":"everything"}"#);
    assert!(
        matches!(
            refused,
            Answer::Failed {
                reason: Reason::Order,
                ..
            }
        ),
        "{refused:?}"
    );

    let mut controller = connect();
    let Answer::Passed(last) = controller.order(pass(true)) else {
        panic!("no pass")
    };
    assert_eq!((last.pass, last.received_bytes), (2, 7));
    let Answer::Verified(found) = controller.order(Order::Verify {
        all: true,
        attributes: false,
    }) else {
        panic!("not verified")
    };
    assert_eq!((found.different, found.files), (0, 50));
    assert_eq!(found.expected, found.found);
    assert_eq!(controller.order(Order::Finish), Answer::Finished);
    assert!(programs.target.0.wait().unwrap().success());
    pair.assert_equal();
}

#[test]
fn a_target_that_is_a_device_does_the_same() {
    let pair = Pair::new();
    let at = |name: &str| pair.folder.path().join(name);
    fs::write(at("from"), [vec![7; 3 << 20], vec![0; 5 << 20]].concat()).unwrap();
    fs::write(at("to"), vec![1; 9 << 20]).unwrap();
    fs::create_dir(at("journal")).unwrap();
    let journal = format!("--journal={}", at("journal").display());
    let mut programs = Programs::start(&pair, &at("from"), &at("to"), &[journal]);
    let mut controller = programs.controller();
    let order = Order::Pass {
        last: true,
        reread: false,
    };
    let refused = controller.order(Order::Verify {
        all: false,
        attributes: false,
    });
    assert!(matches!(refused, Answer::Failed { .. }), "{refused:?}");
    let Answer::Passed(passed) = controller.order(order) else {
        panic!("no pass")
    };
    assert_eq!((passed.bytes, passed.received_bytes), (8 << 20, 3 << 20));
    assert_eq!((passed.entries, passed.compared_files), (0, 0));
    let Answer::Verified(found) = controller.order(Order::Verify {
        all: false,
        attributes: false,
    }) else {
        panic!("not verified")
    };
    assert_eq!((found.different, found.bytes), (0, 8 << 20));
    assert_eq!(found.expected, found.found);
    assert_eq!(controller.order(Order::Finish), Answer::Finished);
    assert!(programs.target.0.wait().unwrap().success());
    let (from, to) = (fs::read(at("from")).unwrap(), fs::read(at("to")).unwrap());
    assert!(to.starts_with(&from));
    assert_eq!(fs::read_dir(at("journal")).unwrap().count(), 0);
}

#[test]
fn a_target_stops_waiting_for_the_source_when_its_client_disconnects() {
    let pair = Pair::new();
    let nowhere = pair.folder.path().join("nowhere");
    let programs = Programs::start(&pair, &nowhere, &pair.target, &[]);
    let mut gone = programs.controller();
    let order = serde_json::to_string(&Order::Pass {
        last: true,
        reread: false,
    });
    let order = order.unwrap() + "\n";
    gone.0.get_mut().write_all(order.as_bytes()).unwrap();
    let mut line = String::new();
    gone.0.read_line(&mut line).unwrap();
    assert!(line.contains(r#""connected":false"#), "{line}");
    drop(gone);
    let mut next = programs.controller();
    let patience = Some(Duration::from_secs(20));
    next.0.get_mut().set_read_timeout(patience).unwrap();
    let answer = next.order(Order::Verify {
        all: false,
        attributes: false,
    });
    assert!(matches!(answer, Answer::Failed { .. }), "{answer:?}");
}

/// As a controller does that gets no answer: it gives the order again.
#[test]
fn orders_of_clients_that_have_left_before_their_turn_are_not_carried_out() {
    let pair = Pair::new();
    issue(&pair);
    let (to, control) = (free(), free());
    let orders = ["--control".to_owned(), control.to_string()];
    let mut target = command(&pair, "target", &pair.target, &[listen(to), orders].concat());
    let mut target = Program(target.stdout(Stdio::piped()).spawn().unwrap());
    let connect = || Controller(BufReader::new(patiently(control)));
    let ordering = |line: &str| {
        let mut client = connect();
        client.0.get_mut().write_all(line.as_bytes()).unwrap();
        client
    };
    // No source dials, so that this one's order takes until it disconnects.
    let mut first = ordering("{\"pass\":{\"last\":false}}\n");
    first.0.read_line(&mut String::new()).unwrap();
    for _ in 0..3 {
        drop(ordering("{\"verify\":{\"all\":true}}\n"));
    }
    // One that sends no more, and reads.
    let mut half = ordering("{}\n");
    half.0.get_mut().shutdown(Shutdown::Write).unwrap();
    drop(first);
    let mut answer = String::new();
    half.0.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(r#""reason":"order""#), "{answer}");
    assert_eq!(connect().order(Order::Finish), Answer::Finished);
    let mut log = String::new();
    target.0.stdout.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(!log.contains("no pass is complete"), "{log}");
}

#[test]
fn a_client_that_sends_no_order_does_not_block_the_others() {
    let pair = Pair::new();
    let programs = Programs::start(&pair, &pair.source, &pair.target, &[]);
    let mut silent: Vec<TcpStream> = (0..3).map(|_| patiently(programs.control)).collect();
    // The beginning of an order.
    silent[2].write_all(b"{").unwrap();
    let mut other = programs.controller();
    let patience = Some(Duration::from_secs(20));
    other.0.get_mut().set_read_timeout(patience).unwrap();
    for _ in 0..2 {
        let answer = other.line("{}");
        assert!(matches!(answer, Answer::Failed { .. }), "{answer:?}");
        other = programs.controller();
    }
    // While no other client has connected, one may wait before it sends an order.
    thread::sleep(Duration::from_secs(3));
    let answer = other.line("{}");
    assert!(matches!(answer, Answer::Failed { .. }), "{answer:?}");
}
