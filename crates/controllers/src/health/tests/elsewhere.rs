//! Volumes whose twins are in a remote cluster, where names are reused.

mod rights;
mod sizes;

use super::*;
use crate::{
    cluster::{Rights, slim::Twin, view::View},
    fleet::{KOSMOS, Link},
    placement::{Declared, NodeRule},
    topology::LabelSelector,
};

pub(super) const REALS: &str = "/api/v1/persistentvolumes";

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
        epoch: Epoch::NEVER_MOVED,
    };
    let claims = format!("/api/v1/namespaces/shop/persistentvolumeclaims/{name}");
    there.put(
        &claims,
        json!({
            "metadata": {
                "labels": marks.labels(), "annotations": marks.annotations(), "finalizers": [mark::TWIN_FINALIZER],
            },
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

/// The same volume with a twin that is bound to the PV `name` in `milan`.
fn bound_there(there: &FakeApi, number: usize, name: &str) {
    let path = twin_there(number);
    there.change(&path, |twin| {
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

pub(super) fn twin_there(number: usize) -> String {
    format!("/api/v1/namespaces/shop/persistentvolumeclaims/far-{number}")
}

/// The loop `health` of `home`, with the remote cluster `milan`.
pub(super) struct Both {
    pub(super) home: FakeApi,
    pub(super) there: FakeApi,
    reports: Option<Reports>,
    settled: HashMap<String, Settled>,
    /// Changes the home cluster in the next round, which has views from before.
    behind_the_view: Option<fn(&FakeApi)>,
    rights: Rights,
    /// The link to `milan`, and the rights with which it was created.
    link: Option<(Rights, Registry)>,
    /// Whether the namespaces are offloaded to it.
    is_offloaded: bool,
    /// Whether Kosmos declares it.
    is_of_kosmos: bool,
    /// Whether the fabric of this driver runs its pods.
    is_of_this_fabric: bool,
}

impl Both {
    async fn start() -> Self {
        Self {
            home: FakeApi::start().await,
            there: FakeApi::start().await,
            reports: None,
            settled: HashMap::new(),
            behind_the_view: None,
            rights: Rights::ALL,
            link: None,
            is_offloaded: true,
            is_of_kosmos: false,
            is_of_this_fabric: false,
        }
    }

    /// The link to `milan`, created again if the rights have changed.
    async fn registry(&mut self) -> Registry {
        match &self.link {
            Some((rights, registry)) if *rights == self.rights => registry.clone(),
            _ => {
                let registry = if self.is_of_kosmos {
                    let declared = Declared {
                        fabric: Some(&KOSMOS),
                        ..Declared::with_same_names("milan")
                    };
                    Registry::fixed([(declared, Link::up(&self.there, self.rights).await)])
                } else if self.is_of_this_fabric {
                    let declared = Declared {
                        nodes: NodeRule::Named {
                            name: "milan".into(),
                            labels: LabelSelector(Vec::new()),
                        },
                        ..Declared::with_same_names("milan")
                    };
                    Registry::fixed([(declared, Link::up(&self.there, self.rights).await)])
                } else if self.is_offloaded {
                    milan(&self.there, self.rights).await
                } else {
                    let link = Link::up(&self.there, self.rights).await;
                    Registry::fixed([(Declared::plain("milan"), link)])
                };
                self.link = Some((self.rights, registry.clone()));
                registry
            }
        }
    }

    /// The view of the namespace of the twins, if not all namespaces may be watched.
    async fn view(&mut self) -> View<Twin> {
        let remote = self.registry().await.get(&cluster()).unwrap();
        remote.reach().unwrap().twins_in("shop")
    }

    /// Restricts the rights to one namespace, and watches it.
    async fn watch_one_namespace(&mut self) -> View<Twin> {
        self.rights.all_claims = false;
        let view = self.view().await;
        view.complete().await;
        view
    }

    pub(super) async fn round(&mut self) -> Result<(), ApiError> {
        // The view must show what the test has changed.
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
        let mut health = Health::new(&home, &registry, &watched, known, &metrics, cluster());
        health.settled = std::mem::take(&mut self.settled);
        if let Some(change) = self.behind_the_view.take() {
            change(&self.home);
        }
        let outcome = health.round().await;
        self.settled = health.settled;
        self.reports = Some(health.reports);
        outcome
    }

    pub(super) fn told(&self) -> Vec<String> {
        told(&self.home)
    }

    /// Status and reason of the condition of the claim.
    fn condition(&self, number: usize) -> (String, String) {
        let claim = self.home.object(&twin_there(number)).unwrap();
        let ours = &claim["status"]["conditions"][0];
        let text = |key: &str| ours[key].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }

    /// The message of the condition of the claim.
    fn message(&self, number: usize) -> String {
        let claim = self.home.object(&twin_there(number)).unwrap();
        let text = claim["status"]["conditions"][0]["message"].as_str();
        text.unwrap_or_default().to_owned()
    }

    /// With one volume, whose twin is bound to the PV `real`.
    pub(super) async fn bound() -> Self {
        let both = Self::start().await;
        waiting_there(&both.home, &both.there, 0);
        bound_there(&both.there, 0, "real");
        both
    }

    /// The reclaim policy of the PV `real`.
    fn policy(&self) -> Value {
        policy(&self.there, &format!("{REALS}/real"))
    }

    fn real(&self, name: &str) -> Value {
        self.there.object(&format!("{REALS}/{name}")).unwrap()
    }
}

/// The cluster of all volumes in these tests.
fn cluster() -> ClusterId {
    "milan".parse().unwrap()
}

async fn milan(there: &FakeApi, rights: Rights) -> Registry {
    Registry::fixed([(Declared::with_same_names("milan"), Link::up(there, rights).await)])
}

/// The namespace of that name may belong to another user now.
#[tokio::test]
async fn a_remote_twin_is_recreated_only_in_an_offloaded_namespace() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    bound_there(&both.there, 0, "real");
    both.round().await.unwrap();
    delete(&both.there, &twin_there(0));
    both.round().await.unwrap();
    both.is_offloaded = false;
    both.round().await.unwrap();
    assert!(both.there.object(&twin_there(0)).is_none());
    assert_eq!(
        both.real("real")["spec"]["persistentVolumeReclaimPolicy"],
        "Retain"
    );
    both.is_offloaded = true;
    both.round().await.unwrap();
    assert_eq!(
        both.there.object(&twin_there(0)).unwrap()["spec"]["volumeName"],
        "real"
    );
}

#[tokio::test]
async fn a_twin_is_recreated_only_on_its_own_volume() {
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

/// Kubernetes gives a twin any available PV of its class, with whatever it contains.
#[tokio::test]
async fn a_twin_on_a_volume_that_existed_before_is_reported_once() {
    for (provisioner, expected) in [
        ("real.example", vec!["TwinOnExistingVolume"]),
        // Its PVs are all created by others.
        ("kubernetes.io/no-provisioner", vec![]),
    ] {
        let mut both = Both::start().await;
        both.there.put(
            "/apis/storage.k8s.io/v1/storageclasses/fast",
            json!({"provisioner": provisioner}),
        );
        waiting_there(&both.home, &both.there, 0);
        bound_there(&both.there, 0, "old");
        both.there.change(&format!("{REALS}/old"), |real| {
            real["metadata"]["annotations"] = json!({"pv.kubernetes.io/bound-by-controller": "yes"});
        });
        for round in 0..4 {
            if round == 2 {
                // The controller starts again.
                (both.reports, both.settled) = (None, HashMap::new());
            }
            both.round().await.unwrap();
        }
        assert_eq!(both.told(), expected);
        let is_shown = both
            .message(0)
            .contains("the PersistentVolume old, which existed before");
        assert_eq!(is_shown, !expected.is_empty(), "{}", both.message(0));
        assert_eq!(both.condition(0).0, "True");
        assert_eq!(
            both.real("old")["spec"]["persistentVolumeReclaimPolicy"],
            "Delete"
        );
    }
}

#[tokio::test]
async fn a_twin_missing_in_a_replaced_cluster_is_not_reported_as_lost() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    both.there.remove(&twin_there(0));
    both.home.put(
        "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan",
        json!({
            "spec": {"kubeconfigSecretRef": {"name": "milan"}, "fabric": {}},
            "status": {"virtualNode": {"clusterUid": "before"}},
        }),
    );
    let system = json!({"metadata": {"uid": "after"}});
    both.there.put("/api/v1/namespaces/kube-system", system);
    both.round().await.unwrap();
    let said = both.message(0);
    assert!(said.contains("another cluster than before"), "{said}");
    assert!(!said.contains("lost"), "{said}");
}

#[tokio::test]
async fn unidentified_data_is_reported_and_not_touched() {
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

    // For volumes older than the mark, the PV that the virtual PV records is the proof.
    let volume = format!("{REALS}/pvc-{UID}-0");
    both.home.change(&volume, |volume| {
        volume["spec"]["csi"]["volumeAttributes"][crate::twin::TWIN_VOLUME] = "a-older".into();
    });
    both.round().await.unwrap();
    let twin = both.there.object(&twin_there(0)).unwrap();
    assert_eq!(twin["spec"]["volumeName"], "a-older");
}

#[tokio::test]
async fn names_of_a_remote_cluster_are_cut_in_the_condition() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    both.there.remove(&twin_there(0));
    for number in 100..150 {
        let name = format!("{}-{number}", "x".repeat(200));
        real_there(&both.there, 0, &name, &"gone".into(), "Retain", "Released");
    }
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("False".into(), "TwinVanished".into()));
    let length = both.message(0).len();
    assert!((4000..4200).contains(&length), "{length}");
    both.round().await.unwrap();
    let writes = both.home.writes();
    both.round().await.unwrap();
    assert_eq!(both.home.writes(), writes, "it is the same");
}

#[tokio::test]
async fn the_twin_of_another_volume_is_not_used() {
    let mut both = Both::bound().await;
    // Two namespaces are mapped to one: the existing twin belongs to the other claim.
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
    assert_eq!(both.policy(), "Delete");
    assert!(both.real("real")["metadata"]["annotations"].is_null());
}

/// Kosmos copies the metadata of twins to claims.
#[tokio::test]
async fn marks_of_a_twin_are_not_copied_to_its_claim() {
    let mut both = Both::bound().await;
    let twin = both.there.object(&twin_there(0)).unwrap();
    both.home.change(&twin_there(0), |claim| {
        let metadata = &mut claim["metadata"];
        metadata["labels"] = twin["metadata"]["labels"].clone();
        metadata["labels"]["app"] = "shop".into();
        for (key, value) in twin["metadata"]["annotations"].as_object().unwrap() {
            metadata["annotations"][key] = value.clone();
        }
        metadata["annotations"]["pv.kubernetes.io/bound-by-controller"] = "yes".into();
        metadata["annotations"]["volume.kubernetes.io/storage-provisioner"] = "real.example".into();
        metadata["finalizers"] = json!(["kubernetes.io/pvc-protection", mark::TWIN_FINALIZER]);
    });
    both.round().await.unwrap();
    let claim = both.home.object(&twin_there(0)).unwrap();
    let metadata = &claim["metadata"];
    assert_eq!(metadata["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    assert_eq!(metadata["labels"], json!({"app": "shop"}));
    let left = json!({
        "pv.kubernetes.io/bound-by-controller": "yes",
        "volume.kubernetes.io/storage-provisioner": DRIVER_NAME,
    });
    assert_eq!(metadata["annotations"], left);
    assert!(both.there.object(&twin_there(0)).is_some());
}

/// A volume that is bound to another claim has the twin of the first one.
#[tokio::test]
async fn a_claim_gets_an_event_if_its_pods_would_not_find_the_twin() {
    const WARNED: &str = "TwinMisplaced";
    let mut both = Both::bound().await;
    let volume = format!("{REALS}/pvc-{UID}-0");
    let claim = both.home.object(&twin_there(0)).unwrap();
    both.home.remove(&twin_there(0));
    let bind = |both: &Both, namespace: &str, name: &str| {
        let mut claim = claim.clone();
        claim["metadata"] = json!({"uid": name, "annotations": claim["metadata"]["annotations"]});
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
        both.home.put(&path, claim);
        both.home.change(&volume, |volume| {
            volume["spec"]["claimRef"] = json!({"namespace": namespace, "name": name, "uid": name});
        });
        path
    };
    let notes = |both: &Both| {
        let events = both.home.store().below("/apis/events.k8s.io/v1/namespaces/");
        let ours = events.iter().filter(|it| it["reason"] == WARNED);
        ours.map(|it| it["note"].to_string()).collect::<Vec<_>>()
    };

    let path = bind(&both, "shop", "other");
    both.is_of_this_fabric = true;
    both.round().await.unwrap();
    assert!(notes(&both).is_empty(), "its pods have the twin by its volume");

    // With any other fabric, such as those of Liqo and Kosmos.
    both.is_of_this_fabric = false;
    for _ in 0..2 {
        both.round().await.unwrap();
    }
    assert_eq!(notes(&both).len(), 1);
    assert!(
        notes(&both)[0].contains("a claim of the name far-0"),
        "{:?}",
        notes(&both)
    );
    let condition = both.home.object(&path).unwrap()["status"]["conditions"][0].clone();
    assert!(
        condition["status"] == "True" && condition["message"].to_string().contains("is not found by pods")
    );

    both.home.remove(&path);
    let path = bind(&both, "team", "far-0");
    both.is_of_this_fabric = true;
    both.round().await.unwrap();
    assert_eq!(notes(&both).len(), 2);
    assert!(
        notes(&both)
            .iter()
            .any(|note| note.contains("offload team there as shop"))
    );

    // Of a namespace that is not offloaded, too.
    both.home.remove(&path);
    bind(&both, "lab", "far-0-again");
    (both.is_of_this_fabric, both.is_offloaded) = (false, false);
    both.round().await.unwrap();
    assert_eq!(notes(&both).len(), 3);
}

#[tokio::test]
async fn the_copy_of_a_claim_is_replaced_by_the_recreated_twin() {
    let mut both = Both::bound().await;
    both.round().await.unwrap();
    delete(&both.there, &twin_there(0));
    both.round().await.unwrap();
    both.there.put(
        &twin_there(0),
        json!({
            "metadata": {"annotations": {"kosmos.io/global": "true", "kosmos-io/cluster-owners": "milan"}},
            "spec": {"storageClassName": "liqo", "volumeName": format!("pvc-{UID}-0")},
            "status": {"phase": "Lost"},
        }),
    );
    both.round().await.unwrap();
    let copy = both.there.object(&twin_there(0)).unwrap();
    assert_eq!(
        copy["spec"]["storageClassName"], "liqo",
        "the cluster is not one of Kosmos"
    );
    both.is_of_kosmos = true;
    both.link = None;
    both.round().await.unwrap();
    let twin = both.there.object(&twin_there(0)).unwrap();
    assert_eq!(twin["spec"]["volumeName"], "real");
}

#[tokio::test]
async fn a_retained_pv_of_a_deleted_volume_may_be_deleted() {
    let mut both = Both::bound().await;
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
    assert_eq!(both.policy(), "Retain");
}

#[tokio::test]
async fn retain_is_applied_when_rights_or_the_policy_come_later() {
    let mut both = Both::bound().await;
    let policy = |both: &Both| both.policy().clone();
    let volume = format!("{REALS}/pvc-{UID}-0");
    both.round().await.unwrap();
    set_policy(&both.home, &volume, "Retain");
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

    set_policy(&both.home, &volume, "Delete");
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

/// A round applies what it reads live, which views may show later, or never.
#[tokio::test]
async fn a_policy_that_is_changed_twice_while_the_view_lags_is_applied() {
    let mut both = Both::bound().await;
    both.behind_the_view = Some(|home| set_policy(home, &format!("{REALS}/pvc-{UID}-0"), "Retain"));
    both.round().await.unwrap();
    assert_eq!(both.policy(), "Retain");
    set_policy(&both.home, &format!("{REALS}/pvc-{UID}-0"), "Delete");
    both.round().await.unwrap();
    assert_eq!(both.policy(), "Delete");
}

#[tokio::test]
async fn the_real_size_reaches_claim_and_volume_after_a_crash_too() {
    let mut both = Both::bound().await;
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
async fn a_volume_that_cannot_be_recovered_does_not_delay_others() {
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
    // The response of an API server for a deleted namespace.
    let gone = Fault::new("POST", "persistentvolumeclaims", Act::Refuse(404));
    both.there.fault(gone.times(1));
    both.round().await.expect("only one of them failed");
    let made = (0..2).filter(|number| both.there.object(&twin_there(*number)).is_some());
    assert_eq!(made.count(), 1);
}

#[tokio::test]
async fn a_round_makes_only_one_call_to_a_hanging_cluster() {
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
    let mut health = Health::new(&home, &registry, &watched, reports, &metrics, cluster());

    health.round().await.unwrap();
    let all = asked();
    assert_eq!(all, 4, "each is asked for");
    there.fault(Fault::new("GET", "persistentvolumeclaims/far-", Act::Hang).times(100));
    // All are checked again after some time.
    let mut health = Health::new(&home, &registry, &watched, health.reports, &metrics, cluster());
    health.round().await.unwrap();
    assert_eq!(asked() - all, 1);
}

#[tokio::test]
async fn the_policy_of_a_recovered_volume_is_restored_despite_conflicts() {
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
    let mut health = Health::new(&home, &registry, &watched, reports, &metrics, cluster());

    there.fault(Fault::new("PATCH", REAL, Act::Refuse(409)).times(2));
    health.round().await.unwrap();
    assert_eq!(policy(&there, REAL), "Delete");
}
