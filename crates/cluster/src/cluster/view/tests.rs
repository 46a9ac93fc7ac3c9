//! The contents of a view, when it is outdated, and its budget.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, runtime::watcher};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cluster::{
    Rights,
    testing::{Act, FakeApi, Fault, Warnings},
};

const LONG: Duration = Duration::from_mins(1);

#[derive(Debug, PartialEq)]
struct Color(String);

impl Slim for Color {
    fn topic(&self) -> &str {
        &self.0
    }

    fn text(&self) -> usize {
        self.0.len()
    }
}

/// Keeps the config maps that have a colour.
async fn colors(api: &FakeApi) -> (View<Color>, CancellationToken) {
    let client = api.cluster_unwatched().await.client().clone();
    let stop = CancellationToken::new();
    let slim = |map: ConfigMap| Some(Color(map.data?.get("color")?.clone()));
    let view = View::start(Api::all(client), watcher::Config::default(), slim, &stop);
    view.complete().await;
    (view, stop)
}

fn paint(api: &FakeApi, name: &str, color: &str) {
    let path = format!("/api/v1/namespaces/ns/configmaps/{name}");
    api.put(&path, json!({"data": {"color": color}}));
}

async fn until(view: &View<Color>, topic: &str, count: usize) {
    let mut changes = view.subscribe(topic);
    let wait = async {
        while view.of_topic(topic).len() != count {
            changes.next(LONG).await;
        }
    };
    tokio::time::timeout(LONG, wait)
        .await
        .expect("the view never showed it");
}

#[tokio::test]
async fn objects_are_found_under_their_new_topic_after_a_change() {
    let api = FakeApi::start().await;
    paint(&api, "a", "red");
    api.put("/api/v1/namespaces/ns/configmaps/plain", json!({}));
    let (view, _stop) = colors(&api).await;
    assert_eq!(view.all().len(), 1);
    assert_eq!(*view.get("ns/a").unwrap(), Color("red".into()));

    paint(&api, "b", "red");
    until(&view, "red", 2).await;
    paint(&api, "a", "blue");
    until(&view, "red", 1).await;
    until(&view, "blue", 1).await;
    api.remove("/api/v1/namespaces/ns/configmaps/b");
    until(&view, "red", 0).await;
}

#[tokio::test]
async fn a_change_before_the_wait_is_not_missed() {
    let api = FakeApi::start().await;
    let (view, _stop) = colors(&api).await;
    let mut changes = view.subscribe("red");
    paint(&api, "a", "red");
    until(&view, "red", 1).await;
    let hour = Duration::from_hours(1);
    tokio::time::timeout(LONG, changes.next(hour))
        .await
        .expect("the change was missed");
}

/// Only the colour of a config map is kept.
#[tokio::test]
async fn an_update_of_fields_that_are_not_kept_is_no_change() {
    let api = FakeApi::start().await;
    paint(&api, "a", "red");
    paint(&api, "b", "red");
    let (view, _stop) = colors(&api).await;
    let feed = view.feed();
    assert!(matches!(feed.take(), Changed::Everything));
    let version = view.version();
    let before = *version.borrow();
    api.put(
        "/api/v1/namespaces/ns/configmaps/a",
        json!({"metadata": {"labels": {"new": "label"}}, "data": {"color": "red"}}),
    );
    // Once this change is observed, so was the update before it.
    paint(&api, "b", "blue");
    until(&view, "blue", 1).await;
    assert_eq!(*version.borrow(), before + 1);
    let Changed::These(changed) = feed.take() else {
        panic!("it was one object")
    };
    let colors: Vec<_> = changed.iter().map(|color| color.0.as_str()).collect();
    assert_eq!(colors, ["red", "blue"], "before and after the change");
}

#[tokio::test]
async fn the_watch_starts_with_the_first_use() {
    let api = FakeApi::start().await;
    let client = api.cluster_unwatched().await.client().clone();
    let stop = CancellationToken::new();
    let asked = |kind: &str| {
        let calls = api.requests();
        calls.iter().filter(|call| call.contains(kind)).count()
    };
    let color = || Some(Color("red".into()));
    let slim = move |_: ConfigMap| color();
    let view = View::start(Api::all(client.clone()), watcher::Config::default(), slim, &stop);
    // A view that begins later, and is read, has its list before the first one does.
    let slim = move |_: Secret| color();
    let later = View::start(Api::all(client), watcher::Config::default(), slim, &stop);
    later.complete().await;
    assert!(asked("secrets") > 0);
    assert_eq!(asked("configmaps"), 0);
    view.complete().await;
    assert!(asked("configmaps") > 0);
}

#[tokio::test]
async fn a_view_survives_cut_watches_and_expired_resource_versions() {
    let api = FakeApi::start().await;
    let (view, _stop) = colors(&api).await;
    paint(&api, "a", "red");
    until(&view, "red", 1).await;
    api.fault(Fault::new("GET", "configmaps", Act::Gone).times(1));
    api.fault(Fault::new("GET", "configmaps", Act::Refuse(500)).times(2));
    api.cut_watches();
    api.remove("/api/v1/namespaces/ns/configmaps/a");
    paint(&api, "b", "red");
    paint(&api, "c", "red");
    until(&view, "red", 2).await;
    assert!(view.get("ns/a").is_none());
}

/// The API server would send nothing to a watch from a version that it has not reached again.
#[tokio::test]
async fn a_view_follows_a_cluster_that_was_restored_from_a_backup() {
    // The version is read after the watch has begun, and an API server that has just started may refuse that.
    for refused in [0, 1] {
        let api = FakeApi::start().await;
        let (view, _stop) = colors(&api).await;
        let backup = api.store().version();
        for color in ["blue", "green", "red"] {
            paint(&api, "a", color);
        }
        until(&view, "red", 1).await;
        api.fault(Fault::new("GET", "configmaps", Act::RefuseWatch(503)).times(1));
        api.fault(Fault::new("GET", "configmaps", Act::Refuse(503)).times(refused));
        api.store().rewind(backup);
        paint(&api, "b", "red");
        api.cut_watches();
        until(&view, "red", 2).await;
    }
}

/// Waits until the view has the expected state.
async fn until_outdated(view: &View<Color>, outdated: bool) -> Option<Instant> {
    let wait = async {
        while view.outdated_since().is_some() != outdated {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        view.outdated_since()
    };
    tokio::time::timeout(LONG, wait)
        .await
        .expect("it never became so")
}

#[tokio::test]
async fn a_view_knows_since_when_its_watch_is_refused() {
    let api = FakeApi::start().await;
    paint(&api, "a", "red");
    let (view, _stop) = colors(&api).await;
    assert_eq!(view.outdated_since(), None);

    // A revoked right: the watch ends, and neither a watch nor a list is allowed.
    api.fault(Fault::new("GET", "configmaps", Act::RefuseWatch(403)).times(2));
    api.fault(Fault::new("GET", "configmaps", Act::Refuse(403)).times(1));
    api.cut_watches();
    let since = until_outdated(&view, true).await;
    assert_eq!(view.all().len(), 1, "what was seen last");
    assert_eq!(
        until_outdated(&view, true).await,
        since,
        "the first failure counts"
    );
    // The right is granted again, and nothing has changed meanwhile.
    until_outdated(&view, false).await;
    assert_eq!(view.all().len(), 1);
}

#[tokio::test]
async fn an_interrupted_watch_is_logged_once_and_an_absent_kind_never() {
    let log = Warnings::record();
    for (code, expected) in [(500, 1), (404, 1)] {
        let api = FakeApi::start().await;
        api.fault(Fault::new("GET", "configmaps", Act::Refuse(code)).times(2));
        let (_view, _stop) = colors(&api).await;
        let lines = log.lines();
        assert_eq!(lines.len(), expected, "{code}: {lines:?}");
        assert!(lines[0].contains("kind=\"configmaps\""), "{lines:?}");
    }
}

#[tokio::test]
async fn a_view_that_was_never_filled_is_outdated_from_its_start() {
    let api = FakeApi::start().await;
    api.fault(Fault::new("GET", "configmaps", Act::Refuse(403)));
    let client = api.cluster_unwatched().await.client().clone();
    let stop = CancellationToken::new();
    let slim = |_: ConfigMap| Some(Color("red".into()));
    let view = View::start(Api::all(client), watcher::Config::default(), slim, &stop);
    assert!(view.outdated_since().is_some());
    assert_eq!(View::<Color>::none().outdated_since(), None);
}

#[tokio::test]
async fn dropped_listeners_free_their_memory() {
    let view = View::<Color>::none();
    let (one, two) = (view.subscribe("red"), view.subscribe("red"));
    drop(one);
    assert_eq!(view.read().listeners.len(), 1);
    drop(two);
    assert_eq!(view.read().listeners.len(), 0);
}

/// A view with the budget of a remote cluster.
async fn colors_within(api: &FakeApi, budget: &Budget) -> (View<Color>, CancellationToken) {
    let client = api.cluster_unwatched().await.client().clone();
    let stop = CancellationToken::new();
    let slim = |map: ConfigMap| Some(Color(map.data?.get("color")?.clone()));
    let everything = watcher::Config::default();
    let view = View::start_within(Api::all(client), everything, slim, budget, &stop);
    drop(view.version());
    (view, stop)
}

async fn exhausts(budget: &Budget) -> String {
    tokio::time::timeout(LONG, budget.exhausted())
        .await
        .expect("it is never enough")
}

#[tokio::test]
async fn an_endless_list_is_aborted() {
    let api = FakeApi::start().await;
    api.fault(Fault::new("GET", "configmaps", Act::Endless));
    let budget = Budget::new(1000, usize::MAX);
    let (view, _stop) = colors_within(&api, &budget).await;
    let why = exhausts(&budget).await;
    assert!(why.contains("configmaps") && why.contains("1000"), "{why}");
    assert_eq!(*view.version().borrow(), 0, "nothing of it is believed");
    assert!(view.all().is_empty());
}

#[tokio::test]
async fn an_endless_watch_is_aborted_and_the_view_stays() {
    let api = FakeApi::start().await;
    paint(&api, "a", "blue");
    api.fault(Fault::new("GET", "configmaps", Act::Flood));
    let budget = Budget::new(1000, usize::MAX);
    let (view, _stop) = colors_within(&api, &budget).await;
    exhausts(&budget).await;
    assert!(view.get("ns/a").is_some());
    assert!(view.all().len() <= 1000);
}

#[tokio::test]
async fn a_relist_does_not_count_objects_twice() {
    let api = FakeApi::start().await;
    for name in ["a", "b", "c"] {
        paint(&api, name, "blue");
    }
    let budget = Budget::new(5, usize::MAX);
    let (view, _stop) = colors_within(&api, &budget).await;
    until(&view, "blue", 3).await;
    paint(&api, "d", "red");
    until(&view, "red", 1).await;
    api.fault(Fault::new("GET", "configmaps", Act::Gone));
    api.cut_watches();
    api.remove("/api/v1/namespaces/ns/configmaps/d");
    paint(&api, "e", "green");
    let listed_again = async {
        tokio::select! {
            () = until(&view, "green", 1) => {}
            why = budget.exhausted() => panic!("{why}"),
        }
    };
    listed_again.await;
    assert_eq!(view.all().len(), 4);
}

#[tokio::test]
async fn large_objects_use_up_the_budget_too() {
    let api = FakeApi::start().await;
    let budget = Budget::new(1000, 50_000);
    let (view, _stop) = colors_within(&api, &budget).await;
    view.complete().await;
    paint(&api, "a", "blue");
    until(&view, "blue", 1).await;
    paint(&api, "b", &"x".repeat(60_000));
    exhausts(&budget).await;
    assert_eq!(view.all().len(), 1);
}

/// An object with two topics.
#[derive(Debug, PartialEq)]
struct Pair(String, String);

impl Slim for Pair {
    fn topic(&self) -> &str {
        &self.0
    }

    fn topics(&self) -> impl Iterator<Item = &str> {
        [&self.0, &self.1].into_iter().map(String::as_str)
    }
}

#[tokio::test]
async fn objects_are_indexed_and_counted_by_all_their_topics() {
    let api = FakeApi::start().await;
    let client = api.cluster_unwatched().await.client().clone();
    let stop = CancellationToken::new();
    let slim = |map: ConfigMap| {
        let data = map.data?;
        Some(Pair(data.get("color")?.clone(), data.get("shape")?.clone()))
    };
    let view = View::start(Api::all(client), watcher::Config::default(), slim, &stop);
    view.complete().await;
    let red = view.changes_of(|pair| pair.0 == "red");
    let put = async |name: &str, color: &str, shape: &str| {
        let mut version = view.version();
        version.mark_unchanged();
        let path = format!("/api/v1/namespaces/ns/configmaps/{name}");
        api.put(&path, json!({"data": {"color": color, "shape": shape}}));
        version.changed().await.unwrap();
    };
    put("a", "blue", "round").await;
    assert!(!red.has_changed().unwrap());
    put("a", "red", "round").await;
    assert_eq!(*red.borrow(), 1, "what it has become matters");
    put("b", "red", "square").await;
    put("a", "blue", "square").await;
    assert_eq!(*red.borrow(), 3, "so does what it was");
    let names = |topic: &str| view.of_topic(topic).len();
    assert_eq!(
        (names("red"), names("blue"), names("square"), names("round")),
        (1, 1, 2, 0)
    );
}

/// A config map with this colour, and this many bytes in addition.
fn paint_large(api: &FakeApi, name: &str, color: &str, bytes: usize) {
    let path = format!("/api/v1/namespaces/ns/configmaps/{name}");
    api.put(
        &path,
        json!({"data": {"color": color, "large": "x".repeat(bytes)}}),
    );
}

#[tokio::test]
async fn a_page_that_is_too_large_is_made_smaller() {
    let api = FakeApi::start().await;
    for number in 0..40 {
        paint_large(&api, &format!("large-{number}"), "blue", 1 << 20);
    }
    let view = tokio::time::timeout(LONG, colors(&api)).await;
    let (view, _stop) = view.expect("the list was never read");
    assert_eq!(view.all().len(), 40);
}

#[tokio::test]
async fn a_too_large_object_hides_no_other() {
    let api = FakeApi::start().await;
    let cluster = api.remote_cluster("milan", Rights::ALL).await;
    for name in ["a", "c"] {
        paint(&api, name, "blue");
    }
    paint_large(&api, "b", "blue", 5 << 20);
    let stop = CancellationToken::new();
    let slim = |map: ConfigMap| Some(Color(map.data?.get("color")?.clone()));
    let (all, everything) = (Api::all(cluster.client().clone()), watcher::Config::default());
    let view = View::start_within(all, everything, slim, cluster.budget(), &stop);
    tokio::time::timeout(LONG, view.complete())
        .await
        .expect("one object keeps all others from being seen");
    assert_eq!(view.all().len(), 2);
    assert!(view.is_too_large("ns/b") && !view.is_too_large("ns/a"));

    // A watch returns this object, and must return everything after it.
    paint_large(&api, "c", "blue", 5 << 20);
    paint(&api, "d", "red");
    until(&view, "red", 1).await;
    assert!(view.is_too_large("ns/c"));
    paint(&api, "b", "blue");
    paint(&api, "c", "blue");
    until(&view, "blue", 3).await;
}

#[tokio::test]
async fn objects_with_a_budget_of_their_own_do_not_use_the_shared_one() {
    let api = FakeApi::start().await;
    for name in ["a", "b", "c"] {
        paint(&api, name, "blue");
    }
    paint(&api, "d", "red");
    let client = api.cluster_unwatched().await.client().clone();
    let (stop, cluster) = (CancellationToken::new(), Budget::new(100, usize::MAX));
    let slim = |map: ConfigMap| Some(Color(map.data?.get("color")?.clone()));
    let (known, is_known) = tokio::sync::oneshot::channel::<()>();
    let budgets = ViewBudgets::from(&cluster)
        .and_own(2, |it: &Color| it.0 == "blue")
        .once(async { drop(is_known.await) });
    let everything = watcher::Config::default();
    let view = View::start_within(Api::all(client), everything, slim, budgets, &stop);
    assert_eq!(*view.version().borrow(), 0);
    drop(known);
    view.complete().await;
    assert_eq!((view.of_topic("blue").len(), view.of_topic("red").len()), (2, 1));
    assert!(view.is_full());
    paint(&api, "e", "blue");
    paint(&api, "f", "red");
    until(&view, "red", 2).await;
    assert_eq!(view.of_topic("blue").len(), 2);
    assert_eq!(cluster.objects(), 2, "what is blue counts elsewhere");
    // While the separate budget is exhausted, nothing is listed again.
    let lists = api.requests().len();
    api.cut_watches();
    paint(&api, "g", "red");
    until(&view, "red", 3).await;
    assert_eq!(api.requests().len(), lists);
    // When the budget allows it again, objects are kept again.
    api.remove("/api/v1/namespaces/ns/configmaps/a");
    until(&view, "blue", 1).await;
    assert!(view.is_full());
    api.cut_watches();
    until(&view, "blue", 2).await;
    assert!(view.is_full(), "the budget allows one of two");
    api.remove("/api/v1/namespaces/ns/configmaps/b");
    until(&view, "blue", 1).await;
    api.cut_watches();
    let is_over = async {
        while view.is_full() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let is_over = tokio::time::timeout(LONG, is_over).await;
    is_over.expect("it stays full although the budget allows both");
}
