//! `liqo-csi offload namespace`: creates `NamespaceOffloadings`, and waits for the namespaces in remote
//! clusters.

mod admission;
mod older;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::Duration,
};

use clap::{Subcommand, ValueEnum};
use k8s_openapi::api::{core::v1::Namespace, networking::v1::NetworkPolicy, policy::v1::PodDisruptionBudget};
use kube::{ResourceExt, api::ObjectMeta};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    Outcome,
    common::{ClusterArgs, block_on, namespaces},
    process::duration,
};
use crate::{
    api::namespace_offloading::{
        ClusterSelector, NAME, NamespaceOffloading, NamespaceOffloadingSpec, PodOffloadingStrategy, READY,
    },
    cluster::{Cause, Cluster, Objects},
    inspect::why_not_offloaded,
    offload::{self, MappingStrategy, Phase},
    topology::Term,
};

const POLL_INTERVAL: Duration = Duration::from_millis(500);
const DELETED: &str = "its NamespaceOffloading was deleted just now: try again";

const EXAMPLES: &str = "\
Examples:
  liqo-csi offload namespace shop
  liqo-csi offload namespace shop --create-namespace
  liqo-csi offload namespace shop --pod-offloading-strategy Remote -l 'region in (europe,us-west), !staging'
  liqo-csi offload namespace shop -o yaml > offloading.yaml";

/// Extends namespaces into remote clusters.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Extend namespaces into the remote clusters whose `RemoteCluster` has spec.fabric.
    #[command(visible_aliases = ["ns", "namespaces"], after_help = EXAMPLES)]
    Namespace(NamespaceArgs),
}

#[derive(clap::Args)]
struct NamespaceArgs {
    /// The namespaces.
    #[arg(required_unless_present = "ns_selector")]
    names: Vec<String>,
    /// Labels of the namespaces, instead of their names.
    #[arg(long, conflicts_with_all = ["names", "output"])]
    ns_selector: Option<String>,
    /// Create the namespaces that do not exist.
    #[arg(long, conflicts_with_all = ["ns_selector", "output"])]
    create_namespace: bool,
    /// How the namespaces in remote clusters are named. It cannot be changed later.
    #[arg(long, value_enum, default_value = "DefaultName")]
    namespace_mapping_strategy: Strategy,
    /// Their name, with the strategy `SelectedName`.
    #[arg(long)]
    remote_namespace_name: Option<String>,
    /// Where new pods of the namespaces run. Existing pods are not evicted.
    #[arg(long, value_enum, default_value = "LocalAndRemote")]
    pod_offloading_strategy: Pods,
    /// Labels of the virtual nodes of the clusters to extend into, as in 'region in (europe,us-west),
    /// !staging'; given more than once, one of the selectors is enough [default: all clusters].
    #[arg(long, short = 'l', value_parser = offload::parse)]
    selector: Vec<Term>,
    /// Print the manifests, without connecting to a cluster.
    #[arg(long, short, value_enum)]
    output: Option<Manifest>,
    /// How long to wait for the namespaces.
    #[arg(long, default_value = "20s", value_parser = duration)]
    timeout: Duration,
    /// Labels for the `NamespaceOffloading`s, as in team=a,tier=b.
    #[arg(long, value_delimiter = ',', value_parser = pair)]
    global_labels: Vec<(String, String)>,
    /// Annotations for them.
    #[arg(long, value_delimiter = ',', value_parser = pair)]
    global_annotations: Vec<(String, String)>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// `key=value`.
fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

/// The strategies for pods, spelt as in the object.
#[derive(Clone, Copy, ValueEnum)]
enum Pods {
    /// Here or in remote clusters, as the scheduler decides.
    #[value(name = "LocalAndRemote")]
    LocalAndRemote,
    /// Here, except those of the `RuntimeClass` liqo.
    #[value(name = "Local")]
    Local,
    /// In remote clusters.
    #[value(name = "Remote")]
    Remote,
}

/// The naming strategies, spelt as in the object.
#[derive(Clone, Copy, ValueEnum)]
enum Strategy {
    #[value(name = "DefaultName")]
    Default,
    #[value(name = "EnforceSameName")]
    EnforceSame,
    #[value(name = "SelectedName")]
    Selected,
}

/// The format of the manifests.
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
            if self.names.len() > 1 || self.ns_selector.is_some() {
                return Err(
                    "several namespaces cannot have the same name in a remote cluster: offload them one by one"
                        .into(),
                );
            }
            match offload::remote_name(strategy, "", name.as_deref(), "") {
                // Which names belong to other namespaces depends on this cluster; the fabric reports that.
                Ok(_) | Err(offload::NameRefused::OfAnother(_)) => {}
                Err(refused) => return Err(refused.into()),
            }
        }
        Ok(NamespaceOffloadingSpec {
            namespace_mapping_strategy: strategy,
            remote_namespace_name: name,
            cluster_selector: ClusterSelector::of(&self.selector),
            pod_offloading_strategy: match self.pod_offloading_strategy {
                Pods::LocalAndRemote => PodOffloadingStrategy::LocalAndRemote,
                Pods::Local => PodOffloadingStrategy::Local,
                Pods::Remote => PodOffloadingStrategy::Remote,
            },
        })
    }

    /// The desired `NamespaceOffloadings`.
    fn desired(&self) -> Outcome<Desired> {
        let pairs = |all: &[(String, String)]| all.iter().cloned().collect();
        Ok(Desired {
            spec: self.spec()?,
            labels: pairs(&self.global_labels),
            annotations: pairs(&self.global_annotations),
        })
    }
}

/// The desired spec and metadata of each `NamespaceOffloading`.
#[derive(Default)]
struct Desired {
    spec: NamespaceOffloadingSpec,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

impl Desired {
    fn object(&self, namespace: &str) -> NamespaceOffloading {
        let mut object = NamespaceOffloading::new(NAME, self.spec.clone());
        let some = |all: &BTreeMap<String, String>| (!all.is_empty()).then(|| all.clone());
        object.metadata = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            labels: some(&self.labels),
            annotations: some(&self.annotations),
            ..object.metadata
        };
        object
    }
}

pub(super) fn run(args: Args) -> Outcome<ExitCode> {
    let Action::Namespace(args) = args.what;
    // The policy of the cluster may exclude further namespaces.
    let mut never = args.names.iter();
    if let Some(why) = never.find_map(|name| offload::never_offloaded(name, &BTreeSet::new())) {
        return Err(why.into());
    }
    let desired = args.desired()?;
    if let Some(form) = args.output {
        print!("{}", manifests(&args.names, &desired, form)?);
        return Ok(ExitCode::SUCCESS);
    }
    block_on(offload(args, desired))
}

fn manifests(names: &[String], desired: &Desired, form: Manifest) -> Outcome<String> {
    let objects = names.iter().map(|name| desired.object(name));
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

async fn offload(args: NamespaceArgs, desired: Desired) -> Outcome<ExitCode> {
    let cluster = args.cluster.client().await?;
    let names = match &args.ns_selector {
        Some(labels) => namespaces(&cluster, labels).await?,
        None => args.names,
    };
    if args.create_namespace {
        create_missing(&cluster, &names).await?;
    }
    carry_out(&cluster, &names, &desired, args.timeout).await
}

async fn carry_out(
    cluster: &Cluster,
    names: &[String],
    desired: &Desired,
    timeout: Duration,
) -> Outcome<ExitCode> {
    let (mut asked, mut all_well) = (Vec::new(), true);
    for name in names {
        match create_or_update(cluster, name, desired).await {
            Ok(generation) => asked.push((name, generation)),
            // A selector may match more than intended: the other namespaces are offloaded all the same.
            Err(error) if names.len() > 1 => {
                eprintln!("{name}: {error}");
                all_well = false;
            }
            Err(error) => return Err(format!("{name}: {error}").into()),
        }
    }
    let until = Instant::now() + timeout;
    for (name, generation) in asked {
        let is_offloaded = match follow(cluster, name, generation, until).await {
            Ok(is_offloaded) => is_offloaded,
            Err(error) => {
                eprintln!("{name}: {error}");
                all_well = false;
                continue;
            }
        };
        all_well &= is_offloaded;
        if is_offloaded && let Some(refusal) = admission::wait(cluster, name).await {
            eprintln!("{name}: pods are still refused, try again later: {refusal}");
        }
        older::print(cluster, name, desired.spec.pod_offloading_strategy).await;
        for text in unprotected(cluster, name).await {
            println!("{name}: {text}");
        }
    }
    Ok(if all_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn create_missing(cluster: &Cluster, namespaces: &[String]) -> Outcome<()> {
    let all = cluster.all::<Namespace>();
    for name in namespaces {
        // A user who may not create namespaces can still name one that exists.
        if all.get(name).await?.is_some() {
            continue;
        }
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.clone());
        if all.create(&namespace).await?.is_some() {
            println!("{name}: created");
        }
    }
    Ok(())
}

/// Creates the object, or updates the mutable fields of the existing one; its generation.
async fn create_or_update(cluster: &Cluster, namespace: &str, desired: &Desired) -> Outcome<Option<i64>> {
    let all: Objects<NamespaceOffloading> = cluster.within(namespace);
    match all.create(&desired.object(namespace)).await {
        Ok(Some(made)) => return Ok(made.metadata.generation),
        Ok(None) => {}
        Err(error) if matches!(error.cause, Cause::NotFound(_)) => {
            return Err(match cluster.all::<Namespace>().get(namespace).await {
                Ok(None) => "there is no such namespace: create it, or add --create-namespace".into(),
                Ok(Some(_)) => "this cluster does not have the kind NamespaceOffloading: set fabric.enabled=true in the chart of the driver"
                    .into(),
                Err(_) => error.into(),
            });
        }
        Err(error) => return Err(error.into()),
    }
    let Some(there) = all.get(NAME).await? else {
        return Err(DELETED.into());
    };
    let spec = &desired.spec;
    // With the other strategies the name has no effect, and manifests of Liqo may have one.
    let name = |spec: &NamespaceOffloadingSpec| {
        let selected = spec.namespace_mapping_strategy == MappingStrategy::SelectedName;
        spec.remote_namespace_name.clone().filter(|_| selected)
    };
    if there.is_leaving() {
        return Err("it is being unoffloaded: try again afterwards".into());
    }
    if there.spec.namespace_mapping_strategy != spec.namespace_mapping_strategy
        || name(&there.spec) != name(spec)
    {
        return Err(format!(
            "it is offloaded under another name already ({:?}), which cannot be changed: unoffload it first",
            there.spec.namespace_mapping_strategy
        )
        .into());
    }
    let patch = json!({
        "metadata": {"uid": there.metadata.uid, "labels": desired.labels, "annotations": desired.annotations},
        "spec": {
            "clusterSelector": {"nodeSelectorTerms": spec.cluster_selector.node_selector_terms},
            "podOffloadingStrategy": spec.pod_offloading_strategy,
        },
    });
    let changed = all.merge(NAME, &patch).await?;
    Ok(changed.ok_or(DELETED)?.metadata.generation)
}

/// Waits for the result of an offloading; whether it has succeeded.
async fn follow(
    cluster: &Cluster,
    namespace: &str,
    generation: Option<i64>,
    until: Instant,
) -> Outcome<bool> {
    let all: Objects<NamespaceOffloading> = cluster.within(namespace);
    loop {
        let object = all.get(NAME).await?.ok_or(DELETED)?;
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
                print_not_ready(&object);
                return Ok(true);
            }
            Some(phase @ (Phase::SomeFailed | Phase::AllFailed)) => {
                eprintln!("{namespace}: {phase}");
                print_not_ready(&object);
                return Ok(false);
            }
            _ if is_over => {
                let phase = match phase {
                    Some(phase) => phase.to_string(),
                    None => why_not_offloaded(cluster).await,
                };
                eprintln!("{namespace}: not offloaded in time: {phase}");
                print_not_ready(&object);
                return Ok(false);
            }
            _ => sleep(POLL_INTERVAL).await,
        }
    }
}

/// What protects the pods of a namespace here and not in remote clusters.
async fn unprotected(cluster: &Cluster, namespace: &str) -> Vec<String> {
    let policies = cluster.within::<NetworkPolicy>(namespace);
    let policies = policies.pick(None, None, |it| Some(it.name_any())).await;
    let budgets = cluster.within::<PodDisruptionBudget>(namespace);
    let budgets = budgets.pick(None, None, |it| Some(it.name_any())).await;
    let all = [
        (
            "NetworkPolicies",
            policies,
            "protect no pods in remote clusters, nor do policies of other kinds, such as CiliumNetworkPolicies. Apply them there too, in the namespace that has these pods, or keep the \
             pods in this cluster",
        ),
        (
            "PodDisruptionBudgets",
            budgets,
            "do not count when nodes there are drained. Create them there too, in the namespace that has these pods, with a \
             number as minAvailable",
        ),
    ];
    let all = all.into_iter().filter_map(|(kind, found, what)| match found {
        Ok(none) if none.is_empty() => None,
        Ok(names) => Some(format!("{kind} are not copied: {} {what}", names.join(", "))),
        Err(error) => Some(format!(
            "{kind} are not copied, and whether the namespace has any is unknown: {error}"
        )),
    });
    all.collect()
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

/// Prints the conditions of the clusters in which the namespace is not ready.
fn print_not_ready(object: &NamespaceOffloading) {
    for line in not_ready(object) {
        eprintln!("  {line}");
    }
}

/// The conditions of the clusters in which the namespace is not ready, or not deleted.
pub(super) fn not_ready(object: &NamespaceOffloading) -> Vec<String> {
    let status = object.status.iter();
    let clusters = status.flat_map(|it| &it.remote_namespaces_conditions);
    let waiting = clusters.filter_map(|(cluster, conditions)| {
        let condition = conditions.iter().rev().find(|it| it.status != "True")?;
        Some(format!("{cluster}: {}: {}", condition.reason, condition.message))
    });
    waiting.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{Act, FakeApi, Fault};

    const OFFLOADING: &str =
        "/apis/offloading.liqo.io/v1beta1/namespaces/shop/namespaceoffloadings/offloading";

    fn desired(strategy: Strategy, name: Option<&str>, namespaces: &[&str]) -> Outcome<Desired> {
        NamespaceArgs {
            names: namespaces.iter().map(|&it| it.to_owned()).collect(),
            ns_selector: namespaces.is_empty().then(|| "team=a".to_owned()),
            create_namespace: false,
            namespace_mapping_strategy: strategy,
            remote_namespace_name: name.map(str::to_owned),
            pod_offloading_strategy: Pods::Remote,
            selector: vec![offload::parse("region in (europe), !staging").unwrap()],
            output: None,
            timeout: Duration::ZERO,
            global_labels: vec![pair("team=a").unwrap()],
            global_annotations: Vec::new(),
            cluster: ClusterArgs::default(),
        }
        .desired()
    }

    #[test]
    fn the_manifest_is_the_object_that_would_be_made() {
        let desired = desired(Strategy::Default, Some("ignored"), &["foo", "bar"]).unwrap();
        let names = ["foo".to_owned(), "bar".to_owned()];
        let yaml = manifests(&names, &desired, Manifest::Yaml).unwrap();
        let documents: Vec<&str> = yaml.split("---\n").collect();
        assert_eq!(documents.len(), 2);
        let read: NamespaceOffloading = serde_saphyr::from_str(documents[0]).unwrap();
        assert_eq!(read, desired.object("foo"));
        assert_eq!(read.spec.remote_namespace_name, None, "it is not asked for");
        assert_eq!(read.spec.pod_offloading_strategy, PodOffloadingStrategy::Remote);
        assert_eq!(read.metadata.labels.as_ref().unwrap()["team"], "a");
        let json = manifests(&names[..1], &desired, Manifest::Json).unwrap();
        assert_eq!(serde_json::from_str::<NamespaceOffloading>(&json).unwrap(), read);
    }

    #[tokio::test]
    async fn policies_that_are_not_copied_are_named() {
        let api = FakeApi::start().await;
        let cluster = api.cluster_unwatched().await;
        assert!(unprotected(&cluster, "shop").await.is_empty());
        for path in [
            "networking.k8s.io/v1/namespaces/shop/networkpolicies/deny-all",
            "policy/v1/namespaces/shop/poddisruptionbudgets/db",
        ] {
            api.put(&format!("/apis/{path}"), json!({"spec": {}}));
        }
        let said = unprotected(&cluster, "shop").await;
        assert!(
            said.len() == 2 && said[0].contains("deny-all") && said[1].contains("db"),
            "{said:?}"
        );
    }

    #[tokio::test]
    async fn namespaces_that_do_not_exist_are_created() {
        let api = FakeApi::start().await;
        let cluster = api.cluster_unwatched().await;
        api.put(
            "/api/v1/namespaces/shop",
            json!({"metadata": {"labels": {"team": "a"}}}),
        );
        create_missing(&cluster, &["shop".to_owned(), "lab".to_owned()])
            .await
            .unwrap();
        assert_eq!(
            api.object("/api/v1/namespaces/shop").unwrap()["metadata"]["labels"]["team"],
            "a"
        );
        assert!(api.object("/api/v1/namespaces/lab").is_some());
    }

    #[tokio::test]
    async fn what_is_missing_is_named() {
        let api = FakeApi::start().await;
        let cluster = api.cluster_unwatched().await;
        api.put("/api/v1/namespaces/shop", json!({}));
        api.fault(Fault::new("POST", "namespaceoffloadings", Act::Refuse(404)));
        for (namespace, word) in [("lab", "--create-namespace"), ("shop", "fabric.enabled")] {
            let missing = create_or_update(&cluster, namespace, &Desired::default()).await;
            let missing = missing.unwrap_err().to_string();
            assert!(missing.contains(word), "{namespace}: {missing}");
        }
    }

    #[tokio::test]
    async fn pods_that_the_user_may_not_read_are_no_failure() {
        let api = FakeApi::start().await;
        let names = ["lab".to_owned(), "shop".to_owned()];
        for name in &names {
            let status = json!({"offloadingPhase": "Ready"});
            let object = json!({"spec": {"podOffloadingStrategy": "Local"}, "status": status});
            api.put(&OFFLOADING.replace("shop", name), object);
        }
        api.fault(Fault::new("GET", "/pods", Act::Refuse(403)));
        let cluster = api.cluster_unwatched().await;
        let run = async || {
            let outcome = carry_out(&cluster, &names, &Desired::default(), Duration::ZERO).await;
            let shop = api.object(OFFLOADING).unwrap();
            (outcome.unwrap(), shop["spec"]["podOffloadingStrategy"].clone())
        };
        assert_eq!(run().await, (ExitCode::SUCCESS, json!("LocalAndRemote")));
        // Deleted while the command waits.
        let lab = OFFLOADING.replace("shop", "lab");
        api.before("GET", &lab, |_| {});
        api.before("GET", &lab.clone(), move |store| store.remove(&lab));
        assert_eq!(run().await.0, ExitCode::FAILURE);
    }

    #[tokio::test]
    async fn an_offloading_that_others_delete_is_an_error() {
        let api = FakeApi::start().await;
        let cluster = api.cluster_unwatched().await;
        let far = Instant::now() + Duration::from_hours(1);
        let why = follow(&cluster, "shop", None, far).await.unwrap_err();
        assert_eq!(why.to_string(), DELETED);
    }

    /// With these strategies it has no effect.
    #[tokio::test]
    async fn a_remote_name_is_compared_only_if_it_was_selected() {
        for (strategy, can_change) in [
            ("DefaultName", true),
            ("EnforceSameName", false),
            ("SelectedName", false),
        ] {
            let api = FakeApi::start().await;
            let spec = json!({"namespaceMappingStrategy": strategy, "remoteNamespaceName": "left"});
            api.put(OFFLOADING, json!({"spec": spec}));
            let cluster = api.cluster_unwatched().await;
            let changed = create_or_update(&cluster, "shop", &Desired::default()).await;
            assert_eq!(changed.is_ok(), can_change, "{strategy}: {changed:?}");
        }
    }

    #[test]
    fn an_impossible_remote_name_is_refused_before_any_request() {
        assert!(desired(Strategy::Selected, None, &["foo"]).is_err());
        assert!(desired(Strategy::Selected, Some("kube-system"), &["foo"]).is_err());
        assert!(desired(Strategy::Selected, Some("bar"), &["foo", "baz"]).is_err());
        // Several namespaces may have the label.
        assert!(desired(Strategy::Selected, Some("bar"), &[]).is_err());
        let named = desired(Strategy::Selected, Some("bar"), &["foo"]).unwrap();
        assert_eq!(named.spec.remote_namespace_name.as_deref(), Some("bar"));
    }
}
