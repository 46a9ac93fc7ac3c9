//! `liqo-csi import`: gives an existing claim or snapshot a class of this driver, without copying its
//! data.

use std::time::Duration;

use clap::Subcommand;

use super::{
    Outcome,
    common::{ClusterArgs, ObjectArgs, block_on, find},
    process::duration,
};
use crate::{
    observe::crash::take_orders_of_command,
    transfer::{
        Context, ImportRequest, SnapshotImportRequest, import, import_snapshot, undo_import,
        undo_snapshot_import,
    },
    volume::ClusterId,
};

const FORM: &str = "The claim is deleted and created again, with the same name and a class of the driver; its
PersistentVolume is retained meanwhile and keeps the data. No pod may use the claim.
If the command is interrupted, run it again to continue, or with --undo to restore the previous state;
`liqo-csi doctor` lists unfinished imports. The rights that it needs, and what changes for
the claim, are in docs/import.md.

Examples:
  liqo-csi import pvc data -n shop --dry-run
  liqo-csi import pvc shop/data
  liqo-csi import pvc shop/data --undo";

const SNAPSHOT_FORM: &str =
    "The VolumeSnapshot is deleted and created again, with the same name and a class of the driver; its data is
kept by a content that is retained meanwhile. Volumes of a class of the driver can then be created from it.
If the command is interrupted, run it again to continue. Until the original VolumeSnapshot is
deleted, --undo restores the previous state. `liqo-csi doctor` lists unfinished imports. The rights
that it needs are in docs/import.md.

Examples:
  liqo-csi import snapshot backup -n shop --dry-run
  liqo-csi import snapshot shop/backup
  liqo-csi import snapshot shop/backup --undo";

/// Gives existing claims and snapshots a class of the driver, without copying their data.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Give a claim of this cluster a class of the driver. Its data stays where it is.
    #[command(after_long_help = FORM)]
    Pvc(PvcArgs),
    /// Give a snapshot of this cluster a class of the driver. Its data stays where it is.
    #[command(after_long_help = SNAPSHOT_FORM)]
    Snapshot(SnapshotArgs),
}

#[derive(clap::Args)]
struct PvcArgs {
    #[command(flatten)]
    claim: ObjectArgs,
    /// The class that it gets [default: the only class of the driver, or liqo].
    #[arg(long, conflicts_with = "undo")]
    class: Option<String>,
    /// Undo an import that has not completed.
    #[arg(long)]
    undo: bool,
    /// Print what would be done, or what blocks it, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Import also a claim that a deployment tool or a controller manages.
    #[arg(long)]
    force_managed: bool,
    /// How long to wait for other programs, such as the controller.
    #[arg(long, default_value = "5m", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Namespace of the twins [default: as configured in the controller].
    #[arg(long)]
    storage_namespace: Option<String>,
}

#[derive(clap::Args)]
struct SnapshotArgs {
    #[command(flatten)]
    snapshot: ObjectArgs,
    /// The snapshot class that it gets [default: the only one of the driver, or liqo].
    #[arg(long, conflicts_with = "undo")]
    class: Option<String>,
    /// Undo an import, while the original snapshot exists.
    #[arg(long)]
    undo: bool,
    /// Print what would be done, or what blocks it, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Import also a snapshot that a deployment tool or a controller manages.
    #[arg(long)]
    force_managed: bool,
    /// How long to wait for other programs, such as the snapshot controller.
    #[arg(long, default_value = "5m", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Namespace of the twins [default: as configured in the controller].
    #[arg(long)]
    storage_namespace: Option<String>,
    /// Id of this cluster [default: as configured in the controller].
    #[arg(long)]
    cluster_id: Option<ClusterId>,
}

pub(super) fn run(args: Args) -> Outcome {
    match args.what {
        Action::Pvc(args) => block_on(import_claim(args)),
        Action::Snapshot(args) => block_on(import_one_snapshot(args)),
    }
}

async fn import_one_snapshot(args: SnapshotArgs) -> Outcome {
    take_orders_of_command();
    let place = find(&args.cluster, args.storage_namespace.as_deref(), args.cluster_id).await?;
    let home = place.home()?;
    let snapshot = args.snapshot.find(&place.cluster)?;
    let report = |what: &str| println!("{snapshot}: {what}");
    let context = Context {
        cluster: &place.cluster,
        storage_namespace: place.twins()?,
        timeout: args.timeout,
        dry_run: args.dry_run,
        report: &report,
    };
    let request = SnapshotImportRequest {
        snapshot: snapshot.clone(),
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
    let place = find(&args.cluster, args.storage_namespace.as_deref(), None).await?;
    let claim = args.claim.find(&place.cluster)?;
    let report = |what: &str| println!("{claim}: {what}");
    let context = Context {
        cluster: &place.cluster,
        storage_namespace: place.twins()?,
        timeout: args.timeout,
        dry_run: args.dry_run,
        report: &report,
    };
    if args.undo {
        Box::pin(undo_import(&context, &claim)).await?;
        return Ok(());
    }
    let request = ImportRequest {
        claim: claim.clone(),
        class: args.class,
        force_managed: args.force_managed,
    };
    Box::pin(import(&context, &request)).await?;
    Ok(())
}
