//! The command line: what each subcommand is told, and how it wires the parts.

mod clusters;
mod common;
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
mod unoffload;
mod volumes;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A CSI driver behind a virtual storage class.
#[derive(Parser)]
#[command(name = "liqo-csi", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve Identity and Controller behind the CSI sidecars.
    Controller(controller::Args),
    /// Serve Identity and Node on every real node.
    Node(node::Args),
    /// List the volumes of the driver: claim, twin, real class, place and health.
    Volumes(volumes::Args),
    /// Connect another cluster, or repair its connection or change its rights.
    Connect(connect::Args),
    /// Disconnect a cluster at both ends, unless volumes are there.
    Disconnect(disconnect::Args),
    /// List the remote clusters, and the pods that wait for them.
    Clusters(clusters::Args),
    /// Look for what is wrong with an installation, and say how to mend it.
    Doctor(doctor::Args),
    /// Give existing claims a class of the driver, and take that back.
    Import(import::Args),
    /// Give claims of the driver their real class, and take that back.
    Release(release::Args),
    /// Move volumes to another node, cluster or storage class while their pods run.
    Move(moves::Args),
    /// Connect the two ends of a move through the API servers of their clusters.
    Relay(relay::Args),
    /// Be one end of a move, as its pods are.
    #[command(subcommand)]
    Mover(mover::program::Command),
    /// Make the namespaces in remote clusters that `NamespaceOffloadings` ask for.
    Fabric(fabric::Args),
    /// Extend namespaces into remote clusters.
    Offload(offload::Args),
    /// Take namespaces out of remote clusters again, unless something would be lost.
    Unoffload(unoffload::Args),
    /// Print the custom resource definitions, for `kubectl apply -f -`.
    Crds(crds::Args),
    /// List the places where a test can make this build die.
    #[cfg(debug_assertions)]
    CrashPoints,
}

/// Runs what the command line asks for.
#[must_use]
pub fn run() -> ExitCode {
    // Two TLS stacks could be compiled in by way of dependencies; this one is ours.
    // An error only says that a provider is installed already.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let outcome = match Cli::parse().command {
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
        #[cfg(debug_assertions)]
        Command::CrashPoints => {
            for point in crate::observe::crash::points() {
                println!("{point}");
            }
            Ok(ExitCode::SUCCESS)
        }
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error}");
            eprintln!("liqo-csi: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What ends a process early. Nobody matches on it: it is read by people.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn success((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
