//! Within one namespace of a remote cluster the target takes over the name of the source.

use std::sync::Arc;

use super::*;
use crate::{
    cluster::testing::Life,
    placement::moving::{Side, Waiting},
};

/// The target twin before it has the name.
fn first() -> String {
    format!("/api/v1/namespaces/shop-home/persistentvolumeclaims/{UID}-1")
}

fn real(name: &str) -> String {
    format!("{VOLUMES}/{name}")
}

fn is_gated_by_any_move(real: &Value) -> bool {
    let gate = real["metadata"]["annotations"][mark::GATE].as_str();
    gate.is_some_and(|gate| gate.contains("gated"))
}

fn committed() -> Stage {
    Stage::Committed(GATE)
}

impl World {
    /// A claim whose volume is in the cluster `milan` and was copied to another twin there.
    pub(super) async fn within() -> Self {
        let mut world = Self::new().await.with_target("Delete");
        let twin = world.there.object(TARGET).unwrap();
        world.there.remove(TARGET);
        world.there.put(
            &first(),
            json!({
                "metadata": {
                    "labels": twin["metadata"]["labels"],
                    "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
                },
                "spec": {"volumeName": "real-2", "storageClassName": "fast"},
                "status": {"phase": "Bound"},
            }),
        );
        world.there.change(&first(), |first| {
            let annotations = first["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.extend(twin["metadata"]["annotations"].as_object().unwrap().clone());
        });
        real_volume(&world.there, "real-2", &first(), "Delete", &json!({}));
        world.there.put(
            TARGET,
            json!({
                "metadata": {
                    "labels": marks(true).labels(), "annotations": marks(true).annotations(),
                    "finalizers": [mark::TWIN_FINALIZER],
                },
                "spec": {"volumeName": "real-1"},
                "status": {"phase": "Bound"},
            }),
        );
        real_volume(&world.there, "real-1", TARGET, "Delete", &json!({}));
        for name in ["real-1", "real-2"] {
            world
                .there
                .change(&real(name), |real| real["status"]["phase"] = "Bound".into());
        }
        let handle = format!("v1:milan:{}", name());
        world.api.change(&volume_path(), |volume| {
            volume["spec"]["csi"]["volumeHandle"] = handle.as_str().into();
        });
        let home = &world.moved.home;
        let site = world.moved.site(Side::Target).unwrap();
        let milan = Arc::clone(site.remote_cluster().unwrap());
        let at = |name: &str, epoch| {
            let site = Site::recorded(
                home,
                Arc::clone(&milan),
                "shop-home".into(),
                name.to_owned(),
                epoch,
            );
            Place::Site(Box::new(site.unwrap()))
        };
        let (source, target) = (at("data", Epoch::NEVER_MOVED), at(&format!("{UID}-1"), epoch()));
        world.moved.source = MovedSide {
            id: id(&handle),
            place: source,
        };
        world.moved.target.place = target;
        world
    }

    /// The same, while the source is gated in its cluster.
    async fn within_and_gated() -> Self {
        let world = Self::within().await;
        world.there.change(&real("real-1"), |real| {
            real["spec"]["claimRef"]["namespace"] = "shop-home".into();
            real["spec"]["claimRef"]["name"] = "data".into();
        });
        let twin = world.there.object(TARGET).unwrap();
        let gate = ClaimStep::There(Box::new(ClaimStep::Gate {
            volume: as_read(&world.there.object(&real("real-1")).unwrap()),
            note: GateNote {
                claim_uid: twin["metadata"]["uid"].as_str().unwrap().into(),
                ..note()
            },
        }));
        assert_eq!(world.moved.apply(&gate).await.unwrap(), Applied::Done);
        world
            .there
            .change(TARGET, |twin| twin["status"]["phase"] = "Lost".into());
        world
    }

    /// The PV controller of that cluster.
    fn bind(&self) {
        let (Some(second), Some(real_2)) = (self.there.object(TARGET), self.there.object(&real("real-2")))
        else {
            return;
        };
        let is_its = second["spec"]["volumeName"] == "real-2"
            && real_2["spec"]["claimRef"]["uid"] == second["metadata"]["uid"];
        if is_its && second["status"]["phase"] != "Bound" {
            assert_eq!(real_2["spec"]["persistentVolumeReclaimPolicy"], "Retain");
            self.there
                .change(TARGET, |second| second["status"]["phase"] = "Bound".into());
        }
    }

    /// Continues after the commit until the virtual PV has to be replaced.
    async fn arrive(&self) {
        for _ in 0..30 {
            match self.decide(committed()).await {
                ClaimDecision::Do(step @ (ClaimStep::MarkSource { .. } | ClaimStep::HandOver { .. })) => {
                    self.moved.apply(&step).await.unwrap();
                }
                ClaimDecision::Await(Waiting::TakesName(_)) => self.bind(),
                ClaimDecision::Do(_) => return,
                other => panic!("{other:?}"),
            }
        }
        panic!("it never gets there");
    }

    fn assert_arrived(&self) {
        let twin = self.there.object(TARGET).expect("there is no twin");
        let metadata = &twin["metadata"];
        assert_eq!(twin["spec"]["volumeName"], "real-2");
        assert_eq!(twin["spec"]["storageClassName"], "fast");
        assert_eq!(metadata["annotations"][mark::EPOCH], "1");
        assert_eq!(metadata["annotations"][mark::HANDED_OVER], "true");
        assert_eq!(
            metadata["annotations"]["pv.kubernetes.io/bind-completed"],
            Value::Null
        );
        assert_eq!(metadata["labels"][mark::MOVE], Value::Null);
        assert_eq!(metadata["finalizers"], json!([mark::TWIN_FINALIZER]));
        assert_eq!(self.there.object(&first()), None, "its first claim is left");
        let of_target = self.there.object(&real("real-2")).unwrap();
        assert_eq!(of_target["spec"]["persistentVolumeReclaimPolicy"], "Delete");
        assert_eq!(of_target["spec"]["claimRef"]["uid"], metadata["uid"]);
        let of_source = self.there.object(&real("real-1")).unwrap();
        assert_eq!(of_source["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    }
}

#[tokio::test]
async fn the_target_gets_the_name_of_the_claim_and_the_source_is_kept_as_a_pv() {
    for ((policy, left), is_gated) in [
        (ReclaimPolicy::Delete, "Delete"),
        (ReclaimPolicy::Retain, "Retain"),
    ]
    .into_iter()
    .flat_map(|case| [(case, false), (case, true)])
    {
        let world = if is_gated {
            World::within_and_gated().await
        } else {
            World::within().await
        };
        world.arrive().await;
        world.assert_arrived();
        let Live::Known(SourceTwin::Exists {
            at,
            mark,
            deleting: false,
            ..
        }) = world.look().await.source
        else {
            panic!("the source is not seen any more");
        };
        assert!(matches!(mark, Some(SourceMark::Superseded { .. })), "{mark:?}");
        // A late write of an old leader creates the target again.
        let second = world.there.object(TARGET).unwrap();
        let mut metadata = json!({
            "labels": second["metadata"]["labels"], "annotations": second["metadata"]["annotations"],
        });
        metadata["labels"][mark::MOVE] = MOVE.into();
        world
            .there
            .put(&first(), json!({"metadata": metadata, "spec": {}}));
        let release = ClaimStep::ReleaseSource { source: at, policy };
        for _ in 0..2 {
            assert_eq!(world.moved.apply(&release).await.unwrap(), Applied::Done);
        }
        assert_eq!(world.there.object(&first()), None, "what came late is left");
        let of_source = world.there.object(&real("real-1")).unwrap();
        assert_eq!(of_source["spec"]["persistentVolumeReclaimPolicy"], left);
        assert!(!is_gated_by_any_move(&of_source));
        assert!(matches!(
            world.look().await.source,
            Live::Known(SourceTwin::Gone { .. })
        ));
        assert_eq!(world.there.object(TARGET).as_ref(), Some(&second));
    }
}

#[tokio::test]
async fn taking_the_name_completes_after_a_crash_at_any_write() {
    for writes in 0..20 {
        let world = World::within_and_gated().await;
        let life = Life::of_writes(writes);
        world.there.live(Some(life.clone()));
        let died = tokio::select! {
            () = Box::pin(world.arrive()) => false,
            () = life.over() => true,
        };
        world.there.live(None);
        world.arrive().await;
        world.assert_arrived();
        if !died {
            assert!(writes > 6, "{writes} writes are too few");
            return;
        }
    }
    panic!("it never ends");
}

#[tokio::test]
async fn names_are_not_read_before_the_commit() {
    let world = World::within().await;
    let look = world.look().await;
    assert!(matches!(
        look.source,
        Live::Known(SourceTwin::Exists { mark: None, .. })
    ));
    assert!(matches!(
        look.target,
        Live::Known(TargetTwin::Exists {
            handed_over: false,
            ..
        })
    ));
    world.there.remove(TARGET);
    assert!(matches!(
        world.look().await.source,
        Live::Known(SourceTwin::Gone { .. })
    ));
}

#[tokio::test]
async fn a_source_deleted_by_others_is_retained_too() {
    let world = World::within().await;
    world.there.change(TARGET, |source| {
        source["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
    for _ in 0..3 {
        let Live::Known(TargetTwin::Exists { at, .. }) = world.look().await.target else {
            panic!("it is waited for what nobody does");
        };
        let hand_over = ClaimStep::HandOver {
            target: at,
            retain: false,
        };
        assert_eq!(world.moved.apply(&hand_over).await.unwrap(), Applied::Done);
    }
    assert_eq!(world.there.object(TARGET), None);
    world.arrive().await;
    world.assert_arrived();
}

#[tokio::test]
async fn another_object_with_the_name_is_not_touched() {
    let world = World::within().await;
    let foreign = json!({"metadata": {"uid": "x"}, "spec": {"volumeName": "theirs"}});
    world.there.put(TARGET, foreign);
    let Live::Known(TargetTwin::Exists { at, .. }) = world.look().await.target else {
        panic!("there is no target");
    };
    let hand_over = ClaimStep::HandOver {
        target: at,
        retain: false,
    };
    let refused = world.moved.apply(&hand_over).await;
    assert!(matches!(refused, Err(GateError::NameTaken { .. })), "{refused:?}");
    assert_eq!(
        world.there.object(TARGET).unwrap()["spec"]["volumeName"],
        "theirs"
    );
    world.there.remove(TARGET);
    world.arrive().await;
}

#[tokio::test]
async fn a_late_step_on_an_outdated_version_changes_nothing() {
    let world = World::within().await;
    let Live::Known(TargetTwin::Exists { at, .. }) = world.look().await.target else {
        panic!("there is no target");
    };
    let late = ClaimStep::HandOver {
        target: at,
        retain: false,
    };
    world.arrive().await;
    let writes = world.there.writes();
    assert_eq!(world.moved.apply(&late).await.unwrap(), Applied::ChangedMeanwhile);
    assert_eq!(world.there.writes(), writes);
    world.assert_arrived();
}
