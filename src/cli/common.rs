//! What the commands for users have in common: how they find the cluster, and in which format they
//! print.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use k8s_openapi::api::core::v1::Namespace;
use kube::{ResourceExt, config::KubeConfigOptions};
use serde::Serialize;

use super::Outcome;
use crate::{
    cluster::Cluster,
    inspect::{Setup, home_id},
    volume::{ClaimName, ClusterId},
};

/// A page of a large cluster takes a while.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub(super) struct CommonArgs {
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    pub(super) output: Format,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Namespace of the twins [default: as configured in the controller].
    #[arg(long)]
    storage_namespace: Option<String>,
    /// Id of the cluster [default: as configured in the controller, or the uid of the namespace kube-system].
    #[arg(long)]
    cluster_id: Option<ClusterId>,
}

/// The options that select a cluster, named as kubectl's.
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
    /// A client of the cluster, with the user's rights.
    pub(super) async fn client(&self) -> Outcome<Cluster> {
        let entry = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        Ok(Cluster::connect_unwatched_as(self.kubeconfig.as_deref(), &entry, CALL_TIMEOUT).await?)
    }
}

/// A claim, snapshot or move.
#[derive(clap::Args)]
pub(super) struct ObjectArgs {
    /// The claim, snapshot or move: its name, or NAMESPACE/NAME.
    name: String,
    /// Its namespace [default: that of the kubeconfig's context].
    #[arg(long, short)]
    namespace: Option<String>,
}

impl ObjectArgs {
    /// Its name, and its namespace or else that of the client.
    pub(super) fn find(&self, cluster: &Cluster) -> Outcome<ClaimName> {
        self.within(cluster.client().default_namespace())
    }

    pub(super) fn within(&self, current: &str) -> Outcome<ClaimName> {
        let (own, name) = match self.name.split_once('/') {
            Some((own, name)) => (Some(own), name),
            None => (None, self.name.as_str()),
        };
        match (own, self.namespace.as_deref()) {
            (Some(own), Some(given)) if own != given => Err(format!(
                "{} is not in the namespace {given}: use NAMESPACE/NAME or --namespace, not both",
                self.name
            )
            .into()),
            (own, given) => Ok(format!("{}/{name}", own.or(given).unwrap_or(current)).parse()?),
        }
    }
}

/// The namespaces with these labels, as kubectl's `-l` selects; an error if there are none.
pub(super) async fn namespaces(cluster: &Cluster, labels: &str) -> Outcome<Vec<String>> {
    // For the API server it would select all, and scripts pass it when a variable is not set.
    if labels.trim().is_empty() {
        return Err("--ns-selector is empty, which would select all namespaces".into());
    }
    let found = cluster.all::<Namespace>().list(Some(labels)).await?;
    if found.is_empty() {
        return Err(format!("no namespace has the labels {labels}").into());
    }
    Ok(found.iter().map(ResourceExt::name_any).collect())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For users.
    Table,
    /// For programs.
    Json,
}

/// A cluster, and how the driver is deployed there.
pub(super) struct Place {
    pub(super) cluster: Cluster,
    pub(super) setup: Setup,
    /// The namespace of the twins; `None` if it is unknown.
    pub(super) storage_namespace: Option<String>,
    /// The id of the cluster; `None` if it is unknown.
    pub(super) id: Option<ClusterId>,
}

impl Place {
    /// The id of the cluster, for commands that record it.
    pub(super) fn home(&self) -> Outcome<ClusterId> {
        let known = self.id.clone();
        Ok(known.ok_or(
            "the id of this cluster is unknown: the Deployment of the driver or the namespace kube-system cannot be read; pass \
             --cluster-id",
        )?)
    }

    /// The namespace of the twins, for commands that write there.
    pub(super) fn twins(&self) -> Outcome<&str> {
        self.storage_namespace.as_deref().ok_or_else(|| {
            let why = self.setup.unknown().unwrap_or_default();
            format!("the namespace of the twins is unknown: {why}; pass --storage-namespace").into()
        })
    }
}

impl CommonArgs {
    /// Connects to the cluster and reads how the driver is deployed there.
    pub(super) async fn find(&self) -> Outcome<Place> {
        find(
            &self.cluster,
            self.storage_namespace.as_deref(),
            self.cluster_id.clone(),
        )
        .await
    }
}

/// Connects to the cluster and reads how the driver is deployed there; options take precedence.
pub(super) async fn find(
    cluster: &ClusterArgs,
    storage_namespace: Option<&str>,
    id: Option<ClusterId>,
) -> Outcome<Place> {
    Ok(place(cluster.client().await?, storage_namespace, id).await)
}

/// Reads how the driver is deployed in the cluster; options take precedence.
pub(super) async fn place(cluster: Cluster, storage_namespace: Option<&str>, id: Option<ClusterId>) -> Place {
    let setup = Setup::read(&cluster).await;
    let id = match id.or_else(|| setup.cluster_id()) {
        // Without the Deployment, the cluster may have another id than its default one.
        None if setup.unknown().is_none() => home_id(&cluster).await,
        known => known,
    };
    Place {
        cluster,
        storage_namespace: storage_namespace
            .map(str::to_owned)
            .or_else(|| setup.storage_namespace()),
        id,
        setup,
    }
}

/// Runs a command on one thread: it only waits for answers.
pub(super) fn block_on<T>(common: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(common)
}

/// Prints JSON, with a version that changes when the meaning of a field changes.
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

/// Prints to stderr what could not be read.
pub(super) fn print_unknown(unknown: &[String]) {
    for what in unknown {
        eprintln!("unknown: {what}");
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::FakeApi;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        object: ObjectArgs,
    }

    fn named(line: &[&str]) -> Outcome<String> {
        let args = ["import"].iter().chain(line);
        let found = Line::try_parse_from(args)?.object.within("current")?;
        Ok(found.to_string())
    }

    #[test]
    fn the_namespace_is_part_of_the_name_or_an_option_or_that_of_the_context() {
        for (line, expected) in [
            (&["data"][..], "current/data"),
            (&["data", "-n", "shop"], "shop/data"),
            (&["--namespace=shop", "data"], "shop/data"),
            (&["shop/data"], "shop/data"),
            (&["shop/data", "-n", "shop"], "shop/data"),
        ] {
            assert_eq!(named(line).unwrap(), expected, "{line:?}");
        }
        for line in [
            &["shop/data", "-n", "other"][..],
            &["shop/data/more"],
            &["/data"],
            &["shop/"],
            &[""],
            &["data", "-n", ""],
            &["data", "-n", "a/b"],
        ] {
            assert!(named(line).is_err(), "{line:?}");
        }
        let refused = named(&["shop/data", "-n", "other"]).unwrap_err().to_string();
        assert!(
            refused.starts_with("shop/data is not in the namespace other"),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn an_empty_selector_selects_no_namespace() {
        let api = FakeApi::start().await;
        let cluster = api.cluster_unwatched().await;
        for (name, team) in [("shop", "a"), ("lab", "b")] {
            let object = json!({"metadata": {"labels": {"team": team}}});
            api.put(&format!("/api/v1/namespaces/{name}"), object);
        }
        for empty in ["", " "] {
            assert!(namespaces(&cluster, empty).await.is_err());
        }
        assert_eq!(namespaces(&cluster, "team=a").await.unwrap(), ["shop"]);
    }
}
