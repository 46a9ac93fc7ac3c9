//! The port on which a target takes orders: one connection at a time, one order after the
//! other. Who has gone away misses the answer, and finds the order's work done; but no source is
//! waited for then.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
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

use super::{receiver::Receiver, say};

/// Whoever waits for an order's end hears so often that it is under way.
const EVERY: Duration = Duration::from_secs(1);
/// For whoever gave an order to take what is said of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Does what it is told until it is told to finish.
pub(super) fn obey(mut receiver: Receiver<'_>, listener: &TcpListener) -> Result<(), Error> {
    loop {
        let (mut connection, _) = listener.accept().map_err(Error::Cut)?;
        // Without a limit one who does not read would hold up the move.
        if connection.set_write_timeout(Some(PATIENCE)).is_err() {
            continue;
        }
        let Ok(reading) = connection.try_clone() else {
            continue;
        };
        let mut orders = BufReader::new(reading);
        loop {
            match next(&mut orders) {
                Ok(Some(Ok(Order::Finish))) => {
                    let answer = receiver.finish().map(|()| Answer::Finished);
                    let said = answer.as_ref().map_or_else(Answer::from, Answer::clone);
                    tell(&mut connection, &said);
                    return answer.map(drop);
                }
                Ok(Some(Ok(order))) => {
                    let answer = carry_out(&mut receiver, order, &mut connection);
                    let answer = answer.unwrap_or_else(|error| Answer::from(&error));
                    tell(&mut connection, &answer);
                }
                Ok(Some(Err(message))) => {
                    let reason = Reason::Order;
                    tell(&mut connection, &Answer::Failed { reason, message });
                    break;
                }
                // They have gone; others may come.
                Ok(None) | Err(_) => break,
            }
        }
    }
}

/// The next line, as far as it is one.
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
    let is_heard = AtomicBool::new(true);
    let (done, waiting) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let told = connection.try_clone();
        let (progress, is_heard) = (&progress, &is_heard);
        scope.spawn(move || {
            let Ok(mut told) = told else {
                is_heard.store(false, Ordering::Relaxed);
                return;
            };
            while waiting.recv_timeout(EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                let known = lock(progress).clone();
                let under_way = Answer::Progress {
                    connected: known.is_some(),
                    received_bytes: known.as_ref().map_or(0, Progress::received_bytes),
                    expected_bytes: known.as_ref().map_or(0, Progress::expected_bytes),
                    direct: known.as_ref().is_some_and(Progress::is_direct),
                    settled_bytes: known.as_ref().and_then(Progress::settled_bytes),
                };
                if write(&mut told, &under_way).is_err() {
                    is_heard.store(false, Ordering::Relaxed);
                    return;
                }
            }
        });
        let answer = match order {
            Order::Pass { last, reread } => {
                let options = PassOptions { last, reread };
                let is_wanted = || is_heard.load(Ordering::Relaxed);
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

/// Says it to whoever gave the order, and to the log.
fn tell(connection: &mut TcpStream, answer: &Answer) {
    say(answer);
    // They may have gone: the order can be given again.
    let _ = write(connection, answer);
}

fn write(connection: &mut TcpStream, answer: &Answer) -> io::Result<()> {
    let line = serde_json::to_string(answer)? + "\n";
    connection.write_all(line.as_bytes())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
