//! Publishes `CSIStorageCapacity` for our classes, as `placement::publish` says.
//! New objects come before old ones go: a node that has none is hidden from all
//! claims of the class.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::storage::v1::CSIStorageCapacity,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
    },
};
use kube::{Api, ResourceExt, api::ObjectMeta, runtime::watcher};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Settings,
    rounds::{Rounds, each},
    watched::Watched,
};
use crate::{
    cluster::{
        ApiError, Cluster, Objects, Precondition, facts,
        view::{Slim, View},
    },
    fleet::{Registry, Remote, Unreachable},
    observe::crash::{self, Step},
    placement::{
        BindingMode, Capacity, Class, ClassMap, KnownClasses, NoClass, Published, RealDriver, Room,
        StaticVolume, Surroundings, choose_class, publish, room_in, served, wishes,
    },
    topology::Node,
    twin::Refusals,
    volume::{ClusterId, DRIVER_NAME, mark, quantity},
};

/// The loop that publishes capacities.
pub(super) struct Capacities<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    settings: &'a Settings,
    published: Objects<CSIStorageCapacity>,
    /// What is published now.
    shown: View<Shown>,
    /// What remote clusters did not take a moment ago.
    refusals: View<Refusals>,
    _stops: DropGuard,
}

impl<'a> Capacities<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        registry: &'a Registry,
        watched: &'a Watched,
        settings: &'a Settings,
    ) -> Self {
        let stop = CancellationToken::new();
        let ours = watcher::Config::default().labels(&mark::selector(home.id()));
        let capacities = Api::namespaced(home.client().clone(), &settings.namespace);
        Self {
            home,
            registry,
            watched,
            settings,
            published: home.within(&settings.namespace),
            shown: View::start(capacities, ours, |it| Some(shown(&it)), &stop),
            refusals: Refusals::watch(home, &settings.namespace, &stop),
            _stops: stop.drop_guard(),
        }
    }

    fn wanted(&self) -> Vec<Published> {
        let world = World::of(self.home, self.watched.static_volumes());
        let there: Vec<_> = self.registry.all().into_iter().map(There::of).collect();
        let ours = world.classes.iter().filter(|class| {
            class.provisioner == DRIVER_NAME && class.binding == BindingMode::WaitForFirstConsumer
        });
        ours.flat_map(|class| {
            let possible = world.possible(
                class,
                &self.settings.allowed_classes,
                &ClassMap::default(),
                !class.shares_namespace(),
                self.home,
            );
            let surroundings: Vec<_> = possible.iter().map(|class| world.surroundings(class)).collect();
            let room = |there: &There| {
                let (cluster, room) = there.room(class, self.settings);
                let room = self.smallest_refused(class, &cluster).map_or(room, |bytes| {
                    // This one did not fit; what is smaller may.
                    room.up_to(bytes.saturating_sub(1))
                });
                (cluster, room)
            };
            let remotes: Vec<_> = there.iter().map(room).collect();
            publish(&class.name, &surroundings, &world.nodes, &remotes)
        })
        .collect()
    }

    /// The smallest volume of a class that a cluster would not take a moment ago.
    fn smallest_refused(&self, class: &Class, cluster: &ClusterId) -> Option<u64> {
        let now = jiff::Timestamp::now().as_second();
        let noted = self.refusals.all();
        let counting = noted
            .iter()
            .flat_map(|notes| notes.iter())
            .filter(|refused| refused.counts(now) && refused.is_about(&class.name, cluster));
        counting.map(|refused| refused.bytes).min()
    }

    async fn set(&self, wanted: &Published) -> Result<(), ApiError> {
        let Some(shown) = self.shown.get(&self.key(&wanted.name)) else {
            let created =
                crash::around(Step::CapacityWrite, self.published.create(&self.object(wanted))).await;
            return created.map(|_| ());
        };
        let room = &wanted.room;
        if shown.capacity == Some(room.capacity()) && shown.maximum == Some(room.maximum()) {
            return Ok(());
        }
        let patch = json!({
            "capacity": quantity(wanted.room.capacity()),
            "maximumVolumeSize": quantity(wanted.room.maximum()),
        });
        let changed = crash::around(Step::CapacityWrite, self.published.merge(&wanted.name, &patch)).await;
        changed.map(|_| ())
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.settings.namespace)
    }

    fn object(&self, wanted: &Published) -> CSIStorageCapacity {
        let labels = [
            (mark::MANAGED_BY, mark::MANAGED_BY_US),
            (mark::HOME_CLUSTER, self.home.id().as_str()),
        ];
        CSIStorageCapacity {
            metadata: ObjectMeta {
                name: Some(wanted.name.clone()),
                labels: Some(
                    labels
                        .map(|(key, value)| (key.to_owned(), value.to_owned()))
                        .into(),
                ),
                ..ObjectMeta::default()
            },
            storage_class_name: wanted.class.clone(),
            node_topology: Some(LabelSelector {
                match_labels: None,
                match_expressions: Some(vec![LabelSelectorRequirement {
                    key: wanted.key.clone(),
                    operator: "In".to_owned(),
                    values: Some(wanted.values.clone()),
                }]),
            }),
            capacity: Some(Quantity(quantity(wanted.room.capacity()))),
            maximum_volume_size: Some(Quantity(quantity(wanted.room.maximum()))),
        }
    }
}

impl Rounds for Capacities<'_> {
    const NAME: &'static str = "capacity";
    const RESYNC: Duration = Duration::from_mins(1);

    /// When the next refusal counts no more: nobody tells that either.
    fn due(&self) -> Option<Duration> {
        let now = jiff::Timestamp::now().as_second();
        let noted = self.refusals.all();
        let counting = noted
            .iter()
            .flat_map(|notes| notes.iter())
            .filter(|refused| refused.counts(now));
        let ends = counting.map(|refused| refused.until).min()?;
        Some(Duration::from_secs((ends - now).unsigned_abs()))
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let views = self.home.views();
        vec![
            views.classes.version(),
            views.nodes.version(),
            views.csi_nodes.version(),
            views.drivers.version(),
            views.capacities.version(),
            self.watched.volumes.version(),
            self.refusals.version(),
            self.shown.version(),
            self.registry.changes(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        self.shown.complete().await;
        let wanted = self.wanted();
        each(&wanted, |wanted| self.set(wanted)).await?;

        let names: BTreeSet<&str> = wanted.iter().map(|wanted| wanted.name.as_str()).collect();
        let shown = self.shown.all();
        let obsolete = shown.iter().filter(|shown| !names.contains(shown.name.as_str()));
        each(obsolete, async |shown: &Arc<Shown>| {
            let exactly = Precondition {
                uid: shown.uid.clone(),
                resource_version: None,
            };
            let deleted = self.published.delete(&shown.name, exactly);
            match crash::around(Step::CapacityDelete, deleted).await {
                // Another object of this name: the next round looks at it.
                Err(error) if error.is_conflict() => Ok(()),
                other => other.map(drop),
            }
        })
        .await
    }
}

/// A capacity that is published. Its topic is its name.
#[derive(Debug, PartialEq)]
struct Shown {
    name: String,
    uid: String,
    capacity: Option<u64>,
    maximum: Option<u64>,
}

impl Slim for Shown {
    fn topic(&self) -> &str {
        &self.name
    }
}

fn shown(object: &CSIStorageCapacity) -> Shown {
    let read = facts::capacity(object);
    Shown {
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        capacity: read.capacity,
        maximum: read.maximum,
    }
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

    fn surroundings<'a>(&'a self, class: &'a Class) -> Surroundings<'a> {
        Surroundings {
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
    Nothing(Room),
}

impl There {
    fn of(remote: Arc<Remote>) -> Self {
        let look = match remote.reach() {
            // It takes no new volumes.
            _ if remote.closed().is_some() => Look::Nothing(Room::Zero),
            Ok(cluster) if cluster.rights().classes => {
                let world = World::of(&cluster, Vec::new());
                Look::World(cluster, world)
            }
            Ok(_) => Look::Blind,
            Err(Unreachable::Connecting { .. }) => Look::Nothing(Room::Unlimited),
            // Pods that need a volume had better go elsewhere.
            Err(Unreachable::NoAnswer { .. } | Unreachable::Refused { .. } | Unreachable::Unknown(_)) => {
                Look::Nothing(Room::Zero)
            }
        };
        Self { remote, look }
    }

    fn room(&self, class: &Class, settings: &Settings) -> (ClusterId, Room) {
        let (id, map) = (&self.remote.id, &self.remote.classes);
        let allowed = &settings.allowed_classes;
        let room = match &self.look {
            Look::Nothing(room) => *room,
            // A class that cannot be seen has to be named.
            Look::Blind => match served(class, allowed, map, KnownClasses::Unreadable, id) {
                Err(NoClass::All(_)) => Room::Zero,
                Ok(()) | Err(NoClass::Unnamed(_)) => Room::Unlimited,
            },
            Look::World(cluster, world) => {
                let possible = world.possible(class, allowed, map, false, cluster);
                let surroundings: Vec<_> = possible.iter().map(|class| world.surroundings(class)).collect();
                let rights = cluster.rights();
                let nodes = (rights.nodes && rights.capacities).then_some(world.nodes.as_slice());
                room_in(&surroundings, nodes)
            }
        };
        (id.clone(), room)
    }
}

#[cfg(test)]
mod tests;
