//! The states of volumes, as commands name them.

use serde::{Serialize, Serializer};

use crate::placement::Diagnosis;

/// The state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Usable.
    Bound,
    /// Nobody uses the claim yet.
    Waiting,
    /// Something has to happen first.
    Pending,
    /// The claim is on its way out, or the data is.
    Deleting,
    /// The claim is gone, the data is kept on purpose.
    Retained,
    /// A twin that never served; the driver collects it.
    Abandoned,
    /// A twin that served, without claim and PV; nobody but people may delete it.
    Orphaned,
    /// The twin serves another home cluster.
    Guest,
    /// The claim's volume is not of this driver.
    Foreign,
    /// The claim lost its PV.
    Lost,
    /// No node is where the data is.
    Unreachable,
    /// It may not be read.
    Unknown,
    /// Something is wrong with the twin.
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

    /// All that a volume can have: those without a diagnosis of the twin, then those of claims that are
    /// bound. A twin that is well, or is meant to go, is no state of its own.
    pub(crate) fn all() -> [Vec<Self>; 2] {
        let is_state = |one: &Diagnosis| !matches!(one, Diagnosis::Bound | Diagnosis::Ending);
        let twins = Diagnosis::ALL.into_iter().filter(is_state).map(Self::Twin);
        [Self::WITHOUT_TWIN.to_vec(), twins.collect()]
    }

    /// As commands show it.
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

/// A state, what it means, and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) state: State,
    /// Empty when all is well.
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
