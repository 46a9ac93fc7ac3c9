//! The capacity that `GetCapacity` returns, at home and in a remote cluster.

use serde_json::json;

use super::*;
use crate::{
    cluster::Rights,
    fleet::Link,
    placement::{AvailableCapacity, ClassMap, Declared, NodeRule},
    topology::LabelSelector,
    volume::Refused,
};

const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const GIB: u64 = 1 << 30;

/// Two nodes, of which n1 has a capacity of 7 GiB of the class `real`.
async fn world() -> World {
    let world = World::new(Real::Idle).await;
    let capacity = json!({
        "storageClassName": "real", "capacity": "7Gi",
        "nodeTopology": {"matchLabels": {NODE_KEY: "n1"}},
    });
    let spec = json!({"attachRequired": true, "storageCapacity": true});
    for (path, object) in [
        (
            "/apis/storage.k8s.io/v1/csidrivers/real.test",
            json!({"spec": spec}),
        ),
        (
            "/apis/storage.k8s.io/v1/namespaces/theirs/csistoragecapacities/c",
            capacity,
        ),
    ] {
        world.api.put(path, object);
    }
    World {
        home: world.api.cluster().await,
        policy: Policy {
            namespace: "ours".into(),
            ..Policy::default()
        },
        ..world
    }
}

impl World {
    async fn available(
        &self,
        registry: &Registry,
        real_class: Option<&str>,
        place: &Segments,
    ) -> AvailableCapacity {
        let named = real_class.map(|name| ("realStorageClass".to_owned(), name.to_owned()));
        let parameters = named.into_iter().collect();
        available_capacity(&self.home, registry, &self.policy, &parameters, place)
            .await
            .unwrap()
    }

    fn node(&self, name: &str) -> Segments {
        Segments::of_node(self.home.id(), name)
    }
}

fn gibs(gib: u64) -> AvailableCapacity {
    AvailableCapacity::Limited {
        maximum: gib * GIB,
        capacity: Some(gib * GIB),
    }
}

/// A cluster whose classes cannot be read, and that maps `liqo` but has no default.
async fn milan(there: &FakeApi) -> Registry {
    let declared = Declared {
        nodes: NodeRule::Labels(LabelSelector(Vec::new())),
        classes: ClassMap {
            mapping: [("liqo".to_owned(), "gold".to_owned())].into(),
            ..ClassMap::default()
        },
        ..Declared::plain("milan")
    };
    Registry::fixed([(declared, Link::up(there, Rights::default()).await)])
}

#[tokio::test]
async fn the_capacity_of_a_topology_is_that_of_its_best_node() {
    let (world, nobody) = (world().await, Registry::default());
    let anywhere = Segments::default();
    let home = Segments::of_cluster(world.home.id());
    for (place, available) in [
        (world.node("n1"), gibs(7)),
        (world.node("n2"), AvailableCapacity::Zero),
        (home, gibs(7)),
        (anywhere.clone(), gibs(7)),
        (anywhere.with("other.test/key", "zone"), AvailableCapacity::Zero),
        (
            Segments::of_cluster(&"rome".parse().unwrap()),
            AvailableCapacity::Zero,
        ),
    ] {
        assert_eq!(
            world.available(&nobody, Some("real"), &place).await,
            available,
            "{place}"
        );
    }
}

#[tokio::test]
async fn an_unknown_class_does_not_limit_capacity() {
    let (world, nobody) = (world().await, Registry::default());
    let available = world
        .available(&nobody, Some("missing"), &Segments::default())
        .await;
    assert_eq!(available, AvailableCapacity::Unlimited);
}

#[tokio::test]
async fn static_volumes_count_as_capacity() {
    let (world, nobody) = (world().await, Registry::default());
    for (name, class, size) in [
        ("a", "static", "2Gi"),
        ("b", "static", "3Gi"),
        ("c", "other", "9Gi"),
    ] {
        let volume = json!({
            "spec": {
                "storageClassName": class, "capacity": {"storage": size}, "local": {"path": "/data"},
                "accessModes": ["ReadWriteOnce"],
            },
            "status": {"phase": "Available"},
        });
        world.api.put(&format!("{VOLUMES}/{name}"), volume);
    }
    let volumes = &world.home.views().volumes;
    let are_seen = |_: &u64| volumes.free(None).len() == 3;
    volumes.version().wait_for(are_seen).await.unwrap();
    let available = world.available(&nobody, Some("static"), &world.node("n1")).await;
    assert_eq!((available.maximum(), available.capacity()), (3 * GIB, 5 * GIB));
}

/// The request does not name a class, and clusters map classes by their names.
#[tokio::test]
async fn capacity_of_a_remote_cluster_needs_the_class_of_the_parameters() {
    let (world, there) = (world().await, FakeApi::start().await);
    let registry = milan(&there).await;
    let milan = Segments::of_cluster(&"milan".parse().unwrap());
    assert_eq!(
        world.available(&registry, None, &milan).await,
        AvailableCapacity::Unlimited
    );
    world.api.remove(&format!("{CLASSES}/liqo"));
    let world = World {
        home: world.api.cluster().await,
        ..world
    };
    assert_eq!(
        world.available(&registry, None, &milan).await,
        AvailableCapacity::Zero
    );
}

#[tokio::test]
async fn a_refused_size_limits_capacity_for_a_while() {
    let (world, there) = (world().await, FakeApi::start().await);
    let registry = milan(&there).await;
    let milan = Segments::of_cluster(&"milan".parse().unwrap());
    let now = jiff::Timestamp::now().as_second();
    let refused = async |ago: i64| {
        let note = Refused::new("liqo", &"milan".parse().unwrap(), GIB, now - ago);
        world.api.put(
            "/api/v1/namespaces/ours/configmaps/liqo-csi-refusals",
            json!({"data": {"a": note.to_string()}}),
        );
        world.available(&registry, None, &milan).await
    };
    assert_eq!(refused(0).await.maximum(), GIB - 1);
    assert_eq!(refused(120).await, AvailableCapacity::Unlimited);
}
