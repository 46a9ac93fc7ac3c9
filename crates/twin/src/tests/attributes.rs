//! The `VolumeAttributesClass` of a volume: at creation, and changed later.

use serde_json::json;

use super::{expand::merge, *};
use crate::{
    cluster::testing::{Act, Fault, StoppedClock},
    placement::RealRefusal,
};

const CLASSES: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses";

async fn world() -> World {
    let world = World::new(Real::Works).await;
    for (class, driver) in [
        ("gold", "real.test"),
        ("silver", "real.test"),
        ("other", "other.test"),
    ] {
        world
            .api
            .put(&format!("{CLASSES}/{class}"), json!({"driverName": driver}));
    }
    world
}

impl World {
    async fn modify(&self, class: &str) -> Result<(), ChangeError> {
        modify(&self.home, &Registry::default(), &self.id(), class, self.until()).await
    }

    fn attributes(&self) -> Value {
        self.twin().unwrap()["spec"]["volumeAttributesClassName"].clone()
    }

    /// Has the resizer of the real driver write this status once the twin requests the class.
    fn modifier(&self, class: &'static str, status: Value) {
        let api = Arc::clone(&self.api);
        tokio::spawn(async move {
            let mut changes = api.store().changes();
            while api.object(&twin_path()).unwrap()["spec"]["volumeAttributesClassName"] != class {
                changes.changed().await.unwrap();
            }
            api.change(&twin_path(), |twin| merge(&mut twin["status"], &status));
        });
    }
}

fn given(class: &str) -> Value {
    json!({"currentVolumeAttributesClassName": class, "modifyVolumeStatus": null})
}

#[tokio::test]
async fn a_twin_is_created_with_the_requested_attributes_class() {
    let mut world = world().await;
    world.request.spec.attributes = Some("gold".into());
    world.create().await.unwrap();
    assert_eq!(world.attributes(), "gold");
}

#[tokio::test]
async fn an_unavailable_class_is_refused_before_any_write() {
    for (class, said) in [
        ("bronze", "has no VolumeAttributesClass"),
        ("other", "other.test"),
    ] {
        let mut world = world().await;
        world.request.spec.attributes = Some(class.into());
        let refused = world.create().await.unwrap_err();
        assert!(matches!(refused, CreateError::Attributes(_)), "{refused}");
        assert!(refused.to_string().contains(said), "{refused}");
        assert!(world.twin().is_none());
    }
}

#[tokio::test]
async fn attributes_change_and_change_back() {
    let world = world().await;
    world.create().await.unwrap();
    for class in ["gold", "silver", "gold"] {
        world.modifier(class, given(class));
        world.modify(class).await.unwrap();
        assert_eq!(world.attributes(), class);
        let writes = world.api.writes();
        world.modify(class).await.unwrap();
        assert_eq!(world.api.writes(), writes);
    }
}

#[tokio::test]
async fn after_a_refusal_another_class_can_be_requested() {
    let world = world().await;
    world.create().await.unwrap();
    let infeasible = json!({
        "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "Infeasible"},
        "conditions": [{"type": "ModifyVolumeError", "status": "True", "message": "no gold left"}],
    });
    world.modifier("gold", infeasible);
    let refused = world.modify("gold").await.unwrap_err();
    assert!(refused.to_string().contains("no gold left"), "{refused}");
    assert!(matches!(
        refused,
        ChangeError::NotModified {
            refusal: RealRefusal::Infeasible(_),
            ..
        }
    ));

    world.modifier("silver", given("silver"));
    world.modify("silver").await.unwrap();
}

#[tokio::test]
async fn an_unknown_foreign_or_unreadable_attributes_class_changes_nothing() {
    let world = world().await;
    world.create().await.unwrap();
    for class in ["bronze", "other"] {
        let refused = world.modify(class).await.unwrap_err();
        assert!(matches!(refused, ChangeError::Attributes(_)), "{refused}");
    }
    world
        .api
        .fault(Fault::new("GET", CLASSES, Act::Forbid("no")).times(1));
    let refused = world.modify("gold").await.unwrap_err();
    assert!(
        matches!(refused, ChangeError::Attributes(NoAttributes::Unreadable(_))),
        "{refused}"
    );
    assert!(world.attributes().is_null());
}

#[tokio::test]
async fn a_waiting_call_returns_when_the_change_is_done() {
    let world = world().await;
    world.create().await.unwrap();
    let change = async {
        let asked = |twin: &Value| twin["spec"]["volumeAttributesClassName"] == "gold";
        world
            .api
            .until(|store| store.get(&twin_path()).is_some_and(|twin| asked(&twin)))
            .await;
        // By then the call most likely waits.
        let a_while = || std::thread::sleep(Duration::from_millis(200));
        tokio::task::spawn_blocking(a_while).await.unwrap();
        world
            .api
            .change(&twin_path(), |twin| merge(&mut twin["status"], &given("gold")));
    };
    // With a stopped clock the call is woken only by the watch.
    let clock = StoppedClock::new();
    let (modified, ()) = tokio::join!(world.modify("gold"), change);
    modified.unwrap();
    assert!(clock.stands_still(), "it looked by itself");
}

/// With another code than that of an unknown class, csi-resizer would not report Infeasible.
#[tokio::test]
async fn an_attributes_class_refused_by_the_api_server_is_an_error() {
    let world = world().await;
    world.create().await.unwrap();
    world
        .api
        .fault(Fault::new("PATCH", &twin_path(), Act::Forbid("exceeded quota: gold")).times(1));
    let refused = world.modify("gold").await.unwrap_err();
    let expected = matches!(refused, ChangeError::Attributes(NoAttributes::NotAccepted(_)));
    assert!(expected, "{refused}");
    assert!(refused.to_string().contains("exceeded quota"), "{refused}");
}

/// The request could not be withdrawn, and no controller would ever make the change.
#[tokio::test]
async fn a_volume_of_no_driver_is_given_no_class() {
    let world = world().await;
    world.create().await.unwrap();
    let name = world.twin().unwrap()["spec"]["volumeName"].clone();
    let path = format!("{VOLUMES}/{}", name.as_str().unwrap());
    world.api.change(&path, |real| {
        real["spec"]["csi"] = Value::Null;
        real["spec"]["hostPath"] = json!({"path": "/data"});
    });
    let refused = world.modify("gold").await.unwrap_err();
    let expected = matches!(refused, ChangeError::Attributes(NoAttributes::NoDriver { .. }));
    assert!(expected, "{refused}");
    assert!(world.attributes().is_null());
}

#[tokio::test]
async fn a_slow_change_is_continued_by_the_next_call() {
    let world = world().await;
    world.create().await.unwrap();
    let world = world.impatient();
    let waiting = world.modify("gold").await.unwrap_err();
    assert!(matches!(waiting, ChangeError::StillWaiting { .. }), "{waiting}");
    let world = world.patient();
    // The user has requested another class in the meantime.
    world.modifier("silver", given("silver"));
    world.modify("silver").await.unwrap();
}
