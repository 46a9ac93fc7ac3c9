//! Which volumes there are, and what they can do. Read live: whoever lists
//! expects to see what he has just made.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::{PublishError, attach::capabilities_of, name_of};
use crate::{
    cluster::{ApiError, Cluster, facts},
    volume::{Capabilities, Marks, Owner, VolumeName, mark},
};

/// A volume of a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// Its name.
    pub volume: VolumeName,
    /// Its size.
    pub bytes: u64,
}

/// All volumes with a twin here that exist for their users, in the order of their names.
pub async fn list(home: &Cluster) -> Result<Vec<Listed>, ApiError> {
    let ours = mark::selector(home.id());
    let twins = home.stored::<PersistentVolumeClaim>().list(Some(&ours)).await?;
    let mut listed: Vec<Listed> = twins.iter().filter_map(listed).collect();
    listed.sort();
    Ok(listed)
}

fn listed(twin: &PersistentVolumeClaim) -> Option<Listed> {
    let marks = Marks::read(twin.labels(), twin.annotations()).ok()?;
    let exists = marks.handed_over && twin.metadata.deletion_timestamp.is_none();
    let capacity = twin
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref()?.get("storage"))
        // Kubernetes has not written it yet: the volume was handed over a moment ago.
        .or_else(|| {
            twin.spec
                .as_ref()?
                .resources
                .as_ref()?
                .requests
                .as_ref()?
                .get("storage")
        });
    exists.then(|| Listed {
        volume: marks.volume,
        bytes: capacity.and_then(facts::bytes).unwrap_or_default(),
    })
}

/// What the volume can do; `None` if there is no such volume.
pub async fn validate(home: &Cluster, volume: &VolumeName) -> Result<Option<Capabilities>, PublishError> {
    let twin = home
        .stored::<PersistentVolumeClaim>()
        .get(name_of(volume))
        .await?;
    let owner = Owner::of_volume(home.id().clone(), volume.clone());
    let ours = |twin: &PersistentVolumeClaim| owner.recognise(twin.labels(), twin.annotations()).is_ok();
    twin.filter(ours).as_ref().map(capabilities_of).transpose()
}
