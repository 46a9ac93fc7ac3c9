//! Every refusal, what is kept, and that messages contain no secrets.

mod addresses;
mod text;

use serde_json::{Value, json};

use super::*;

const SECRET: &str = "s3cr3t-v4lu3";

/// A valid kubeconfig, with other users that are ignored.
fn plain() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "there",
        "contexts": [
            { "name": "there", "context": { "cluster": "c", "user": "admin", "namespace": "n" } },
            { "name": "elsewhere", "context": { "cluster": "c2", "user": "other" } },
        ],
        "clusters": [
            { "name": "c", "cluster": { "server": "https://api.example.com:6443", "tls-server-name": "api" } },
            { "name": "c2", "cluster": { "server": "http://localhost:8080" } },
        ],
        "users": [
            { "name": "admin", "user": { "token": SECRET } },
            { "name": "other", "user": { "exec": { "command": "steal" } } },
        ],
    })
}

const PROXIED: Allowed = Allowed { proxy: true };
const CONTEXT: &str = "/contexts/0/context";
const CLUSTER: &str = "/clusters/0/cluster";
const USER: &str = "/users/0/user";

fn with(at: &str, field: &str, value: Value) -> Value {
    let mut file = plain();
    file.pointer_mut(at).unwrap()[field] = value;
    file
}

fn without(at: &str, field: &str) -> Value {
    let mut file = plain();
    let entry = file.pointer_mut(at).unwrap().as_object_mut().unwrap();
    entry.remove(field).unwrap();
    file
}

fn judge(file: &Value) -> Result<Kubeconfig, KubeconfigRefused> {
    vet(file.to_string().as_bytes(), Allowed::default())
}

/// The error message, which is checked to contain no secret.
fn refusal(file: &Value, allowed: Allowed) -> String {
    let refused = vet(file.to_string().as_bytes(), allowed).expect_err(&file.to_string());
    let said = refused.to_string();
    assert!(!said.contains(SECRET), "{said}");
    assert!(!format!("{refused:?}").contains(SECRET), "{refused:?}");
    said
}

#[test]
fn the_current_context_is_kept_and_nothing_else() {
    let kept = judge(&plain()).unwrap();
    assert_eq!(
        serde_json::to_value(&kept).unwrap(),
        json!({
            "current-context": "there",
            "contexts": [{ "name": "there", "context": { "cluster": "c", "user": "admin", "namespace": "n" } }],
            "clusters": [{ "name": "c", "cluster": { "server": "https://api.example.com:6443", "tls-server-name": "api" } }],
            "users": [{ "name": "admin", "user": { "token": SECRET } }],
        })
    );
    assert!(!format!("{kept:?}").contains(SECRET));
}

#[test]
fn a_single_context_needs_no_name() {
    let mut file = without("", "current-context");
    assert_eq!(judge(&file).unwrap_err(), KubeconfigRefused::NoContext);
    file["contexts"].as_array_mut().unwrap().truncate(1);
    assert_eq!(judge(&file).unwrap().current_context.as_deref(), Some("there"));
    file["current-context"] = json!("");
    assert_eq!(judge(&file).unwrap().current_context.as_deref(), Some("there"));
}

#[test]
fn irrelevant_fields_of_tools_are_accepted() {
    let extensions = json!([{ "name": "minikube.sigs.k8s.io", "extension": { "provider": SECRET } }]);
    for file in [
        with("", "extensions", extensions.clone()),
        with("", "future", json!("field")),
        with(CONTEXT, "extensions", extensions.clone()),
        with(CLUSTER, "extensions", extensions.clone()),
        with(CLUSTER, "insecure-skip-tls-verify", json!(false)),
        with(CLUSTER, "disable-compression", json!(true)),
        with(CLUSTER, "certificate-authority", json!("")),
        with(CLUSTER, "proxy-url", json!("")),
        with(USER, "extensions", extensions),
        with(USER, "exec", Value::Null),
        with(USER, "username", json!("")),
        with(USER, "as-groups", json!([])),
        with(
            CLUSTER,
            "server",
            json!("https://rancher.example.com/k8s/clusters/c-1"),
        ),
        with(CLUSTER, "server", json!("https://10.0.0.7:6443")),
        with(CLUSTER, "server", json!("https://[2001:db8::7]:6443")),
        with(CLUSTER, "server", json!("https://localhost.example.com")),
        with(CLUSTER, "server", json!("https://kubernetes.default.svc")),
    ] {
        let kept = judge(&file).unwrap_or_else(|why| panic!("{why}: {file}"));
        assert!(!format!("{kept:?}").contains(SECRET), "{file}");
    }
}

#[test]
fn fields_that_would_run_code_or_read_files_are_refused() {
    let cluster = |field, value| with(CLUSTER, field, value);
    let user = |field, value| with(USER, field, value);
    for (file, says) in [
        (
            user("exec", json!({})),
            "users[admin].user.exec: commands are never run; use a client certificate or a token",
        ),
        (
            user("exec", json!({ "command": SECRET })),
            "users[admin].user.exec: ",
        ),
        (
            user("auth-provider", json!({ "name": SECRET })),
            "users[admin].user.auth-provider: authentication plugins are never used",
        ),
        (
            user("tokenFile", json!(SECRET)),
            "users[admin].user.tokenFile: files are never read; put the content into `token`",
        ),
        (
            user("client-certificate", json!(SECRET)),
            "users[admin].user.client-certificate: files are never read; put the content into `client-certificate-data`",
        ),
        (
            user("client-key", json!(SECRET)),
            "users[admin].user.client-key: files are never read; put the content into `client-key-data`",
        ),
        (user("as", json!(SECRET)), "users[admin].user.as: impersonation"),
        (
            user("as-uid", json!(SECRET)),
            "users[admin].user.as-uid: impersonation",
        ),
        (
            user("as-groups", json!([SECRET])),
            "users[admin].user.as-groups: impersonation",
        ),
        (
            user("as-user-extra", json!({ "a": [SECRET] })),
            "users[admin].user.as-user-extra: impersonation",
        ),
        (
            user("username", json!(SECRET)),
            "users[admin].user.username: no API server takes passwords",
        ),
        (
            user("password", json!(SECRET)),
            "users[admin].user.password: no API server takes passwords",
        ),
        (
            user("token", json!("")),
            "users[admin].user: there are no credentials",
        ),
        (
            user("client-certificate-data", json!(SECRET)),
            "users[admin].user.client-key-data: missing",
        ),
        (
            user("client-key-data", json!(SECRET)),
            "users[admin].user.client-certificate-data: missing",
        ),
        (
            without(CONTEXT, "user"),
            "contexts[there].context.user: there are no credentials",
        ),
        (
            cluster("certificate-authority", json!(SECRET)),
            "clusters[c].cluster.certificate-authority: files are never read; put the content into `certificate-authority-data`",
        ),
        (
            cluster("insecure-skip-tls-verify", json!(true)),
            "clusters[c].cluster.insecure-skip-tls-verify: the certificate of the server must be verified",
        ),
        (
            cluster("proxy-url", json!("http://proxy:3128")),
            "clusters[c].cluster.proxy-url: proxies are not allowed here",
        ),
    ] {
        let said = refusal(&file, Allowed::default());
        assert!(said.starts_with(says), "{file}\n{said}\n{says}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let mut entry_only = plain();
    entry_only["users"][0] = json!({ "name": "admin" });
    for (file, says) in [
        (json!({}), "current-context: not set"),
        (
            with("", "contexts", Value::Null),
            "contexts[there]: referred to, but missing",
        ),
        (
            with("", "current-context", json!("gone")),
            "contexts[gone]: referred to, but missing",
        ),
        (
            with(CONTEXT, "cluster", json!("gone")),
            "clusters[gone]: referred to, but missing",
        ),
        (
            with(CONTEXT, "user", json!("gone")),
            "users[gone]: referred to, but missing",
        ),
        (
            without("/contexts/0", "context"),
            "contexts[there]: referred to, but missing",
        ),
        (
            without("/clusters/0", "cluster"),
            "clusters[c]: referred to, but missing",
        ),
        (entry_only, "users[admin]: referred to, but missing"),
        (
            without(CLUSTER, "server"),
            "clusters[c].cluster.server: has no host",
        ),
        (with("", "current-context", json!("a\nb")), "contexts[a?b]: "),
    ] {
        let said = refusal(&file, Allowed::default());
        assert!(said.starts_with(says), "{file}\n{said}\n{says}");
    }
}

#[test]
fn unknown_fields_are_refused_with_a_suggestion() {
    for (at, field, says) in [
        (
            USER,
            "authProvider",
            "users[admin].user: has a field that kubeconfigs do not have, it looks like `auth-provider`;",
        ),
        (
            USER,
            "token-file",
            "users[admin].user: has a field that kubeconfigs do not have, it looks like `tokenFile`;",
        ),
        (
            USER,
            "Exec",
            "users[admin].user: has a field that kubeconfigs do not have, it looks like `exec`;",
        ),
        (
            USER,
            SECRET,
            "users[admin].user: has a field that kubeconfigs do not have;",
        ),
        (
            "/users/0",
            "exec",
            "users[admin]: has a field that kubeconfigs do not have, it looks like `exec`;",
        ),
        (
            CLUSTER,
            "insecureSkipTLSVerify",
            "clusters[c].cluster: has a field that kubeconfigs do not have, it looks like `insecure-skip-tls-verify`;",
        ),
        ("/clusters/0", "server", "clusters[c]: has a field"),
        (CONTEXT, "as", "contexts[there].context: has a field"),
        ("/contexts/0", "user", "contexts[there]: has a field"),
    ] {
        let said = refusal(&with(at, field, json!(SECRET)), Allowed::default());
        assert!(said.starts_with(says), "{said}\n{says}");
    }
}
