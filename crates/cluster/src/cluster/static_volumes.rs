//! PVs of classes that nobody provisions, from which the driver chooses one by itself.

use k8s_openapi::api::core::v1::PersistentVolume;

use super::{ApiError, Cluster, slim::free_volume};
use crate::placement::StaticVolume;

impl Cluster {
    /// The free PVs of a class. PVs of remote clusters are not watched, for nearly all of them
    /// are not our business: those that are free are listed, for all claims of two seconds at
    /// once.
    pub async fn static_volumes(&self, class: &str) -> Result<Vec<StaticVolume>, ApiError> {
        if self.0.id == self.0.home {
            let seen = &self.views().volumes;
            self.filled::<PersistentVolume, _>(seen).await?;
            return Ok(seen.free(Some(class)));
        }
        let read = || async {
            let all = self.all::<PersistentVolume>();
            all.pick(None, None, |volume| free_volume(&volume)).await
        };
        let free = self.0.recent.static_volumes.get("", read).await;
        let free = free.as_ref().as_ref().map_err(Clone::clone)?;
        Ok(free
            .iter()
            .filter(|volume| volume.class == class)
            .cloned()
            .collect())
    }
}
