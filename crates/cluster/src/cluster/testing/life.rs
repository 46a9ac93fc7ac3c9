//! How long a client lives: after so many writes, on whatever server, nothing answers it any more,
//! as if it had been killed.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::watch;

/// The life of a client that talks to all servers that were told of it.
#[derive(Clone)]
pub struct Life {
    left: Arc<AtomicUsize>,
    over: Arc<watch::Sender<bool>>,
}

impl Life {
    /// One that ends before the write after so many.
    pub fn of_writes(writes: usize) -> Self {
        Self {
            left: Arc::new(AtomicUsize::new(writes)),
            over: Arc::new(watch::Sender::new(false)),
        }
    }

    /// Returns when it is over.
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

/// The life that a server knows of.
#[derive(Default)]
pub(super) struct Lives(Mutex<Option<Life>>);

impl Lives {
    pub(super) fn set(&self, life: Option<Life>) {
        *self.0.lock().unwrap() = life;
    }

    /// Events rest on nothing, and reviews change nothing.
    pub(super) fn go_on(&self, method: &str, path: &str) -> bool {
        let is_write = method != "GET" && !path.contains("/events") && !path.ends_with("reviews");
        let life = self.0.lock().unwrap().clone();
        life.is_none_or(|life| life.goes_on(is_write))
    }
}
