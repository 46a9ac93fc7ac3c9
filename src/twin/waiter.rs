//! Waiting for one twin and its PV: woken by what is watched, and now and then
//! without it, since a watch may be cut. What woke us is only a hint; whoever is
//! woken looks for himself.

use std::time::Duration;

use tokio::time::Instant;

use super::Site;
use crate::cluster::{slim, view::Changes};

/// The longest time without a look of one's own.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Waits for changes of one twin and its PV.
pub(super) struct TwinWaiter {
    twins: Changes<slim::Twin>,
    volumes: Changes<slim::Volume>,
}

impl TwinWaiter {
    /// A waiter for changes of the twin at this site, from now on.
    pub(super) fn of(site: &Site) -> Self {
        Self {
            twins: site.view().subscribe(site.name()),
            volumes: site.cluster().views().volumes.subscribe(site.name()),
        }
    }

    /// Waits for a reason to look again; false when time is up. Changes that are
    /// not `worth_a_look` are slept through.
    pub(super) async fn wait(&mut self, deadline: Instant, worth_a_look: impl Fn() -> bool) -> bool {
        let look_again = deadline.min(Instant::now() + LOOK_AGAIN);
        loop {
            let left = look_again.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Instant::now() < deadline;
            }
            tokio::select! {
                () = self.twins.next(left) => {}
                () = self.volumes.next(left) => {}
            }
            if worth_a_look() {
                return true;
            }
        }
    }
}
