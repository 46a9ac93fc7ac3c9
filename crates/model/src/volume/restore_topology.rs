//! From where a snapshot can be restored, as a virtual class may say.

use std::str::FromStr;

use super::SpecError;

/// From where the volumes of a snapshot can be made. Without this word of a class it is the
/// node that alone could reach the volume it is of, or else its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreTopology {
    /// Anywhere in its cluster, although the volume could be reached from fewer nodes.
    Cluster,
    /// Where the volume could be reached.
    Source,
}

impl RestoreTopology {
    const ALL: [Self; 2] = [Self::Cluster, Self::Source];

    /// As classes spell it.
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
    fn topologies_have_names() {
        for topology in RestoreTopology::ALL {
            assert_eq!(topology.as_str().parse(), Ok(topology));
        }
        assert!("Cluster".parse::<RestoreTopology>().is_err());
    }
}
