//! `EndpointSlice`s, where pods of the clusters reach each other.

use super::*;

const CLUSTER: &str = "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan";
const TURIN: &str = "/apis/storage.liqo.io/v1alpha1/remoteclusters/turin";
const HERE: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
const COPIES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop-home/endpointslices";

fn network(mode: &str) -> Value {
    json!({"mode": mode, "podCIDRs": ["10.64.0.0/16"]})
}

fn endpoint(address: &str, hostname: &str, node: &str, ready: bool) -> Value {
    json!({
        "addresses": [address], "hostname": hostname, "nodeName": node, "zone": "a",
        "conditions": {"ready": ready}, "targetRef": {"kind": "Pod", "name": hostname},
    })
}

impl World {
    /// With a headless Service `db` that has two pods at home, one in milan and one in turin.
    async fn routed() -> Self {
        let world = Self::new().await;
        world
            .home
            .change(CLUSTER, |it| it["spec"]["fabric"]["network"] = network("Routed"));
        let turin = json!({
            "kubeconfigSecretRef": {"name": "turin"}, "nodeSelector": {"matchLabels": {"to": "turin"}},
            "fabric": {"network": network("Isolated")},
        });
        world.home.put(TURIN, json!({ "spec": turin }));
        for cluster in ["milan", "turin"] {
            let node = format!("/api/v1/nodes/to-{cluster}");
            world
                .home
                .put(&node, json!({"metadata": {"labels": {"to": cluster}}}));
        }
        world.home.put("/api/v1/nodes/worker", json!({}));
        world.home.put(
            &here("services", "db"),
            json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "selector": {"app": "db"}}}),
        );
        world.slice(
            "db-v4",
            "IPv4",
            &[
                endpoint("10.0.0.1", "db-0", "worker", true),
                endpoint("10.64.0.1", "db-1", "to-milan", true),
                endpoint("10.65.0.1", "db-2", "to-turin", true),
                endpoint("10.0.0.3", "db-3", "worker", false),
            ],
        );
        world
    }

    fn slice(&self, name: &str, family: &str, endpoints: &[Value]) {
        let labels = json!({
            "kubernetes.io/service-name": "db", "service.kubernetes.io/headless": "",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        });
        let slice = json!({
            "metadata": {"labels": labels}, "addressType": family, "endpoints": endpoints,
            "ports": [{"name": "client", "port": 2379, "protocol": "TCP"}],
        });
        self.home.put(&format!("{HERE}/{name}"), slice);
    }

    fn copy(&self, name: &str) -> Value {
        self.there.object(&format!("{COPIES}/{name}")).unwrap_or_default()
    }

    /// The host names of a copy.
    fn copied_endpoints(&self, name: &str) -> Vec<String> {
        let endpoints = self.copy(name)["endpoints"].clone();
        let endpoints = endpoints.as_array().cloned().unwrap_or_default();
        let text = |it: &Value| it["hostname"].as_str().unwrap_or_default().to_owned();
        endpoints.iter().map(text).collect()
    }

    fn lists(&self, path: &str) -> usize {
        let wanted = format!("GET {path}");
        [&self.home, &self.there]
            .iter()
            .flat_map(|api| api.requests())
            .filter(|it| *it == wanted)
            .count()
    }
}

#[tokio::test]
async fn endpoints_of_pods_elsewhere_are_copied() {
    let world = World::routed().await;
    world.slice("db-v6", "IPv6", &[endpoint("fd00::1", "db-0", "worker", true)]);
    world
        .run_until(|world| {
            !world.copied_endpoints("db-v4").is_empty() && !world.copied_endpoints("db-v6").is_empty()
        })
        .await;
    let copy = world.copy("db-v4");
    assert_eq!(
        copy["endpoints"],
        json!([
            {"addresses": ["10.0.0.1"], "hostname": "db-0", "conditions": {"ready": true}},
            {"addresses": ["10.0.0.3"], "hostname": "db-3", "conditions": {"ready": false}},
        ])
    );
    assert_eq!(
        copy["metadata"]["labels"],
        json!({
            "kubernetes.io/service-name": "db", "service.kubernetes.io/headless": "",
            "endpointslice.kubernetes.io/managed-by": "fabric.storage.liqo.io",
            "app.kubernetes.io/managed-by": "storage.liqo.io", "fabric.storage.liqo.io/home": "home",
        })
    );
    assert_eq!(
        copy["ports"],
        json!([{"name": "client", "port": 2379, "protocol": "TCP"}])
    );
    assert_eq!(world.copy("db-v6")["addressType"], "IPv6");
}

#[tokio::test]
async fn endpoint_changes_are_copied_without_a_list() {
    let world = World::routed().await;
    let (idle, uid) = (watch::Sender::new(None), std::cell::OnceCell::new());
    let step = std::cell::Cell::new(0);
    // In one run, which handles each change.
    world
        .run_idle_until(&idle, |world| {
            let (reported, is_drifted) = (
                world.copied_endpoints("db-v4"),
                world.copy("db-v4")["endpoints"][0]["nodeName"] == "theirs",
            );
            match step.get() {
                0 if reported == ["db-0", "db-3"] => {
                    uid.set(world.copy("db-v4")["metadata"]["uid"].clone()).unwrap();
                    world.home.change(&format!("{HERE}/db-v4"), |it| {
                        it["endpoints"].as_array_mut().unwrap().remove(0);
                        it["endpoints"][2]["conditions"]["ready"] = true.into();
                    });
                    step.set(1);
                }
                1 if reported == ["db-3"]
                    && world.copy("db-v4")["endpoints"][0]["conditions"]["ready"] == true =>
                {
                    world.there.change(&format!("{COPIES}/db-v4"), |it| {
                        it["endpoints"][0]["nodeName"] = "theirs".into();
                    });
                    step.set(2);
                }
                2 if !is_drifted => {
                    assert_eq!(Some(&world.copy("db-v4")["metadata"]["uid"]), uid.get());
                    world.home.remove(&format!("{HERE}/db-v4"));
                    step.set(3);
                }
                _ => {}
            }
            step.get() == 3 && world.copy("db-v4").is_null()
        })
        .await;
    assert_eq!((world.lists(HERE), world.lists(COPIES)), (1, 1));
}

#[tokio::test]
async fn copied_endpoints_are_deleted_when_routes_are_removed() {
    let world = World::routed().await;
    world.run_until(|world| !world.copy("db-v4").is_null()).await;
    // A slice of the cluster's own controller, and a copy of another home cluster.
    let own = json!({"metadata": {"labels": {"kubernetes.io/service-name": "db"}}, "addressType": "IPv4"});
    world.there.put(&format!("{COPIES}/own"), own);
    let mut theirs = world.copy("db-v4");
    theirs["metadata"]["annotations"]["fabric.storage.liqo.io/home-uid"] = "uid-of-another".into();
    theirs["metadata"]["uid"] = "another".into();
    world.there.put(&format!("{COPIES}/theirs"), theirs);
    let idle = watch::Sender::new(None);
    world
        .run_idle_until(&idle, |world| {
            if world.home.object(CLUSTER).unwrap()["spec"]["fabric"]["network"]["mode"] == "Routed" {
                world.home.change(CLUSTER, |it| {
                    it["spec"]["fabric"]["network"] = network("Isolated");
                });
            }
            world.copy("db-v4").is_null()
        })
        .await;
    assert!(!world.copy("own").is_null() && !world.copy("theirs").is_null());
    assert!(world.there.object(&there("services", "db")).is_some());
}

#[tokio::test]
async fn without_routes_no_endpoints_are_copied_or_watched() {
    let world = World::routed().await;
    world.home.change(CLUSTER, |it| it["spec"]["fabric"] = json!({}));
    world
        .run_until(|world| world.there.object(&there("services", "db")).is_some())
        .await;
    world.settle("last").await;
    assert!(world.copy("db-v4").is_null());
    let requests = world.home.requests();
    assert!(
        !requests.iter().any(|it| it.contains("endpointslices")),
        "{requests:?}"
    );
    let watched = world.there.requests();
    let watched = watched.iter().filter(|it| it.contains("endpointslices"));
    assert!(watched.count() <= 2, "a list for each start");
}

#[tokio::test]
async fn without_the_right_to_list_slices_nothing_is_retried() {
    let world = World::new().await;
    world
        .there
        .fault(Fault::new("GET", "/endpointslices", Act::Forbid("no such right")));
    world.settle("one").await;
    let reads = || {
        let all = world.there.requests();
        all.iter().filter(|it| it.contains("endpointslices")).count()
    };
    world.run_until(|_| reads() >= 1).await;
    let before = reads();
    let idle = watch::Sender::new(None);
    world
        .home
        .put(&here("configmaps", "two"), json!({"data": {"a": "b"}}));
    world
        .run_idle_until(&idle, |world| {
            world.there.object(&there("configmaps", "two")).is_some() && reads() > before
        })
        .await;
    assert_eq!(reads(), before + 1, "once for a start");
}

#[tokio::test]
async fn a_service_that_is_not_copied_has_no_endpoints_there() {
    let world = World::routed().await;
    world.run_until(|world| !world.copy("db-v4").is_null()).await;
    world.home.change(&here("services", "db"), |it| {
        it["metadata"]["annotations"] = json!({SKIP: "true"});
    });
    world.run_until(|world| world.copy("db-v4").is_null()).await;
    assert!(world.there.object(&there("services", "db")).is_none());
    world.settle("last").await;
    assert!(world.copy("db-v4").is_null());
    world.home.change(&here("services", "db"), |it| {
        it["metadata"]["annotations"] = json!({});
    });
    world.run_until(|world| !world.copy("db-v4").is_null()).await;
}

#[tokio::test]
async fn a_service_of_others_gets_no_endpoints() {
    let world = World::routed().await;
    world.there.put(
        &there("services", "db"),
        json!({"spec": {"selector": {"app": "theirs"}}}),
    );
    world
        .run_until(|world| world.reported().contains(&"RemoteNameTaken".to_owned()))
        .await;
    world.settle("last").await;
    assert!(world.copy("db-v4").is_null());
    world.there.remove(&there("services", "db"));
    world.run_until(|world| !world.copy("db-v4").is_null()).await;
}

#[tokio::test]
async fn endpoints_in_a_third_cluster_are_copied_when_it_gets_routes() {
    let world = World::routed().await;
    world
        .run_until(|world| world.copied_endpoints("db-v4") == ["db-0", "db-3"])
        .await;
    let idle = watch::Sender::new(None);
    let is_routed =
        |world: &World| world.home.object(TURIN).unwrap()["spec"]["fabric"]["network"]["mode"] == "Routed";
    let came = std::cell::Cell::new(false);
    world
        .run_idle_until(&idle, |world| {
            if !is_routed(world) && !came.get() {
                world
                    .home
                    .change(TURIN, |it| it["spec"]["fabric"]["network"] = network("Routed"));
            }
            if world.copied_endpoints("db-v4") == ["db-0", "db-2", "db-3"] {
                came.set(true);
                world
                    .home
                    .change(TURIN, |it| it["spec"]["fabric"]["network"] = network("Isolated"));
            }
            came.get() && world.copied_endpoints("db-v4") == ["db-0", "db-3"]
        })
        .await;
}
