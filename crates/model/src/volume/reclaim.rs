use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What happens to the data of a deleted claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReclaimPolicy {
    /// It is deleted.
    Delete,
    /// It is kept.
    Retain,
}

/// A reclaim policy that no volume of this driver has, such as `Recycle`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither Delete nor Retain")]
pub struct UnknownPolicy(String);

impl ReclaimPolicy {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Retain => "Retain",
        }
    }
}

impl FromStr for ReclaimPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            "Delete" => Ok(Self::Delete),
            "Retain" => Ok(Self::Retain),
            _ => Err(UnknownPolicy(text.to_owned())),
        }
    }
}

impl fmt::Display for ReclaimPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaim_policies_survive_the_round_trip() {
        for policy in [ReclaimPolicy::Delete, ReclaimPolicy::Retain] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            let json = serde_json::to_value(policy).unwrap();
            assert_eq!(json, policy.as_str());
        }
        assert!("Recycle".parse::<ReclaimPolicy>().is_err());
    }
}
