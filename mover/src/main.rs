//! `liqo-csi-mover`: the two sides of a move, for this crate's tests and benchmark. The driver's image has
//! them as `liqo-csi mover`.

use std::process::ExitCode;

use clap::Parser;
use mover::program::{self, Command};

#[derive(Parser)]
#[command(about = "Copies a volume, pass by pass, to another machine")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    program::run(&Cli::parse().command)
}
