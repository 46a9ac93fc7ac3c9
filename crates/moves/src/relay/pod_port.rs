//! A port of a pod, as on the command line.

use std::{fmt, num::NonZeroU16, str::FromStr};

/// A port of a pod, written `namespace/pod:port`, as on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPort {
    namespace: String,
    pod: String,
    port: NonZeroU16,
}

/// A text that is not a port of a pod.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a port of a pod: write NAMESPACE/POD:PORT")]
pub struct BadPodPort(String);

impl PodPort {
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    #[must_use]
    pub fn pod(&self) -> &str {
        &self.pod
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.get()
    }
}

impl FromStr for PodPort {
    type Err = BadPodPort;

    fn from_str(text: &str) -> Result<Self, BadPodPort> {
        let parts = || {
            let (pod, port) = text.rsplit_once(':')?;
            let (namespace, pod) = pod.split_once('/')?;
            let names = is_name(namespace) && is_name(pod);
            names.then_some(Self {
                namespace: namespace.to_owned(),
                pod: pod.to_owned(),
                port: port.parse().ok()?,
            })
        };
        parts().ok_or_else(|| BadPodPort(text.to_owned()))
    }
}

impl fmt::Display for PodPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.pod, self.port)
    }
}

/// A name becomes part of a URL path, so other characters are rejected.
fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=253).contains(&text.len())
        && text
            .bytes()
            .all(|byte| inner(byte) || byte == b'-' || byte == b'.')
        && text.bytes().next().is_some_and(inner)
        && text.bytes().next_back().is_some_and(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_port_survives_the_round_trip() {
        let port: PodPort = "liqo-storage/move-1.source:7401".parse().unwrap();
        assert_eq!(
            (port.namespace(), port.pod(), port.port()),
            ("liqo-storage", "move-1.source", 7401)
        );
        assert_eq!(port.to_string(), "liqo-storage/move-1.source:7401");
        for bad in [
            "",
            "a:1",
            "a/b",
            "a/b:0",
            "a/b:65536",
            "/b:1",
            "a/:1",
            "a/../b:1",
            "a/b/c:1",
            "a/b?x:1",
            "A/b:1",
            "a/-b:1",
            "../b:1",
            "a/b:1:2",
        ] {
            assert_eq!(bad.parse::<PodPort>(), Err(BadPodPort(bad.to_owned())), "{bad}");
        }
    }
}
