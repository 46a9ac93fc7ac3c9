//! Identity of a snapshot: its name, and the id that CSI callers pass back to this driver. A
//! `VolumeSnapshotContent` has no attributes, so the twin must be found by the id alone.

use std::{fmt, str::FromStr};

use super::{ClusterId, digest::digest};

const ID_VERSION: &str = "s1";
/// The maximum length of an id in CSI, in bytes.
const LONGEST_ID: usize = 128;
const REQUEST_PREFIX: &str = "snapshot-";
const CONTENT_PREFIX: &str = "snapcontent-";
const KEY_DIGITS: usize = 40;
const PLACE_DIGITS: usize = 16;
const NAMESPACE_MAX: usize = 63;

/// Name of a snapshot: valid in labels, and short, because ids are limited.
///
/// csi-snapshotter requests `snapshot-<uid of the VolumeSnapshot>`, of which the uid is kept. Any other
/// request name is hashed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotKey(String);

impl SnapshotKey {
    /// The key of the snapshot for a `CreateSnapshot` request of this name.
    #[must_use]
    pub fn from_request(request: &str) -> Self {
        let uid = request.strip_prefix(REQUEST_PREFIX).filter(|uid| is_uid(uid));
        Self(uid.map_or_else(|| digest(KEY_DIGITS, [request]), str::to_owned))
    }

    /// Parses the key in a label or an id; `None` if no request results in it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        (is_uid(text) || is_hash(text, KEY_DIGITS)).then(|| Self(text.to_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the twin.
    #[must_use]
    pub fn twin(&self) -> String {
        format!("{REQUEST_PREFIX}{}", self.0)
    }

    /// Name of the content that Kubernetes created in the home cluster for the `VolumeSnapshot` with the uid
    /// in the key; `None` if the key has no uid.
    #[must_use]
    pub fn content(&self) -> Option<String> {
        is_uid(&self.0).then(|| format!("{CONTENT_PREFIX}{}", self.0))
    }
}

impl fmt::Display for SnapshotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The namespace of a snapshot's twin in its cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapshotPlace {
    /// The storage namespace of the home cluster.
    Home,
    /// This namespace of a remote cluster.
    Namespace(String),
    /// The namespace with this hash: its name is too long for an id.
    Hashed(String),
}

impl SnapshotPlace {
    /// Whether it is this namespace of a remote cluster.
    #[must_use]
    pub fn is(&self, namespace: &str) -> bool {
        match self {
            Self::Home => false,
            Self::Namespace(name) => name == namespace,
            Self::Hashed(hash) => *hash == digest(PLACE_DIGITS, [namespace]),
        }
    }
}

impl fmt::Display for SnapshotPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Home => Ok(()),
            Self::Namespace(name) => f.write_str(name),
            Self::Hashed(hash) => write!(f, "~{hash}"),
        }
    }
}

/// The `snapshot_id` of CSI.
///
/// Written `s1:<cluster id>:<namespace>:<key>`, at most 128 bytes. The namespace is empty at
/// home, and `~` with a hash where its name would make the id too long.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId {
    /// The cluster of the twin.
    pub cluster: ClusterId,
    /// Its namespace there.
    pub place: SnapshotPlace,
    pub key: SnapshotKey,
}

/// A text that is not the id of a snapshot that this driver can work with.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SnapshotIdError {
    /// No version of this driver created it: there is no such snapshot.
    #[error("no snapshot has the id {0:?}")]
    Foreign(String),
    /// Another version of this driver created it. The snapshot may exist.
    #[error(
        "the snapshot id {0:?} was created by another version of this driver and cannot be read by this one: install a version that can"
    )]
    UnknownVersion(String),
}

impl SnapshotId {
    /// The id of a snapshot whose twin is in this namespace of a remote cluster, or at home.
    #[must_use]
    pub fn new(cluster: ClusterId, namespace: Option<&str>, key: SnapshotKey) -> Self {
        let place = namespace.map_or(SnapshotPlace::Home, |name| {
            SnapshotPlace::Namespace(name.to_owned())
        });
        let id = Self { cluster, place, key };
        match namespace {
            Some(name) if id.to_string().len() > LONGEST_ID => Self {
                place: SnapshotPlace::Hashed(digest(PLACE_DIGITS, [name])),
                ..id
            },
            _ => id,
        }
    }
}

impl FromStr for SnapshotId {
    type Err = SnapshotIdError;

    fn from_str(text: &str) -> Result<Self, SnapshotIdError> {
        let shown = || text.chars().take(LONGEST_ID).collect();
        let foreign = || SnapshotIdError::Foreign(shown());
        let (version, rest) = text.split_once(':').ok_or_else(foreign)?;
        if version != ID_VERSION {
            return Err(if is_version(version) && !rest.is_empty() {
                SnapshotIdError::UnknownVersion(shown())
            } else {
                foreign()
            });
        }
        let mut parts = rest.split(':');
        let (Some(cluster), Some(place), Some(key), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(foreign());
        };
        Ok(Self {
            cluster: cluster.parse().map_err(|_| foreign())?,
            place: place_of(place).ok_or_else(foreign)?,
            key: SnapshotKey::parse(key).ok_or_else(foreign)?,
        })
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ID_VERSION}:{}:{}:{}", self.cluster, self.place, self.key)
    }
}

fn place_of(text: &str) -> Option<SnapshotPlace> {
    if text.is_empty() {
        return Some(SnapshotPlace::Home);
    }
    if let Some(hash) = text.strip_prefix('~') {
        return is_hash(hash, PLACE_DIGITS).then(|| SnapshotPlace::Hashed(hash.to_owned()));
    }
    let may_be_in = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fits = text.len() <= NAMESPACE_MAX && text.chars().all(may_be_in);
    fits.then(|| SnapshotPlace::Namespace(text.to_owned()))
}

/// Every version of the id starts like this; the rest depends on the version.
fn is_version(text: &str) -> bool {
    text.strip_prefix('s')
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Only the hyphenated lower-case form counts: any other is not a valid object name.
fn is_uid(text: &str) -> bool {
    uuid::Uuid::try_parse(text).is_ok_and(|uid| uid.hyphenated().to_string() == text)
}

fn is_hash(text: &str, digits: usize) -> bool {
    text.len() == digits && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

    #[test]
    fn the_uid_of_a_snapshot_is_its_key() {
        let key = SnapshotKey::from_request(&format!("snapshot-{UID}"));
        assert_eq!(key.as_str(), UID);
        assert_eq!(key.twin(), format!("snapshot-{UID}"));
        assert_eq!(key.content(), Some(format!("snapcontent-{UID}")));
    }

    #[test]
    fn odd_request_names_are_hashed() {
        for odd in [
            "",
            "Sanity",
            UID,
            &format!("snapshot-{}", UID.to_uppercase()),
            &"x".repeat(128),
        ] {
            let key = SnapshotKey::from_request(odd);
            assert_eq!((key.as_str().len(), key.content()), (40, None), "{odd}");
            assert_eq!(SnapshotKey::parse(key.as_str()), Some(key));
        }
        assert_ne!(SnapshotKey::from_request("a"), SnapshotKey::from_request("b"));
    }

    #[test]
    fn ids_of_other_drivers_are_no_snapshot() {
        for id in [
            "",
            "reallyfakesnapshotid",
            "s1",
            "s1:::",
            "s2",
            "s2:",
            "s:home::x",
            "v1:home:pvc-x",
            "s1:home::x",
            "s1:ho me::x",
            &format!("s1:home:A:{UID}"),
            &format!("s1:home:~x:{UID}"),
            &format!("s1:home:{UID}"),
            &format!("s1:home::{UID}:more"),
        ] {
            assert_eq!(
                id.parse::<SnapshotId>(),
                Err(SnapshotIdError::Foreign(id.to_owned()))
            );
        }
        let newer = format!("s2:home::{UID}");
        assert_eq!(
            newer.parse::<SnapshotId>(),
            Err(SnapshotIdError::UnknownVersion(newer))
        );
    }

    #[test]
    fn a_namespace_too_long_for_the_id_is_hashed() {
        let (cluster, key) = ("c".repeat(63), SnapshotKey::from_request("x"));
        let namespace = "n".repeat(63);
        let long = SnapshotId::new(cluster.parse().unwrap(), Some(&namespace), key.clone());
        assert!(matches!(long.place, SnapshotPlace::Hashed(_)));
        assert!(long.place.is(&namespace) && !long.place.is("other"));
        let short = SnapshotId::new("milan".parse().unwrap(), Some(&namespace), key);
        assert_eq!(short.place, SnapshotPlace::Namespace(namespace));
    }

    proptest! {
        #[test]
        fn ids_survive_the_round_trip(
            cluster in "[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?",
            namespace in proptest::option::of("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"),
            request in ".{0,128}",
        ) {
            let key = SnapshotKey::from_request(&request);
            let id = SnapshotId::new(cluster.parse().unwrap(), namespace.as_deref(), key);
            let text = id.to_string();
            prop_assert!(text.len() <= 128);
            prop_assert_eq!(text.parse::<SnapshotId>(), Ok(id));
        }

        #[test]
        fn no_text_makes_parsing_panic(text in "\\PC{0,200}") {
            let _ = text.parse::<SnapshotId>();
        }
    }
}
