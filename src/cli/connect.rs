//! `liqo-csi connect`: creates an identity of this cluster in another one, and the objects by which the driver
//! here uses it. Run again, it repairs what is missing and gives the driver a new token.

mod ends;
mod home;
mod remote;
mod report;
mod session;
#[cfg(test)]
pub(super) mod tests;
mod wait;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::Duration,
};

use clap::ValueEnum;
use tokio::time::Instant;

use self::home::Existing;
pub(super) use self::{
    ends::{Home, RemoteArgs},
    home::{namespace_in, other_uid, secret_of},
    remote::{Remote, fabric_namespaces, twins_of},
};
use super::{
    Outcome,
    common::{ClusterArgs, block_on},
    process::duration,
};
use crate::{
    access::{self, ACCOUNT, Identity, LONGEST_TOKEN, Level, NamespaceName},
    api::remote_cluster::RemoteCluster,
    volume::{ClusterId, ClusterIdError},
};

/// Where the identity is in the remote cluster, unless another namespace is named.
pub(super) const DEFAULT_NAMESPACE: &str = "liqo-csi-remote";
/// API servers give no shorter ones.
const SHORTEST_TOKEN: Duration = Duration::from_mins(10);

const LONG_HELP: &str = "\
In the other cluster the command creates what the chart creates with remoteAccess.only: a service account with the
rights of the level, policies that limit it, and the Secret liqo-csi-session to which all its tokens are bound. In this
cluster: a Secret with a kubeconfig in the namespace of the driver, and the RemoteCluster. Repeating the command repairs
all of it and stops no pod or volume. With the fabric it also approves the serving certificates that its pods wait for.

Exit codes: 0 the pods of the controller reach the cluster; 1 something failed, or they do not reach it in time.

Examples:
  liqo-csi connect milan --fabric --remote-context milan
  liqo-csi connect milan --node-selector cluster=milan --remote-kubeconfig milan.yaml --server https://192.0.2.1:6443
  liqo-csi connect milan --remote-context milan --revoke-tokens
  liqo-csi connect milan --fabric -o yaml --only remote > in-milan.yaml";

/// Connects another cluster with your own rights at both ends, and waits until the driver reaches it.
#[derive(clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(super) struct Args {
    /// Name of the cluster here: that of its `RemoteCluster`, and its id.
    #[arg(value_parser = cluster_name)]
    name: ClusterId,
    #[command(flatten)]
    remote: RemoteArgs,
    /// The rights of the driver there, as remoteAccess.level of the chart names them [default: unchanged; for a new
    /// identity fabric with --fabric, and full without].
    #[arg(long)]
    level: Option<Level>,
    /// The fabric of this driver creates the virtual node of the cluster, and runs its pods there.
    #[arg(long, conflicts_with = "node_selector")]
    fabric: bool,
    /// Labels of the virtual nodes of the cluster, as in cluster=milan, where another tool creates them and
    /// runs their pods.
    #[arg(long, value_delimiter = ',', value_parser = pair)]
    node_selector: Vec<(String, String)>,
    /// With the levels namespaced and minimal: the namespaces there for claims of this cluster.
    #[arg(long, value_delimiter = ',')]
    namespaces: Vec<NamespaceName>,
    /// The storage class there for claims of this cluster [default: the default class there, which the
    /// level minimal may not read].
    #[arg(long)]
    storage_class: Option<String>,
    /// The URL by which the pods of the controller reach the API server there [default: unchanged, or that of the
    /// kubeconfig].
    #[arg(long)]
    server: Option<String>,
    /// Namespace of the identity there [default: that of the kubeconfig which the driver has, or
    /// liqo-csi-remote]. Two home clusters need two.
    #[arg(long)]
    remote_namespace: Option<NamespaceName>,
    /// For how long a token is valid. The driver renews it after a third of that [default: as before, otherwise 720h
    /// or, with --token-only, what the identity there allows].
    #[arg(long, value_parser = duration)]
    token_lifetime: Option<Duration>,
    /// Leave the rights there as they are, because Helm or a repository manages them: only create a token.
    #[arg(long, conflicts_with_all = ["level", "namespaces"])]
    token_only: bool,
    /// First revoke all tokens of the identity there, and those that were requested with them: one may have
    /// been stolen.
    #[arg(long, conflicts_with = "output")]
    revoke_tokens: bool,
    /// How long to wait for the pods of the controller to reach it.
    #[arg(long, default_value = "120s", value_parser = duration)]
    timeout: Duration,
    /// Print the manifests of both sides, without credentials, and change nothing.
    #[arg(long, short, value_enum)]
    output: Option<Manifests>,
    /// With -o: only those of one side.
    #[arg(long, value_enum, requires = "output")]
    only: Option<Side>,
    /// Namespace of the driver here [default: where its controller is].
    #[arg(long)]
    driver_namespace: Option<String>,
    /// Id of this cluster [default: that of the controller, or the uid of the namespace kube-system].
    #[arg(long)]
    cluster_id: Option<ClusterId>,
    #[command(flatten)]
    home: ClusterArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Manifests {
    Yaml,
}

/// One of the two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Side {
    /// The other cluster.
    Remote,
    /// This cluster.
    Home,
}

/// A name that the API server accepts for a `RemoteCluster`: nothing is created before that is certain.
fn cluster_name(text: &str) -> Result<ClusterId, String> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = |part: &str| {
        !part.is_empty() && !part.starts_with('-') && !part.ends_with('-') && part.chars().all(is_allowed)
    };
    if !text.split('.').all(is_label) {
        return Err(
            "it is the name of an object, so it has lower case letters, digits, '-' and '.' only".to_owned(),
        );
    }
    text.parse().map_err(|error: ClusterIdError| error.to_string())
}

/// `key=value`.
fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

/// The user's request.
#[derive(Clone)]
pub(super) struct Request {
    name: ClusterId,
    level: Option<Level>,
    fabric: bool,
    nodes: BTreeMap<String, String>,
    listed: BTreeSet<NamespaceName>,
    storage_class: Option<String>,
    remote_namespace: Option<NamespaceName>,
    lifetime: Option<Duration>,
    token_only: bool,
    revoke_tokens: bool,
    timeout: Duration,
}

impl Args {
    fn request(&self) -> Request {
        Request {
            name: self.name.clone(),
            level: self.level,
            fabric: self.fabric,
            nodes: self.node_selector.iter().cloned().collect(),
            listed: self.namespaces.iter().cloned().collect(),
            storage_class: self.storage_class.clone(),
            remote_namespace: self.remote_namespace.clone(),
            lifetime: self.token_lifetime,
            token_only: self.token_only,
            revoke_tokens: self.revoke_tokens,
            timeout: self.timeout,
        }
    }
}

impl Request {
    /// The level of an identity that has the level `now`.
    fn level(&self, now: Option<Level>, fabric: bool) -> Outcome<Level> {
        let first = if fabric { Level::Fabric } else { Level::Full };
        let level = self.level.or(now).unwrap_or(first);
        if fabric && level != Level::Fabric {
            let way_out = if self.token_only {
                "set remoteAccess.level=fabric in its release there"
            } else {
                "--level fabric"
            };
            return Err(format!(
                "the fabric creates namespaces and pods in {}, which the level {level} does not allow: {way_out}",
                self.name
            )
            .into());
        }
        Ok(level)
    }

    /// The lifetime of the requested token, at most `longest`, which the policy of the remote cluster allows; that of the
    /// token before, as far as it is allowed, unless another one is requested. Both in seconds.
    fn lifetime(&self, longest: u64, before: Option<u64>) -> Outcome<Duration> {
        let longest = Duration::from_secs(longest);
        let before = before.map_or(longest, Duration::from_secs);
        let wanted = self.lifetime.unwrap_or(before.max(SHORTEST_TOKEN).min(longest));
        if wanted < SHORTEST_TOKEN || wanted > longest {
            return Err(format!(
                "--token-lifetime: {}s is not between {}s and {}s, the longest that the policy there allows (remoteAccess.tokenSeconds)",
                wanted.as_secs(),
                SHORTEST_TOKEN.as_secs(),
                longest.as_secs()
            )
            .into());
        }
        Ok(wanted)
    }

    /// The outcome of the steps between the revocation of the tokens and the next token.
    fn after_revocation<T>(&self, outcome: Outcome<T>) -> Outcome<T> {
        outcome.map_err(|error| {
            if self.revoke_tokens {
                format!(
                    "{error}. The tokens are revoked already, so the driver has none: run this again, with --token-only if you may not \
                     change the rights there"
                )
                .into()
            } else {
                error
            }
        })
    }

    /// The namespaces for claims there, of an identity that has these now.
    fn listed(&self, level: Level, now: BTreeSet<NamespaceName>) -> Outcome<BTreeSet<NamespaceName>> {
        if !level.is_listed() {
            if !self.listed.is_empty() {
                return Err(format!(
                    "the level {level} allows claims in all namespaces: leave out --namespaces"
                )
                .into());
            }
            return Ok(BTreeSet::new());
        }
        let listed = if self.listed.is_empty() {
            now
        } else {
            self.listed.clone()
        };
        // With --token-only they are listed where the rights are managed.
        if listed.is_empty() && !self.token_only {
            return Err(format!(
                "the level {level} allows claims only in the namespaces that --namespaces lists: list at least one"
            )
            .into());
        }
        Ok(listed)
    }
}

pub(super) fn run(args: Args) -> Outcome<ExitCode> {
    let request = args.request();
    block_on(async move {
        if args.output.is_some() {
            return print(&args, &request).await;
        }
        let home = Home::find(
            &args.home,
            args.driver_namespace.as_deref(),
            args.cluster_id.clone(),
        )
        .await?;
        by_kubeconfig(&home, &args.remote, args.server.as_deref(), &request).await
    })
}

/// Connects the cluster of the user's kubeconfig.
async fn by_kubeconfig(
    home: &Home,
    remote: &RemoteArgs,
    server: Option<&str>,
    request: &Request,
) -> Outcome<ExitCode> {
    let existing = home.existing(&request.name).await?;
    let before = match server {
        Some(_) => None,
        None => existing.endpoint()?,
    };
    let (remote, endpoint) = remote.connect(&request.name, server, before).await?;
    connect(home, &existing, &remote, &endpoint, request).await
}

/// Prints what would be created. For the remote side it reads the id of this cluster, unless that is given.
async fn print(args: &Args, request: &Request) -> Outcome<ExitCode> {
    let level = request.level(None, request.fabric)?;
    let listed = request.listed(level, BTreeSet::new())?;
    let home = || -> Outcome<String> { Ok(serde_saphyr::to_string(&home::declaration(request, level)?)?) };
    if args.only == Some(Side::Home) {
        print!("{}", home()?);
        return Ok(ExitCode::SUCCESS);
    }
    let home_id = if let Some(id) = &args.cluster_id {
        id.clone()
    } else {
        // The driver may not be installed yet, and its namespace is not printed.
        let namespace = args.driver_namespace.as_deref().unwrap_or_default();
        Home::find(&args.home, Some(namespace), None).await?.id
    };
    let (namespace, flag) = match &request.remote_namespace {
        Some(namespace) => (namespace.clone(), format!(" --remote-namespace {namespace}")),
        None => (DEFAULT_NAMESPACE.parse()?, String::new()),
    };
    let identity = Identity {
        namespace,
        home: home_id,
        listed,
    };
    let remote = access::document(&access::render(level, &identity));
    if args.only == Some(Side::Remote) {
        print!("{remote}");
        return Ok(ExitCode::SUCCESS);
    }
    print!(
        "# In the cluster {0} (--only remote prints these alone):\n{remote}---\n# In this cluster, once the driver is \
         installed (--only home). `liqo-csi connect {0} --remote-context CONTEXT{flag} --token-only` \
         creates\n# the Secret with the kubeconfig, which is \
         no file for GitOps:\n{1}",
        request.name,
        home()?
    );
    Ok(ExitCode::SUCCESS)
}

/// Connects the two clusters. Every step can be repeated; a run continues what an earlier one left.
async fn connect(
    home: &Home,
    existing: &Existing,
    remote: &Remote,
    endpoint: &ends::Endpoint,
    request: &Request,
) -> Outcome<ExitCode> {
    let remote_uid = remote.uid().await?;
    home.is_other_than(&remote_uid, &request.name, existing).await?;
    let fabric = existing.has_fabric(request)?;
    if fabric {
        home.is_new_to_fabric(&remote_uid, &request.name, existing)
            .await?;
    }
    let used = existing.namespace();
    let namespace = match (&request.remote_namespace, &used) {
        (Some(asked), _) => asked.clone(),
        (None, Some(used)) => used.clone(),
        (None, None) => DEFAULT_NAMESPACE.parse()?,
    };
    let current = remote.identity(&namespace, &home.id, request.token_only).await?;
    let level = request.level(current.level, fabric)?;
    let identity = Identity {
        listed: request.listed(level, current.listed.clone())?,
        namespace,
        home: home.id.clone(),
    };
    existing.may_be_declared(request, level)?;
    // The manifests of `apply` allow the longest lifetime.
    let longest = current.longest_token.filter(|_| request.token_only);
    let lifetime = request.lifetime(longest.unwrap_or(LONGEST_TOKEN), existing.lifetime())?;
    if !request.token_only {
        remote.may_apply(level, &identity).await?;
    }
    if request.revoke_tokens || current.has_account && !request.token_only {
        remote
            .end_session(&identity.namespace, request.revoke_tokens, !request.token_only)
            .await?;
    }
    let renewed = async {
        if !request.token_only {
            remote.apply(level, &identity, &current).await?;
        }
        let token = remote.token(&identity.namespace, lifetime).await?;
        let authority = remote.authority(&identity.namespace, endpoint).await?;
        let kubeconfig = endpoint.kubeconfig(&token, &authority)?;
        home.write_secret(&request.name, existing, &kubeconfig, &remote_uid)
            .await?;
        Ok((token, kubeconfig))
    };
    let (token, kubeconfig) = request.after_revocation(renewed.await)?;
    home.declare(request, level, existing).await?;
    if request.revoke_tokens {
        let others = home.other_users(&request.name, &identity.namespace, &remote_uid);
        report::without_token(others.await);
    }
    report::made(
        &format!("{}/{}", home.namespace, existing.secret()),
        &endpoint.server,
        request,
        level,
        &identity,
        &token,
    );
    if let Some(used) = used.filter(|it| *it != identity.namespace) {
        eprintln!(
            "There: {used}/{ACCOUNT}, which the driver used before, keeps its rights and tokens until you delete it."
        );
    }
    let until = Instant::now() + request.timeout;
    let reached = wait::until_reached(home, &request.name, &kubeconfig, endpoint, until).await?;
    let Some(cluster) = reached else {
        return Ok(ExitCode::FAILURE);
    };
    report::rights(level, &identity, &cluster);
    report::next(home, &cluster, request).await;
    Ok(ExitCode::SUCCESS)
}

async fn remote_cluster(home: &Home, name: &ClusterId) -> Outcome<Option<RemoteCluster>> {
    Ok(home.cluster.all::<RemoteCluster>().get(name.as_str()).await?)
}
