//! The health of a volume's twin. Each state has one name: in events, in the condition of the claim, in
//! metrics, and in commands, which show further states of claims.

/// The phase of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Bound,
    /// Its PV was deleted.
    Lost,
}

impl Phase {
    /// Parses `status.phase` of a claim; an unknown value is pending.
    #[must_use]
    pub fn read(phase: Option<&str>) -> Self {
        match phase {
            Some("Bound") => Self::Bound,
            Some("Lost") => Self::Lost,
            _ => Self::Pending,
        }
    }
}

/// The twin, the input of the diagnosis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwinHealth {
    /// Whether it is being deleted.
    pub deleting: bool,
    pub phase: Phase,
    /// Whether it names its PV.
    pub has_volume: bool,
}

/// The health of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Diagnosis {
    /// The twin is bound.
    Bound,
    /// Its twin is not bound (yet): in a remote cluster, until its pod is created there.
    Pending,
    /// It is being deleted or released, or no claim uses it: what happens to its twin is intended.
    Ending,
    /// Its twin belongs to a move, which takes care of it.
    Moving,
    Unreachable,
    /// It has moved, but its PV is from before the move: the home cluster was restored from a backup.
    Superseded,
    /// Another client deletes its twin.
    Terminating,
    Vanished,
    /// Its twin was created again, and does not have its PV yet.
    Returning,
    /// Its twin has lost its PV.
    Lost,
}

impl Diagnosis {
    pub const ALL: [Self; 10] = [
        Self::Bound,
        Self::Pending,
        Self::Ending,
        Self::Moving,
        Self::Unreachable,
        Self::Superseded,
        Self::Terminating,
        Self::Vanished,
        Self::Returning,
        Self::Lost,
    ];

    /// Reason of events and conditions, label of metrics, state in commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bound => "TwinBound",
            Self::Pending => "TwinPending",
            Self::Ending => "Ending",
            Self::Moving => "Moving",
            Self::Unreachable => "ClusterUnreachable",
            Self::Superseded => "TwinSuperseded",
            Self::Terminating => "TwinTerminating",
            Self::Vanished => "TwinVanished",
            Self::Returning => "TwinReturning",
            Self::Lost => "TwinLost",
        }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Status of the condition for whether the twin can be used.
    #[must_use]
    pub const fn condition_status(self) -> &'static str {
        match self {
            Self::Bound | Self::Ending | Self::Moving => "True",
            Self::Unreachable => "Unknown",
            Self::Pending
            | Self::Superseded
            | Self::Terminating
            | Self::Vanished
            | Self::Returning
            | Self::Lost => "False",
        }
    }
}

/// Diagnoses a volume in use; `None` if it has no twin.
#[must_use]
pub fn diagnose(twin: Option<TwinHealth>) -> Diagnosis {
    let Some(twin) = twin else {
        return Diagnosis::Vanished;
    };
    match twin.phase {
        _ if twin.deleting => Diagnosis::Terminating,
        Phase::Bound => Diagnosis::Bound,
        Phase::Lost => Diagnosis::Lost,
        Phase::Pending if twin.has_volume => Diagnosis::Returning,
        Phase::Pending => Diagnosis::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_diagnosis_has_a_unique_name() {
        for one in Diagnosis::ALL {
            assert_eq!(Diagnosis::named(one.name()), Some(one));
        }
        assert_eq!(Diagnosis::named("Bound"), None);
    }

    #[test]
    fn the_diagnosis_follows_from_the_state_of_the_twin() {
        let twin = |deleting, phase, has_volume| {
            diagnose(Some(TwinHealth {
                deleting,
                phase,
                has_volume,
            }))
        };
        assert_eq!(diagnose(None), Diagnosis::Vanished);
        assert_eq!(twin(false, Phase::Bound, true), Diagnosis::Bound);
        assert_eq!(twin(true, Phase::Bound, true), Diagnosis::Terminating);
        assert_eq!(twin(false, Phase::Lost, true), Diagnosis::Lost);
        assert_eq!(twin(false, Phase::Pending, true), Diagnosis::Returning);
        assert_eq!(twin(false, Phase::Pending, false), Diagnosis::Pending);
    }
}
