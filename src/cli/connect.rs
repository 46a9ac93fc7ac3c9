//! `liqo-csi connect`: gives this cluster an identity in another one, and tells the driver. Run again, it
//! repairs what is missing and gives the driver a new token.

mod ends;
mod home;
mod remote;
#[cfg(test)]
pub(super) mod tests;
mod wait;
mod words;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::Duration,
};

use clap::ValueEnum;
use tokio::time::Instant;

pub(super) use self::{
    ends::{Home, RemoteArgs},
    home::{namespace_in, secret_of},
    remote::{Remote, fabric_namespaces},
};
use super::{
    Outcome,
    common::{ClusterArgs, block_on},
    process::duration,
};
use crate::{
    access::{self, Identity, LONGEST_TOKEN, Level, NamespaceName},
    api::remote_cluster::RemoteCluster,
    volume::ClusterId,
};

/// Of the identity in the remote cluster, unless another one is named.
pub(super) const DEFAULT_NAMESPACE: &str = "liqo-csi-remote";
/// API servers give no shorter ones.
const SHORTEST_TOKEN: Duration = Duration::from_mins(10);

const MORE: &str = "\
What is made there is what the chart makes with remoteAccess.only: an account with rights of the level, policies that
hold it to them, and the Secret liqo-csi-session that all of its tokens are bound to. Here: a Secret with a kubeconfig in
the namespace of the driver, and the RemoteCluster. Repeating the command repairs all of it and ends no pod or volume.

Exit codes: 0 the pods of the controller reach the cluster; 1 something failed, or they do not reach it in time.";

/// Connects another cluster with your own rights at both ends, and waits until the driver reaches it.
#[derive(clap::Args)]
#[command(after_long_help = MORE)]
pub(super) struct Args {
    /// How the cluster is called here: the name of its `RemoteCluster`, and its id.
    name: ClusterId,
    #[command(flatten)]
    remote: RemoteArgs,
    /// The rights of the driver there, as remoteAccess.level of the chart names them [default: those that
    /// it has; at first fabric with --fabric, and full without].
    #[arg(long)]
    level: Option<Level>,
    /// The fabric of this driver makes the node that stands for the cluster, and runs pods there.
    #[arg(long, conflicts_with = "node_selector")]
    fabric: bool,
    /// Labels of the nodes here that stand for the cluster, as in cluster=milan, where another tool makes
    /// them and runs their pods.
    #[arg(long, value_delimiter = ',', value_parser = pair)]
    node_selector: Vec<(String, String)>,
    /// With the levels namespaced and minimal: the namespaces there for claims of this cluster.
    #[arg(long, value_delimiter = ',')]
    namespaces: Vec<NamespaceName>,
    /// The storage class there for claims of this cluster [default: the default class there, which the
    /// level minimal may not read].
    #[arg(long)]
    storage_class: Option<String>,
    /// The URL by which the pods of the controller reach the API server there [default: that of the
    /// kubeconfig].
    #[arg(long)]
    server: Option<String>,
    /// Namespace of the identity there [default: that of the kubeconfig which the driver has, or
    /// liqo-csi-remote]. Two home clusters need two.
    #[arg(long)]
    remote_namespace: Option<NamespaceName>,
    /// For how long a token is valid. The driver renews it after a third of that.
    #[arg(long, default_value = "720h", value_parser = duration)]
    token_lifetime: Duration,
    /// Leave the rights there as they are, because a Helm release or a repository looks after them: only make a token.
    #[arg(long)]
    token_only: bool,
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
    /// Id of this cluster [default: what the controller was told, or the uid of the namespace kube-system].
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
    /// What is made in the other cluster.
    Remote,
    /// What is made here.
    Home,
}

/// `key=value`.
fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

/// What is asked for.
#[derive(Clone)]
pub(super) struct Wish {
    name: ClusterId,
    level: Option<Level>,
    fabric: bool,
    nodes: BTreeMap<String, String>,
    listed: BTreeSet<NamespaceName>,
    storage_class: Option<String>,
    remote_namespace: Option<NamespaceName>,
    lifetime: Duration,
    token_only: bool,
    timeout: Duration,
}

impl Args {
    fn wish(&self) -> Outcome<Wish> {
        if self.token_lifetime < SHORTEST_TOKEN || self.token_lifetime.as_secs() > LONGEST_TOKEN {
            return Err(format!(
                "--token-lifetime: {:?} is not between 10m and {}h",
                self.token_lifetime,
                LONGEST_TOKEN / 3600
            )
            .into());
        }
        Ok(Wish {
            name: self.name.clone(),
            level: self.level,
            fabric: self.fabric,
            nodes: self.node_selector.iter().cloned().collect(),
            listed: self.namespaces.iter().cloned().collect(),
            storage_class: self.storage_class.clone(),
            remote_namespace: self.remote_namespace.clone(),
            lifetime: self.token_lifetime,
            token_only: self.token_only,
            timeout: self.timeout,
        })
    }
}

impl Wish {
    /// The level of an identity that has this one now.
    fn level(&self, now: Option<Level>, fabric: bool) -> Outcome<Level> {
        let first = if fabric { Level::Fabric } else { Level::Full };
        let level = self.level.or(now).unwrap_or(first);
        if fabric && level != Level::Fabric {
            return Err(format!(
                "the fabric makes namespaces and pods there, and with the level {level} it may not: leave out --level, or \
                 say --level fabric"
            )
            .into());
        }
        Ok(level)
    }

    fn listed(&self, level: Level, now: BTreeSet<NamespaceName>) -> Outcome<BTreeSet<NamespaceName>> {
        if !level.is_listed() {
            if !self.listed.is_empty() {
                return Err(format!(
                    "with the level {level} no namespaces are listed: leave out --namespaces"
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
        if listed.is_empty() {
            return Err(format!("the level {level} is for some namespaces: --namespaces names them").into());
        }
        Ok(listed)
    }
}

pub(super) fn run(args: Args) -> Outcome<ExitCode> {
    let wish = args.wish()?;
    block_on(async move {
        if args.output.is_some() {
            return print(&args, &wish).await;
        }
        let home = Home::find(
            &args.home,
            args.driver_namespace.as_deref(),
            args.cluster_id.clone(),
        )
        .await?;
        let (remote, way) = args.remote.connect(&wish.name, args.server.as_deref()).await?;
        connect(&home, &remote, &way, &wish).await
    })
}

/// Prints what would be made. No cluster is asked for what is told.
async fn print(args: &Args, wish: &Wish) -> Outcome<ExitCode> {
    let home_id = match &args.cluster_id {
        Some(id) => id.clone(),
        None => {
            Home::find(&args.home, args.driver_namespace.as_deref(), None)
                .await?
                .id
        }
    };
    let level = wish.level(None, wish.fabric)?;
    let namespace = match &wish.remote_namespace {
        Some(namespace) => namespace.clone(),
        None => DEFAULT_NAMESPACE.parse()?,
    };
    let identity = Identity {
        namespace,
        home: home_id,
        listed: wish.listed(level, BTreeSet::new())?,
    };
    let remote = access::document(&access::render(level, &identity));
    let here = serde_saphyr::to_string(&home::declaration(wish, level)?)?;
    match args.only {
        Some(Side::Remote) => print!("{remote}"),
        Some(Side::Home) => print!("{here}"),
        None => print!(
            "# In the cluster {0} (--only remote prints these alone):\n{remote}---\n# In this cluster, once the driver is \
             installed (--only home). The Secret of the kubeconfig is made by\n# `liqo-csi connect {0} --token-only`, and is \
             no file for GitOps:\n{here}",
            wish.name
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// Connects the two. Every step can be repeated, and whatever a run has left behind is used by the next.
async fn connect(home: &Home, remote: &Remote, way: &ends::Way, wish: &Wish) -> Outcome<ExitCode> {
    let there = home.look(&wish.name).await?;
    let remote_uid = remote.uid().await?;
    home.is_other_than(&remote_uid, &wish.name, &there).await?;
    let fabric = there.has_fabric(wish)?;
    let namespace = match (&wish.remote_namespace, there.namespace()) {
        (Some(asked), _) => asked.clone(),
        (None, Some(known)) => known,
        (None, None) => DEFAULT_NAMESPACE.parse()?,
    };
    let now = remote.look(&namespace, &home.id, wish.token_only).await?;
    let level = wish.level(now.level, fabric)?;
    let identity = Identity {
        listed: wish.listed(level, now.listed.clone())?,
        namespace,
        home: home.id.clone(),
    };
    there.may_be_declared(wish, level)?;
    if !wish.token_only {
        remote.give(level, &identity, &now).await?;
    }
    let token = remote.token(&identity.namespace, wish.lifetime).await?;
    let kubeconfig = way.kubeconfig(
        &identity.namespace,
        &token,
        &remote.authority(&identity.namespace, way).await?,
    )?;
    home.write_secret(&wish.name, &there, &kubeconfig, &remote_uid)
        .await?;
    home.declare(wish, level, &there).await?;
    words::made(
        &format!("{}/{}", home.namespace, there.secret()),
        wish,
        level,
        &identity,
        &token,
    );
    let until = Instant::now() + wish.timeout;
    let reached = wait::until_reached(home, &wish.name, &kubeconfig, way, until).await?;
    let Some(cluster) = reached else {
        return Ok(ExitCode::FAILURE);
    };
    words::rights(level, &identity, &cluster);
    words::next(home, &cluster, wish).await?;
    Ok(ExitCode::SUCCESS)
}

/// The object of a cluster, if it is there.
async fn remote_cluster(home: &Home, name: &ClusterId) -> Outcome<Option<RemoteCluster>> {
    Ok(home.cluster.all::<RemoteCluster>().get(name.as_str()).await?)
}
