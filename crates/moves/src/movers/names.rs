//! How what a move makes for its movers is named and labelled. Names follow from the move and the
//! volume, so that two leaders make one object; who deletes goes by the labels, so that nothing is
//! missed that was ever made.

use std::collections::BTreeMap;

use kube::{ResourceExt, api::ObjectMeta};

use super::MovedVolume;
use crate::{
    placement::moving::Side,
    volume::{digest, mark},
};

/// Label by which a `NetworkPolicy` finds the pods of moves.
pub(super) const COMPONENT: &str = "app.kubernetes.io/component";

/// The two kinds of pods of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Reads or writes the volume of this side.
    Mover(Side),
    /// Connects the movers.
    Relay,
}

impl Role {
    /// The side with which it comes and goes.
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

/// Of one claim of a move, what its objects are called.
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

    /// The Secret with the certificates of both sides.
    pub(super) fn certificates(&self) -> String {
        format!("move-certificates-{}", self.key)
    }

    /// Finds all that was made for this claim and side.
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

    /// Without the label of the home cluster: nothing of this is a twin.
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

    /// The same and what the pod is.
    pub(super) fn pod_labels(&self, role: Role) -> BTreeMap<String, String> {
        let mut labels = self.labels(role.side());
        labels.insert(COMPONENT.to_owned(), role.component().to_owned());
        labels
    }

    /// Of an object of this side.
    pub(super) fn metadata(&self, name: String, namespace: Option<&str>, side: Side) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: namespace.map(str::to_owned),
            labels: Some(self.labels(side)),
            ..ObjectMeta::default()
        }
    }

    /// Whether an object was made for this claim and side.
    pub(super) fn is_ours(&self, object: &impl ResourceExt, side: Side) -> bool {
        self.labels(side)
            .iter()
            .all(|(key, value)| object.labels().get(key) == Some(value))
    }
}
