//! The names and labels of the objects that a move creates for its movers. Names are derived from move and
//! volume, so that two leaders create the same object; deletion goes by labels, so that no object is missed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::ObjectMeta};

use super::MovedVolume;
use crate::{
    placement::moving::Side,
    volume::{digest, mark},
};

/// `NetworkPolicies` select the pods of moves by this label.
pub(super) const COMPONENT: &str = "app.kubernetes.io/component";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Reads or writes the volume of this side.
    Mover(Side),
    Relay,
}

impl Role {
    /// The side together with which it is created and deleted.
    pub(super) fn side(self) -> Side {
        match self {
            Self::Mover(side) => side,
            Self::Relay => Side::Target,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Mover(side) => side.as_str(),
            Self::Relay => "relay",
        }
    }

    fn component(self) -> &'static str {
        match self {
            Self::Mover(_) => "mover",
            Self::Relay => "relay",
        }
    }
}

/// Whether a pod is the mover of this claim and side. Users can set its labels on their own pods, but only one pod has its
/// name.
pub(crate) fn is_mover(moved: &MovedVolume, side: Side, pod: &Pod) -> bool {
    let names = Names::of(moved);
    pod.name_any() == names.of_role(Role::Mover(side)) && names.is_ours(pod, side)
}

/// The names of one claim of a move.
pub(super) struct Names<'a> {
    moved: &'a MovedVolume,
    key: String,
}

impl<'a> Names<'a> {
    pub(super) fn of(moved: &'a MovedVolume) -> Self {
        let key = digest(16, [moved.by.as_str(), moved.volume().as_str()]);
        Self { moved, key }
    }

    /// The pod of this role and, for a mover at home, its claim and PV.
    pub(super) fn of_role(&self, role: Role) -> String {
        format!("move-{}-{}", role.word(), self.key)
    }

    pub(super) fn certificates(&self) -> String {
        format!("move-certificates-{}", self.key)
    }

    /// Selects all objects of this claim and side.
    pub(super) fn selector(&self, side: Side) -> String {
        format!(
            "{}={},{}={},{}={}",
            mark::MOVE,
            self.moved.by,
            mark::VOLUME,
            self.moved.volume(),
            mark::MOVE_SIDE,
            side.as_str()
        )
    }

    /// The labels of the objects of a mover. They have no label of the home cluster, because they are
    /// not twins.
    pub(super) fn labels(&self, side: Side) -> BTreeMap<String, String> {
        [
            (mark::MANAGED_BY, mark::MANAGED_BY_US),
            (mark::MOVE, self.moved.by.as_str()),
            (mark::VOLUME, self.moved.volume().as_str()),
            (mark::MOVE_SIDE, side.as_str()),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    /// The same labels, and the component of the pod.
    pub(super) fn pod_labels(&self, role: Role) -> BTreeMap<String, String> {
        let mut labels = self.labels(role.side());
        labels.insert(COMPONENT.to_owned(), role.component().to_owned());
        labels
    }

    pub(super) fn metadata(&self, name: String, namespace: Option<&str>, side: Side) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: namespace.map(str::to_owned),
            labels: Some(self.labels(side)),
            ..ObjectMeta::default()
        }
    }

    /// Whether an object was created for this claim and side.
    pub(super) fn is_ours(&self, object: &impl ResourceExt, side: Side) -> bool {
        self.labels(side)
            .iter()
            .all(|(key, value)| object.labels().get(key) == Some(value))
    }
}
