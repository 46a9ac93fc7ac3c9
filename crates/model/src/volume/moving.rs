//! What a move writes on the virtual PV (`gate`), on both twins (`twin`), and in the status of the
//! `VolumeMove` (`record`, `phase`). All of it is parsed here, into types that cannot contradict themselves;
//! what cannot be parsed is an error, never absence.
//!
//! The next step is decided in `placement::moving`. All operations and loops read the marks on twins and
//! virtual PVs; the crate `moves` writes them.

mod gate;
mod phase;
mod record;
mod twin;

use std::{fmt, num::NonZeroU64, str::FromStr};

use serde::{Deserialize, Serialize};

pub use gate::{GateNote, Touch, VolumeMark, is_gated};
pub use phase::{Condition, Phase};
pub use record::{
    CommitRecord, MANIFEST_MAX, Manifest, MoveRecordError, MovedClaim, SourceRecord, TwinReference,
};
pub use twin::{SourceMark, TargetMark, TwinMarkError, TwinMarks, epoch_mark, epoch_of};

/// The uid of a `VolumeMove`. The name does not identify it, because names are reused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MoveUid(String);

/// A text that is not the uid of a move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the uid of a move: Kubernetes writes it as 36 lower-case letters, digits and hyphens")]
pub struct MoveUidError(String);

impl MoveUid {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for MoveUid {
    type Error = MoveUidError;

    fn try_from(text: String) -> Result<Self, MoveUidError> {
        let is_canonical =
            uuid::Uuid::try_parse(&text).is_ok_and(|parsed| parsed.hyphenated().to_string() == text);
        if is_canonical {
            Ok(Self(text))
        } else {
            Err(MoveUidError(text))
        }
    }
}

impl FromStr for MoveUid {
    type Err = MoveUidError;

    fn from_str(text: &str) -> Result<Self, MoveUidError> {
        Self::try_from(text.to_owned())
    }
}

impl From<MoveUid> for String {
    fn from(uid: MoveUid) -> Self {
        uid.0
    }
}

impl fmt::Display for MoveUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of a gate: a move may try the cut-over several times, and results are valid for one attempt
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GateNumber(NonZeroU64);

impl GateNumber {
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// The number of the next gate. At a million gates per second the numbers last for 500 000 years.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl FromStr for GateNumber {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl fmt::Display for GateNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";

    #[test]
    fn a_move_uid_must_have_the_form_that_kubernetes_writes() {
        assert_eq!(UID.parse::<MoveUid>().unwrap().to_string(), UID);
        for wrong in ["", "m1", &UID.to_uppercase(), &UID.replace('-', "")] {
            assert!(wrong.parse::<MoveUid>().is_err(), "{wrong}");
            assert!(serde_json::from_value::<MoveUid>(wrong.into()).is_err());
        }
    }

    #[test]
    fn gate_numbers_start_at_one() {
        assert_eq!(GateNumber::FIRST.to_string(), "1");
        assert!(GateNumber::FIRST < GateNumber::FIRST.next());
        assert!("0".parse::<GateNumber>().is_err());
        assert!(serde_json::from_str::<GateNumber>("0").is_err());
    }
}
