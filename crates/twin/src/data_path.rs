//! Translates the PV of a twin into what a node needs to reach its data.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, SecretReference};
use kube::ResourceExt;

use crate::{
    cluster::{facts, slim::Driver},
    volume::{CsiSource, DataPath, RealSource, SecretRef},
};

/// How a node reaches the data of a PV, before it is attached.
pub(super) fn of(volume: &PersistentVolume, driver: Option<&Driver>) -> Result<DataPath, String> {
    let unusable = |what: &str| format!("the twin's PV {} {what}", volume.name_any());
    let spec = volume.spec.as_ref().ok_or_else(|| unusable("has no spec"))?;
    let source = if let Some(csi) = &spec.csi {
        RealSource::Csi(Box::new(csi_source(csi, driver)))
    } else if let Some(path) = &spec.host_path {
        RealSource::HostPath {
            path: path.path.clone(),
            path_type: path.type_.clone().unwrap_or_default(),
        }
    } else if let Some(local) = &spec.local {
        RealSource::Local {
            path: local.path.clone(),
            fs_type: local.fs_type.clone(),
        }
    } else if let Some(nfs) = &spec.nfs {
        RealSource::Nfs {
            server: nfs.server.clone(),
            path: nfs.path.clone(),
            read_only: nfs.read_only.unwrap_or(false),
        }
    } else {
        return Err(unusable(
            "is neither csi, hostPath, local nor nfs: choose another real class",
        ));
    };
    let mode = facts::volume_mode(spec.volume_mode.as_deref());
    let mut path = DataPath::new(source, mode, spec.access_modes.clone().unwrap_or_default());
    path.mount_options = spec.mount_options.clone().unwrap_or_default();
    Ok(path)
}

fn csi_source(csi: &CSIPersistentVolumeSource, driver: Option<&Driver>) -> CsiSource {
    let attributes: BTreeMap<_, _> = csi.volume_attributes.clone().unwrap_or_default();
    CsiSource {
        driver: csi.driver.clone(),
        handle: csi.volume_handle.clone(),
        attributes,
        fs_type: csi.fs_type.clone(),
        read_only: csi.read_only.unwrap_or(false),
        stage_secret: csi.node_stage_secret_ref.as_ref().and_then(secret),
        publish_secret: csi.node_publish_secret_ref.as_ref().and_then(secret),
        expand_secret: csi.node_expand_secret_ref.as_ref().and_then(secret),
        wants: driver.map(|driver| driver.wants.clone()).unwrap_or_default(),
    }
}

fn secret(reference: &SecretReference) -> Option<SecretRef> {
    Some(SecretRef {
        namespace: reference.namespace.clone()?,
        name: reference.name.clone()?,
    })
}
