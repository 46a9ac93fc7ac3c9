//! Snapshots that are in use: their data is kept whoever deletes their twins, and their users hear
//! when somebody does.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::sync::watch;

use super::{Reports, snapshots::Content, watched::Watched};
use crate::{
    cluster::{ApiError, Cluster},
    fleet::Registry,
    rounds::Rounds,
    twin::{SnapshotHealth, SnapshotSiteError, check_snapshot, living_twins},
    volume::ClusterId,
};

/// The loop that looks after the twins of snapshots in one cluster.
pub(super) struct SnapshotTwins<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    reports: Reports,
    /// The cluster whose snapshots are looked after.
    cluster: ClusterId,
    /// The uids of the twins that were seen to be well, by the contents of their users.
    settled: HashMap<String, String>,
}

impl<'a> SnapshotTwins<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        registry: &'a Registry,
        watched: &'a Watched,
        reports: Reports,
        cluster: ClusterId,
    ) -> Self {
        Self {
            home,
            registry,
            watched,
            reports,
            cluster,
            settled: HashMap::new(),
        }
    }

    /// Contents whose twins have to be looked at.
    async fn due(&mut self) -> Vec<Arc<Content>> {
        let mut contents = self.watched.snapshots.contents_in(&self.cluster);
        // Of a twin that several lead to, one may be on its way to delete it.
        let leaving: HashSet<_> = contents
            .iter()
            .filter(|it| it.deleting)
            .map(|it| it.id.clone())
            .collect();
        contents.retain(|content| !leaving.contains(&content.id));
        let names: HashSet<&str> = contents.iter().map(|content| content.name.as_str()).collect();
        self.settled.retain(|name, _| names.contains(name.as_str()));
        if !self.settled.is_empty() {
            let living = living_twins(self.home, self.registry, &self.cluster).await;
            contents.retain(|content| {
                let settled = self.settled.get(&content.name);
                settled.is_none() || settled != living.get(&content.id.key)
            });
        }
        contents
    }

    async fn look_after(&mut self, content: &Content) -> Result<(), ApiError> {
        let looked_after = check_snapshot(self.home, self.registry, &content.name, &content.id).await;
        match looked_after {
            Ok(SnapshotHealth::Healthy { twin, is_kept }) => {
                self.reports.forget(&content.user());
                if is_kept {
                    self.settled.insert(content.name.clone(), twin);
                }
            }
            Ok(SnapshotHealth::Problem(what)) => {
                self.settled.remove(&content.name);
                self.reports
                    .warn_object(&content.user(), "SnapshotTwinDeleted", &what)
                    .await;
            }
            // A right that is missing stays missing, and a cluster that is away says so itself.
            Err(SnapshotSiteError::Api(error)) if error.is_forbidden() => {
                let note = format!("whether the data of this snapshot is kept cannot be seen to: {error}");
                self.reports
                    .warn_object(&content.user(), "SnapshotNotSeen", &note)
                    .await;
            }
            Err(SnapshotSiteError::Api(error)) => return Err(error),
            Ok(SnapshotHealth::Unused)
            | Err(SnapshotSiteError::Unreachable(_) | SnapshotSiteError::Unknown(_)) => {}
        }
        Ok(())
    }
}

impl Rounds for SnapshotTwins<'_> {
    const NAME: &'static str = "snapshots";
    const RESYNC: Duration = Duration::from_mins(1);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.watched.snapshots.version(), self.registry.changes()]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let mut outcome = Ok(());
        for content in self.due().await {
            let done = self.look_after(&content).await;
            let is_silent = done.as_ref().is_err_and(ApiError::is_transient);
            outcome = outcome.and(done);
            if is_silent {
                break;
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
