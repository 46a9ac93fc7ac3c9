//! Runs a loop of its own for each key of a changing set: a loop that hangs or waits delays no other.

use std::collections::{BTreeMap, BTreeSet};

use futures::{
    StreamExt,
    future::{pending, select_all},
    stream::FuturesUnordered,
};
use tokio::{sync::watch, time};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::rounds::SETTLE;

/// Runs one loop for each key; the set is read again whenever a trigger changes. The loop of a removed key
/// is stopped, and then `ended` is called.
pub async fn drive_keyed<K: Ord + Clone, L: Future<Output = ()>>(
    mut keys: impl FnMut() -> BTreeSet<K>,
    mut triggers: Vec<watch::Receiver<u64>>,
    start: impl Fn(K) -> L,
    ended: impl Fn(&K),
) {
    let mut ends: BTreeMap<K, DropGuard> = BTreeMap::new();
    let mut running = FuturesUnordered::new();
    let ended = &ended;
    loop {
        for trigger in &mut triggers {
            trigger.mark_unchanged();
        }
        let now = keys();
        ends.retain(|key, _| now.contains(key));
        for key in now {
            if !ends.contains_key(&key) {
                let stop = CancellationToken::new();
                let running_loop = start(key.clone());
                ends.insert(key.clone(), stop.clone().drop_guard());
                running.push(async move {
                    stop.run_until_cancelled(running_loop).await;
                    ended(&key);
                });
            }
        }
        let changes = triggers.iter_mut().map(|trigger| Box::pin(trigger.changed()));
        let news = async {
            let _changed = select_all(changes).await;
            time::sleep(SETTLE).await;
        };
        let all = async {
            while running.next().await.is_some() {}
            pending::<()>().await;
        };
        tokio::select! {
            () = news => {}
            () = all => {}
        }
    }
}
