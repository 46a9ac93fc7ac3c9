//! The loop of one remote namespace: reconciles copies of objects that have changed on either side, and mirrors events.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use super::{
    copies::{Copies, Ends, key},
    remote_events::EventMirror,
    source::Changes,
};
use crate::{
    cluster::{
        ApiError,
        view::{Changed, Feed},
    },
    offload::reflection::{CopyMetadata, Kind},
    queue::Queue,
    rounds::Rounds,
};

pub(super) struct Mirror {
    copies: Arc<Copies>,
    events: EventMirror,
    feeds: Vec<Feeds>,
    queue: Queue,
    /// When all copies are compared next.
    all: Instant,
    /// Changes with the routes.
    routes: watch::Receiver<u64>,
    /// Whether copies of slices may be left from when there were routes.
    has_leftovers: bool,
    has_failed: bool,
}

/// The changes of one kind.
struct Feeds {
    kind: Kind,
    here: Changes,
    there: Feed<CopyMetadata>,
}

impl Mirror {
    pub(super) fn new(ends: Ends) -> Self {
        let events = EventMirror::new(&ends);
        let copies = Arc::new(Copies::new(ends));
        let feeds = copies.kinds().iter().map(|&kind| Feeds {
            kind,
            here: copies.ends.source.changes(kind),
            there: copies.seen.of(kind).feed(),
        });
        Self {
            feeds: feeds.collect(),
            routes: copies.ends.routes.changes(),
            has_leftovers: !copies.ends.routed,
            copies,
            events,
            queue: Queue::default(),
            all: Instant::now(),
            has_failed: false,
        }
    }

    pub(super) fn copies(&self) -> Arc<Copies> {
        Arc::clone(&self.copies)
    }

    fn queue_changes(&mut self) {
        for due in self.copies.due() {
            self.queue.add(due);
        }
        let have_routes_changed = self.routes.has_changed().unwrap_or(false);
        self.routes.mark_unchanged();
        let mut all = self.all <= Instant::now() || have_routes_changed;
        for feeds in &self.feeds {
            // The first list counts as a change when it is complete.
            if !self.copies.is_read(feeds.kind) {
                continue;
            }
            match (feeds.here.take(), feeds.there.take()) {
                (Some(here), Changed::These(there)) => {
                    let here = here.iter().map(String::as_str);
                    for name in here.chain(there.iter().map(|it| it.name.as_str())) {
                        self.queue.add(key(feeds.kind, name));
                        if feeds.kind == Kind::Service {
                            self.copies
                                .slices_of(name)
                                .into_iter()
                                .for_each(|slice| self.queue.add(slice));
                        }
                    }
                }
                _ => all = true,
            }
        }
        if all {
            self.all = Instant::now() + Self::RESYNC;
            for unsettled in self.copies.unsettled() {
                self.queue.add(unsettled);
            }
        }
    }
}

impl Rounds for Mirror {
    const NAME: &'static str = "copies";
    const RESYNC: Duration = Duration::from_mins(2);
    const GATHER: Duration = Duration::from_millis(100);

    fn due(&self) -> Option<Duration> {
        let next = [self.queue.left(), self.copies.next(), self.events.next()];
        next.into_iter().flatten().min()
    }

    fn has_failed(&self) -> bool {
        self.has_failed
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let (here, there) = (&self.copies.ends.source, &self.copies.seen);
        let of = |kind: &Kind| [here.version(*kind), there.of(*kind).version()];
        let mut triggers: Vec<_> = self.copies.kinds().iter().flat_map(of).collect();
        triggers.extend([self.events.changes(), self.routes.clone(), here.skips()]);
        triggers
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        self.queue_changes();
        let copies = &self.copies;
        let reconcile = async |key: String| copies.reconcile(&key).await;
        self.has_failed = !self.queue.work(reconcile).await;
        if self.has_leftovers {
            match copies.collect_slices().await {
                Ok(()) => self.has_leftovers = false,
                Err(error) => {
                    tracing::warn!(%error, "failed to delete copied EndpointSlices; will retry");
                    self.has_failed = true;
                }
            }
        }
        copies.report_too_many().await;
        copies.report_skipped().await;
        self.events.mirror(&copies.ends).await;
        Ok(())
    }
}
