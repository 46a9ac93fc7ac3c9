//! What a volume was asked to be: size, capabilities, class parameters, content.
//!
//! Values of these types cannot contradict themselves; whatever a request says
//! that they cannot hold is a [`SpecError`]. Reading gRPC messages is not done here.

use std::{collections::BTreeSet, fmt, str::FromStr};

use super::VolumeMode;

/// Size of a twin whose request names none.
const DEFAULT_SIZE: u64 = 1 << 30;

/// Why a request does not describe a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A size below zero.
    #[error("the capacity range has a negative {0}")]
    NegativeSize(&'static str),
    /// More is required than allowed.
    #[error("the capacity range requires {required} bytes but limits the volume to {limit}")]
    EmptyRange {
        /// Bytes required.
        required: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// No capability at all.
    #[error("the request has no volume capability")]
    NoCapability,
    /// Mounted and raw at once.
    #[error("the request asks for a file system and for a raw block device at once")]
    MixedVolumeModes,
    /// Two file system types.
    #[error("the request asks for two file system types at once: {0:?} and {1:?}")]
    TwoFsTypes(String, String),
    /// Two sets of mount flags.
    #[error("the request asks for different mount flags at once: {0:?} and {1:?}")]
    TwoSetsOfFlags(Vec<String>, Vec<String>),
    /// An access mode nobody knows.
    #[error("{0:?} is no access mode of a claim")]
    UnknownAccessMode(String),
    /// A parameter this driver does not know.
    #[error(
        "the storage class has an unknown parameter {0:?}; this driver knows {known:?}",
        known = Parameters::REAL_CLASS
    )]
    UnknownParameter(String),
    /// Half a claim name.
    #[error("the request names the claim's {given} without its {missing}")]
    HalfAClaim {
        /// What it has.
        given: &'static str,
        /// What it lacks.
        missing: &'static str,
    },
    /// A parameter without a value.
    #[error("the parameter {0:?} is empty")]
    EmptyParameter(&'static str),
}

/// How large the volume must and may be, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRange {
    required: u64,
    limit: Option<u64>,
}

impl SizeRange {
    /// The range of a request, where zero stands for "not given".
    pub fn new(required: i64, limit: i64) -> Result<Self, SpecError> {
        let required = u64::try_from(required).map_err(|_| SpecError::NegativeSize("required size"))?;
        let limit = u64::try_from(limit).map_err(|_| SpecError::NegativeSize("size limit"))?;
        if limit != 0 && limit < required {
            return Err(SpecError::EmptyRange { required, limit });
        }
        Ok(Self {
            required,
            limit: (limit != 0).then_some(limit),
        })
    }

    /// Bytes the volume must have; zero when nothing is required.
    #[must_use]
    pub fn required(self) -> u64 {
        self.required
    }

    /// Bytes the volume may have.
    #[must_use]
    pub fn limit(self) -> Option<u64> {
        self.limit
    }

    /// What the twin asks its real class for: never nothing, a claim needs a size.
    #[must_use]
    pub fn request(self) -> u64 {
        match (self.required, self.limit) {
            (0, limit) => limit.map_or(DEFAULT_SIZE, |limit| limit.min(DEFAULT_SIZE)),
            (required, _) => required,
        }
    }

    /// Whether a volume of this size answers the request.
    #[must_use]
    pub fn accepts(self, bytes: u64) -> bool {
        bytes >= self.required && self.limit.is_none_or(|limit| bytes <= limit)
    }
}

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

    /// As Kubernetes spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadOnlyMany => "ReadOnlyMany",
            Self::ReadWriteMany => "ReadWriteMany",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
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

/// How a consumer sees the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// As a mounted file system.
    Mount {
        /// Type of the file system, when the request cares.
        fs_type: Option<String>,
        /// Mount options.
        flags: Vec<String>,
    },
    /// As a raw device.
    Block,
}

/// One capability of a request; several stand for several access modes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Who may use the volume at once.
    pub mode: AccessMode,
    /// How it is used.
    pub access: Access,
}

/// All capabilities of a request, known to agree with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    modes: BTreeSet<AccessMode>,
    access: Access,
}

impl Capabilities {
    /// Brings the capabilities of a request together.
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

    /// Who may use the volume at once; never empty.
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

    /// Type of the file system, when the request cares.
    #[must_use]
    pub fn fs_type(&self) -> Option<&str> {
        match &self.access {
            Access::Mount { fs_type, .. } => fs_type.as_deref(),
            Access::Block => None,
        }
    }

    /// Mount options.
    #[must_use]
    pub fn mount_flags(&self) -> &[String] {
        match &self.access {
            Access::Mount { flags, .. } => flags,
            Access::Block => &[],
        }
    }

    /// Whether a volume made for these capabilities also serves the asked ones.
    ///
    /// A file system type counts only where both name one; mount flags are
    /// given per use and decide nothing.
    #[must_use]
    pub fn contains(&self, asked: &Self) -> bool {
        let same_type = match (self.fs_type(), asked.fs_type()) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => true,
        };
        same_type && self.volume_mode() == asked.volume_mode() && self.modes.is_superset(&asked.modes)
    }
}

/// An empty file system type means that none was asked for.
fn normalised(access: Access) -> Access {
    match access {
        Access::Mount { fs_type, flags } => Access::Mount {
            fs_type: fs_type.filter(|fs_type| !fs_type.is_empty()),
            flags,
        },
        Access::Block => Access::Block,
    }
}

/// Name of a claim in its cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The parameters of a request: those of the virtual class, and what
/// csi-provisioner adds about the claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The real class named by the virtual one.
    pub real_class: Option<String>,
    /// The claim the volume is for.
    pub claim: Option<ClaimName>,
    /// Name of the PV that will be made.
    pub volume: Option<String>,
}

impl Parameters {
    /// Parameter of the virtual class that names the real one.
    pub const REAL_CLASS: &'static str = "realStorageClass";
    const CLAIM_NAMESPACE: &'static str = "csi.storage.k8s.io/pvc/namespace";
    const CLAIM_NAME: &'static str = "csi.storage.k8s.io/pvc/name";
    const VOLUME: &'static str = "csi.storage.k8s.io/pv/name";

    /// Reads the parameters of a request; an unknown one is an error, because
    /// the user meant something by it.
    pub fn parse<'a>(
        parameters: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, SpecError> {
        let (mut namespace, mut name) = (None, None);
        let mut read = Self::default();
        for (key, value) in parameters {
            let value = Some(value.clone()).filter(|value| !value.is_empty());
            match key.as_str() {
                Self::REAL_CLASS => {
                    read.real_class = Some(value.ok_or(SpecError::EmptyParameter(Self::REAL_CLASS))?);
                }
                Self::CLAIM_NAMESPACE => namespace = value,
                Self::CLAIM_NAME => name = value,
                Self::VOLUME => read.volume = value,
                _ => return Err(SpecError::UnknownParameter(key.clone())),
            }
        }
        read.claim = match (namespace, name) {
            (Some(namespace), Some(name)) => Some(ClaimName { namespace, name }),
            (None, None) => None,
            (Some(_), None) => return Err(half("namespace", "name")),
            (None, Some(_)) => return Err(half("name", "namespace")),
        };
        Ok(read)
    }
}

fn half(given: &'static str, missing: &'static str) -> SpecError {
    SpecError::HalfAClaim { given, missing }
}

/// What the volume is filled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentSource {
    /// The snapshot of this id.
    Snapshot(String),
    /// The volume of this id.
    Volume(String),
}

/// What a volume was asked to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// How large.
    pub size: SizeRange,
    /// For whom and how.
    pub capabilities: Capabilities,
    /// By which class.
    pub parameters: Parameters,
    /// Filled with what.
    pub source: Option<ContentSource>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

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
    fn a_size_is_always_asked_for() {
        let request = |required, limit| SizeRange::new(required, limit).unwrap().request();
        assert_eq!(request(5, 0), 5);
        assert_eq!(request(0, 0), DEFAULT_SIZE);
        assert_eq!(request(0, 7), 7);
        assert_eq!(request(0, i64::MAX), DEFAULT_SIZE);
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(matches!(SizeRange::new(-1, 0), Err(SpecError::NegativeSize(_))));
        assert!(matches!(SizeRange::new(0, -1), Err(SpecError::NegativeSize(_))));
        assert!(matches!(SizeRange::new(9, 8), Err(SpecError::EmptyRange { .. })));
    }

    proptest! {
        #[test]
        fn what_is_asked_for_answers_the_request(required: i64, limit: i64) {
            if let Ok(range) = SizeRange::new(required, limit) {
                prop_assert!(range.accepts(range.request()));
                prop_assert!(range.request() > 0);
            }
        }
    }

    #[test]
    fn several_modes_make_one_volume() {
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
    fn a_volume_serves_what_it_was_made_for() {
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
    fn access_modes_are_spelled_as_kubernetes_does() {
        for mode in AccessMode::ALL {
            assert_eq!(mode.as_str().parse(), Ok(mode));
        }
        assert!("RWO".parse::<AccessMode>().is_err());
    }

    fn parse(pairs: &[(&str, &str)]) -> Result<Parameters, SpecError> {
        let map: BTreeMap<String, String> = pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Parameters::parse(&map)
    }

    #[test]
    fn parameters_name_class_and_claim() {
        let read = parse(&[
            ("realStorageClass", "fast"),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
            ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ])
        .unwrap();
        assert_eq!(read.real_class.as_deref(), Some("fast"));
        assert_eq!(read.claim.unwrap().to_string(), "shop/data");
        assert_eq!(read.volume.as_deref(), Some("pvc-1"));
        assert_eq!(parse(&[]).unwrap(), Parameters::default());
    }

    #[test]
    fn unknown_or_broken_parameters_are_named() {
        assert_eq!(
            parse(&[("realStorageclass", "x")]),
            Err(SpecError::UnknownParameter("realStorageclass".into()))
        );
        assert_eq!(
            parse(&[("realStorageClass", "")]),
            Err(SpecError::EmptyParameter(Parameters::REAL_CLASS))
        );
        assert!(matches!(
            parse(&[("csi.storage.k8s.io/pvc/name", "data")]),
            Err(SpecError::HalfAClaim {
                missing: "namespace",
                ..
            })
        ));
    }
}
