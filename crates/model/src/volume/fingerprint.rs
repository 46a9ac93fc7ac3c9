//! Fingerprint of a request: whether a repeated `CreateVolume` is about the same volume, and if not, what
//! changed. Kept in an annotation of the twin.
//!
//! Size, capabilities, content source and parameters count. Topology does not: after rescheduling, the same
//! volume is requested for another node.

use std::{fmt, str::FromStr};

use super::{ContentSource, VolumeMode, VolumeSpec, digest::digest};

const VERSION: &str = "v1";
const DIGITS: usize = 16;

/// One part of a request that may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Required size or limit.
    Size,
    /// Access modes, volume mode, file system type or mount flags.
    Capabilities,
    /// Snapshot or volume to copy.
    Source,
    /// Parameters of the virtual class.
    Parameters,
}

impl Part {
    const ALL: [Self; 4] = [Self::Size, Self::Capabilities, Self::Source, Self::Parameters];
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size => "size",
            Self::Capabilities => "capabilities",
            Self::Source => "content source",
            Self::Parameters => "class parameters",
        })
    }
}

/// One digest for each part, so that a difference can be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint([String; 4]);

/// An annotation that is not a fingerprint of the version that this driver writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a request fingerprint of version {VERSION}")]
pub struct FingerprintError(String);

impl Fingerprint {
    #[must_use]
    pub fn of(spec: &VolumeSpec) -> Self {
        Self(Part::ALL.map(|part| {
            let facts = match part {
                Part::Size => size(spec),
                Part::Capabilities => capabilities(spec),
                Part::Source => source(spec),
                // Excluded: the claim, which the volume's name identifies; the binding policy, which does not
                // change the volume; the restore topology, which is topology; the attributes class, which may
                // change at any time.
                Part::Parameters => spec.parameters.real_class.iter().cloned().collect(),
            };
            digest(DIGITS, facts.iter().map(String::as_str))
        }))
    }

    /// The parts in which two requests differ; empty if they are for the same volume.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<Part> {
        Part::ALL
            .into_iter()
            .zip(self.0.iter().zip(&other.0))
            .filter(|(_, (ours, theirs))| ours != theirs)
            .map(|(part, _)| part)
            .collect()
    }
}

fn size(spec: &VolumeSpec) -> Vec<String> {
    vec![
        spec.size.required().to_string(),
        spec.size.limit().unwrap_or_default().to_string(),
    ]
}

fn capabilities(spec: &VolumeSpec) -> Vec<String> {
    let asked = &spec.capabilities;
    let mode = match asked.volume_mode() {
        VolumeMode::Filesystem => "filesystem",
        VolumeMode::Block => "block",
    };
    let mut facts = vec![mode.to_owned(), asked.fs_type().unwrap_or_default().to_owned()];
    facts.push(asked.access_modes().len().to_string());
    facts.extend(asked.access_modes().iter().map(ToString::to_string));
    facts.extend(asked.mount_flags().iter().cloned());
    facts
}

fn source(spec: &VolumeSpec) -> Vec<String> {
    match &spec.source {
        None => Vec::new(),
        Some(ContentSource::Snapshot(id)) => vec!["snapshot".to_owned(), id.clone()],
        Some(ContentSource::Volume(id)) => vec!["volume".to_owned(), id.clone()],
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}:{}", self.0.join(":"))
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let parts: Vec<&str> = text.split(':').collect();
        match parts.as_slice() {
            [VERSION, size, capabilities, source, parameters] => Ok(Self(
                [size, capabilities, source, parameters].map(|part| (*part).to_owned()),
            )),
            _ => Err(FingerprintError(text.chars().take(100).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{Access, AccessMode, Capabilities, Capability, ClaimName, Parameters, SizeRange};

    fn spec() -> VolumeSpec {
        VolumeSpec {
            size: SizeRange::new(5, 0).unwrap(),
            capabilities: mounted(&[AccessMode::ReadWriteOnce], "ext4", &[]),
            parameters: Parameters::default(),
            source: None,
            attributes: None,
        }
    }

    fn mounted(modes: &[AccessMode], fs_type: &str, flags: &[&str]) -> Capabilities {
        Capabilities::new(modes.iter().map(|&mode| Capability {
            mode,
            access: Access::Mount {
                fs_type: Some(fs_type.to_owned()),
                flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_fingerprint_depends_on_every_part_of_the_request() {
        use AccessMode::{ReadOnlyMany, ReadWriteOnce};
        let changed = |change: &dyn Fn(&mut VolumeSpec)| {
            let mut other = spec();
            change(&mut other);
            Fingerprint::of(&spec()).differences(&Fingerprint::of(&other))
        };
        assert_eq!(changed(&|_| ()), []);
        assert_eq!(changed(&|s| s.size = SizeRange::new(6, 0).unwrap()), [Part::Size]);
        assert_eq!(changed(&|s| s.size = SizeRange::new(5, 5).unwrap()), [Part::Size]);
        for capabilities in [
            mounted(&[ReadOnlyMany], "ext4", &[]),
            mounted(&[ReadWriteOnce, ReadOnlyMany], "ext4", &[]),
            mounted(&[ReadWriteOnce], "xfs", &[]),
            mounted(&[ReadWriteOnce], "ext4", &["ro"]),
            Capabilities::new([Capability {
                mode: ReadWriteOnce,
                access: Access::Block,
            }])
            .unwrap(),
        ] {
            assert_eq!(
                changed(&|s| s.capabilities = capabilities.clone()),
                [Part::Capabilities]
            );
        }
        for source in [
            ContentSource::Snapshot("a".into()),
            ContentSource::Volume("a".into()),
        ] {
            assert_eq!(changed(&|s| s.source = Some(source.clone())), [Part::Source]);
        }
        assert_eq!(
            changed(&|s| {
                s.parameters.real_class = Some("fast".into());
                s.size = SizeRange::new(1, 0).unwrap();
            }),
            [Part::Size, Part::Parameters]
        );
    }

    #[test]
    fn a_fingerprint_does_not_depend_on_the_claim_name() {
        let mut other = spec();
        other.parameters.claim = Some(ClaimName {
            namespace: "n".into(),
            name: "c".into(),
        });
        assert_eq!(Fingerprint::of(&spec()), Fingerprint::of(&other));
    }

    #[test]
    fn a_fingerprint_survives_the_annotation() {
        let fingerprint = Fingerprint::of(&spec());
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        for text in ["", "v1", "v2:a:b:c:d", "v1:a:b:c", "v1:a:b:c:d:e"] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
    }

    /// A changed digest would turn every retried request into one for another volume after an upgrade: bump
    /// the version instead.
    #[test]
    fn the_text_of_fingerprint_version_1_never_changes() {
        assert_eq!(
            Fingerprint::of(&spec()).to_string(),
            "v1:bf2338a1adb3fa14:6fb41d51c41b4543:e3b0c44298fc1c14:e3b0c44298fc1c14"
        );
    }
}
