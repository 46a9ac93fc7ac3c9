//! Translates requests to a kubelet into requests to an API server.

use http::Method;
use prometheus_client::encoding::EncodeLabelValue;

use super::Refusal;
use crate::offload::is_name;

/// The value of `stream` in all requests for logs of an API server with the feature gate `PodLogsQuerySplitStreams`, unless
/// the user names one of the streams.
const ALL_STREAMS: &str = "All";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum Kind {
    Logs,
    Exec,
    Attach,
    PortForward,
}

/// A request to a kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamRequest {
    pub(super) kind: Kind,
    pub(super) namespace: String,
    pub(super) pod: String,
    container: Option<String>,
    /// With the names that an API server has for them, and their values as they are encoded: a command may have bytes
    /// that are not UTF-8.
    options: Vec<(&'static str, String)>,
}

impl Kind {
    /// The verb to authorize. Streams need `create` also by GET: they run commands.
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Logs => "get",
            Self::Exec | Self::Attach | Self::PortForward => "create",
        }
    }

    fn subresource(self) -> &'static str {
        match self {
            Self::Logs => "log",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }

    fn takes(self, method: &Method) -> bool {
        match self {
            Self::Logs => *method == Method::GET,
            Self::Exec | Self::Attach | Self::PortForward => {
                *method == Method::GET || *method == Method::POST
            }
        }
    }

    /// The API server's name of a kubelet parameter, if it is passed on.
    fn option(self, parameter: &str) -> Option<&'static str> {
        let known: &[(&str, &'static str)] = match self {
            Self::Logs => &[
                ("follow", "follow"),
                ("tailLines", "tailLines"),
                ("sinceSeconds", "sinceSeconds"),
                ("sinceTime", "sinceTime"),
                ("timestamps", "timestamps"),
                ("previous", "previous"),
                ("limitBytes", "limitBytes"),
                ("stream", "stream"),
            ],
            Self::Exec => &[("command", "command")],
            Self::Attach => &[],
            Self::PortForward => &[("port", "ports")],
        };
        let found = known.iter().find(|(name, _)| *name == parameter);
        found.map(|&(_, option)| option)
    }

    /// Boolean parameters: their names in a kubelet and in an API server.
    fn switches(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Logs | Self::PortForward => &[],
            Self::Exec | Self::Attach => &[
                ("input", "stdin"),
                ("output", "stdout"),
                ("error", "stderr"),
                ("tty", "tty"),
            ],
        }
    }
}

impl StreamRequest {
    pub(super) fn read(method: &Method, path: &str, query: &str) -> Result<Self, Refusal> {
        let parts: Vec<&str> = path.split('/').collect();
        let (kind, namespace, pod, container) = match parts[..] {
            ["", "containerLogs", namespace, pod, container] => (Kind::Logs, namespace, pod, Some(container)),
            ["", "exec", namespace, pod, container] => (Kind::Exec, namespace, pod, Some(container)),
            ["", "attach", namespace, pod, container] => (Kind::Attach, namespace, pod, Some(container)),
            ["", "portForward", namespace, pod] => (Kind::PortForward, namespace, pod, None),
            _ => return Err(Refusal::NotServed),
        };
        if ![Some(namespace), Some(pod), container]
            .into_iter()
            .flatten()
            .all(is_name)
        {
            return Err(Refusal::NotServed);
        }
        if !kind.takes(method) {
            return Err(Refusal::Method(method.clone()));
        }
        Ok(Self {
            kind,
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: container.map(str::to_owned),
            options: options(kind, query),
        })
    }

    /// Whether the answer may start late: a followed log has no data before the container writes some.
    pub(super) fn follows(&self) -> bool {
        let follow = |(name, value): &(&str, String)| *name == "follow" && is_on(value);
        self.options.iter().any(follow)
    }

    /// Path and query of the same request to an API server, for the pod of this name in `namespace`.
    pub(super) fn path(&self, namespace: &str) -> String {
        let container = self.container.iter().map(|name| ("container", name));
        let options = self.options.iter().map(|(name, value)| (*name, value));
        let query: Vec<String> = container
            .chain(options)
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        format!(
            "/api/v1/namespaces/{namespace}/pods/{}/{}?{}",
            self.pod,
            self.kind.subresource(),
            query.join("&")
        )
    }
}

fn options(kind: Kind, query: &str) -> Vec<(&'static str, String)> {
    let mut switched = vec![false; kind.switches().len()];
    let mut options = Vec::new();
    let parameters = query.split('&').filter_map(|pair| pair.split_once('='));
    // API servers without the feature gate refuse the parameter, and those with it have this default.
    for (name, value) in parameters.filter(|(name, value)| *name != "stream" || *value != ALL_STREAMS) {
        if let Some(option) = kind.option(name) {
            options.push((option, value.to_owned()));
        } else if let Some(at) = kind.switches().iter().position(|(it, _)| *it == name) {
            switched[at] |= is_on(value);
        }
    }
    // Explicit, also if false: an API server has other defaults.
    for (&(_, option), on) in kind.switches().iter().zip(switched) {
        options.push((option, on.to_string()));
    }
    options
}

fn is_on(value: &str) -> bool {
    matches!(value, "1" | "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_translated_for_an_api_server() {
        for (method, asked, expected) in [
            (
                Method::GET,
                "/containerLogs/shop/web-0/app?follow=true&tailLines=10&sinceSeconds=5&sinceTime=2026-01-01T00%3A00%3A00Z\
                 &timestamps=true&previous=true&limitBytes=9&stream=Stdout&pretty=1&insecureSkipTLSVerifyBackend=true",
                "/log?container=app&follow=true&tailLines=10&sinceSeconds=5&sinceTime=2026-01-01T00%3A00%3A00Z\
                 &timestamps=true&previous=true&limitBytes=9&stream=Stdout",
            ),
            (
                Method::GET,
                "/containerLogs/shop/web-0/app?stream=All&tailLines=10",
                "/log?container=app&tailLines=10",
            ),
            (
                Method::POST,
                "/exec/shop/web-0/app?command=sh&command=-c&command=a%26b%3Dc+d&input=1&output=1&error=0&tty=1",
                "/exec?container=app&command=sh&command=-c&command=a%26b%3Dc+d&stdin=true&stdout=true&stderr=false&tty=true",
            ),
            (
                Method::POST,
                "/exec/shop/web-0/app?command=cat&command=caf%E9&output=1",
                "/exec?container=app&command=cat&command=caf%E9&stdin=false&stdout=true&stderr=false&tty=false",
            ),
            (
                Method::GET,
                "/exec/shop/web-0/app?command=ls&output=1&error=1&container=other&stdin=true",
                "/exec?container=app&command=ls&stdin=false&stdout=true&stderr=true&tty=false",
            ),
            (
                Method::POST,
                "/attach/shop/web-0/app?input=true&command=sh",
                "/attach?container=app&stdin=true&stdout=false&stderr=false&tty=false",
            ),
            (Method::POST, "/portForward/shop/web-0", "/portforward?"),
            (
                Method::GET,
                "/portForward/shop/web-0?port=80&port=443",
                "/portforward?ports=80&ports=443",
            ),
        ] {
            let (path, query) = asked.split_once('?').unwrap_or((asked, ""));
            let read = StreamRequest::read(&method, path, query).unwrap();
            assert_eq!((read.namespace.as_str(), read.pod.as_str()), ("shop", "web-0"));
            let expected = format!("/api/v1/namespaces/there/pods/web-0{expected}");
            assert_eq!(read.path("there"), expected, "{asked}");
        }
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        for path in [
            "/",
            "",
            "/pods",
            "/metrics",
            "/logs/",
            "/run/shop/web-0/app",
            "/exec/shop/web-0",
            "/exec/shop/web-0/app/",
            "/exec/shop/web-0/uid/app",
            "//exec/shop/web-0/app",
            "/exec/shop/../app",
            "/exec/shop/web%2f0/app",
            "/exec/shop/web-0/a?b",
            "/exec/shop//app",
            "/containerLogs/shop/web-0",
            "/portForward/shop/web-0/uid",
        ] {
            let read = StreamRequest::read(&Method::GET, path, "");
            assert!(matches!(read, Err(Refusal::NotServed)), "{path}");
        }
        for (method, path) in [
            (Method::POST, "/containerLogs/shop/web-0/app"),
            (Method::PUT, "/exec/shop/web-0/app"),
            (Method::DELETE, "/portForward/shop/web-0"),
        ] {
            let read = StreamRequest::read(&method, path, "");
            assert!(matches!(read, Err(Refusal::Method(_))), "{method} {path}");
        }
    }

    #[test]
    fn only_followed_logs_may_start_late() {
        let logs = |query| StreamRequest::read(&Method::GET, "/containerLogs/shop/web-0/app", query).unwrap();
        assert!(logs("tailLines=1&follow=true").follows());
        for query in ["", "follow=false", "stream=follow"] {
            assert!(!logs(query).follows(), "{query}");
        }
    }
}
