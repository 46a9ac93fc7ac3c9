//! Expansion of a volume whose twin is at home.

use super::*;

/// The twin waits for a node, `claim` is the status of its claim, `volume` the size of its virtual PV.
fn growing(api: &FakeApi, claim: &Value, volume: &str) {
    world(api);
    api.change(TWIN, |twin| {
        twin["spec"]["resources"] = json!({"requests": {"storage": "2Gi"}});
        twin["status"]["capacity"] = json!({"storage": "1Gi"});
        twin["status"]["allocatedResources"] = json!({"storage": "2Gi"});
        twin["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
        twin["status"]["conditions"] = json!([{"type": "FileSystemResizePending", "status": "True"}]);
    });
    api.change(CLAIM, |object| {
        object["spec"]["resources"] = json!({"requests": {"storage": "2Gi"}});
        for (key, value) in claim.as_object().unwrap() {
            object["status"][key] = value.clone();
        }
    });
    api.change(VOLUME, |object| {
        object["spec"]["capacity"] = json!({"storage": volume});
    });
}

#[tokio::test]
async fn the_expansion_of_a_twin_ends_when_its_claim_has_grown() {
    let api = FakeApi::start().await;
    let pending = json!({
        "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    });
    growing(&api, &pending, "2Gi");
    round(&api).await.unwrap();
    let status = |api: &FakeApi| api.object(TWIN).unwrap()["status"].clone();
    assert_eq!(status(&api)["capacity"]["storage"], "1Gi");

    let grown = json!({"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": null});
    growing(&api, &grown, "2Gi");
    round(&api).await.unwrap();
    let ended = status(&api);
    assert_eq!(ended["capacity"]["storage"], "2Gi");
    assert!(ended["allocatedResourceStatuses"]["storage"].is_null());
    assert_eq!(ended["conditions"], json!([]));
    let writes = api.writes();
    round(&api).await.unwrap();
    assert_eq!(api.writes(), writes);
}

/// Of two watches one may lag: an expansion that looks finished may have just begun.
#[tokio::test]
async fn the_expansion_of_a_twin_is_not_ended_by_an_outdated_watch() {
    let api = FakeApi::start().await;
    growing(&api, &json!({"capacity": {"storage": "1Gi"}}), "2Gi");
    api.change(CLAIM, |claim| {
        claim["spec"]["resources"] = json!({"requests": {"storage": "1Gi"}});
    });
    api.before("GET", TWIN, |store| {
        let mut claim = store.get(CLAIM).unwrap();
        claim["spec"]["resources"] = json!({"requests": {"storage": "2Gi"}});
        claim["status"]["allocatedResources"] = json!({"storage": "2Gi"});
        claim["status"]["allocatedResourceStatuses"] = json!({"storage": "ControllerResizeInProgress"});
        store.put(CLAIM, claim);
    });
    round(&api).await.unwrap();
    let status = api.object(TWIN).unwrap()["status"].clone();
    assert_eq!(status["capacity"]["storage"], "1Gi");
    assert_eq!(
        status["allocatedResourceStatuses"]["storage"],
        "NodeResizePending"
    );
}
