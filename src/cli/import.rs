//! `liqo-csi import`: gives an existing claim or snapshot a class of this driver, without copying its
//! data.

use std::{path::PathBuf, time::Duration};

use clap::Subcommand;

use super::{
    Outcome,
    common::{block_on, find},
    process::duration,
};
use crate::{
    inspect::home_id,
    observe::crash::take_orders_of_command,
    transfer::{
        Context, ImportRequest, SnapshotImportRequest, import, import_snapshot, undo_import,
        undo_snapshot_import,
    },
    volume::{ClaimName, ClusterId},
};

const FORM: &str = "The claim is deleted and made again, with the same name and a class of the driver; its
PersistentVolume is retained meanwhile and keeps the data. No pod may use the claim.
Killed at any moment, the command goes on when it is run again, or takes everything back with --undo;
`liqo-csi doctor` lists imports that have not ended. The rights that it needs, and what changes for
the claim, are in docs/import.md.";

const SNAPSHOT_FORM: &str =
    "The VolumeSnapshot is deleted and made again, with the same name and a class of the driver; its data is
kept by a content that is retained meanwhile. Volumes can then be made of it with a class of the driver.
Killed at any moment, the command goes on when it is run again. Until the VolumeSnapshot of before is
deleted, --undo takes everything back. `liqo-csi doctor` lists imports that have not ended. The rights
that it needs are in docs/import.md.";

/// Brings what exists into the care of the driver.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Give a claim of this cluster a class of the driver. Its data stays where it is.
    #[command(after_long_help = FORM)]
    Pvc(PvcArgs),
    /// Give a snapshot of this cluster a class of the driver. Its data stays where it is.
    #[command(after_long_help = SNAPSHOT_FORM)]
    Snapshot(SnapshotArgs),
}

#[derive(clap::Args)]
struct PvcArgs {
    /// The claim, as NAMESPACE/NAME.
    #[arg(value_name = "NAMESPACE/NAME")]
    claim: ClaimName,
    /// The class that it gets [default: the only class of the driver, or liqo].
    #[arg(long, conflicts_with = "undo")]
    class: Option<String>,
    /// Take an import back that has not come to its end.
    #[arg(long)]
    undo: bool,
    /// Say what would be done, or what speaks against it, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Import also a claim that a deployment tool or a controller manages.
    #[arg(long)]
    force_managed: bool,
    /// How long to wait for others, such as the controller.
    #[arg(long, default_value = "5m", value_parser = duration)]
    timeout: Duration,
    /// Kubeconfig to use [default: found as kubectl does].
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the twins [default: what the controller was told].
    #[arg(long)]
    storage_namespace: Option<String>,
}

#[derive(clap::Args)]
struct SnapshotArgs {
    /// The snapshot, as NAMESPACE/NAME.
    #[arg(value_name = "NAMESPACE/NAME")]
    snapshot: ClaimName,
    /// The snapshot class that it gets [default: the only one of the driver, or liqo].
    #[arg(long, conflicts_with = "undo")]
    class: Option<String>,
    /// Take an import back, as long as the snapshot of before is there.
    #[arg(long)]
    undo: bool,
    /// Say what would be done, or what speaks against it, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Import also a snapshot that a deployment tool or a controller manages.
    #[arg(long)]
    force_managed: bool,
    /// How long to wait for others, such as the controllers of snapshots.
    #[arg(long, default_value = "5m", value_parser = duration)]
    timeout: Duration,
    /// Kubeconfig to use [default: found as kubectl does].
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the twins [default: what the controller was told].
    #[arg(long)]
    storage_namespace: Option<String>,
    /// Id of this cluster [default: what the controller was told].
    #[arg(long)]
    cluster_id: Option<ClusterId>,
}

pub(super) fn run(args: Args) -> Outcome {
    match args.what {
        What::Pvc(args) => block_on(import_claim(args)),
        What::Snapshot(args) => block_on(import_one_snapshot(args)),
    }
}

async fn import_one_snapshot(args: SnapshotArgs) -> Outcome {
    take_orders_of_command();
    let place = find(
        args.kubeconfig.as_deref(),
        args.storage_namespace.as_deref(),
        args.cluster_id,
    )
    .await?;
    let home = home_id(&place.cluster, place.id).await.ok_or(
        "which id this cluster has can be read neither from how the driver is deployed nor from the namespace kube-system: add \
         --cluster-id",
    )?;
    let snapshot = args.snapshot.clone();
    let tell = |what: &str| println!("{snapshot}: {what}");
    let context = Context {
        cluster: &place.cluster,
        storage_namespace: &place.storage_namespace,
        patience: args.timeout,
        dry_run: args.dry_run,
        tell: &tell,
    };
    let request = SnapshotImportRequest {
        snapshot: args.snapshot,
        class: args.class,
        force_managed: args.force_managed,
        home,
    };
    if args.undo {
        Box::pin(undo_snapshot_import(&context, &request)).await?;
    } else {
        Box::pin(import_snapshot(&context, &request)).await?;
    }
    Ok(())
}

async fn import_claim(args: PvcArgs) -> Outcome {
    take_orders_of_command();
    let place = find(
        args.kubeconfig.as_deref(),
        args.storage_namespace.as_deref(),
        None,
    )
    .await?;
    let claim = args.claim.clone();
    let tell = |what: &str| println!("{claim}: {what}");
    let context = Context {
        cluster: &place.cluster,
        storage_namespace: &place.storage_namespace,
        patience: args.timeout,
        dry_run: args.dry_run,
        tell: &tell,
    };
    if args.undo {
        Box::pin(undo_import(&context, &args.claim)).await?;
        return Ok(());
    }
    let request = ImportRequest {
        claim: args.claim,
        class: args.class,
        force_managed: args.force_managed,
    };
    Box::pin(import(&context, &request)).await?;
    Ok(())
}
