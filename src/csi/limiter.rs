//! Limits how many volumes are created at the same time. If all claims of a burst progressed
//! together, all of them would be done at its end; in the order of their calls, half of them are done
//! after half of the time.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{self, Instant},
};
use tonic::Status;

/// A call that takes longer is waiting for a slow real class and not using the driver, so the next
/// call may begin.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// Lets a limited number of calls begin at a time, in the order of their arrival.
#[derive(Clone)]
pub struct CreateLimiter(Arc<Semaphore>);

impl CreateLimiter {
    /// A limit of `at_once` calls.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_once)))
    }

    /// Runs `work` when it is its turn; UNAVAILABLE, with nothing done, if its turn does not come
    /// before the deadline.
    pub async fn take<T>(
        &self,
        deadline: Instant,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let Ok(turn) = time::timeout_at(deadline, self.0.acquire()).await else {
            return Err(Status::unavailable(
                "many volumes are being created, and this one has to wait; the call will be retried",
            ));
        };
        let mut work = pin!(work);
        if let Ok(done) = time::timeout(BUSY_FOR, &mut work).await {
            return done;
        }
        drop(turn);
        work.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::future::join_all;
    use tonic::Code;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_limited_number_of_volumes_is_created_in_the_order_of_calls() {
        let (limiter, done) = (CreateLimiter::new(2), Mutex::new(Vec::new()));
        let begin = Instant::now();
        let calls = (0..6).map(|call| {
            limiter.take(begin + SOON, async move {
                time::sleep(Duration::from_millis(100)).await;
                Ok(call)
            })
        });
        let noted = calls.map(async |call| {
            let call = call.await.unwrap();
            done.lock().unwrap().push((call, begin.elapsed().as_millis()));
        });
        join_all(noted).await;
        let done = done.into_inner().unwrap();
        assert_eq!(done, [(0, 100), (1, 100), (2, 200), (3, 200), (4, 300), (5, 300)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_class_does_not_delay_others() {
        let limiter = CreateLimiter::new(1);
        let begin = Instant::now();
        let slow = limiter.take(begin + SOON, async {
            time::sleep(Duration::from_secs(20)).await;
            Ok(begin.elapsed())
        });
        let quick = limiter.take(begin + SOON, async { Ok(begin.elapsed()) });
        let (slow, quick) = tokio::join!(slow, quick);
        assert_eq!(quick.unwrap(), BUSY_FOR);
        assert_eq!(slow.unwrap(), Duration::from_secs(20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_beyond_the_deadline_is_unavailable() {
        let limiter = CreateLimiter::new(1);
        let begin = Instant::now();
        let busy = limiter.take(begin + SOON, async {
            time::sleep(BUSY_FOR).await;
            Ok(())
        });
        let late = limiter.take(begin + BUSY_FOR / 2, async { Ok(()) });
        let (busy, late) = tokio::join!(busy, late);
        busy.unwrap();
        assert_eq!(late.unwrap_err().code(), Code::Unavailable);
    }
}
