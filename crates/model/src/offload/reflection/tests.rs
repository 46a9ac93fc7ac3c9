//! For arbitrary objects: copies become correct, and objects of others are not changed.

use proptest::{collection::btree_map, prelude::*, sample::select};
use serde_json::{Value, json};

use super::*;

const HOME: &str = "fabric.storage.liqo.io/home";
const HOME_UID: &str = "fabric.storage.liqo.io/home-uid";

fn marks() -> Marks {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    Marks {
        home: "rome".into(),
        labels: [
            pair("app.kubernetes.io/managed-by", "storage.liqo.io"),
            pair(HOME, "rome"),
        ]
        .into(),
        annotations: [pair(HOME_UID, "uid-of-rome")].into(),
    }
}

fn object(kind: Kind, metadata: Value, content: Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": format!("{kind:?}")});
    object["metadata"] = metadata;
    let Value::Object(content) = content else {
        panic!("{content}")
    };
    object.as_object_mut().unwrap().extend(content);
    object
}

fn named(name: &str, kind: Kind, content: Value) -> Value {
    object(
        kind,
        json!({"name": name, "namespace": "shop", "uid": "u"}),
        content,
    )
}

fn copy_of(kind: Kind, original: Value) -> Value {
    wanted(kind, original, &marks()).unwrap().object
}

/// Applies a merge patch like an API server.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            object.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut object[key], change);
        }
    }
}

/// Executes a step like an API server.
fn act(kind: Kind, original: Option<&Value>, there: &mut Option<Value>) -> Step {
    let wanted = original.and_then(|it| wanted(kind, it.clone(), &marks()).ok());
    let seen = there.clone().map(|it| found(kind, it, &marks()));
    let step = decide(wanted.as_ref().map(|it| &it.original.fingerprint), seen.as_ref());
    let made = || {
        let mut made = wanted.as_ref().unwrap().object.clone();
        made["metadata"]["uid"] = "new".into();
        Some(made)
    };
    match step {
        Step::Nothing | Step::Wait | Step::Taken => {}
        Step::Create | Step::Replace => *there = made(),
        Step::Delete => *there = None,
        Step::Patch => {
            let there = there.as_mut().unwrap();
            let sealed = (there["immutable"] == true)
                .then(|| [&there["data"], &there["binaryData"], &there["immutable"]].map(Value::clone));
            let fixed =
                |it: &Value| [&it["type"], &it["spec"]["clusterIP"], &it["addressType"]].map(Value::clone);
            let was = fixed(there);
            let patch = patch(kind, there, &wanted.as_ref().unwrap().object, &marks());
            merge(there, &patch);
            // The API server refuses these changes.
            if let Some(sealed) = sealed {
                let now = [&there["data"], &there["binaryData"], &there["immutable"]];
                assert_eq!(now.map(Value::clone), sealed, "{patch}");
            }
            assert_eq!(was, fixed(there));
        }
    }
    step
}

#[test]
fn a_copy_has_the_same_content_and_our_marks() {
    let metadata = json!({
        "name": "settings", "namespace": "shop", "uid": "u1", "resourceVersion": "7",
        "ownerReferences": [{"name": "x"}], "finalizers": ["a.b/c"],
        "labels": {
            "app": "web", "app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/name": "web",
            "argocd.argoproj.io/instance": "x", "liqo.io/a": "x",
        },
        "annotations": {"note": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
    });
    let content = json!({"data": {"color": "red"}, "binaryData": {"bin": "AA=="}, "immutable": true});
    let copy = copy_of(Kind::ConfigMap, object(Kind::ConfigMap, metadata, content));
    let keys = json!({"labels": ["app", "app.kubernetes.io/name"], "annotations": ["note"]});
    let expected = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "settings",
            "labels": {
                "app": "web", "app.kubernetes.io/name": "web",
                "app.kubernetes.io/managed-by": "storage.liqo.io", HOME: "rome",
            },
            "annotations": {
                "note": "x", HOME_UID: "uid-of-rome", HOME_OBJECT_UID: "u1",
                COPIED_KEYS: serde_json::to_string(&json!(keys)).unwrap(),
            },
        },
        "data": {"color": "red"}, "binaryData": {"bin": "AA=="}, "immutable": true,
    });
    let record = |of: &Value| -> Value {
        serde_json::from_str(of["metadata"]["annotations"][COPIED_KEYS].as_str().unwrap()).unwrap()
    };
    assert_eq!(record(&copy), record(&expected));
    let without = |mut of: Value| {
        of["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(COPIED_KEYS);
        of
    };
    assert_eq!(without(copy), without(expected));
}

#[test]
fn fields_of_a_service_that_concern_its_cluster_are_not_copied() {
    let spec = json!({
        "type": "LoadBalancer", "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "externalIPs": ["192.0.2.1"], "loadBalancerIP": "192.0.2.2",
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000, "allocateLoadBalancerNodePorts": true,
        "loadBalancerClass": "x", "trafficDistribution": "PreferClose", "internalTrafficPolicy": "Cluster",
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}},
        "publishNotReadyAddresses": true, "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP", "nodePort": 30001}],
    });
    let copy = copy_of(
        Kind::Service,
        named("web", Kind::Service, json!({"spec": spec, "status": {}})),
    );
    let expected = json!({
        "type": "ClusterIP", "internalTrafficPolicy": "Cluster", "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}, "publishNotReadyAddresses": true,
        "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP"}],
    });
    assert_eq!((&copy["spec"], &copy["status"]), (&expected, &Value::Null));

    let spec_of = |spec: Value| {
        copy_of(Kind::Service, named("x", Kind::Service, json!({"spec": spec})))["spec"].clone()
    };
    let headless = json!({"type": "ClusterIP", "clusterIP": "None", "selector": {"app": "db"}});
    assert_eq!(spec_of(headless.clone()), headless);
    let elsewhere = json!({"type": "ExternalName", "externalName": "example.test"});
    assert_eq!(spec_of(elsewhere.clone()), elsewhere);
}

/// The families of a copy are chosen when it is created: API servers do not change the first one.
#[test]
fn the_ip_family_policy_is_copied_and_existing_families_stay() {
    let spec = |policy: &str, families: Value| json!({"type": "ClusterIP", "ipFamilyPolicy": policy, "ipFamilies": families});
    let service = |spec: &Value| named("web", Kind::Service, json!({ "spec": spec }));
    let both = spec("PreferDualStack", json!(["IPv6", "IPv4"]));
    let copy = copy_of(Kind::Service, service(&both));
    assert_eq!(copy["spec"], both);
    // The cluster has one family only.
    let mut there = Some(copy);
    there.as_mut().unwrap()["spec"]["ipFamilies"] = json!(["IPv4"]);
    assert_eq!(
        act(Kind::Service, Some(&service(&both)), &mut there),
        Step::Nothing
    );
    for policy in ["SingleStack", "RequireDualStack"] {
        let original = service(&spec(policy, json!(["IPv6"])));
        assert_eq!(act(Kind::Service, Some(&original), &mut there), Step::Patch);
        assert_eq!(there.as_ref().unwrap()["spec"], spec(policy, json!(["IPv4"])));
    }
}

/// Controllers in the remote cluster act on annotations. A copy must not make them spread a Secret
/// further, or publish a Service a second time; and deployment tools there would prune it.
#[test]
fn labels_and_annotations_for_controllers_are_not_copied() {
    let told = [
        "replicator.v1.mittwald.de/replicate-to",
        "reflector.v1.k8s.emberstack.com/reflection-auto-enabled",
        "kubed.appscode.com/sync",
        "control-plane.alpha.kubernetes.io/leader",
        "external-dns.alpha.kubernetes.io/hostname",
        "tailscale.com/expose",
        "cloud.google.com/neg",
        "hnc.x-k8s.io/inherited-from",
        "mirror.linkerd.io/exported",
        "service.kubernetes.io/service-proxy-name",
        "app.kubernetes.io/instance",
        "configmanagement.gke.io/managed",
        "configsync.gke.io/resource-id",
    ];
    let pairs: BTreeMap<&str, &str> = told
        .into_iter()
        .chain(["note"])
        .map(|key| (key, "true"))
        .collect();
    let metadata = json!({"name": "a", "uid": "u", "labels": pairs, "annotations": pairs});
    for (kind, content) in [
        (Kind::Secret, json!({"type": "Opaque"})),
        (Kind::Service, json!({"spec": {"clusterIP": "None"}})),
    ] {
        let copy = copy_of(kind, object(kind, metadata.clone(), content));
        for part in ["labels", "annotations"] {
            let all = &copy["metadata"][part];
            assert_eq!(all["note"], "true");
            assert!(told.iter().all(|key| all[*key].is_null()), "{all}");
        }
    }
}

#[test]
fn skipped_objects_credentials_and_helm_releases_are_not_copied() {
    let refused = |kind, object| wanted(kind, object, &marks()).map(|it| it.original.copy);
    for key in ["labels", "annotations"] {
        let skipped = json!({"name": "a", key: {SKIP: ""}});
        assert_eq!(
            refused(Kind::ConfigMap, object(Kind::ConfigMap, skipped, json!({}))),
            Err(NotCopied::Skipped)
        );
    }
    for (of_type, why) in [
        ("kubernetes.io/service-account-token", NotCopied::Credential),
        ("bootstrap.kubernetes.io/token", NotCopied::Credential),
        ("helm.sh/release.v1", NotCopied::HelmRelease),
    ] {
        let token = named("token", Kind::Secret, json!({"type": of_type}));
        assert_eq!(refused(Kind::Secret, token), Err(why));
    }
    // A registry's credentials of a user, and those that OpenShift derives from a token.
    let mut registry = named(
        "registry",
        Kind::Secret,
        json!({"type": "kubernetes.io/dockercfg"}),
    );
    assert_eq!(refused(Kind::Secret, registry.clone()), Ok("registry".into()));
    registry["metadata"]["annotations"]["openshift.io/internal-registry-auth-token.service-account"] =
        "default".into();
    assert_eq!(refused(Kind::Secret, registry), Err(NotCopied::Credential));
    let release = named(
        "sh.helm.release.v1.web.v3",
        Kind::ConfigMap,
        json!({"data": {"release": "H4s"}}),
    );
    assert_eq!(refused(Kind::ConfigMap, release), Err(NotCopied::HelmRelease));
    let api = json!({"name": "kubernetes", "namespace": "default"});
    assert_eq!(
        refused(Kind::Service, object(Kind::Service, api, json!({}))),
        Err(NotCopied::OfTheCluster)
    );
    let own = named("kubernetes", Kind::Service, json!({"spec": {}}));
    assert_eq!(refused(Kind::Service, own), Ok("kubernetes".into()));
}

#[test]
fn the_root_certificates_are_copied_under_a_name_of_their_own() {
    let copied = |name: &str| {
        wanted(Kind::ConfigMap, named(name, Kind::ConfigMap, json!({})), &marks()).map(|it| it.original.copy)
    };
    let name = copied("kube-root-ca.crt").unwrap();
    assert_eq!(name, format!("kube-root-ca.crt.{}", digest(10, ["rome"])));
    assert_eq!(
        name_of_original(Kind::ConfigMap, &name, "rome"),
        "kube-root-ca.crt"
    );
    assert_eq!(copied(&name), Err(NotCopied::NameReserved));
    for kind in [Kind::Secret, Kind::Service] {
        assert_eq!(name_of_copy(kind, "kube-root-ca.crt", "rome"), "kube-root-ca.crt");
    }
}

#[test]
fn immutable_copies_are_replaced() {
    let secret = |of_type: &str| named("s", Kind::Secret, json!({"type": of_type}));
    let service = |spec: Value| named("s", Kind::Service, json!({"spec": spec}));
    let map = |content: Value| named("s", Kind::ConfigMap, content);
    let (address, headless) = (
        json!({"type": "ClusterIP"}),
        json!({"type": "ClusterIP", "clusterIP": "None"}),
    );
    let elsewhere = json!({"type": "ExternalName", "externalName": "a.test"});
    for (kind, before, after, expected) in [
        (
            Kind::Secret,
            secret("Opaque"),
            secret("kubernetes.io/tls"),
            Step::Replace,
        ),
        (Kind::Secret, secret(""), secret("Opaque"), Step::Nothing),
        (
            Kind::Service,
            service(address.clone()),
            service(headless.clone()),
            Step::Replace,
        ),
        (
            Kind::Service,
            service(headless),
            service(address.clone()),
            Step::Replace,
        ),
        (Kind::Service, service(elsewhere), service(address), Step::Replace),
        (
            Kind::ConfigMap,
            map(json!({"data": {"a": "1"}, "immutable": true})),
            map(json!({"data": {"a": "2"}, "immutable": true})),
            Step::Replace,
        ),
        (
            Kind::ConfigMap,
            map(json!({"immutable": true})),
            map(json!({})),
            Step::Replace,
        ),
        (
            Kind::ConfigMap,
            map(json!({"data": {"a": "1"}})),
            map(json!({"data": {"a": "2"}, "immutable": true})),
            Step::Patch,
        ),
    ] {
        let mut there = Some(copy_of(kind, before));
        assert_eq!(act(kind, Some(&after), &mut there), expected, "{after}");
        assert_eq!(act(kind, Some(&after), &mut there), Step::Nothing);
    }
}

#[test]
fn exposure_added_to_a_copied_service_is_reverted() {
    let spec = json!({"type": "ClusterIP", "ports": [{"port": 80}]});
    let original = named("web", Kind::Service, json!({"spec": spec}));
    let mut there = Some(copy_of(Kind::Service, original.clone()));
    let opened = &mut there.as_mut().unwrap()["spec"];
    opened["type"] = "NodePort".into();
    opened["ports"][0]["nodePort"] = 30000.into();
    opened["externalIPs"] = json!(["192.0.2.1"]);
    opened["clusterIPs"] = json!(["10.0.0.1"]);
    assert_eq!(act(Kind::Service, Some(&original), &mut there), Step::Patch);
    let mut expected = spec;
    expected["clusterIPs"] = json!(["10.0.0.1"]);
    assert_eq!(
        there.unwrap()["spec"],
        expected,
        "what is the cluster's own stays"
    );
}

/// API servers refuse these ranges in a Service of another type than `LoadBalancer`, also while its type is changed.
#[test]
fn copies_of_load_balancers_have_no_source_ranges() {
    const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let ranges = "192.0.2.0/24";
    let metadata = json!({"name": "web", "uid": "u", "annotations": {ANNOTATION: ranges, "note": "kept"}});
    let spec = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": [ranges], "ports": [{"port": 80}]});
    let original = object(Kind::Service, metadata, json!({"spec": spec}));
    let has_ranges = |it: &Value| {
        let annotation = &it["metadata"]["annotations"][ANNOTATION];
        [annotation, &it["spec"]["loadBalancerSourceRanges"]].map(|it| !it.is_null())
    };
    let copy = copy_of(Kind::Service, original.clone());
    assert_eq!(has_ranges(&copy), [false, false]);
    assert_eq!(copy["metadata"]["annotations"]["note"], "kept");
    let mut there = copy;
    there["metadata"]["annotations"][ANNOTATION] = ranges.into();
    there["spec"]["type"] = "LoadBalancer".into();
    there["spec"]["loadBalancerSourceRanges"] = json!([ranges]);
    let mut there = Some(there);
    assert_eq!(act(Kind::Service, Some(&original), &mut there), Step::Patch);
    assert_eq!(has_ranges(&there.unwrap()), [false, false]);
}

#[test]
fn a_copy_that_is_being_deleted_is_waited_for() {
    let original = named("a", Kind::ConfigMap, json!({}));
    let mut there = Some(copy_of(Kind::ConfigMap, original.clone()));
    there.as_mut().unwrap()["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(act(Kind::ConfigMap, Some(&original), &mut there), Step::Wait);
    assert_eq!(act(Kind::ConfigMap, None, &mut there), Step::Wait);
}

/// If the metadata alone shows that nothing is to do, so does the whole object.
#[test]
fn an_unchanged_copy_is_not_read_again() {
    let original = named("a", Kind::ConfigMap, json!({"data": {"a": "b"}}));
    let wanted = wanted(Kind::ConfigMap, original, &marks())
        .unwrap()
        .original
        .fingerprint;
    let other = wanted_print("c");
    let metadata = |version: &str, ours, deleting| CopyMetadata {
        name: "a".into(),
        version: version.into(),
        ours,
        deleting,
    };
    let known = |fingerprint: &Fingerprint| Known {
        version: "7".into(),
        fingerprint: fingerprint.clone(),
    };
    let (same, changed) = (metadata("7", true, false), metadata("8", true, false));
    for (at_home, seen, known, expected) in [
        (None, None, None, Comparison::Settled),
        (Some(&wanted), None, Some(known(&wanted)), Comparison::Missing),
        (
            Some(&wanted),
            Some(&same),
            Some(known(&wanted)),
            Comparison::Settled,
        ),
        (
            Some(&wanted),
            Some(&same),
            Some(known(&other)),
            Comparison::Unclear,
        ),
        (
            Some(&wanted),
            Some(&changed),
            Some(known(&wanted)),
            Comparison::Unclear,
        ),
        (Some(&wanted), Some(&same), None, Comparison::Unclear),
        (None, Some(&same), Some(known(&wanted)), Comparison::Unclear),
        (
            None,
            Some(&metadata("7", false, false)),
            None,
            Comparison::Settled,
        ),
        (
            Some(&wanted),
            Some(&metadata("7", false, false)),
            Some(known(&wanted)),
            Comparison::Unclear,
        ),
        (
            Some(&wanted),
            Some(&metadata("7", true, true)),
            None,
            Comparison::Settled,
        ),
    ] {
        assert_eq!(
            compare(at_home, seen, known.as_ref()),
            expected,
            "{at_home:?} {seen:?}"
        );
    }
}

fn wanted_print(data: &str) -> Fingerprint {
    let object = named("a", Kind::ConfigMap, json!({"data": {"a": data}}));
    wanted(Kind::ConfigMap, object, &marks())
        .unwrap()
        .original
        .fingerprint
}

fn pairs() -> impl Strategy<Value = Value> {
    let keys = vec![
        "app",
        "note",
        "app.kubernetes.io/managed-by",
        "app.kubernetes.io/name",
        "argocd.argoproj.io/instance",
        "liqo.io/x",
        SKIP,
        HOME,
        HOME_UID,
        COPIED_KEYS,
        HOME_OBJECT_UID,
    ];
    btree_map(select(keys), "[a-c{}\"]{0,3}", 0..4).prop_map(|it| json!(it))
}

fn content(kind: Kind) -> BoxedStrategy<Value> {
    let data = btree_map("[a-c]", "[a-b]{0,2}", 0..3);
    match kind {
        Kind::ConfigMap => (data.clone(), data, any::<Option<bool>>())
            .prop_map(|(data, binary, immutable)| json!({"data": data, "binaryData": binary, "immutable": immutable}))
            .boxed(),
        Kind::Secret => {
            let types = select(vec!["", "Opaque", "kubernetes.io/tls", "kubernetes.io/service-account-token"]);
            (data, types, any::<bool>())
                .prop_map(|(data, of_type, immutable)| json!({"data": data, "type": of_type, "immutable": immutable}))
                .boxed()
        }
        Kind::Service => {
            let types = select(vec!["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]);
            (types, any::<bool>(), data, 0..3_u16, any::<bool>())
                .prop_map(|(of_type, headless, selector, ports, published)| {
                    let ports: Vec<_> = (0..ports).map(|n| json!({"port": 80 + n, "nodePort": 30000 + n})).collect();
                    let mut spec = json!({
                        "type": of_type, "selector": selector, "ports": ports, "publishNotReadyAddresses": published,
                    });
                    match (of_type, headless) {
                        ("ExternalName", _) => spec["externalName"] = "a.test".into(),
                        (_, true) => spec["clusterIP"] = "None".into(),
                        (_, false) => spec["clusterIP"] = "10.0.0.1".into(),
                    }
                    json!({"spec": spec})
                })
                .boxed()
        }
        Kind::EndpointSlice => {
            let endpoint = (data, any::<Option<bool>>()).prop_map(|(names, ready)| {
                let addresses: Vec<_> = names.keys().collect();
                json!({"addresses": addresses, "hostname": names.get("a"), "conditions": {"ready": ready}})
            });
            let families = select(vec!["IPv4", "IPv6"]);
            (families, prop::collection::vec(endpoint, 0..3), 0..3_u16)
                .prop_map(|(family, endpoints, ports)| {
                    let ports: Vec<_> = (0..ports).map(|n| json!({"port": 80 + n, "name": ""})).collect();
                    json!({"addressType": family, "endpoints": endpoints, "ports": ports})
                })
                .boxed()
        }
    }
}

/// Any object of a kind, of any creator.
fn any_object(kind: Kind) -> impl Strategy<Value = Value> {
    (pairs(), pairs(), content(kind)).prop_map(move |(labels, annotations, content)| {
        let metadata = json!({"name": "x", "uid": "u", "labels": labels, "annotations": annotations});
        object(kind, metadata, content)
    })
}

/// An object at home, a second one, a remote object, and a change of the copy by others.
fn worlds() -> impl Strategy<Value = (Kind, Value, Option<Value>, Option<Value>, Value)> {
    select(vec![
        Kind::ConfigMap,
        Kind::Secret,
        Kind::Service,
        Kind::EndpointSlice,
    ])
    .prop_flat_map(|kind| {
        (
            Just(kind),
            any_object(kind),
            prop::option::of(any_object(kind)),
            prop::option::of(any_object(kind)),
            (pairs(), content(kind)).prop_map(move |(metadata, mut content)| {
                content["metadata"] = json!({"labels": metadata, "annotations": metadata});
                // Immutable fields.
                if let Some(content) = content.as_object_mut() {
                    content.remove("type");
                    content.remove("immutable");
                    content.remove("addressType");
                }
                if let Some(spec) = content["spec"].as_object_mut() {
                    spec.remove("clusterIP");
                }
                content
            }),
        )
    })
}

proptest! {
    #[test]
    fn foreign_objects_stay_and_copies_become_equal_to_their_original(
        (kind, first, then, there, meddling) in worlds(), late: bool,
    ) {
        let mut now = there.clone();
        let is_ours = |it: &Option<Value>| it.clone().is_some_and(|it| found(kind, it, &marks()).ours);
        if there.is_some() && !is_ours(&there) {
            for original in [Some(&first), then.as_ref()] {
                prop_assert!(matches!(act(kind, original, &mut now), Step::Nothing | Step::Taken));
                prop_assert_eq!(&now, &there);
            }
            return Ok(());
        }
        for original in [Some(&first), then.as_ref()] {
            act(kind, original, &mut now);
            // No further step follows, and the copy is as desired.
            prop_assert_eq!(act(kind, original, &mut now), Step::Nothing);
            let wanted = original.and_then(|it| wanted(kind, it.clone(), &marks()).ok());
            prop_assert_eq!(wanted.is_some(), now.is_some());
            let (Some(wanted), Some(copy)) = (wanted, &mut now) else { continue };
            prop_assert_eq!(&found(kind, copy.clone(), &marks()).fingerprint, &wanted.original.fingerprint);
            if !late || copy["immutable"] == true {
                continue;
            }
            merge(copy, &meddling);
            let met = now.clone();
            act(kind, original, &mut now);
            if is_ours(&met) {
                prop_assert_eq!(act(kind, original, &mut now), Step::Nothing);
                let copy = now.clone().unwrap();
                prop_assert_eq!(found(kind, copy, &marks()).fingerprint, wanted.original.fingerprint);
            } else {
                prop_assert_eq!(&now, &met, "without its marks it is no longer ours");
                return Ok(());
            }
        }
    }
}

#[test]
fn namespaces_of_services_are_found_in_the_data_of_an_object() {
    let found = |kind, content| {
        wanted(kind, named("a", kind, content), &marks())
            .unwrap()
            .original
            .namespaces
    };
    let settings = json!({"data": {"url": "http://db.data.svc", "own": "web.shop.svc", "color": "red"}});
    assert_eq!(
        found(Kind::ConfigMap, settings),
        ["data".to_owned(), "shop".to_owned()].into()
    );
    // postgres://user:word@db.data.svc/x
    let secret = json!({"data": {"url": "cG9zdGdyZXM6Ly91c2VyOndvcmRAZGIuZGF0YS5zdmMveA==", "key": "/wA="}});
    assert_eq!(found(Kind::Secret, secret), ["data".to_owned()].into());
    let many: Vec<String> = (0..99).map(|at| format!("db.a{at}.svc")).collect();
    let many = found(
        Kind::ConfigMap,
        json!({"data": {"all": many.join(" "), "own": "shop.svc"}}),
    );
    assert!(many.len() == 8 && many.contains("shop"), "{many:?}");
    let service = json!({"spec": {"type": "ExternalName", "externalName": "db.data.svc"}});
    assert!(found(Kind::Service, service).is_empty());
}
