//! How a node accesses the data of a twin: `ControllerPublishVolume` resolves it once, and the node plugin
//! needs it later, without access to the API server. Transported as one JSON document in the
//! `publish_context`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Key of the document in `publish_context`.
const CONTEXT_KEY: &str = "storage.liqo.io/data-path";
const VERSION: u8 = 1;

/// The real volume behind a twin, and how it was attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataPath {
    version: u8,
    /// The source of the data.
    pub source: RealSource,
    /// Whether the twin is a file system or a raw device.
    pub volume_mode: VolumeMode,
    /// Access modes of the twin's PV, in its order, as Kubernetes spells them
    /// (`ReadWriteOnce`, …). Kubelet hands the first one to a driver.
    pub access_modes: Vec<String>,
    /// Mount options of the twin's PV.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// `attachmentMetadata` of the twin's own attachment: the real driver's `publish_context`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attachment: BTreeMap<String, String>,
}

/// Whether a volume is a file system or a raw block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeMode {
    /// Mounted as a directory.
    Filesystem,
    /// Attached to the pod as a device.
    Block,
}

/// The source of a twin's PV: a CSI driver, or one of the in-tree kinds that the
/// node plugin mounts itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum RealSource {
    /// A volume of another CSI driver on the same node.
    Csi(Box<CsiSource>),
    /// A directory or file of the host.
    #[serde(rename_all = "camelCase")]
    HostPath {
        /// Path on the host.
        path: String,
        /// `hostPath.type`, such as `DirectoryOrCreate`; empty means no check.
        #[serde(default)]
        path_type: String,
    },
    /// A directory or block device of the host, bound to this node.
    #[serde(rename_all = "camelCase")]
    Local {
        /// Path on the host.
        path: String,
        /// File system to create on a blank device; `None` means ext4.
        fs_type: Option<String>,
    },
    /// An export of an NFS server.
    #[serde(rename_all = "camelCase")]
    Nfs {
        /// Host name or address.
        server: String,
        /// Exported path.
        path: String,
        /// Whether the PV forbids writing.
        #[serde(default)]
        read_only: bool,
    },
}

/// A volume of a real CSI driver, with the settings of that driver's `CSIDriver` object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CsiSource {
    pub driver: String,
    pub handle: String,
    /// Its `volume_context`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
    /// `csi.fsType` of the twin's PV.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_type: Option<String>,
    /// Whether the PV forbids writing.
    #[serde(default)]
    pub read_only: bool,
    /// Secret for `NodeStageVolume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_secret: Option<SecretRef>,
    /// Secret for `NodePublishVolume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_secret: Option<SecretRef>,
    /// Secret for `NodeExpandVolume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expand_secret: Option<SecretRef>,
    /// The requirements in the real driver's `CSIDriver` object.
    #[serde(default)]
    pub wants: DriverRequirements,
}

/// The fields of a real driver's `CSIDriver` object that the node plugin has to implement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DriverRequirements {
    /// The pod's name, namespace, uid and service account (`podInfoOnMount`).
    pub pod_info: bool,
    /// `NodePublishVolume` repeated periodically (`requiresRepublish`).
    pub republish: bool,
    /// Service account tokens (`tokenRequests`).
    pub tokens: Option<TokenRequests>,
}

/// The `tokenRequests` of a real driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequests {
    /// Audiences of the tokens; the empty one is the API server itself.
    pub audiences: Vec<String>,
    /// In the secrets of the call instead of its volume context (`serviceAccountTokenInSecrets`).
    pub in_secrets: bool,
}

/// A Secret a twin's PV refers to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRef {
    pub namespace: String,
    pub name: String,
}

/// Why a `publish_context` is unusable.
#[derive(Debug, thiserror::Error)]
pub enum DataPathError {
    /// It has no data path: the volume was not published to this node by our controller.
    #[error(
        "the publish context has no {CONTEXT_KEY}: the volume was not published by this driver's controller"
    )]
    Missing,
    /// The data path is malformed.
    #[error("the {CONTEXT_KEY} of the publish context cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A newer controller wrote it.
    #[error(
        "the {CONTEXT_KEY} of the publish context has version {0}, this node plugin knows {VERSION}: upgrade it"
    )]
    Version(u8),
}

impl RealSource {
    /// The CSI driver of the volume, unless this driver itself mounts it.
    #[must_use]
    pub fn driver(&self) -> Option<&str> {
        match self {
            Self::Csi(source) => Some(&source.driver),
            Self::HostPath { .. } | Self::Local { .. } | Self::Nfs { .. } => None,
        }
    }
}

impl DataPath {
    /// A data path that is not attached and has no options.
    #[must_use]
    pub fn new(source: RealSource, volume_mode: VolumeMode, access_modes: Vec<String>) -> Self {
        Self {
            version: VERSION,
            source,
            volume_mode,
            access_modes,
            mount_options: Vec::new(),
            attachment: BTreeMap::new(),
        }
    }

    /// The `publish_context` that carries this path.
    pub fn to_publish_context(&self) -> Result<BTreeMap<String, String>, serde_json::Error> {
        Ok([(CONTEXT_KEY.to_owned(), serde_json::to_string(self)?)].into())
    }

    /// Reads the path back from a `publish_context`.
    pub fn from_publish_context<'a>(
        context: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, DataPathError> {
        let (_, text) = context
            .into_iter()
            .find(|(key, _)| *key == CONTEXT_KEY)
            .ok_or(DataPathError::Missing)?;
        let versioned: Versioned = serde_json::from_str(text)?;
        if versioned.version != VERSION {
            return Err(DataPathError::Version(versioned.version));
        }
        Ok(serde_json::from_str(text)?)
    }
}

/// Only the version, to distinguish a newer document from a broken one.
#[derive(Deserialize)]
struct Versioned {
    version: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn csi_path() -> DataPath {
        let source = RealSource::Csi(Box::new(CsiSource {
            driver: "real.example".into(),
            handle: "h-1".into(),
            attributes: [("a".to_owned(), "b".to_owned())].into(),
            fs_type: Some("ext4".into()),
            read_only: false,
            stage_secret: Some(SecretRef {
                namespace: "ns".into(),
                name: "s".into(),
            }),
            publish_secret: None,
            expand_secret: None,
            wants: DriverRequirements {
                pod_info: true,
                republish: false,
                tokens: Some(TokenRequests {
                    audiences: vec!["aud".into()],
                    in_secrets: false,
                }),
            },
        }));
        let mut path = DataPath::new(source, VolumeMode::Filesystem, vec!["ReadWriteOnce".into()]);
        path.mount_options = vec!["noatime".into()];
        path.attachment = [("device".to_owned(), "/dev/x".to_owned())].into();
        path
    }

    #[test]
    fn a_data_path_survives_the_publish_context() {
        let in_tree = [
            RealSource::HostPath {
                path: "/data".into(),
                path_type: "Directory".into(),
            },
            RealSource::Local {
                path: "/mnt/d".into(),
                fs_type: None,
            },
            RealSource::Nfs {
                server: "s".into(),
                path: "/x".into(),
                read_only: true,
            },
        ]
        .map(|source| DataPath::new(source, VolumeMode::Block, vec!["ReadWriteMany".into()]));
        for path in in_tree.into_iter().chain([csi_path()]) {
            let context = path.to_publish_context().unwrap();
            assert_eq!(DataPath::from_publish_context(&context).unwrap(), path);
        }
    }

    #[test]
    fn each_defect_of_a_publish_context_has_its_error() {
        let context = |text: &str| BTreeMap::from([(CONTEXT_KEY.to_owned(), text.to_owned())]);
        let read = |context: &BTreeMap<String, String>| DataPath::from_publish_context(context);
        assert!(matches!(read(&BTreeMap::new()), Err(DataPathError::Missing)));
        assert!(matches!(read(&context("{")), Err(DataPathError::Malformed(_))));
        assert!(matches!(
            read(&context(r#"{"version":9,"new":1}"#)),
            Err(DataPathError::Version(9))
        ));
    }
}
