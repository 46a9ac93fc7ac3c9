//! A crash before, or just after, each write; and names that are taken.

use super::*;

/// Collections that are written to; true for those of the remote cluster.
const WRITES: [(&str, bool); 7] = [
    ("/liqo-csi/secrets", false),
    ("/v1/persistentvolumes", false),
    ("/liqo-csi/persistentvolumeclaims", false),
    ("/liqo-csi/pods", false),
    ("/shop-home/pods", true),
    ("/shop-home/secrets", true),
    ("/shop-home/persistentvolumeclaims", true),
];

fn kinds(world: &World) -> Vec<String> {
    let name = |object: &Value| {
        let text = object["metadata"]["name"].as_str().unwrap();
        let is_of_pod = !object["metadata"]["ownerReferences"].is_null();
        // The name of an object that is owned by a pod ends with a random part.
        let shown = if is_of_pod {
            text.rsplit_once('-').unwrap().0
        } else {
            text
        };
        format!("{}/{shown}", object["metadata"]["namespace"])
    };
    let mut names: Vec<String> = world.all().iter().map(name).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn objects_created_before_a_crash_are_found() {
    let whole = World::new(Way::Out).await;
    whole.prepare().await;
    let expected = kinds(&whole);
    for (collection, is_there) in WRITES {
        for act in [Act::Refuse(422), Act::DoAndRefuse(422)] {
            let mut world = World::new(Way::Out).await;
            let mut deaths = 0;
            loop {
                let api = if is_there { &world.there } else { &world.api };
                let fault = Fault::new("POST", collection, act).at_the_end().times(1);
                if deaths < 4 {
                    api.fault(fault);
                }
                let outcome = world.try_prepare().await;
                let left = api.faults_left();
                api.heal();
                // A new process has no state.
                world.helpers = helpers();
                match outcome {
                    Ok(()) => break,
                    Err(error) => assert_eq!(left, 0, "{collection}: {error}"),
                }
                deaths += 1;
                assert!(deaths < 6, "{collection}: it does not come to an end");
            }
            assert!(deaths > 0, "nothing was made in {collection}");
            assert_eq!(kinds(&world), expected, "{collection}");
        }
    }
}

#[tokio::test]
async fn deletions_resume_after_a_crash() {
    for collection in [
        "/liqo-csi/pods",
        "/liqo-csi/persistentvolumeclaims",
        "/v1/persistentvolumes",
        "/liqo-csi/secrets",
    ] {
        for act in [Act::Refuse(422), Act::DoAndRefuse(422)] {
            let mut world = World::new(Way::Out).await;
            world.prepare().await;
            world.api.fault(Fault::new("DELETE", collection, act).times(1));
            for _ in 0..6 {
                for side in [Side::Source, Side::Target] {
                    let _dies = world.step(ClaimStep::RemoveHelpers(side)).await;
                    world.helpers = helpers();
                }
            }
            assert_eq!(world.api.faults_left(), 0, "{collection}");
            let seen = world.look(&ROLLBACK).await;
            let gone = Live::Known(Helpers::Absent);
            assert_eq!((seen.source, seen.target), (gone.clone(), gone), "{collection}");
        }
    }
}

#[tokio::test]
async fn objects_of_others_are_not_touched_and_are_reported() {
    let whole = World::new(Way::Out).await;
    whole.prepare().await;
    let source = whole.source_pod()["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    let target = whole.target_pod()["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    for (kind, path, is_there) in [
        ("PersistentVolume", format!("{VOLUMES}/{source}"), false),
        (
            "PersistentVolumeClaim",
            format!("{OURS}/persistentvolumeclaims/{source}"),
            false,
        ),
        ("Pod", format!("{OURS}/pods/{source}"), false),
        ("Pod", format!("{THERE}/pods/{target}"), true),
    ] {
        let world = World::new(Way::Out).await;
        let api = if is_there { &world.there } else { &world.api };
        let theirs = api.put(
            &path,
            json!({"metadata": {"labels": {"team": "red"}}, "spec": {}}),
        );
        let refused = world.try_prepare().await.unwrap_err().to_string();
        let name = if is_there { &target } else { &source };
        assert!(
            refused.starts_with(&format!("{kind} {name} in cluster ")),
            "{refused}"
        );
        assert_eq!(api.object(&path), Some(theirs.clone()), "{kind}");
        for side in [Side::Source, Side::Target] {
            world.step(ClaimStep::RemoveHelpers(side)).await.unwrap();
        }
        assert_eq!(api.object(&path), Some(theirs), "{kind}");
    }
}
