//! The `VolumeAttributesClass` of a twin (KEP-3751): which one it gets, whether its driver supports that
//! class, and changing it later.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttributesClass,
};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::{ChangeError, Site, changing::VolumeChange, reading, waiter::TwinWaiter};
use crate::{
    cluster::{ApiError, Cluster, facts},
    fleet::Registry,
    observe::crash::Step,
    placement::{ModifyFacts, ModifyStage, ModifyStep, modify_step},
    volume::VolumeId,
};

/// The `VolumeAttributesClass` to which `named` is mapped in the twin's cluster.
pub fn mapped<'a>(site: &'a Site, named: &'a str) -> &'a str {
    let remote = site.remote_cluster();
    let mapped = remote.and_then(|remote| remote.classes.attributes.get(named));
    mapped.map_or(named, String::as_str)
}

/// Why a twin cannot have a `VolumeAttributesClass`. Real controllers would wait for the class forever,
/// or pass its parameters to a driver that they were not meant for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAttributes {
    /// The class does not exist, or the API server is too old for the kind.
    #[error(
        "the cluster {cluster} has no VolumeAttributesClass {class:?} (the kind exists from Kubernetes 1.34 on): create it \
         there, or name another one in the parameter realVolumeAttributesClass"
    )]
    Missing { class: String, cluster: String },
    #[error("cannot check whether the VolumeAttributesClass fits: {0}")]
    Unreadable(String),
    /// The class is of another driver.
    #[error(
        "the VolumeAttributesClass {class:?} in the cluster {cluster} is of the driver {its}, and the real volume is of {real}"
    )]
    OtherDriver {
        class: String,
        cluster: String,
        its: String,
        real: String,
    },
    /// The real PV is not a CSI volume.
    #[error(
        "the real volume {volume} in the cluster {cluster} is not a CSI volume (but local, hostPath, nfs, …), so no \
         controller there can change it"
    )]
    NoDriver { volume: String, cluster: String },
    /// The API server rejects the class for this volume.
    #[error("{0}")]
    NotAccepted(String),
}

/// Checks whether a twin of `driver` may have a class. Without a known driver the check is left to the
/// controllers of the real driver.
pub async fn check<E>(site: &Site, class: &str, driver: Option<&str>) -> Result<(), E>
where
    E: From<NoAttributes> + From<ApiError>,
{
    let cluster = site.cluster_name();
    let class = class.to_owned();
    let found = match site.cluster().all::<VolumeAttributesClass>().get(&class).await {
        Err(error) if error.is_forbidden() => {
            return Err(NoAttributes::Unreadable(error.to_string()).into());
        }
        other => other?,
    };
    let Some(found) = found else {
        return Err(NoAttributes::Missing { class, cluster }.into());
    };
    match driver {
        Some(real) if real != found.driver_name => Err(NoAttributes::OtherDriver {
            class,
            cluster,
            its: found.driver_name,
            real: real.to_owned(),
        }
        .into()),
        _ => Ok(()),
    }
}

/// Changes the attributes of the volume to those of a class, or continues to.
pub async fn modify(
    home: &Cluster,
    registry: &Registry,
    id: &VolumeId,
    named: &str,
    deadline: Instant,
) -> Result<(), ChangeError> {
    let change = VolumeChange::find(home, registry, id).await?;
    let site = &change.site;
    let wanted = mapped(site, named).to_owned();
    let mut waiter = TwinWaiter::of(site);
    loop {
        let twin = change.twin(deadline).await?;
        match modify_step(&observed(&twin, &wanted)) {
            ModifyStep::Done => return Ok(()),
            ModifyStep::Request => {
                let real = change.real_volume(&twin).await?;
                let driver = real.as_ref().map(|real| driver_of(site, real)).transpose()?;
                check::<ChangeError>(site, &wanted, driver).await?;
                let spec = |_: Option<&PersistentVolumeClaim>| json!({"volumeAttributesClassName": wanted});
                let refused = |error: ApiError| NoAttributes::NotAccepted(error.to_string()).into();
                change.request(&twin, Step::Modify, spec, refused).await?;
            }
            ModifyStep::Wait => {
                if !waiter.wait(deadline, || true).await {
                    let awaited = format!("changed to the VolumeAttributesClass {wanted}");
                    return Err(change.still_waiting(&twin, awaited).await);
                }
            }
            ModifyStep::Refused(refusal) => {
                return Err(ChangeError::NotModified {
                    twin: site.place(),
                    cluster: site.cluster_name(),
                    class: wanted,
                    refusal,
                });
            }
        }
    }
}

/// Without a driver no controller would ever make the change, and the request cannot be withdrawn.
fn driver_of<'a>(site: &Site, real: &'a PersistentVolume) -> Result<&'a str, NoAttributes> {
    reading::driver(real).ok_or_else(|| NoAttributes::NoDriver {
        volume: real.name_any(),
        cluster: site.cluster_name(),
    })
}

fn observed<'a>(twin: &'a PersistentVolumeClaim, wanted: &'a str) -> ModifyFacts<'a> {
    let (spec, status) = (twin.spec.as_ref(), twin.status.as_ref());
    let change = status.and_then(|status| status.modify_volume_status.as_ref());
    let message = |of_type: &str| facts::condition(twin, of_type)?.message.as_deref();
    ModifyFacts {
        wanted,
        requested: spec.and_then(|spec| spec.volume_attributes_class_name.as_deref()),
        current: status.and_then(|status| status.current_volume_attributes_class_name.as_deref()),
        change: change.map(|change| {
            let stage = match change.status.as_str() {
                "Infeasible" => ModifyStage::Infeasible,
                _ => ModifyStage::Underway,
            };
            let class = change.target_volume_attributes_class_name.as_deref();
            (stage, class.unwrap_or_default())
        }),
        error: message(facts::MODIFY_VOLUME_ERROR),
        progress: message(facts::MODIFYING_VOLUME),
    }
}
