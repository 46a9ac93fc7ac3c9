//! The epoch of a volume: part of its id, and on its twins.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// How often a volume has moved. Two twins of one volume never have the same epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(u32);

/// A text that is not an epoch in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an epoch of a volume")]
pub struct EpochError(String);

impl Epoch {
    /// The epoch of a volume that has never moved.
    pub const NEVER_MOVED: Self = Self(0);

    /// The epoch after one more move; `None` on overflow.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

impl FromStr for Epoch {
    type Err = EpochError;

    fn from_str(text: &str) -> Result<Self, EpochError> {
        let parsed = text.parse().ok().map(Self);
        // `+1` and `01` are not canonical.
        let canonical = parsed.filter(|epoch| epoch.to_string() == text);
        canonical.ok_or_else(|| EpochError(text.to_owned()))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_only_increase_and_never_wrap() {
        let first = Epoch::NEVER_MOVED.next().unwrap();
        assert_eq!(first.to_string(), "1");
        assert!(Epoch::NEVER_MOVED < first);
        let last: Epoch = u32::MAX.to_string().parse().unwrap();
        assert_eq!(last.next(), None);
    }

    #[test]
    fn an_epoch_has_one_textual_form() {
        for epoch in ["0", "7", "4294967295"] {
            assert_eq!(epoch.parse::<Epoch>().unwrap().to_string(), epoch);
        }
        for wrong in ["", "01", "+1", "-1", "x", "4294967296"] {
            assert!(wrong.parse::<Epoch>().is_err(), "{wrong}");
        }
    }
}
