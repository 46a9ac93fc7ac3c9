use super::*;
use crate::offload::{
    pods::{Destination, caveats, fails_without_token},
    reflection::name_of_copy,
};

fn pod(spec: &Value) -> Value {
    json!({
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "labels": {"app": "web", "liqo.io/shadowPod": "true", "fabric.storage.liqo.io/home": "another"},
            "annotations": {
                "note": "kept", "fabric.storage.liqo.io/remote-cluster": "milan", "kubernetes.io/config.source": "api",
                "argocd.argoproj.io/tracking-id": "shop:/Pod:shop/web",
            },
        },
        "spec": spec,
    })
}

fn made(spec: &Value) -> Value {
    let marks = RemoteMarks {
        labels: [("ours".to_owned(), "yes".to_owned())].into(),
        annotations: BTreeMap::new(),
    };
    remote_pod(&pod(spec), &marks, &RemoteSettings::default()).unwrap()
}

fn refused(spec: &Value) -> PodRefused {
    remote_pod(&pod(spec), &RemoteMarks::default(), &RemoteSettings::default()).unwrap_err()
}

/// A pod of a `StatefulSet`, as the API server returns it.
fn usual() -> Value {
    json!({
        "automountServiceAccountToken": true,
        "containers": [{
            "name": "web", "image": "web:1", "resources": {"requests": {"cpu": "1"}},
            "env": [
                {"name": "ACCOUNT", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "HOSTS", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIPs"}}},
            ],
            "volumeMounts": [
                {"name": "data", "mountPath": "/data"},
                {"name": "kube-api-access-x7k2p", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
            ],
        }],
        "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "hostname": "web-0",
        "nodeName": "milan", "preemptionPolicy": "PreemptLowerPriority", "priority": 0,
        "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {},
        "serviceAccount": "runner", "serviceAccountName": "runner",
        "nodeSelector": {"kubernetes.io/os": "linux", "liqo.io/type": "virtual-node"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            {"key": "virtual-node.liqo.io/not-allowed", "operator": "Exists"},
            {"operator": "Exists"},
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}},
            {"name": "kube-api-access-x7k2p", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt"}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]}},
        ],
    })
}

#[test]
fn annotations_that_a_pod_reads_are_carried() {
    let field = |key: &str| json!({"fieldPath": format!("metadata.annotations['{key}']")});
    let mut home = pod(&json!({
        "containers": [{"name": "main", "env": [
            {"name": "WAVE", "valueFrom": {"fieldRef": field("argocd.argoproj.io/sync-wave")}},
            {"name": "NETWORK", "valueFrom": {"fieldRef": field("k8s.v1.cni.cncf.io/network-status")}},
        ]}],
        "volumes": [{"name": "meta", "projected": {"sources": [{"downwardAPI": {"items": [
            {"path": "release", "fieldRef": field("meta.helm.sh/release-name")},
        ]}}]}}],
    }));
    let named = ["argocd.argoproj.io/sync-wave", "meta.helm.sh/release-name"];
    let harmless = [
        "helm.sh/chart",
        "net1.shop.ovn.kubernetes.io/ingress_rate",
        "note",
        "ovn.kubernetes.io/security_groups",
        "workflows.argoproj.io/template",
    ];
    let at_home = [
        "net1.shop.ovn.kubernetes.io/allocated",
        "ovn.kubernetes.io/ip_address",
        "argocd.argoproj.io/tracking-id",
        "configmanagement.gke.io/managed",
        "configsync.gke.io/resource-id",
        "k8s.v1.cni.cncf.io/network-status",
        "kapp.k14s.io/identity",
        "kustomize.toolkit.fluxcd.io/checksum",
        "meta.helm.sh/release-namespace",
    ];
    for key in named.iter().chain(&harmless).chain(&at_home) {
        home["metadata"]["annotations"][*key] = "value".into();
    }
    let carried: BTreeSet<String> = carried_annotations(&home).into_keys().collect();
    assert_eq!(
        carried,
        named.into_iter().chain(harmless).map(str::to_owned).collect()
    );
}

/// Programs read it at this path, and some wait until it is there.
#[test]
fn the_token_volume_keeps_its_namespace() {
    let mut home = usual();
    let mounts =
        json!([{"name": "kube-api-access-x7k2p", "mountPath": volumes::TOKEN_PATH, "readOnly": true}]);
    home["initContainers"] = json!([{"name": "init", "image": "web:1", "volumeMounts": mounts}]);
    home["ephemeralContainers"] = json!([{"name": "debug", "image": "web:1", "volumeMounts": mounts}]);
    let made = made(&home);
    let spec = &made["spec"];
    let sources = spec["volumes"][1]["projected"]["sources"].as_array().unwrap();
    assert_eq!(sources.len(), 1, "neither a token nor certificates");
    let namespace = json!([{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]);
    assert_eq!(sources[0]["downwardAPI"]["items"], namespace);
    assert_eq!(spec["initContainers"][0]["volumeMounts"], mounts);
    let of_container = spec["containers"][0]["volumeMounts"].as_array().unwrap();
    assert_eq!(of_container[1]["mountPath"], volumes::TOKEN_PATH);
    assert_eq!(ephemeral_containers(&pod(&home))[0]["volumeMounts"], mounts);
}

#[test]
fn a_usual_pod_is_carried_without_fields_of_the_home_cluster() {
    let remote = made(&usual());
    assert_eq!(remote["metadata"]["labels"], json!({"app": "web", "ours": "yes"}));
    let annotations = remote["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations.keys().collect::<Vec<_>>(), [RECORD, "note"]);
    let spec = &remote["spec"];
    assert_eq!(
        spec["volumes"][0],
        json!({"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}})
    );
    let container = &spec["containers"][0];
    assert_eq!(
        container["volumeMounts"],
        usual()["containers"][0]["volumeMounts"]
    );
    assert_eq!(container["env"][0], json!({"name": "ACCOUNT", "value": "runner"}));
    for (at, field) in [(1, "spec.nodeName"), (2, "status.hostIPs")] {
        assert_eq!(container["env"][at]["valueFrom"]["fieldRef"]["fieldPath"], field);
    }
    assert_eq!(spec["serviceAccountName"], "default");
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 1);
    assert_eq!(spec["schedulingGates"], json!([{"name": GATE}]));
    assert_eq!(spec["hostname"], "web-0");
    let hasty = made(&json!({"containers": [], "terminationGracePeriodSeconds": 0}));
    assert_eq!(hasty["spec"]["terminationGracePeriodSeconds"], 1);
    for field in LEFT_OUT
        .iter()
        .filter(|field| !field.contains("ccount") && **field != "schedulingGates")
    {
        assert_eq!(spec[field], Value::Null, "{field}");
    }
    assert_eq!(claims(&pod(&usual())), ["data-web-0"]);
}

#[test]
fn fields_that_work_only_at_home_are_refused_by_name() {
    let containers = json!([{"name": "a", "image": "a"}]);
    for (field, value) in [
        ("hostNetwork", json!(true)),
        ("hostPID", json!(true)),
        ("hostIPC", json!(true)),
        ("resourceClaims", json!([{"name": "gpu"}])),
        ("schedulingGroup", json!({"podGroupName": "a"})),
    ] {
        let mut spec = json!({ "containers": containers });
        spec[field] = value;
        assert_eq!(refused(&spec), PodRefused::AtHomeOnly(field.into()));
    }
    made(&json!({"containers": containers, "hostNetwork": false, "resourceClaims": []}));
}

#[test]
fn fields_with_another_meaning_there_are_reported() {
    let reasons = |spec: &Value| {
        let destination = Destination {
            cluster: "milan",
            namespace: "shop",
            is_same_there: &|_| true,
            existing: BTreeSet::new(),
            is_routed: true,
            selected: BTreeSet::new(),
            settings: &RemoteSettings::default(),
        };
        let all = caveats(&pod(spec), &destination);
        all.into_iter()
            .map(|(reason, note)| {
                assert!(note.contains("milan") && note.contains("keep the pod"), "{note}");
                reason
            })
            .collect::<Vec<_>>()
    };
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]});
    let preferred = |namespaces: Value| {
        json!({"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "namespaces": namespaces}},
        ]})
    };
    let mut of_default = usual();
    of_default["serviceAccountName"] = "default".into();
    let mut without_token = usual();
    without_token["volumes"].as_array_mut().unwrap().pop();
    let mut with_identity = without_token.clone();
    let identity = json!({"name": "svid", "csi": {"driver": "csi.spiffe.io", "readOnly": true}});
    with_identity["volumes"].as_array_mut().unwrap().push(identity);
    for (spec, said) in [
        (usual(), vec!["NoServiceAccountToken"]),
        (of_default, vec![]),
        (without_token, vec![]),
        (with_identity, vec!["OtherServiceAccount"]),
        (
            json!({"affinity": {"podAntiAffinity": preferred(json!([]))}, "dnsPolicy": "Default"}),
            vec![],
        ),
        (
            json!({"affinity": {"podAntiAffinity": preferred(json!(["data"]))}}),
            vec!["PodAffinityIgnored"],
        ),
        (
            json!({"affinity": {"podAntiAffinity": required}}),
            vec!["PodAffinityIgnored"],
        ),
        (
            json!({"affinity": {"podAffinity": required, "podAntiAffinity": required}}),
            vec!["PodAffinityIgnored"],
        ),
        (
            json!({"setHostnameAsFQDN": true, "subdomain": "s".repeat(38)}),
            vec!["HostnameTooLong"],
        ),
        (
            json!({"setHostnameAsFQDN": true, "subdomain": "s".repeat(37)}),
            vec![],
        ),
        (
            json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.53"]}}),
            vec!["HomeNameservers"],
        ),
    ] {
        assert_eq!(reasons(&spec), said, "{spec}");
    }
}

#[test]
fn a_pod_without_the_token_of_default_is_reported_when_it_fails() {
    let with = |account: &str, status: Value| {
        let mut home = pod(&usual());
        home["spec"]["serviceAccountName"] = account.into();
        home["status"] = status;
        home
    };
    let runs = json!({"containerStatuses": [{"name": "web", "state": {"running": {}}}]});
    let ended = |state: &str, code: i64| json!({"containerStatuses": [{"name": "web", state: {"terminated": {"exitCode": code}}}]});
    let initial =
        json!({"initContainerStatuses": [{"name": "init", "state": {"terminated": {"exitCode": 2}}}]});
    for (home, status, is_reported) in [
        (with("default", runs.clone()), ended("state", 1), true),
        (with("default", Value::Null), ended("lastState", 1), true),
        (with("default", runs.clone()), initial, true),
        (with("default", runs.clone()), ended("state", 0), false),
        (with("default", runs.clone()), runs.clone(), false),
        (with("default", ended("state", 1)), ended("lastState", 1), false),
        (with("runner", runs.clone()), ended("state", 1), false),
        (json!({"spec": {}}), ended("state", 1), false),
    ] {
        let said = fails_without_token(&home, &status, "milan");
        assert_eq!(said.is_some(), is_reported, "{status}");
        assert!(said.is_none_or(|(_, note)| note.contains("in the cluster milan")));
    }
}

/// The names that follow `before` in a text.
fn names<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    let all = text.split(before).skip(1);
    all.filter_map(|rest| rest.split(|it: char| !it.is_alphanumeric()).next())
        .collect()
}

#[test]
fn the_chart_policies_keep_the_same_pods_at_home() {
    let chart = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/chart/liqo-csi/templates/offloading.yaml"
    );
    let chart = std::fs::read_to_string(chart).unwrap();
    let (_, policy) = chart.split_once("- name: whyHomebound").unwrap();
    let (policy, _) = policy.split_once("- name: homebound").unwrap();
    let mut fields = names(policy, "object.spec.?");
    fields.extend(names(policy, "has(object.spec."));
    assert_eq!(fields, AT_HOME_ONLY.into());
    for field in fields {
        for value in [json!(true), json!([{}]), json!({"podGroupName": "a"})] {
            assert!(is_homebound(&pod(&json!({field: value}))), "{field}");
        }
    }
    let (kinds, sources) = (names(policy, "has(v."), names(policy, "has(s."));
    assert_eq!(kinds, volumes::at_home_only().collect());
    assert_eq!(sources, volumes::SOURCES_AT_HOME_ONLY.into());
    let with = |volume: Value| json!({"containers": [], "volumes": [volume]});
    let kinds = kinds.iter().map(|kind| with(json!({"name": "v", *kind: {}})));
    let sources = sources.iter().map(|source| json!({"sources": [{*source: {}}]}));
    let sources = sources.map(|sources| with(json!({"name": "v", "projected": sources})));
    for spec in kinds.chain(sources) {
        assert!(is_homebound(&pod(&spec)), "{spec}");
        assert!(matches!(refused(&spec), PodRefused::AtHomeOnly(_)), "{spec}");
    }
    // The volume that Kubernetes adds for the token is no reason to stay at home.
    for part in [volumes::TOKEN_VOLUME, volumes::TOKEN_PATH] {
        assert!(policy.contains(&format!("'{part}'")), "{part}");
    }
    let certificates = volumes::TOKEN_CERTIFICATES
        .map(|name| format!("'{name}'"))
        .join(", ");
    assert!(policy.contains(&format!("[{certificates}]")));
    assert!(!is_homebound(&pod(&usual())));
    let mut token = usual();
    token["volumes"][1]["projected"]["sources"][1] = json!({"podCertificate": {}});
    assert!(is_homebound(&pod(&token)));
}

#[test]
fn scheduling_settings_of_the_remote_cluster_are_applied() {
    let settings = RemoteSettings {
        node_selector: [("pool".to_owned(), "guests".to_owned())].into(),
        tolerations: vec![json!({"key": "guests", "operator": "Exists"})],
        priority_class: Some("low".into()),
        home: "home".into(),
        claims: BTreeMap::new(),
        runtime_class: Some("gvisor".into()),
        ..RemoteSettings::default()
    };
    let spec = |class| {
        json!({"containers": [], "runtimeClassName": class, "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 3},
        ]})
    };
    let made = |class| remote_pod(&pod(&spec(class)), &RemoteMarks::default(), &settings).unwrap();
    let remote = &made("liqo")["spec"];
    assert_eq!(remote["nodeSelector"], json!({"pool": "guests"}));
    assert_eq!(
        remote["tolerations"],
        json!([{"key": "guests", "operator": "Exists"}])
    );
    assert_eq!(remote["priorityClassName"], "low");
    assert_eq!(remote["runtimeClassName"], "gvisor");
    assert_eq!(made("kata")["spec"]["runtimeClassName"], "kata");
    let spread = &remote["topologySpreadConstraints"][0];
    assert_eq!(
        (&spread["whenUnsatisfiable"], &spread["minDomains"]),
        (&json!("ScheduleAnyway"), &Value::Null)
    );
}

#[test]
fn requirements_on_the_architecture_are_carried() {
    let amd = json!({"key": "kubernetes.io/arch", "operator": "NotIn", "values": ["arm64"]});
    let zone = json!({"key": "zone", "operator": "Exists"});
    let virtual_nodes =
        |operator: &str| json!({"key": NODE_KIND, "operator": operator, "values": ["virtual-node"]});
    let real = virtual_nodes("NotIn");
    let both = json!([{"matchExpressions": [amd, real]}]);
    let any = json!([{"matchExpressions": [real]}]);
    for (own, wanted) in [
        (json!([]), &any),
        (
            json!([{"matchExpressions": [zone, amd, virtual_nodes("In")]}]),
            &both,
        ),
        (
            json!([{"matchExpressions": [amd]}, {"matchExpressions": [zone]}]),
            &any,
        ),
        // What the policies add for nodes of this cluster.
        (
            json!([{"matchExpressions": [amd, virtual_nodes("In")]}, {"matchExpressions": [real]}]),
            &both,
        ),
        (
            json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["milan"]}]}]),
            &any,
        ),
    ] {
        let required = json!({ "nodeSelectorTerms": own });
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
        let made = made(&json!({"containers": [], "affinity": affinity}));
        let required =
            &made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(required["nodeSelectorTerms"], *wanted, "{own}");
    }
    let selector = json!({"beta.kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"});
    let selecting = made(&json!({"containers": [], "nodeSelector": selector}));
    assert_eq!(selecting["spec"]["nodeSelector"], selector);
}

#[test]
fn affinity_to_other_pods_is_a_preference_there() {
    let term = |key: &str, more: Value| {
        let mut term = json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": "web"}}});
        term.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        term
    };
    let weighted = |weight: i64, term: Value| json!({"weight": weight, "podAffinityTerm": term});
    let one = json!({"key": "app", "operator": "In", "values": ["web"]});
    let left_out = json!({"key": "liqo.io/shadowPod", "operator": "In", "values": ["true"]});
    // As the API server at home has merged the keys.
    let merged = json!({
        "topologyKey": "rack", "labelSelector": {"matchExpressions": [one, left_out]},
        "matchLabelKeys": ["app", "liqo.io/shadowPod"], "mismatchLabelKeys": ["absent"],
    });
    let of_all = json!({
        "preferredDuringSchedulingIgnoredDuringExecution": [
            weighted(7, term("zone", json!({}))),
            weighted(8, term("zone", json!({"namespaces": ["data"]}))),
            weighted(9, merged),
        ],
        "requiredDuringSchedulingIgnoredDuringExecution": [
            term("zone", json!({"namespaceSelector": {}})),
            // As many charts write the own one.
            term("kubernetes.io/hostname", json!({"namespaces": ["shop"]})),
            term("row", json!({"namespaces": ["shop", "data"]})),
        ],
    });
    let of_others = json!({"requiredDuringSchedulingIgnoredDuringExecution": [
        term("zone", json!({"namespaceSelector": {"matchLabels": {"a": "b"}}})),
    ]});
    let affinity = json!({"podAntiAffinity": of_all, "podAffinity": of_others});
    let made = made(&json!({"containers": [], "affinity": affinity}));
    let affinity = &made["spec"]["affinity"];
    let selected = json!({"topologyKey": "rack", "labelSelector": {"matchExpressions": [one]}});
    assert_eq!(
        affinity["podAntiAffinity"],
        json!({"preferredDuringSchedulingIgnoredDuringExecution": [
            weighted(7, term("zone", json!({}))),
            weighted(9, selected),
            weighted(100, term("zone", json!({"namespaceSelector": {}}))),
            weighted(100, term("kubernetes.io/hostname", json!({}))),
        ]})
    );
    assert_eq!(affinity["podAffinity"], Value::Null);
    assert!(affinity["nodeAffinity"].is_object());
}

#[test]
fn all_references_to_configmaps_and_secrets_are_found() {
    let home = pod(&json!({
        "initContainers": [{"name": "i", "envFrom": [
            {"configMapRef": {"name": "c1"}}, {"secretRef": {"name": "s1", "optional": true}},
        ]}],
        "containers": [{"name": "a", "env": [
            {"name": "A", "value": "a"},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c2", "key": "b", "optional": true}}},
            {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "c"}}},
        ]}],
        "volumes": [
            {"name": "a", "configMap": {"name": "c3"}},
            {"name": "b", "secret": {"secretName": "s3"}},
            {"name": "c", "projected": {"sources": [{"configMap": {"name": "c4"}}, {"secret": {"name": "s4"}}]}},
            {"name": "d", "emptyDir": {}},
            {"name": "e", "csi": {"driver": "a", "nodePublishSecretRef": {"name": "s6"}}},
        ],
        "imagePullSecrets": [{"name": "s5"}],
    }));
    let all = configuration(&home);
    let names: Vec<&str> = all.keys().map(|(_, name)| name.as_str()).collect();
    assert_eq!(
        names,
        ["c1", "c2", "c3", "c4", "s1", "s2", "s3", "s4", "s5", "s6"]
    );
    for ((kind, name), is_required) in all {
        assert_eq!(kind == Kind::Secret, name.starts_with('s'), "{name}");
        assert_eq!(
            is_required,
            !["c2", "s1", "s5"].contains(&name.as_str()),
            "{name}"
        );
    }
    assert!(
        configuration(&pod(&usual())).is_empty(),
        "certificates beside the token"
    );
}

#[test]
fn variables_from_the_root_certificates_use_the_copied_configmap() {
    let container = |name: &str| {
        json!({
            "name": "a",
            "env": [{"name": "CA", "valueFrom": {"configMapKeyRef": {"name": name, "key": "ca.crt"}}}],
            "envFrom": [{"configMapRef": {"name": name}}, {"secretRef": {"name": "s"}}],
        })
    };
    let all = json!([container("kube-root-ca.crt")]);
    let pod = pod(&json!({"containers": all, "initContainers": all, "ephemeralContainers": all}));
    let settings = RemoteSettings {
        home: "home".into(),
        ..RemoteSettings::default()
    };
    let mut remote = remote_pod(&pod, &RemoteMarks::default(), &settings).unwrap();
    let debug = changes::Change::EphemeralContainers.patches(&as_carried(pod, &settings), &remote);
    remote["spec"]["ephemeralContainers"] = debug[0].patch["spec"]["ephemeralContainers"].clone();
    let copy = name_of_copy(Kind::ConfigMap, "kube-root-ca.crt", "home");
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        assert_eq!(remote["spec"][list], json!([container(&copy)]), "{list}");
    }
}

#[test]
fn fields_set_to_false_or_empty_are_carried() {
    let spec = json!({
        "containers": [], "enableServiceLinks": false, "hostUsers": false, "shareProcessNamespace": false,
        "terminationGracePeriodSeconds": 5, "subdomain": "", "securityContext": {}, "newFeature": {"on": false},
    });
    let remote = &made(&spec)["spec"];
    for (field, value) in spec.as_object().unwrap() {
        assert_eq!(remote[field], *value, "{field}");
    }
}

#[test]
fn topology_spread_constraints_are_merged_to_valid_ones() {
    let constraint = |when: &str, skew: i64, selector: Value| {
        json!({
            "topologyKey": "zone", "whenUnsatisfiable": when, "maxSkew": skew,
            "labelSelector": selector, "matchLabelKeys": ["app", "absent"],
        })
    };
    let of_web = json!({"matchLabels": {"app": "web"}});
    let spread = |constraints: Value| {
        made(&json!({"containers": [], "topologySpreadConstraints": constraints}))["spec"]
            ["topologySpreadConstraints"]
            .clone()
    };
    let both = spread(json!([
        constraint("ScheduleAnyway", 1, of_web.clone()),
        constraint("DoNotSchedule", 2, of_web.clone()),
    ]));
    let wanted = json!({"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1, "labelSelector": of_web});
    assert_eq!(both, json!([wanted]));
    let of_all = json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]});
    let unequal = spread(json!([
        constraint("ScheduleAnyway", 1, of_web),
        constraint("DoNotSchedule", 2, of_all.clone()),
    ]));
    let with_app = json!({"matchExpressions": [
        {"key": "tier", "operator": "Exists"}, {"key": "app", "operator": "In", "values": ["web"]},
    ]});
    assert_eq!(unequal.as_array().unwrap().len(), 1);
    assert_eq!(unequal[0]["labelSelector"], with_app);
    assert_eq!(unequal[0]["maxSkew"], 2);
    let mut by_cluster = constraint("ScheduleAnyway", 1, json!({}));
    by_cluster["topologyKey"] = "topology.storage.liqo.io/cluster".into();
    assert_eq!(spread(json!([by_cluster])), Value::Null, "no node there has it");
    let merged = spread(json!([constraint("DoNotSchedule", 1, with_app.clone())]));
    assert_eq!(
        merged[0]["labelSelector"], with_app,
        "the home API server was first"
    );
}

/// A selector with such a label would match no remote pod.
#[test]
fn topology_spread_constraints_have_no_labels_that_stay_at_home() {
    let one = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let settings = RemoteSettings {
        skip_labels: vec!["team".to_owned()],
        ..RemoteSettings::default()
    };
    for merged in [json!([]), json!([one("app", "web"), one("team", "a")])] {
        let mut home = pod(&json!({"containers": [], "topologySpreadConstraints": [{
            "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1,
            "labelSelector": {"matchExpressions": merged}, "matchLabelKeys": ["app", "team"],
        }]}));
        home["metadata"]["labels"]["team"] = "a".into();
        let remote = remote_pod(&home, &RemoteMarks::default(), &settings).unwrap();
        let constraint = &remote["spec"]["topologySpreadConstraints"][0];
        assert_eq!(
            constraint["labelSelector"]["matchExpressions"],
            json!([one("app", "web")]),
            "{merged}"
        );
    }
}

#[test]
fn safe_to_evict_is_set_on_pods_that_an_autoscaler_may_evict_at_home() {
    let annotation = |change: &dyn Fn(&mut Value)| {
        let mut home = pod(&usual());
        home["metadata"]["ownerReferences"] =
            json!([{"kind": "StatefulSet", "name": "web", "controller": true}]);
        change(&mut home);
        let remote = remote_pod(&home, &RemoteMarks::default(), &RemoteSettings::default()).unwrap();
        remote["metadata"]["annotations"][SAFE_TO_EVICT].clone()
    };
    assert_eq!(annotation(&|_| {}), "true");
    let own = |home: &mut Value| home["metadata"]["annotations"][SAFE_TO_EVICT] = "false".into();
    assert_eq!(annotation(&own), "false");
    for kept in [
        |home: &mut Value| home["metadata"]["ownerReferences"] = json!([]),
        |home: &mut Value| home["metadata"]["ownerReferences"][0]["kind"] = "DaemonSet".into(),
        |home: &mut Value| home["spec"]["volumes"][0] = json!({"name": "data", "emptyDir": {}}),
    ] {
        assert_eq!(annotation(&kept), Value::Null);
    }
}

#[test]
fn skipped_labels_and_annotations_are_not_carried() {
    let from =
        |name: &str, field: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}});
    let spec = json!({"containers": [{
        "name": "a",
        "env": [from("TEAM", "metadata.labels['corp/team']"), from("APP", "metadata.labels['app']")],
        "volumeMounts": [{"name": "data", "mountPath": "/a", "subPathExpr": "$(TEAM)/$(APP)"}],
    }]});
    let mut home = pod(&spec);
    for key in [
        "corp/team",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/rack",
    ] {
        home["metadata"]["labels"][key] = "a".into();
    }
    home["metadata"]["annotations"]["external-dns/host"] = "a.test".into();
    // API servers overwrite the label only.
    home["metadata"]["annotations"]["topology.kubernetes.io/zone"] = "a".into();
    let settings = RemoteSettings {
        skip_labels: vec!["corp/*".to_owned(), "ap".to_owned()],
        skip_annotations: vec!["external-dns/host".to_owned()],
        ..RemoteSettings::default()
    };
    let remote = remote_pod(&home, &RemoteMarks::default(), &settings).unwrap();
    assert_eq!(
        remote["metadata"]["labels"],
        json!({"app": "web", "topology.kubernetes.io/rack": "a"})
    );
    let annotations = remote["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(
        annotations.keys().collect::<Vec<_>>(),
        [RECORD, "note", "topology.kubernetes.io/zone"]
    );
    let env = &remote["spec"]["containers"][0]["env"];
    // The directory has the same name there, also by a label that is not.
    assert_eq!(env[0], json!({"name": "TEAM", "value": "a"}));
    assert_eq!(env[1], from("APP", "metadata.labels['app']"));
    // Nothing is to be changed later, until the setting does.
    let change = |settings: &RemoteSettings| {
        changes::Change::Metadata.patches(&as_carried(home.clone(), settings), &remote)
    };
    assert!(change(&settings).is_empty());
    let patch = &change(&RemoteSettings::default())[0].patch["metadata"];
    assert_eq!(patch["labels"], json!({"corp/team": "a"}));
}

/// The conformance tests of Kubernetes add such an annotation when the container has failed without it.
#[test]
fn a_missing_annotation_in_a_subpath_stays_a_field_reference() {
    let annotation = json!({"name": "DIRECTORY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['directory']"}}});
    let spec = json!({"containers": [{
        "name": "a", "env": [annotation],
        "volumeMounts": [{"name": "data", "mountPath": "/a", "subPathExpr": "$(DIRECTORY)/a"}],
    }]});
    assert_eq!(made(&spec)["spec"]["containers"][0]["env"], json!([annotation]));
}

#[test]
fn variables_in_subpaths_get_their_home_values() {
    let from =
        |name: &str, field: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}});
    let spec = json!({"nodeName": "milan", "containers": [{
        "name": "a",
        "env": [
            from("NAMESPACE", "metadata.namespace"),
            from("NODE", "spec.nodeName"),
            from("APP", "metadata.labels['app']"),
            from("SOURCE", "metadata.annotations['kubernetes.io/config.source']"),
            from("ZONE", "metadata.annotations['topology.kubernetes.io/zone']"),
            from("OWN_ZONE", "metadata.labels['topology.kubernetes.io/zone']"),
            {"name": "BOTH", "value": "$(APP)-$(NAMESPACE)-$$(NODE)"},
            from("ELSEWHERE", "metadata.namespace"),
            from("IP", "status.podIP"),
        ],
        "volumeMounts": [
            {"name": "data", "mountPath": "/c", "subPathExpr": "$(SOURCE)"},
            {"name": "data", "mountPath": "/a", "subPathExpr": "x/$(BOTH)"},
            {"name": "data", "mountPath": "/b", "subPathExpr": "$(IP)"},
            {"name": "data", "mountPath": "/d", "subPathExpr": "$(ZONE)/$(OWN_ZONE)"},
        ],
    }]});
    let mut home = pod(&spec);
    for pairs in ["annotations", "labels"] {
        home["metadata"][pairs]["topology.kubernetes.io/zone"] = "a".into();
    }
    let remote = remote_pod(&home, &RemoteMarks::default(), &RemoteSettings::default()).unwrap();
    assert_eq!(
        remote["spec"]["containers"][0]["env"],
        json!([
            {"name": "NAMESPACE", "value": "shop"},
            from("NODE", "spec.nodeName"),
            from("APP", "metadata.labels['app']"),
            {"name": "SOURCE", "value": "api"},
            from("ZONE", "metadata.annotations['topology.kubernetes.io/zone']"),
            {"name": "OWN_ZONE", "value": "a"},
            {"name": "BOTH", "value": "$(APP)-$(NAMESPACE)-$$(NODE)"},
            from("ELSEWHERE", "metadata.namespace"),
            from("IP", "status.podIP"),
        ])
    );
}
