//! Volumes that are being moved, or have moved: no loop repairs the objects of a move.

use super::{elsewhere::Both, *};

const MOVE: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";

/// Gates the PV.
fn gate(api: &FakeApi) {
    let note = json!({
        "version": 1, "move": MOVE, "gate": 1, "gated": {"policy": "Delete", "claimUid": UID},
    });
    api.change(VOLUME, |volume| {
        volume["metadata"]["annotations"] = json!({mark::GATE: note.to_string()});
        volume["spec"]["claimRef"]["uid"] = MOVE.into();
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        volume["status"]["phase"] = "Released".into();
    });
    api.change(CLAIM, |claim| claim["status"]["phase"] = "Lost".into());
}

/// Rolls the gate back: the PV names its claim, but its reclaim policy is not restored yet.
fn give_back(api: &FakeApi) {
    api.change(VOLUME, |volume| {
        volume["spec"]["claimRef"]["uid"] = UID.into();
        volume["status"]["phase"] = "Bound".into();
    });
    api.change(CLAIM, |claim| claim["status"]["phase"] = "Bound".into());
}

fn mark_twin(api: &FakeApi, text: &str) {
    api.change(TWIN, |twin| {
        twin["metadata"]["annotations"][mark::SOURCE_OF] = text.into();
    });
}

#[tokio::test]
async fn a_retain_policy_set_by_a_gate_does_not_count_as_the_users() {
    let api = FakeApi::start().await;
    world(&api);
    gate(&api);
    for given_back in [false, true] {
        if given_back {
            give_back(&api);
        }
        let writes = api.writes();
        round(&api).await.unwrap();
        assert_eq!(policy(&api, REAL), "Delete");
        assert_eq!(api.writes(), writes);
    }
    api.change(VOLUME, |volume| {
        volume["metadata"]["annotations"][mark::GATE] = "?".into();
    });
    round(&api).await.unwrap();
    assert_eq!(policy(&api, REAL), "Delete", "an unreadable mark changes nothing");
    // Without the gate it is repaired.
    api.change(VOLUME, |volume| volume["metadata"]["annotations"] = Value::Null);
    round(&api).await.unwrap();
    assert_eq!(policy(&api, REAL), "Retain");
}

#[tokio::test]
async fn a_gated_volume_is_neither_recovered_nor_released() {
    for (gated, given_back) in [(true, false), (true, true), (false, false)] {
        let api = FakeApi::start().await;
        world(&api);
        mark_twin(&api, &format!("moving:{MOVE}:1"));
        if gated {
            gate(&api);
        }
        if given_back {
            give_back(&api);
        }
        delete(&api, TWIN);
        round(&api).await.unwrap();
        assert!(api.object(TWIN).is_some(), "our finalizer holds it");
        assert_eq!(policy(&api, REAL), "Delete");
        assert_eq!(told(&api), Vec::<String>::new());
    }
}

#[tokio::test]
async fn the_twin_of_a_gated_volume_is_not_recreated() {
    let api = FakeApi::start().await;
    world(&api);
    api.change(REAL, |real| {
        real["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
    api.remove(TWIN);
    gate(&api);
    give_back(&api);
    round(&api).await.unwrap();
    assert!(api.object(TWIN).is_none());
    // The volume is not gated any more, and the loop repairs it again.
    api.change(VOLUME, |volume| volume["metadata"]["annotations"] = Value::Null);
    round(&api).await.unwrap();
    assert!(api.object(TWIN).is_some());
}

/// A cluster that was restored from a backup.
#[tokio::test]
async fn twins_left_by_a_move_are_reported_and_not_recovered() {
    let api = FakeApi::start().await;
    world(&api);
    mark_twin(&api, &format!("superseded:{MOVE}:1"));
    delete(&api, TWIN);
    round(&api).await.unwrap();
    assert_eq!(told(&api), ["TwinSuperseded"]);
    assert!(api.object(TWIN).is_some());
    assert_eq!(policy(&api, REAL), "Delete");
    let claim = api.object(CLAIM).unwrap();
    assert_eq!(claim["status"]["conditions"][0]["reason"], "TwinSuperseded");
}

/// The PV was replaced with that of the next epoch, which is also at home.
#[tokio::test]
async fn the_twin_of_an_earlier_epoch_is_not_used() {
    let api = FakeApi::start().await;
    world(&api);
    api.change(VOLUME, |volume| {
        volume["spec"]["csi"]["volumeHandle"] = format!("v2:home:pvc-{UID}:1").into();
    });
    round(&api).await.unwrap();
    assert_eq!(told(&api), ["TwinVanished"]);
    assert!(
        api.object(&format!("{TWIN}-1")).is_none(),
        "the data of before is not its own"
    );
}

#[tokio::test]
async fn a_twin_of_an_earlier_epoch_is_not_recreated_while_a_later_one_exists() {
    let mut both = Both::bound().await;
    both.round().await.unwrap();
    // The later twin has the name of the earlier one, whose data was retained.
    both.there.change(&format!("{}/real", elsewhere::REALS), |real| {
        real["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        real["status"]["phase"] = "Released".into();
    });
    both.there.change(&elsewhere::twin_there(0), |twin| {
        twin["metadata"]["annotations"][mark::EPOCH] = "1".into();
    });
    let before = both.there.object(&elsewhere::twin_there(0));
    both.round().await.unwrap();
    assert_eq!(both.told(), ["TwinVanished"]);
    assert_eq!(both.there.object(&elsewhere::twin_there(0)), before);
}

/// The volume has moved to `milan`, and its home was restored from a backup from before that.
#[tokio::test]
async fn a_home_twin_is_not_recreated_while_a_remote_cluster_has_a_later_one() {
    for handed_over in [true, false] {
        let (api, there) = (FakeApi::start().await, FakeApi::start().await);
        world(&api);
        api.change(REAL, |real| {
            real["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        });
        let mut later = api.object(TWIN).unwrap();
        api.remove(TWIN);
        later["metadata"]["annotations"][mark::EPOCH] = "1".into();
        if !handed_over {
            let annotations = later["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.remove(mark::HANDED_OVER);
        }
        let metadata = json!({
            "labels": later["metadata"]["labels"], "annotations": later["metadata"]["annotations"],
        });
        there.put(CLAIM, json!({"metadata": metadata}));
        let link = crate::fleet::Link::up(&there, crate::cluster::Rights::ALL).await;
        let milan = crate::placement::Declared::with_same_names("milan");
        let registry = Registry::fixed([(milan, link)]);
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        let metrics = Metrics::default();
        let reports = Reports::new(Events::new(home.client().clone()));
        let mut health = Health::new(&home, &registry, &watched, reports, &metrics, home.id().clone());
        health.round().await.unwrap();
        assert_eq!(api.object(TWIN).is_some(), !handed_over);
        if handed_over {
            assert_eq!(told(&api), ["TwinVanished"]);
            let claim = api.object(CLAIM).unwrap();
            let message = claim["status"]["conditions"][0]["message"].as_str().unwrap();
            assert!(message.contains("a later epoch, 1"), "{message}");
        }
    }
}

#[tokio::test]
async fn data_of_an_earlier_epoch_is_not_used() {
    let mut both = Both::bound().await;
    both.round().await.unwrap();
    // The volume has moved away and back, and its twin was lost; the other twin there is of an
    // earlier epoch.
    let volume = format!("{}/pvc-{UID}-0", elsewhere::REALS);
    let handle = both.home.object(&volume).unwrap()["spec"]["csi"]["volumeHandle"].clone();
    let handle = handle.as_str().unwrap().replace("v1:", "v2:") + ":2";
    both.home.change(&volume, |volume| {
        volume["spec"]["csi"]["volumeHandle"] = handle.into();
    });
    both.there.remove(&elsewhere::twin_there(0));
    both.there.change(&format!("{}/real", elsewhere::REALS), |real| {
        real["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        real["status"]["phase"] = "Released".into();
    });
    both.round().await.unwrap();
    assert!(both.there.object(&elsewhere::twin_there(0)).is_none());
    // The PV of its own epoch is used.
    both.there.change(&format!("{}/real", elsewhere::REALS), |real| {
        let data_of = &mut real["metadata"]["annotations"][mark::DATA_OF];
        *data_of = format!("{}/2", data_of.as_str().unwrap()).into();
    });
    both.round().await.unwrap();
    let twin = both.there.object(&elsewhere::twin_there(0)).unwrap();
    assert_eq!(twin["metadata"]["annotations"][mark::EPOCH], "2");
}
