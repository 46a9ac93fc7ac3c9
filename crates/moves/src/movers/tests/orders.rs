//! The orders to the target's mover, through a fake API server, and the handling of its answers.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
};

use super::*;
use crate::{
    movers::orders::Orders,
    placement::moving::{Pass, Roots},
    relay::{End, tests::cluster::FakeCluster},
};

const GATE: GateNumber = GateNumber::FIRST;
const COPYING: Stage = Stage::Copying { last: None };

/// Reads back what a warm pass has written. Attributes are compared only if other pods may use the target, as
/// in a remote cluster.
const READ_BACK: &str = r#"{"verify":{"all":false,"attributes":false}}"#;

/// A target that answers each order with the next line of this script, after the lines in its `before`. It reads back equal
/// files, unless the script contains a line for `readBack`.
struct Target {
    cluster: FakeCluster,
    port: u16,
    heard: Arc<Mutex<Vec<String>>>,
    _serves: tokio_util::task::AbortOnDropHandle<()>,
}

impl Target {
    async fn start(mut script: Vec<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let told = Arc::clone(&heard);
        script.reverse();
        let serves = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (reading, mut writing) = socket.into_split();
                let mut lines = BufReader::new(reading).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let reads_back = line == READ_BACK;
                    let scripted = script.last().is_some_and(|next| next.get("readBack").is_some());
                    let answer = if reads_back && !scripted {
                        Some(verified(0))
                    } else {
                        told.lock().unwrap().push(line);
                        script.pop()
                    };
                    let answer = answer.map(|answer| match answer.get("readBack") {
                        Some(answer) if reads_back => answer.clone(),
                        _ => answer,
                    });
                    if let Some(passed) = answer.as_ref().and_then(|it| it.get("passed")) {
                        let millis = passed["millis"].as_u64().unwrap_or_default();
                        tokio::time::sleep(Duration::from_millis(millis)).await;
                    }
                    let Some(mut answer) = answer else {
                        // The mover dies.
                        break;
                    };
                    let before = answer.as_object_mut().and_then(|it| it.remove("before"));
                    let mut said = match before {
                        Some(Value::Array(lines)) => lines,
                        _ => vec![progress_line(true, 5)],
                    };
                    said.push(answer);
                    let said: Vec<String> = said.iter().map(ToString::to_string).collect();
                    let said = said.join("\n") + "\n";
                    writing.write_all(said.as_bytes()).await.unwrap();
                }
            }
        });
        Self {
            cluster: FakeCluster::start().await,
            port,
            heard,
            _serves: tokio_util::task::AbortOnDropHandle::new(serves),
        }
    }

    fn end(&self) -> End {
        self.cluster.end("target", self.port)
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

fn progress_line(connected: bool, received: u64) -> Value {
    json!({"progress": {"connected": connected, "receivedBytes": received}})
}

fn passed(received: u64, losses: &Value) -> Value {
    json!({"passed": {
        "pass": 1, "entries": 3, "bytes": 100, "comparedFiles": 1, "receivedBytes": received,
        "deleted": 0, "unsteady": 0, "losses": losses, "lossesOfAll": true,
    }})
}

/// The answer of a target of the previous version, which knows only what that pass has listed.
fn passed_of_old(losses: &Value) -> Value {
    let mut passed = passed(0, losses);
    passed["passed"].as_object_mut().unwrap().remove("lossesOfAll");
    passed
}

fn verified(different: u64) -> Value {
    let found = if different == 0 { "aa" } else { "bb" };
    json!({"verified": {
        "expected": "aa", "found": found, "files": 1, "bytes": 100, "different": different,
        "differences": if different == 0 { json!([]) } else { json!(["d/small: content"]) },
    }})
}

struct Copies {
    world: World,
    orders: Orders,
    target: Target,
}

impl Copies {
    async fn with(script: Vec<Value>) -> Self {
        Self::of(World::new(Way::Out).await, script).await
    }

    async fn of(world: World, script: Vec<Value>) -> Self {
        Self {
            world,
            orders: Orders::default(),
            target: Target::start(script).await,
        }
    }

    fn seen(&self, stage: &Stage) -> Live<Copied> {
        self.orders.copied(&self.world.moved, &self.world.of, stage, true)
    }

    fn begin(&self, pass: Pass) -> Applied {
        let (moved, of) = (&self.world.moved, &self.world.of);
        self.orders.begin(moved, of, pass, self.target.end())
    }

    /// Sends an order and waits until it has ended.
    async fn ended(&self, pass: Pass) -> Live<Copied> {
        assert_eq!(self.begin(pass), Applied::Done);
        let running = || matches!(self.seen(&ROLLBACK), Live::Known(Copied { running: Some(_), .. }));
        let ends = async {
            while running() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ends).await.unwrap();
        self.seen(&COPYING)
    }
}

#[tokio::test]
async fn a_short_pass_has_found_little() {
    let copies = Copies::with(vec![passed(100, &json!([]))]).await;
    assert_eq!(copies.seen(&COPYING), Live::Known(Copied::default()));
    let seen = copies.ended(Pass::Warm).await;
    assert!(
        matches!(
            seen,
            Live::Known(Copied {
                converged: true,
                running: None,
                ..
            })
        ),
        "{seen:?}"
    );
    assert_eq!(
        copies.target.heard(),
        [r#"{"pass":{"last":false,"reread":false}}"#]
    );
    let told = copies.orders.progress(&copies.world.moved).unwrap();
    let (last, _) = told.last.unwrap();
    assert_eq!(
        (told.passes, last.entries, last.bytes, told.received),
        (1, 3, 100, 100)
    );
}

#[tokio::test]
async fn files_that_change_while_they_are_read_are_left_to_one_more_pass() {
    let unsteady = |files: u64| {
        let mut passed = passed(100, &json!([]));
        passed["passed"]["unsteady"] = files.into();
        passed
    };
    let copies = Copies::with(vec![unsteady(900), unsteady(1), unsteady(1)]).await;
    for converged in [false, false, true] {
        let Live::Known(seen) = copies.ended(Pass::Warm).await else {
            panic!("it failed");
        };
        assert_eq!(seen.converged, converged);
    }
}

/// So that little is left to read during the cut-over.
#[tokio::test]
async fn data_written_by_a_warm_pass_is_read_back() {
    let mut changing = verified(0);
    changing["verified"]["different"] = 2.into();
    changing["verified"]["unknown"] = 2.into();
    for (read, converged) in [(verified(0), true), (changing, true), (verified(1), false)] {
        let script = vec![passed(100, &json!([])), json!({ "readBack": read })];
        let copies = Copies::with(script).await;
        let seen = copies.ended(Pass::Warm).await;
        assert_eq!(copies.target.heard()[1], READ_BACK);
        match seen {
            Live::Known(seen) => assert_eq!((seen.converged, converged), (true, true)),
            Live::Unknown(why) => {
                assert!(
                    !converged && why.contains("does not return") && why.contains("d/small"),
                    "{why}"
                );
            }
        }
        let told = copies.orders.progress(&copies.world.moved).unwrap();
        assert_eq!(told.passes, 1);
    }
}

#[tokio::test]
async fn everything_is_read_back_from_a_target_that_others_use() {
    let copies = Copies::with(vec![passed(0, &json!([])), verified(0)]).await;
    copies.orders.record_users(
        &copies.world.moved,
        &["shop-home/web".to_owned(), "the node r3".to_owned()],
    );
    copies.orders.record_users(&copies.world.moved, &[]);
    copies.ended(Pass::Verify(GATE)).await;
    assert_eq!(
        copies.target.heard()[1],
        r#"{"verify":{"all":true,"attributes":true}}"#
    );
    let told = copies.orders.progress(&copies.world.moved).unwrap();
    let why = told.reads_back_all.unwrap();
    assert!(why.contains("shop-home/web, the node r3"), "{why}");
}

#[tokio::test]
async fn a_comparison_counts_only_for_its_own_gate() {
    let script = vec![passed(0, &json!([])), verified(0), json!("finished")];
    let copies = Copies::with(script).await;
    let Live::Known(seen) = copies.ended(Pass::Final(GATE)).await else {
        panic!("it failed");
    };
    assert_eq!((seen.finished, seen.compared), (Some(GATE), None));
    let Live::Known(seen) = copies.ended(Pass::Verify(GATE)).await else {
        panic!("it failed");
    };
    assert_eq!(
        (seen.compared, seen.journal_off),
        (Some((GATE, Roots::Equal)), None)
    );
    assert_eq!(
        copies.target.heard().len(),
        2,
        "the journal stays until the commit"
    );
    let Live::Known(seen) = copies.ended(Pass::Finish(GATE)).await else {
        panic!("it failed");
    };
    assert_eq!(seen.journal_off, Some(GATE));
    assert_eq!(
        copies.target.heard(),
        [
            r#"{"pass":{"last":true,"reread":false}}"#,
            r#"{"verify":{"all":false,"attributes":true}}"#,
            r#""finish""#
        ]
    );
    assert_eq!(copies.begin(Pass::Final(GATE.next())), Applied::Done);
    assert_eq!(copies.begin(Pass::Verify(GATE)), Applied::ChangedMeanwhile);
}

#[tokio::test]
async fn a_new_leader_compares_only_after_a_pass_of_its_own() {
    let script = vec![passed(0, &json!([])), verified(0)];
    let mut copies = Copies::with(script).await;
    copies.world.of = request(json!({"target": {"cluster": "milan"}, "verify": "Full"}));
    copies.ended(Pass::Verify(GATE)).await;
    assert_eq!(
        copies.target.heard()[0],
        r#"{"pass":{"last":true,"reread":true}}"#
    );
    assert_eq!(
        copies.target.heard()[1],
        r#"{"verify":{"all":true,"attributes":true}}"#
    );
}

/// What is moved while a pass lists the source is not found, and deleted at the target.
#[tokio::test]
async fn a_last_pass_beside_undetected_writers_counts_if_it_finds_no_change() {
    let changed = |count: u64| {
        let mut passed = passed(0, &json!([]));
        passed["passed"]["changed"] = count.into();
        passed
    };
    let ended = async |rights, counts: &[u64]| {
        let mut world = World::with_rights(Way::Home, None, rights).await;
        world.of = request(json!({"target": {"nodeName": "n2"}, "verify": "Full"}));
        let copies = Copies::of(world, counts.iter().map(|&count| changed(count)).collect()).await;
        (copies.ended(Pass::Final(GATE)).await, copies.target.heard())
    };
    let first = r#"{"pass":{"last":true,"reread":true}}"#;
    let again = r#"{"pass":{"last":true,"reread":false}}"#;
    for (rights, counts, orders) in [
        (Rights::ALL, &[2][..], &[first][..]),
        (Rights::default(), &[0][..], &[first][..]),
        (Rights::default(), &[2, 0][..], &[first, again][..]),
    ] {
        let (seen, heard) = ended(rights, counts).await;
        assert!(
            matches!(
                &seen,
                Live::Known(Copied {
                    finished: Some(GATE),
                    ..
                })
            ),
            "{seen:?}"
        );
        assert_eq!(heard, orders);
    }
    let (seen, heard) = ended(Rights::default(), &[5, 4, 3]).await;
    assert!(
        matches!(&seen, Live::Unknown(why) if why.contains("3 changes") && why.contains("stop")),
        "{seen:?}"
    );
    assert_eq!(heard, [first, again, again]);
}

#[tokio::test]
async fn two_last_passes_are_predicted_if_writers_may_be_undetected() {
    let pass = Duration::from_millis(300);
    let mut slow = passed(0, &json!([]));
    slow["passed"]["millis"] = 300.into();
    for (rights, least) in [(Rights::ALL, pass), (Rights::default(), pass * 2)] {
        let mut world = World::with_rights(Way::Home, None, rights).await;
        world.of = request(json!({"target": {"nodeName": "n2"}}));
        let copies = Copies::of(world, vec![slow.clone()]).await;
        copies.ended(Pass::Warm).await;
        let told = copies.orders.progress(&copies.world.moved).unwrap();
        let (_, expected) = told.last.unwrap();
        assert!(expected >= least, "{expected:?}");
    }
}

#[tokio::test]
async fn a_too_small_target_gets_no_further_requests() {
    let failed = json!({"failed": {"reason": "tooSmall", "message": "no room"}});
    let copies = Copies::with(vec![failed]).await;
    let Live::Known(seen) = copies.ended(Pass::Warm).await else {
        panic!("it is tried again");
    };
    assert_eq!(seen.too_small.as_deref(), Some("the claim shop/data: no room"));
}

#[tokio::test]
async fn a_comparison_that_fails_or_finds_changed_files_is_repeated_after_another_pass() {
    let cut = json!({"failed": {"reason": "target", "message": "cut"}});
    let mut unknown = verified(0);
    for (field, value) in [
        ("different", json!(1)),
        ("unknown", json!(1)),
        ("differences", json!(["'a' changed"])),
    ] {
        unknown["verified"][field] = value;
    }
    for first in [cut, unknown] {
        let pass = passed(0, &json!([]));
        let copies = Copies::with(vec![pass.clone(), first, pass, verified(0)]).await;
        copies.ended(Pass::Verify(GATE)).await;
        let Live::Known(seen) = copies.seen(&ROLLBACK) else {
            panic!("it is silent");
        };
        assert_eq!((seen.finished, seen.compared), (None, None));
        copies.ended(Pass::Verify(GATE)).await;
        let Live::Known(seen) = copies.seen(&ROLLBACK) else {
            panic!("it is silent");
        };
        assert_eq!(seen.compared, Some((GATE, Roots::Equal)));
        assert_eq!(copies.target.heard().len(), 4);
    }
}

/// A comparison that exceeds `maxDowntime` continues after the gate was opened.
#[tokio::test]
async fn a_comparison_whose_gate_was_opened_again_keeps_the_journal() {
    let pass = || passed(0, &json!([]));
    let script = vec![pass(), pass(), verified(0), pass()];
    let copies = Copies::with(script).await;
    copies.ended(Pass::Warm).await;
    // The move rolls back to copying during the comparison, whose order completes.
    copies.ended(Pass::Verify(GATE)).await;
    copies.ended(Pass::Warm).await;
    let heard = copies.target.heard();
    assert_eq!(heard.len(), 4);
    assert!(!heard.iter().any(|order| order.contains("finish")), "{heard:?}");
}

#[tokio::test]
async fn a_target_that_cannot_delete_its_journal_is_not_waited_for() {
    let failed = json!({"failed": {"reason": "target", "message": "I/O error"}});
    let copies = Copies::with(vec![failed]).await;
    assert_eq!(copies.begin(Pass::Finish(GATE)), Applied::Done);
    let committed = Stage::Committed(GATE);
    let silent = async {
        while copies.seen(&committed) != Live::Unknown("I/O error".into()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), silent)
        .await
        .unwrap();
}

#[tokio::test]
async fn differences_are_reported_without_failing_the_move() {
    let copies = Copies::with(vec![passed(0, &json!([])), verified(2)]).await;
    let seen = copies.ended(Pass::Verify(GATE)).await;
    let Live::Known(Copied {
        compared: Some((_, Roots::Differ(what))),
        ..
    }) = seen
    else {
        panic!("{seen:?}");
    };
    assert_eq!(what, "2 differences: d/small: content");
    assert_eq!(copies.target.heard().len(), 2);
}

#[tokio::test]
async fn failures_are_reported_and_retried_later() {
    let failed = json!({"failed": {"reason": "full", "message": "the target is full"}});
    let copies = Copies::with(vec![failed]).await;
    assert_eq!(
        copies.ended(Pass::Warm).await,
        Live::Unknown("the target is full".into())
    );
    // A rollback does not wait for it.
    assert_eq!(copies.seen(&ROLLBACK), Live::Known(Copied::default()));
    // The mover dies.
    let seen = copies.ended(Pass::Warm).await;
    assert!(
        matches!(&seen, Live::Unknown(why) if why.contains("has closed the connection")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn a_failure_is_reported_until_an_order_succeeds() {
    let full = json!({"failed": {"reason": "full", "message": "the target is full"}});
    let script = vec![full, passed(0, &json!([])), passed(0, &json!([]))];
    let copies = Copies::with(script).await;
    let failed = || copies.orders.progress(&copies.world.moved).unwrap().failed;
    let seen = copies.ended(Pass::Warm).await;
    assert_eq!(seen, Live::Unknown("the target is full".to_owned()));
    assert_eq!(failed().as_deref(), Some("the target is full"));
    // The next pass may take long, and fail again.
    assert_eq!(copies.begin(Pass::Warm), Applied::Done);
    assert_eq!(failed().as_deref(), Some("the target is full"));
    copies.ended(Pass::Final(GATE)).await;
    assert_eq!(failed(), None);
}

/// What has arrived on such a connection is not sent again.
#[tokio::test]
async fn bytes_on_a_connection_that_broke_count_as_sent() {
    let failed = json!({
        "before": [progress_line(true, 40)],
        "failed": {"reason": "target", "message": "I/O error"},
    });
    let mut resumed = passed(30, &json!([]));
    // Of the second break only the new count is seen.
    resumed["before"] = json!([
        progress_line(true, 60),
        progress_line(false, 0),
        progress_line(true, 20),
        progress_line(true, 15),
    ]);
    let mut resumed_at_once = passed(10, &json!([]));
    resumed_at_once["before"] = json!([progress_line(true, 50)]);
    let copies = Copies::with(vec![failed, resumed, resumed_at_once]).await;
    for received in [40, 40 + 60 + 20 + 30, 150 + 50 + 10] {
        copies.ended(Pass::Warm).await;
        let told = copies.orders.progress(&copies.world.moved).unwrap();
        assert_eq!((told.received, told.running), (received, None));
    }
}

#[tokio::test]
async fn every_loss_is_reported() {
    let lost = json!([{"kind": "xattrs", "count": 3, "example": "d/odd"}]);
    let mut copies = Copies::with(vec![passed(0, &lost), passed(0, &lost)]).await;
    let seen = copies.ended(Pass::Warm).await;
    let Live::Unknown(why) = &seen else {
        panic!("{seen:?}")
    };
    assert!(
        why.contains("d/odd") && why.contains("ExtendedAttributes"),
        "{why}"
    );
    copies.ended(Pass::Final(GATE)).await;
    let Live::Known(seen) = copies.seen(&ROLLBACK) else {
        panic!("it is silent")
    };
    assert_eq!((seen.converged, seen.finished), (false, None));
    copies.world.of = request(json!({"target": {"cluster": "milan"}, "acceptLoss": ["ExtendedAttributes"]}));
    let Live::Known(seen) = copies.seen(&COPYING) else {
        panic!("it is silent")
    };
    assert_eq!((seen.converged, seen.finished), (true, Some(GATE)));
}

async fn two_minutes_later() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_mins(2)).await;
    tokio::time::resume();
}

fn is_silent(seen: &Live<Copied>) -> bool {
    matches!(seen, Live::Unknown(why) if why.contains("ExtendedAttributes"))
}

/// Only a target that reports the losses of the whole volume can clear one.
#[tokio::test]
async fn a_loss_blocks_the_move_until_it_is_accepted_or_gone() {
    let lost = json!([{"kind": "xattrs", "count": 3, "example": "d/odd"}]);
    let none = json!([]);
    let script = vec![passed(0, &lost), passed_of_old(&none), passed(0, &none)];
    let copies = Copies::with(script).await;
    copies.ended(Pass::Warm).await;
    for stage in [Stage::Finishing(GATE), Stage::Verifying(GATE)] {
        two_minutes_later().await;
        let seen = copies.seen(&stage);
        assert!(is_silent(&seen), "{seen:?}");
    }
    // Without warm passes the losses cannot be checked again before the gate.
    let cold = copies
        .orders
        .copied(&copies.world.moved, &copies.world.of, &COPYING, false);
    assert!(is_silent(&cold), "{cold:?}");
    // A warm pass is made from time to time, because the users may have removed the loss.
    let Live::Known(seen) = copies.seen(&COPYING) else {
        panic!("it is not looked at again");
    };
    assert!(!seen.converged);
    let seen = copies.ended(Pass::Warm).await;
    assert!(is_silent(&seen), "a part of the volume: {seen:?}");
    let seen = copies.ended(Pass::Warm).await;
    assert!(
        matches!(&seen, Live::Known(Copied { converged: true, .. })),
        "{seen:?}"
    );
}

/// A new leader makes a pass of its own, which reports all losses.
#[tokio::test]
async fn a_new_leader_learns_of_losses_that_were_reported_before() {
    let lost = json!([{"kind": "xattrs", "count": 3, "example": "d/odd"}]);
    let mut copies = Copies::with(vec![passed(0, &lost), passed(0, &lost)]).await;
    copies.ended(Pass::Warm).await;
    copies.orders = Orders::default();
    assert_eq!(copies.seen(&COPYING), Live::Known(Copied::default()));
    let seen = copies.ended(Pass::Warm).await;
    assert!(is_silent(&seen), "{seen:?}");
}

#[tokio::test]
async fn orders_are_sent_one_at_a_time() {
    let copies = Copies::with(vec![passed(0, &json!([])), passed(0, &json!([]))]).await;
    assert_eq!(copies.begin(Pass::Warm), Applied::Done);
    assert_eq!(copies.begin(Pass::Warm), Applied::ChangedMeanwhile);
    let seen = copies.ended(Pass::Final(GATE)).await;
    assert!(
        matches!(
            seen,
            Live::Known(Copied {
                finished: Some(GATE),
                ..
            })
        ),
        "{seen:?}"
    );
    assert_eq!(copies.target.heard().len(), 2);
    copies.orders.forget(&copies.world.moved);
    assert_eq!(copies.seen(&COPYING), Live::Known(Copied::default()));
}

#[tokio::test]
async fn a_pass_whose_source_ends_is_not_waited_for() {
    let copies = Copies::with(vec![passed(0, &json!([])), passed(0, &json!([]))]).await;
    assert_eq!(copies.begin(Pass::Final(GATE)), Applied::Done);
    assert_eq!(copies.begin(Pass::Final(GATE.next())), Applied::Done);
    copies.orders.stop_waiting(&copies.world.moved);
    assert_eq!(copies.seen(&ROLLBACK), Live::Known(Copied::default()));
    let third = GATE.next().next();
    let Live::Known(seen) = copies.ended(Pass::Final(third)).await else {
        panic!("it failed");
    };
    assert_eq!(seen.finished, Some(third));
}
