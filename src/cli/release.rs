//! `liqo-csi release`: gives a claim of this driver the class of its twin, without copying its data.

use std::time::Duration;

use clap::Subcommand;

use super::{
    Outcome,
    common::{ClusterArgs, ObjectArgs, block_on, find},
    process::duration,
};
use crate::{
    observe::crash::take_orders_of_command,
    transfer::{Context, ReleaseRequest, release, undo_release},
};

const FORM: &str =
    "The claim is deleted and created again, with the same name and the class of its twin; it then has the
PersistentVolume of the twin, which is retained meanwhile and keeps the data. The twin and the
virtual PersistentVolume are deleted. No pod may use the claim.
If the command is interrupted, run it again to continue, or with --undo to restore the previous state;
`liqo-csi doctor` lists unfinished releases. The rights that it needs, and what changes for
the claim, are in docs/import.md.

Examples:
  liqo-csi release pvc data -n shop --dry-run
  liqo-csi release pvc shop/data
  liqo-csi release pvc shop/data --undo";

/// Gives claims of the driver their real class, without copying their data.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Give a claim of the driver its real class. Its data stays where it is.
    #[command(after_long_help = FORM)]
    Pvc(PvcArgs),
}

#[derive(clap::Args)]
struct PvcArgs {
    #[command(flatten)]
    claim: ObjectArgs,
    /// Undo a release that has not completed.
    #[arg(long)]
    undo: bool,
    /// Print what would be done, or what blocks it, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Release also a claim that a deployment tool or a controller manages.
    #[arg(long)]
    force_managed: bool,
    /// How long to wait for other programs, such as Kubernetes.
    #[arg(long, default_value = "5m", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Namespace of the twins [default: as configured in the controller].
    #[arg(long)]
    storage_namespace: Option<String>,
}

pub(super) fn run(args: Args) -> Outcome {
    let Action::Pvc(args) = args.what;
    block_on(release_claim(args))
}

async fn release_claim(args: PvcArgs) -> Outcome {
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
        Box::pin(undo_release(&context, &claim)).await?;
        return Ok(());
    }
    let request = ReleaseRequest {
        claim: claim.clone(),
        force_managed: args.force_managed,
    };
    Box::pin(release(&context, &request)).await?;
    Ok(())
}
