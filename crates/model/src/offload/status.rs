//! The status of an offloaded namespace: in each cluster, and in total.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Summary of the conditions of an offloaded namespace.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The namespace exists in every selected cluster.
    Ready,
    /// No cluster is selected.
    NoClusterSelected,
    /// The namespace does not exist yet in some of the selected clusters.
    InProgress,
    /// The namespace cannot be created in some of the selected clusters.
    SomeFailed,
    /// The namespace cannot be created in any of the selected clusters.
    AllFailed,
    /// The namespace is being deleted in every cluster.
    Terminating,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The state of the namespace in one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It exists, and twins can be created in it.
    Created,
    /// It is being created, or waited for.
    Creating(String),
    /// It cannot be created.
    Failed(String),
    /// It is being deleted, or its contents block that.
    Terminating(String),
}

impl Readiness {
    /// Reason and message of the condition.
    #[must_use]
    pub fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Created => ("NamespaceCreated", "the namespace exists"),
            Self::Creating(why) => ("Creating", why),
            Self::Failed(why) => ("CreationLoopBackOff", why),
            Self::Terminating(why) => ("Terminating", why),
        }
    }

    /// The inverse of [`Self::words`].
    #[must_use]
    pub fn read(reason: &str, message: &str) -> Option<Self> {
        let message = message.to_owned();
        Some(match reason {
            "NamespaceCreated" => Self::Created,
            "Creating" => Self::Creating(message),
            "CreationLoopBackOff" => Self::Failed(message),
            "Terminating" => Self::Terminating(message),
            _ => return None,
        })
    }
}

/// Why a cluster is not selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unselected {
    /// The namespace should not exist there.
    Unmet(String),
    /// The selector selects it, but its `RemoteCluster` does not allow pods of this namespace on its nodes.
    NotAdmitted(String),
}

impl Unselected {
    /// Reason and message of the condition.
    #[must_use]
    pub fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Unmet(why) => ("ClusterNotSelected", why),
            Self::NotAdmitted(why) => ("ClusterNotAdmitted", why),
        }
    }
}

/// The state of an offloaded namespace in one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterState {
    /// Whether the cluster is selected, or why not.
    pub selected: Result<(), Unselected>,
    /// The state of the remote namespace, if one exists, existed or should exist.
    pub ready: Option<Readiness>,
}

pub fn phase<'a>(deleting: bool, clusters: impl IntoIterator<Item = &'a ClusterState>) -> Phase {
    if deleting {
        return Phase::Terminating;
    }
    let required: Vec<&ClusterState> = clusters.into_iter().filter(|it| it.selected.is_ok()).collect();
    let count = |of: fn(&Readiness) -> bool| {
        let such = required.iter().filter(|it| it.ready.as_ref().is_some_and(of));
        such.count()
    };
    let ready = count(|it| matches!(it, Readiness::Created));
    let failed = count(|it| matches!(it, Readiness::Failed(_)));
    match required.len() {
        0 => Phase::NoClusterSelected,
        all if ready == all => Phase::Ready,
        all if failed == all => Phase::AllFailed,
        _ if failed > 0 => Phase::SomeFailed,
        _ => Phase::InProgress,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_follows_from_the_states_of_the_clusters() {
        let of = |ready: Readiness| ClusterState {
            selected: Ok(()),
            ready: Some(ready),
        };
        let created = || of(Readiness::Created);
        let creating = || of(Readiness::Creating(String::new()));
        let failed = || of(Readiness::Failed("taken".into()));
        let other = || ClusterState {
            selected: Err(Unselected::Unmet("no".into())),
            ready: Some(Readiness::Terminating("held".into())),
        };
        for (clusters, expected) in [
            (vec![], Phase::NoClusterSelected),
            (vec![other()], Phase::NoClusterSelected),
            (vec![created(), other()], Phase::Ready),
            (vec![created(), creating()], Phase::InProgress),
            (vec![failed(), failed()], Phase::AllFailed),
            (vec![failed(), created()], Phase::SomeFailed),
            (vec![failed(), creating()], Phase::SomeFailed),
        ] {
            assert_eq!(phase(false, &clusters), expected, "{clusters:?}");
            assert_eq!(phase(true, &clusters), Phase::Terminating);
        }
    }

    #[test]
    fn the_readiness_survives_the_condition() {
        for ready in [
            Readiness::Created,
            Readiness::Creating("a".into()),
            Readiness::Failed("b".into()),
            Readiness::Terminating("c".into()),
        ] {
            let (reason, message) = ready.words();
            assert_eq!(Readiness::read(reason, message), Some(ready));
        }
        assert_eq!(Readiness::read("Else", ""), None);
    }
}
