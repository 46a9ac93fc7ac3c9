//! Snapshots in a remote cluster.

use super::*;
use crate::{
    cluster::Rights,
    fleet::Link,
    placement::{ClassMap, Declared, Mapped, Namespaces},
};

const TWINS: &str = "/api/v1/namespaces/shop-home/persistentvolumeclaims";

pub(super) struct Remote {
    pub(super) here: FakeApi,
    pub(super) there: FakeApi,
    home: Cluster,
    rights: Rights,
    protect: bool,
    request: SnapshotRequest,
    classes: ClassMap,
}

impl Remote {
    /// A volume whose twin is the claim `data` of the namespace `shop-home` of milan.
    async fn new() -> Self {
        let (here, there) = (FakeApi::start().await, FakeApi::start().await);
        furnish(&there);
        volume(&there, TWINS, "data");
        here.put(&user_content(), json!({"spec": {"deletionPolicy": "Delete"}}));
        let attributes =
            json!({"storage.liqo.io/twin-namespace": "shop-home", "storage.liqo.io/twin-name": "data"});
        here.put(
            &format!("/api/v1/persistentvolumes/pvc-{UID}"),
            json!({"spec": {"csi": {"driver": "storage.liqo.io", "volumeAttributes": attributes}}}),
        );
        let home = here.cluster().await;
        Self {
            here,
            there,
            home,
            rights: Rights::ALL,
            protect: true,
            request: request("milan"),
            classes: ClassMap::default(),
        }
    }

    async fn registry(&self) -> Registry {
        let declared = Declared {
            namespaces: Namespaces {
                mapping: [("shop".to_owned(), Mapped::To("shop-home".into()))].into(),
                same_name: false,
            },
            classes: self.classes.clone(),
            protect: self.protect,
            ..Declared::plain("milan")
        };
        Registry::fixed([(declared, Link::up(&self.there, self.rights).await)])
    }

    async fn cut(&self) -> Result<TakenSnapshot, SnapshotCreateError> {
        self.cut_within(TEST_TIMEOUT).await
    }

    /// Creates the twin, which is not cut.
    async fn cut_in_vain(&self) {
        let outcome = self.cut_within(A_MOMENT).await;
        assert!(
            matches!(outcome, Err(SnapshotCreateError::StillWaiting { .. })),
            "{outcome:?}"
        );
    }

    async fn cut_within(&self, time: Duration) -> Result<TakenSnapshot, SnapshotCreateError> {
        let events = Events::new(self.home.client().clone());
        let until = Instant::now() + time;
        create_snapshot(&self.home, &self.registry().await, &events, &self.request, until).await
    }

    /// A cut snapshot, in a cluster with these rights and this policy.
    pub(super) async fn in_use(rights: Rights, protect: bool) -> Self {
        let mut world = Self::new().await;
        (world.rights, world.protect) = (rights, protect);
        world.cut_in_vain().await;
        cut(&world.there, &path(), true);
        world.cut().await.unwrap();
        world
    }

    /// Records the uid of the cluster at home.
    fn record_uid(&self, uid: &str) {
        self.here.put(
            "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan",
            json!({
                "spec": {"kubeconfigSecretRef": {"name": "milan"}, "nodeSelector": {"matchLabels": {"to": "milan"}}},
                "status": {"virtualNode": {"clusterUid": uid}},
            }),
        );
    }

    fn id(&self) -> SnapshotId {
        SnapshotId::new(
            "milan".parse().unwrap(),
            Some("shop-home"),
            self.request.key.clone(),
        )
    }
}

fn path() -> String {
    format!("{KINDS}/namespaces/shop-home/volumesnapshots/snapshot-{SNAPSHOT}")
}

#[tokio::test]
async fn a_remote_snapshot_is_next_to_its_volume_and_found_by_its_id() {
    let world = Remote::new().await;
    world.cut_in_vain().await;
    let twin = world.there.object(&path()).unwrap();
    assert_eq!(twin["spec"]["source"]["persistentVolumeClaimName"], "data");
    cut(&world.there, &path(), true);
    let made = world.cut().await.unwrap();
    assert_eq!(made.id, world.id());
    assert_eq!(made.id.to_string(), format!("s1:milan:shop-home:{SNAPSHOT}"));

    let registry = world.registry().await;
    let found = find_snapshot(&world.home, &registry, &made.id).await.unwrap();
    assert_eq!(found.as_ref(), Some(&made));
    let listed = list_snapshots(&world.home, &registry, SnapshotFilter::All).await;
    assert_eq!(listed.unwrap(), std::slice::from_ref(&made));

    let events = Events::new(world.home.client().clone());
    let delete = async |time: Duration| {
        let until = Instant::now() + time;
        delete_snapshot(&world.home, &registry, &events, &made.id, until).await
    };
    // First the policy of its content is restored, and the controller has to see that.
    let first = delete(A_MOMENT).await;
    assert!(
        matches!(first, Err(SnapshotDeleteError::StillWaiting { .. })),
        "{first:?}"
    );
    let real = format!("{KINDS}/volumesnapshotcontents/real");
    world
        .there
        .before("DELETE", &path(), move |store| store.remove(&real));
    delete(TEST_TIMEOUT).await.unwrap();
    assert_eq!(world.there.object(&path()), None);
}

/// The kubeconfig leads to a cluster that took the place of the one with the data.
#[tokio::test]
async fn a_snapshot_missing_in_a_replaced_cluster_does_not_count_as_deleted() {
    let world = Remote::new().await;
    world.record_uid("before");
    let registry = world.registry().await;
    let events = Events::new(world.home.client().clone());
    for (uid, is_other) in [("after", true), ("before", false)] {
        let system = json!({"metadata": {"uid": uid}});
        world.there.put("/api/v1/namespaces/kube-system", system);
        let until = Instant::now() + TEST_TIMEOUT;
        let deleted = delete_snapshot(&world.home, &registry, &events, &world.id(), until).await;
        let refused = matches!(
            &deleted,
            Err(SnapshotDeleteError::Site(SnapshotSiteError::Unknown(_)))
        );
        assert_eq!(refused, is_other, "{deleted:?}");
        assert_eq!(deleted.is_ok(), !is_other, "{deleted:?}");
    }
}

#[tokio::test]
async fn the_snapshot_class_is_mapped_in_a_remote_cluster() {
    let mut world = Remote::new().await;
    world.request.parameters.real_class = Some("gold".into());
    assert!(matches!(
        world.cut().await,
        Err(SnapshotCreateError::Class(SnapshotClassError::NotFound { .. }))
    ));
    world.classes.snapshots = [("gold".to_owned(), "fast".to_owned())].into();
    world.cut_in_vain().await;
    let twin = world.there.object(&path()).unwrap();
    assert_eq!(twin["spec"]["volumeSnapshotClassName"], "fast");
}

#[tokio::test]
async fn with_the_least_of_rights_only_the_default_class_is_used() {
    let mut world = Remote::new().await;
    world.rights = Rights::default();
    for kind in [
        "/volumesnapshotclasses",
        "/volumesnapshotcontents",
        "/persistentvolumes",
    ] {
        world
            .there
            .fault(Fault::new("GET", kind, Act::Forbid("no right")));
    }
    world.request.parameters.real_class = Some("fast".into());
    assert!(matches!(
        world.cut().await,
        Err(SnapshotCreateError::Class(SnapshotClassError::Unreadable { .. }))
    ));
    world.request.parameters.real_class = None;
    world.cut_in_vain().await;
    cut(&world.there, &path(), true);
    world.cut().await.unwrap();
    let listed = list_snapshots(&world.home, &world.registry().await, SnapshotFilter::All).await;
    assert_eq!(listed.unwrap().len(), 1);
}

#[tokio::test]
async fn a_namespace_too_long_for_the_id_is_found() {
    let world = Remote::new().await;
    world.cut_in_vain().await;
    cut(&world.there, &path(), true);
    let place = |namespace: &str| {
        let long = SnapshotId::new("c".repeat(63).parse().unwrap(), Some(namespace), world.id().key);
        SnapshotId {
            place: long.place,
            ..world.id()
        }
    };
    // Only a name of this length leads to such an id; every name has such a hash.
    let long = "n".repeat(63);
    let registry = world.registry().await;
    let nowhere = find_snapshot(&world.home, &registry, &place(&long)).await;
    assert_eq!(nowhere.unwrap(), None, "all that is there was seen");
    let object = world.there.object(&path()).unwrap();
    world.there.put(&path().replace("shop-home", &long), object);
    assert!(
        find_snapshot(&world.home, &registry, &place(&long))
            .await
            .unwrap()
            .is_some()
    );

    // Without a list, if it is offloaded now.
    let declared = Declared {
        namespaces: Namespaces {
            mapping: [("shop".to_owned(), Mapped::To(long.clone()))].into(),
            same_name: false,
        },
        ..Declared::plain("milan")
    };
    let lists = world.there.requests().len();
    let named = Registry::fixed([(declared, Link::up(&world.there, world.rights).await)]);
    let found = find_snapshot(&world.home, &named, &place(&long)).await;
    assert!(found.unwrap().is_some());
    let everywhere = format!("GET {KINDS}/volumesnapshots");
    let requests = world.there.requests().split_off(lists);
    assert!(!requests.contains(&everywhere), "{requests:?}");

    let is_unknown = async |world: &Remote, namespace: &str| {
        let found = find_snapshot(&world.home, &world.registry().await, &place(namespace)).await;
        matches!(found, Err(SnapshotReadError::Site(SnapshotSiteError::Unknown(_))))
    };
    let mut blind = Remote::new().await;
    blind.rights = Rights::default();
    assert!(is_unknown(&blind, &long).await, "not all namespaces were read");
    let system = json!({"metadata": {"uid": "after"}});
    world.there.put("/api/v1/namespaces/kube-system", system);
    world.record_uid("before");
    assert!(is_unknown(&world, &"m".repeat(63)).await, "it is another cluster");
}

/// Its claim was deleted before the snapshot was taken, for example with its namespace.
#[tokio::test]
async fn a_volume_that_no_pv_records_has_no_snapshots() {
    let mut world = Remote::new().await;
    world.here.remove(&format!("/api/v1/persistentvolumes/pvc-{UID}"));
    world.there.remove(&format!("{TWINS}/data"));
    assert!(matches!(world.cut().await, Err(SnapshotCreateError::NoVolume(_))));
    world.rights = Rights::default();
    assert!(matches!(world.cut().await, Err(SnapshotCreateError::NoRecord(_))));
}

#[tokio::test]
async fn an_unreachable_cluster_does_not_mean_that_the_snapshot_is_gone() {
    let world = Remote::new().await;
    let registry = Registry::fixed([(Declared::plain("milan"), Link::Unreachable("cut off".into()))]);
    let events = Events::new(world.home.client().clone());
    let until = Instant::now() + TEST_TIMEOUT;
    let cut = create_snapshot(&world.home, &registry, &events, &world.request, until).await;
    assert!(matches!(cut, Err(SnapshotCreateError::Unreachable(_))));
    let deleted = delete_snapshot(&world.home, &registry, &events, &world.id(), until).await;
    assert!(matches!(
        deleted,
        Err(SnapshotDeleteError::Site(SnapshotSiteError::Unreachable(_)))
    ));
    let told = world
        .here
        .store()
        .below("/apis/events.k8s.io/v1/namespaces/default/events/");
    assert_eq!(told[0]["reason"], "SnapshotNotDeleted");
    assert!(told[0]["note"].as_str().unwrap().contains("cut off"));
    assert!(find_snapshot(&world.home, &registry, &world.id()).await.is_err());
    let listed = list_snapshots(&world.home, &registry, SnapshotFilter::All).await;
    assert!(listed.unwrap().is_empty());
}
