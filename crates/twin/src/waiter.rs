//! Waits for changes of one twin and its PV: woken by the views, and after some seconds without them,
//! since a watch may be interrupted. A wake-up is only a hint: the caller reads the objects again.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use tokio::time::Instant;

use super::{Site, reading};
use crate::cluster::{ApiError, slim, view::Changes};

/// The longest time between two reads.
const RECHECK: Duration = Duration::from_secs(5);

/// The twin at a site, read live. `CreateVolume` succeeds as soon as the twin has a PV, and Kubernetes
/// sets its phase to Bound a moment later: that is waited for.
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

pub(super) struct TwinWaiter {
    twins: Changes<slim::Twin>,
    volumes: Changes<slim::Volume>,
}

impl TwinWaiter {
    pub(super) fn of(site: &Site) -> Self {
        Self {
            twins: site.view().subscribe(site.name()),
            volumes: site.cluster().views().volumes.subscribe(site.name()),
        }
    }

    /// Waits for a reason to read again; false when the deadline has passed. Ignores changes for which
    /// `is_relevant` is false.
    pub(super) async fn wait(&mut self, deadline: Instant, is_relevant: impl Fn() -> bool) -> bool {
        let recheck = deadline.min(Instant::now() + RECHECK);
        loop {
            let left = recheck.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Instant::now() < deadline;
            }
            tokio::select! {
                () = self.twins.next(left) => {}
                () = self.volumes.next(left) => {}
            }
            if is_relevant() {
                return true;
            }
        }
    }
}
