//! The command line: the subcommands, their options, and how they start the parts of the driver.

// First, because its macros are for all that follow.
#[macro_use]
mod output;

mod clusters;
mod common;
mod completion;
mod connect;
mod controller;
mod crds;
mod disconnect;
mod doctor;
mod fabric;
mod import;
mod moves;
mod node;
mod offload;
mod process;
mod relay;
mod release;
mod table;
#[cfg(test)]
mod tests;
mod unoffload;
mod volumes;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A CSI driver with a virtual storage class, and the commands for it.
#[derive(Parser)]
#[command(name = "liqo-csi", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the controller: the CSI services Identity and Controller, and the background loops.
    #[command(hide = true)]
    Controller(controller::Args),
    /// Run the node plugin: the CSI services Identity and Node, on every real node.
    #[command(hide = true)]
    Node(node::Args),
    /// List the volumes of the driver, with their twins, clusters and states.
    Volumes(volumes::Args),
    /// Connect another cluster, repair its connection, or change its rights.
    Connect(connect::Args),
    /// Disconnect a cluster at both ends, unless volumes are there.
    Disconnect(disconnect::Args),
    /// List the remote clusters, and the pods that wait for them.
    Clusters(clusters::Args),
    /// Check an installation, and say how to fix what is wrong.
    Doctor(doctor::Args),
    /// Give existing claims a class of the driver, or undo that.
    Import(import::Args),
    /// Give claims of the driver their real class, or undo that.
    Release(release::Args),
    /// Move volumes to another node, cluster or storage class while their pods run.
    Move(moves::Args),
    /// Connect the two ends of a move through the API servers of their clusters.
    #[command(hide = true)]
    Relay(relay::Args),
    /// Run one end of a move, in its pods.
    #[command(subcommand, hide = true)]
    Mover(mover::program::Command),
    /// Create virtual nodes, and the namespaces in remote clusters that `NamespaceOffloadings` request.
    #[command(hide = true)]
    Fabric(fabric::Args),
    /// Extend namespaces into remote clusters.
    Offload(offload::Args),
    /// Delete namespaces in remote clusters, unless something would be lost.
    Unoffload(unoffload::Args),
    /// Print the custom resource definitions, for `kubectl apply -f -`.
    Crds(crds::Args),
    /// Print the completion script of a shell.
    Completion(completion::Args),
    /// List the places where a test can crash this build.
    #[cfg(debug_assertions)]
    #[command(hide = true)]
    CrashPoints,
}

/// The exit code after wrong usage, as in sysexits.h. That of clap, 2, says that a command refuses.
const USAGE: u8 = 64;

/// Runs the command of the command line.
#[must_use]
pub fn run() -> ExitCode {
    // Dependencies could compile in two TLS providers; this program uses ring. An error only means
    // that a provider is installed already.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    let outcome = match cli.command {
        Command::Controller(args) => controller::run(args).map(success),
        Command::Node(args) => node::run(args).map(success),
        Command::Volumes(args) => volumes::run(args).map(success),
        Command::Connect(args) => connect::run(args),
        Command::Disconnect(args) => disconnect::run(args),
        Command::Clusters(args) => clusters::run(args).map(success),
        Command::Doctor(args) => doctor::run(&args),
        Command::Import(args) => import::run(args).map(success),
        Command::Release(args) => release::run(args).map(success),
        Command::Move(args) => moves::run(args),
        Command::Relay(args) => relay::run(args).map(success),
        Command::Mover(command) => Ok(mover::program::run(&command)),
        Command::Fabric(args) => fabric::run(args).map(success),
        Command::Offload(args) => offload::run(args),
        Command::Unoffload(args) => unoffload::run(args),
        Command::Crds(args) => crds::run(&args).map(success),
        Command::Completion(args) => completion::run(&args).map(success),
        #[cfg(debug_assertions)]
        Command::CrashPoints => {
            for point in crate::observe::crash::points() {
                println!("{point}");
            }
            Ok(ExitCode::SUCCESS)
        }
    };
    let code = match outcome {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error}");
            eprintln!("liqo-csi: {error}");
            ExitCode::FAILURE
        }
    };
    match output::failure() {
        Some(error) if code == ExitCode::SUCCESS => {
            eprintln!("liqo-csi: the output could not be written: {error}");
            ExitCode::FAILURE
        }
        _ => code,
    }
}

/// Prints what clap answers itself: help, the version, or what is wrong.
fn explain(error: &clap::Error) -> ExitCode {
    // If stdout or stderr is closed, there is nowhere else to print it.
    let _printed = error.print();
    if error.use_stderr() {
        ExitCode::from(USAGE)
    } else {
        ExitCode::SUCCESS
    }
}

/// The error that ends a command. No code matches on it: it is printed for the user.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn success((): ()) -> ExitCode {
    ExitCode::SUCCESS
}
