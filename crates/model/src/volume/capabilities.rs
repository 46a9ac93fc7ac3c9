//! The capabilities of a request, merged and validated: access modes, volume mode, file system type and mount
//! flags.

use std::{collections::BTreeSet, fmt, str::FromStr};

use super::{SpecError, VolumeMode};

/// An access mode of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccessMode {
    /// Written from one node.
    ReadWriteOnce,
    /// Read from many nodes.
    ReadOnlyMany,
    /// Written from many nodes.
    ReadWriteMany,
    /// Written by one pod.
    ReadWriteOncePod,
}

impl AccessMode {
    const ALL: [Self; 4] = [
        Self::ReadWriteOnce,
        Self::ReadOnlyMany,
        Self::ReadWriteMany,
        Self::ReadWriteOncePod,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadOnlyMany => "ReadOnlyMany",
            Self::ReadWriteMany => "ReadWriteMany",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
    }

    /// Whether a volume with this mode can be used in a narrower one.
    fn covers(self, asked: Self) -> bool {
        self == asked
            || self == Self::ReadWriteMany
            || self == Self::ReadWriteOnce && asked == Self::ReadWriteOncePod
    }
}

impl FromStr for AccessMode {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| SpecError::UnknownAccessMode(text.to_owned()))
    }
}

impl fmt::Display for AccessMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a pod uses the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// As a mounted file system.
    Mount {
        /// File system type, if the request has one.
        fs_type: Option<String>,
        /// Mount options.
        flags: Vec<String>,
    },
    /// As a raw device.
    Block,
}

/// One capability of a request, which has one for each access mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    pub mode: AccessMode,
    pub access: Access,
}

/// The merged capabilities of a request, which are consistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    modes: BTreeSet<AccessMode>,
    access: Access,
}

/// Whether a PV with these access modes can be attached to nodes: CSI has no mode for `ReadWriteOnce` with `ReadOnlyMany`.
#[must_use]
pub fn can_be_attached(modes: &BTreeSet<AccessMode>) -> bool {
    use AccessMode::{ReadOnlyMany, ReadWriteMany, ReadWriteOnce};
    modes.contains(&ReadWriteMany) || !(modes.contains(&ReadWriteOnce) && modes.contains(&ReadOnlyMany))
}

impl Capabilities {
    /// Merges the capabilities of a request.
    pub fn new(asked: impl IntoIterator<Item = Capability>) -> Result<Self, SpecError> {
        let mut asked = asked.into_iter();
        let first = asked.next().ok_or(SpecError::NoCapability)?;
        let mut all = Self {
            modes: [first.mode].into(),
            access: normalised(first.access),
        };
        for next in asked {
            all.modes.insert(next.mode);
            all.agree(normalised(next.access))?;
        }
        Ok(all)
    }

    fn agree(&mut self, other: Access) -> Result<(), SpecError> {
        match (&mut self.access, other) {
            (Access::Block, Access::Block) => Ok(()),
            (
                Access::Mount { fs_type, flags },
                Access::Mount {
                    fs_type: other_type,
                    flags: other_flags,
                },
            ) => {
                if *flags != other_flags {
                    return Err(SpecError::TwoSetsOfFlags(flags.clone(), other_flags));
                }
                match (&fs_type, other_type) {
                    (Some(one), Some(other)) if *one != other => {
                        Err(SpecError::TwoFsTypes(one.clone(), other))
                    }
                    (None, Some(other)) => {
                        *fs_type = Some(other);
                        Ok(())
                    }
                    _ => Ok(()),
                }
            }
            _ => Err(SpecError::MixedVolumeModes),
        }
    }

    /// Never empty.
    #[must_use]
    pub fn access_modes(&self) -> &BTreeSet<AccessMode> {
        &self.modes
    }

    /// File system or raw device.
    #[must_use]
    pub fn volume_mode(&self) -> VolumeMode {
        match self.access {
            Access::Mount { .. } => VolumeMode::Filesystem,
            Access::Block => VolumeMode::Block,
        }
    }

    /// File system type, if the request has one.
    #[must_use]
    pub fn fs_type(&self) -> Option<&str> {
        match &self.access {
            Access::Mount { fs_type, .. } => fs_type.as_deref(),
            Access::Block => None,
        }
    }

    #[must_use]
    pub fn mount_flags(&self) -> &[String] {
        match &self.access {
            Access::Mount { flags, .. } => flags,
            Access::Block => &[],
        }
    }

    /// Whether a volume created for these capabilities also satisfies the requested ones. A user may narrow the
    /// access modes of a PV.
    ///
    /// A file system type counts only where both name one; mount flags are given at each use and do not
    /// count.
    #[must_use]
    pub fn contains(&self, asked: &Self) -> bool {
        let same_type = match (self.fs_type(), asked.fs_type()) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => true,
        };
        let is_covered = |asked: &AccessMode| self.modes.iter().any(|mode| mode.covers(*asked));
        same_type && self.volume_mode() == asked.volume_mode() && asked.modes.iter().all(is_covered)
    }
}

/// An empty file system type means none.
fn normalised(access: Access) -> Access {
    match access {
        Access::Mount { fs_type, flags } => Access::Mount {
            fs_type: fs_type.filter(|fs_type| !fs_type.is_empty()),
            flags,
        },
        Access::Block => Access::Block,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(mode: AccessMode, fs_type: &str, flags: &[&str]) -> Capability {
        Capability {
            mode,
            access: Access::Mount {
                fs_type: Some(fs_type.to_owned()),
                flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            },
        }
    }

    fn block(mode: AccessMode) -> Capability {
        Capability {
            mode,
            access: Access::Block,
        }
    }

    #[test]
    fn capabilities_of_several_access_modes_are_merged() {
        let all = Capabilities::new([
            mount(AccessMode::ReadWriteOnce, "", &["noatime"]),
            mount(AccessMode::ReadOnlyMany, "xfs", &["noatime"]),
        ])
        .unwrap();
        assert_eq!(all.access_modes().len(), 2);
        assert_eq!(all.volume_mode(), VolumeMode::Filesystem);
        assert_eq!(all.fs_type(), Some("xfs"));
        assert_eq!(all.mount_flags(), ["noatime"]);
    }

    #[test]
    fn contradicting_capabilities_are_errors() {
        use AccessMode::{ReadWriteMany, ReadWriteOnce};
        let errors = [
            Capabilities::new([]),
            Capabilities::new([mount(ReadWriteOnce, "", &[]), block(ReadWriteOnce)]),
            Capabilities::new([
                mount(ReadWriteOnce, "xfs", &[]),
                mount(ReadWriteMany, "ext4", &[]),
            ]),
            Capabilities::new([mount(ReadWriteOnce, "", &["ro"]), mount(ReadWriteMany, "", &[])]),
        ]
        .map(Result::unwrap_err);
        assert_eq!(errors[0], SpecError::NoCapability);
        assert_eq!(errors[1], SpecError::MixedVolumeModes);
        assert!(matches!(errors[2], SpecError::TwoFsTypes(..)));
        assert!(matches!(errors[3], SpecError::TwoSetsOfFlags(..)));
    }

    #[test]
    fn a_volume_serves_only_the_capabilities_it_was_created_with() {
        use AccessMode::{ReadOnlyMany, ReadWriteMany, ReadWriteOnce};
        let made = Capabilities::new([
            mount(ReadWriteOnce, "ext4", &[]),
            mount(ReadOnlyMany, "ext4", &[]),
        ])
        .unwrap();
        let serves = |asked: Capability| made.contains(&Capabilities::new([asked]).unwrap());
        assert!(serves(mount(ReadWriteOnce, "", &["noatime"])));
        assert!(serves(mount(ReadOnlyMany, "ext4", &[])));
        assert!(!serves(mount(ReadWriteMany, "", &[])));
        assert!(!serves(mount(ReadWriteOnce, "xfs", &[])));
        assert!(!serves(block(ReadWriteOnce)));
    }

    #[test]
    fn a_volume_serves_narrower_access_modes() {
        use AccessMode::{ReadOnlyMany, ReadWriteMany, ReadWriteOnce, ReadWriteOncePod};
        let serves = |made, asked| {
            let [made, asked] = [made, asked].map(|mode| Capabilities::new([block(mode)]).unwrap());
            made.contains(&asked)
        };
        for narrower in [ReadWriteOnce, ReadOnlyMany, ReadWriteOncePod] {
            assert!(serves(ReadWriteMany, narrower), "{narrower}");
            assert!(!serves(narrower, ReadWriteMany), "{narrower}");
        }
        assert!(serves(ReadWriteOnce, ReadWriteOncePod));
        assert!(!serves(ReadWriteOncePod, ReadWriteOnce));
        assert!(!serves(ReadWriteOnce, ReadOnlyMany));
    }

    #[test]
    fn access_modes_are_spelled_as_kubernetes_does() {
        for mode in AccessMode::ALL {
            assert_eq!(mode.as_str().parse(), Ok(mode));
        }
        assert!("RWO".parse::<AccessMode>().is_err());
    }
}
