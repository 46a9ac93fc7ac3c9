//! What pods of virtual nodes use: asked where the kubelet's API is served, answered where the
//! pods are looked after, which is in one replica only.

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

/// For a node to answer. Who collects metrics waits for ten seconds.
const PATIENCE: Duration = Duration::from_secs(8);
/// So many may ask about a node at a time.
const MOST_ASKING: usize = 8;

/// What the pods of a node use, or why that is not known.
pub(super) type Usage = Result<Counters, String>;
/// Where an answer is awaited.
pub(super) type Asked = oneshot::Sender<Usage>;

/// The nodes that can be asked. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Meters(Arc<Mutex<BTreeMap<String, mpsc::Sender<Asked>>>>);

/// The questions about one node, until it is dropped.
pub(super) struct Questions {
    meters: Meters,
    asked: mpsc::Receiver<Asked>,
}

impl Meters {
    /// From now on, the node answers.
    pub(super) fn answer_for(&self, node: &str) -> Questions {
        let (asks, asked) = mpsc::channel(MOST_ASKING);
        self.lock().insert(node.to_owned(), asks);
        Questions {
            meters: self.clone(),
            asked,
        }
    }

    /// Asks a node.
    pub(super) async fn read(&self, node: &str) -> Usage {
        let asks = self.lock().get(node).cloned();
        let asks = asks.ok_or("this replica of the fabric does not look after the node")?;
        let (reply, answer) = oneshot::channel();
        asks.try_send(reply).map_err(|_| "too many ask")?;
        let answer = timeout(PATIENCE, answer).await;
        let answer = answer.map_err(|_| "its cluster has not answered in time")?;
        answer.map_err(|_| "it is not looked after any more")?
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, mpsc::Sender<Asked>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Questions {
    /// The next one.
    pub(super) async fn next(&mut self) -> Option<Asked> {
        self.asked.recv().await
    }
}

impl Drop for Questions {
    fn drop(&mut self) {
        self.asked.close();
        // Whoever looks after the node by now is not closed.
        self.meters.lock().retain(|_, asks| !asks.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_node_answers_for_itself() {
        let meters = Meters::default();
        let (mut milan, _rome) = (meters.answer_for("milan"), meters.answer_for("rome"));
        let answers = async {
            milan.next().await.unwrap().send(Ok(Counters::default())).unwrap();
        };
        let (read, silent, ()) = tokio::join!(meters.read("milan"), meters.read("rome"), answers);
        assert!(read.is_ok());
        assert!(silent.is_err_and(|why| why.contains("in time")));
        drop(milan);
        let unknown = meters.read("milan").await;
        assert!(unknown.is_err_and(|why| why.contains("does not look after")));
    }
}
