//! From where a snapshot can be restored, as virtual classes can specify.

use std::str::FromStr;

use super::SpecError;

/// Where the volumes of a snapshot can be provisioned. Without this parameter it is the only node that the
/// snapshot's volume was accessible from, or else its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreTopology {
    /// Anywhere in its cluster, although the volume was accessible from fewer nodes.
    Cluster,
    /// Where the volume was accessible.
    Source,
}

impl RestoreTopology {
    const ALL: [Self; 2] = [Self::Cluster, Self::Source];

    /// The value of the parameter.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Source => "source",
        }
    }
}

impl FromStr for RestoreTopology {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::ALL
            .into_iter()
            .find(|topology| topology.as_str() == text)
            .ok_or_else(|| SpecError::UnknownRestoreTopology(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restore_topologies_survive_the_round_trip() {
        for topology in RestoreTopology::ALL {
            assert_eq!(topology.as_str().parse(), Ok(topology));
        }
        assert!("Cluster".parse::<RestoreTopology>().is_err());
    }
}
