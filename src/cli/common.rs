//! What the commands for people have in common: how they find the cluster, and
//! in which form they answer.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::ValueEnum;
use k8s_openapi::api::core::v1::Namespace;
use kube::{ResourceExt, config::KubeConfigOptions};
use serde::Serialize;

use super::Outcome;
use crate::{cluster::Cluster, inspect::Setup, volume::ClusterId};

/// A page of a large cluster takes a while.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub(super) struct CommonArgs {
    /// How to answer.
    #[arg(long, short, value_enum, default_value = "table")]
    pub(super) output: Format,
    /// Kubeconfig to use [default: found as kubectl does].
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the twins [default: what the controller was told].
    #[arg(long)]
    storage_namespace: Option<String>,
    /// Id of the cluster [default: what the controller was told, or the uid of the namespace kube-system].
    #[arg(long)]
    cluster_id: Option<ClusterId>,
}

/// Which cluster it is about, told as kubectl is.
#[derive(clap::Args, Default)]
pub(super) struct ClusterArgs {
    /// Kubeconfig to use [default: found as kubectl does].
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one].
    #[arg(long)]
    context: Option<String>,
    /// Cluster of the kubeconfig [default: that of the context].
    #[arg(long)]
    cluster: Option<String>,
    /// User of the kubeconfig [default: that of the context].
    #[arg(long)]
    user: Option<String>,
}

impl ClusterArgs {
    /// The cluster, to look around in.
    pub(super) async fn visit(&self) -> Outcome<Cluster> {
        let entry = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        Ok(Cluster::visit_as(self.kubeconfig.as_deref(), &entry, CALL_TIMEOUT).await?)
    }
}

/// The namespaces with these labels, as kubectl's `-l` selects; an error if there are none.
pub(super) async fn namespaces(cluster: &Cluster, labels: &str) -> Outcome<Vec<String>> {
    let found = cluster.all::<Namespace>().list(Some(labels)).await?;
    if found.is_empty() {
        return Err(format!("no namespace has the labels {labels}").into());
    }
    Ok(found.iter().map(ResourceExt::name_any).collect())
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Where to look, and what is known beforehand.
pub(super) struct Place {
    pub(super) cluster: Cluster,
    pub(super) setup: Setup,
    pub(super) storage_namespace: String,
    pub(super) id: Option<ClusterId>,
}

impl CommonArgs {
    /// Finds the cluster and how the driver was deployed there.
    pub(super) async fn find(&self) -> Outcome<Place> {
        find(
            self.kubeconfig.as_deref(),
            self.storage_namespace.as_deref(),
            self.cluster_id.clone(),
        )
        .await
    }
}

/// Finds the cluster and how the driver was deployed there; what is told wins.
pub(super) async fn find(
    kubeconfig: Option<&Path>,
    storage_namespace: Option<&str>,
    id: Option<ClusterId>,
) -> Outcome<Place> {
    let cluster = Cluster::visit(kubeconfig, CALL_TIMEOUT).await?;
    Ok(place(cluster, storage_namespace, id).await)
}

/// Finds how the driver was deployed in the cluster; what is told wins.
pub(super) async fn place(cluster: Cluster, storage_namespace: Option<&str>, id: Option<ClusterId>) -> Place {
    let setup = Setup::read(&cluster).await;
    Place {
        cluster,
        storage_namespace: storage_namespace.map_or_else(|| setup.storage_namespace(), str::to_owned),
        id: id.or_else(|| setup.cluster_id()),
        setup,
    }
}

/// Runs a command that waits for nothing but answers.
pub(super) fn block_on<T>(common: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(common)
}

/// Prints JSON, with a version that changes when a field changes its meaning.
pub(super) fn print_json<T: Serialize>(kind: &str, objects: &[T], unknown: &[String]) -> Outcome {
    print_json_of([(kind, serde_json::to_value(objects)?)], unknown);
    Ok(())
}

/// Prints JSON as `print_json` does, of several kinds of objects.
pub(super) fn print_json_of<const KINDS: usize>(
    kinds: [(&str, serde_json::Value); KINDS],
    unknown: &[String],
) {
    let mut answer = serde_json::json!({"version": 1, "unknown": unknown});
    for (kind, objects) in kinds {
        answer[kind] = objects;
    }
    println!("{answer:#}");
}

/// Says on stderr what could not be read.
pub(super) fn print_unknown(unknown: &[String]) {
    for what in unknown {
        eprintln!("not known: {what}");
    }
}
