//! `liqo-csi move`: asks for moves of volumes, follows them, and has a say in them. All of it is done
//! by a `VolumeMove`, which the controller carries out: this command may end at any time. What the flags
//! ask for is in `wish`, what is said while a move goes on in `words`, the following in `follow`, the way
//! back in `back`.

mod back;
mod follow;
mod orders;
mod wish;
mod words;

use std::{path::PathBuf, process::ExitCode};

use clap::Subcommand;

use self::{follow::follow, orders::Order, wish::VolumeArgs};
use super::{
    Outcome,
    common::{Format, block_on, print_json},
    table::Table,
};
use crate::{
    api::volume_move::VolumeMove,
    cluster::{Cluster, Objects},
};

const CALL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);
const HEADER: [&str; 7] = ["NAME", "PHASE", "CLAIMS", "TO", "COPIED", "LEFT", "DOWNTIME"];

const FORM: &str = "The controller does the work, and goes on when this command has ended: Ctrl-C only stops looking.
Exit status: 0 the volumes are at the target (or, with --dry-run, nothing speaks against the move); 2 it was refused, and
nothing was changed; 3 it was cancelled or its source was recovered, and 4 it has failed: the volumes are where they
were. What a move does, keeps and costs is in docs/move.md.";

/// Moves volumes to another node, cluster or storage class while their pods run.
#[derive(clap::Args)]
#[command(after_long_help = FORM)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Move the volume of a claim, and follow the move.
    #[command(visible_alias = "pvc")]
    Volume(Box<VolumeArgs>),
    /// List the moves of a namespace.
    List(ListArgs),
    /// Follow a move.
    Status(NamedArgs),
    /// Begin nothing new, as long as the pods have their volumes.
    Pause(NamedArgs),
    /// Go on after a pause.
    Resume(NamedArgs),
    /// Send the pods away now, and copy the rest.
    Cutover(NamedArgs),
    /// Give the move up: the volumes stay where they are.
    Cancel(NamedArgs),
    /// Move the volumes of a move that has ended back to where they were: to the cluster, the storage class
    /// and, if they could be used from some nodes only, the node that its status names.
    Undo(NamedArgs),
    /// Give the source back, as it was at the commit, because the target is lost: its claim there or the
    /// declaration of its cluster was deleted, or that does not answer and its virtual node has the taint
    /// node.kubernetes.io/out-of-service. What was written at the target since the commit is lost.
    RecoverSource(RecoverArgs),
}

/// Where the moves are.
#[derive(clap::Args)]
struct PlaceArgs {
    /// Namespace of the claims [default: that of the kubeconfig's context].
    #[arg(long, short)]
    namespace: Option<String>,
    /// Kubeconfig to use [default: found as kubectl does].
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

#[derive(clap::Args)]
struct ListArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// How to answer.
    #[arg(long, short, value_enum, default_value = "table")]
    output: Format,
}

#[derive(clap::Args)]
struct NamedArgs {
    /// The move, as `liqo-csi move list` names it.
    #[arg(value_name = "MOVE")]
    name: String,
    #[command(flatten)]
    place: PlaceArgs,
    /// Return at once, without following the move.
    #[arg(long)]
    no_wait: bool,
}

#[derive(clap::Args)]
struct RecoverArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Do it. Without this only what would be lost is said.
    #[arg(long)]
    accept_loss: bool,
}

/// A namespace, and the moves in it.
struct Place {
    namespace: String,
    moves: Objects<VolumeMove>,
}

impl PlaceArgs {
    async fn find(self) -> Outcome<Place> {
        let cluster = Cluster::visit(self.kubeconfig.as_deref(), CALL_TIMEOUT).await?;
        let current = || cluster.client().default_namespace().to_owned();
        let namespace = self.namespace.unwrap_or_else(current);
        Ok(Place {
            moves: cluster.within(&namespace),
            namespace,
        })
    }
}

pub(super) fn run(args: Args) -> Outcome<ExitCode> {
    block_on(async {
        match args.what {
            What::Volume(args) => wish::begin(*args).await,
            What::List(args) => list(args).await,
            What::Status(args) => {
                let place = args.place.find().await?;
                follow(&place, &args.name, !args.no_wait).await
            }
            What::Pause(args) => ordered(args, Order::Pause).await,
            What::Resume(args) => ordered(args, Order::Resume).await,
            What::Cutover(args) => ordered(args, Order::Cutover).await,
            What::Cancel(args) => ordered(args, Order::Cancel).await,
            What::RecoverSource(RecoverArgs { named, accept_loss }) => {
                let place = named.place.find().await?;
                orders::recover(&place, &named.name, accept_loss).await?;
                follow(&place, &named.name, !named.no_wait).await
            }
            What::Undo(args) => {
                let place = args.place.find().await?;
                let back = back::undo(&place, &args.name).await?;
                follow(&place, &back, !args.no_wait).await
            }
        }
    })
}

async fn ordered(args: NamedArgs, order: Order) -> Outcome<ExitCode> {
    let place = args.place.find().await?;
    orders::give(&place, &args.name, order).await?;
    // A move that is paused has no end to wait for.
    let waits = !args.no_wait && order != Order::Pause;
    follow(&place, &args.name, waits).await
}

async fn list(args: ListArgs) -> Outcome<ExitCode> {
    let place = args.place.find().await?;
    let moves = place.moves.list(None).await?;
    match args.output {
        Format::Json => print_json("moves", &moves, &[])?,
        Format::Table if moves.is_empty() => println!("No moves in the namespace {}.", place.namespace),
        Format::Table => {
            let mut table = Table::new(HEADER);
            for one in &moves {
                table.row(words::row(one));
            }
            print!("{table}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
