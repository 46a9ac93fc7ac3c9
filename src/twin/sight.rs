//! What `CreateVolume` sees: claim, twin and PV, read live, turned into the facts
//! that the decision rests on.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node as KubeNode, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{Order, name_of, record};
use crate::{
    cluster::{ApiError, Cluster, facts},
    placement::{
        BindingMode, ClaimFact, Class, CreateFacts, CreateStep, Reach, ReclaimPolicy, Target, Twin, TwinFact,
        TwinState, create_step,
    },
    topology::{CLUSTER_KEY, NODE_KEY, Node, Segments, accessible, node_value},
    volume::{Fingerprint, Owner},
};

/// One look at everything.
pub(super) struct Sight {
    pub(super) facts: CreateFacts,
    /// The claim, if it is the right one.
    pub(super) claim: Option<PersistentVolumeClaim>,
    pub(super) twin: Option<PersistentVolumeClaim>,
    /// The PV of a bound twin, and from where it can be reached.
    pub(super) volume: Option<PersistentVolume>,
    pub(super) topology: Vec<Segments>,
}

impl Sight {
    /// Looks.
    pub(super) async fn take(home: &Cluster, order: &Order) -> Result<Box<Self>, ApiError> {
        let (claim_fact, claim) = claim(home, order).await?;
        let twin = home
            .stored::<PersistentVolumeClaim>()
            .get(name_of(&order.volume))
            .await?;
        let virtual_class = claim.as_ref().and_then(|claim| class(home, claim));
        let mut sight = Box::new(Self {
            facts: CreateFacts {
                claim: claim_fact,
                target: target(home, order, claim.as_ref(), virtual_class.as_deref()),
                unfit: None,
                twin: TwinFact::Absent,
                virtual_pv: false,
                retain: virtual_class.is_some_and(|class| class.reclaim == ReclaimPolicy::Retain),
            },
            claim,
            twin: None,
            volume: None,
            topology: Vec::new(),
        });
        if let Some(twin) = twin {
            sight.look_at_twin(home, order, twin).await?;
        }
        Ok(sight)
    }

    /// The next step. Whether a PV of the volume exists is only read when the
    /// step depends on it.
    pub(super) async fn step(&mut self, home: &Cluster, order: &Order) -> Result<CreateStep, ApiError> {
        let mut given = self.facts.clone();
        given.virtual_pv = true;
        let step = create_step(&self.facts);
        if create_step(&given) == step {
            return Ok(step);
        }
        let name = order.spec.parameters.volume.as_deref();
        let name = name.unwrap_or(order.volume.as_str());
        let found = home.all::<PersistentVolume>().get(name).await?;
        self.facts.virtual_pv = found.is_some();
        Ok(create_step(&self.facts))
    }

    async fn look_at_twin(
        &mut self,
        home: &Cluster,
        order: &Order,
        twin: PersistentVolumeClaim,
    ) -> Result<(), ApiError> {
        let owner = Owner::of_volume(home.id().clone(), order.volume.clone());
        let marks = match owner.recognise(twin.labels(), twin.annotations()) {
            Ok(marks) => marks,
            Err(foreign) => {
                self.facts.twin = TwinFact::Foreign(foreign);
                return Ok(());
            }
        };
        let asked = Fingerprint::of(&order.spec);
        let real_class = class(home, &twin);
        let waits = real_class
            .as_ref()
            .is_some_and(|class| class.binding == BindingMode::WaitForFirstConsumer);
        self.facts.twin = TwinFact::Ours(Twin {
            handed_over: marks.handed_over,
            deleting: twin.metadata.deletion_timestamp.is_some(),
            differences: marks
                .fingerprint
                .map(|made| made.differences(&asked))
                .unwrap_or_default(),
            provisioner: record::provisioner(&twin).map(str::to_owned),
            told_node: waits || matches!(self.facts.target, Target::Node(_)),
            node: record::selected_node(&twin).map(str::to_owned),
            state: self.state(home, order, &twin, real_class.as_deref()).await?,
        });
        self.twin = Some(twin);
        Ok(())
    }

    async fn state(
        &mut self,
        home: &Cluster,
        order: &Order,
        twin: &PersistentVolumeClaim,
        real_class: Option<&Class>,
    ) -> Result<TwinState, ApiError> {
        if record::phase(twin) == "Lost" {
            return Ok(TwinState::Lost);
        }
        if let Some(name) = record::real_volume(home, twin) {
            return Ok(TwinState::Bound(self.reach(home, twin, &name).await?));
        }
        let prebinding = super::plan::prebinding(home, order, twin, real_class).await?;
        Ok(TwinState::Pending(prebinding))
    }

    async fn reach(
        &mut self,
        home: &Cluster,
        twin: &PersistentVolumeClaim,
        name: &str,
    ) -> Result<Reach, ApiError> {
        let found = home.all::<PersistentVolume>().get(name).await?;
        let Some(volume) = found.filter(|found| record::is_bound_to(found, twin)) else {
            return Ok(Reach::Unread);
        };
        let nodes = nodes(home);
        let affinity = facts::affinity(&volume);
        let topology = match accessible(home.id(), affinity.as_ref(), &nodes) {
            Ok(topology) => topology,
            Err(error) => return Ok(Reach::Nowhere(error)),
        };
        let reached = match &self.facts.target {
            Target::Node(name) => {
                let node = node(home, name).await?;
                node.is_some_and(|node| topology.iter().any(|place| place.admits(&node.labels)))
            }
            Target::Any | Target::Disagrees { .. } => true,
        };
        let policy = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        let retained = facts::reclaim_policy(policy) == ReclaimPolicy::Retain;
        self.volume = Some(volume);
        self.topology = topology;
        Ok(if reached {
            Reach::FromTarget { retained }
        } else {
            Reach::NotFromTarget
        })
    }
}

/// A claim is known by its uid: one of another uid, or on its way out, is gone.
async fn claim(
    home: &Cluster,
    order: &Order,
) -> Result<(ClaimFact, Option<PersistentVolumeClaim>), ApiError> {
    let Some(name) = &order.spec.parameters.claim else {
        return Ok((ClaimFact::NotGiven, None));
    };
    let found = home
        .within::<PersistentVolumeClaim>(&name.namespace)
        .get(&name.name)
        .await?;
    let expected = order.volume.claim_uid();
    let same = |claim: &PersistentVolumeClaim| {
        claim.metadata.deletion_timestamp.is_none()
            && expected.is_none_or(|uid| claim.metadata.uid.as_deref() == Some(uid))
    };
    Ok(match found.filter(same) {
        Some(claim) => (ClaimFact::Live, Some(claim)),
        None => (ClaimFact::Gone, None),
    })
}

/// The node the volume is for. The request names it by our topology keys, the
/// claim by its selected node; where both speak they must agree.
fn target(
    home: &Cluster,
    order: &Order,
    claim: Option<&PersistentVolumeClaim>,
    virtual_class: Option<&Class>,
) -> Target {
    let requested = || {
        let places = order.requisite.iter().map(describe).collect::<Vec<_>>();
        places.join(" or ")
    };
    let Some(claim) = claim else {
        return requested_node(home, order).map_or(Target::Any, Target::Node);
    };
    if let Some(selected) = record::selected_node(claim) {
        let here = Segments::of_node(home.id(), selected).into_map();
        let agrees = order.requisite.is_empty() || order.requisite.iter().any(|place| place.admits(&here));
        return if agrees {
            Target::Node(selected.to_owned())
        } else {
            Target::Disagrees {
                selected: Some(selected.to_owned()),
                requested: requested(),
            }
        };
    }
    let waits = virtual_class.is_some_and(|class| class.binding == BindingMode::WaitForFirstConsumer);
    if waits && !order.requisite.is_empty() {
        // The scheduler took its choice back; the request is from before that.
        return Target::Disagrees {
            selected: None,
            requested: requested(),
        };
    }
    Target::Any
}

fn requested_node(home: &Cluster, order: &Order) -> Option<String> {
    let [only] = order.requisite.as_slice() else {
        return None;
    };
    let value = only.get(NODE_KEY)?;
    let nodes = home.views().nodes.all();
    let node = nodes.iter().find(|node| node_value(&node.name) == value);
    // A node we do not see (yet) is still a node; its name is its value unless it is very long.
    Some(node.map_or_else(|| value.to_owned(), |node| node.name.clone()))
}

fn describe(place: &Segments) -> String {
    match (place.get(NODE_KEY), place.get(CLUSTER_KEY)) {
        (Some(node), _) => format!("the node {node}"),
        (None, Some(cluster)) => format!("the cluster {cluster}"),
        (None, None) => "a place this driver does not know".to_owned(),
    }
}

/// All nodes, as they were a moment ago.
pub(super) fn nodes(home: &Cluster) -> Vec<Node> {
    home.views()
        .nodes
        .all()
        .iter()
        .map(|node| Node::clone(node))
        .collect()
}

/// A node; one that is very new is read live.
pub(super) async fn node(home: &Cluster, name: &str) -> Result<Option<Node>, ApiError> {
    if let Some(node) = home.views().nodes.get(name) {
        return Ok(Some(Node::clone(&node)));
    }
    let found = home.all::<KubeNode>().get(name).await?;
    Ok(found.map(|node| Node {
        name: node.name_any(),
        labels: node.metadata.labels.unwrap_or_default(),
    }))
}

fn class(home: &Cluster, claim: &PersistentVolumeClaim) -> Option<Arc<Class>> {
    home.views().classes.get(record::class_name(claim)?)
}
