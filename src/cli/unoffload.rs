//! `liqo-csi unoffload namespace`: deletes namespaces in remote clusters, unless something would be lost.

mod volumes;

use std::{process::ExitCode, time::Duration};

use clap::Subcommand;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    Outcome,
    common::{ClusterArgs, Place, block_on, namespaces, place, print_unknown},
    offload::not_ready,
    process::duration,
};
use crate::{
    api::namespace_offloading::{NAME, NamespaceOffloading, READY, VOLUMES},
    cluster::{Cluster, Objects, Precondition, has_finalizer},
    fabric,
    inspect::{
        Scope, Storage,
        rows::{Row, rows},
        why_not_offloaded,
    },
    offload::{Volumes, pods::FINALIZER},
};

const POLL_INTERVAL: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  liqo-csi unoffload namespace shop --dry-run
  liqo-csi unoffload namespace shop --retain-volumes";
/// Exit code after a list of what would be lost.
const REFUSED: u8 = 2;

/// Deletes namespaces in remote clusters that were created for namespaces here.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Delete the namespaces in remote clusters that were created for these. Refused, with exit code 2,
    /// while there are volumes there, or pods without a controller. A repeated run continues.
    #[command(visible_aliases = ["ns", "namespaces"], after_help = EXAMPLES)]
    Namespace(NamespaceArgs),
}

#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
struct NamespaceArgs {
    /// The namespaces.
    #[arg(required_unless_present = "ns_selector")]
    names: Vec<String>,
    /// Labels of the namespaces, instead of their names; those that are not offloaded are skipped.
    #[arg(long, conflicts_with = "names")]
    ns_selector: Option<String>,
    /// Delete the claims here whose volumes are there, with their data; and the claims that were created
    /// directly in the namespaces there, with theirs.
    #[arg(long, conflicts_with = "retain_volumes")]
    delete_volumes: bool,
    /// Keep the claims here, and the data of their volumes there: after another offloading under the same
    /// name to the same clusters, the claims use it again. From then on their `PersistentVolumes` have the
    /// policy Retain.
    #[arg(long)]
    retain_volumes: bool,
    /// Only print what blocks the deletion, and what would happen to it.
    #[arg(long)]
    dry_run: bool,
    /// Also delete the pods there that have no controller, as kubectl drain does with --force.
    #[arg(long)]
    force: bool,
    /// How long to wait for the deletion of the namespaces there.
    #[arg(long, default_value = "120s", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(args: Args) -> Outcome<ExitCode> {
    let Action::Namespace(args) = args.what;
    block_on(unoffload(args))
}

impl NamespaceArgs {
    /// What happens to the volumes there.
    const fn volumes(&self) -> Volumes {
        if self.delete_volumes {
            Volumes::Delete
        } else if self.retain_volumes {
            Volumes::Retain
        } else {
            Volumes::Hold
        }
    }
}

async fn unoffload(args: NamespaceArgs) -> Outcome<ExitCode> {
    let place = place(args.cluster.client().await?, None, None).await;
    let names = match &args.ns_selector {
        Some(labels) => offloaded(&place.cluster, labels).await?,
        None => args.names.clone(),
    };
    carry_out(&place, &names, &args).await
}

async fn carry_out(place: &Place, names: &[String], args: &NamespaceArgs) -> Outcome<ExitCode> {
    let (cluster, fate) = (&place.cluster, args.volumes());
    let objects = read(cluster, names).await?;
    let names: Vec<String> = objects.iter().filter_map(ResourceExt::namespace).collect();
    let names = names.as_slice();
    let of_twins = place.storage_namespace.as_deref();
    let storage = Storage::read(cluster, &Scope::All, of_twins, place.id.clone()).await;
    let unknown = storage.unknown();
    if !unknown.is_empty() {
        print_unknown(&unknown);
        return Err("it is not known what would be lost, so nothing is unoffloaded".into());
    }
    let home = storage.home.as_ref().map(ToString::to_string);
    let all = rows(&storage, &Scope::All);
    let mut lost: Vec<&Row> = all
        .iter()
        .filter(|row| would_be_lost(row, names, home.as_deref()))
        .collect();
    let liqo = fabric::liqo(cluster).await;
    if matches!(liqo, Ok(None)) {
        // Only volumes in clusters that the namespaces leave matter.
        lost.retain(|row| objects.iter().any(|object| leaves(object, row)));
    } else if fate != Volumes::Hold
        && let Some(how) = liqo?
    {
        return Err(format!(
            "Liqo is installed ({how}), and offloads namespaces: this driver cannot keep or delete their volumes. Move them \
             (liqo-csi move volume), or delete their claims"
        )
        .into());
    }
    if !lost.is_empty() && (fate == Volumes::Hold || args.dry_run) {
        eprint!("{}", volumes::table(cluster, &lost).await?);
    }
    if !lost.is_empty() && fate == Volumes::Hold {
        eprintln!(
            "These volumes are in namespaces that would be deleted. Move them (liqo-csi move volume), or delete their \
             claims; if a claim is gone, set the policy of its PersistentVolume to Delete. Then unoffload. Or --delete-volumes \
             deletes their claims, or --retain-volumes keeps them there."
        );
        return Ok(ExitCode::from(REFUSED));
    }
    if !args.force {
        let bare = bare_pods(cluster, names).await?;
        if !bare.is_empty() {
            eprintln!(
                "These pods run in other clusters and would be deleted; they have no controller that would create them again: {}. Add --force to \
                 delete them.",
                bare.join(", ")
            );
            return Ok(ExitCode::from(REFUSED));
        }
    }
    if args.dry_run {
        println!("{}", volumes::prospect(fate, names, &lost, &storage));
        return Ok(ExitCode::SUCCESS);
    }
    if fate == Volumes::Retain {
        volumes::retain(cluster, &lost, &storage).await?;
    }
    // An error of one namespace does not stop the others.
    let (mut leaving, mut failed) = (Vec::new(), Vec::new());
    for name in names {
        match delete(cluster, name, fate).await {
            Ok(uid) => leaving.push((name, uid)),
            Err(error) => failed.push(error.to_string()),
        }
    }
    // From now on no twins are created there, so a claim that a StatefulSet creates again gets none there.
    if fate == Volumes::Delete {
        lost.retain(|row| {
            row.claim
                .as_ref()
                .is_some_and(|it| leaving.iter().any(|(name, _)| **name == it.namespace))
        });
        if let Err(error) = volumes::delete(cluster, &lost, &storage).await {
            failed.push(error.to_string());
            return Err(failed.join("; ").into());
        }
    }
    let until = Instant::now() + args.timeout;
    let mut all_gone = true;
    for (name, uid) in leaving {
        match follow(cluster, name, uid.as_deref(), until).await {
            Ok(gone) => all_gone &= gone,
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    if !failed.is_empty() {
        return Err(failed.join("; ").into());
    }
    Ok(if all_gone {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The `NamespaceOffloadings` of these namespaces. Namespaces without one are skipped, so that the command can
/// be repeated; one that does not exist is an error, because its name may be misspelt.
async fn read(cluster: &Cluster, names: &[String]) -> Outcome<Vec<NamespaceOffloading>> {
    let (mut objects, mut others) = (Vec::new(), Vec::new());
    for name in names {
        match cluster.within::<NamespaceOffloading>(name).get(NAME).await? {
            Some(object) => objects.push(object),
            None if cluster.all::<Namespace>().get(name).await?.is_none() => {
                return Err(format!("{name}: there is no such namespace; nothing was unoffloaded").into());
            }
            None => others.push(name.as_str()),
        }
    }
    match (objects.is_empty(), others.is_empty()) {
        (true, false) => return Err(format!("{}: not offloaded", others.join(", ")).into()),
        (false, false) => eprintln!("{}: not offloaded, skipped", others.join(", ")),
        (_, true) => {}
    }
    Ok(objects)
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

/// Whether a volume is in a cluster that its namespace leaves.
fn leaves(object: &NamespaceOffloading, row: &Row) -> bool {
    let is_its = row
        .claim
        .as_ref()
        .is_some_and(|claim| object.namespace().as_deref() == Some(claim.namespace.as_str()));
    let cluster = row.cluster.as_deref().unwrap_or_default();
    is_its && object.condition(cluster, READY).is_some()
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

/// Deletes the `NamespaceOffloading`; its uid, unless there is none any more.
async fn delete(cluster: &Cluster, namespace: &str, fate: Volumes) -> Outcome<Option<String>> {
    let all: Objects<NamespaceOffloading> = cluster.within(namespace);
    let object = all
        .get(NAME)
        .await
        .map_err(|error| format!("{namespace}: {error}"))?;
    let Some(object) = object else {
        return Ok(None);
    };
    let uid = object.metadata.uid.unwrap_or_default();
    let exactly = Precondition {
        uid: uid.clone(),
        resource_version: None,
    };
    let deleted = all.delete(NAME, exactly).await;
    deleted.map_err(|error| format!("{namespace}: {error}"))?;
    // Only after the delete: if that failed, the annotation would stay, and would apply to a later deletion
    // by another user.
    if let Some(fate) = fate.written() {
        let patch = json!({"metadata": {"uid": uid, "annotations": {VOLUMES: fate}}});
        all.merge(NAME, &patch).await.map_err(|error| {
            format!(
                "{namespace}: it is being unoffloaded, and volumes block that, because the annotation with their treatment could not be \
                 written: {error}. Run this again"
            )
        })?;
    }
    Ok(Some(uid))
}

/// Waits until the `NamespaceOffloading` with this uid is gone; false after the timeout.
async fn follow(cluster: &Cluster, namespace: &str, uid: Option<&str>, until: Instant) -> Outcome<bool> {
    let all: Objects<NamespaceOffloading> = cluster.within(namespace);
    loop {
        let Some(object) = all.get(NAME).await? else {
            println!("{namespace}: unoffloaded");
            return Ok(true);
        };
        if object.metadata.uid.as_deref() != uid {
            return Err(
                "unoffloaded, but something offloaded it again: stop that, such as GitOps, and run this again".into(),
            );
        }
        if Instant::now() >= until {
            let waiting = not_ready(&object);
            if waiting.is_empty() {
                let why = why_not_offloaded(cluster).await;
                eprintln!("{namespace}: not unoffloaded in time: {why}");
            } else {
                eprintln!(
                    "{namespace}: not unoffloaded in time; this continues in the background:\n  {}",
                    waiting.join("\n  ")
                );
            }
            return Ok(false);
        }
        sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests;
