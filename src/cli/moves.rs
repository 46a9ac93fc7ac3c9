//! `liqo-csi move`: creates moves of volumes, follows them, and changes their options. The controller
//! carries a `VolumeMove` out, so this command may end at any time. The flags are in `volume`, the
//! text about a move in `describe`, following in `follow`, moving back in `undo`.

mod describe;
mod follow;
mod orders;
mod undo;
mod volume;

use std::process::ExitCode;

use clap::Subcommand;

use self::{
    follow::follow,
    orders::Order,
    volume::{MayBeLost, VolumeArgs},
};
use super::{
    Outcome,
    common::{ClusterArgs, Format, ObjectArgs, block_on, print_json},
    table::Table,
};
use crate::{
    api::volume_move::{Loss, VolumeMove},
    cluster::{Cluster, Objects},
    volume::ClaimName,
};

const HEADER: [&str; 7] = ["NAME", "PHASE", "CLAIMS", "TO", "COPIED", "LEFT", "DOWNTIME"];

const EXAMPLES: &str = "\
Examples:
  liqo-csi move volume data -n shop --target-cluster milan --dry-run
  liqo-csi move volume shop/data --target-node worker-1 --evict";

const RECOVER_EXAMPLES: &str = "\
Examples:
  liqo-csi move recover-source data-3f9a1 -n shop
  liqo-csi move recover-source data-3f9a1 -n shop --accept-loss";

const FORM: &str = "The controller does the work, also after this command has ended: Ctrl-C only stops following.
Exit status: 0 the volumes are at the target (or, with --dry-run, nothing blocks the move); 2 it was refused, and
nothing was changed; 3 it was cancelled or its source was recovered, 4 it has failed: the volumes are where they
were before; 130 Ctrl-C. What a move does, keeps and costs is in docs/move.md.";

/// Moves volumes to another node, cluster or storage class while their pods run.
#[derive(clap::Args)]
#[command(after_long_help = FORM)]
pub(super) struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Move the volume of a claim, and follow the move.
    #[command(visible_alias = "pvc", after_help = EXAMPLES)]
    Volume(Box<VolumeArgs>),
    /// List the moves of a namespace.
    #[command(after_help = "Examples:\n  liqo-csi move list -n shop")]
    List(ListArgs),
    /// Follow a move.
    #[command(after_help = "Examples:\n  liqo-csi move status shop/data-3f9a1")]
    Status(NamedArgs),
    /// Pause a move, while the pods can use their volumes.
    #[command(after_help = "Examples:\n  liqo-csi move pause data-3f9a1 -n shop")]
    Pause(NamedArgs),
    /// Resume a paused move.
    #[command(after_help = "Examples:\n  liqo-csi move resume data-3f9a1 -n shop")]
    Resume(NamedArgs),
    /// Start the cut-over of a move now, although more may be left to copy.
    #[command(after_help = "Examples:\n  liqo-csi move cutover data-3f9a1 -n shop")]
    Cutover(NamedArgs),
    /// Cancel the move: the volumes stay where they are.
    #[command(after_help = "Examples:\n  liqo-csi move cancel data-3f9a1 -n shop")]
    Cancel(NamedArgs),
    /// Move the volumes of a move that has ended back to where they were: to the cluster, the storage class
    /// and, if they could be used from some nodes only, the node that its status names.
    #[command(after_help = "Examples:\n  liqo-csi move undo data-3f9a1 -n shop")]
    Undo(UndoArgs),
    /// Recover the source as it was at the commit, because the target is lost: its claim there or the
    /// declaration of its cluster was deleted, or that cluster is unreachable and its virtual node has the taint
    /// node.kubernetes.io/out-of-service. What was written at the target since the commit is lost.
    #[command(after_help = RECOVER_EXAMPLES)]
    RecoverSource(RecoverArgs),
}

#[derive(clap::Args)]
struct ListArgs {
    /// Namespace of the moves [default: that of the kubeconfig's context].
    #[arg(long, short)]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: Format,
}

#[derive(clap::Args)]
struct NamedArgs {
    #[command(flatten)]
    object: ObjectArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Return at once, without following the move.
    #[arg(long)]
    no_wait: bool,
}

#[derive(clap::Args)]
struct RecoverArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Recover the source. Without this flag, the command only reports what would be lost.
    #[arg(long)]
    accept_loss: bool,
}

#[derive(clap::Args)]
struct UndoArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Which losses of the move back to accept. Those that the first move accepted are not accepted again.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT")]
    accept_loss: Vec<MayBeLost>,
    /// Delete the copy that the first move still keeps in a remote cluster, if it has the name of the claim there:
    /// the move back needs that name. First a dry run checks what else blocks the move back. The command waits for
    /// both, also with --no-wait.
    #[arg(long)]
    delete_kept_copy: bool,
}

/// A namespace, and the moves in it.
struct Place {
    namespace: String,
    moves: Objects<VolumeMove>,
}

impl Place {
    fn of(cluster: &Cluster, namespace: String) -> Self {
        Self {
            moves: cluster.within(&namespace),
            namespace,
        }
    }

    /// The namespace of a claim or move, and its name.
    async fn find(object: &ObjectArgs, cluster: &ClusterArgs) -> Outcome<(Self, String)> {
        let cluster = cluster.client().await?;
        let ClaimName { namespace, name } = object.find(&cluster)?;
        Ok((Self::of(&cluster, namespace), name))
    }
}

impl NamedArgs {
    async fn find(&self) -> Outcome<(Place, String)> {
        Place::find(&self.object, &self.cluster).await
    }
}

pub(super) fn run(args: Args) -> Outcome<ExitCode> {
    block_on(async {
        match args.what {
            Action::Volume(args) => volume::begin(*args).await,
            Action::List(args) => list(args).await,
            Action::Status(args) => {
                let (place, name) = args.find().await?;
                follow(&place, &name, !args.no_wait).await
            }
            Action::Pause(args) => ordered(args, Order::Pause).await,
            Action::Resume(args) => ordered(args, Order::Resume).await,
            Action::Cutover(args) => ordered(args, Order::Cutover).await,
            Action::Cancel(args) => ordered(args, Order::Cancel).await,
            Action::RecoverSource(RecoverArgs { named, accept_loss }) => {
                let (place, name) = named.find().await?;
                orders::recover(&place, &name, accept_loss).await?;
                follow(&place, &name, !named.no_wait).await
            }
            Action::Undo(UndoArgs {
                named,
                accept_loss,
                delete_kept_copy,
            }) => {
                let (place, name) = named.find().await?;
                let accepted = accept_loss.into_iter().map(Loss::from).collect();
                let back = undo::undo(&place, &name, accepted, delete_kept_copy).await?;
                follow(&place, &back, !named.no_wait).await
            }
        }
    })
}

async fn ordered(args: NamedArgs, order: Order) -> Outcome<ExitCode> {
    let (place, name) = args.find().await?;
    orders::give(&place, &name, order).await?;
    // A paused move does not end.
    let waits = !args.no_wait && order != Order::Pause;
    follow(&place, &name, waits).await
}

async fn list(args: ListArgs) -> Outcome<ExitCode> {
    let cluster = args.cluster.client().await?;
    let current = || cluster.client().default_namespace().to_owned();
    let place = Place::of(&cluster, args.namespace.unwrap_or_else(current));
    let moves = place.moves.list(None).await?;
    match args.output {
        Format::Json => print_json("moves", &moves, &[])?,
        Format::Table if moves.is_empty() => println!("No moves in the namespace {}.", place.namespace),
        Format::Table => {
            let mut table = Table::new(HEADER);
            for one in &moves {
                table.row(describe::row(one));
            }
            print!("{table}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
