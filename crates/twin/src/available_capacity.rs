//! The capacity for volumes of a virtual class: on the nodes at home, and in each remote cluster. The
//! loop `capacity` publishes it and `GetCapacity` returns it; the computation is in
//! [`crate::placement`].

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{Policy, refusals, surroundings::classes};
use crate::{
    cluster::{ApiError, Cluster},
    fleet::{Registry, Remote, Unreachable},
    placement::{
        AvailableCapacity, BindingMode, Capacity, Class, ClassContext, ClassMap, KnownClasses,
        NO_PROVISIONER, NoClass, Published, RealDriver, ReclaimPolicy, StaticVolume, capacity_in,
        choose_class, possible_inputs, publish, served,
    },
    topology::{Node, Segments},
    volume::{ClusterId, DRIVER_NAME, Refused},
};

/// The capacity for volumes of a class with these parameters, in this topology segment. A volume is on
/// one node, so the capacities of several are not added up: the largest one counts.
pub async fn available_capacity(
    home: &Cluster,
    registry: &Registry,
    policy: &Policy,
    parameters: &BTreeMap<String, String>,
    place: &Segments,
) -> Result<AvailableCapacity, ApiError> {
    let recorded = refusals::recorded(home, &policy.namespace).await?;
    let now = jiff::Timestamp::now().as_second();
    let refused: Vec<&Refused> = recorded.iter().filter(|refused| refused.counts(now)).collect();
    let views = CapacityViews::collect(home, registry, static_volumes(home).await?);
    // The request has the parameters of a class but not its name, to which the class mappings refer.
    let same = views
        .virtual_classes()
        .filter(|class| class.parameters == *parameters);
    let mut asked: Vec<Cow<'_, Class>> = same.map(Cow::Borrowed).collect();
    if asked.is_empty() {
        asked.push(Cow::Owned(nameless(parameters)));
    }
    let published = asked
        .iter()
        .flat_map(|class| views.of(class, &policy.allowed_classes, &refused, place));
    Ok(published
        .map(|one| one.available)
        .max()
        .unwrap_or(AvailableCapacity::Zero))
}

/// A virtual class with these parameters and without a name.
fn nameless(parameters: &BTreeMap<String, String>) -> Class {
    Class {
        name: String::new(),
        provisioner: DRIVER_NAME.to_owned(),
        binding: BindingMode::WaitForFirstConsumer,
        reclaim: ReclaimPolicy::Delete,
        is_default: false,
        created: 0,
        allowed_topologies: Vec::new(),
        allows_expansion: true,
        parameters: parameters.clone(),
    }
}

/// The static PVs, if there is a class for them.
async fn static_volumes(home: &Cluster) -> Result<Vec<StaticVolume>, ApiError> {
    let mut found = Vec::new();
    for class in classes(home) {
        if class.provisioner == NO_PROVISIONER {
            found.append(&mut home.static_volumes(&class.name).await?);
        }
    }
    Ok(found)
}

/// The views of home and of all remote clusters from which capacities are computed.
pub struct CapacityViews {
    home: Cluster,
    views: ClusterViews,
    remotes: Vec<RemoteViews>,
}

impl CapacityViews {
    /// Collects the views of home, with these free static PVs, and of all remote clusters.
    #[must_use]
    pub fn collect(home: &Cluster, registry: &Registry, free: Vec<StaticVolume>) -> Self {
        Self {
            home: home.clone(),
            views: ClusterViews::of(home, free),
            remotes: registry.all().into_iter().map(RemoteViews::of).collect(),
        }
    }

    pub fn virtual_classes(&self) -> impl Iterator<Item = &Class> {
        self.views
            .classes
            .iter()
            .filter(|class| class.provisioner == DRIVER_NAME)
    }

    /// The capacities to publish for a virtual class, limited to this topology segment. `allowed` are the
    /// real classes that claims may name, `refused` the remembered refusals of remote clusters.
    #[must_use]
    pub fn of(
        &self,
        class: &Class,
        allowed: &BTreeSet<String>,
        refused: &[&Refused],
        place: &Segments,
    ) -> Vec<Published> {
        let one_namespace = !class.shares_namespace();
        let no_map = ClassMap::default();
        let possible = possible(
            &self.views.classes,
            class,
            allowed,
            &no_map,
            one_namespace,
            self.home.id(),
        );
        let surroundings: Vec<_> = possible
            .iter()
            .map(|class| self.views.surroundings(class))
            .collect();
        let remotes: Vec<_> = self
            .remotes
            .iter()
            .filter(|remote| Segments::of_cluster(remote.id()).is_within(place))
            .map(|remote| {
                let available = remote.available(class, allowed);
                let smallest = smallest(refused, class, remote.id());
                // This size did not fit; a smaller one may.
                let available = smallest.map_or(available, |bytes| available.up_to(bytes.saturating_sub(1)));
                (remote.id().clone(), available)
            })
            .collect();
        publish(&class.name, &surroundings, &self.nodes(place), &remotes)
    }

    fn nodes(&self, place: &Segments) -> Cow<'_, [Node]> {
        let all = &self.views.nodes;
        if all.iter().all(|node| place.admits(&node.labels)) {
            return Cow::Borrowed(all);
        }
        let within = all.iter().filter(|node| place.admits(&node.labels));
        Cow::Owned(within.cloned().collect())
    }
}

/// The CSI drivers whose volumes the claims of this driver can get at home.
#[must_use]
pub fn real_drivers(home: &Cluster, allowed: &BTreeSet<String>) -> BTreeSet<String> {
    let classes = classes(home);
    let of_class = |class: &Class| -> Vec<String> {
        let map = ClassMap::default();
        let possible = possible(
            &classes,
            class,
            allowed,
            &map,
            !class.shares_namespace(),
            home.id(),
        );
        possible.iter().map(|class| class.provisioner.clone()).collect()
    };
    let ours = classes.iter().filter(|class| class.provisioner == DRIVER_NAME);
    ours.flat_map(of_class).collect()
}

/// The smallest volume of a class that a cluster has refused.
fn smallest(refused: &[&Refused], class: &Class, cluster: &ClusterId) -> Option<u64> {
    let about = refused
        .iter()
        .filter(|refused| refused.is_about(&class.name, cluster));
    about.map(|refused| refused.bytes).min()
}

/// The views of one cluster, as the model takes them.
struct ClusterViews {
    nodes: Vec<Node>,
    classes: Vec<Class>,
    drivers: HashMap<String, RealDriver>,
    unknown: RealDriver,
    capacities: Vec<Capacity>,
    volumes: Vec<StaticVolume>,
}

impl ClusterViews {
    fn of(cluster: &Cluster, volumes: Vec<StaticVolume>) -> Self {
        let views = cluster.views();
        let mut drivers: HashMap<String, RealDriver> = HashMap::new();
        for driver in views.drivers.all() {
            let known = RealDriver {
                registered_on: Some(BTreeSet::new()),
                publishes_capacity: driver.publishes_capacity,
            };
            drivers.insert(driver.name.clone(), known);
        }
        for node in views.csi_nodes.all() {
            for name in &node.drivers {
                let driver = drivers.get_mut(name);
                if let Some(nodes) = driver.and_then(|driver| driver.registered_on.as_mut()) {
                    nodes.insert(node.node.clone());
                }
            }
        }
        Self {
            nodes: views.nodes.all().iter().map(|it| Node::clone(it)).collect(),
            classes: views.classes.all().iter().map(|it| Class::clone(it)).collect(),
            drivers,
            unknown: RealDriver::default(),
            capacities: views
                .capacities
                .all()
                .iter()
                .map(|it| Capacity::clone(it))
                .collect(),
            volumes,
        }
    }

    fn surroundings<'a>(&'a self, class: &'a Class) -> ClassContext<'a> {
        ClassContext {
            class,
            driver: self.drivers.get(&class.provisioner).unwrap_or(&self.unknown),
            capacities: &self.capacities,
            volumes: &self.volumes,
        }
    }
}

/// The real classes among these that claims of a virtual class can get in this cluster.
fn possible<'a>(
    classes: &'a [Class],
    class: &Class,
    allowed: &BTreeSet<String>,
    map: &ClassMap,
    one_namespace: bool,
    cluster: &ClusterId,
) -> Vec<&'a Class> {
    let known = KnownClasses::Listed(classes);
    possible_inputs(class, allowed, map, one_namespace)
        .filter_map(|inputs| choose_class(&inputs, known, cluster).ok())
        .filter_map(|chosen| classes.iter().find(|class| class.name == chosen.name()))
        .collect()
}

/// A remote cluster, as far as it can be observed now.
struct RemoteViews {
    remote: Arc<Remote>,
    visible: Visible,
}

/// What can be observed of a remote cluster.
enum Visible {
    /// Nodes, classes and capacities.
    Views(Cluster, ClusterViews),
    /// The cluster is reachable, but its classes cannot be read.
    NoClasses,
    /// Nothing; the capacity is the same for all classes.
    Fixed(AvailableCapacity),
}

impl RemoteViews {
    fn of(remote: Arc<Remote>) -> Self {
        let visible = match remote.reach() {
            // The cluster takes no new volumes.
            _ if remote.closed().is_some() => Visible::Fixed(AvailableCapacity::Zero),
            Ok(cluster) if cluster.rights().classes => {
                let views = ClusterViews::of(&cluster, Vec::new());
                Visible::Views(cluster, views)
            }
            Ok(_) => Visible::NoClasses,
            Err(Unreachable::Connecting { .. }) => Visible::Fixed(AvailableCapacity::Unlimited),
            // Pods that need a new volume should run elsewhere.
            Err(Unreachable::NoAnswer { .. } | Unreachable::Refused { .. } | Unreachable::Unknown(_)) => {
                Visible::Fixed(AvailableCapacity::Zero)
            }
        };
        Self { remote, visible }
    }

    fn id(&self) -> &ClusterId {
        &self.remote.id
    }

    fn available(&self, class: &Class, allowed: &BTreeSet<String>) -> AvailableCapacity {
        let (id, map) = (self.id(), &self.remote.classes);
        match &self.visible {
            Visible::Fixed(available) => *available,
            // A class that cannot be read has to be named explicitly.
            Visible::NoClasses => match served(class, allowed, map, KnownClasses::Unreadable, id) {
                Err(NoClass::All(_)) => AvailableCapacity::Zero,
                Ok(()) | Err(NoClass::Unnamed(_)) => AvailableCapacity::Unlimited,
            },
            Visible::Views(cluster, views) => {
                let possible = possible(&views.classes, class, allowed, map, false, cluster.id());
                let surroundings: Vec<_> = possible.iter().map(|class| views.surroundings(class)).collect();
                let rights = cluster.rights();
                let nodes = (rights.nodes && rights.capacities).then_some(views.nodes.as_slice());
                capacity_in(&surroundings, nodes)
            }
        }
    }
}
