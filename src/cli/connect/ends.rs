//! The two clusters, and how pods of the one reach the API server of the other.

use std::{path::PathBuf, time::Duration};

use k8s_openapi::ByteString;
use kube::{
    Config,
    config::{AuthInfo, Cluster as Entry, KubeConfigOptions, Kubeconfig, NamedContext},
};
use serde_json::json;

use super::{Outcome, remote::Remote};
use crate::{
    access::{self, ACCOUNT},
    cli::common::{ClusterArgs, place},
    cluster::{self, Cluster},
    fleet::kubeconfig::{Allowed, of_server, vet},
    inspect::Setup,
    volume::ClusterId,
};

/// A page of a large cluster takes a while.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How the user reaches the remote cluster.
#[derive(clap::Args)]
pub(in crate::cli) struct RemoteArgs {
    /// Your kubeconfig of the other cluster [default: with --remote-context found as kubectl does].
    #[arg(long)]
    pub(super) remote_kubeconfig: Option<PathBuf>,
    /// Its context for the other cluster [default: its current one].
    #[arg(long)]
    pub(super) remote_context: Option<String>,
}

/// This cluster.
pub(in crate::cli) struct Home {
    pub(in crate::cli) cluster: Cluster,
    /// Namespace of the driver.
    pub(in crate::cli) namespace: String,
    pub(in crate::cli) id: ClusterId,
    /// Namespace of the twins at home; `None` if it is unknown.
    pub(in crate::cli) storage_namespace: Option<String>,
}

impl Home {
    pub(in crate::cli) async fn find(
        args: &ClusterArgs,
        namespace: Option<&str>,
        id: Option<ClusterId>,
    ) -> Outcome<Self> {
        Self::of(args.client().await?, namespace, id).await
    }

    pub(in crate::cli) async fn of(
        cluster: Cluster,
        namespace: Option<&str>,
        id: Option<ClusterId>,
    ) -> Outcome<Self> {
        let place = place(cluster, None, id).await;
        let namespace = match namespace {
            Some(namespace) => namespace.to_owned(),
            None => place
                .setup
                .namespace()
                .map_err(|why| format!("{why}. --driver-namespace names its namespace"))?,
        };
        Ok(Self {
            id: place.home()?,
            cluster: place.cluster,
            namespace,
            storage_namespace: place.storage_namespace,
        })
    }

    pub(super) async fn setup(&self) -> Setup {
        Setup::read(&self.cluster).await
    }
}

impl RemoteArgs {
    pub(in crate::cli) fn read(&self) -> Outcome<Kubeconfig> {
        let read = match &self.remote_kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None if self.remote_context.is_some() => Kubeconfig::read(),
            None => {
                return Err(
                    "name the other cluster: --remote-kubeconfig FILE, --remote-context NAME, or both".into(),
                );
            }
        };
        Ok(read.map_err(|error| format!("the kubeconfig of the remote cluster cannot be used: {error}"))?)
    }

    /// The cluster, and how pods reach it: as before, unless `server` is given.
    pub(super) async fn connect(
        &self,
        name: &ClusterId,
        server: Option<&str>,
        before: Option<Endpoint>,
    ) -> Outcome<(Remote, Endpoint)> {
        let file = self.read()?;
        let (entry_name, entry, _) = entries(&file, self.remote_context.as_deref())?;
        // First, because no right at either end makes an address usable for pods.
        let endpoint = Endpoint::chosen(&entry_name, &entry, server, before)?;
        Ok((self.client(file, name).await?, endpoint))
    }

    /// A client of the remote cluster.
    pub(in crate::cli) async fn client(&self, file: Kubeconfig, name: &ClusterId) -> Outcome<Remote> {
        let (_, _, user) = entries(&file, self.remote_context.as_deref())?;
        let command = user.exec.as_ref().and_then(|exec| exec.command.clone());
        let with = |error: &dyn std::fmt::Display| {
            let by = command.as_ref().map_or_else(String::new, |command| {
                format!(" Your credentials for it come from the command {command}: run it, or kubectl, to see its error.")
            });
            format!("the remote cluster {name} cannot be reached with your kubeconfig: {error}.{by}")
        };
        let entry = KubeConfigOptions {
            context: Some(chosen(&file, self.remote_context.as_deref())?.name.clone()),
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(file, &entry).await;
        let config = config.map_err(|error| with(&error))?;
        let cluster = Cluster::connect_unwatched_with(config, name.as_str(), CALL_TIMEOUT).await;
        Ok(Remote {
            cluster: cluster.map_err(|error| with(&error))?,
        })
    }
}

/// The context of this name, the current one, or the only one.
fn chosen<'a>(file: &'a Kubeconfig, context: Option<&str>) -> Outcome<&'a NamedContext> {
    let name = context
        .or(file.current_context.as_deref())
        .filter(|it| !it.is_empty());
    match (name, file.contexts.as_slice()) {
        (Some(name), _) => Ok(cluster::context(file, name, "of the remote cluster")?),
        (None, [only]) => Ok(only),
        (None, _) => {
            Err("the kubeconfig of the remote cluster names no current context: pass --remote-context".into())
        }
    }
}

/// The cluster and the user of the context.
fn entries(file: &Kubeconfig, context: Option<&str>) -> Outcome<(String, Entry, AuthInfo)> {
    let context = chosen(file, context)?;
    let inner = context.context.clone();
    let inner = inner.ok_or_else(|| format!("the context {} of the kubeconfig is empty", context.name))?;
    let cluster = file.clusters.iter().find(|it| it.name == inner.cluster);
    let cluster = cluster.and_then(|it| it.cluster.clone());
    let cluster = cluster.ok_or_else(|| format!("the kubeconfig has no cluster {}", inner.cluster))?;
    let user = inner.user.as_deref().unwrap_or_default();
    let user = file.auth_infos.iter().find(|it| it.name == user);
    let user = user.and_then(|it| it.auth_info.clone()).unwrap_or_default();
    Ok((inner.cluster, cluster, user))
}

/// How pods reach the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Endpoint {
    pub(super) server: String,
    /// The certificate authority of the server, in base64; if it is not known, that which the cluster publishes.
    pub(super) authority: Option<String>,
    pub(super) tls_server_name: Option<String>,
}

const OTHER_URL: &str = "--server names the URL by which the pods of the controller reach it";

impl Endpoint {
    /// The one before, with the certificate authority of the user's kubeconfig if that has the same address.
    fn chosen(name: &str, entry: &Entry, server: Option<&str>, before: Option<Self>) -> Outcome<Self> {
        match (server, before) {
            (None, Some(before)) if entry.server.as_ref() == Some(&before.server) => {
                Self::of(name, entry, Some(&before.server))
            }
            (None, Some(before)) => Ok(before),
            (server, _) => Self::of(name, entry, server),
        }
    }

    fn of(name: &str, entry: &Entry, server: Option<&str>) -> Outcome<Self> {
        let given = |text: &Option<String>| text.clone().filter(|it| !it.is_empty());
        let authority = match (
            given(&entry.certificate_authority_data),
            given(&entry.certificate_authority),
        ) {
            (Some(data), _) => Some(data),
            (None, Some(path)) => {
                let text = std::fs::read(&path).map_err(|error| {
                    format!("the certificate authority {path} of the kubeconfig cannot be read: {error}")
                })?;
                // A kubeconfig has it in base64, as a Secret does.
                json!(ByteString(text)).as_str().map(str::to_owned)
            }
            (None, None) => None,
        };
        if let Some(server) = server {
            of_server(server).map_err(|why| format!("--server: it {why}"))?;
            let same = entry.server.as_deref() == Some(server);
            // The tls-server-name of a proxy in front of the API server is not that of the API server.
            let judged = access::for_pods(entry.server.as_deref().unwrap_or_default());
            let is_direct = !matches!(judged, Err(access::UnusableAddress::Path(_)));
            return Ok(Self {
                server: server.to_owned(),
                authority: authority.filter(|_| same || is_direct),
                tls_server_name: given(&entry.tls_server_name).filter(|_| same),
            });
        }
        if given(&entry.proxy_url).is_some() {
            return Err(format!(
                "your kubeconfig reaches the cluster {name} through a proxy (proxy-url), and the pods of the controller use \
                 none: {OTHER_URL} without it"
            )
            .into());
        }
        let server = entry.server.clone().unwrap_or_default();
        of_server(&server).map_err(|why| {
            format!("the address of the cluster {name} in your kubeconfig {why}. It is valid for you, but not for pods: {OTHER_URL}")
        })?;
        access::for_pods(&server).map_err(|why| {
            format!(
                "pods cannot use the address of the cluster {name} in your kubeconfig: {why}. {OTHER_URL}"
            )
        })?;
        Ok(Self {
            server,
            authority,
            tls_server_name: given(&entry.tls_server_name),
        })
    }

    /// The kubeconfig of the identity.
    pub(super) fn kubeconfig(&self, token: &str, authority: &str) -> Outcome<String> {
        let mut cluster = json!({"server": self.server, "certificate-authority-data": authority});
        if let Some(name) = &self.tls_server_name {
            cluster["tls-server-name"] = name.clone().into();
        }
        let text = serde_saphyr::to_string(&json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "remote",
            "clusters": [{"name": "remote", "cluster": cluster}],
            "users": [{"name": ACCOUNT, "user": {"token": token}}],
            "contexts": [{"name": "remote", "context": {"cluster": "remote", "user": ACCOUNT}}],
        }))?;
        // The driver would refuse the kubeconfig, so it is not written.
        vet(text.as_bytes(), Allowed::default())
            .map_err(|why| format!("the driver would refuse its new kubeconfig: {why}"))?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::FakeApi;

    fn entry(change: &serde_json::Value) -> Entry {
        let mut entry = json!({"server": "https://192.0.2.1:6443", "certificate-authority-data": "Y2E="});
        entry
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        serde_json::from_value(entry).unwrap()
    }

    #[test]
    fn addresses_that_pods_cannot_use_are_refused_unless_server_is_given() {
        for (change, word) in [
            (
                json!({"server": "https://127.0.0.1:6443"}),
                "is an address of the local machine",
            ),
            (
                json!({"server": "https://localhost:6443"}),
                "is an address of the local machine",
            ),
            (json!({"server": "https://169.254.1.1"}), "link-local"),
            (json!({"server": "https://0.0.0.0:6443"}), "unspecified"),
            (
                json!({"server": "https://kubernetes.docker.internal:6443"}),
                "docker",
            ),
            (
                json!({"server": "https://rancher.example.com/k8s/clusters/c-1"}),
                "/k8s/clusters/c-1",
            ),
            (json!({"proxy-url": "http://192.0.2.9:3128"}), "proxy"),
        ] {
            let why = Endpoint::of("kind", &entry(&change), None)
                .unwrap_err()
                .to_string();
            assert!(
                why.contains(word) && why.contains("--server") && why.contains("kind"),
                "{why}"
            );
            let told = Endpoint::of("kind", &entry(&change), Some("https://192.0.2.7:6443")).unwrap();
            assert_eq!(told.server, "https://192.0.2.7:6443");
            let is_rancher = change["server"].as_str().is_some_and(|it| it.contains("rancher"));
            assert_eq!(told.authority.is_none(), is_rancher, "{change}");
        }
        let why = Endpoint::of("kind", &entry(&json!({})), Some("https://127.0.0.1:6443")).unwrap_err();
        assert!(why.to_string().starts_with("--server"), "{why}");
    }

    #[test]
    fn the_address_before_is_kept_unless_another_one_is_given() {
        let before = |server: &str| {
            Some(Endpoint {
                server: server.to_owned(),
                authority: Some("b2xk".to_owned()),
                tls_server_name: None,
            })
        };
        let private = "https://192.0.2.7:6443";
        let chosen = |change: serde_json::Value, server, before| {
            let chosen = Endpoint::chosen("kind", &entry(&change), server, before).unwrap();
            (chosen.server, chosen.authority.unwrap())
        };
        let local = json!({"server": "https://127.0.0.1:6443"});
        let (old, new) = ("b2xk".to_owned(), "Y2E=".to_owned());
        assert_eq!(chosen(local, None, before(private)), (private.to_owned(), old));
        let public = "https://192.0.2.1:6443";
        let by_proxy = json!({"proxy-url": "http://192.0.2.9:3128"});
        assert_eq!(
            chosen(by_proxy, None, before(public)),
            (public.to_owned(), new.clone())
        );
        for (server, before) in [
            (Some(public), before(private)),
            (None, before(public)),
            (None, None),
        ] {
            assert_eq!(
                chosen(json!({}), server, before),
                (public.to_owned(), new.clone())
            );
        }
    }

    #[test]
    fn the_created_kubeconfig_is_accepted_by_the_driver() {
        let endpoint = Endpoint::of("kind", &entry(&json!({"tls-server-name": "api"})), None).unwrap();
        let text = endpoint.kubeconfig("a.b.c", "Y2E=").unwrap();
        let vetted = vet(text.as_bytes(), Allowed::default()).unwrap();
        let cluster = vetted.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.tls_server_name.as_deref(), Some("api"));
        assert!(endpoint.kubeconfig("", "Y2E=").is_err(), "no token");
    }

    /// As `kubectl config unset current-context` leaves it.
    #[tokio::test]
    async fn the_only_context_needs_not_be_the_current_one() {
        let api = FakeApi::start().await;
        // It installs the TLS provider.
        drop(api.cluster_unwatched().await);
        let file: Kubeconfig = serde_json::from_value(json!({
            "current-context": "",
            "contexts": [{"name": "m", "context": {"cluster": "m", "user": "me"}}],
            "clusters": [{"name": "m", "cluster": {"server": api.url()}}],
        }))
        .unwrap();
        let args = RemoteArgs {
            remote_kubeconfig: None,
            remote_context: None,
        };
        args.client(file, &"milan".parse().unwrap())
            .await
            .map(drop)
            .unwrap();
    }

    #[test]
    fn a_missing_context_is_named_with_the_existing_ones() {
        let file: Kubeconfig = serde_json::from_value(json!({
            "contexts": [{"name": "rome", "context": {"cluster": "rome", "user": "me"}}, {"name": "x", "context": null}],
            "clusters": [{"name": "rome", "cluster": {"server": "https://192.0.2.1"}}],
        }))
        .unwrap();
        assert_eq!(entries(&file, Some("rome")).unwrap().0, "rome");
        let why = entries(&file, Some("milan")).unwrap_err().to_string();
        assert!(why.contains("milan") && why.contains("rome, x"), "{why}");
        assert!(
            entries(&file, None)
                .unwrap_err()
                .to_string()
                .contains("--remote-context")
        );
    }
}
