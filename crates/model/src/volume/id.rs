//! Identity of a volume: its cluster, its name there, and the id that CSI callers pass back to this driver.

use std::{fmt, str::FromStr};

use super::{Epoch, digest::digest};

/// Maximum length of a label value; cluster ids are label values.
const LABEL_VALUE_MAX: usize = 63;
const ID_VERSION: &str = "v1";
const MOVED_VERSION: &str = "v2";
const REQUEST_PREFIX: &str = "pvc-";
const HASH_DIGITS: usize = 40;

/// Identity of a cluster, unique among the clusters that share storage.
///
/// A non-empty Kubernetes label value of at most 63 characters: the topology
/// label of every node carries it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(String);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} cannot be a cluster id: it must be 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
)]
pub struct ClusterIdError(String);

impl ClusterId {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterId {
    type Err = ClusterIdError;

    fn from_str(text: &str) -> Result<Self, ClusterIdError> {
        let ends_well = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let fits = text.len() <= LABEL_VALUE_MAX
            && ends_well(text.chars().next())
            && ends_well(text.chars().next_back())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(ClusterIdError(text.to_owned()))
        }
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name of a volume: a DNS label, valid in objects, labels and ids.
///
/// csi-provisioner requests `pvc-<claim uid>`, which is kept. Any other request name (csi-sanity uses 128
/// characters, capitals and special characters) becomes `vol-<hash>`; the original is recorded in an
/// annotation of the twin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeName(String);

impl VolumeName {
    /// The name of the volume for a `CreateVolume` request of this name.
    #[must_use]
    pub fn from_request(request: &str) -> Self {
        if claim_uid_in(request).is_some() {
            return Self(request.to_owned());
        }
        Self(format!("vol-{}", digest(HASH_DIGITS, [request])))
    }

    /// The name of csi-provisioner's request for the volume of a claim, and of its PV.
    #[must_use]
    pub fn requested_for(claim_uid: &str) -> String {
        format!("{REQUEST_PREFIX}{claim_uid}")
    }

    /// Parses the name in a label or an id; `None` if no request results in it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::is_canonical(text).then(|| Self(text.to_owned()))
    }

    /// The uid of the volume's claim, if the name contains one.
    #[must_use]
    pub fn claim_uid(&self) -> Option<&str> {
        claim_uid_in(&self.0)
    }

    /// Name of the volume's twin in its home cluster: the uid of the claim, or the volume's own name if no
    /// claim is known, followed by the epoch if it has moved there.
    #[must_use]
    pub fn home_twin(&self, epoch: Epoch) -> String {
        let name = self.claim_uid().unwrap_or(&self.0);
        if epoch == Epoch::NEVER_MOVED {
            return name.to_owned();
        }
        format!("{name}-{epoch}")
    }

    /// The inverse of [`Self::home_twin`].
    #[must_use]
    pub fn of_home_twin(twin: &str) -> Option<(Self, Epoch)> {
        let named = |name: &str| Self::parse(&Self::requested_for(name)).or_else(|| Self::parse(name));
        if let Some(volume) = named(twin) {
            return Some((volume, Epoch::NEVER_MOVED));
        }
        let (name, epoch) = twin.rsplit_once('-')?;
        let epoch: Epoch = epoch.parse().ok()?;
        Some((named(name)?, epoch)).filter(|_| epoch > Epoch::NEVER_MOVED)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn is_canonical(text: &str) -> bool {
        let hashed = text.strip_prefix("vol-").is_some_and(|hex| {
            hex.len() == HASH_DIGITS && hex.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
        });
        hashed || claim_uid_in(text).is_some()
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Only the hyphenated lower-case form counts: any other is not a valid object name.
fn claim_uid_in(request: &str) -> Option<&str> {
    let uid = request.strip_prefix(REQUEST_PREFIX)?;
    let parsed = uuid::Uuid::try_parse(uid).ok()?;
    (parsed.hyphenated().to_string() == uid).then_some(uid)
}

/// The `volume_id` of CSI, which is also the `volumeHandle` of the virtual PV: the cluster of the twin, the
/// volume's name, and its epoch. By the epoch this driver recognises the id of a node or a restored cluster
/// that does not know about a move.
///
/// Written `v1:<cluster id>:<volume name>`, at most 111 bytes (CSI allows 128), as long as the
/// volume has never moved; `v2:<cluster id>:<volume name>:<epoch>`, at most 122 bytes, after that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId {
    /// The cluster of the twin.
    pub cluster: ClusterId,
    /// The volume's name, the same in every cluster.
    pub name: VolumeName,
    pub epoch: Epoch,
}

impl VolumeId {
    /// The id of a volume that has never moved.
    #[must_use]
    pub fn never_moved(cluster: ClusterId, name: VolumeName) -> Self {
        Self {
            cluster,
            name,
            epoch: Epoch::NEVER_MOVED,
        }
    }
}

/// A text that is not the id of a volume that this driver can work with.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum VolumeIdError {
    /// No version of this driver created it. There is no such volume: `NOT_FOUND`, or success where the call
    /// removes something.
    #[error("no volume has the id {0:?}")]
    Foreign(String),
    /// Another version of this driver created it. The volume may exist.
    #[error(
        "the volume id {0:?} was created by another version of this driver and cannot be read by this one: install a version that can"
    )]
    UnknownVersion(String),
}

impl FromStr for VolumeId {
    type Err = VolumeIdError;

    fn from_str(text: &str) -> Result<Self, VolumeIdError> {
        let shown = || text.chars().take(128).collect();
        let foreign = || VolumeIdError::Foreign(shown());
        let (version, rest) = text.split_once(':').ok_or_else(foreign)?;
        let (rest, epoch) = match version {
            ID_VERSION => (rest, Epoch::NEVER_MOVED),
            MOVED_VERSION => moved(rest).ok_or_else(foreign)?,
            other if is_version(other) && !rest.is_empty() => {
                return Err(VolumeIdError::UnknownVersion(shown()));
            }
            _ => return Err(foreign()),
        };
        let (cluster, name) = rest.split_once(':').ok_or_else(foreign)?;
        let cluster = cluster.parse().map_err(|_| foreign())?;
        let name = VolumeName::parse(name).ok_or_else(foreign)?;
        Ok(Self { cluster, name, epoch })
    }
}

/// Splits the epoch from the id of a volume that has moved.
fn moved(rest: &str) -> Option<(&str, Epoch)> {
    let (rest, epoch) = rest.rsplit_once(':')?;
    let epoch: Epoch = epoch.parse().ok()?;
    (epoch > Epoch::NEVER_MOVED).then_some((rest, epoch))
}

/// Every version of the id starts like this; the rest depends on the version.
fn is_version(text: &str) -> bool {
    text.strip_prefix('v')
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, name, epoch } = self;
        if *epoch == Epoch::NEVER_MOVED {
            return write!(f, "{ID_VERSION}:{cluster}:{name}");
        }
        write!(f, "{MOVED_VERSION}:{cluster}:{name}:{epoch}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLAIM: &str = "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

    #[test]
    fn a_claims_request_name_is_kept() {
        let name = VolumeName::from_request(CLAIM);
        assert_eq!(name.as_str(), CLAIM);
        assert_eq!(name.claim_uid(), Some("0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111"));
    }

    #[test]
    fn odd_request_names_are_hashed() {
        for odd in [
            "",
            "Sanity-VOLUME",
            "pvc-0C4F3F2E-8A51-4F0E-9F0F-0D2C7EF1A111",
            &"x".repeat(128),
        ] {
            let name = VolumeName::from_request(odd);
            assert_eq!(name.as_str().len(), 44, "{odd}");
            assert_eq!(name.claim_uid(), None);
        }
        assert_ne!(VolumeName::from_request("a"), VolumeName::from_request("b"));
    }

    #[test]
    fn malformed_and_foreign_volume_ids_are_reported_as_foreign() {
        for id in [
            "",
            "fake-vol-id",
            "v1",
            "v1::",
            "v2",
            "v2:",
            "v:home:pvc-x",
            "v2x:home:pvc-x",
            "1:home:pvc-x",
            "v1:home:pvc-x",
            "v1:ho me:vol-00",
            &format!("v1:home:{CLAIM}:more"),
            &format!("v2:home:{CLAIM}"),
            &format!("v2:home:{CLAIM}:"),
            &format!("v2:home:{CLAIM}:0"),
            &format!("v2:home:{CLAIM}:01"),
            &format!("v2:home:{CLAIM}:1:2"),
            "v2:home:pvc-x:1",
        ] {
            let parsed = id.parse::<VolumeId>();
            assert_eq!(parsed, Err(VolumeIdError::Foreign(id.to_owned())));
        }
    }

    #[test]
    fn ids_of_unknown_versions_are_not_reported_as_foreign() {
        for id in ["v3:home:pvc-x", &format!("v3:home:{CLAIM}:7:x"), "v10:x", "v0:x"] {
            let parsed = id.parse::<VolumeId>();
            assert_eq!(parsed, Err(VolumeIdError::UnknownVersion(id.to_owned())));
        }
    }

    #[test]
    fn a_volume_that_never_moved_keeps_its_id() {
        let text = format!("v1:home:{CLAIM}");
        let id: VolumeId = text.parse().unwrap();
        assert_eq!(id.epoch, Epoch::NEVER_MOVED);
        assert_eq!(id.to_string(), text);
    }

    #[test]
    fn every_epoch_has_a_twin_of_its_own_at_home() {
        let second: Epoch = "2".parse().unwrap();
        let names = [
            VolumeName::from_request(CLAIM),
            VolumeName::from_request("sanity"),
        ];
        for name in names {
            let never_moved = name.home_twin(Epoch::NEVER_MOVED);
            assert_eq!(never_moved, name.claim_uid().unwrap_or(name.as_str()));
            let moved = name.home_twin(second);
            assert_eq!(moved, format!("{never_moved}-2"));
            for (twin, epoch) in [(never_moved, Epoch::NEVER_MOVED), (moved, second)] {
                assert_eq!(VolumeName::of_home_twin(&twin), Some((name.clone(), epoch)));
            }
        }
        for no_twin in [
            "",
            "data",
            "data-1",
            &CLAIM["pvc-".len()..CLAIM.len() - 1],
            &format!("{CLAIM}-0"),
        ] {
            assert_eq!(VolumeName::of_home_twin(no_twin), None, "{no_twin}");
        }
    }

    proptest! {
        #[test]
        fn ids_survive_the_round_trip(
            cluster in "[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?", request in ".{0,128}", epoch in any::<u32>(),
        ) {
            let name = VolumeName::from_request(&request);
            let epoch = epoch.to_string().parse().unwrap();
            let id = VolumeId { cluster: cluster.parse().unwrap(), name, epoch };
            let text = id.to_string();
            prop_assert!(text.len() <= 128);
            prop_assert_eq!(text.parse::<VolumeId>(), Ok(id));
        }

        #[test]
        fn no_text_makes_parsing_panic(text in "\\PC{0,200}") {
            let _ = text.parse::<VolumeId>();
        }
    }
}
