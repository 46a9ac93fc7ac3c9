//! Decides what binds a pending twin: its provisioner or, for a class without one, this driver.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{
    CreateRequest, Site,
    reading::{self, node},
    surroundings::{ClassFacts, ask},
    withdraw::is_reservation,
};
use crate::{
    cluster::{ApiError, Cluster},
    placement::{Class, NO_PROVISIONER, Prebinding},
    volume::ClaimName,
};

/// What binds a pending twin; for a class without a provisioner, which PV it gets.
pub(super) async fn prebinding(
    site: &Site,
    request: &CreateRequest,
    twin: &PersistentVolumeClaim,
    class: Option<&Class>,
) -> Result<Prebinding, ApiError> {
    // In a remote cluster a pod arrives with the claim, so Kubernetes binds it there.
    let ours = |class: &&Class| class.provisioner == NO_PROVISIONER && site.remote_cluster().is_none();
    let Some(class) = class.filter(ours) else {
        return Ok(Prebinding::Provisioner);
    };
    let home = site.home();
    if let Some(name) = reading::volume_name(twin) {
        return Ok(Prebinding::Reserved(name.to_owned()));
    }
    if let Some(reserved) = reserved(home, twin).await? {
        return Ok(Prebinding::Found(reserved));
    }
    let known = ClassFacts::about(home, class, None).await?;
    let selected = match reading::selected_node(twin) {
        Some(name) => node(home, name).await?,
        None => None,
    };
    let name = ClaimName {
        namespace: home.storage_namespace().to_owned(),
        name: twin.name_any(),
    };
    let found = known
        .surroundings(class)
        .choose_volume(&name, selected.as_ref(), &ask(request));
    Ok(match found {
        Some(volume) => Prebinding::Found(volume.name.clone()),
        None => Prebinding::NoneFits,
    })
}

/// The PV that was reserved for a twin before, for example by a process that died then. Kubernetes may
/// have bound it since, without having updated the twin yet.
async fn reserved(home: &Cluster, twin: &PersistentVolumeClaim) -> Result<Option<String>, ApiError> {
    let is_its = |found: &PersistentVolume| {
        is_reservation(found, home.storage_namespace(), &twin.name_any()) || reading::is_bound_to(found, twin)
    };
    let seen = home.views().volumes.of_twin(&twin.name_any());
    for seen in seen.iter().filter(|seen| !seen.deleting) {
        let found = home.all::<PersistentVolume>().get(&seen.name).await?;
        if found.as_ref().is_some_and(is_its) {
            return Ok(Some(seen.name.clone()));
        }
    }
    Ok(None)
}
