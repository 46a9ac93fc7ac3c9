mod tokens;

use std::fmt::Write;

use clap::Parser;
use serde_json::{Value, json};

use super::{ends::Endpoint, *};
use crate::{
    access::{SESSION, TokenFacts},
    cli::{Cli, Command},
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

    /// The status that the controller reports for the current kubeconfig.
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

    /// Runs `connect` while the controller reports this status.
    async fn connect_as(&self, request: &Request, said: (&str, &str, &str)) -> Outcome<ExitCode> {
        let (home, remote) = self.ends().await;
        let endpoint = endpoint();
        let connecting = Box::pin(async {
            let existing = home.existing(&request.name).await?;
            connect(&home, &existing, &remote, &endpoint, request).await
        });
        self.while_said(connecting, said).await
    }

    /// Runs a command while the controller reports this status.
    async fn while_said(
        &self,
        connecting: impl Future<Output = Outcome<ExitCode>>,
        said: (&str, &str, &str),
    ) -> Outcome<ExitCode> {
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

    /// Whether the status is about the current Secret.
    fn is_said(&self, object: &Value) -> bool {
        let Some(secret) = self.home.object(SECRET) else {
            return true;
        };
        let text: k8s_openapi::ByteString =
            serde_json::from_value(secret["data"]["kubeconfig"].clone()).unwrap();
        object["status"]["credentials"]["kubeconfig"] == json!(access::fingerprint(&text.0))
    }

    pub(in crate::cli) async fn connect(&self, request: &Request) -> Outcome<ExitCode> {
        self.connect_as(request, ("True", "Usable", "")).await
    }

    /// The kubeconfig that the driver has.
    fn kubeconfig(&self) -> Value {
        let secret = self.home.object(SECRET).unwrap();
        let text: k8s_openapi::ByteString =
            serde_json::from_value(secret["data"]["kubeconfig"].clone()).unwrap();
        serde_saphyr::from_str(std::str::from_utf8(&text.0).unwrap()).unwrap()
    }

    fn token(&self) -> String {
        let file = self.kubeconfig();
        file["users"][0]["user"]["token"].as_str().unwrap().to_owned()
    }

    /// The names of all objects of the identity in the remote cluster.
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

fn endpoint() -> Endpoint {
    Endpoint {
        server: "https://192.0.2.1:6443".into(),
        authority: Some("Y2E=".into()),
        tls_server_name: None,
    }
}

pub(in crate::cli) fn request() -> Request {
    Request {
        name: NAME.parse().unwrap(),
        level: None,
        fabric: true,
        nodes: BTreeMap::new(),
        listed: BTreeSet::new(),
        storage_class: None,
        remote_namespace: None,
        lifetime: None,
        token_only: false,
        revoke_tokens: false,
        timeout: Duration::from_secs(10),
    }
}

fn leveled(level: Level) -> Request {
    Request {
        level: Some(level),
        fabric: false,
        nodes: [("cluster".to_owned(), "milan".to_owned())].into(),
        ..request()
    }
}

fn said(outcome: Outcome<ExitCode>) -> String {
    outcome.unwrap_err().to_string()
}

#[tokio::test]
async fn two_clusters_are_connected() {
    let two = Two::new().await;
    assert_eq!(two.connect(&request()).await.unwrap(), ExitCode::SUCCESS);
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
    two.connect(&request()).await.unwrap();
    let (before, token) = (two.identity(), two.token());
    let role = format!("{RBAC}clusterroles/liqo-csi-remote.liqo-csi-remote");
    two.remote.remove(&role);
    two.remote
        .remove(&format!("{NAMESPACE}/secrets/liqo-csi-session"));
    // Later changes of the object are kept.
    two.home.change(DECLARED, |it| {
        it["spec"]["storageClasses"] = json!({"default": "fast"});
    });
    let again = Request {
        fabric: false,
        ..request()
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
async fn the_second_run_keeps_the_address() {
    let two = Two::new().await;
    two.connect(&request()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    // Pods cannot use its address: it is one of this machine.
    let file = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "m",
        "clusters": [{"name": "m", "cluster": {"server": two.remote.url(), "certificate-authority-data": "Y2E="}}],
        "users": [{"name": "m", "user": {"token": "mine"}}],
        "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m"}}],
    });
    std::fs::write(&path, file.to_string()).unwrap();
    let remote = RemoteArgs {
        remote_kubeconfig: Some(path),
        remote_context: None,
    };
    let (home, _) = two.ends().await;
    let (token, request, earlier) = (two.token(), request(), two.home.requests().len());
    let connecting = Box::pin(by_kubeconfig(&home, &remote, None, &request));
    let outcome = two.while_said(connecting, ("True", "Usable", "")).await;
    assert_eq!(outcome.unwrap(), ExitCode::SUCCESS);
    assert_ne!(two.token(), token);
    let server = &two.kubeconfig()["clusters"][0]["cluster"]["server"];
    assert_eq!(*server, json!(endpoint().server));
    let requests = two.home.requests().split_off(earlier);
    let reads = requests
        .iter()
        .filter(|it| **it == format!("GET {SECRET}"))
        .count();
    assert_eq!(reads, 1, "{requests:?}");

    two.home.change(SECRET, |secret| {
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: r\nclusters: [{name: r, cluster: {server: 'https://192.0.2.1', \
                    proxy-url: 'http://192.0.2.9', certificate-authority-data: Y2E=}}]\nusers: [{name: r, user: {token: a.b.c}}]\n\
                    contexts: [{name: r, context: {cluster: r, user: r}}]\n";
        secret["data"]["kubeconfig"] = json!(k8s_openapi::ByteString(text.into()));
    });
    let why = said(Box::pin(by_kubeconfig(&home, &remote, None, &request)).await);
    assert!(why.contains("proxy-url") && why.contains("--server"), "{why}");
}

#[tokio::test]
async fn a_second_connect_replaces_the_node_selector() {
    let two = Two::new().await;
    two.connect(&leveled(Level::Full)).await.unwrap();
    let again = Request {
        nodes: [("zone".to_owned(), "b".to_owned())].into(),
        ..leveled(Level::Full)
    };
    two.connect(&again).await.unwrap();
    let spec = &two.home.object(DECLARED).unwrap()["spec"];
    assert_eq!(spec["nodeSelector"]["matchLabels"], json!({"zone": "b"}));
}

#[tokio::test]
async fn an_interrupted_run_is_completed_by_the_next() {
    let mut writes = 0;
    let whole = {
        let two = Two::new().await;
        two.connect(&request()).await.unwrap();
        two.identity()
    };
    loop {
        let two = Two::new().await;
        let (life, request) = (Life::of_writes(writes), request());
        two.home.live(Some(life.clone()));
        two.remote.live(Some(life.clone()));
        let died = tokio::select! {
            outcome = two.connect(&request) => {
                outcome.unwrap();
                false
            }
            () = life.over() => true,
        };
        two.home.live(None);
        two.remote.live(None);
        two.connect(&request).await.unwrap();
        assert_eq!(two.identity(), whole, "after {writes} writes");
        if !died {
            break;
        }
        writes += 1;
    }
    assert!(writes > 20, "it died {writes} times");
}

#[tokio::test]
async fn another_level_removes_the_rights_of_the_previous_level() {
    let two = Two::new().await;
    for one in ["apps", "more"] {
        two.remote.put(&format!("/api/v1/namespaces/{one}"), json!({}));
    }
    let listed = |names: &[&str]| names.iter().map(|it| it.parse().unwrap()).collect();
    two.connect(&Request {
        listed: listed(&["apps", "more"]),
        ..leveled(Level::Namespaced)
    })
    .await
    .unwrap();
    let role =
        |namespace: &str| format!("{RBAC}namespaces/{namespace}/roles/liqo-csi-remote.liqo-csi-remote");
    assert!(two.remote.object(&role("apps")).is_some());

    // Without the flags the level stays the same.
    two.connect(&Request {
        level: None,
        ..leveled(Level::Namespaced)
    })
    .await
    .unwrap();
    assert!(two.remote.object(&role("more")).is_some());

    two.connect(&Request {
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

    let mut minimal = Request {
        listed: listed(&["apps"]),
        ..leveled(Level::Minimal)
    };
    let writes = two.remote.writes();
    let why = said(two.connect(&minimal).await);
    assert!(why.contains("--storage-class"), "{why}");
    assert_eq!(two.remote.writes(), writes);
    minimal.storage_class = Some("fast".into());
    two.connect(&minimal).await.unwrap();
    let left = two.identity();
    assert!(!left.iter().any(|it| it.starts_with("ClusterRole")), "{left:?}");
    assert!(left.contains(&"ValidatingAdmissionPolicy liqo-csi-remote.liqo-csi-remote-tokens".to_owned()));
}

#[tokio::test]
async fn the_level_of_a_fabric_with_namespaces_is_not_lowered() {
    let two = Two::new().await;
    let first = Request {
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

/// The identity may not do so itself.
#[tokio::test]
async fn namespaces_of_an_older_fabric_are_labelled_for_pod_security() {
    const LABEL: &str = "pod-security.kubernetes.io/enforce";
    let two = Two::new().await;
    let path = |name: &str| format!("/api/v1/namespaces/{name}");
    let of = |home: &str| json!({"fabric.storage.liqo.io/home": home});
    for (name, mut labels, level) in [
        ("old", of("home-uid"), Value::Null),
        ("strict", of("home-uid"), "restricted".into()),
        ("other", of("rome"), Value::Null),
    ] {
        if !level.is_null() {
            labels[LABEL] = level;
        }
        two.remote
            .put(&path(name), json!({"metadata": {"labels": labels}}));
    }
    two.connect(&request()).await.unwrap();
    let label = |name: &str| two.remote.object(&path(name)).unwrap()["metadata"]["labels"][LABEL].clone();
    assert_eq!(
        ["old", "strict", "other"].map(label),
        [json!("baseline"), json!("restricted"), Value::Null]
    );
}

#[tokio::test]
async fn unsafe_connections_are_refused_with_a_reason() {
    // Both kubeconfigs lead to the same cluster.
    let two = Two::new().await;
    two.remote.put(
        "/api/v1/namespaces/kube-system",
        json!({"metadata": {"uid": "home-uid"}}),
    );
    assert!(said(two.connect(&request()).await).contains("the same cluster"));

    // The identity is that of another home cluster.
    let two = Two::new().await;
    two.remote.put(
        ACCOUNT,
        json!({"metadata": {"annotations": {"storage.liqo.io/home-cluster": "rome"}}}),
    );
    let why = said(two.connect(&request()).await);
    assert!(
        why.contains("rome") && why.contains("--remote-namespace"),
        "{why}"
    );

    // Helm manages the identity.
    let two = Two::new().await;
    two.remote.put(
        ACCOUNT,
        json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}),
    );
    let why = said(two.connect(&request()).await);
    assert!(why.contains("Helm") && why.contains("--token-only"), "{why}");

    // A Secret that this command did not create.
    let two = Two::new().await;
    two.home.put(SECRET, json!({"data": {}}));
    assert!(said(two.connect(&request()).await).contains("liqo-csi/remote-milan"));

    // No option selects the nodes of the cluster.
    let two = Two::new().await;
    let why = said(
        two.connect(&Request {
            fabric: false,
            ..request()
        })
        .await,
    );
    assert!(why.contains("--node-selector"), "{why}");
    for (api, which) in [(&two.home, "here"), (&two.remote, "there")] {
        assert_eq!(api.writes(), 0, "nothing was made {which}");
    }

    // The fabric creates its node.
    two.connect(&request()).await.unwrap();
    let writes = two.home.writes() + two.remote.writes();
    let why = said(
        two.connect(&Request {
            level: None,
            ..leveled(Level::Fabric)
        })
        .await,
    );
    assert!(why.contains("--node-selector"), "{why}");
    assert_eq!(two.home.writes() + two.remote.writes(), writes);
}

#[tokio::test]
async fn a_cluster_that_was_connected_by_hand_keeps_its_namespace() {
    let two = Two::new().await;
    let token = access::token_saying(&json!({"sub": "system:serviceaccount:by-hand:liqo-csi-remote"}));
    let file = json!({
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": token}}],
    });
    let file = k8s_openapi::ByteString(file.to_string().into_bytes());
    two.home.put(
        "/api/v1/namespaces/liqo-csi/secrets/mine",
        json!({"data": {"kubeconfig": file}}),
    );
    two.home.put(
        DECLARED,
        json!({"spec": {"kubeconfigSecretRef": {"name": "mine"}, "fabric": {}}}),
    );
    two.remote.put(
        "/api/v1/namespaces/by-hand/serviceaccounts/liqo-csi-remote",
        json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}),
    );
    let why = said(two.connect(&request()).await);
    assert!(why.contains("by-hand") && why.contains("--token-only"), "{why}");
}

#[tokio::test]
async fn connect_refuses_another_cluster_under_the_same_name() {
    let two = Two::new().await;
    two.connect(&request()).await.unwrap();
    two.remote.put(
        "/api/v1/namespaces/kube-system",
        json!({"metadata": {"uid": "another"}}),
    );
    let why = said(two.connect(&request()).await);
    assert!(why.contains("remote-uid") && why.contains("another"), "{why}");
}

#[tokio::test]
async fn connect_refuses_a_second_name_that_the_fabric_would_refuse() {
    let two = Two::new().await;
    two.connect(&request()).await.unwrap();
    let writes = two.home.writes() + two.remote.writes();
    let second = Request {
        name: "rome".parse().unwrap(),
        timeout: Duration::ZERO,
        ..request()
    };
    let why = said(two.connect(&second).await);
    assert!(why.contains("as milan"), "{why}");
    assert_eq!(two.home.writes() + two.remote.writes(), writes);
    // Its Secret was changed by hand since.
    two.home.change(DECLARED, |it| {
        it["status"]["virtualNode"] = json!({"clusterUid": "another"});
    });
    assert_eq!(two.connect(&second).await.unwrap(), ExitCode::FAILURE);
    assert!(
        two.home.object(&DECLARED.replace("milan", "rome")).is_some(),
        "only the controller is missing"
    );
}

#[tokio::test]
async fn labels_of_an_existing_namespace_are_kept() {
    let two = Two::new().await;
    two.remote
        .put(NAMESPACE, json!({"metadata": {"labels": {"team": "a"}}}));
    two.connect(&request()).await.unwrap();
    assert_eq!(
        two.remote.object(NAMESPACE).unwrap()["metadata"]["labels"],
        json!({"team": "a"})
    );
}

#[tokio::test]
async fn an_address_unreachable_for_pods_fails_in_time() {
    let two = Two::new().await;
    let impatient = Request {
        timeout: Duration::ZERO,
        ..request()
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
    // Waiting does not help with a kubeconfig that the driver refuses.
    let patient = Request {
        timeout: Duration::from_mins(10),
        ..request()
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
    let why = said(two.connect(&request()).await);
    assert!(why.contains("1.30"), "{why}");
    let granted =
        |request: &String| request.contains("rbac.authorization.k8s.io") && request.starts_with("PATCH");
    assert!(
        !two.remote.requests().iter().any(granted),
        "no rights without their fence"
    );
}

/// The rights in question are those of the user.
#[tokio::test]
async fn missing_rights_of_the_user_are_explained() {
    let two = Two::new().await;
    two.remote
        .fault(Fault::new("GET", "/namespaces/kube-system", Act::Refuse(403)));
    let why = said(two.connect(&request()).await);
    assert!(why.contains("administrator"), "{why}");

    let two = Two::new().await;
    two.home
        .fault(Fault::new("GET", "/deployments", Act::Refuse(403)));
    let why = Home::of(two.home.cluster_unwatched().await, None, None).await;
    let why = why.err().unwrap().to_string();
    assert!(
        why.contains("--driver-namespace") && !why.to_lowercase().contains("install"),
        "{why}"
    );
}

/// With --driver-namespace, no Deployment has to be read before.
#[tokio::test]
async fn a_fabric_that_the_user_may_not_read_is_no_failure() {
    let two = Two::new().await;
    two.home.fault(Fault::new(
        "GET",
        "/namespaces/liqo-csi/deployments",
        Act::Refuse(403),
    ));
    assert_eq!(two.connect(&request()).await.unwrap(), ExitCode::SUCCESS);
    // Nor need other RemoteClusters be read.
    two.home
        .fault(Fault::new("GET", "/remoteclusters", Act::Refuse(403)).at_the_end());
    let revoke = Request {
        revoke_tokens: true,
        ..request()
    };
    assert_eq!(two.connect(&revoke).await.unwrap(), ExitCode::SUCCESS);
}

#[test]
fn a_name_that_no_object_can_have_is_refused() {
    for (name, is_right) in [
        ("milan", true),
        ("kind-milan.2", true),
        ("Milan", false),
        ("gke_project_zone", false),
        ("arn:aws:eks", false),
        ("milan.-a", false),
        ("", false),
    ] {
        assert_eq!(cluster_name(name).is_ok(), is_right, "{name}");
    }
}

#[test]
fn a_fabric_requires_the_level_fabric() {
    assert!(
        Request {
            level: Some(Level::Full),
            ..request()
        }
        .level(None, true)
        .is_err()
    );
    assert_eq!(request().level(None, true).unwrap(), Level::Fabric);
    assert_eq!(request().level(None, false).unwrap(), Level::Full);
    assert_eq!(
        request().level(Some(Level::Minimal), false).unwrap(),
        Level::Minimal
    );
}

#[test]
fn the_printed_declaration_has_no_credentials() {
    let here = serde_saphyr::to_string(&home::declaration(&request(), Level::Fabric).unwrap()).unwrap();
    let read: RemoteCluster = serde_saphyr::from_str(&here).unwrap();
    assert!(read.spec.fabric.is_some() && !here.contains("token"));
    assert!(
        home::declaration(&leveled(Level::Minimal), Level::Minimal).is_err(),
        "classes have to be named"
    );
}

/// A pipeline prepares the files where no kubeconfig is.
#[test]
fn the_home_side_is_printed_without_a_cluster() {
    for (only, can_print) in [("home", true), ("remote", false)] {
        let cli = Cli::try_parse_from([
            "liqo-csi",
            "connect",
            NAME,
            "--fabric",
            "--output=yaml",
            "--only",
            only,
            "--kubeconfig=/missing",
        ]);
        let Command::Connect(args) = cli.unwrap().command else {
            panic!("not connect");
        };
        assert_eq!(run(args).is_ok(), can_print, "{only}");
    }
}

/// Its uid will be the id, unless the driver gets another one.
#[tokio::test]
async fn the_remote_side_is_printed_before_the_driver_is_installed() {
    let api = FakeApi::start().await;
    // It installs the TLS provider.
    drop(api.cluster_unwatched().await);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let file = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "m",
        "clusters": [{"name": "m", "cluster": {"server": api.url(), "certificate-authority-data": "Y2E="}}],
        "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m"}}],
    });
    std::fs::write(&path, file.to_string()).unwrap();
    let path = format!("--kubeconfig={}", path.display());
    let cli = Cli::try_parse_from([
        "liqo-csi",
        "connect",
        NAME,
        "--output=yaml",
        "--only=remote",
        path.as_str(),
    ]);
    let Command::Connect(args) = cli.unwrap().command else {
        panic!("not connect");
    };
    let why = print(&args, &args.request()).await.unwrap_err().to_string();
    assert!(why.contains("--cluster-id"), "{why}");
    api.put("/api/v1/namespaces/kube-system", json!({}));
    let printed = print(&args, &args.request()).await;
    assert_eq!(printed.unwrap(), ExitCode::SUCCESS);
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
