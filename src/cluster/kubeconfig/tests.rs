//! Every refusal, what is kept, and what never shows.

use kube::{Config, config::KubeConfigOptions};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SECRET: &str = "s3cr3t-v4lu3";

/// A kubeconfig with nothing to complain about, beside users that do not count.
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

/// What is said about it, with the proof that no secret is said.
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
fn what_tools_write_without_meaning_is_let_pass() {
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
fn what_lets_its_author_act_through_us_is_refused() {
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
            "clusters[c].cluster.insecure-skip-tls-verify: the server must prove",
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
            "contexts[there]: referred to, but not there",
        ),
        (
            with("", "current-context", json!("gone")),
            "contexts[gone]: referred to, but not there",
        ),
        (
            with(CONTEXT, "cluster", json!("gone")),
            "clusters[gone]: referred to, but not there",
        ),
        (
            with(CONTEXT, "user", json!("gone")),
            "users[gone]: referred to, but not there",
        ),
        (
            without("/contexts/0", "context"),
            "contexts[there]: referred to, but not there",
        ),
        (
            without("/clusters/0", "cluster"),
            "clusters[c]: referred to, but not there",
        ),
        (entry_only, "users[admin]: referred to, but not there"),
        (
            without(CLUSTER, "server"),
            "clusters[c].cluster.server: names no host",
        ),
        (with("", "current-context", json!("a\nb")), "contexts[a?b]: "),
    ] {
        let said = refusal(&file, Allowed::default());
        assert!(said.starts_with(says), "{file}\n{said}\n{says}");
    }
}

#[test]
fn nothing_is_dropped_unseen() {
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

#[test]
fn nothing_is_merged() {
    for list in ["contexts", "clusters", "users"] {
        let mut file = plain();
        let again = file[list][1].clone();
        let name = again["name"].as_str().unwrap().to_owned();
        file[list].as_array_mut().unwrap().push(again);
        let said = refusal(&file, Allowed::default());
        assert!(
            said.starts_with(&format!("{list}[{name}] is there twice")),
            "{said}"
        );
    }
    let one = plain().to_string();
    for text in [
        format!("{one}\n---\n{one}"),
        one.replacen("\"token\"", "\"token\": \"first\", \"token\"", 1),
        one.replacen("\"token\"", "\"odd\": \"first\", \"odd\"", 1),
        one.replacen("\"token\"", "<<: { \"tokenFile\": \"/f\" }, \"token\"", 1),
        one.replacen('{', "{ \"users\": [], ", 1),
    ] {
        let refused = vet(text.as_bytes(), Allowed::default()).unwrap_err();
        assert!(
            matches!(refused, KubeconfigRefused::NotYaml { .. }),
            "{refused}\n{text}"
        );
    }
}

#[test]
fn text_that_is_no_kubeconfig_is_refused_without_quoting_it() {
    let bomb = (1..40).fold(String::from("l0: &l0 [x, x]\n"), |text, n| {
        format!("{text}l{n}: &l{n} [*l{0}, *l{0}, *l{0}, *l{0}]\n", n - 1)
    });
    for text in [
        String::new(),
        SECRET.to_owned(),
        format!("- {SECRET}"),
        format!("users: {SECRET}"),
        format!("users: [{{ name: [{SECRET}] }}]"),
        format!("a: b: {SECRET}"),
        format!("{{ users: {SECRET}"),
        format!("clusters:\n- name: c\n  cluster:\n    insecure-skip-tls-verify: {SECRET}\n"),
        format!("token: !!binary {SECRET}\n\tx"),
        "[".repeat(LONGEST),
        "{a: ".repeat(LONGEST / 4),
        "- ".repeat(LONGEST / 2),
        bomb,
    ] {
        let refused = vet(text.as_bytes(), Allowed::default()).unwrap_err();
        let said = format!("{refused} {refused:?}");
        assert!(!said.contains(SECRET) && said.len() < 300, "{said}");
    }
    assert_eq!(
        vet(b"users: \xff", Allowed::default()).unwrap_err(),
        KubeconfigRefused::NotText
    );
    assert_eq!(
        vet(&vec![b' '; LONGEST + 1], Allowed::default()).unwrap_err(),
        KubeconfigRefused::TooLarge
    );
    let odd = vet(b"a: b\nusers: 5\n", Allowed::default()).unwrap_err();
    assert_eq!(
        odd.to_string(),
        "not a kubeconfig (one YAML document without repeated or merged keys): see line 2"
    );
}

#[test]
fn no_tag_and_no_variable_reads_anything() {
    for text in [
        "!include /etc/hostname",
        "!include_str /etc/hostname",
        "${HOME}",
        "${file:/etc/hostname}",
    ] {
        let yaml = plain().to_string().replace(&format!("\"{SECRET}\""), text);
        if let Ok(kept) = vet(yaml.as_bytes(), Allowed::default()) {
            let token = kept.auth_infos[0].auth_info.clone().unwrap().token.unwrap();
            assert!(text.ends_with(token.expose_secret()), "{text} was obeyed");
        }
    }
}

/// Hosts that neither a server nor a proxy may have.
const FORBIDDEN_HOSTS: &[(&str, AddressRefused)] = &[
    ("127.0.0.1", AddressRefused::Loopback),
    ("127.8.9.10:6443", AddressRefused::Loopback),
    ("127.0.0.1.", AddressRefused::Loopback),
    ("localhost", AddressRefused::Loopback),
    ("LocalHost.:443", AddressRefused::Loopback),
    ("api.localhost", AddressRefused::Loopback),
    ("localhost.localdomain", AddressRefused::Loopback),
    ("ip6-localhost", AddressRefused::Loopback),
    ("[::1]:6443", AddressRefused::Loopback),
    ("[::ffff:127.0.0.1]", AddressRefused::Loopback),
    ("[::127.0.0.1]", AddressRefused::Loopback),
    ("[64:ff9b::7f00:1]", AddressRefused::Loopback),
    ("169.254.169.254", AddressRefused::LinkLocal),
    ("[::ffff:169.254.169.254]", AddressRefused::LinkLocal),
    ("[fe80::1]", AddressRefused::LinkLocal),
    ("[febf::1]", AddressRefused::LinkLocal),
    ("0.0.0.0:6443", AddressRefused::Unspecified),
    ("0.1.2.3", AddressRefused::Unspecified),
    ("[::]", AddressRefused::Unspecified),
    ("[::ffff:0.0.0.0]", AddressRefused::Unspecified),
    ("127.1", AddressRefused::NotPlain),
    ("2130706433", AddressRefused::NotPlain),
    ("0x7f000001", AddressRefused::NotPlain),
    ("0177.0.0.1", AddressRefused::NotPlain),
    ("0x7f.0.0.0x1", AddressRefused::NotPlain),
    ("[fe80::1%25eth0]", AddressRefused::NotPlain),
    ("[::1", AddressRefused::NotPlain),
    ("api.example.com:99999", AddressRefused::NotPlain),
    ("api.example.com:", AddressRefused::NotPlain),
    ("api%2eexample.com", AddressRefused::NotPlain),
    ("b\u{fc}ro.example.com", AddressRefused::NotPlain),
    ("api.example.com?a=s3cr3t-v4lu3", AddressRefused::NotPlain),
    ("two words", AddressRefused::NotPlain),
    ("s3cr3t-v4lu3@api.example.com", AddressRefused::Credentials),
    ("u:s3cr3t-v4lu3@127.0.0.1", AddressRefused::Credentials),
    (".", AddressRefused::NoHost),
];

#[test]
fn servers_are_reached_by_an_address_that_is_not_ours() {
    for (host, why) in FORBIDDEN_HOSTS {
        let said = refusal(
            &with(CLUSTER, "server", json!(format!("https://{host}"))),
            Allowed::default(),
        );
        assert_eq!(said, format!("clusters[c].cluster.server: {why}"), "{host}");
    }
    for (server, why) in [
        ("http://api.example.com", AddressRefused::NotHttps),
        ("api.example.com:6443", AddressRefused::NotHttps),
        ("api.example.com", AddressRefused::NotHttps),
        ("/run/api.sock", AddressRefused::NotHttps),
        ("unix:///run/api.sock", AddressRefused::NotPlain),
        ("https://", AddressRefused::NotPlain),
        ("https:///path", AddressRefused::NotPlain),
        ("https://:6443", AddressRefused::NoHost),
        ("", AddressRefused::NoHost),
    ] {
        let said = refusal(&with(CLUSTER, "server", json!(server)), Allowed::default());
        assert_eq!(said, format!("clusters[c].cluster.server: {why}"), "{server}");
    }
}

#[test]
fn proxies_obey_the_same_rule() {
    for (host, why) in FORBIDDEN_HOSTS {
        let said = refusal(
            &with(CLUSTER, "proxy-url", json!(format!("http://{host}"))),
            PROXIED,
        );
        assert_eq!(said, format!("clusters[c].cluster.proxy-url: {why}"), "{host}");
    }
    for proxy in [
        "proxy:3128",
        "socks5h://proxy:1080",
        "SOCKS5://proxy",
        "socks4://proxy",
        "ftp://proxy",
        "proxy",
    ] {
        let said = refusal(&with(CLUSTER, "proxy-url", json!(proxy)), PROXIED);
        assert!(said.contains("is no proxy we can use"), "{proxy}: {said}");
    }
}

/// Whether this build of kube can use what we let pass.
#[tokio::test]
async fn kube_builds_a_client_from_what_is_kept() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    for proxy in ["", "http://proxy:3128", "https://proxy", "socks5://10.0.0.9:1080"] {
        let kept = vet(
            with(CLUSTER, "proxy-url", json!(proxy)).to_string().as_bytes(),
            PROXIED,
        )
        .unwrap();
        let config = Config::from_custom_kubeconfig(kept, &KubeConfigOptions::default())
            .await
            .unwrap();
        assert_eq!(config.cluster_url.host(), Some("api.example.com"));
        assert_eq!(config.proxy_url.is_some(), !proxy.is_empty());
        kube::Client::try_from(config).unwrap_or_else(|error| panic!("{proxy}: {error}"));
    }
}

proptest! {
    #[test]
    fn no_text_makes_vetting_panic(text in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = vet(&text, PROXIED);
    }

    #[test]
    fn no_yaml_makes_vetting_panic(text in "[\\[\\]{}:,&*!|>'\"\\-?#%@` \n\ta-c<]{0,200}") {
        let _ = vet(text.as_bytes(), PROXIED);
    }

    #[test]
    fn no_address_makes_vetting_panic(address in "\\PC{0,60}", host in "(https|socks5)://[\\[\\]0-9a-f:.%@x]{0,40}") {
        for text in [address, host] {
            let _ = vet(with(CLUSTER, "server", json!(text)).to_string().as_bytes(), PROXIED);
            let _ = vet(with(CLUSTER, "proxy-url", json!(text)).to_string().as_bytes(), PROXIED);
        }
    }
}
