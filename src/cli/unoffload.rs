//! `liqo-csi unoffload namespace`: takes namespaces out of remote clusters again, unless
//! something would be lost.

use std::{process::ExitCode, time::Duration};

use clap::Subcommand;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::time::{Instant, sleep};

use super::{
    Outcome,
    common::{ClusterArgs, block_on, namespaces, place, print_unknown},
    offload::print_trouble,
    process::duration,
    table::Table,
};
use crate::{
    api::namespace_offloading::{NAME, NamespaceOffloading},
    cluster::{Cluster, Objects, Precondition, has_finalizer},
    inspect::{
        Scope, Storage,
        rows::{Row, rows},
    },
    offload::pods::FINALIZER,
};

const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Said with a list of what would be lost.
const REFUSED: u8 = 2;
const HEADER: [&str; 4] = ["CLAIM", "CLUSTER", "SIZE", "VOLUME"];

/// Takes namespaces out of remote clusters.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Delete the namespaces in remote clusters that were made for these. Refused, with exit
    /// code 2, while volumes are there, or pods that nobody makes again.
    #[command(visible_aliases = ["ns", "namespaces"])]
    Namespace(NamespaceArgs),
}

#[derive(clap::Args)]
struct NamespaceArgs {
    /// The namespaces.
    #[arg(required_unless_present = "ns_selector")]
    names: Vec<String>,
    /// Labels of the namespaces, instead of their names; those that are not offloaded are left
    /// out.
    #[arg(long, conflicts_with = "names")]
    ns_selector: Option<String>,
    /// Only say what holds them.
    #[arg(long)]
    dry_run: bool,
    /// Also delete the pods there that nobody makes again, as kubectl drain does with --force.
    #[arg(long)]
    force: bool,
    /// How long to wait for the end of the namespaces there.
    #[arg(long, default_value = "120s", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(args: Args) -> Outcome<ExitCode> {
    let What::Namespace(args) = args.what;
    block_on(unoffload(args))
}

async fn unoffload(args: NamespaceArgs) -> Outcome<ExitCode> {
    let place = place(args.cluster.visit().await?, None, None).await;
    let names = match &args.ns_selector {
        Some(labels) => offloaded(&place.cluster, labels).await?,
        None => args.names,
    };
    let storage = Storage::read(&place.cluster, &Scope::All, &place.storage_namespace, place.id).await;
    let unknown = storage.unknown();
    if !unknown.is_empty() {
        print_unknown(&unknown);
        return Err("what would be lost cannot be told, so nothing is unoffloaded".into());
    }
    let home = storage.home.as_ref().map(ToString::to_string);
    let all = rows(&storage, &Scope::All);
    let lost: Vec<&Row> = all
        .iter()
        .filter(|row| would_be_lost(row, &names, home.as_deref()))
        .collect();
    if !lost.is_empty() {
        eprint!("{}", table(&lost));
        eprintln!(
            "These volumes are in namespaces that would be deleted. Move them (liqo-csi move volume), or delete their \
             claims; then unoffload."
        );
        return Ok(ExitCode::from(REFUSED));
    }
    if !args.force {
        let bare = bare_pods(&place.cluster, &names).await?;
        if !bare.is_empty() {
            eprintln!(
                "These pods run in other clusters and would be deleted, and nobody makes them again: {}. Add --force to \
                 have them deleted.",
                bare.join(", ")
            );
            return Ok(ExitCode::from(REFUSED));
        }
    }
    if args.dry_run {
        println!("No volume of this driver holds {}.", names.join(", "));
        return Ok(ExitCode::SUCCESS);
    }
    for name in &names {
        delete(&place.cluster, name).await?;
    }
    let until = Instant::now() + args.timeout;
    let mut all_gone = true;
    for name in &names {
        all_gone &= follow(&place.cluster, name, until).await?;
    }
    Ok(if all_gone {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The namespaces with these labels that are offloaded.
async fn offloaded(cluster: &Cluster, labels: &str) -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    for name in namespaces(cluster, labels).await? {
        let all: Objects<NamespaceOffloading> = cluster.within(&name);
        if all.get(NAME).await?.is_some() {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Err(format!("no namespace with the labels {labels} is offloaded").into());
    }
    Ok(names)
}

/// Whether a volume is in a remote cluster, for a claim of one of these namespaces.
fn would_be_lost(row: &Row, namespaces: &[String], home: Option<&str>) -> bool {
    let is_of_them = row
        .claim
        .as_ref()
        .is_some_and(|claim| namespaces.contains(&claim.namespace));
    is_of_them && row.twin.is_some() && row.cluster.is_some() && row.cluster.as_deref() != home
}

/// The pods that may run in remote clusters, have not ended and have no owner.
async fn bare_pods(cluster: &Cluster, namespaces: &[String]) -> Outcome<Vec<String>> {
    let is_lost = |pod: &Pod| {
        let has_owner = pod
            .owner_references()
            .iter()
            .any(|it| it.controller == Some(true));
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        has_finalizer(pod, FINALIZER)
            && !has_owner
            && !is_leaving
            && !matches!(phase, Some("Succeeded" | "Failed"))
    };
    let mut lost = Vec::new();
    for namespace in namespaces {
        let pods: Objects<Pod> = cluster.within(namespace);
        let names = pods.pick(None, None, |pod| {
            is_lost(&pod).then(|| format!("{namespace}/{}", pod.name_any()))
        });
        lost.extend(names.await?);
    }
    Ok(lost)
}

fn table(lost: &[&Row]) -> Table<4> {
    let mut table = Table::new(HEADER);
    for row in lost {
        let claim = row.claim.as_ref();
        table.row([
            claim
                .map(|it| format!("{}/{}", it.namespace, it.name))
                .unwrap_or_default(),
            row.cluster.clone().unwrap_or_default(),
            row.size.clone().unwrap_or_default(),
            row.volume.clone(),
        ]);
    }
    table
}

async fn delete(cluster: &Cluster, namespace: &str) -> Outcome {
    let all: Objects<NamespaceOffloading> = cluster.within(namespace);
    let Some(object) = all.get(NAME).await? else {
        return Err(format!("{namespace}: it is not offloaded").into());
    };
    let exactly = Precondition {
        uid: object.metadata.uid.unwrap_or_default(),
        resource_version: None,
    };
    Ok(all.delete(NAME, exactly).await?)
}

/// Waits until it is gone; false if that takes too long.
async fn follow(cluster: &Cluster, namespace: &str, until: Instant) -> Outcome<bool> {
    let all: Objects<NamespaceOffloading> = cluster.within(namespace);
    loop {
        let Some(object) = all.get(NAME).await? else {
            println!("{namespace}: unoffloaded");
            return Ok(true);
        };
        if Instant::now() >= until {
            eprintln!("{namespace}: not gone in time; it goes on by itself as soon as it can:");
            print_trouble(&object);
            return Ok(false);
        }
        sleep(LOOK_AGAIN).await;
    }
}
