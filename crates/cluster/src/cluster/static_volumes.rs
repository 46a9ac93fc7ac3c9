//! PVs of classes without a provisioner, from which the driver chooses one itself.

use k8s_openapi::api::core::v1::PersistentVolume;

use super::{ApiError, Cluster, slim::free_volume};
use crate::placement::StaticVolume;

impl Cluster {
    /// The available PVs of a class. PVs of remote clusters are not watched, because nearly all of them
    /// belong to others: the available ones are listed, at most every two seconds for all claims.
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
