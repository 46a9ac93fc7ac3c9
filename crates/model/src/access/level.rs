use std::{fmt, str::FromStr};

/// The rights of the identity in a remote cluster, as the chart there names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Twins in every namespace, and namespaces with pods in them for the fabric.
    Fabric,
    /// Twins in every namespace.
    Full,
    /// Twins in the namespaces that are listed; classes, nodes and volumes are read in the whole cluster.
    Namespaced,
    /// Twins in the namespaces that are listed, and nothing else.
    Minimal,
}

const CLAIMS_EVERYWHERE: &str =
    "create, change and delete any claim, and create and delete any snapshot, in every namespace";
const CLUSTER: &str = "read classes, nodes, capacity and the namespace kube-system, and set the reclaim policy and the claim \
                       of volumes";
const REQUEST_SESSION_TOKEN: &str = "request a new token for itself, bound to the Secret liqo-csi-session";
const REQUEST_LONGER_TOKEN: &str = "request a token that outlives that Secret";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a level: use fabric, full, namespaced or minimal")]
pub struct LevelError(String);

impl Level {
    /// All levels, most rights first.
    pub const ALL: [Self; 4] = [Self::Fabric, Self::Full, Self::Namespaced, Self::Minimal];

    /// The name in the chart and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fabric => "fabric",
            Self::Full => "full",
            Self::Namespaced => "namespaced",
            Self::Minimal => "minimal",
        }
    }

    /// Whether the level is limited to listed namespaces.
    #[must_use]
    pub const fn is_listed(self) -> bool {
        matches!(self, Self::Namespaced | Self::Minimal)
    }

    /// What the identity may do in the remote cluster.
    #[must_use]
    pub const fn may(self) -> &'static [&'static str] {
        match self {
            Self::Fabric => &[
                CLAIMS_EVERYWHERE,
                "create and delete namespaces with the labels of this home cluster, and in these run pods without privileges, \
                 with their ConfigMaps, Secrets and Services",
                CLUSTER,
                REQUEST_SESSION_TOKEN,
            ],
            Self::Full => &[CLAIMS_EVERYWHERE, CLUSTER, REQUEST_SESSION_TOKEN],
            Self::Namespaced => &[
                "create, change and delete any claim, and create and delete any snapshot, in the listed namespaces",
                "read claims by name and patch them in every namespace, to remove the finalizer of twins in namespaces that \
                 are being deleted",
                CLUSTER,
                REQUEST_SESSION_TOKEN,
            ],
            Self::Minimal => &[
                "create, change and delete any claim in the listed namespaces",
                REQUEST_SESSION_TOKEN,
            ],
        }
    }

    /// What the identity may not do there.
    #[must_use]
    pub const fn may_not(self) -> &'static [&'static str] {
        match self {
            Self::Fabric => &[
                "read or change pods, Secrets or ConfigMaps in other namespaces, or delete other namespaces",
                "run privileged pods, or pods with hostPath volumes or the network of their node",
                REQUEST_LONGER_TOKEN,
            ],
            Self::Full => &[
                "create namespaces or pods, or read Secrets: the fabric runs no pods there, and volumes cannot be moved there",
                REQUEST_LONGER_TOKEN,
            ],
            Self::Namespaced => &[
                "create claims in other namespaces, create namespaces or pods, or read Secrets",
                REQUEST_LONGER_TOKEN,
            ],
            Self::Minimal => &[
                "read anything else: the storage class has to be named, and the data of a twin that another client deletes is lost",
                REQUEST_LONGER_TOKEN,
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
    fn names_survive_the_round_trip() {
        for level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert!("all".parse::<Level>().is_err());
    }
}
