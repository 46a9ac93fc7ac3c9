//! Creating, keeping and ending a link.

use serde_json::json;
use tokio_util::sync::DropGuard;

use super::*;
use crate::{
    cluster::testing::{Act, FakeApi, Fault},
    fleet::Registry,
    volume::mark,
};

const LONG: Duration = Duration::from_secs(20);
const VOLUME: &str = "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

async fn there() -> (FakeApi, Client) {
    let api = FakeApi::start().await;
    let text = |key: &str| (key.to_owned(), json!("1"));
    let keys = [
        "major",
        "minor",
        "gitVersion",
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ];
    let version: serde_json::Map<_, _> = keys.into_iter().map(text).collect();
    api.put("/version", version.into());
    let client = api.cluster_unwatched().await.client().clone();
    (api, client)
}

fn prober(registry: &Registry, call_timeout: Duration) -> Arc<Prober> {
    Arc::new(Prober {
        changes: registry.notifier(),
        twin_changes: registry.twin_notifier(&"milan".parse().unwrap()),
        id: "milan".parse().unwrap(),
        home: "home".parse().unwrap(),
        calls: Calls::without_metrics(call_timeout),
        interval: Duration::from_millis(10),
        link: watch::Sender::new(Link::Connecting(String::new())),
        kubeconfig: OnceLock::new(),
    })
}

fn run(prober: &Arc<Prober>, client: Client) -> DropGuard {
    let (stop, prober) = (CancellationToken::new(), Arc::clone(prober));
    let running = stop.clone();
    tokio::spawn(running.run_until_cancelled_owned(async move { prober.probe_and_notify(&client).await }));
    stop.drop_guard()
}

fn put_twin(api: &FakeApi) {
    let labels = json!({
        mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::VOLUME: VOLUME,
    });
    api.put(
        "/api/v1/namespaces/shop/persistentvolumeclaims/data",
        json!({"metadata": {"labels": labels}}),
    );
}

async fn up(prober: &Prober) -> Arc<Connected> {
    let mut links = prober.link.subscribe();
    let is_up = links.wait_for(|link| matches!(link, Link::Up(_)));
    match &*tokio::time::timeout(LONG, is_up).await.unwrap().unwrap() {
        Link::Up(connected) => Arc::clone(connected),
        _ => unreachable!(),
    }
}

#[tokio::test]
async fn a_change_during_the_connection_is_not_missed() {
    let ((api, client), registry) = (there().await, Registry::default());
    let prober = prober(&registry, Duration::from_hours(1));
    let _runs = run(&prober, client);
    let connected = up(&prober).await;
    api.fault(Fault::new("GET", "/version", Act::Hang).times(1));
    while api.faults_left() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut seen = connected.cluster.twin_changes();
    seen.mark_unchanged();
    let mut news = registry.twin_changes(&prober.id);
    put_twin(&api);
    tokio::time::timeout(LONG, seen.changed())
        .await
        .expect("the twin was not seen")
        .unwrap();
    tokio::time::timeout(LONG, news.changed())
        .await
        .expect("there was no notification")
        .unwrap();
}

#[tokio::test]
async fn a_change_in_a_namespace_that_is_watched_by_itself_is_passed_on() {
    let (api, client) = there().await;
    let registry = Registry::default();
    let prober = prober(&registry, LONG);
    let rights = Rights {
        all_claims: false,
        ..Rights::ALL
    };
    let cluster = Cluster::remote(
        prober.id.clone(),
        &prober.home,
        client,
        rights,
        Calls::without_metrics(LONG),
    );
    let connected = Connected {
        cluster: cluster.clone(),
        version: "1".into(),
        uid: None,
        kubeconfig: None,
    };
    prober.set_link(Link::Up(Arc::new(connected)));
    let passing = Arc::clone(&prober);
    let _runs = tokio::spawn(async move { passing.forward_twin_changes().await });
    cluster.twins_in("shop").complete().await;
    let mut news = registry.twin_changes(&prober.id);
    let hears = async {
        // Earlier notifications do not count.
        while cluster.all_twins().is_empty() {
            news.changed().await.unwrap();
        }
    };
    put_twin(&api);
    tokio::time::timeout(LONG, hears)
        .await
        .expect("there was no notification");
}

#[tokio::test]
async fn a_refusal_is_reported_with_the_text_of_the_cluster() {
    let ((api, client), registry) = (there().await, Registry::default());
    let prober = prober(&registry, LONG);
    for (act, expected) in [
        (Act::Refuse(401), Cause::Unauthorized("scripted".into())),
        (Act::Refuse(418), "scripted".into()),
        (Act::Forbid("not for you"), "not for you".into()),
    ] {
        api.fault(Fault::new("GET", "/version", act).times(1));
        let why = prober.probe(&client, 0).await.unwrap_err();
        assert_eq!(why, ProbeError::Lost(expected));
    }
}

#[tokio::test]
async fn a_cluster_that_sends_without_end_is_not_used() {
    let ((api, client), registry) = (there().await, Registry::default());
    let prober = prober(&registry, LONG);
    let _runs = run(&prober, client);
    up(&prober).await;
    api.fault(Fault::new("GET", "/nodes", Act::Flood));
    api.cut_watches();
    let mut links = prober.link.subscribe();
    let refused = links.wait_for(|link| matches!(link, Link::Refused(_)));
    let link = tokio::time::timeout(LONG * 9, refused)
        .await
        .unwrap()
        .unwrap()
        .clone();
    let Link::Refused(why) = link else { unreachable!() };
    assert!(why.contains("sends too much") && why.contains("nodes"), "{why}");
}

#[tokio::test]
async fn an_outage_is_logged_once() {
    let ((api, client), registry) = (there().await, Registry::default());
    let prober = prober(&registry, LONG);
    api.fault(Fault::new("GET", "/version", Act::Refuse(500)));
    let mut links = prober.link.subscribe();
    let _runs = run(&prober, client);
    let lost = links.wait_for(|link| matches!(link, Link::Unreachable(_)));
    tokio::time::timeout(LONG, lost).await.unwrap().unwrap();
    let asked = || api.requests().iter().filter(|it| it.contains("/version")).count();
    let asked_again = async {
        while asked() < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, asked_again).await.unwrap();
    assert!(!links.has_changed().unwrap(), "the same state is not sent again");
    api.heal();
    up(&prober).await;
}
