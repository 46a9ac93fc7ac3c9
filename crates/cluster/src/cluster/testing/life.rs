//! The lifetime of a client: after a number of writes, on any server, no request is answered any more, as if
//! the client had been killed.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::watch;

/// The lifetime of a client, shared by all servers that it calls.
#[derive(Clone)]
pub struct Life {
    left: Arc<AtomicUsize>,
    over: Arc<watch::Sender<bool>>,
}

impl Life {
    /// A lifetime that ends after this many writes.
    pub fn of_writes(writes: usize) -> Self {
        Self {
            left: Arc::new(AtomicUsize::new(writes)),
            over: Arc::new(watch::Sender::new(false)),
        }
    }

    /// Returns when the lifetime has ended.
    pub async fn over(&self) {
        let mut over = self.over.subscribe();
        let _held = over.wait_for(|over| *over).await;
    }

    fn goes_on(&self, is_write: bool) -> bool {
        let fewer = |left: usize| left.checked_sub(usize::from(is_write));
        let taken = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
        let goes_on = !*self.over.borrow() && taken.is_ok();
        if !goes_on {
            self.over.send_replace(true);
        }
        goes_on
    }
}

/// The lifetime that is set in a server.
#[derive(Default)]
pub(super) struct Lives(Mutex<Option<Life>>);

impl Lives {
    pub(super) fn set(&self, life: Option<Life>) {
        *self.0.lock().unwrap() = life;
    }

    /// Events and reviews do not count as writes.
    pub(super) fn go_on(&self, method: &str, path: &str) -> bool {
        let is_write = method != "GET" && !path.contains("/events") && !path.ends_with("reviews");
        let life = self.0.lock().unwrap().clone();
        life.is_none_or(|life| life.goes_on(is_write))
    }
}
