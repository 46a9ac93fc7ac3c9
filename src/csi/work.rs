//! Work that continues when its caller disconnects. tonic drops a handler when the client
//! disconnects, at whatever it awaits; so work that changes something runs in a task of its own,
//! which locks the volume until it has ended.

use tokio_util::task::TaskTracker;
use tonic::Status;
use tracing::Instrument;

use super::status::Coded;
use crate::node::in_flight::InFlight;

/// The work in flight of a process, at most one piece per key.
#[derive(Clone, Default)]
pub struct Work {
    busy: InFlight,
    tasks: TaskTracker,
}

impl Work {
    /// Runs `task` to its end, even if the caller disconnects. While another task has the same key,
    /// the answer is ABORTED at once.
    pub(super) async fn run<T, E, F>(&self, key: &str, task: F) -> Result<T, Status>
    where
        T: Send + 'static,
        E: Coded + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let guard = self
            .busy
            .enter(key)
            .map_err(|busy| Status::aborted(busy.to_string()))?;
        tracing::Span::current().record("volume", key);
        let task = async move {
            let _guard = guard;
            task.await
        };
        match self.tasks.spawn(task.in_current_span()).await {
            Ok(answer) => answer.map_err(Coded::status),
            Err(broken) if broken.is_panic() => Err(Status::internal(format!(
                "the driver hit a bug while working on {key}; its log has the panic"
            ))),
            Err(_) => Err(Status::unavailable("the driver is shutting down")),
        }
    }

    /// Waits until no task runs any more. New ones can still begin: stop the server first.
    pub async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn one_piece_of_work_per_key_even_when_the_caller_left() {
        let work = Work::default();
        let (release, released) = oneshot::channel::<()>();
        let slow = work.run("a", async move {
            released.await.unwrap();
            Ok::<_, Status>(())
        });
        assert!(
            tokio::time::timeout(Duration::from_millis(10), slow)
                .await
                .is_err()
        );

        let refused = work.run("a", async { Ok::<_, Status>(()) }).await.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted);
        work.run("b", async { Ok::<_, Status>(()) }).await.unwrap();

        release.send(()).unwrap();
        work.finished().await;
        work.run("a", async { Ok::<_, Status>(()) }).await.unwrap();
    }

    #[tokio::test]
    async fn a_panic_frees_the_key() {
        let work = Work::default();
        let broken = work.run::<(), Status, _>("a", async { panic!("a bug") }).await;
        assert_eq!(broken.unwrap_err().code(), Code::Internal);
        work.run("a", async { Ok::<_, Status>(()) }).await.unwrap();
    }
}
