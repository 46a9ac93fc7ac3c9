//! Volumes in a remote cluster when rights are missing, lost or restored.

use super::*;

const CLAIMS: &str = "namespaces/shop/persistentvolumeclaims";

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), wait)
        .await
        .expect(what);
}

#[tokio::test]
async fn an_unreadable_twin_is_not_reported_as_healthy() {
    let mut both = Both::bound().await;
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("True".into(), "TwinBound".into()));

    // The Role there was removed when the namespace was unoffloaded, and the driver was restarted.
    let refused = Fault::new("GET", CLAIMS, Act::Refuse(403));
    both.there.fault(refused);
    both.rights.all_claims = false;
    let view = both.view().await;
    both.round().await.unwrap();
    assert_eq!(
        both.condition(0).0,
        "True",
        "it may just not have been listed yet"
    );
    view.backdate(2 * LONGEST_LIST);
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("Unknown".into(), "ClusterUnreachable".into()));
    assert_eq!(both.told(), ["ClusterUnreachable"]);
}

#[tokio::test]
async fn a_right_lost_in_one_namespace_is_reported_and_the_data_kept() {
    let mut both = Both::bound().await;
    let view = both.watch_one_namespace().await;
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("True".into(), "TwinBound".into()));

    // A RoleBinding is deleted: the watch ends, and nothing in this namespace is permitted.
    both.there.fault(Fault::new("GET", CLAIMS, Act::Refuse(403)));
    both.there.fault(Fault::new("GET", CLAIMS, Act::RefuseWatch(403)));
    both.there.cut_watches();
    until("the watch noticed", || view.outdated_since().is_some()).await;
    view.backdate(2 * LONGEST_LIST);
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("Unknown".into(), "ClusterUnreachable".into()));
    assert!(
        both.message(0).contains("real there is retained"),
        "{}",
        both.message(0)
    );
    let policy = |both: &Both| both.policy().clone();
    assert_eq!(policy(&both), "Retain");

    // It is restored, and nothing has happened in between.
    both.there.heal();
    until("the watch runs again", || view.outdated_since().is_none()).await;
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("True".into(), "TwinBound".into()));
    assert_eq!(policy(&both), "Delete");
    assert!(both.told().contains(&"TwinRecovered".to_owned()));
}

#[tokio::test]
async fn a_twin_that_cannot_be_watched_is_polled_and_recovered() {
    let mut both = Both::bound().await;
    both.round().await.unwrap();
    // What a ClusterRole still permits in a namespace whose RoleBinding is deleted.
    both.there
        .fault(Fault::new("GET", CLAIMS, Act::Refuse(403)).at_the_end());
    both.rights.all_claims = false;
    both.view().await.backdate(2 * LONGEST_LIST);
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("True".into(), "TwinBound".into()));

    delete(&both.there, &twin_there(0));
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("False".into(), "TwinTerminating".into()));
    assert!(both.there.object(&twin_there(0)).is_none(), "it was let go");
    assert_eq!(both.policy(), "Retain");
}

#[tokio::test]
async fn a_twin_whose_volume_cannot_be_retained_keeps_its_finalizer() {
    for really in [false, true] {
        let mut both = Both::bound().await;
        both.round().await.unwrap();
        // The right is lost without notice, or its review shows that in time.
        if really {
            both.there
                .fault(Fault::new("PATCH", "persistentvolumes/real", Act::Refuse(403)));
        } else {
            both.rights.volume_changes = false;
        }
        delete(&both.there, &twin_there(0));
        both.round().await.unwrap();
        let twin = both.there.object(&twin_there(0)).expect("it is held");
        assert_eq!(
            twin["metadata"]["finalizers"],
            json!([crate::volume::mark::TWIN_FINALIZER])
        );
        assert_eq!(both.condition(0), ("False".into(), "TwinTerminating".into()));
        let message = both.message(0);
        assert!(message.contains("reclaim policy of real to Retain"), "{message}");
        assert!(!message.contains("rescued"), "{message}");

        both.there.heal();
        both.rights = Rights::ALL;
        both.round().await.unwrap();
        assert!(both.there.object(&twin_there(0)).is_none());
        assert_eq!(both.policy(), "Retain");
    }
}

#[tokio::test]
async fn a_twin_without_finalizer_gets_it_once_rights_allow() {
    let mut both = Both::bound().await;
    both.there.change(&twin_there(0), |twin| {
        twin["metadata"]["finalizers"] = json!(["example.com/other"]);
    });
    let finalizers =
        |both: &Both| both.there.object(&twin_there(0)).unwrap()["metadata"]["finalizers"].clone();

    both.rights.volume_changes = false;
    both.round().await.unwrap();
    assert_eq!(
        finalizers(&both),
        json!(["example.com/other"]),
        "nothing could be done for its data: it would only be in the way"
    );
    both.rights = Rights::ALL;
    both.round().await.unwrap();
    assert_eq!(
        finalizers(&both),
        json!(["example.com/other", mark::TWIN_FINALIZER])
    );
}

#[tokio::test]
async fn a_twin_that_cannot_be_protected_is_retained_all_the_same() {
    let mut both = Both::bound().await;
    both.there.change(&twin_there(0), |twin| {
        twin["metadata"]["finalizers"] = json!([]);
    });
    both.home.change(&format!("{REALS}/pvc-{UID}-0"), |volume| {
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
    both.there.fault(Fault::new("PATCH", CLAIMS, Act::Refuse(403)));
    both.round().await.unwrap();
    assert_eq!(both.policy(), "Retain");
}

#[tokio::test]
async fn data_is_kept_if_rights_are_lost_before_the_twin_is_deleted() {
    for verbs in [&["GET", "PATCH"][..], &["PATCH"]] {
        let mut both = Both::bound().await;
        let view = both.watch_one_namespace().await;
        both.round().await.unwrap();
        // A namespace is being deleted: the watch still runs after the RoleBinding is deleted.
        delete(&both.there, &twin_there(0));
        until("it is seen", || view.all().iter().all(|twin| twin.deleting)).await;
        for verb in verbs {
            both.there.fault(Fault::new(verb, CLAIMS, Act::Refuse(403)));
        }
        // Another client changes it at the same time.
        let written_on = Fault::new("PATCH", "persistentvolumes/real", Act::Refuse(409));
        both.there.fault(written_on.times(2));
        both.round().await.unwrap();
        let real = both.real("real");
        assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(real["metadata"]["annotations"][mark::POLICY_BEFORE], "Delete");
        assert_eq!(both.condition(0), ("False".into(), "TwinTerminating".into()));
        let message = both.message(0);
        assert!(message.contains("PersistentVolume real is retained"), "{message}");
    }
}

/// The view never showed the deletion of the twin: this driver was started after it had lost the rights
/// to list and watch there together with their namespace.
#[tokio::test]
async fn the_finalizer_of_a_retained_twin_is_removed_also_without_a_watch() {
    let mut both = Both::bound().await;
    both.home.remove(&twin_there(0));
    both.home.change(&format!("{REALS}/pvc-{UID}-0"), |volume| {
        // What is left after an administrator has removed the claimRef.
        volume["status"]["phase"] = "Available".into();
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
    delete(&both.there, &twin_there(0));
    both.there
        .fault(Fault::new("GET", CLAIMS, Act::Refuse(403)).at_the_end());
    both.rights.all_claims = false;
    both.view().await.backdate(2 * LONGEST_LIST);
    both.round().await.unwrap();
    assert!(both.there.object(&twin_there(0)).is_none());
    assert_eq!(both.policy(), "Retain");
}

#[tokio::test]
async fn a_twin_keeps_its_finalizer_while_its_volume_cannot_be_retained() {
    let mut both = Both::bound().await;
    both.home.remove(&twin_there(0));
    both.home.change(&format!("{REALS}/pvc-{UID}-0"), |volume| {
        volume["status"]["phase"] = "Released".into();
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
    delete(&both.there, &twin_there(0));
    both.rights.volume_changes = false;
    both.round().await.unwrap();
    assert!(both.there.object(&twin_there(0)).is_some());
    both.rights = Rights::ALL;
    both.round().await.unwrap();
    assert!(both.there.object(&twin_there(0)).is_none());
    assert_eq!(both.policy(), "Retain");
}

#[tokio::test]
async fn without_the_right_to_read_volumes_data_is_not_reported_as_lost() {
    let mut both = Both::start().await;
    waiting_there(&both.home, &both.there, 0);
    both.there.remove(&twin_there(0));
    both.rights.volume_changes = false;
    both.round().await.unwrap();
    assert_eq!(both.condition(0), ("False".into(), "TwinVanished".into()));
    assert!(both.message(0).contains("not known"), "{}", both.message(0));
}
