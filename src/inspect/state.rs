//! The states of volumes, as commands name them.

use serde::{Serialize, Serializer};

use crate::placement::Diagnosis;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Usable.
    Bound,
    /// No pod uses the claim yet.
    Waiting,
    /// Something else has to happen first.
    Pending,
    /// The claim or the data is being deleted.
    Deleting,
    /// The claim is gone; the data is kept because of the policy Retain.
    Retained,
    /// A twin that was never handed over; the driver deletes it.
    Abandoned,
    /// A twin that was handed over and has neither claim nor PV; the driver never deletes it.
    Orphaned,
    /// The twin serves another home cluster.
    Guest,
    /// The claim's volume belongs to another driver.
    Foreign,
    /// The claim lost its PV.
    Lost,
    /// No node can reach the data.
    Unreachable,
    /// It could not be read.
    Unknown,
    /// The twin has a problem.
    Twin(Diagnosis),
}

impl State {
    const WITHOUT_TWIN: [Self; 12] = [
        Self::Bound,
        Self::Waiting,
        Self::Pending,
        Self::Deleting,
        Self::Retained,
        Self::Abandoned,
        Self::Orphaned,
        Self::Guest,
        Self::Foreign,
        Self::Lost,
        Self::Unreachable,
        Self::Unknown,
    ];

    /// All states of volumes: first those without a diagnosis of the twin, then those of bound
    /// claims. It omits the diagnoses that commands do not show: a bound twin, and one whose
    /// deletion is intended.
    pub(crate) fn all() -> [Vec<Self>; 2] {
        let is_state = |one: &Diagnosis| !matches!(one, Diagnosis::Bound | Diagnosis::Ending);
        let twins = Diagnosis::ALL.into_iter().filter(is_state).map(Self::Twin);
        [Self::WITHOUT_TWIN.to_vec(), twins.collect()]
    }

    /// The name that commands print.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bound => "Bound",
            Self::Waiting => "Waiting",
            Self::Pending => "Pending",
            Self::Deleting => "Deleting",
            Self::Retained => "Retained",
            Self::Abandoned => "Abandoned",
            Self::Orphaned => "Orphaned",
            Self::Guest => "Guest",
            Self::Foreign => "Foreign",
            Self::Lost => "Lost",
            Self::Unreachable => "Unreachable",
            Self::Unknown => "Unknown",
            Self::Twin(diagnosis) => diagnosis.name(),
        }
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A state, the reason, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) state: State,
    /// Empty if there is no problem.
    pub(super) message: String,
    pub(super) advice: String,
}

impl Health {
    pub(super) fn fine(state: State) -> Self {
        Self::new(state, "", "")
    }

    pub(super) fn new(state: State, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            state,
            message: message.into(),
            advice: advice.into(),
        }
    }
}
