//! Volumes whose twins are in another cluster, where names are used again.

use super::*;
use crate::{
    cluster::{Rights, registry::Link, view::View},
    placement::Declared,
};

const REALS: &str = "/api/v1/persistentvolumes";

/// A volume whose twin waits for its pod in the cluster `milan`.
fn waiting_there(home: &FakeApi, there: &FakeApi, number: usize) {
    let (name, uid) = (format!("far-{number}"), format!("{UID}-{number}"));
    let volume = format!("pvc-{uid}");
    let marks = Marks {
        home: "home".parse().unwrap(),
        volume: VolumeName::from_request(&volume),
        claim: Some(ClaimMark {
            namespace: "shop".into(),
            name: name.clone(),
            uid: uid.clone(),
        }),
        request_name: volume.clone(),
        fingerprint: None,
        handed_over: true,
    };
    let claims = format!("/api/v1/namespaces/shop/persistentvolumeclaims/{name}");
    there.put(
        &claims,
        json!({
            "metadata": {"labels": marks.labels(), "annotations": marks.annotations()},
            "spec": {"storageClassName": "fast"},
            "status": {"phase": "Pending"},
        }),
    );
    home.put(
        &claims,
        json!({
            "metadata": {
                "uid": uid, "annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER_NAME},
            },
            "spec": {"storageClassName": "liqo", "accessModes": ["ReadWriteOnce"], "volumeName": volume},
            "status": {"phase": "Bound"},
        }),
    );
    home.put(
        &format!("/api/v1/persistentvolumes/{volume}"),
        json!({
            "spec": {
                "csi": {
                    "driver": DRIVER_NAME, "volumeHandle": format!("v1:milan:{}", marks.volume),
                    "volumeAttributes": {crate::twin::TWIN_NAMESPACE: "shop", crate::twin::TWIN_NAME: name},
                },
                "claimRef": {"namespace": "shop", "name": name, "uid": uid},
            },
            "status": {"phase": "Bound"},
        }),
    );
}

/// The same, bound to the PV `name` in `milan`.
fn bound_there(there: &FakeApi, number: usize, name: &str) {
    let path = twin_there(number);
    there.change(&path, |twin| {
        twin["metadata"]["finalizers"] = json!([crate::twin::FINALIZER]);
        twin["spec"]["volumeName"] = name.into();
        twin["status"]["phase"] = "Bound".into();
    });
    let uid = there.object(&path).unwrap()["metadata"]["uid"].clone();
    real_there(there, number, name, &uid, "Delete", "Bound");
}

/// A PV in `milan` that is or was that of a claim with the name of this twin.
fn real_there(there: &FakeApi, number: usize, name: &str, uid: &Value, policy: &str, phase: &str) {
    there.put(
        &format!("{REALS}/{name}"),
        json!({
            "spec": {
                "csi": {"driver": "real.example", "volumeHandle": name},
                "capacity": {"storage": "5Gi"},
                "storageClassName": "fast",
                "claimRef": {"namespace": "shop", "name": format!("far-{number}"), "uid": uid},
                "persistentVolumeReclaimPolicy": policy,
            },
            "status": {"phase": phase},
        }),
    );
}

fn twin_there(number: usize) -> String {
    format!("/api/v1/namespaces/shop/persistentvolumeclaims/far-{number}")
}

/// The control loop of `home`, with `milan` beside it.
struct Both {
    home: FakeApi,
    there: FakeApi,
    reports: Option<Reports>,
    settled: HashSet<(String, bool)>,
    rights: Rights,
    /// The link to `milan`, and with which rights it was made.
    link: Option<(Rights, Registry)>,
}

impl Both {
    async fn start() -> Self {
        Self {
            home: FakeApi::start().await,
            there: FakeApi::start().await,
            reports: None,
            settled: HashSet::new(),
            rights: Rights::ALL,
            link: None,
        }
    }

    /// The link to `milan`, made again when the rights have changed.
    async fn registry(&mut self) -> Registry {
        match &self.link {
            Some((rights, registry)) if *rights == self.rights => registry.clone(),
            _ => {
                let registry = milan(&self.there, self.rights).await;
                self.link = Some((self.rights, registry.clone()));
                registry
            }
        }
    }

    /// What is watched of the namespace of the twins, where not all may be.
    async fn view(&mut self) -> View<Twin> {
        let remote = self.registry().await.get(&"milan".parse().unwrap()).unwrap();
        remote.reach().unwrap().twins_in("shop")
    }

    /// Only the namespace of the twins may be watched, and is.
    async fn watch_one_namespace(&mut self) -> View<Twin> {
        self.rights.all_claims = false;
        let view = self.view().await;
        view.complete().await;
        view
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        // What a test has changed is to be seen.
        let fresh = self.rights.all_claims;
        if fresh {
            self.link = None;
        }
        let registry = self.registry().await;
        let home = self.home.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        let metrics = Metrics::default();
        let known = self.reports.take();
        let known = known.unwrap_or_else(|| Reports::new(Events::new(home.client().clone())));
        let mut health = Health::new(&home, &registry, &watched, known, &metrics);
        health.settled = std::mem::take(&mut self.settled);
        let outcome = health.round().await;
        self.settled = health.settled;
        self.reports = Some(health.reports);
        outcome
    }

    fn told(&self) -> Vec<String> {
        told(&self.home)
    }

    /// What the claim says of its twin.
    fn condition(&self, number: usize) -> (String, String) {
        let claim = self.home.object(&twin_there(number)).unwrap();
        let ours = &claim["status"]["conditions"][0];
        let text = |key: &str| ours[key].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }

    /// What the claim says about it in words.
    fn message(&self, number: usize) -> String {
        let claim = self.home.object(&twin_there(number)).unwrap();
        let text = claim["status"]["conditions"][0]["message"].as_str();
        text.unwrap_or_default().to_owned()
    }

    fn real(&self, name: &str) -> Value {
        self.there.object(&format!("{REALS}/{name}")).unwrap()
    }
}

async fn milan(there: &FakeApi, rights: Rights) -> Registry {
    Registry::fixed([(Declared::plain("milan"), Link::up(there, rights).await)])
}

#[tokio::test]
async fn a_twin_comes_back_onto_its_own_data_and_no_other() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    bound_there(&both.there, 0, "b-ours");
    // Left of earlier claims of that name; the first one even by this driver.
    real_there(&both.there, 0, "a-older", &"gone".into(), "Retain", "Released");
    both.there.change(&format!("{REALS}/a-older"), |older| {
        older["metadata"]["annotations"] = json!({mark::DATA_OF: "home/pvc-older"});
    });
    real_there(&both.there, 0, "c-foreign", &"gone".into(), "Retain", "Released");
    both.round().await.unwrap();
    let marked = format!("home/{}", VolumeName::from_request(&format!("pvc-{UID}-0")));
    assert_eq!(
        both.real("b-ours")["metadata"]["annotations"][mark::DATA_OF],
        marked
    );

    delete(&both.there, &twin_there(0));
    both.round().await.unwrap();
    assert!(both.there.object(&twin_there(0)).is_none());
    both.round().await.unwrap();
    let twin = both.there.object(&twin_there(0)).unwrap();
    assert_eq!(twin["spec"]["volumeName"], "b-ours");
    for other in ["a-older", "c-foreign"] {
        assert_eq!(both.real(other)["spec"]["claimRef"]["uid"], "gone");
    }
}

#[tokio::test]
async fn data_that_nothing_shows_to_be_the_volumes_is_left_alone_and_told() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    both.there.remove(&twin_there(0));
    real_there(&both.there, 0, "a-older", &"gone".into(), "Retain", "Released");
    both.round().await.unwrap();
    assert!(both.there.object(&twin_there(0)).is_none());
    assert_eq!(both.real("a-older")["spec"]["claimRef"]["uid"], "gone");
    assert_eq!(both.told(), ["TwinVanished"]);
    let (status, reason) = both.condition(0);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "TwinVanished"));

    // What the volume was answered with is proof, for volumes older than the mark.
    let volume = format!("{REALS}/pvc-{UID}-0");
    both.home.change(&volume, |volume| {
        volume["spec"]["csi"]["volumeAttributes"][crate::twin::TWIN_VOLUME] = "a-older".into();
    });
    both.round().await.unwrap();
    let twin = both.there.object(&twin_there(0)).unwrap();
    assert_eq!(twin["spec"]["volumeName"], "a-older");
}

#[tokio::test]
async fn the_twin_of_another_volume_is_not_taken_for_its_own() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    bound_there(&both.there, 0, "real");
    // Two namespaces mapped to one: what is there now is the other one's.
    both.there.change(&twin_there(0), |twin| {
        twin["metadata"]["labels"][mark::VOLUME] = format!("pvc-{UID}").into();
        twin["metadata"]["annotations"][mark::CLAIM_UID] = UID.into();
    });
    both.home.change(&format!("{REALS}/pvc-{UID}-0"), |volume| {
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
    both.round().await.unwrap();
    assert_eq!(both.told(), ["TwinVanished"]);
    assert_eq!(both.condition(0), ("False".into(), "TwinVanished".into()));
    assert_eq!(
        both.real("real")["spec"]["persistentVolumeReclaimPolicy"],
        "Delete"
    );
    assert!(both.real("real")["metadata"]["annotations"].is_null());
}

#[tokio::test]
async fn what_is_left_of_a_retained_volume_may_be_deleted() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    bound_there(&both.there, 0, "real");
    both.home.remove(&twin_there(0));
    let volume = format!("{REALS}/pvc-{UID}-0");
    both.home
        .change(&volume, |volume| volume["status"]["phase"] = "Released".into());
    delete(&both.there, &twin_there(0));
    both.round().await.unwrap();
    assert!(
        both.there.object(&twin_there(0)).is_some(),
        "DeleteVolume's matter"
    );

    both.home.change(&volume, |volume| {
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
    both.round().await.unwrap();
    assert!(both.there.object(&twin_there(0)).is_none());
    assert_eq!(
        both.real("real")["spec"]["persistentVolumeReclaimPolicy"],
        "Retain"
    );
}

#[tokio::test]
async fn retain_is_seen_to_when_rights_or_the_wish_come_later() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    bound_there(&both.there, 0, "real");
    let policy = |both: &Both| both.real("real")["spec"]["persistentVolumeReclaimPolicy"].clone();
    let wish = |both: &Both, policy: &str| {
        both.home.change(&format!("{REALS}/pvc-{UID}-0"), |volume| {
            volume["spec"]["persistentVolumeReclaimPolicy"] = policy.into();
        });
    };
    both.round().await.unwrap();
    wish(&both, "Retain");
    both.rights = Rights {
        volume_changes: false,
        ..Rights::ALL
    };
    both.round().await.unwrap();
    assert_eq!(policy(&both), "Delete");
    both.rights = Rights::ALL;
    both.round().await.unwrap();
    assert_eq!(policy(&both), "Retain");
    let writes = both.there.writes();
    both.round().await.unwrap();
    assert_eq!(both.there.writes(), writes);

    wish(&both, "Delete");
    both.round().await.unwrap();
    assert_eq!(
        policy(&both),
        "Delete",
        "taken back, or its data would stay for ever"
    );
    let writes = both.there.writes();
    both.round().await.unwrap();
    assert_eq!(both.there.writes(), writes);
}

#[tokio::test]
async fn the_real_size_reaches_claim_and_volume_after_a_crash_too() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    bound_there(&both.there, 0, "real");
    both.round().await.unwrap();
    both.there.change(&twin_there(0), |twin| {
        twin["status"]["capacity"] = json!({"storage": "5Gi"});
    });
    let volume = format!("{REALS}/pvc-{UID}-0");
    // As if the driver died between the two writes.
    let fault = Fault::new("PATCH", "persistentvolumeclaims/far-0", Act::Refuse(403));
    both.home.fault(fault.times(1));
    let _failed = both.round().await;
    both.round().await.unwrap();
    let size = json!(crate::volume::quantity(5 << 30));
    assert_eq!(
        both.home.object(&volume).unwrap()["spec"]["capacity"]["storage"],
        size
    );
    assert_eq!(
        both.home.object(&twin_there(0)).unwrap()["status"]["capacity"]["storage"],
        size
    );
}

#[tokio::test]
async fn a_volume_that_cannot_be_helped_does_not_slow_the_others() {
    let mut both = Both::start().await;
    for number in 0..2 {
        waiting_there(&both.home, &both.there, number);
        bound_there(&both.there, number, &format!("real-{number}"));
        both.round().await.unwrap();
        both.there.remove(&twin_there(number));
        both.there.change(&format!("{REALS}/real-{number}"), |real| {
            real["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        });
    }
    // As an API server answers for a namespace that is gone.
    let gone = Fault::new("POST", "persistentvolumeclaims", Act::Refuse(404));
    both.there.fault(gone.times(1));
    both.round().await.expect("only one of them failed");
    let made = (0..2).filter(|number| both.there.object(&twin_there(*number)).is_some());
    assert_eq!(made.count(), 1);
}

#[tokio::test]
async fn what_can_no_longer_be_seen_is_not_called_well() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    bound_there(&both.there, 0, "real");
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("True".into(), "TwinBound".into()));

    // The role there went with the namespace's offloading, and the driver began anew.
    let refused = Fault::new("GET", CLAIMS, Act::Refuse(403));
    both.there.fault(refused);
    both.rights.all_claims = false;
    let view = both.view().await;
    both.round().await.unwrap();
    assert_eq!(
        both.condition(0).0,
        "True",
        "it may just not have been listed yet"
    );
    view.backdate(2 * LONGEST_LIST);
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("Unknown".into(), "ClusterUnreachable".into()));
    assert_eq!(both.told(), ["ClusterUnreachable"]);
}

const CLAIMS: &str = "namespaces/shop/persistentvolumeclaims";

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait)
        .await
        .expect(what);
}

#[tokio::test]
async fn a_right_lost_in_one_namespace_is_told_and_the_data_is_kept_meanwhile() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    bound_there(&both.there, 0, "real");
    let view = both.watch_one_namespace().await;
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("True".into(), "TwinBound".into()));

    // A RoleBinding is gone: the watch ends, and nothing in this namespace is allowed.
    both.there.fault(Fault::new("GET", CLAIMS, Act::Refuse(403)));
    both.there.fault(Fault::new("GET", CLAIMS, Act::RefuseWatch(403)));
    both.there.cut_watches();
    until("the watch noticed", || view.outdated_since().is_some()).await;
    view.backdate(2 * LONGEST_LIST);
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("Unknown".into(), "ClusterUnreachable".into()));
    assert!(
        both.message(0).contains("real there is retained"),
        "{}",
        both.message(0)
    );
    let policy = |both: &Both| both.real("real")["spec"]["persistentVolumeReclaimPolicy"].clone();
    assert_eq!(policy(&both), "Retain");

    // It is given back, and nothing has happened meanwhile.
    both.there.heal();
    until("the watch runs again", || view.outdated_since().is_none()).await;
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("True".into(), "TwinBound".into()));
    assert_eq!(policy(&both), "Delete");
    assert!(both.told().contains(&"TwinRecovered".to_owned()));
}

#[tokio::test]
async fn a_twin_that_cannot_be_watched_is_read_and_rescued() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    bound_there(&both.there, 0, "real");
    both.round().await.unwrap();
    // What a ClusterRole leaves of a namespace whose RoleBinding is gone.
    both.there
        .fault(Fault::new("GET", CLAIMS, Act::Refuse(403)).at_the_end());
    both.rights.all_claims = false;
    both.view().await.backdate(2 * LONGEST_LIST);
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("True".into(), "TwinBound".into()));

    delete(&both.there, &twin_there(0));
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("False".into(), "TwinTerminating".into()));
    assert!(both.there.object(&twin_there(0)).is_none(), "it was let go");
    assert_eq!(
        both.real("real")["spec"]["persistentVolumeReclaimPolicy"],
        "Retain"
    );
}

#[tokio::test]
async fn a_twin_whose_volume_cannot_be_retained_is_held() {
    for really in [false, true] {
        let mut both = Both::start().await;
        waiting_there(&both.home, &both.there, 0);
        bound_there(&both.there, 0, "real");
        both.round().await.unwrap();
        // Seen in time, or not yet.
        if really {
            both.there
                .fault(Fault::new("PATCH", "persistentvolumes/real", Act::Refuse(403)));
        } else {
            both.rights.volume_changes = false;
        }
        delete(&both.there, &twin_there(0));
        both.round().await.unwrap();
        let twin = both.there.object(&twin_there(0)).expect("it is held");
        assert_eq!(twin["metadata"]["finalizers"], json!([crate::twin::FINALIZER]));
        assert_eq!(both.condition(0), ("False".into(), "TwinTerminating".into()));
        let message = both.message(0);
        assert!(message.contains("reclaim policy of real to Retain"), "{message}");
        assert!(!message.contains("rescued"), "{message}");

        both.there.heal();
        both.rights = Rights::ALL;
        both.round().await.unwrap();
        assert!(both.there.object(&twin_there(0)).is_none());
        assert_eq!(
            both.real("real")["spec"]["persistentVolumeReclaimPolicy"],
            "Retain"
        );
    }
}

#[tokio::test]
async fn data_is_kept_when_the_rights_go_before_the_twin() {
    for verbs in [&["GET", "PATCH"][..], &["PATCH"]] {
        let mut both = Both::start().await;
        waiting_there(&both.home, &both.there, 0);
        bound_there(&both.there, 0, "real");
        let view = both.watch_one_namespace().await;
        both.round().await.unwrap();
        // A namespace that is deleted: the watch still runs when the RoleBinding is gone.
        delete(&both.there, &twin_there(0));
        until("it is seen", || view.all().iter().all(|twin| twin.deleting)).await;
        for verb in verbs {
            both.there.fault(Fault::new(verb, CLAIMS, Act::Refuse(403)));
        }
        both.round().await.unwrap();
        let real = both.real("real");
        assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(real["metadata"]["annotations"][mark::POLICY_BEFORE], "Delete");
        assert_eq!(both.condition(0), ("False".into(), "TwinTerminating".into()));
        let message = both.message(0);
        assert!(message.contains("PersistentVolume real is retained"), "{message}");
    }
}

/// The deletion of the twin was never seen: this driver was started after the rights to
/// list and watch there had gone with their namespace.
#[tokio::test]
async fn what_is_left_of_a_retained_volume_is_let_go_where_it_cannot_be_watched() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    bound_there(&both.there, 0, "real");
    both.home.remove(&twin_there(0));
    both.home.change(&format!("{REALS}/pvc-{UID}-0"), |volume| {
        // What an administrator leaves who takes the claimRef off.
        volume["status"]["phase"] = "Available".into();
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
    delete(&both.there, &twin_there(0));
    both.there
        .fault(Fault::new("GET", CLAIMS, Act::Refuse(403)).at_the_end());
    both.rights.all_claims = false;
    both.view().await.backdate(2 * LONGEST_LIST);
    both.round().await.unwrap();
    assert!(both.there.object(&twin_there(0)).is_none());
    assert_eq!(
        both.real("real")["spec"]["persistentVolumeReclaimPolicy"],
        "Retain"
    );
}

#[tokio::test]
async fn what_is_left_of_a_retained_volume_is_held_while_it_cannot_be_retained() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    bound_there(&both.there, 0, "real");
    both.home.remove(&twin_there(0));
    both.home.change(&format!("{REALS}/pvc-{UID}-0"), |volume| {
        volume["status"]["phase"] = "Released".into();
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
    delete(&both.there, &twin_there(0));
    both.rights.volume_changes = false;
    both.round().await.unwrap();
    assert!(both.there.object(&twin_there(0)).is_some());
    both.rights = Rights::ALL;
    both.round().await.unwrap();
    assert!(both.there.object(&twin_there(0)).is_none());
    assert_eq!(
        both.real("real")["spec"]["persistentVolumeReclaimPolicy"],
        "Retain"
    );
}

#[tokio::test]
async fn without_the_right_to_read_volumes_nothing_is_called_lost() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    both.there.remove(&twin_there(0));
    both.rights.volume_changes = false;
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("False".into(), "TwinVanished".into()));
    assert!(both.message(0).contains("cannot be told"), "{}", both.message(0));
}

#[tokio::test]
async fn a_cluster_that_hangs_costs_a_round_one_call() {
    let (api, there) = (FakeApi::start().await, FakeApi::start().await);
    for number in 0..4 {
        waiting_there(&api, &there, number);
    }
    let registry = milan(&there, Rights::ALL).await;
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let metrics = Metrics::default();
    let reports = Reports::new(Events::new(home.client().clone()));
    let asked = || {
        let requests = there.requests();
        let twins = requests
            .iter()
            .filter(|request| request.contains("/persistentvolumeclaims/far-"));
        twins.count()
    };
    let mut health = Health::new(&home, &registry, &watched, reports, &metrics);

    health.round().await.unwrap();
    let all = asked();
    assert_eq!(all, 4, "each is asked for");
    there.fault(Fault::new("GET", "persistentvolumeclaims/far-", Act::Hang).times(100));
    health.round().await.unwrap();
    assert_eq!(asked() - all, 1);
}

#[tokio::test]
async fn a_rescued_volume_there_gets_its_policy_back_even_if_somebody_else_writes() {
    let (api, there) = (FakeApi::start().await, FakeApi::start().await);
    waiting_there(&api, &there, 0);
    let twin = "/api/v1/namespaces/shop/persistentvolumeclaims/far-0";
    there.change(twin, |twin| {
        twin["spec"]["volumeName"] = "real".into();
        twin["status"]["phase"] = "Bound".into();
    });
    let uid = there.object(twin).unwrap()["metadata"]["uid"].clone();
    there.put(
        REAL,
        json!({
            "metadata": {"annotations": {mark::POLICY_BEFORE: "Delete"}},
            "spec": {
                "claimRef": {"namespace": "shop", "name": "far-0", "uid": uid},
                "persistentVolumeReclaimPolicy": "Retain",
            },
            "status": {"phase": "Bound"},
        }),
    );
    let registry = milan(&there, Rights::ALL).await;
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let metrics = Metrics::default();
    let reports = Reports::new(Events::new(home.client().clone()));
    let mut health = Health::new(&home, &registry, &watched, reports, &metrics);

    there.fault(Fault::new("PATCH", REAL, Act::Refuse(409)).times(2));
    health.round().await.unwrap();
    health.round().await.unwrap();
    assert_eq!(policy(&there, REAL), "Retain");
    health.round().await.unwrap();
    assert_eq!(policy(&there, REAL), "Delete");
}
