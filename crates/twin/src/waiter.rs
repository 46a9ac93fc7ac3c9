//! Waiting for one twin and its PV: woken by what is watched, and now and then
//! without it, since a watch may be cut. What woke us is only a hint; whoever is
//! woken looks for himself.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use tokio::time::Instant;

use super::{Site, reading};
use crate::cluster::{ApiError, slim, view::Changes};

/// The longest time without a look of one's own.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The twin at a site, read live. A volume is answered for as soon as its twin has a PV, and
/// Kubernetes says on the twin that it is bound a moment later: that is waited for.
pub(super) async fn settled_twin(
    site: &Site,
    deadline: Instant,
) -> Result<Option<PersistentVolumeClaim>, ApiError> {
    let mut waiter = TwinWaiter::of(site);
    loop {
        let found = site.twins().get(site.name()).await?;
        let is_binding = found.as_ref().is_some_and(|twin| {
            reading::phase(twin) != "Bound" && reading::real_volume(site.cluster(), twin).is_some()
        });
        if !is_binding || !waiter.wait(deadline, || true).await {
            return Ok(found);
        }
    }
}

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
