//! How the twin of a volume is. There is one name for each state: in events, in the condition
//! of the claim, in metrics, and in commands, which show more states of claims than these.

/// How far a claim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It waits for its PV.
    Pending,
    /// It has its PV.
    Bound,
    /// Its PV is gone.
    Lost,
}

impl Phase {
    /// Reads `status.phase` of a claim; what it does not say is pending.
    #[must_use]
    pub fn read(phase: Option<&str>) -> Self {
        match phase {
            Some("Bound") => Self::Bound,
            Some("Lost") => Self::Lost,
            _ => Self::Pending,
        }
    }
}

/// What the diagnosis of a volume rests on: its twin, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwinHealth {
    /// Whether it is being deleted.
    pub deleting: bool,
    /// How far it is.
    pub phase: Phase,
    /// Whether it names its PV.
    pub has_volume: bool,
}

/// How a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Diagnosis {
    /// All is well.
    Bound,
    /// Its twin is not bound (yet): in another cluster, before its pod arrives there.
    Pending,
    /// It is being deleted or released, or no claim uses it: what happens to its twin is intended.
    Ending,
    /// A move has its twin: that is the move's to see to.
    Moving,
    /// Its cluster cannot be asked.
    Unreachable,
    /// It has moved, and its PV is that of before: a cluster restored from a backup.
    Superseded,
    /// Somebody else deletes its twin.
    Terminating,
    /// It has no twin.
    Vanished,
    /// Its twin was made again, and does not have its PV yet.
    Returning,
    /// Its twin has lost its PV.
    Lost,
}

impl Diagnosis {
    /// All of them.
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

    /// Its name: reason of events and conditions, label of metrics, state in commands.
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

    /// The diagnosis of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Status of the condition that says whether the twin can be used.
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

/// Says how a volume in use is by its twin; `None` if it has none.
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
    fn each_has_a_name_of_its_own() {
        for one in Diagnosis::ALL {
            assert_eq!(Diagnosis::named(one.name()), Some(one));
        }
        assert_eq!(Diagnosis::named("Bound"), None);
    }

    #[test]
    fn a_volume_is_as_its_twin_is() {
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
