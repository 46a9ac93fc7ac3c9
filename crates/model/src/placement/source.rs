//! Whether a twin may be created as a copy of a snapshot or of another twin, and whether the result is a
//! copy. Provisioners that are not CSI drivers ignore the source of a claim: it becomes Bound to an empty
//! volume, without an error. So a copy is requested only where the driver is known to be that of the source,
//! and the result is checked.

use crate::volume::VolumeMode;

/// Why no copy can be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceRefusal {
    /// The source is not usable now.
    #[error("{source_name} {why}")]
    NotUsable { source_name: String, why: String },
    /// It is in another namespace than the twin would be.
    #[error(
        "{source_name} is in the namespace {found} of the cluster {cluster}, and the volume would be in {wanted}: a volume can only be copied within one namespace"
    )]
    OtherNamespace {
        source_name: String,
        found: String,
        /// The namespace of the twin.
        wanted: String,
        cluster: String,
    },
    /// Whether the class can copy it is unknown.
    #[error(
        "cannot determine whether the storage class {class} can copy {source_name}, because this driver may not read {unread} in the cluster {cluster}; the volume could be empty. Grant the right"
    )]
    Unreadable {
        class: String,
        source_name: String,
        unread: &'static str,
        cluster: String,
    },
    #[error("{source_name} is not a CSI volume, so no driver can copy it")]
    NotCsi { source_name: String },
    /// The class belongs to another driver.
    #[error(
        "{source_name} belongs to the driver {driver}, and the real storage class {class} to {provisioner}, which cannot copy it: use a class of the same driver"
    )]
    OtherDriver {
        source_name: String,
        driver: String,
        class: String,
        provisioner: String,
    },
    /// The claim names a source that the request lacks.
    #[error(
        "the claim has the source {source_name} of the namespace {namespace} (spec.dataSourceRef.namespace), which csi-provisioner did not pass \
         on: the volume would be empty. Copy a source of the claim's own namespace"
    )]
    NotPassedOn { source_name: String, namespace: String },
    #[error(
        "{source_name} is of a volume with the mode {found}, and {wanted} is requested: that needs the annotation snapshot.storage.kubernetes.io/allow-volume-mode-change=true on its VolumeSnapshotContent"
    )]
    OtherMode {
        source_name: String,
        found: String,
        /// The requested mode.
        wanted: &'static str,
    },
}

/// Which driver can copy a source, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceDriver<'a> {
    Csi(&'a str),
    /// None: it is not a CSI volume.
    None,
    /// Unknown: this driver may not read these objects.
    Unreadable(&'static str),
}

/// Refuses a request for a copy that no driver would create.
pub fn may_copy(
    source_name: &str,
    driver: SourceDriver<'_>,
    class: &str,
    provisioner: Option<&str>,
    cluster: &str,
) -> Result<(), SourceRefusal> {
    let source_name = source_name.to_owned();
    let unreadable = |unread| SourceRefusal::Unreadable {
        class: class.to_owned(),
        source_name: source_name.clone(),
        unread,
        cluster: cluster.to_owned(),
    };
    match (driver, provisioner) {
        (SourceDriver::None, _) => Err(SourceRefusal::NotCsi { source_name }),
        (SourceDriver::Unreadable(what), _) => Err(unreadable(what)),
        (_, None) => Err(unreadable("storage classes")),
        (SourceDriver::Csi(driver), Some(provisioner)) if driver != provisioner => {
            Err(SourceRefusal::OtherDriver {
                source_name,
                driver: driver.to_owned(),
                class: class.to_owned(),
                provisioner: provisioner.to_owned(),
            })
        }
        (SourceDriver::Csi(_), Some(_)) => Ok(()),
    }
}

/// By how much the clocks of two API servers of a cluster may differ, in seconds.
const SKEW: i64 = 60;

/// Facts about a twin that should be a copy, and its PV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFacts {
    /// Whether the twin still names its source.
    pub names_source: bool,
    /// Whether the PV belongs to a CSI driver.
    pub by_csi: bool,
    /// Whether Kubernetes has chosen the PV, which then was not provisioned for the twin.
    pub chosen: bool,
    /// When the twin was created, in seconds since 1970.
    pub twin_created: i64,
    /// When its PV was created.
    pub volume_created: i64,
}

/// Why the PV of a twin does not hold a copy of its source.
#[must_use]
pub fn copy_flaw(facts: CopyFacts) -> Option<&'static str> {
    if !facts.names_source {
        Some("the API server has dropped the field dataSource of the twin")
    } else if !facts.by_csi {
        Some("its PersistentVolume is of no CSI driver, and other provisioners do not copy")
    } else if facts.chosen {
        Some("its PersistentVolume existed before, and Kubernetes chose it for the twin")
    } else if facts.volume_created.saturating_add(SKEW) < facts.twin_created {
        Some("its PersistentVolume is older than the twin")
    } else {
        None
    }
}

#[must_use]
pub fn mode_name(mode: VolumeMode) -> &'static str {
    match mode {
        VolumeMode::Filesystem => "Filesystem",
        VolumeMode::Block => "Block",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(driver: SourceDriver<'_>, provisioner: Option<&str>) -> Result<(), SourceRefusal> {
        may_copy("the snapshot s", driver, "fast", provisioner, "milan")
    }

    #[test]
    fn only_the_driver_of_the_source_can_copy_it() {
        assert_eq!(check(SourceDriver::Csi("real"), Some("real")), Ok(()));
        assert!(matches!(
            check(SourceDriver::Csi("real"), Some("rancher.io/local-path")),
            Err(SourceRefusal::OtherDriver { .. })
        ));
        assert!(matches!(
            check(SourceDriver::None, Some("rancher.io/local-path")),
            Err(SourceRefusal::NotCsi { .. })
        ));
    }

    #[test]
    fn a_copy_is_refused_if_the_drivers_cannot_be_compared() {
        for (driver, provisioner) in [
            (SourceDriver::Csi("real"), None),
            (SourceDriver::Unreadable("PersistentVolumes"), Some("real")),
        ] {
            assert!(matches!(
                check(driver, provisioner),
                Err(SourceRefusal::Unreadable { .. })
            ));
        }
    }

    #[test]
    fn a_volume_that_existed_before_is_no_copy() {
        let facts = CopyFacts {
            names_source: true,
            by_csi: true,
            chosen: false,
            twin_created: 1000,
            volume_created: 1000,
        };
        assert_eq!(copy_flaw(facts), None);
        // The API server that created the PV is behind the one that created the twin.
        let behind = CopyFacts {
            volume_created: 990,
            ..facts
        };
        assert_eq!(copy_flaw(behind), None);
        let chosen = CopyFacts {
            chosen: true,
            ..facts
        };
        assert!(copy_flaw(chosen).unwrap().contains("existed before"));
        let (older, dropped) = (
            CopyFacts {
                volume_created: 900,
                ..facts
            },
            CopyFacts {
                names_source: false,
                ..facts
            },
        );
        let in_tree = CopyFacts {
            by_csi: false,
            ..facts
        };
        assert!(copy_flaw(in_tree).unwrap().contains("no CSI driver"));
        assert!(copy_flaw(older).unwrap().contains("older"));
        assert!(copy_flaw(dropped).unwrap().contains("dataSource"));
    }
}
