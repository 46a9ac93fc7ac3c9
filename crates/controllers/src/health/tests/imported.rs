//! The completion of imports: when the record is removed and which policy is restored.

use super::*;

const RECORD: &str = r#"{"version":1,"class":"liqo","policy":"Delete","claim":{"namespace":"shop","namespaceUid":"n","name":"data","uid":"u0","spec":{}}}"#;

/// A volume whose real PV was imported, and still has the policy Retain.
fn imported(api: &FakeApi) {
    world(api);
    api.change(REAL, |real| {
        real["metadata"]["annotations"] = json!({mark::IMPORT: RECORD, mark::ADOPT_FOR: "shop/data"});
        real["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        real["status"]["phase"] = "Bound".into();
    });
    api.change(CLAIM, |claim| {
        claim["metadata"]["annotations"][mark::ADOPT] = "real".into();
    });
}

fn annotation(api: &FakeApi, path: &str, key: &str) -> Value {
    api.object(path).unwrap()["metadata"]["annotations"][key].clone()
}

fn is_settled(api: &FakeApi) -> bool {
    annotation(api, REAL, mark::IMPORT).is_null() && annotation(api, REAL, mark::ADOPT_FOR).is_null()
}

#[tokio::test]
async fn the_policy_is_restored_when_the_users_claim_is_bound() {
    let api = FakeApi::start().await;
    imported(&api);
    round(&api).await.unwrap();
    assert!(is_settled(&api));
    assert_eq!(policy(&api, REAL), "Delete");
    assert_eq!(annotation(&api, REAL, mark::POLICY_BEFORE), Value::Null);
    assert_eq!(annotation(&api, CLAIM, mark::ADOPT), Value::Null);
    let writes = api.writes();
    round(&api).await.unwrap();
    assert_eq!(api.writes(), writes);
}

#[tokio::test]
async fn a_retain_policy_of_the_user_is_applied_and_can_be_reverted() {
    let api = FakeApi::start().await;
    imported(&api);
    set_policy(&api, VOLUME, "Retain");
    round(&api).await.unwrap();
    assert!(is_settled(&api));
    assert_eq!(policy(&api, REAL), "Retain");
    assert_eq!(annotation(&api, REAL, mark::POLICY_BEFORE), "Delete");
    set_policy(&api, VOLUME, "Delete");
    round(&api).await.unwrap();
    assert_eq!(policy(&api, REAL), "Delete");
}

#[tokio::test]
async fn the_policy_is_not_restored_before_the_claim_is_bound() {
    type Break = fn(&FakeApi);
    let table: [(&str, Break); 7] = [
        ("the virtual PV is not bound", |api| {
            api.change(VOLUME, |volume| volume["status"]["phase"] = "Available".into());
        }),
        ("the virtual PV is released", |api| {
            api.change(VOLUME, |volume| volume["status"]["phase"] = "Released".into());
        }),
        ("the claim is not bound", |api| {
            api.change(CLAIM, |claim| claim["status"]["phase"] = "Pending".into());
        }),
        ("Kubernetes has not bound the PV yet", |api| {
            api.change(REAL, |real| real["status"]["phase"] = "Released".into());
        }),
        ("the claim is being deleted", |api| delete(api, CLAIM)),
        ("the twin was not handed over", |api| {
            api.change(TWIN, |twin| {
                twin["metadata"]["annotations"]
                    .as_object_mut()
                    .unwrap()
                    .remove(mark::HANDED_OVER);
            });
        }),
        ("the record is of another version", |api| {
            api.change(REAL, |real| {
                real["metadata"]["annotations"][mark::IMPORT] = r#"{"version":9}"#.into();
            });
        }),
    ];
    for (what, break_it) in table {
        let api = FakeApi::start().await;
        imported(&api);
        break_it(&api);
        round(&api).await.unwrap();
        assert!(!is_settled(&api), "{what}");
        assert_eq!(policy(&api, REAL), "Retain", "{what}");
    }
}

#[tokio::test]
async fn an_interrupted_completion_is_resumed() {
    for method in ["persistentvolumeclaims/data", "persistentvolumes/real"] {
        let api = FakeApi::start().await;
        imported(&api);
        api.fault(Fault::new("PATCH", method, Act::Refuse(409)).times(1));
        round(&api).await.unwrap();
        assert!(!is_settled(&api), "{method}");
        assert_eq!(policy(&api, REAL), "Retain");
        round(&api).await.unwrap();
        assert!(is_settled(&api), "{method}");
        assert_eq!(policy(&api, REAL), "Delete");
    }
}
