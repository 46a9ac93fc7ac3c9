//! The port on which a target takes orders: one connection at a time, one order after the other. If the
//! client disconnects, the order still completes and its answer is dropped; but then the program does not
//! wait for a source any more. The order of a client that disconnects before its turn is dropped. A client that sends no
//! order is disconnected when another one connects.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use crate::{
    control::{Answer, LONGEST_ORDER, Order, Reason, Verified},
    error::Error,
    target::{PassOptions, Progress},
    verify::Scope,
};

use super::{log, receiver::Receiver};

/// How often progress is sent to a client that waits for an order.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// How long a client may take to read an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may send nothing before the next one is served, if one has connected.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a closed socket of the same network namespace takes to answer by a reset.
const RESET_TIMEOUT: Duration = Duration::from_millis(50);

/// Carries out orders until it is ordered to finish.
pub(super) fn serve_orders(mut receiver: Receiver<'_>, listener: &TcpListener) -> Result<(), Error> {
    let mut another = None;
    loop {
        let mut connection = match another.take() {
            Some(connection) => connection,
            None => listener.accept().map_err(Error::Cut)?.0,
        };
        // Without limits a client that does not read, or sends no order, would block the move.
        let limited = connection.set_write_timeout(Some(WRITE_TIMEOUT));
        if limited
            .and(connection.set_read_timeout(Some(READ_TIMEOUT)))
            .is_err()
        {
            continue;
        }
        let Ok(reading) = connection.try_clone() else {
            continue;
        };
        let mut orders = BufReader::new(reading);
        while sends(&mut orders, listener, &mut another) {
            let order = next(&mut orders);
            if has_left(&mut connection) {
                break;
            }
            match order {
                Ok(Some(Ok(Order::Finish))) => {
                    let finished = receiver.finish().map(|()| Answer::Finished);
                    let answer = finished.as_ref().map_or_else(Answer::from, Answer::clone);
                    send_answer(&mut connection, &answer);
                    return finished.map(drop);
                }
                Ok(Some(Ok(order))) => {
                    let answer = carry_out(&mut receiver, order, &mut connection);
                    let answer = answer.unwrap_or_else(|error| Answer::from(&error));
                    send_answer(&mut connection, &answer);
                }
                Ok(Some(Err(message))) => {
                    let reason = Reason::Order;
                    send_answer(&mut connection, &Answer::Failed { reason, message });
                    break;
                }
                // The client has disconnected; others may connect.
                Ok(None) | Err(_) => break,
            }
        }
    }
}

/// Waits until a client sends something: false if it has disconnected, or if it has sent nothing and `another` one has
/// connected.
fn sends(orders: &mut impl BufRead, listener: &TcpListener, another: &mut Option<TcpStream>) -> bool {
    loop {
        match orders.fill_buf() {
            Ok(sent) => return !sent.is_empty(),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return false,
        }
        let waiting = listener.set_nonblocking(true).and_then(|()| listener.accept());
        let restored = listener.set_nonblocking(false);
        *another = waiting.ok().map(|(connection, _)| connection);
        if another.is_some() || restored.is_err() {
            return false;
        }
    }
}

/// Whether the client has disconnected while its order waited for others. It gives the order again every few minutes, and
/// if those before it took longer each, the last one would never be carried out. A client that only ends what it sends, as
/// `nc` does, reads the answer.
fn has_left(connection: &mut TcpStream) -> bool {
    let sent = connection
        .set_nonblocking(true)
        .and_then(|()| connection.peek(&mut [0]));
    match (sent, connection.set_nonblocking(false)) {
        (Ok(0), Ok(())) => {}
        (Ok(_), restored) => return restored.is_err(),
        (Err(error), restored) => return error.kind() != ErrorKind::WouldBlock || restored.is_err(),
    }
    // The first line is answered by a reset if the socket is closed, and then the second one cannot be sent.
    (0..2).any(|_| {
        let is_lost = write(connection, &progress_of(None)).is_err();
        thread::sleep(RESET_TIMEOUT);
        is_lost
    })
}

/// The next line; an error text if it is not an order.
fn next(orders: &mut impl BufRead) -> io::Result<Option<Result<Order, String>>> {
    let mut line = String::new();
    if orders.take(LONGEST_ORDER).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(
        serde_json::from_str(&line).map_err(|error| error.to_string()),
    ))
}

fn carry_out(receiver: &mut Receiver<'_>, order: Order, connection: &mut TcpStream) -> Result<Answer, Error> {
    let progress: Mutex<Option<Progress>> = Mutex::new(None);
    let is_connected = AtomicBool::new(true);
    let (done, waiting) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let writer = connection.try_clone();
        let (progress, is_connected) = (&progress, &is_connected);
        scope.spawn(move || {
            let Ok(mut writer) = writer else {
                is_connected.store(false, Ordering::Relaxed);
                return;
            };
            while waiting.recv_timeout(PROGRESS_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                let known = lock(progress).clone();
                if write(&mut writer, &progress_of(known.as_ref())).is_err() {
                    is_connected.store(false, Ordering::Relaxed);
                    return;
                }
            }
        });
        let answer = match order {
            Order::Pass { last, reread } => {
                let options = PassOptions { last, reread };
                let is_wanted = || is_connected.load(Ordering::Relaxed);
                let passed = receiver.pass(options, is_wanted, |connected| *lock(progress) = connected);
                passed.map(Answer::Passed)
            }
            Order::Verify { all, attributes } => {
                let scope = match (all, attributes) {
                    (true, _) => Scope::All,
                    (false, true) => Scope::TouchedAndAttributes,
                    (false, false) => Scope::Touched,
                };
                let found = receiver.verify(scope);
                found.map(|found| Answer::Verified(Verified::from(found)))
            }
            Order::Finish => Ok(Answer::Finished),
        };
        drop(done);
        answer
    })
}

/// The progress of an order; `None` while no source is connected.
fn progress_of(known: Option<&Progress>) -> Answer {
    Answer::Progress {
        connected: known.is_some(),
        received_bytes: known.map_or(0, Progress::received_bytes),
        expected_bytes: known.map_or(0, Progress::expected_bytes),
        direct: known.is_some_and(Progress::is_direct),
        settled_bytes: known.and_then(Progress::settled_bytes),
    }
}

/// Sends an answer to the client, and writes it to the log.
fn send_answer(connection: &mut TcpStream, answer: &Answer) {
    log(answer);
    // The client may have disconnected: the order can be given again.
    let _ = write(connection, answer);
}

fn write(connection: &mut TcpStream, answer: &Answer) -> io::Result<()> {
    let line = serde_json::to_string(answer)? + "\n";
    connection.write_all(line.as_bytes())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
