//! Who uses a volume that is being moved, and when nobody does any more.

/// The users of a volume, in every cluster where it can have some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// The pods that name the claim or, remotely, its twin.
    pub pods: Vec<UserPod>,
    /// The nodes that have it, or had it since the gate, but for the mover's.
    pub nodes: Vec<UserNode>,
    /// The nodes where a mover has it. Whoever else writes there is not seen as long as it does: a
    /// container may run on when its pod was deleted by force.
    pub mover_nodes: Vec<UserNode>,
    /// The controller that deletes the claim when it is scaled down, if there is one.
    pub deletes_claim: Option<String>,
}

/// A pod that uses a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserPod {
    /// Its namespace and name.
    pub name: String,
    /// Whether it has a node. Without one it waits, and starts where the volume will be.
    pub has_node: bool,
    /// Whether it is being deleted: its eviction was accepted.
    pub leaving: bool,
    /// Whether none of its containers has started: it writes nothing, and no budget of disruptions
    /// counts it, so its eviction is always accepted.
    pub pending: bool,
}

/// A node that has a volume, or had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserNode {
    /// Its name.
    pub name: String,
    /// Whether a `VolumeAttachment` for it exists: one of the virtual PV or one of the real PV.
    pub attached: bool,
    /// Why it could not be detached when that was last tried, if it failed.
    pub detach_error: Option<String>,
    /// Whether the `volumesInUse` of its status name the handle.
    pub in_use: bool,
    /// Whether what it says can be relied on.
    pub health: NodeHealth,
}

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    /// It is Ready.
    Ready,
    /// It is silent; whether its pods still write is unknown.
    NotReady,
    /// An administrator has declared that it is off.
    OutOfService,
}

impl Users {
    /// The pods that run, or may.
    #[must_use]
    pub fn running(&self) -> Vec<String> {
        names(self.pods.iter().filter(|pod| pod.has_node))
    }

    /// Those of them that nobody has sent away.
    #[must_use]
    pub fn staying(&self) -> Vec<String> {
        names(self.pods.iter().filter(|pod| pod.has_node && !pod.leaving))
    }

    /// Those of these that may have reason to stay. What a controller makes anew while the others
    /// are leaving has none: it would be sent away for ever before the volume is gated.
    #[must_use]
    pub fn holding(&self) -> Vec<String> {
        let holds = |pod: &&UserPod| pod.has_node && !pod.leaving && !pod.pending;
        names(self.pods.iter().filter(holds))
    }

    /// What is still in the way of the drain: the nodes of movers count too, and so it ends only after
    /// the movers have gone.
    #[must_use]
    pub fn anywhere(&self) -> Vec<String> {
        let mut found = self.in_the_way();
        let nodes = self.mover_nodes.iter().filter(|node| !node.is_clear());
        found.extend(nodes.map(UserNode::described));
        found
    }

    /// What is in the way once the volume is drained, and a mover has it again.
    #[must_use]
    pub fn in_the_way(&self) -> Vec<String> {
        let nodes = self.nodes.iter().filter(|node| !node.is_clear());
        self.running()
            .into_iter()
            .chain(nodes.map(UserNode::described))
            .collect()
    }
}

impl UserNode {
    /// Whether the volume is certainly not mounted there. A node that is off says nothing any
    /// more: its last `volumesInUse` stay.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        let is_unmounted = match self.health {
            NodeHealth::Ready => !self.in_use,
            NodeHealth::OutOfService => true,
            NodeHealth::NotReady => false,
        };
        is_unmounted && !self.attached
    }

    /// Its name, and what is in the way there.
    fn described(&self) -> String {
        let state = match (self.health, self.in_use, self.attached) {
            (NodeHealth::NotReady, ..) => "not Ready",
            (NodeHealth::Ready, true, true) => "mounted and attached",
            (NodeHealth::Ready, true, false) => "mounted",
            (NodeHealth::Ready | NodeHealth::OutOfService, _, _) => "attached",
        };
        match &self.detach_error {
            Some(error) => format!("node {} ({state}: {error})", self.name),
            None => format!("node {} ({state})", self.name),
        }
    }
}

fn names<'a>(pods: impl Iterator<Item = &'a UserPod>) -> Vec<String> {
    pods.map(|pod| pod.name.clone()).collect()
}
