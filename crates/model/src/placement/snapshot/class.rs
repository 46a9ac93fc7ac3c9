//! Which `VolumeSnapshotClass` the twin of a snapshot gets: the one that the user's class
//! names, or none, which means the default of the real driver. Kubernetes does not compare
//! the driver of a class with that of the volume: another driver would be handed the volume's
//! handle, so that is done here.

use crate::volume::{ClusterId, SnapshotParameters};

/// A `VolumeSnapshotClass`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotClass {
    /// Its name.
    pub name: String,
    /// Who makes its snapshots.
    pub driver: String,
    /// Whether it is marked as default.
    pub is_default: bool,
}

/// What is known of the snapshot classes of a cluster.
#[derive(Clone, Copy, Debug)]
pub enum KnownSnapshotClasses<'a> {
    /// Those that matter.
    Listed(&'a [SnapshotClass]),
    /// They may not be read.
    Unreadable,
}

/// Why there is no class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotClassError {
    /// There is no such class.
    #[error("the real VolumeSnapshotClass {class:?} does not exist in the cluster {cluster}")]
    NotFound {
        /// The class named.
        class: String,
        /// Where it was looked for.
        cluster: ClusterId,
    },
    /// It is another driver's.
    #[error(
        "the real VolumeSnapshotClass {class:?} of the cluster {cluster} is of the driver {found}, but the volume is of {driver}: name a class of that one"
    )]
    OtherDriver {
        /// The class named.
        class: String,
        /// Its driver.
        found: String,
        /// The driver of the volume.
        driver: String,
        /// Where.
        cluster: ClusterId,
    },
    /// It cannot be known whose it is.
    #[error(
        "it is not known whether the real VolumeSnapshotClass {class:?} is of the volume's driver in the cluster {cluster}, where this driver may not read PersistentVolumes or VolumeSnapshotClasses: leave out {}, which means the driver's default class, or grant the rights",
        SnapshotParameters::REAL_CLASS
    )]
    Unreadable {
        /// The class named.
        class: String,
        /// Where.
        cluster: ClusterId,
    },
    /// Nobody named a class and the driver has no default.
    #[error(
        "the cluster {cluster} has {} default VolumeSnapshotClass of the driver {driver}: name one with the parameter {} of your class, or mark one there as default",
        if *.several { "more than one" } else { "no" },
        SnapshotParameters::REAL_CLASS
    )]
    NoDefault {
        /// The driver of the volume.
        driver: String,
        /// Where.
        cluster: ClusterId,
        /// Whether it has more than one.
        several: bool,
    },
}

/// Chooses the class of a snapshot's twin; `None` for the default of the driver.
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
    fn what_cannot_be_compared_is_not_used() {
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
    fn the_default_is_one_and_of_the_driver() {
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
