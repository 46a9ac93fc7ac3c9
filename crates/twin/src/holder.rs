//! To which volume the data of a PV belongs. While the twin exists its uid shows that; afterwards a
//! `claimRef` is only a name. At home the name of a twin contains the uid of its claim and
//! the epoch. In a remote cluster names are reused: there the PV is marked while its twin exists.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use serde_json::json;

use super::{Site, reclaim_policy};
use crate::{
    cluster::{ApiError, facts, unless_conflict},
    observe::crash::{self, Step},
    placement::{
        NO_PROVISIONER,
        recovery::{Holder, HolderFacts, holder as holder_by},
    },
    volume::{Epoch, VolumeName, mark},
};

/// Annotation of a PV with its provisioner.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Whether a PV at the site holds the data of the volume. `remembered` is the PV that the virtual PV
/// records.
#[must_use]
pub fn holder(site: &Site, volume: &VolumeName, remembered: Option<&str>, real: &PersistentVolume) -> Holder {
    let claim = real.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let is_of_the_name = claim.is_some_and(|claim| {
        claim.namespace.as_deref() == Some(site.namespace()) && claim.name.as_deref() == Some(site.name())
    });
    holder_by(HolderFacts {
        names_twin: is_of_the_name,
        once: site.remote_cluster().is_none(),
        marked: real
            .annotations()
            .get(mark::DATA_OF)
            .map(|marked| *marked == data_of(site, volume)),
        remembered: remembered.map(|name| name == real.name_any()),
    })
}

/// Why the PV of a twin may contain data that its claim has not written, if so: it was not provisioned for the twin,
/// Kubernetes chose it among the available ones. Classes without a provisioner have no other PVs.
#[must_use]
pub fn earlier_data(site: &Site, real: &PersistentVolume) -> Option<String> {
    let annotations = real.annotations();
    // In-tree provisioners set the mark of a choice also on what they provision.
    let is_in_tree = |by: &String| by.starts_with("kubernetes.io/");
    let class = real.spec.as_ref()?.storage_class_name.as_ref();
    let class = class.and_then(|name| site.cluster().views().classes.get(name));
    if !annotations.contains_key(facts::BOUND_BY_CONTROLLER)
        || annotations.get(PROVISIONED_BY).is_some_and(is_in_tree)
        || class.is_some_and(|class| class.provisioner == NO_PROVISIONER)
    {
        return None;
    }
    let there = site.remote_cluster().map_or_else(String::new, |_| {
        format!(" in the cluster {}", site.cluster_name())
    });
    Some(format!(
        "the twin {}{there} is bound to the PersistentVolume {name}, which existed before and may contain data: Kubernetes gives a \
         claim any available PersistentVolume that fits. If this claim is deleted, the reclaim policy of {name} ({policy}) decides \
         what happens to that data. For another volume, set that policy to Retain, delete this claim and create it again",
        site.place(),
        name = real.name_any(),
        policy = reclaim_policy(real),
    ))
}

/// The value of the mark on the PV of a volume. A PV of an earlier epoch holds older data.
#[must_use]
pub fn data_of(site: &Site, volume: &VolumeName) -> String {
    let home = site.home().id();
    if site.epoch() == Epoch::NEVER_MOVED {
        return format!("{home}/{volume}");
    }
    format!("{home}/{volume}/{}", site.epoch())
}

/// Whether the PV of a twin is marked with its volume, where that is needed.
#[must_use]
pub fn is_marked(site: &Site, volume: &VolumeName, real: &PersistentVolume) -> bool {
    site.remote_cluster().is_none() || real.annotations().get(mark::DATA_OF) == Some(&data_of(site, volume))
}

/// Marks the PV of a twin with the volume if necessary, and returns the PV. `None` if it has changed
/// since it was read.
pub async fn mark_holder(
    site: &Site,
    volume: &VolumeName,
    real: PersistentVolume,
) -> Result<Option<PersistentVolume>, ApiError> {
    if is_marked(site, volume, &real) {
        return Ok(Some(real));
    }
    let patch = json!({"metadata": {
        "uid": real.uid(),
        "resourceVersion": real.resource_version(),
        "annotations": {mark::DATA_OF: data_of(site, volume)},
    }});
    let marked = crash::around(Step::MarkHolder, site.volumes().merge(&real.name_any(), &patch)).await;
    unless_conflict(marked)
}
