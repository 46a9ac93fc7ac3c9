//! How much room there is for volumes of a virtual class: on the nodes here, and in each
//! remote cluster. The loop `capacity` publishes it and `GetCapacity` answers with it; what
//! follows from what is seen is decided in [`crate::placement`].

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
        choose_class, publish, served, wishes,
    },
    topology::{Node, Segments},
    volume::{ClusterId, DRIVER_NAME, Refused},
};

/// The room for volumes of a class with these parameters, in this place. A volume is on one
/// node, so what several have is not added up: the best one counts.
pub async fn room(
    home: &Cluster,
    registry: &Registry,
    policy: &Policy,
    parameters: &BTreeMap<String, String>,
    place: &Segments,
) -> Result<AvailableCapacity, ApiError> {
    let noted = refusals::noted(home, &policy.namespace).await?;
    let now = jiff::Timestamp::now().as_second();
    let refused: Vec<&Refused> = noted.iter().filter(|refused| refused.counts(now)).collect();
    let rooms = Rooms::look(home, registry, beforehand(home).await?);
    // A request has the parameters of a class and not its name, which is what clusters map.
    let same = rooms
        .virtual_classes()
        .filter(|class| class.parameters == *parameters);
    let mut asked: Vec<Cow<'_, Class>> = same.map(Cow::Borrowed).collect();
    if asked.is_empty() {
        asked.push(Cow::Owned(nameless(parameters)));
    }
    let published = asked
        .iter()
        .flat_map(|class| rooms.of(class, &policy.allowed_classes, &refused, place));
    Ok(published
        .map(|one| one.room)
        .max()
        .unwrap_or(AvailableCapacity::Zero))
}

/// A virtual class that nobody has made.
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

/// The PVs that were made beforehand, if there is a class of such.
async fn beforehand(home: &Cluster) -> Result<Vec<StaticVolume>, ApiError> {
    let mut found = Vec::new();
    for class in classes(home) {
        if class.provisioner == NO_PROVISIONER {
            found.append(&mut home.static_volumes(&class.name).await?);
        }
    }
    Ok(found)
}

/// What there is room in, as it was a moment ago.
pub struct Rooms {
    home: Cluster,
    world: World,
    there: Vec<There>,
}

impl Rooms {
    /// Looks at home, where these PVs are free, and at all remote clusters.
    #[must_use]
    pub fn look(home: &Cluster, registry: &Registry, free: Vec<StaticVolume>) -> Self {
        Self {
            home: home.clone(),
            world: World::of(home, free),
            there: registry.all().into_iter().map(There::of).collect(),
        }
    }

    /// The classes of this driver.
    pub fn virtual_classes(&self) -> impl Iterator<Item = &Class> {
        self.world
            .classes
            .iter()
            .filter(|class| class.provisioner == DRIVER_NAME)
    }

    /// What the scheduler is to be told of a virtual class, of this place only. `allowed` are
    /// the real classes that claims may name, `refused` what remote clusters did not take a
    /// moment ago.
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
        let possible = self
            .world
            .possible(class, allowed, &no_map, one_namespace, &self.home);
        let surroundings: Vec<_> = possible
            .iter()
            .map(|class| self.world.surroundings(class))
            .collect();
        let remotes: Vec<_> = self
            .there
            .iter()
            .filter(|there| Segments::of_cluster(there.id()).is_within(place))
            .map(|there| {
                let room = there.room(class, allowed);
                let smallest = smallest(refused, class, there.id());
                // This one did not fit; what is smaller may.
                let room = smallest.map_or(room, |bytes| room.up_to(bytes.saturating_sub(1)));
                (there.id().clone(), room)
            })
            .collect();
        publish(&class.name, &surroundings, &self.nodes(place), &remotes)
    }

    fn nodes(&self, place: &Segments) -> Cow<'_, [Node]> {
        let all = &self.world.nodes;
        if all.iter().all(|node| place.admits(&node.labels)) {
            return Cow::Borrowed(all);
        }
        let within = all.iter().filter(|node| place.admits(&node.labels));
        Cow::Owned(within.cloned().collect())
    }
}

/// The smallest volume of a class that a cluster would not take.
fn smallest(refused: &[&Refused], class: &Class, cluster: &ClusterId) -> Option<u64> {
    let about = refused
        .iter()
        .filter(|refused| refused.is_about(&class.name, cluster));
    about.map(|refused| refused.bytes).min()
}

/// The views of this moment, as the pure layer takes them.
struct World {
    nodes: Vec<Node>,
    classes: Vec<Class>,
    drivers: HashMap<String, RealDriver>,
    unknown: RealDriver,
    capacities: Vec<Capacity>,
    volumes: Vec<StaticVolume>,
}

impl World {
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

    /// The real classes that claims of a virtual class may get.
    fn possible(
        &self,
        class: &Class,
        allowed: &BTreeSet<String>,
        map: &ClassMap,
        one_namespace: bool,
        cluster: &Cluster,
    ) -> Vec<&Class> {
        let known = KnownClasses::Listed(&self.classes);
        wishes(class, allowed, map, one_namespace)
            .filter_map(|wishes| choose_class(&wishes, known, cluster.id()).ok())
            .filter_map(|chosen| self.classes.iter().find(|class| class.name == chosen.name()))
            .collect()
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

/// A remote cluster, as far as it can be looked into now.
struct There {
    remote: Arc<Remote>,
    look: Look,
}

/// What can be seen of a remote cluster.
enum Look {
    /// Its world.
    World(Cluster, World),
    /// That it is there, but not its classes.
    Blind,
    /// Nothing; this is the room it has whatever the class.
    Nothing(AvailableCapacity),
}

impl There {
    fn of(remote: Arc<Remote>) -> Self {
        let look = match remote.reach() {
            // It takes no new volumes.
            _ if remote.closed().is_some() => Look::Nothing(AvailableCapacity::Zero),
            Ok(cluster) if cluster.rights().classes => {
                let world = World::of(&cluster, Vec::new());
                Look::World(cluster, world)
            }
            Ok(_) => Look::Blind,
            Err(Unreachable::Connecting { .. }) => Look::Nothing(AvailableCapacity::Unlimited),
            // Pods that need a volume had better go elsewhere.
            Err(Unreachable::NoAnswer { .. } | Unreachable::Refused { .. } | Unreachable::Unknown(_)) => {
                Look::Nothing(AvailableCapacity::Zero)
            }
        };
        Self { remote, look }
    }

    fn id(&self) -> &ClusterId {
        &self.remote.id
    }

    fn room(&self, class: &Class, allowed: &BTreeSet<String>) -> AvailableCapacity {
        let (id, map) = (self.id(), &self.remote.classes);
        match &self.look {
            Look::Nothing(room) => *room,
            // A class that cannot be seen has to be named.
            Look::Blind => match served(class, allowed, map, KnownClasses::Unreadable, id) {
                Err(NoClass::All(_)) => AvailableCapacity::Zero,
                Ok(()) | Err(NoClass::Unnamed(_)) => AvailableCapacity::Unlimited,
            },
            Look::World(cluster, world) => {
                let possible = world.possible(class, allowed, map, false, cluster);
                let surroundings: Vec<_> = possible.iter().map(|class| world.surroundings(class)).collect();
                let rights = cluster.rights();
                let nodes = (rights.nodes && rights.capacities).then_some(world.nodes.as_slice());
                capacity_in(&surroundings, nodes)
            }
        }
    }
}
