//! How far a move is, for people: the phase and the conditions of a `VolumeMove`. What is done
//! next does not rest on them.

use std::{fmt, str::FromStr};

/// The phase of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is being looked at what speaks against it.
    Checking,
    /// The claims are locked, twins and movers at the target are being made.
    Preparing,
    /// Data is copied while it is in use.
    Copying,
    /// What was copied is so close that the users can be sent away.
    Ready,
    /// The users go.
    Draining,
    /// What they wrote last is copied and compared.
    Finishing,
    /// The volume is at the target, and its users are given it there.
    Committing,
    /// They have it. The source is kept for a time.
    Retaining,
    /// The users are given the volume back where it was.
    Returning,
    /// It has moved.
    Done,
    /// Somebody cancelled it, and the volume is where it was.
    Cancelled,
    /// It could not be done, and the volume is where it was.
    Failed,
    /// The target was lost after the commit: the source is being recovered.
    Recovering,
    /// The source was recovered.
    Recovered,
}

/// A condition of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing speaks against it.
    Checked,
    /// The last pass found little to copy.
    Converged,
    /// Kubernetes starts no pod with the volume.
    Gated,
    /// Nobody uses it, for the gate of this number.
    Drained,
    /// Both sides hold the same, for the gate of this number.
    Verified,
    /// The volume is at the target.
    Committed,
    /// The source has its own reclaim policy back.
    SourceReleased,
    /// Nothing has happened for two minutes.
    Stalled,
}

/// A text that is the name of neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no phase and no condition of a move that this driver knows")]
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

    /// Its name in the status.
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

    /// Its type in the status.
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
    fn names_are_read_back() {
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
