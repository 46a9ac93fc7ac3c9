use std::{fmt, str::FromStr};

/// The rights of the identity in a remote cluster, as the chart there names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Twins in every namespace, and namespaces with pods in them for the fabric.
    Fabric,
    /// Twins in every namespace.
    Full,
    /// Twins in the namespaces that are listed; what is chosen from is read everywhere.
    Namespaced,
    /// Twins in the namespaces that are listed, and nothing else.
    Minimal,
}

/// There is no such level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no level: it is fabric, full, namespaced or minimal")]
pub struct LevelError(String);

impl Level {
    /// All of them, the one with most rights first.
    pub const ALL: [Self; 4] = [Self::Fabric, Self::Full, Self::Namespaced, Self::Minimal];

    /// As the chart and the command line name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fabric => "fabric",
            Self::Full => "full",
            Self::Namespaced => "namespaced",
            Self::Minimal => "minimal",
        }
    }

    /// Whether its namespaces are listed.
    #[must_use]
    pub const fn is_listed(self) -> bool {
        matches!(self, Self::Namespaced | Self::Minimal)
    }

    /// What the identity may do there, in a few words.
    #[must_use]
    pub const fn may(self) -> &'static [&'static str] {
        match self {
            Self::Fabric => &[
                "make claims and snapshots in every namespace",
                "make and delete namespaces that bear the labels of this home cluster, and in these run pods without \
                 privileges, with their ConfigMaps, Secrets and Services",
                "read classes, nodes and room, and set the reclaim policy of volumes",
            ],
            Self::Full => &[
                "make claims and snapshots in every namespace",
                "read classes, nodes and room, and set the reclaim policy of volumes",
            ],
            Self::Namespaced => &[
                "make claims and snapshots in the listed namespaces",
                "read classes, nodes and room, and set the reclaim policy of volumes",
                "read claims by their name and patch them everywhere, to let those of a deleted namespace go",
            ],
            Self::Minimal => &["make claims in the listed namespaces"],
        }
    }

    /// What it may not do there.
    #[must_use]
    pub const fn may_not(self) -> &'static [&'static str] {
        match self {
            Self::Fabric => &[
                "touch pods, Secrets or ConfigMaps in any other namespace, nor any namespace that is not of this home cluster",
                "run privileged pods, or pods with hostPath volumes or the network of their node",
                "ask for tokens that outlive its session",
            ],
            Self::Full => &[
                "make namespaces or pods, or read Secrets; so no pods run there by the fabric, and no volumes move there",
                "ask for tokens that outlive its session",
            ],
            Self::Namespaced => &[
                "make claims elsewhere, make namespaces or pods, or read Secrets",
                "ask for tokens that outlive its session",
            ],
            Self::Minimal => &[
                "read anything outside of them: classes have to be named, and the data of twins that somebody deletes is \
                 not kept",
                "ask for tokens that outlive its session",
            ],
        }
    }
}

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Self, LevelError> {
        let found = Self::ALL.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| LevelError(text.to_owned()))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert!("all".parse::<Level>().is_err());
    }
}
