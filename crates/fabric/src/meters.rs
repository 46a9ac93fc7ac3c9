//! The usage of pods of virtual nodes. It is requested by the server of the kubelet's API, and
//! answered by the controller of the pods, which runs in the leading replica only.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::offload::usage::Counters;

/// The timeout of an answer. Metrics collectors wait for ten seconds.
const TIMEOUT: Duration = Duration::from_secs(8);
/// The maximum number of concurrent requests for one node.
const MOST_REQUESTS: usize = 8;

/// The usage of the pods of a node, or why it is unknown.
pub(super) type Usage = Result<Counters, String>;
pub(super) type Reply = oneshot::Sender<Usage>;

/// The nodes whose usage this replica can read. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Meters(Arc<Mutex<BTreeMap<String, mpsc::Sender<Reply>>>>);

/// The requests for one node; dropping it ends the service for this node.
pub(super) struct UsageRequests {
    meters: Meters,
    requests: mpsc::Receiver<Reply>,
}

impl Meters {
    /// Receives the requests for this node from now on.
    pub(super) fn serve(&self, node: &str) -> UsageRequests {
        let (sender, requests) = mpsc::channel(MOST_REQUESTS);
        self.lock().insert(node.to_owned(), sender);
        UsageRequests {
            meters: self.clone(),
            requests,
        }
    }

    pub(super) async fn read(&self, node: &str) -> Usage {
        let sender = self.lock().get(node).cloned();
        let sender = sender.ok_or("this replica of the fabric does not run the node")?;
        let (reply, answer) = oneshot::channel();
        sender
            .try_send(reply)
            .map_err(|_| "too many requests at a time")?;
        let answer = timeout(TIMEOUT, answer).await;
        let answer = answer.map_err(|_| "its cluster has not answered in time")?;
        answer.map_err(|_| "this replica of the fabric does not run the node any more")?
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, mpsc::Sender<Reply>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UsageRequests {
    pub(super) async fn next(&mut self) -> Option<Reply> {
        self.requests.recv().await
    }
}

impl Drop for UsageRequests {
    fn drop(&mut self) {
        self.requests.close();
        // If the node has a new controller by now, its channel is kept.
        self.meters.lock().retain(|_, sender| !sender.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn usage_is_read_from_the_controller_of_the_node() {
        let meters = Meters::default();
        let (mut milan, _rome) = (meters.serve("milan"), meters.serve("rome"));
        let answers = async {
            milan.next().await.unwrap().send(Ok(Counters::default())).unwrap();
        };
        let (read, unanswered, ()) = tokio::join!(meters.read("milan"), meters.read("rome"), answers);
        assert!(read.is_ok());
        assert!(unanswered.is_err_and(|why| why.contains("in time")));
        drop(milan);
        let unknown = meters.read("milan").await;
        assert!(unknown.is_err_and(|why| why.contains("does not run the node")));
    }
}
