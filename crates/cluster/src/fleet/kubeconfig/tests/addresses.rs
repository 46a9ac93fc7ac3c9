//! The allowed addresses of servers and proxies, and that kube can use them.

use kube::{Config, config::KubeConfigOptions};
use proptest::prelude::*;
use serde_json::json;

use super::*;

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
fn local_and_malformed_server_addresses_are_refused() {
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
fn local_and_malformed_proxy_addresses_are_refused() {
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
        assert!(said.contains("is not a supported proxy"), "{proxy}: {said}");
    }
}

/// Whether this build of kube can use the allowed addresses.
#[tokio::test]
async fn kube_builds_a_client_from_a_vetted_kubeconfig() {
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
    fn no_address_makes_vetting_panic(address in "\\PC{0,60}", host in "(https|socks5)://[\\[\\]0-9a-f:.%@x]{0,40}") {
        for text in [address, host] {
            let _ = vet(with(CLUSTER, "server", json!(text)).to_string().as_bytes(), PROXIED);
            let _ = vet(with(CLUSTER, "proxy-url", json!(text)).to_string().as_bytes(), PROXIED);
        }
    }
}
