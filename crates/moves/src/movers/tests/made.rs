//! The created objects are as specified.

use super::*;

fn container(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]
}

fn arguments(pod: &Value) -> Vec<String> {
    let arguments = container(pod)["args"].as_array().unwrap();
    arguments
        .iter()
        .map(|one| one.as_str().unwrap().to_owned())
        .collect()
}

fn has(pod: &Value, argument: &str) {
    let arguments = arguments(pod);
    assert!(
        arguments.iter().any(|one| one == argument),
        "{argument} is not in {arguments:?}"
    );
}

#[tokio::test]
async fn both_movers_are_created_and_become_ready() {
    for way in [Way::Out, Way::Home, Way::Within] {
        let world = World::new(way).await;
        let before = world.look(&PREPARING).await;
        assert_eq!(before.copied, Live::Known(Copied::default()));
        world.prepare().await;
        let seen = world.look(&PREPARING).await;
        assert_eq!((seen.source, seen.target), (ready(), ready()));
        let made = world.all();
        world.prepare().await;
        assert_eq!(world.all(), made, "something was made twice");
    }
}

#[tokio::test]
async fn movers_get_only_the_capabilities_that_copying_needs() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    for (pod, added, read_only) in [
        (world.source_pod(), json!(["DAC_OVERRIDE"]), true),
        (
            world.target_pod(),
            json!(["DAC_OVERRIDE", "CHOWN", "FOWNER", "FSETID", "SETFCAP", "MKNOD"]),
            false,
        ),
    ] {
        let context = &container(&pod)["securityContext"];
        assert_eq!(context["capabilities"], json!({"drop": ["ALL"], "add": added}));
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["privileged"], Value::Null);
        let spec = &pod["spec"];
        assert_eq!(
            spec["securityContext"]["seccompProfile"]["type"],
            "RuntimeDefault"
        );
        assert_eq!(spec["securityContext"]["runAsUser"], 0);
        assert_eq!(spec["securityContext"]["fsGroup"], Value::Null);
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["restartPolicy"], "Never");
        for forbidden in ["hostNetwork", "hostPID", "hostIPC", "serviceAccountName"] {
            assert_eq!(spec[forbidden], Value::Null, "{forbidden}");
        }
        assert_eq!(container(&pod)["resources"]["requests"]["memory"], "128Mi");
        assert_eq!(container(&pod)["resources"]["limits"]["memory"], "256Mi");
        assert_eq!(container(&pod)["image"], "example.test/driver:1");
        assert_eq!(container(&pod)["volumeMounts"][0]["readOnly"], read_only);
        assert_eq!(container(&pod)["volumeMounts"][1]["readOnly"], true);
    }
}

#[tokio::test]
async fn movers_and_relays_run_on_linux() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    for pod in [world.source_pod(), world.target_pod(), world.pod("move-relay")] {
        assert_eq!(
            pod["spec"]["nodeSelector"],
            json!({"kubernetes.io/os": "linux"}),
            "{}",
            pod["metadata"]["name"]
        );
    }
}

/// Container runtimes change the labels of writable volumes, and running pods would lose access to their files.
#[tokio::test]
async fn a_source_mover_leaves_the_selinux_labels_of_its_volume() {
    for way in [Way::Out, Way::Home] {
        let world = World::new(way).await;
        world.prepare().await;
        for (pod, read_only, level) in [
            (world.source_pod(), json!(true), json!({"level": "s0:c0.c1023"})),
            (world.target_pod(), Value::Null, Value::Null),
        ] {
            let spec = &pod["spec"];
            let policy = level.is_object().then_some("Recursive");
            assert_eq!(spec["securityContext"]["seLinuxChangePolicy"], json!(policy));
            assert_eq!(spec["volumes"][0]["persistentVolumeClaim"]["readOnly"], read_only);
            assert_eq!(spec["securityContext"]["seLinuxOptions"], level);
        }
    }
}

/// `TopoLVM` mounts nothing read-only. Where pods name their level, as on `OpenShift`, labels are changed to the same.
#[tokio::test]
async fn a_source_mover_has_a_writable_volume_if_its_driver_mounts_no_other() {
    for (levels, expected) in [
        (vec![], "s0:c0.c1023"),
        (vec![json!("s0:c1,c2"), json!("s0:c1,c2")], "s0:c1,c2"),
        (vec![json!("s0:c1,c2"), Value::Null], "s0:c0.c1023"),
    ] {
        let world = World::new(Way::Home).await;
        world.there.change(TWIN_THERE, |twin| {
            twin["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = "topolvm.io".into();
        });
        for (at, level) in levels.into_iter().enumerate() {
            world.there.put(
                &format!("{THERE}/pods/web-{at}"),
                json!({
                    "spec": {
                        "nodeName": "n1", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
                        "securityContext": {"seLinuxOptions": {"level": level}},
                    },
                    "status": {"phase": "Running"},
                }),
            );
        }
        world.prepare().await;
        let spec = &world.source_pod()["spec"];
        assert_eq!(
            spec["volumes"][0]["persistentVolumeClaim"]["readOnly"],
            Value::Null
        );
        assert_eq!(spec["securityContext"]["seLinuxOptions"]["level"], expected);
        let policy = (expected == "s0:c0.c1023").then_some("Recursive");
        assert_eq!(spec["securityContext"]["seLinuxChangePolicy"], json!(policy));
        assert_eq!(spec["containers"][0]["volumeMounts"][0]["readOnly"], true);
    }
}

/// The charts of both clusters allow the controller no other pods than these.
#[tokio::test]
async fn the_policies_of_both_clusters_admit_movers() {
    let template = |name: &str| {
        let templates = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../deploy/chart/liqo-csi/templates"
        );
        std::fs::read_to_string(format!("{templates}/{name}")).unwrap()
    };
    let (remote, home) = (template("remote-access.yaml"), template("controller-fence.yaml"));
    let (_, rules_of_containers) = home.split_once("define \"liqo-csi.isMoverContainer\"").unwrap();
    let policy_names = ["name: {{ $role }}-movers\n", "name: controller-movers."];
    let policies = [&remote, &home]
        .into_iter()
        .zip(policy_names)
        .map(|(template, name)| {
            let (_, policy) = template.split_once(name).unwrap();
            let (policy, _) = policy
                .split_once("kind: ValidatingAdmissionPolicyBinding")
                .unwrap();
            (name, format!("{policy}{rules_of_containers}"))
        });
    let policies: Vec<_> = policies.collect();
    for (of, world) in [
        ("files", World::new(Way::Out).await),
        ("a device", World::with_device(Way::Out).await),
    ] {
        // A device is copied when its pods have gone.
        world.gate();
        world.prepare_for(&Stage::Finishing(GateNumber::FIRST)).await;
        for pod in [world.source_pod(), world.target_pod()] {
            let one = container(&pod);
            let all = |field: &str| one[field].as_array().cloned().unwrap_or_default();
            let mut named: Vec<String> = one.as_object().unwrap().keys().cloned().collect();
            let texts = all("command").into_iter();
            let texts = texts.chain(all("volumeMounts").into_iter().map(|it| it["mountPath"].clone()));
            let texts = texts.chain(
                all("volumeDevices")
                    .into_iter()
                    .map(|it| it["devicePath"].clone()),
            );
            named.extend(texts.map(|it| it.as_str().unwrap().to_owned()));
            for (name, policy) in &policies {
                for part in &named {
                    assert!(policy.contains(&format!("'{part}'")), "{name}, {of}: {part}");
                }
            }
            let name = pod["metadata"]["name"].as_str().unwrap();
            let (of_side, digits) = name.rsplit_once('-').unwrap();
            assert!(matches!(of_side, "move-source" | "move-target"), "{name}");
            assert!(digits.len() == 16 && digits.chars().all(|it| "0123456789abcdef".contains(it)));
            for volume in pod["spec"]["volumes"].as_array().unwrap() {
                if let Some(secret) = volume["secret"]["secretName"].as_str() {
                    assert!(secret.starts_with(name), "{secret}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_user_that_owns_all_files_needs_no_root() {
    let mut world = World::new(Way::Out).await;
    world.of = request(json!({
        "target": {"cluster": "milan"},
        "mover": {"runAsUser": 1000, "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}},
    }));
    world.prepare().await;
    let pod = world.target_pod();
    assert_eq!(
        container(&pod)["securityContext"]["capabilities"],
        json!({"drop": ["ALL"]})
    );
    assert_eq!(pod["spec"]["securityContext"]["runAsUser"], 1000);
    assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        container(&pod)["resources"]["requests"],
        json!({"cpu": "1", "memory": "128Mi"})
    );
    assert_eq!(container(&pod)["resources"]["limits"], json!({"memory": "1Gi"}));
}

#[tokio::test]
async fn a_source_at_home_is_read_by_a_second_pv_of_the_same_handle() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    let volume = only(&world.api, VOLUMES);
    let claim = only(&world.api, &format!("{OURS}/persistentvolumeclaims/"));
    let spec = &volume["spec"];
    assert_eq!(spec["csi"]["volumeHandle"], format!("v1:home:{}", name()));
    assert_eq!(spec["csi"]["readOnly"], true);
    assert_eq!(
        spec["csi"]["volumeAttributes"][mark::MOVER],
        format!("source:{MOVE}")
    );
    assert_eq!(spec["csi"]["volumeAttributes"][TWIN_CLASS], "real");
    assert_eq!(spec["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(spec["storageClassName"], Value::Null);
    assert_eq!(spec["claimRef"]["namespace"], "liqo-csi");
    assert_eq!(spec["claimRef"]["name"], claim["metadata"]["name"]);
    assert_eq!(
        spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(claim["spec"]["volumeName"], volume["metadata"]["name"]);
    assert_eq!(claim["spec"]["storageClassName"], "");
    let pod = world.source_pod();
    assert_eq!(pod["metadata"]["namespace"], "liqo-csi");
    assert_eq!(
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"],
        claim["metadata"]["name"]
    );
    // This driver sees it as the PV of a mover.
    let seen = world.moved.home.views().volumes.clone();
    world.api.until(|_| !seen.of_movers().is_empty()).await;
    assert_eq!(seen.of_movers()[0].id, world.moved.source.id);
}

#[tokio::test]
async fn a_target_at_home_is_written_by_a_pv_of_its_own_epoch() {
    let world = World::new(Way::Home).await;
    world.prepare().await;
    let spec = only(&world.api, VOLUMES)["spec"].clone();
    assert_eq!(spec["csi"]["volumeHandle"], format!("v2:home:{}:1", name()));
    assert_eq!(spec["csi"]["readOnly"], Value::Null);
    assert_eq!(
        spec["csi"]["volumeAttributes"][mark::MOVER],
        format!("target:{MOVE}")
    );
    assert_eq!(
        spec["csi"]["volumeAttributes"]["storage.liqo.io/twin-name"],
        format!("{UID}-1")
    );
    assert_eq!(spec["capacity"]["storage"], "2Gi");
    let terms = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"];
    let key = |one: &Value| one["key"].as_str().unwrap().to_owned();
    let keys: Vec<String> = terms.as_array().unwrap().iter().map(key).collect();
    assert_eq!(keys, ["kubernetes.io/hostname", CLUSTER_KEY]);
    // In the remote cluster the mover mounts the twin itself.
    let source = world.source_pod();
    assert_eq!(source["metadata"]["namespace"], "shop-home");
    assert_eq!(
        source["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"],
        "data"
    );
    assert_eq!(source["spec"]["imagePullSecrets"], json!([]));
}

/// While the PV of a remote source is gated there, only the claim of the mover is bound to it.
#[tokio::test]
async fn a_remote_mover_mounts_its_own_claim_while_that_is_bound() {
    let world = World::new(Way::Home).await;
    world.prepare().await;
    let claim_of = |world: &World| {
        let pod = world.source_pod();
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"].clone()
    };
    let Place::Site(site) = &world.moved.source.place else {
        panic!("it is unreachable");
    };
    let twin = site.twins().get(site.name()).await.unwrap().unwrap();
    let claim = claim_there(&world.moved, site, &twin);
    assert!(!site.is_twin(&world.moved.source.id.name, &claim));
    let name = name_of_claim_there(&world.moved);
    let path = format!("{THERE}/persistentvolumeclaims/{name}");
    site.twins().create(&claim).await.unwrap();
    for (phase, expected) in [("Pending", "data"), ("Bound", name.as_str()), ("Lost", "data")] {
        world
            .there
            .change(&path, |claim| claim["status"]["phase"] = phase.into());
        world.prepare_for(&Stage::Finishing(GateNumber::FIRST)).await;
        assert_eq!(claim_of(&world), expected, "{phase}");
    }
}

#[tokio::test]
async fn mover_certificates_are_owned_by_their_pods_and_share_an_authority() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    let secret = |api: &FakeApi, pod: &Value| {
        let name = pod["spec"]["volumes"][1]["secret"]["secretName"]
            .as_str()
            .unwrap();
        let namespace = pod["metadata"]["namespace"].as_str().unwrap();
        api.object(&format!("/api/v1/namespaces/{namespace}/secrets/{name}"))
            .unwrap()
    };
    let (source, target) = (world.source_pod(), world.target_pod());
    let secrets = [secret(&world.api, &source), secret(&world.there, &target)];
    for (secret, pod) in secrets.iter().zip([&source, &target]) {
        let owner = &secret["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["kind"], &owner["uid"]),
            (&json!("Pod"), &pod["metadata"]["uid"])
        );
        assert_eq!(secret["immutable"], true);
        let keys: Vec<&String> = secret["data"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["authority.pem", "certificate.pem", "key.pem"]);
    }
    let part = |at: usize, key: &str| secrets[at]["data"][key].clone();
    assert_eq!(part(0, "authority.pem"), part(1, "authority.pem"));
    assert_ne!(part(0, "certificate.pem"), part(1, "certificate.pem"));
}

#[tokio::test]
async fn between_clusters_the_source_dials_and_a_relay_is_ready() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    has(&world.target_pod(), "--listen=[::]:7401");
    has(&world.source_pod(), "--connect=10.0.0.7:7401");
    has(&world.source_pod(), "--listen=127.0.0.1:7401");
    has(&world.pod("move-relay"), "--target-kubeconfig=/secrets/target");
}

#[tokio::test]
async fn without_a_direct_route_a_relay_connects_both_movers() {
    let mut world = World::new(Way::Out).await;
    world.of = request(json!({"target": {"cluster": "milan"}, "transport": {"allow": ["ApiServer"]}}));
    world.prepare().await;
    for pod in [world.source_pod(), world.target_pod()] {
        has(&pod, "--listen=127.0.0.1:7401");
        has(&pod, "--epoch=1");
        has(&pod, &format!("--move={MOVE}"));
    }
    has(&world.target_pod(), "--control=127.0.0.1:7402");
    let relay = world.pod("move-relay");
    has(
        &relay,
        &format!(
            "--source=liqo-csi/{}:7401",
            world.source_pod()["metadata"]["name"].as_str().unwrap()
        ),
    );
    has(
        &relay,
        &format!(
            "--target=shop-home/{}:7401",
            world.target_pod()["metadata"]["name"].as_str().unwrap()
        ),
    );
    has(&relay, "--target-kubeconfig=/secrets/target");
    assert!(
        !arguments(&relay)
            .iter()
            .any(|one| one.starts_with("--source-kubeconfig"))
    );
    assert_eq!(relay["spec"]["serviceAccountName"], "liqo-csi-relay");
    assert_eq!(relay["spec"]["automountServiceAccountToken"], true);
    assert_eq!(relay["spec"]["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        container(&relay)["securityContext"]["capabilities"],
        json!({"drop": ["ALL"]})
    );
}

#[tokio::test]
async fn within_a_cluster_the_source_dials_the_target() {
    let world = World::new(Way::Within).await;
    world.prepare().await;
    has(&world.source_pod(), "--connect=10.0.0.7:7401");
    has(&world.target_pod(), "--listen=[::]:7401");
    assert!(
        world
            .api
            .store()
            .below(&format!("{OURS}/pods/move-relay"))
            .is_empty()
    );
    // A target that starts on another node is connected there.
    let target = format!(
        "{OURS}/pods/{}",
        world.target_pod()["metadata"]["name"].as_str().unwrap()
    );
    world
        .api
        .change(&target, |pod| pod["status"]["podIP"] = "10.0.0.8".into());
    assert_eq!(
        world.look(&PREPARING).await.source,
        Live::Known(Helpers::Incomplete)
    );
    world.prepare().await;
    has(&world.source_pod(), "--connect=10.0.0.8:7401");
}

#[tokio::test]
async fn a_copy_from_a_snapshot_is_refused_with_a_reason() {
    let mut world = World::new(Way::Out).await;
    world.of = request(json!({"target": {"cluster": "milan"}, "warm": "Snapshot"}));
    let refused = world.try_prepare().await.unwrap_err().to_string();
    assert!(refused.contains("spec.warm"), "{refused}");
}

#[tokio::test]
async fn block_volumes_are_passed_to_movers_as_devices() {
    for way in [Way::Out, Way::Home, Way::Within] {
        let world = World::with_device(way).await;
        world.gate();
        world.prepare_for(&Stage::Finishing(GateNumber::FIRST)).await;
        for (pod, reads) in [(world.source_pod(), true), (world.target_pod(), false)] {
            let volumes = &pod["spec"]["volumes"];
            let devices = json!([{"name": volumes[0]["name"], "devicePath": "/dev/volume"}]);
            assert_eq!(container(&pod)["volumeDevices"], devices);
            let claim = &volumes[0]["persistentVolumeClaim"];
            assert_eq!(claim["readOnly"] == true, reads);
            has(&pod, "--root=/dev/volume");
            let context = &container(&pod)["securityContext"];
            assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
            assert_eq!(context["readOnlyRootFilesystem"], true);
            assert_eq!(pod["spec"]["securityContext"]["runAsUser"], 0);
            let mounts = container(&pod)["volumeMounts"].as_array().unwrap();
            let mounts: Vec<&Value> = mounts.iter().map(|mount| &mount["mountPath"]).collect();
            if reads {
                assert_eq!(mounts, ["/secrets"]);
                assert_eq!(volumes[2], Value::Null);
            } else {
                has(&pod, "--journal=/journal");
                assert_eq!(mounts, ["/secrets", "/journal"]);
                // 16 MiB, and 64 bytes for each of 1024 MiB.
                assert_eq!(volumes[2]["emptyDir"]["sizeLimit"], "16842752");
            }
        }
        // The PVs, and the twin, have the same mode.
        for volume in world.api.store().below(&format!("{VOLUMES}/move-")) {
            assert_eq!(volume["spec"]["volumeMode"], "Block");
        }
        for claim in world
            .api
            .store()
            .below(&format!("{OURS}/persistentvolumeclaims/move-"))
        {
            assert_eq!(claim["spec"]["volumeMode"], "Block");
        }
        let twin = world.there.object(TWIN_THERE).filter(|_| way == Way::Out);
        let twin = twin.or_else(|| world.api.object(&twin_at_home(first())));
        assert_eq!(twin.unwrap()["spec"]["volumeMode"], "Block");
    }
}

#[tokio::test]
async fn only_remote_block_volumes_are_copied_in_use() {
    for (way, cold) in [
        (Way::Out, Some(Cold::Block)),
        (Way::Within, Some(Cold::Block)),
        (Way::Home, None),
    ] {
        let world = World::with_device(way).await;
        let why = world.helpers.cold(&world.moved, &world.of).await.unwrap();
        assert_eq!(why, cold);
        world.prepare().await;
        let seen = world.look(&PREPARING).await;
        assert_eq!((seen.source, seen.target), (ready(), ready()));
        let converged = cold.is_some();
        assert_eq!(
            seen.copied,
            Live::Known(Copied {
                converged,
                ..Copied::default()
            })
        );
        let sources = [(&world.api, OURS), (&world.there, THERE)]
            .map(|(api, namespace)| api.store().below(&format!("{namespace}/pods/move-source")));
        assert_eq!(sources.concat().is_empty(), cold.is_some());
    }
}

#[tokio::test]
async fn single_pod_volumes_are_not_read_in_use() {
    for cold in [
        json!({"target": {"cluster": "milan"}, "warm": "None"}),
        json!({"target": {"cluster": "milan"}}),
    ] {
        let mut world = World::new(Way::Out).await;
        if cold["warm"].is_null() {
            world.api.change(&format!("{VOLUMES}/{}", name()), |volume| {
                volume["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
            });
        }
        world.of = request(cold);
        world.prepare().await;
        let seen = world.look(&Stage::Copying { last: None }).await;
        assert_eq!((seen.source, seen.target), (ready(), ready()));
        assert!(matches!(seen.copied, Live::Known(Copied { converged: true, .. })));
        assert!(
            world
                .api
                .store()
                .below(&format!("{OURS}/pods/move-source"))
                .is_empty()
        );
        let seen = world.look(&Stage::Finishing(GateNumber::FIRST)).await;
        assert_eq!(seen.source, Live::Known(Helpers::Incomplete));
        // No pod has the volume: the mover is created. When pods have it again, the mover is deleted.
        let outer = format!("{VOLUMES}/{}", name());
        world.gate();
        world.step(ClaimStep::MakeHelpers(Side::Source)).await.unwrap();
        world.source_pod();
        world.api.change(&outer, |volume| {
            volume["metadata"]["annotations"] = json!({});
        });
        let seen = world.look(&PREPARING).await.source;
        assert_eq!(seen, Live::Known(Helpers::Incomplete));
        world.step(ClaimStep::MakeHelpers(Side::Source)).await.unwrap();
        assert_eq!(world.look(&PREPARING).await.source, ready());
    }
}

/// The classes of several claims may otherwise choose several nodes, and a pod with all of them could run on none.
#[tokio::test]
async fn target_movers_of_several_claims_prefer_the_same_node() {
    for together in [false, true] {
        let mut world = World::new(Way::Out).await;
        if together {
            world.of.claims.push("shop/logs".parse().unwrap());
        }
        world.prepare().await;
        let pod = world.target_pod();
        let preferred =
            &pod["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(preferred.is_array(), together);
        if together {
            let labels = json!({mark::MOVE: MOVE, mark::MOVE_SIDE: "target"});
            assert_eq!(
                preferred[0]["podAffinityTerm"]["labelSelector"]["matchLabels"],
                labels
            );
        }
        assert_eq!(world.source_pod()["spec"]["affinity"]["podAffinity"], Value::Null);
    }
}
