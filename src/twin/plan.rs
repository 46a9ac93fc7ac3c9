//! Before a twin is made: its real class, the node it is told, and whether that
//! can work at all. And for classes nobody provisions, the volume it gets.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{
    CreateError, CreateRequest, Policy, Site,
    observation::Observation,
    reading::{self, node, nodes},
    remote_plan,
    withdraw::is_reservation,
};
use crate::{
    cluster::{ApiError, Cluster, slim::free_volume},
    placement::{
        Ask, Asked, BindingMode, Capacity, ChosenClass, Class, KnownClasses, NO_PROVISIONER, Prebinding,
        RealDriver, StaticVolume, Surroundings, Target, Wishes, choose_class,
    },
    topology::{CLUSTER_KEY, Node},
    volume::{AccessMode, ClaimName, mark},
};

/// How a twin is to be made.
#[derive(Debug)]
pub(super) enum Plan {
    /// Like this.
    Make(Planned),
    /// Not for this node, or for none.
    Unfit(String),
}

/// What is decided about a twin before it is made.
#[derive(Debug, Default)]
pub(super) struct Planned {
    pub(super) class: String,
    pub(super) provisioner: Option<String>,
    /// The node it is told.
    pub(super) node: Option<String>,
    /// The access modes it has instead of those asked for.
    pub(super) access_modes: Option<Vec<AccessMode>>,
    /// Whether it may be answered for before it is bound.
    pub(super) answered_early: bool,
}

/// Makes the plan.
pub(super) async fn plan(
    site: &Site,
    policy: &Policy,
    request: &CreateRequest,
    observation: &Observation,
) -> Result<Plan, CreateError> {
    if let Some(remote) = site.remote_cluster() {
        return Box::pin(remote_plan::plan(site, remote, policy, request, observation)).await;
    }
    let home = site.home();
    let classes = classes(home);
    let wishes = Wishes {
        annotation: observation
            .claim
            .as_ref()
            .and_then(|claim| Asked::read(claim.annotations(), &[mark::REAL_CLASS])),
        allowed: &policy.allowed_classes,
        parameter: request.spec.parameters.real_class.as_deref(),
        mapping: None,
        one_namespace: !request.spec.parameters.shared_namespace,
    };
    let chosen = choose_class(&wishes, KnownClasses::Listed(&classes), home.id())?;
    let ChosenClass::Known(class) = chosen else {
        return Ok(Plan::Make(Planned {
            class: chosen.name().to_owned(),
            ..Planned::default()
        }));
    };
    Ok(
        match node_for(home, request, &observation.facts.target, class).await? {
            Ok(node) => Plan::Make(Planned {
                class: class.name.clone(),
                provisioner: Some(class.provisioner.clone()),
                node,
                ..Planned::default()
            }),
            Err(unfit) => Plan::Unfit(unfit),
        },
    )
}

/// The classes of a cluster, as they were a moment ago.
pub(super) fn classes(cluster: &Cluster) -> Vec<Class> {
    let seen = cluster.views().classes.all();
    seen.iter().map(|it| Class::clone(it)).collect()
}

/// The node the twin is told, or why there is none.
async fn node_for(
    home: &Cluster,
    request: &CreateRequest,
    target: &Target,
    class: &Class,
) -> Result<Result<Option<String>, String>, ApiError> {
    let ask = ask(request);
    match target {
        Target::Node(name) => {
            let Some(node) = node(home, name).await? else {
                return Ok(Err(format!("the node {name} does not exist any more")));
            };
            let known = Known::about(home, class, Some(name)).await?;
            let unfit = known.surroundings(class).unfit(&node, &ask);
            Ok(unfit.map_or_else(|| Ok(Some(name.clone())), |unfit| Err(unfit.to_string())))
        }
        Target::Any | Target::Disagrees { .. } if class.binding == BindingMode::Immediate => Ok(Ok(None)),
        target => {
            let known = Known::about(home, class, None).await?;
            let mut nodes = nodes(home);
            nodes.retain(|node| is_of(home, node) && target.allows(&node.name));
            let surroundings = known.surroundings(class);
            let choice = surroundings.choose_node(&nodes, &ask);
            Ok(choice
                .map(|node| Some(node.name.clone()))
                .map_err(|none| none.to_string()))
        }
    }
}

/// Whether a node is in this cluster, and does not stand for another one.
fn is_of(home: &Cluster, node: &Node) -> bool {
    let cluster = node.labels.get(CLUSTER_KEY);
    cluster.is_none_or(|cluster| cluster == home.id().as_str())
}

/// Who binds a pending twin; for a class nobody provisions, which volume it gets.
pub(super) async fn prebinding(
    site: &Site,
    request: &CreateRequest,
    twin: &PersistentVolumeClaim,
    class: Option<&Class>,
) -> Result<Prebinding, ApiError> {
    // In a remote cluster a pod will come, so Kubernetes binds it there.
    let ours = |class: &&Class| class.provisioner == NO_PROVISIONER && site.remote_cluster().is_none();
    let Some(class) = class.filter(ours) else {
        return Ok(Prebinding::Provisioner);
    };
    let home = site.home();
    if let Some(name) = reading::volume_name(twin) {
        return Ok(Prebinding::Reserved(name.to_owned()));
    }
    if let Some(reserved) = reserved(home, twin).await? {
        return Ok(Prebinding::Found(reserved));
    }
    let known = Known::about(home, class, None).await?;
    let told = match reading::selected_node(twin) {
        Some(name) => node(home, name).await?,
        None => None,
    };
    let name = ClaimName {
        namespace: home.storage_namespace().to_owned(),
        name: twin.name_any(),
    };
    let found = known
        .surroundings(class)
        .choose_volume(&name, told.as_ref(), &ask(request));
    Ok(match found {
        Some(volume) => Prebinding::Found(volume.name.clone()),
        None => Prebinding::NoneFits,
    })
}

pub(super) fn ask(request: &CreateRequest) -> Ask<'_> {
    Ask {
        volume: &request.volume,
        size: request.spec.size.request(),
        capabilities: &request.spec.capabilities,
        preferred: &request.preferred,
    }
}

/// What decides where a class works.
pub(super) struct Known {
    driver: RealDriver,
    capacities: Vec<Capacity>,
    volumes: Vec<StaticVolume>,
}

impl Known {
    /// About a class, on one node only or on all of them.
    pub(super) async fn about(home: &Cluster, class: &Class, only: Option<&str>) -> Result<Self, ApiError> {
        let views = home.views();
        let capacities = views.capacities.of_topic(&class.name);
        let volumes = if class.provisioner == NO_PROVISIONER {
            static_volumes(home, &class.name).await?
        } else {
            Vec::new()
        };
        Ok(Self {
            driver: driver(home, &class.provisioner, only),
            capacities: capacities.iter().map(|it| Capacity::clone(it)).collect(),
            volumes,
        })
    }

    pub(super) fn surroundings<'a>(&'a self, class: &'a Class) -> Surroundings<'a> {
        Surroundings {
            class,
            driver: &self.driver,
            capacities: &self.capacities,
            volumes: &self.volumes,
        }
    }
}

/// The PV that was reserved for a twin before, as when this process died then. Kubernetes may
/// have bound it meanwhile, and not have told the twin yet.
async fn reserved(home: &Cluster, twin: &PersistentVolumeClaim) -> Result<Option<String>, ApiError> {
    let is_its = |found: &PersistentVolume| {
        is_reservation(found, home.storage_namespace(), &twin.name_any()) || reading::is_bound_to(found, twin)
    };
    let seen = home.views().volumes.of_topic(&twin.name_any());
    for seen in seen.iter().filter(|seen| !seen.deleting) {
        let found = home.all::<PersistentVolume>().get(&seen.name).await?;
        if found.as_ref().is_some_and(is_its) {
            return Ok(Some(seen.name.clone()));
        }
    }
    Ok(None)
}

/// The PVs of a class that nobody provisions. They are watched from the first claim of such
/// a class on; until all were seen they are listed.
async fn static_volumes(home: &Cluster, class: &str) -> Result<Vec<StaticVolume>, ApiError> {
    let seen = &home.views().static_volumes;
    if seen.outdated_since().is_none() {
        let of_class = seen.of_topic(class);
        return Ok(of_class.iter().map(|it| StaticVolume::clone(it)).collect());
    }
    let found = home.all::<PersistentVolume>().list(None).await?;
    Ok(found.iter().filter_map(free_volume).collect())
}

fn driver(home: &Cluster, provisioner: &str, only: Option<&str>) -> RealDriver {
    let views = home.views();
    let Some(driver) = views.drivers.get(provisioner) else {
        return RealDriver::default();
    };
    let runs_on = |node: &str| {
        let known = views.csi_nodes.get(node);
        known.is_some_and(|known| known.drivers.iter().any(|name| name == provisioner))
    };
    let registered_on: BTreeSet<String> = if let Some(node) = only {
        Some(node.to_owned())
            .filter(|node| runs_on(node))
            .into_iter()
            .collect()
    } else {
        let nodes = views.csi_nodes.all();
        let running = nodes.iter().filter(|node| runs_on(&node.node));
        running.map(|node| node.node.clone()).collect()
    };
    RealDriver {
        registered_on: Some(registered_on),
        publishes_capacity: driver.publishes_capacity,
    }
}
