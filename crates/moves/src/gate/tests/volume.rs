//! The claim and its PV are locked, gated, ungated and replaced.

use super::*;
use crate::{
    cluster::testing::{Act, Fault},
    placement::moving::{HeldBy, RollbackReason, RollbackTo, Serves, VolumeFault, Waiting},
    volume::moving::{Touch, VolumeMark},
};

const MOVES: &str = "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves";

fn back() -> Stage {
    Stage::Rollback {
        gate: Some(GATE),
        to: RollbackTo::Start,
        why: RollbackReason::Cancelled,
    }
}

#[tokio::test]
async fn a_volume_without_a_move_is_read_unchanged() {
    let world = World::new().await;
    let seen = world.look().await;
    let ClaimNow::Exists {
        at,
        deleting: false,
        lock: Lock::Free,
        lost: false,
        touched: None,
        changing: false,
    } = &seen.claim
    else {
        panic!("{:?}", seen.claim)
    };
    assert_eq!(*at, as_read(&world.api.object(CLAIM).unwrap()));
    let expected = VirtualVolume {
        at: as_read(&world.written()),
        serves: Serves::Source,
        held_by: HeldBy::Claim,
        mark: None,
        policy: ReclaimPolicy::Delete,
        bound: true,
        deleting: false,
        attached: Vec::new(),
    };
    assert_eq!(seen.volume, VolumeNow::Exists(expected));
    assert!(matches!(
        seen.source,
        Live::Known(SourceTwin::Exists { mark: None, .. })
    ));
    assert_eq!(seen.target, Live::Known(TargetTwin::Absent));
    assert_eq!(seen.users, Live::Known(Users::default()));
}

#[tokio::test]
async fn a_claim_of_the_same_name_is_another_one() {
    let world = World::new().await;
    world.api.remove(CLAIM);
    world.api.put(CLAIM, json!({"metadata": {"uid": "u2"}}));
    assert_eq!(world.look().await.claim, ClaimNow::Absent);
}

#[tokio::test]
async fn a_claim_with_a_pending_change_is_detected() {
    let changes: [fn(&mut Value); 3] = [
        |claim| claim["spec"]["resources"]["requests"]["storage"] = "2Gi".into(),
        |claim| claim["spec"]["volumeAttributesClassName"] = "gold".into(),
        |claim| claim["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"}),
    ];
    for change in changes {
        let world = World::new().await;
        world.api.change(CLAIM, change);
        let seen = world.look().await.claim;
        assert!(
            matches!(seen, ClaimNow::Exists { changing: true, .. }),
            "{seen:?}"
        );
    }
}

/// Otherwise claim and move would wait for each other.
#[tokio::test]
async fn changes_of_a_locked_claim_are_deferred() {
    let world = World::new().await;
    world.api.change(CLAIM, |claim| {
        claim["metadata"]["annotations"][mark::MOVE] = MOVE.into();
        claim["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
        claim["status"]["allocatedResourceStatuses"] = json!({"storage": "ControllerResizeInProgress"});
    });
    let changing = async || matches!(world.look().await.claim, ClaimNow::Exists { changing: true, .. });
    assert!(!changing().await);
    // A change that began before the lock is waited for.
    world.api.change(&source_path(), |twin| {
        twin["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
        twin["status"]["capacity"]["storage"] = "1Gi".into();
    });
    assert!(changing().await);
}

#[tokio::test]
async fn a_target_that_cannot_grow_enough_is_reported() {
    let world = World::new().await.with_target("Delete");
    world.there.change(TARGET, |twin| {
        twin["spec"]["storageClassName"] = "fixed".into();
        twin["spec"]["resources"]["requests"]["storage"] = "1Gi".into();
    });
    world.api.change(CLAIM, |claim| {
        claim["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
    });
    let class = "/apis/storage.k8s.io/v1/storageclasses/fixed";
    let with_class = async |grows: bool| {
        world.there.put(
            class,
            json!({"provisioner": "real.test", "allowVolumeExpansion": grows}),
        );
        let Place::Site(site) = &world.moved.target.place else {
            panic!("no site");
        };
        let classes = &site.cluster().views().classes;
        let mut version = classes.version();
        while classes
            .get("fixed")
            .is_none_or(|class| class.allows_expansion != grows)
        {
            version.changed().await.unwrap();
        }
        world.look().await.too_small
    };
    assert_eq!(with_class(true).await, None, "it grows once it is bound");
    let why = with_class(false).await.unwrap();
    assert!(
        why.contains("requests 2Gi, the new volume has 1Gi") && why.contains("\"fixed\""),
        "{why}"
    );
}

#[tokio::test]
async fn only_the_lock_of_a_move_that_exists_counts() {
    let world = World::new().await;
    let lock = ClaimStep::Lock {
        claim: world.claim_version().await,
        by: by(),
    };
    assert_eq!(world.moved.apply(&lock).await.unwrap(), Applied::Done);
    let claim = world.api.object(CLAIM).unwrap();
    assert_eq!(claim["metadata"]["annotations"][mark::MOVE], MOVE);
    assert_eq!(
        claim["metadata"]["finalizers"],
        json!(["kubernetes.io/pvc-protection", mark::MOVE])
    );
    // The decision named an older version.
    assert_eq!(world.moved.apply(&lock).await.unwrap(), Applied::ChangedMeanwhile);
    let lock_now = async || match world.look().await.claim {
        ClaimNow::Exists { lock, .. } => lock,
        ClaimNow::Absent => panic!("the claim is gone"),
    };
    assert_eq!(lock_now().await, Lock::Ours);

    let locked_by = |uid: &str| {
        world.api.change(CLAIM, |claim| {
            claim["metadata"]["annotations"][mark::MOVE] = uid.into();
        });
    };
    locked_by(OTHER);
    let theirs = |counts| Lock::Theirs {
        by: OTHER.parse().unwrap(),
        counts,
    };
    assert_eq!(lock_now().await, theirs(false));
    world
        .api
        .put(&format!("{MOVES}/m"), json!({"metadata": {"uid": OTHER}}));
    assert_eq!(lock_now().await, theirs(true));
    locked_by("somebody");
    assert!(matches!(world.moved.observe().await, Err(GateError::Lock { .. })));
}

#[tokio::test]
async fn unlocking_a_claim_keeps_finalizers_of_others() {
    let world = World::new().await.gated().await;
    let unlock = ClaimStep::Unlock {
        claim: world.claim_version().await,
    };
    assert_eq!(world.moved.apply(&unlock).await.unwrap(), Applied::Done);
    let claim = world.api.object(CLAIM).unwrap();
    assert_eq!(claim["metadata"]["annotations"], json!({}));
    assert_eq!(
        claim["metadata"]["finalizers"],
        json!(["kubernetes.io/pvc-protection"])
    );
}

#[tokio::test]
async fn a_gate_is_one_write() {
    let world = World::new().await;
    let gate = ClaimStep::Gate {
        volume: world.volume().await.at,
        note: note(),
    };
    let writes = world.api.writes();
    assert_eq!(world.moved.apply(&gate).await.unwrap(), Applied::Done);
    assert_eq!(world.api.writes(), writes + 1);
    let volume = world.written();
    assert_eq!(
        volume["spec"]["claimRef"],
        json!({"kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data", "uid": MOVE})
    );
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(
        volume["metadata"]["finalizers"],
        json!(["kubernetes.io/pv-protection", mark::MOVE])
    );
    let seen = world.volume().await;
    assert_eq!(
        (seen.held_by, seen.mark),
        (HeldBy::Move, Some(VolumeMark::Gated(note())))
    );
}

#[tokio::test]
async fn a_pv_that_was_changed_meanwhile_is_not_gated() {
    let world = World::new().await;
    let gate = ClaimStep::Gate {
        volume: world.volume().await.at,
        note: note(),
    };
    // The PV changes between the read and the write of the step, and before both.
    world.api.before("PATCH", &volume_path(), |store| {
        let mut volume = store.get(&volume_path()).unwrap();
        volume["metadata"]["labels"] = json!({"team": "blue"});
        store.put(&volume_path(), volume);
    });
    for _ in 0..2 {
        assert_eq!(world.moved.apply(&gate).await.unwrap(), Applied::ChangedMeanwhile);
        assert_eq!(world.written()["spec"]["claimRef"]["uid"], UID);
    }
    // A deleted PV counts as changed, too, and so does a recreated one.
    world.api.remove(&volume_path());
    assert_eq!(world.moved.apply(&gate).await.unwrap(), Applied::ChangedMeanwhile);
    world.api.put(&volume_path(), virtual_volume());
    assert_eq!(world.moved.apply(&gate).await.unwrap(), Applied::ChangedMeanwhile);
    assert_eq!(world.written()["spec"]["claimRef"]["uid"], UID);
}

#[tokio::test]
async fn a_pv_that_is_being_deleted_is_not_gated() {
    let world = World::new().await;
    world.api.change(&volume_path(), |volume| {
        volume["metadata"]["deletionTimestamp"] = "2026-11-23T10:00:00Z".into();
    });
    let locked = world.next(&Stage::Gating(GATE)).await;
    assert!(matches!(locked, ClaimDecision::Do(ClaimStep::Lock { .. })));
    assert_eq!(
        world.decide(Stage::Gating(GATE)).await,
        ClaimDecision::Rollback(RollbackTo::Start, RollbackReason::Volume(VolumeFault::Deleting))
    );
    let gate = ClaimStep::Gate {
        volume: world.volume().await.at,
        note: note(),
    };
    assert!(matches!(world.moved.apply(&gate).await, Err(GateError::Api(error)) if error.is_refusal()));
    assert_eq!(world.written()["spec"]["claimRef"]["uid"], UID);
    assert_eq!(world.written()["spec"]["persistentVolumeReclaimPolicy"], "Delete");
}

#[tokio::test]
async fn a_gate_whose_answer_was_lost_is_found_by_the_next_read() {
    let world = World::new().await;
    let gate = ClaimStep::Gate {
        volume: world.volume().await.at,
        note: note(),
    };
    world
        .api
        .fault(Fault::new("PATCH", "/persistentvolumes/", Act::DoAndRefuse(503)).times(1));
    assert_eq!(world.moved.apply(&gate).await.unwrap(), Applied::ChangedMeanwhile);
    assert_eq!(world.volume().await.mark, Some(VolumeMark::Gated(note())));
}

#[tokio::test]
async fn the_policy_is_restored_after_kubernetes_has_bound_the_claim() {
    let world = World::new().await.gated().await;
    let policy = || world.written()["spec"]["persistentVolumeReclaimPolicy"].clone();
    let mut steps = Vec::new();
    let waits = loop {
        match world.next(&back()).await {
            ClaimDecision::Do(step) => steps.push(step),
            other => break other,
        }
        assert_eq!(policy(), "Retain");
    };
    assert!(
        matches!(
            steps.as_slice(),
            [
                ClaimStep::MarkSource {
                    mark: SourceMark::RolledBack { .. },
                    ..
                },
                ClaimStep::RestoreClaimRef { .. },
                ClaimStep::Touch {
                    touch: Touch::Ungated(_),
                    ..
                },
            ]
        ),
        "{steps:?}"
    );
    assert_eq!(waits, ClaimDecision::Await(Waiting::Bound));
    assert_eq!(world.written()["spec"]["claimRef"]["uid"], UID);
    // The PV is Bound, and Kubernetes has not reconciled the claim yet.
    world.api.change(&volume_path(), |volume| {
        volume["status"]["phase"] = "Bound".into();
    });
    assert_eq!(world.next(&back()).await, ClaimDecision::Await(Waiting::Bound));
    assert_eq!(policy(), "Retain");

    world
        .api
        .change(CLAIM, |claim| claim["status"]["phase"] = "Bound".into());
    let restored = world.next(&back()).await;
    assert!(matches!(
        restored,
        ClaimDecision::Do(ClaimStep::RestorePolicy { .. })
    ));
    assert_eq!(policy(), "Delete");
    assert_eq!(
        world.written()["metadata"]["finalizers"],
        json!(["kubernetes.io/pv-protection"])
    );
    let unlocked = world.next(&back()).await;
    assert!(matches!(unlocked, ClaimDecision::Do(ClaimStep::Unlock { .. })));
    assert_eq!(world.next(&back()).await, ClaimDecision::Reached);
}

#[tokio::test]
async fn an_open_gate_refuses_late_writes() {
    let world = World::new().await;
    let late = ClaimStep::Gate {
        volume: world.volume().await.at,
        note: note(),
    };
    while let ClaimDecision::Do(_) = world.next(&back()).await {}
    let refused = VolumeMark::Ungated { by: by(), gate: GATE };
    assert_eq!(world.volume().await.mark, Some(refused));
    assert_eq!(world.moved.apply(&late).await.unwrap(), Applied::ChangedMeanwhile);
    assert_eq!(world.written()["spec"]["claimRef"]["uid"], UID);
}

#[tokio::test]
async fn a_mark_that_cannot_be_read_is_no_absence() {
    let world = World::new().await;
    world.api.change(&volume_path(), |volume| {
        volume["metadata"]["annotations"] = json!({mark::GATE: "x"});
    });
    assert!(matches!(
        world.moved.observe().await,
        Err(GateError::Volume { .. })
    ));
}

#[tokio::test]
async fn a_pv_is_replaced_once_nothing_attaches_it() {
    let world = World::new()
        .await
        .with_target("Delete")
        .remember(true)
        .gated()
        .await;
    let committed = Stage::Committed(GATE);
    world.api.put(
        &format!("{ATTACHMENTS}/a"),
        json!({"spec": {"attacher": "storage.liqo.io", "nodeName": "n1", "source": {"persistentVolumeName": name()}}}),
    );
    let mut steps = Vec::new();
    let waits = loop {
        match world.next(&committed).await {
            ClaimDecision::Do(step) => steps.push(step),
            other => break other,
        }
    };
    assert!(
        matches!(
            steps.as_slice(),
            [
                ClaimStep::MarkSource {
                    mark: SourceMark::Superseded { .. },
                    ..
                },
                ClaimStep::HandOver { .. },
            ]
        ),
        "{steps:?}"
    );
    assert_eq!(waits, ClaimDecision::Await(Waiting::Detached(vec!["n1".into()])));

    world.api.remove(&format!("{ATTACHMENTS}/a"));
    let mut steps = Vec::new();
    let waits = loop {
        match world.next(&committed).await {
            ClaimDecision::Do(step) => steps.push(step),
            other => break other,
        }
    };
    assert!(
        matches!(
            steps.as_slice(),
            [
                ClaimStep::DeleteVolume { .. },
                ClaimStep::RemoveVolumeFinalizers { .. },
                ClaimStep::MakeVolume { of: Side::Target, .. },
                ClaimStep::Touch { .. },
            ]
        ),
        "{steps:?}"
    );
    assert_eq!(waits, ClaimDecision::Await(Waiting::Bound));
    let volume = world.written();
    assert_eq!(
        volume["spec"]["csi"]["volumeHandle"],
        format!("v2:milan:{}:1", name())
    );
    assert_eq!(volume["spec"]["claimRef"]["uid"], UID);
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
}

#[tokio::test]
async fn a_pv_is_created_only_if_it_is_missing_and_recorded() {
    let world = World::new().await;
    let make = ClaimStep::MakeVolume {
        of: Side::Source,
        note: note(),
    };
    assert!(matches!(
        world.moved.apply(&make).await,
        Err(GateError::NoRecord(_))
    ));
    let world = world.remember(false);
    assert_eq!(world.moved.apply(&make).await.unwrap(), Applied::ChangedMeanwhile);
    assert_eq!(world.written()["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    world.api.remove(&volume_path());
    assert_eq!(world.moved.apply(&make).await.unwrap(), Applied::Done);
    assert_eq!(world.volume().await.mark, Some(VolumeMark::Gated(note())));
    let target = ClaimStep::MakeVolume {
        of: Side::Target,
        note: note(),
    };
    assert!(matches!(
        world.moved.apply(&target).await,
        Err(GateError::NoRecord(_))
    ));
}

#[tokio::test]
async fn steps_of_movers_and_pods_are_not_handled_here() {
    let world = World::new().await;
    let writes = world.api.writes();
    for step in [
        ClaimStep::MakeHelpers(Side::Target),
        ClaimStep::Evict(vec!["shop/web".into()]),
    ] {
        assert_eq!(world.moved.apply(&step).await.unwrap(), Applied::NotHandled);
    }
    assert_eq!(world.api.writes(), writes);
}
