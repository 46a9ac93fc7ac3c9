//! The recovery of a source after the commit, because the target was lost.

use super::*;
use crate::{
    cluster::testing::Life,
    placement::moving::{Side, Waiting},
    volume::moving::VolumeMark,
};

const GATE_AGAIN: u64 = 2;

/// The second twin of the source at home.
fn second() -> String {
    format!("/api/v1/namespaces/liqo-storage/persistentvolumeclaims/{UID}-2")
}

fn real() -> String {
    format!("{VOLUMES}/real-1")
}

fn recovering() -> Stage {
    Stage::Recovering(GATE_AGAIN.to_string().parse().unwrap())
}

impl World {
    /// The target is lost after the commit, before or after the claim got its PV.
    async fn lost(arrived: bool) -> Self {
        let mut world = Self::new().await.remember(true);
        let superseded = SourceMark::Superseded {
            by: by(),
            epoch: epoch(),
        };
        world.api.change(&source_path(), |twin| {
            twin["metadata"]["annotations"][mark::SOURCE_OF] = superseded.to_string().into();
            twin["status"]["phase"] = "Bound".into();
        });
        world
            .api
            .change(&real(), |real| real["status"]["phase"] = "Bound".into());
        let handle = world.moved.target.id.to_string();
        let noted = VolumeMark::Gated(note()).to_annotation().unwrap();
        world.api.change(&volume_path(), |volume| {
            if arrived {
                volume["spec"]["csi"]["volumeHandle"] = handle.as_str().into();
            } else {
                volume["spec"]["claimRef"]["uid"] = MOVE.into();
                volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
                volume["metadata"]["annotations"] = json!({mark::GATE: noted});
            }
        });
        world.moved.recovers = true;
        world.moved.target.place = Place::Unreachable("cut off".into());
        world
    }

    /// Kubernetes: binds claim and PV, and the second twin and the PV of the source.
    fn keep(&self) {
        let claim = self.api.object(CLAIM).unwrap();
        let phase = match self.api.object(&volume_path()) {
            Some(volume) if volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"] => "Bound",
            _ => "Lost",
        };
        self.api
            .change(CLAIM, |claim| claim["status"]["phase"] = phase.into());
        if let Some(volume) = self.api.object(&volume_path()) {
            let is_free = volume["metadata"]["finalizers"]
                .as_array()
                .is_none_or(Vec::is_empty);
            if !volume["metadata"]["deletionTimestamp"].is_null() && is_free {
                self.api.remove(&volume_path());
            } else {
                let phase = if phase == "Bound" { "Bound" } else { "Released" };
                self.api
                    .change(&volume_path(), |volume| volume["status"]["phase"] = phase.into());
            }
        }
        let (Some(second_twin), Some(real)) = (self.api.object(&second()), self.api.object(&real())) else {
            return;
        };
        if real["spec"]["claimRef"]["uid"] == second_twin["metadata"]["uid"] {
            self.api
                .change(&second(), |second| second["status"]["phase"] = "Bound".into());
        }
    }

    /// Applies steps until none is left.
    async fn recover(&self) {
        for _ in 0..60 {
            self.keep();
            match self.decide(recovering()).await {
                ClaimDecision::Do(step) => drop(self.moved.apply(&step).await),
                ClaimDecision::Await(Waiting::Unknown(Side::Source, why)) => {
                    assert!(why.contains("is being bound"), "{why}");
                }
                ClaimDecision::Await(Waiting::Lost | Waiting::Bound) => {}
                ClaimDecision::Reached => return,
                other => panic!("{other:?}"),
            }
        }
        panic!("it never gets there: {:?}", self.decide(recovering()).await);
    }

    fn assert_recovered(&self) {
        let volume = self.written();
        let handle = format!("v2:home:{}:2", name());
        assert_eq!(volume["spec"]["csi"]["volumeHandle"], handle.as_str());
        assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete");
        assert_eq!(volume["spec"]["claimRef"]["uid"], UID);
        let claim = self.api.object(CLAIM).unwrap();
        assert_eq!(claim["metadata"]["annotations"][mark::MOVE], Value::Null);
        assert_eq!(
            self.api.object(&source_path()),
            None,
            "the previous twin still exists"
        );
        let twin = self.api.object(&second()).expect("there is no twin");
        let marks = Marks::read(
            &serde_json::from_value(twin["metadata"]["labels"].clone()).unwrap(),
            &serde_json::from_value(twin["metadata"]["annotations"].clone()).unwrap(),
        );
        assert_eq!(marks.unwrap().epoch, "2".parse().unwrap());
        assert_eq!(twin["metadata"]["annotations"][mark::SOURCE_OF], Value::Null);
        assert_eq!(twin["metadata"]["finalizers"], json!([mark::TWIN_FINALIZER]));
        let real = self.api.object(&real()).expect("the data is gone");
        assert_eq!(real["spec"]["claimRef"]["uid"], twin["metadata"]["uid"]);
        assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    }
}

#[tokio::test]
async fn a_source_at_home_is_recovered_despite_crashes() {
    for arrived in [false, true] {
        for writes in 0.. {
            let world = World::lost(arrived).await;
            let life = Life::of_writes(writes);
            world.api.live(Some(life.clone()));
            let died = tokio::select! {
                () = Box::pin(world.recover()) => false,
                () = life.over() => true,
            };
            world.api.live(None);
            let real = world.api.object(&real()).expect("the data is gone");
            assert_eq!(real["metadata"]["deletionTimestamp"], Value::Null);
            Box::pin(world.recover()).await;
            world.assert_recovered();
            if !died {
                assert!(writes > 10, "{writes} writes are none");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_remote_source_is_restored_in_one_write() {
    let mut world = World::within().await;
    world.there.remove(&format!(
        "/api/v1/namespaces/shop-home/persistentvolumeclaims/{UID}-1"
    ));
    world.moved.recovers = true;
    let superseded = SourceMark::Superseded {
        by: by(),
        epoch: epoch(),
    };
    world.there.change(TARGET, |twin| {
        twin["metadata"]["annotations"][mark::SOURCE_OF] = superseded.to_string().into();
    });
    let Live::Known(SourceTwin::Exists { at, .. }) = world.look().await.source else {
        panic!("there is no source");
    };
    let step = ClaimStep::RecoverSource {
        source: at,
        policy: ReclaimPolicy::Delete,
    };
    let writes = world.there.writes();
    assert_eq!(world.moved.apply(&step).await.unwrap(), Applied::Done);
    assert_eq!(world.there.writes(), writes + 1);
    let annotations = world.there.object(TARGET).unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations[mark::EPOCH], "2");
    assert_eq!(annotations[mark::SOURCE_OF], Value::Null);
    assert_eq!(world.look().await.source, Live::Known(SourceTwin::Recovered));
    assert_eq!(world.moved.apply(&step).await.unwrap(), Applied::ChangedMeanwhile);
}

#[tokio::test]
async fn a_target_that_returns_is_superseded_and_kept() {
    for handed_over in [false, true] {
        let mut world = World::new().await.with_target("Delete");
        world.moved.recovers = true;
        if handed_over {
            let step = ClaimStep::HandOver {
                target: as_read(&world.there.object(TARGET).unwrap()),
                retain: false,
            };
            world.moved.apply(&step).await.unwrap();
        }
        for _ in 0..2 {
            let Live::Known(TargetTwin::Exists { at, retained, .. }) = world.look().await.target else {
                panic!("there is no target");
            };
            let step = if retained {
                ClaimStep::SupersedeTarget { target: at }
            } else {
                ClaimStep::RetainTarget { target: at }
            };
            assert_eq!(world.moved.apply(&step).await.unwrap(), Applied::Done, "{step:?}");
        }
        assert_eq!(world.look().await.target, Live::Known(TargetTwin::Superseded));
        let twin = world.there.object(TARGET).unwrap();
        assert_eq!(twin["metadata"]["labels"][mark::MOVE], Value::Null);
        let mark = twin["metadata"]["annotations"][mark::SOURCE_OF].as_str().unwrap();
        assert_eq!(mark, format!("superseded:{MOVE}:2"));
        let real = world.there.object(&format!("{VOLUMES}/real-2")).unwrap();
        assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    }
}

#[tokio::test]
async fn another_twin_of_that_name_is_not_used_as_the_source() {
    let world = World::lost(true).await;
    world.api.put(&second(), json!({"metadata": {"uid": "x"}}));
    let refused = async {
        for _ in 0..20 {
            world.keep();
            if let ClaimDecision::Do(step) = world.decide(recovering()).await
                && let Err(error) = world.moved.apply(&step).await
            {
                return error.to_string();
            }
        }
        panic!("the taken name is not reported");
    };
    let said = refused.await;
    assert!(said.contains(&format!("liqo-storage/{UID}-2")), "{said}");
}
