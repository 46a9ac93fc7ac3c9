use std::fmt::Write;

use serde_json::{Value, json};

use super::{ends::Way, *};
use crate::{
    access::{SESSION, TokenFacts},
    cluster::testing::{Act, FakeApi, Fault, Life},
};

const NAME: &str = "milan";
const DECLARED: &str = "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan";
const SECRET: &str = "/api/v1/namespaces/liqo-csi/secrets/remote-milan";
const ACCOUNT: &str = "/api/v1/namespaces/liqo-csi-remote/serviceaccounts/liqo-csi-remote";
const NAMESPACE: &str = "/api/v1/namespaces/liqo-csi-remote";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/";

/// Two clusters, the driver installed in the first.
pub(in crate::cli) struct Two {
    pub(in crate::cli) home: FakeApi,
    pub(in crate::cli) remote: FakeApi,
}

impl Two {
    pub(in crate::cli) async fn new() -> Self {
        let two = Self {
            home: FakeApi::start().await,
            remote: FakeApi::start().await,
        };
        two.home.put(
            "/api/v1/namespaces/kube-system",
            json!({"metadata": {"uid": "home-uid"}}),
        );
        two.remote.put(
            "/api/v1/namespaces/kube-system",
            json!({"metadata": {"uid": "remote-uid"}}),
        );
        two.home.put(
            "/apis/apps/v1/namespaces/liqo-csi/deployments/liqo-csi-controller",
            json!({
                "metadata": {"labels": {
                    "app.kubernetes.io/name": "liqo-csi", "app.kubernetes.io/component": "controller",
                }},
                "spec": {"selector": {}, "template": {}},
            }),
        );
        two
    }

    pub(in crate::cli) async fn ends(&self) -> (Home, Remote) {
        let home = Home::of(self.home.cluster_unwatched().await, None, None)
            .await
            .unwrap();
        let remote = Remote {
            cluster: self.remote.cluster_unwatched().await,
        };
        (home, remote)
    }

    /// What the controller says of the kubeconfig that is there now.
    fn say(&self, status: &str, reason: &str, message: &str) {
        let Some(secret) = self.home.object(SECRET) else {
            return;
        };
        let text: k8s_openapi::ByteString =
            serde_json::from_value(secret["data"]["kubeconfig"].clone()).unwrap();
        self.home.change(DECLARED, |object| {
            object["status"] = json!({
                "credentials": {"kubeconfig": access::fingerprint(&text.0)},
                "conditions": [{
                    "type": "Ready", "status": status, "reason": reason, "message": message,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            });
        });
    }

    /// Connects, while the controller says this of what is there.
    async fn connect_as(&self, wish: &Wish, said: (&str, &str, &str)) -> Outcome<ExitCode> {
        let (home, remote) = self.ends().await;
        let way = way();
        let connecting = connect(&home, &remote, &way, wish);
        tokio::pin!(connecting);
        let mut changes = self.home.store().changes();
        loop {
            tokio::select! {
                outcome = &mut connecting => return outcome,
                _ = changes.changed() => {
                    if self.home.object(DECLARED).is_some_and(|it| !self.is_said(&it)) {
                        self.say(said.0, said.1, said.2);
                    }
                }
            }
        }
    }

    /// Whether the status is about the Secret as it is.
    fn is_said(&self, object: &Value) -> bool {
        let Some(secret) = self.home.object(SECRET) else {
            return true;
        };
        let text: k8s_openapi::ByteString =
            serde_json::from_value(secret["data"]["kubeconfig"].clone()).unwrap();
        object["status"]["credentials"]["kubeconfig"] == json!(access::fingerprint(&text.0))
    }

    pub(in crate::cli) async fn connect(&self, wish: &Wish) -> Outcome<ExitCode> {
        self.connect_as(wish, ("True", "Usable", "")).await
    }

    /// The token of the kubeconfig at home.
    fn token(&self) -> String {
        let secret = self.home.object(SECRET).unwrap();
        let text: k8s_openapi::ByteString =
            serde_json::from_value(secret["data"]["kubeconfig"].clone()).unwrap();
        let file: Value = serde_saphyr::from_str(std::str::from_utf8(&text.0).unwrap()).unwrap();
        file["users"][0]["user"]["token"].as_str().unwrap().to_owned()
    }

    /// The names of all that the identity has there.
    pub(in crate::cli) fn identity(&self) -> Vec<String> {
        let mut all = self.remote.store().below("/");
        all.retain(|it| {
            it["metadata"]["labels"]["app.kubernetes.io/managed-by"] == access::MANAGED_BY_CONNECT
        });
        all.iter()
            .map(|it| {
                format!(
                    "{} {}",
                    it["kind"].as_str().unwrap(),
                    it["metadata"]["name"].as_str().unwrap()
                )
            })
            .collect()
    }
}

fn way() -> Way {
    Way {
        server: "https://192.0.2.1:6443".into(),
        authority: Some("Y2E=".into()),
        tls_server_name: None,
    }
}

pub(in crate::cli) fn wish() -> Wish {
    Wish {
        name: NAME.parse().unwrap(),
        level: None,
        fabric: true,
        nodes: BTreeMap::new(),
        listed: BTreeSet::new(),
        storage_class: None,
        remote_namespace: None,
        lifetime: Duration::from_secs(LONGEST_TOKEN),
        token_only: false,
        timeout: Duration::from_secs(10),
    }
}

fn leveled(level: Level) -> Wish {
    Wish {
        level: Some(level),
        fabric: false,
        nodes: [("cluster".to_owned(), "milan".to_owned())].into(),
        ..wish()
    }
}

fn said(outcome: Outcome<ExitCode>) -> String {
    outcome.unwrap_err().to_string()
}

#[tokio::test]
async fn two_clusters_are_connected() {
    let two = Two::new().await;
    assert_eq!(two.connect(&wish()).await.unwrap(), ExitCode::SUCCESS);
    let object = two.home.object(DECLARED).unwrap();
    assert_eq!(object["spec"]["fabric"], json!({}));
    assert_eq!(object["spec"]["kubeconfigSecretRef"]["name"], "remote-milan");
    let token = TokenFacts::read(&two.token()).unwrap();
    assert_eq!(token.bound_to.as_deref(), Some(SESSION));
    assert_eq!(token.lifetime(), Some(LONGEST_TOKEN.try_into().unwrap()));
    let account = two.remote.object(ACCOUNT).unwrap();
    let annotations = &account["metadata"]["annotations"];
    assert_eq!(annotations["storage.liqo.io/home-cluster"], "home-uid");
    assert_eq!(annotations["storage.liqo.io/level"], "fabric");
    assert!(
        two.identity()
            .contains(&"ValidatingAdmissionPolicy liqo-csi-remote.liqo-csi-remote-pods".to_owned())
    );
    let fence = |request: &String| request.contains("/validatingadmissionpolic");
    let rights =
        |request: &String| request.starts_with("PATCH") && request.contains("/rbac.authorization.k8s.io/");
    let requests = two.remote.requests();
    assert!(
        requests.iter().rposition(fence).unwrap() < requests.iter().position(rights).unwrap(),
        "the fence stands before there are rights: {requests:?}"
    );
}

#[tokio::test]
async fn the_second_run_repairs_and_gives_another_token() {
    let two = Two::new().await;
    two.connect(&wish()).await.unwrap();
    let (before, token) = (two.identity(), two.token());
    let role = format!("{RBAC}clusterroles/liqo-csi-remote.liqo-csi-remote");
    two.remote.remove(&role);
    two.remote
        .remove(&format!("{NAMESPACE}/secrets/liqo-csi-session"));
    // What somebody has said of it since stays.
    two.home.change(DECLARED, |it| {
        it["spec"]["storageClasses"] = json!({"default": "fast"});
    });
    let again = Wish {
        fabric: false,
        ..wish()
    };
    two.connect(&again).await.unwrap();
    assert_eq!(two.identity(), before);
    assert_ne!(two.token(), token);
    let spec = &two.home.object(DECLARED).unwrap()["spec"];
    assert_eq!(
        (&spec["storageClasses"]["default"], &spec["fabric"]),
        (&json!("fast"), &json!({}))
    );
}

#[tokio::test]
async fn a_run_that_died_is_finished_by_the_next() {
    let mut writes = 0;
    let whole = {
        let two = Two::new().await;
        two.connect(&wish()).await.unwrap();
        two.identity()
    };
    loop {
        let two = Two::new().await;
        let (life, wish) = (Life::of_writes(writes), wish());
        two.home.live(Some(life.clone()));
        two.remote.live(Some(life.clone()));
        let died = tokio::select! {
            outcome = two.connect(&wish) => {
                outcome.unwrap();
                false
            }
            () = life.over() => true,
        };
        two.home.live(None);
        two.remote.live(None);
        two.connect(&wish).await.unwrap();
        assert_eq!(two.identity(), whole, "after {writes} writes");
        if !died {
            break;
        }
        writes += 1;
    }
    assert!(writes > 20, "it died {writes} times");
}

#[tokio::test]
async fn another_level_takes_away_what_the_first_gave() {
    let two = Two::new().await;
    for one in ["apps", "more"] {
        two.remote.put(&format!("/api/v1/namespaces/{one}"), json!({}));
    }
    let listed = |names: &[&str]| names.iter().map(|it| it.parse().unwrap()).collect();
    two.connect(&Wish {
        listed: listed(&["apps", "more"]),
        ..leveled(Level::Namespaced)
    })
    .await
    .unwrap();
    let role =
        |namespace: &str| format!("{RBAC}namespaces/{namespace}/roles/liqo-csi-remote.liqo-csi-remote");
    assert!(two.remote.object(&role("apps")).is_some());

    // Without the flags it stays as it is.
    two.connect(&Wish {
        level: None,
        ..leveled(Level::Namespaced)
    })
    .await
    .unwrap();
    assert!(two.remote.object(&role("more")).is_some());

    two.connect(&Wish {
        listed: listed(&["more"]),
        ..leveled(Level::Namespaced)
    })
    .await
    .unwrap();
    assert_eq!(
        (
            two.remote.object(&role("apps")),
            two.remote.object(&role("more")).is_some()
        ),
        (None, true)
    );

    two.connect(&leveled(Level::Full)).await.unwrap();
    assert_eq!(two.remote.object(&role("more")), None);
    assert!(
        two.remote
            .object(&format!("{RBAC}clusterroles/liqo-csi-remote.liqo-csi-remote"))
            .is_some()
    );

    let minimal = Wish {
        storage_class: Some("fast".into()),
        listed: listed(&["apps"]),
        ..leveled(Level::Minimal)
    };
    two.connect(&minimal).await.unwrap();
    let left = two.identity();
    assert!(!left.iter().any(|it| it.starts_with("ClusterRole")), "{left:?}");
    assert!(left.contains(&"ValidatingAdmissionPolicy liqo-csi-remote.liqo-csi-remote-tokens".to_owned()));
}

#[tokio::test]
async fn the_level_of_a_fabric_with_namespaces_is_not_lowered() {
    let two = Two::new().await;
    let first = Wish {
        level: Some(Level::Fabric),
        ..leveled(Level::Fabric)
    };
    two.connect(&first).await.unwrap();
    two.remote.put(
        "/api/v1/namespaces/shop-home",
        json!({"metadata": {"labels": {"fabric.storage.liqo.io/home": "home-uid"}}}),
    );
    let why = said(two.connect(&leveled(Level::Full)).await);
    assert!(why.contains("shop-home") && why.contains("unoffload"), "{why}");
}

#[tokio::test]
async fn what_is_not_to_be_touched_is_named() {
    // Both lead to the same cluster.
    let two = Two::new().await;
    two.remote.put(
        "/api/v1/namespaces/kube-system",
        json!({"metadata": {"uid": "home-uid"}}),
    );
    assert!(said(two.connect(&wish()).await).contains("the same cluster"));

    // The identity is that of another home cluster.
    let two = Two::new().await;
    two.remote.put(
        ACCOUNT,
        json!({"metadata": {"annotations": {"storage.liqo.io/home-cluster": "rome"}}}),
    );
    let why = said(two.connect(&wish()).await);
    assert!(
        why.contains("rome") && why.contains("--remote-namespace"),
        "{why}"
    );

    // Helm looks after it.
    let two = Two::new().await;
    two.remote.put(
        ACCOUNT,
        json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}),
    );
    let why = said(two.connect(&wish()).await);
    assert!(why.contains("Helm") && why.contains("--token-only"), "{why}");

    // A Secret that somebody else has made.
    let two = Two::new().await;
    two.home.put(SECRET, json!({"data": {}}));
    assert!(said(two.connect(&wish()).await).contains("has not made"));

    // Nothing says which nodes it has.
    let two = Two::new().await;
    let why = said(
        two.connect(&Wish {
            fabric: false,
            ..wish()
        })
        .await,
    );
    assert!(why.contains("--node-selector"), "{why}");
    for (api, which) in [(&two.home, "here"), (&two.remote, "there")] {
        assert_eq!(api.writes(), 0, "nothing was made {which}");
    }
}

#[tokio::test]
async fn another_cluster_does_not_take_the_place_of_the_first() {
    let two = Two::new().await;
    two.connect(&wish()).await.unwrap();
    two.remote.put(
        "/api/v1/namespaces/kube-system",
        json!({"metadata": {"uid": "another"}}),
    );
    let why = said(two.connect(&wish()).await);
    assert!(why.contains("remote-uid") && why.contains("another"), "{why}");
}

#[tokio::test]
async fn a_namespace_that_was_there_before_stays_its_owners() {
    let two = Two::new().await;
    two.remote
        .put(NAMESPACE, json!({"metadata": {"labels": {"team": "a"}}}));
    two.connect(&wish()).await.unwrap();
    assert_eq!(
        two.remote.object(NAMESPACE).unwrap()["metadata"]["labels"],
        json!({"team": "a"})
    );
}

#[tokio::test]
async fn with_helm_only_the_token_is_made() {
    let two = Two::new().await;
    let helm = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}});
    let only = Wish {
        token_only: true,
        ..wish()
    };
    let why = said(two.connect(&only).await);
    assert!(why.contains("--token-only"), "{why}");
    two.remote.put(ACCOUNT, helm.clone());
    let why = said(two.connect(&only).await);
    assert!(why.contains("remoteAccess.token=session"), "{why}");
    two.remote
        .put(&format!("{NAMESPACE}/secrets/liqo-csi-session"), helm);
    assert_eq!(two.connect(&only).await.unwrap(), ExitCode::SUCCESS);
    assert_eq!(two.identity(), Vec::<String>::new());
}

#[tokio::test]
async fn what_pods_do_not_reach_is_a_failure_in_time() {
    let two = Two::new().await;
    let impatient = Wish {
        timeout: Duration::ZERO,
        ..wish()
    };
    let refused = (
        "False",
        "Unreachable",
        "invalid peer certificate: NotValidForName",
    );
    assert_eq!(
        two.connect_as(&impatient, refused).await.unwrap(),
        ExitCode::FAILURE
    );
    // A kubeconfig that cannot be used will not be by waiting.
    let patient = Wish {
        timeout: Duration::from_mins(10),
        ..wish()
    };
    let refused = ("False", "Refused", "it is declared more than once");
    assert_eq!(
        two.connect_as(&patient, refused).await.unwrap(),
        ExitCode::FAILURE
    );
}

#[tokio::test]
async fn clusters_without_policies_are_too_old() {
    let two = Two::new().await;
    two.remote.fault(Fault::new(
        "PATCH",
        "/validatingadmissionpolicies/",
        Act::Refuse(404),
    ));
    let why = said(two.connect(&wish()).await);
    assert!(why.contains("1.30"), "{why}");
    let granted =
        |request: &String| request.contains("rbac.authorization.k8s.io") && request.starts_with("PATCH");
    assert!(
        !two.remote.requests().iter().any(granted),
        "no rights without their fence"
    );
}

#[test]
fn a_fabric_needs_its_level() {
    assert!(
        Wish {
            level: Some(Level::Full),
            ..wish()
        }
        .level(None, true)
        .is_err()
    );
    assert_eq!(wish().level(None, true).unwrap(), Level::Fabric);
    assert_eq!(wish().level(None, false).unwrap(), Level::Full);
    assert_eq!(wish().level(Some(Level::Minimal), false).unwrap(), Level::Minimal);
}

#[test]
fn what_is_printed_has_no_credentials() {
    let here = serde_saphyr::to_string(&home::declaration(&wish(), Level::Fabric).unwrap()).unwrap();
    let read: RemoteCluster = serde_saphyr::from_str(&here).unwrap();
    assert!(read.spec.fabric.is_some() && !here.contains("token"));
    assert!(
        home::declaration(&leveled(Level::Minimal), Level::Minimal).is_err(),
        "classes have to be named"
    );
}

/// What the roles of each level say, as a table.
fn rights() -> String {
    let identity = Identity {
        namespace: "access".parse().unwrap(),
        home: "home".parse().unwrap(),
        listed: ["listed".parse().unwrap()].into(),
    };
    let mut rows: BTreeMap<(String, String, String), [bool; 4]> = BTreeMap::new();
    for (at, level) in Level::ALL.into_iter().enumerate() {
        for (object, text) in access::render(level, &identity) {
            let place = match (object.kind.as_str(), object.namespace.as_deref()) {
                ("ClusterRole", _) if object.name.ends_with("-workloads") => "namespaces of the fabric",
                ("ClusterRole", _) => "the whole cluster",
                ("Role", Some("listed")) => "namespaces that are listed",
                ("Role", _) => "its own namespace",
                _ => continue,
            };
            let role: Value = serde_saphyr::from_str(&text).unwrap();
            for rule in role["rules"].as_array().unwrap() {
                let words = |key: &str| -> Vec<String> {
                    let all = rule[key].as_array().cloned().unwrap_or_default();
                    all.iter()
                        .map(|it| it.as_str().unwrap().replace(".access", ""))
                        .collect()
                };
                let only = words("resourceNames");
                let only = if only.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", only.join(", "))
                };
                let group = words("apiGroups").remove(0);
                let group = if group.is_empty() {
                    group
                } else {
                    format!(".{group}")
                };
                for resource in words("resources") {
                    let key = (
                        place.to_owned(),
                        format!("{resource}{group}{only}"),
                        words("verbs").join(", "),
                    );
                    rows.entry(key).or_default()[at] = true;
                }
            }
        }
    }
    let mut table =
        "| in | of | may | fabric | full | namespaced | minimal |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    for ((place, resource, verbs), levels) in rows {
        let marks = levels.map(|has| if has { "x" } else { "" });
        writeln!(
            table,
            "| {place} | {resource} | {verbs} | {} |",
            marks.join(" | ")
        )
        .unwrap();
    }
    table
}

#[test]
fn the_documentation_has_the_rights_of_each_level() {
    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/remote/security.md");
    let page = std::fs::read_to_string(PATH).unwrap();
    let after = page.split("<!-- rights: begin -->\n").nth(1).unwrap();
    let written = after.split("<!-- rights: end -->").next().unwrap();
    let rights = rights();
    assert!(
        written == rights,
        "docs/remote/security.md does not say what the roles do; between its marks belongs:\n{rights}"
    );
}
