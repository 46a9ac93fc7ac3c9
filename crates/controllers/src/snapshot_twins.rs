//! Retains the data of snapshots in use, so that it survives a deletion of their twins, and reports such
//! a deletion to their users.

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

/// The loop that checks the twins of snapshots in one cluster.
pub(super) struct SnapshotTwins<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    reports: Reports,
    cluster: ClusterId,
    /// The uids of the twins that were healthy, by the contents of their users.
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

    /// Contents whose twins have to be checked.
    async fn due(&mut self) -> Vec<Arc<Content>> {
        let mut contents = self.watched.snapshots.contents_in(&self.cluster);
        // If several contents name the same twin, the deletion of one of them may be about to delete it.
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

    async fn check(&mut self, content: &Content) -> Result<(), ApiError> {
        let checked = check_snapshot(self.home, self.registry, &content.name, &content.id).await;
        match checked {
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
            // A missing right stays missing; the status of an unreachable cluster reports that.
            Err(SnapshotSiteError::Api(error)) if error.is_forbidden() => {
                let note = format!("cannot check whether the data of this snapshot is retained: {error}");
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
            let done = self.check(&content).await;
            let is_unreachable = done.as_ref().is_err_and(ApiError::is_transient);
            outcome = outcome.and(done);
            if is_unreachable {
                break;
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
