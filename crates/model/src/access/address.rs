//! Addresses of API servers that work on the user's machine but not in pods. The check of every kubeconfig
//! rejects loopback and the like; this one rejects names and paths that only look generally reachable.

/// Why pods cannot use an address, or may not be able to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableAddress {
    /// A host name that may resolve only on the user's machine: some organizations have `.local` in their DNS.
    #[error(
        "the name {0} may resolve only on the machine that runs the cluster; if it resolves in pods too, pass the same URL \
         explicitly"
    )]
    LocalName(String),
    /// A URL with a path: a proxy in front of the API server.
    #[error(
        "it has the path {0}, so it is a proxy in front of the API server (Rancher, Teleport, …), which accepts your \
         login but no tokens of service accounts"
    )]
    Path(String),
}

const DESKTOP_HOSTS: [&str; 4] = [
    "host.docker.internal",
    "kubernetes.docker.internal",
    "gateway.docker.internal",
    "host.containers.internal",
];
/// Resolved by multicast DNS, which pods do not use.
const MULTICAST_DNS: &str = ".local";

/// Checks the API server address of a user's own kubeconfig.
pub fn for_pods(server: &str) -> Result<(), UnusableAddress> {
    let rest = server.split_once("://").map_or(server, |(_, rest)| rest);
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, path.trim_end_matches('/')),
        None => (rest, ""),
    };
    let is_ipv6 = authority.starts_with('[');
    let host = if is_ipv6 {
        authority
    } else {
        authority.split(':').next().unwrap_or_default()
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    if DESKTOP_HOSTS.contains(&host.as_str()) || host.ends_with(MULTICAST_DNS) {
        return Err(UnusableAddress::LocalName(host));
    }
    if !path.is_empty() {
        return Err(UnusableAddress::Path(format!("/{path}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_reachable_from_pods_are_accepted() {
        for server in [
            "https://192.0.2.1:6443",
            "https://api.milan.example.com",
            "https://api.milan.example.com/",
            "https://[2001:db8::1]:6443",
            "https://local.example.com:443",
        ] {
            assert_eq!(for_pods(server), Ok(()), "{server}");
        }
    }

    #[test]
    fn addresses_that_work_only_for_the_user_are_refused() {
        for (server, why) in [
            (
                "https://kubernetes.docker.internal:6443",
                "kubernetes.docker.internal",
            ),
            ("https://Host.Docker.Internal.:6443", "host.docker.internal"),
            ("https://nas.local:6443", "nas.local"),
            (
                "https://rancher.example.com/k8s/clusters/c-1",
                "/k8s/clusters/c-1",
            ),
        ] {
            let refused = for_pods(server).unwrap_err().to_string();
            assert!(refused.contains(why), "{server}: {refused}");
        }
    }
}
