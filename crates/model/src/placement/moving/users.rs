//! The pods and nodes that use a volume that is being moved, and when none is left.

/// The users of a volume, in all clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// The pods with the claim or, in a remote cluster, with its twin.
    pub pods: Vec<UserPod>,
    /// The nodes that have it, or had it since the gate, except those of movers.
    pub nodes: Vec<UserNode>,
    /// The nodes where a mover has it. Other writers there are not detected: the container of a pod that was
    /// deleted by force may still run.
    pub mover_nodes: Vec<UserNode>,
    /// The controller that deletes the claim when it is scaled down, if any.
    pub deletes_claim: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserPod {
    /// Namespace and name.
    pub name: String,
    /// Whether it has a node. Without one it waits, and starts where the volume will be then.
    pub has_node: bool,
    /// Whether it is being deleted, after an eviction for example.
    pub leaving: bool,
    /// Whether no container has started: the pod writes nothing and no `PodDisruptionBudget` counts it, so
    /// its eviction always succeeds.
    pub pending: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserNode {
    pub name: String,
    /// Whether a `VolumeAttachment` of the virtual or the real PV exists for it.
    pub attached: bool,
    /// The error of the last attempt to detach it.
    pub detach_error: Option<String>,
    /// Whether `volumesInUse` in its status contains the handle.
    pub in_use: bool,
    pub health: NodeHealth,
}

/// Whether the status of a node is reliable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    Ready,
    /// Its kubelet does not report; whether its pods still write is unknown.
    NotReady,
    /// An administrator has declared that it is shut down.
    OutOfService,
}

impl Users {
    /// The pods that run, or may run.
    #[must_use]
    pub fn running(&self) -> Vec<String> {
        names(self.pods.iter().filter(|pod| pod.has_node))
    }

    /// The running pods that are not being deleted.
    #[must_use]
    pub fn not_terminating(&self) -> Vec<String> {
        names(self.pods.iter().filter(|pod| pod.has_node && !pod.leaving))
    }

    /// The running pods that have started and are not being deleted. A pod that a controller creates
    /// meanwhile does not count: otherwise the volume would never be gated while pods are evicted.
    #[must_use]
    pub fn started(&self) -> Vec<String> {
        let holds = |pod: &&UserPod| pod.has_node && !pod.leaving && !pod.pending;
        names(self.pods.iter().filter(holds))
    }

    /// What the drain waits for, including the nodes of movers: it ends only after the movers were deleted.
    #[must_use]
    pub fn left_with_movers(&self) -> Vec<String> {
        let mut found = self.left();
        let nodes = self.mover_nodes.iter().filter(|node| !node.is_clear());
        found.extend(nodes.map(UserNode::described));
        found
    }

    /// The pods and nodes that still use the volume, apart from movers.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        let nodes = self.nodes.iter().filter(|node| !node.is_clear());
        self.running()
            .into_iter()
            .chain(nodes.map(UserNode::described))
            .collect()
    }
}

impl UserNode {
    /// Whether the volume is certainly not mounted there. A node that is shut down does not update its
    /// `volumesInUse`.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        let is_unmounted = match self.health {
            NodeHealth::Ready => !self.in_use,
            NodeHealth::OutOfService => true,
            NodeHealth::NotReady => false,
        };
        is_unmounted && !self.attached
    }

    /// Its name and state.
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
