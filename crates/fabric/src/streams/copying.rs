//! Copies bytes between two connections, in both directions, until both are closed.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// Bytes in memory for each direction of a stream.
const BUFFER: usize = 16 << 10;

/// How long the other direction may be idle after one has failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Copies until both sides have closed. A close of one side is passed on, and the other may still send, until it has
/// sent nothing for `linger`, or for `AFTER_FAILURE` if one direction has failed. While both are open, there is no idle
/// limit.
pub(super) async fn copy(
    one: impl AsyncRead + AsyncWrite,
    other: impl AsyncRead + AsyncWrite,
    linger: Duration,
) -> io::Result<()> {
    let (one_reader, one_writer) = tokio::io::split(one);
    let (other_reader, other_writer) = tokio::io::split(other);
    let passed = AtomicU64::new(0);
    let there = pass(one_reader, other_writer, &passed);
    let back = pass(other_reader, one_writer, &passed);
    tokio::pin!(there, back);
    let (is_there, first) = tokio::select! {
        ended = &mut there => (true, ended),
        ended = &mut back => (false, ended),
    };
    // A side that accepts no more data may have sent its last data, such as an exit status, before.
    let patience = if first.is_ok() {
        linger
    } else {
        linger.min(AFTER_FAILURE)
    };
    loop {
        let before = passed.load(Ordering::Relaxed);
        let ended = if is_there {
            timeout(patience, &mut back).await
        } else {
            timeout(patience, &mut there).await
        };
        match ended {
            Ok(ended) => return first.and(ended),
            Err(_) if passed.load(Ordering::Relaxed) == before => return first,
            Err(_) => {}
        }
    }
}

/// Copies one direction, and passes on its end.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    passed: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        // TLS buffers writes.
        to.flush().await?;
        passed.fetch_add(read as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    const LINGER: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn after_one_side_has_closed_the_other_may_still_send() {
        let (mut home, one) = duplex(1000);
        let (mut there, other) = duplex(1000);
        let copying = tokio::spawn(copy(one, other, LINGER));
        home.write_all(b"sort this").await.unwrap();
        home.shutdown().await.unwrap();
        let mut heard = String::new();
        there.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "sort this");
        // Longer than `linger` in all, but never without data for that long.
        for _ in 0..5 {
            tokio::time::sleep(LINGER * 9 / 10).await;
            there.write_all(b"sorted ").await.unwrap();
        }
        drop(there);
        let mut heard = String::new();
        home.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "sorted ".repeat(5));
        copying.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_side_sent_before_it_stopped_reading_arrives() {
        // Which direction is tried first is random.
        for _ in 0..50 {
            let (mut home, one) = duplex(1000);
            let (mut there, other) = duplex(10);
            home.write_all(&[0; 1000]).await.unwrap();
            let copying = tokio::spawn(copy(one, other, LINGER));
            tokio::task::yield_now().await;
            there.write_all(b"exit 3").await.unwrap();
            drop(there);
            let mut heard = String::new();
            home.read_to_string(&mut heard).await.unwrap();
            assert_eq!(heard, "exit 3");
            assert!(copying.await.unwrap().is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_stream_stays_open_until_one_side_closes() {
        let (home, one) = duplex(1000);
        let (mut there, other) = duplex(1000);
        let copying = tokio::spawn(copy(one, other, LINGER));
        tokio::time::sleep(LINGER * 100).await;
        assert!(!copying.is_finished());
        drop(home);
        // The other side stays open.
        let mut heard = Vec::new();
        there.read_to_end(&mut heard).await.unwrap();
        copying.await.unwrap().unwrap();
        assert!(heard.is_empty());
    }
}
