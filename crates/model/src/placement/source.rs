//! Whether a twin may be made as a copy of a snapshot or of another twin, and whether what
//! was made is one. Provisioners that are no CSI drivers ignore the source of a claim: the
//! claim is Bound, to an empty volume, and nobody says a word. So a copy is asked for only
//! where the driver is seen to be the source's, and what was made is looked at.

use crate::volume::VolumeMode;

/// Why no copy is made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceRefusal {
    /// The source cannot be read from now.
    #[error("{source_name} {why}")]
    NotUsable {
        /// The snapshot or volume.
        source_name: String,
        /// Why not.
        why: String,
    },
    /// It is in another namespace than the twin would be.
    #[error(
        "{source_name} is in the namespace {found} of the cluster {cluster}, and the volume would be in {wanted}: a volume can only be copied within one"
    )]
    OtherNamespace {
        /// The snapshot or volume.
        source_name: String,
        /// Its namespace.
        found: String,
        /// The twin's.
        wanted: String,
        /// Their cluster.
        cluster: String,
    },
    /// Whether the class copies is not known.
    #[error(
        "it is not known whether the storage class {class} copies {source_name}, for this driver may not read {unread} in the cluster {cluster}; an empty volume would be the worse answer. Grant the right"
    )]
    Unreadable {
        /// The real class.
        class: String,
        /// The snapshot or volume.
        source_name: String,
        /// What cannot be read.
        unread: &'static str,
        /// Where.
        cluster: String,
    },
    /// Nobody can copy the source.
    #[error("{source_name} is no CSI volume, which nobody can copy")]
    NotCsi {
        /// The volume.
        source_name: String,
    },
    /// The class is another driver's.
    #[error(
        "{source_name} is of the driver {driver}, and the real storage class {class} of {provisioner}, which cannot copy it: use a class of the same driver"
    )]
    OtherDriver {
        /// The snapshot or volume.
        source_name: String,
        /// Its driver.
        driver: String,
        /// The real class.
        class: String,
        /// Who makes its volumes.
        provisioner: String,
    },
    /// The volume mode differs.
    #[error(
        "{source_name} is of a volume with the mode {found}, and {wanted} is asked for: that needs the annotation snapshot.storage.kubernetes.io/allow-volume-mode-change=true on its VolumeSnapshotContent"
    )]
    OtherMode {
        /// The snapshot.
        source_name: String,
        /// The mode of its volume.
        found: String,
        /// The mode asked for.
        wanted: &'static str,
    },
}

/// Who could copy a source, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceDriver<'a> {
    /// This CSI driver.
    Csi(&'a str),
    /// Nobody: it is no CSI volume.
    None,
    /// It cannot be known: this may not be read.
    Unreadable(&'static str),
}

/// Refuses a copy that nobody would make.
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

/// What is seen of a twin that should be a copy, and of its PV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFacts {
    /// Whether the twin still names its source.
    pub names_source: bool,
    /// When the twin was created, in seconds since 1970.
    pub twin_created: i64,
    /// When its PV was.
    pub volume_created: i64,
}

/// Why the PV of a twin does not hold a copy of the source it was made for.
#[must_use]
pub fn copy_flaw(facts: CopyFacts) -> Option<&'static str> {
    if !facts.names_source {
        Some("the API server has dropped the field dataSource of the twin")
    } else if facts.volume_created < facts.twin_created {
        Some("its PersistentVolume is older than the twin")
    } else {
        None
    }
}

/// A volume mode as Kubernetes spells it.
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
    fn only_the_sources_own_driver_copies_it() {
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
    fn what_cannot_be_seen_to_be_copied_is_not() {
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
    fn an_older_volume_is_no_copy() {
        let facts = CopyFacts {
            names_source: true,
            twin_created: 10,
            volume_created: 10,
        };
        assert_eq!(copy_flaw(facts), None);
        let (older, dropped) = (
            CopyFacts {
                volume_created: 9,
                ..facts
            },
            CopyFacts {
                names_source: false,
                ..facts
            },
        );
        assert!(copy_flaw(older).unwrap().contains("older"));
        assert!(copy_flaw(dropped).unwrap().contains("dataSource"));
    }
}
