//! `liqo-csi offload namespace`: asks for namespaces in remote clusters, and waits for them.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Subcommand, ValueEnum};
use kube::api::ObjectMeta;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{Outcome, common::block_on, process::duration};
use crate::{
    api::namespace_offloading::{ClusterSelector, NAME, NamespaceOffloading, NamespaceOffloadingSpec, READY},
    cluster::{Cluster, Objects},
    offload::{self, MappingStrategy, Phase},
    topology::Term,
};

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Extends namespaces into remote clusters.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Extend namespaces into the remote clusters whose `RemoteCluster` has spec.fabric.
    #[command(visible_aliases = ["ns", "namespaces"])]
    Namespace(NamespaceArgs),
}

#[derive(clap::Args)]
struct NamespaceArgs {
    /// The namespaces.
    #[arg(required = true)]
    names: Vec<String>,
    /// How the namespaces in remote clusters are named. It cannot be changed later.
    #[arg(long, value_enum, default_value = "DefaultName")]
    namespace_mapping_strategy: Strategy,
    /// Their name, with the strategy `SelectedName`.
    #[arg(long)]
    remote_namespace_name: Option<String>,
    /// Labels of the nodes that stand for the clusters to extend into, as in 'region in
    /// (europe,us-west), !staging'; given more than once, one of the selectors is enough
    /// [default: all clusters].
    #[arg(long, short = 'l', value_parser = offload::parse)]
    selector: Vec<Term>,
    /// Print the manifests, and ask no cluster.
    #[arg(long, short, value_enum)]
    output: Option<Manifest>,
    /// How long to wait for the namespaces.
    #[arg(long, default_value = "20s", value_parser = duration)]
    timeout: Duration,
    /// Kubeconfig to use [default: found as kubectl does].
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

/// The strategies, spelt as in the object.
#[derive(Clone, Copy, ValueEnum)]
enum Strategy {
    #[value(name = "DefaultName")]
    Default,
    #[value(name = "EnforceSameName")]
    EnforceSame,
    #[value(name = "SelectedName")]
    Selected,
}

/// How a manifest is written.
#[derive(Clone, Copy, ValueEnum)]
enum Manifest {
    Yaml,
    Json,
}

impl NamespaceArgs {
    fn spec(&self) -> Outcome<NamespaceOffloadingSpec> {
        let strategy = match self.namespace_mapping_strategy {
            Strategy::Default => MappingStrategy::DefaultName,
            Strategy::EnforceSame => MappingStrategy::EnforceSameName,
            Strategy::Selected => MappingStrategy::SelectedName,
        };
        let selected = strategy == MappingStrategy::SelectedName;
        let name = self.remote_namespace_name.clone().filter(|_| selected);
        if selected {
            if self.names.len() > 1 {
                return Err(
                    "several namespaces cannot have one name in a remote cluster: offload them one by one"
                        .into(),
                );
            }
            // What the name is refused for does not depend on this cluster.
            offload::remote_name(strategy, "", name.as_deref(), "")?;
        }
        Ok(NamespaceOffloadingSpec {
            namespace_mapping_strategy: strategy,
            remote_namespace_name: name,
            cluster_selector: ClusterSelector::of(&self.selector),
            ..NamespaceOffloadingSpec::default()
        })
    }
}

pub(super) fn run(args: Args) -> Outcome<ExitCode> {
    let What::Namespace(args) = args.what;
    let spec = args.spec()?;
    if let Some(form) = args.output {
        print!("{}", manifests(&args.names, &spec, form)?);
        return Ok(ExitCode::SUCCESS);
    }
    block_on(offload(args, spec))
}

fn object(namespace: &str, spec: &NamespaceOffloadingSpec) -> NamespaceOffloading {
    let mut object = NamespaceOffloading::new(NAME, spec.clone());
    object.metadata = ObjectMeta {
        namespace: Some(namespace.to_owned()),
        ..object.metadata
    };
    object
}

fn manifests(names: &[String], spec: &NamespaceOffloadingSpec, form: Manifest) -> Outcome<String> {
    let objects = names.iter().map(|name| object(name, spec));
    let texts: Outcome<Vec<String>> = objects
        .map(|object| {
            Ok(match form {
                Manifest::Yaml => serde_saphyr::to_string(&object)?,
                Manifest::Json => format!("{:#}\n", json!(object)),
            })
        })
        .collect();
    Ok(texts?.join(match form {
        Manifest::Yaml => "---\n",
        Manifest::Json => "",
    }))
}

async fn offload(args: NamespaceArgs, spec: NamespaceOffloadingSpec) -> Outcome<ExitCode> {
    let cluster = Cluster::visit(args.kubeconfig.as_deref(), CALL_TIMEOUT).await?;
    let mut asked = Vec::new();
    for name in &args.names {
        asked.push(ask(&cluster, name, &spec).await?);
    }
    let until = Instant::now() + args.timeout;
    let mut all_well = true;
    for (name, generation) in args.names.iter().zip(asked) {
        all_well &= follow(&cluster, name, generation, until).await?;
    }
    Ok(if all_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Makes the object, or gives the one that is there another selector; its generation.
async fn ask(cluster: &Cluster, namespace: &str, spec: &NamespaceOffloadingSpec) -> Outcome<Option<i64>> {
    let all: Objects<NamespaceOffloading> = cluster.within(namespace);
    if let Some(made) = all.create(&object(namespace, spec)).await? {
        return Ok(made.metadata.generation);
    }
    let Some(there) = all.get(NAME).await? else {
        return Err(format!("{namespace}: its NamespaceOffloading was deleted just now: try again").into());
    };
    let name = |spec: &NamespaceOffloadingSpec| spec.remote_namespace_name.clone().unwrap_or_default();
    if there.is_leaving() {
        return Err(format!("{namespace}: it is being unoffloaded: try again when that has ended").into());
    }
    if there.spec.namespace_mapping_strategy != spec.namespace_mapping_strategy
        || name(&there.spec) != name(spec)
    {
        return Err(format!(
            "{namespace}: it is offloaded under another name already ({:?}), which cannot be changed: unoffload it first",
            there.spec.namespace_mapping_strategy
        )
        .into());
    }
    let patch = json!({
        "metadata": {"uid": there.metadata.uid},
        "spec": {"clusterSelector": {"nodeSelectorTerms": spec.cluster_selector.node_selector_terms}},
    });
    let changed = all.merge(NAME, &patch).await?;
    Ok(changed.and_then(|it| it.metadata.generation))
}

/// Waits until it is known what became of a namespace; whether that is well.
async fn follow(
    cluster: &Cluster,
    namespace: &str,
    generation: Option<i64>,
    until: Instant,
) -> Outcome<bool> {
    let all: Objects<NamespaceOffloading> = cluster.within(namespace);
    loop {
        let object = all
            .get(NAME)
            .await?
            .unwrap_or_else(|| object(namespace, &NamespaceOffloadingSpec::default()));
        let status = object.status.clone().unwrap_or_default();
        let is_current = status.observed_generation >= generation;
        let phase = status.offloading_phase.filter(|_| is_current);
        let is_over = Instant::now() >= until;
        match phase {
            Some(Phase::Ready) => {
                let name = status.remote_namespace_name.unwrap_or_default();
                println!(
                    "{namespace}: offloaded as {name} to {}",
                    ready_in(&object).join(", ")
                );
                return Ok(true);
            }
            Some(Phase::NoClusterSelected) => {
                println!("{namespace}: offloaded, but no cluster is selected");
                print_trouble(&object);
                return Ok(true);
            }
            Some(phase @ (Phase::SomeFailed | Phase::AllFailed)) => {
                eprintln!("{namespace}: {phase}");
                print_trouble(&object);
                return Ok(false);
            }
            _ if is_over => {
                let phase = phase.map_or_else(
                    || {
                        "nobody has seen to it yet: does liqo-csi fabric run (fabric.enabled of the chart)?"
                            .to_owned()
                    },
                    |phase| phase.to_string(),
                );
                eprintln!("{namespace}: not offloaded in time: {phase}");
                print_trouble(&object);
                return Ok(false);
            }
            _ => sleep(LOOK_AGAIN).await,
        }
    }
}

fn ready_in(object: &NamespaceOffloading) -> Vec<String> {
    let conditions = object
        .status
        .iter()
        .flat_map(|it| it.remote_namespaces_conditions.keys());
    conditions
        .filter(|id| object.condition(id, READY).is_some_and(|it| it.status == "True"))
        .cloned()
        .collect()
}

/// What the clusters say in which the namespace is not there, or not gone.
pub(super) fn print_trouble(object: &NamespaceOffloading) {
    let status = object.status.iter();
    for (cluster, conditions) in status.flat_map(|it| &it.remote_namespaces_conditions) {
        if let Some(said) = conditions.iter().rev().find(|it| it.status != "True") {
            eprintln!("  {cluster}: {}: {}", said.reason, said.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(strategy: Strategy, name: Option<&str>, namespaces: &[&str]) -> Outcome<NamespaceOffloadingSpec> {
        NamespaceArgs {
            names: namespaces.iter().map(|&it| it.to_owned()).collect(),
            namespace_mapping_strategy: strategy,
            remote_namespace_name: name.map(str::to_owned),
            selector: vec![offload::parse("region in (europe), !staging").unwrap()],
            output: None,
            timeout: Duration::ZERO,
            kubeconfig: None,
        }
        .spec()
    }

    #[test]
    fn the_manifest_is_the_object_that_would_be_made() {
        let spec = spec(Strategy::Default, Some("ignored"), &["foo", "bar"]).unwrap();
        let names = ["foo".to_owned(), "bar".to_owned()];
        let yaml = manifests(&names, &spec, Manifest::Yaml).unwrap();
        let documents: Vec<&str> = yaml.split("---\n").collect();
        assert_eq!(documents.len(), 2);
        let read: NamespaceOffloading = serde_saphyr::from_str(documents[0]).unwrap();
        assert_eq!(read, object("foo", &spec));
        assert_eq!(read.spec.remote_namespace_name, None, "it is not asked for");
        let json = manifests(&names[..1], &spec, Manifest::Json).unwrap();
        assert_eq!(serde_json::from_str::<NamespaceOffloading>(&json).unwrap(), read);
    }

    #[test]
    fn a_name_that_cannot_be_is_refused_before_anything_is_asked() {
        assert!(spec(Strategy::Selected, None, &["foo"]).is_err());
        assert!(spec(Strategy::Selected, Some("kube-system"), &["foo"]).is_err());
        assert!(spec(Strategy::Selected, Some("bar"), &["foo", "baz"]).is_err());
        let named = spec(Strategy::Selected, Some("bar"), &["foo"]).unwrap();
        assert_eq!(named.remote_namespace_name.as_deref(), Some("bar"));
    }
}
