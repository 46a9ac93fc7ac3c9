//! The phase and the conditions of a `VolumeMove`, for users. No decision is based on them.

use std::{fmt, str::FromStr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The preflight runs.
    Checking,
    /// The claims are locked, target twins and movers are being created.
    Preparing,
    /// Data is copied while pods use the volumes.
    Copying,
    /// Little is left to copy: the cut-over can start.
    Ready,
    /// The move waits until no pod or node uses the volumes.
    Draining,
    /// The last changes are copied and compared.
    Finishing,
    /// The volumes are at the target, and the claims are being bound to them.
    Committing,
    /// The claims are bound. The source is kept for `retainSource`.
    Retaining,
    /// The gates are being removed, and the volumes used at the source again.
    Returning,
    Done,
    /// It was cancelled, and the volumes are at the source.
    Cancelled,
    /// It failed, and the volumes are at the source.
    Failed,
    /// The target was lost after the commit: the source is being recovered.
    Recovering,
    Recovered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The preflight found nothing that blocks the move.
    Checked,
    /// The last pass found few changes.
    Converged,
    /// Kubernetes starts no pod with the volumes.
    Gated,
    /// No pod or node uses the volumes, under the gate of this number.
    Drained,
    /// Source and target are equal, under the gate of this number.
    Verified,
    /// The volumes are at the target.
    Committed,
    /// The source has its own reclaim policy again.
    SourceReleased,
    Stalled,
}

/// A text that is not a phase or condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a phase or condition of a move in this version of the driver")]
pub struct UnknownName(String);

impl Phase {
    const ALL: [Self; 14] = [
        Self::Checking,
        Self::Preparing,
        Self::Copying,
        Self::Ready,
        Self::Draining,
        Self::Finishing,
        Self::Committing,
        Self::Retaining,
        Self::Returning,
        Self::Done,
        Self::Cancelled,
        Self::Failed,
        Self::Recovering,
        Self::Recovered,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Checking => "Checking",
            Self::Preparing => "Preparing",
            Self::Copying => "Copying",
            Self::Ready => "Ready",
            Self::Draining => "Draining",
            Self::Finishing => "Finishing",
            Self::Committing => "Committing",
            Self::Retaining => "Retaining",
            Self::Returning => "Returning",
            Self::Done => "Done",
            Self::Cancelled => "Cancelled",
            Self::Failed => "Failed",
            Self::Recovering => "Recovering",
            Self::Recovered => "Recovered",
        }
    }
}

impl Condition {
    const ALL: [Self; 8] = [
        Self::Checked,
        Self::Converged,
        Self::Gated,
        Self::Drained,
        Self::Verified,
        Self::Committed,
        Self::SourceReleased,
        Self::Stalled,
    ];

    /// The type of the condition.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Checked => "Checked",
            Self::Converged => "Converged",
            Self::Gated => "Gated",
            Self::Drained => "Drained",
            Self::Verified => "Verified",
            Self::Committed => "Committed",
            Self::SourceReleased => "SourceReleased",
            Self::Stalled => "Stalled",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Phase {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = Self::ALL.into_iter().find(|phase| phase.as_str() == text);
        known.ok_or_else(|| UnknownName(text.to_owned()))
    }
}

impl FromStr for Condition {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = Self::ALL.into_iter().find(|condition| condition.as_str() == text);
        known.ok_or_else(|| UnknownName(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_round_trip() {
        for phase in Phase::ALL {
            assert_eq!(phase.to_string().parse(), Ok(phase));
        }
        for condition in Condition::ALL {
            assert_eq!(condition.to_string().parse(), Ok(condition));
        }
        assert!("done".parse::<Phase>().is_err());
        assert!("Done".parse::<Condition>().is_err());
    }
}
