//! Expansion of claims whose twins are in a remote cluster.

use super::*;

/// A claim that waits until a node has expanded its file system, with its twin there.
async fn growing() -> Both {
    let both = Both::bound().await;
    both.home.change(&twin_there(0), |claim| {
        claim["spec"]["resources"] = json!({"requests": {"storage": "2Gi"}});
        claim["status"]["capacity"] = json!({"storage": "1Gi"});
        waits(claim);
    });
    both.there.change(&twin_there(0), |twin| {
        twin["spec"]["resources"] = json!({"requests": {"storage": "2Gi"}});
        twin["status"]["capacity"] = json!({"storage": "1Gi"});
        waits(twin);
    });
    both.home.change(&format!("{REALS}/pvc-{UID}-0"), |volume| {
        volume["spec"]["capacity"] = json!({"storage": "2Gi"});
    });
    both
}

fn waits(claim: &mut Value) {
    claim["status"]["allocatedResources"] = json!({"storage": "2Gi"});
    claim["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
    claim["status"]["conditions"] = json!([{"type": "FileSystemResizePending", "status": "True"}]);
}

fn status(both: &Both) -> Value {
    both.home.object(&twin_there(0)).unwrap()["status"].clone()
}

fn types(status: &Value) -> Vec<&str> {
    let conditions = status["conditions"].as_array().unwrap();
    conditions
        .iter()
        .map(|one| one["type"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_claim_is_expanded_when_its_remote_twin_is() {
    let mut both = growing().await;
    both.round().await.unwrap();
    assert_eq!(status(&both)["capacity"]["storage"], "1Gi");

    both.there.change(&twin_there(0), |twin| {
        twin["status"] = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}});
    });
    both.round().await.unwrap();
    let grown = status(&both);
    assert_eq!(grown["capacity"]["storage"], "2Gi");
    assert!(grown["allocatedResourceStatuses"]["storage"].is_null());
    assert!(!types(&grown).contains(&"FileSystemResizePending"));
    both.round().await.unwrap();
    let writes = both.home.writes();
    both.round().await.unwrap();
    assert_eq!(both.home.writes(), writes);
}

#[tokio::test]
async fn a_refused_expansion_on_a_remote_node_is_reported_once() {
    let mut both = growing().await;
    both.there.change(&twin_there(0), |twin| {
        twin["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizeInfeasible"});
        twin["status"]["conditions"] =
            json!([{"type": "NodeResizeError", "status": "True", "message": "no such file system"}]);
    });
    both.round().await.unwrap();
    let refused = status(&both);
    assert_eq!(
        refused["allocatedResourceStatuses"]["storage"],
        "NodeResizeInfeasible"
    );
    assert!(types(&refused).contains(&"NodeResizeError"));

    // csi-resizer retries, and the twin still reports the same error.
    both.home.change(&twin_there(0), |claim| {
        claim["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
    });
    let asked = |both: &Both| {
        let requests = both.home.requests().into_iter().chain(both.there.requests());
        requests.filter(|it| it.ends_with(&twin_there(0))).count()
    };
    let before = asked(&both);
    both.round().await.unwrap();
    assert_eq!(
        status(&both)["allocatedResourceStatuses"]["storage"],
        "NodeResizePending"
    );
    assert_eq!(asked(&both), before, "nothing is read to see that nothing is new");
}

#[tokio::test]
async fn errors_of_a_remote_node_are_cut_and_copied_once_a_minute() {
    let mut both = growing().await;
    let refuse = |both: &Both, message: &str| {
        // csi-resizer has tried again.
        both.home.change(&twin_there(0), |claim| {
            claim["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
        });
        both.there.change(&twin_there(0), |twin| {
            twin["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizeInfeasible"});
            twin["status"]["conditions"] =
                json!([{"type": "NodeResizeError", "status": "True", "message": message}]);
        });
    };
    let reported = |both: &Both| {
        let status = status(both);
        let conditions = status["conditions"].as_array().unwrap().iter();
        let mut errors = conditions.filter(|one| one["type"] == "NodeResizeError");
        errors.next().unwrap()["message"].as_str().unwrap().to_owned()
    };
    refuse(&both, &"x".repeat(100_000));
    both.round().await.unwrap();
    let first = reported(&both);
    assert!((1000..1100).contains(&first.len()), "{}", first.len());
    both.round().await.unwrap();
    let writes = both.home.writes();
    both.round().await.unwrap();
    assert_eq!(both.home.writes(), writes, "the error is the same");

    refuse(&both, "another one");
    both.round().await.unwrap();
    assert_eq!(reported(&both), first, "it is too soon");
    both.home.change(&twin_there(0), |claim| {
        for condition in claim["status"]["conditions"].as_array_mut().unwrap() {
            condition["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
        }
    });
    both.round().await.unwrap();
    assert_eq!(reported(&both), "another one");
}

/// A move replaces a PV by another one of the same name.
#[tokio::test]
async fn the_size_is_not_written_to_the_successor_of_a_volume() {
    let mut both = Both::bound().await;
    both.there.change(&twin_there(0), |twin| {
        twin["status"]["capacity"] = json!({"storage": "3Gi"});
    });
    both.home.change(&twin_there(0), |claim| {
        claim["spec"]["resources"] = json!({"requests": {"storage": "1Gi"}});
        claim["status"]["capacity"] = json!({"storage": "1Gi"});
    });
    let volume = format!("{REALS}/pvc-{UID}-0");
    let size = |both: &Both| both.home.object(&volume).unwrap()["spec"]["capacity"].clone();
    both.home.change(&volume, |volume| {
        volume["spec"]["capacity"] = json!({"storage": "1Gi"});
    });
    let path = volume.clone();
    both.home.before("PATCH", &volume, move |store| {
        let mut other = store.get(&path).unwrap();
        other["metadata"]["uid"] = json!("another");
        store.put(&path, other);
    });
    both.round().await.unwrap();
    assert_eq!(size(&both)["storage"], "1Gi");
    both.round().await.unwrap();
    assert_eq!(size(&both)["storage"], "3Gi");
}

/// A size that is written during an expansion would undo it.
#[tokio::test]
async fn a_claim_shows_a_larger_twin_but_never_a_smaller_one() {
    let mut both = Both::bound().await;
    let set = |api: &FakeApi, path: &str, size: &str| {
        api.change(path, |object| {
            object["status"]["capacity"] = json!({"storage": size});
        });
    };
    both.home.change(&twin_there(0), |claim| {
        claim["spec"]["resources"] = json!({"requests": {"storage": "1Gi"}});
    });
    set(&both.home, &twin_there(0), "1Gi");
    both.home.change(&format!("{REALS}/pvc-{UID}-0"), |volume| {
        volume["spec"]["capacity"] = json!({"storage": "1Gi"});
    });
    set(&both.there, &twin_there(0), "3Gi");
    both.round().await.unwrap();
    assert_eq!(status(&both)["capacity"]["storage"], "3Gi");
    set(&both.there, &twin_there(0), "2Gi");
    both.round().await.unwrap();
    assert_eq!(status(&both)["capacity"]["storage"], "3Gi");
}
