//! Volumes that kubelet forgot. It lets a pod go once the pod's volumes are
//! unpublished, finds volumes again by the folders of their pods, and so never
//! unstages what it had not unstaged when it died in between
//! ([kubernetes#121937](https://github.com/kubernetes/kubernetes/issues/121937)).
//! Such a volume would stay mounted here while it is attached elsewhere, and could
//! never be deleted.
//!
//! So what nobody has had for a while is taken off the node. Should kubelet know of
//! it after all, nothing is lost: publishing stages what is not staged, and
//! unstaging may be repeated.

use std::{collections::HashMap, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    state::{Record, StateError},
    volume::{Unstage, Volumes},
};

const LOOK: Duration = Duration::from_secs(20);
/// Far longer than kubelet that lives needs from one call to the next.
const GRACE: Duration = Duration::from_mins(1);

/// Watches for volumes that are staged for nobody.
pub struct Forgotten {
    volumes: Volumes,
    idle_since: HashMap<String, Instant>,
}

impl Forgotten {
    /// Of these volumes.
    #[must_use]
    pub fn new(volumes: Volumes) -> Self {
        Self {
            volumes,
            idle_since: HashMap::new(),
        }
    }

    /// Looks after them until the end. Broken off at any time, it is as after a crash.
    pub async fn tend(mut self, stop: CancellationToken) {
        let looking = async {
            loop {
                sleep(LOOK).await;
                Box::pin(self.look(Instant::now())).await;
            }
        };
        stop.run_until_cancelled(looking).await;
    }

    /// One look at everything on record.
    pub(super) async fn look(&mut self, now: Instant) {
        let idle = match self.idle().await {
            Ok(idle) => idle,
            Err(error) => {
                tracing::warn!(%error, "cannot tell which volumes are staged for nobody");
                return;
            }
        };
        self.idle_since
            .retain(|id, _| idle.iter().any(|record| record.volume_id == *id));
        for record in idle {
            let since = *self.idle_since.entry(record.volume_id.clone()).or_insert(now);
            if now.duration_since(since) < GRACE {
                continue;
            }
            let wish = Unstage {
                volume_id: record.volume_id.clone(),
                staging: record.staging_path,
            };
            match self.volumes.unstage(wish).await {
                Ok(()) => tracing::warn!(volume = record.volume_id, "unstaged a volume that kubelet forgot"),
                Err(error) => {
                    tracing::warn!(volume = record.volume_id, %error, "a volume that kubelet forgot stays staged");
                    // Tried again, but not at every look.
                    self.idle_since.insert(record.volume_id, now);
                }
            }
        }
    }

    /// Volumes that no pod has, nor is about to have.
    async fn idle(&self) -> Result<Vec<Record>, StateError> {
        let state = self.volumes.state.clone();
        let read = tokio::task::spawn_blocking(move || state.all());
        // Broken off only when the process ends.
        let mut records = read.await.unwrap_or_else(|_| Ok(Vec::new()))?;
        records.retain(|record| record.targets.is_empty());
        Ok(records)
    }
}
