//! PVs that moves within one remote cluster have left there: the source of such a move has no twin any more, so only a
//! list of all PVs shows it once the `VolumeMove` is gone.

use std::{collections::HashSet, time::Duration};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Resource, ResourceExt, core::PartialObjectMeta};
use tokio::time::Instant;

use super::Orphans;
use crate::{
    api::volume_move::VolumeMove,
    cluster::{ApiError, Cluster},
    offload::{first_names, is_name},
    volume::{mark, moving::SourceMark},
};

/// How often the PVs of a cluster are listed. Events are kept for an hour.
const LIST_INTERVAL: Duration = Duration::from_mins(30);
/// The most PVs that an event names.
const NAMED: usize = 5;

/// What the last list has shown.
pub(super) struct LeftVolumes {
    due: Instant,
    count: usize,
}

impl LeftVolumes {
    pub(super) fn unknown() -> Self {
        Self {
            due: Instant::now(),
            count: 0,
        }
    }
}

impl Orphans<'_> {
    /// Reports the PVs that nothing releases, because their `VolumeMove` was deleted; returns their number.
    pub(super) async fn report_left_volumes(&mut self, cluster: &Cluster) -> Result<usize, ApiError> {
        let may_list = cluster.rights().volumes && cluster.id() != self.home.id();
        if !may_list || self.left.due > Instant::now() {
            return Ok(self.left.count);
        }
        let ours = format!("{}/", self.home.id());
        let superseded = |real: PersistentVolume| {
            let is_ours = real.annotations().get(mark::DATA_OF)?.starts_with(&ours);
            match SourceMark::read(real.annotations()) {
                Ok(Some(SourceMark::Superseded { by, .. })) if is_ours && is_name(&real.name_any()) => {
                    let claim = real.spec.as_ref()?.claim_ref.as_ref();
                    Some((real.name_any(), by, claim.and_then(|claim| claim.uid.clone())))
                }
                _ => None,
            }
        };
        let mut left = cluster
            .all::<PersistentVolume>()
            .pick(None, None, superseded)
            .await?;
        let twins = cluster.all_twins();
        let twins: HashSet<&str> = twins.iter().map(|twin| twin.uid.as_str()).collect();
        // The twin is reported as long as it exists.
        left.retain(|(_, _, claim)| claim.as_deref().is_none_or(|claim| !twins.contains(claim)));
        if !left.is_empty() {
            let moves = self.home.all::<PartialObjectMeta<VolumeMove>>();
            let moves: HashSet<String> =
                HashSet::from_iter(moves.pick(None, None, |one| one.metadata.uid).await?);
            left.retain(|(_, by, _)| !moves.contains(by.as_str()));
        }
        let names: Vec<String> = left.into_iter().map(|(name, ..)| name).collect();
        self.left = LeftVolumes {
            due: Instant::now() + LIST_INTERVAL,
            count: names.len(),
        };
        if !names.is_empty() {
            self.report_left(cluster, &names).await;
        }
        Ok(names.len())
    }

    async fn report_left(&mut self, cluster: &Cluster, names: &[String]) {
        let note = format!(
            "in the cluster {}, these PersistentVolumes are sources of moves whose VolumeMove was deleted, so that nothing releases \
             them: {}. They are not deleted: if that data is not needed, set their reclaim policy there to Delete",
            cluster.id(),
            first_names(names, NAMED)
        );
        let Some(object) = self.home.views().remote_clusters.get(cluster.id().as_str()) else {
            tracing::warn!(cluster = %cluster.id(), "{note}");
            return;
        };
        let on = object.object_ref(&());
        // The earlier event may have expired.
        self.reports.forget(&on);
        self.reports.warn_object(&on, "OrphanedVolume", &note).await;
    }
}
