//! The `VolumeSnapshotClass` of a snapshot's twin: the one that the user's class names, or none, which means
//! the default of the real driver. Kubernetes does not compare the driver of a class with that of the volume,
//! and would pass the volume's handle to another driver, so that check is done here.

use crate::volume::{ClusterId, SnapshotParameters};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotClass {
    pub name: String,
    /// The CSI driver that takes its snapshots.
    pub driver: String,
    /// Whether it is annotated as default.
    pub is_default: bool,
}

/// The snapshot classes of a cluster, as far as they can be read.
#[derive(Clone, Copy, Debug)]
pub enum KnownSnapshotClasses<'a> {
    /// The relevant classes.
    Listed(&'a [SnapshotClass]),
    /// This driver may not read them.
    Unreadable,
}

/// Why no class can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotClassError {
    #[error("the real VolumeSnapshotClass {class:?} does not exist in the cluster {cluster}")]
    NotFound { class: String, cluster: ClusterId },
    /// It belongs to another driver.
    #[error(
        "the real VolumeSnapshotClass {class:?} of the cluster {cluster} belongs to the driver {found}, but the volume to {driver}: name a class of the latter"
    )]
    OtherDriver {
        class: String,
        found: String,
        driver: String,
        cluster: ClusterId,
    },
    #[error(
        "cannot determine whether the real VolumeSnapshotClass {class:?} belongs to the volume's driver in the cluster {cluster}, because this driver may not read PersistentVolumes or VolumeSnapshotClasses there: omit {} to use the driver's default class, or grant the rights",
        SnapshotParameters::REAL_CLASS
    )]
    Unreadable { class: String, cluster: ClusterId },
    /// No class is named and the driver has no default.
    #[error(
        "the cluster {cluster} has {} default VolumeSnapshotClass of the driver {driver}: name one with the parameter {} of your class, or annotate one there as default",
        if *.several { "more than one" } else { "no" },
        SnapshotParameters::REAL_CLASS
    )]
    NoDefault {
        driver: String,
        cluster: ClusterId,
        /// Whether there is more than one default.
        several: bool,
    },
}

/// The class of a snapshot's twin; `None` for the default of the driver.
pub fn choose_snapshot_class(
    named: Option<&str>,
    classes: KnownSnapshotClasses<'_>,
    driver: Option<&str>,
    cluster: &ClusterId,
) -> Result<Option<String>, SnapshotClassError> {
    let (class, cluster) = (|| named.unwrap_or_default().to_owned(), || cluster.clone());
    match (named, classes, driver) {
        (Some(name), KnownSnapshotClasses::Listed(classes), Some(driver)) => {
            match classes.iter().find(|class| class.name == name) {
                None => Err(SnapshotClassError::NotFound {
                    class: class(),
                    cluster: cluster(),
                }),
                Some(found) if found.driver != driver => Err(SnapshotClassError::OtherDriver {
                    class: class(),
                    found: found.driver.clone(),
                    driver: driver.to_owned(),
                    cluster: cluster(),
                }),
                Some(_) => Ok(Some(class())),
            }
        }
        (Some(_), ..) => Err(SnapshotClassError::Unreadable {
            class: class(),
            cluster: cluster(),
        }),
        (None, KnownSnapshotClasses::Listed(classes), Some(driver)) => {
            let defaults = classes
                .iter()
                .filter(|class| class.is_default && class.driver == driver);
            match defaults.count() {
                1 => Ok(None),
                count => Err(SnapshotClassError::NoDefault {
                    driver: driver.to_owned(),
                    cluster: cluster(),
                    several: count > 1,
                }),
            }
        }
        (None, ..) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, driver: &str, is_default: bool) -> SnapshotClass {
        SnapshotClass {
            name: name.into(),
            driver: driver.into(),
            is_default,
        }
    }

    fn choose(
        named: Option<&str>,
        classes: KnownSnapshotClasses<'_>,
        driver: Option<&str>,
    ) -> Result<Option<String>, SnapshotClassError> {
        choose_snapshot_class(named, classes, driver, &"milan".parse().unwrap())
    }

    #[test]
    fn a_class_must_be_of_the_volumes_driver() {
        let all = [class("fast", "real", false), class("slow", "other", true)];
        let known = KnownSnapshotClasses::Listed(&all);
        assert_eq!(choose(Some("fast"), known, Some("real")), Ok(Some("fast".into())));
        assert!(matches!(
            choose(Some("slow"), known, Some("real")),
            Err(SnapshotClassError::OtherDriver { .. })
        ));
        assert!(matches!(
            choose(Some("none"), known, Some("real")),
            Err(SnapshotClassError::NotFound { .. })
        ));
    }

    #[test]
    fn a_snapshot_class_is_refused_if_its_driver_cannot_be_compared() {
        let all = [class("fast", "real", false)];
        for (known, driver) in [
            (KnownSnapshotClasses::Unreadable, Some("real")),
            (KnownSnapshotClasses::Listed(&all), None),
        ] {
            assert!(matches!(
                choose(Some("fast"), known, driver),
                Err(SnapshotClassError::Unreadable { .. })
            ));
            assert_eq!(choose(None, KnownSnapshotClasses::Unreadable, driver), Ok(None));
        }
    }

    #[test]
    fn the_default_snapshot_class_must_be_the_only_one_of_the_driver() {
        let several = |count: usize| match choose(
            None,
            KnownSnapshotClasses::Listed(&vec![class("d", "real", true); count]),
            Some("real"),
        ) {
            Err(SnapshotClassError::NoDefault { several, .. }) => Some(several),
            Ok(None) => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (several(0), several(1), several(2)),
            (Some(false), None, Some(true))
        );
        let others = [class("d", "other", true), class("e", "real", false)];
        assert!(choose(None, KnownSnapshotClasses::Listed(&others), Some("real")).is_err());
    }
}
