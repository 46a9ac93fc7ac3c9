//! `liqo-csi relay`: runs in a pod of a move whose ends cannot connect to each other.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use mover::{
    lanes::{CONTROL_LANES, MAX_DATA_LANES},
    throttle::Throttle,
};

use super::{
    Outcome,
    common::block_on,
    process::{duration, until_signalled},
};
use crate::{
    cluster::client_for,
    moves::relay::{End, PodPort, Relay},
    observe::log::{self, LogFormat},
    volume::parse_quantity,
};

/// Connects to both ends of a move through the API servers of their clusters, and forwards their
/// connections, which are encrypted end to end. Runs until it is terminated. Kubeconfigs are not
/// vetted here: the controller that creates the pod has vetted them.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where the source listens: NAMESPACE/POD:PORT.
    #[arg(long)]
    source: PodPort,
    /// Kubeconfig of the source's cluster [default: the cluster this pod runs in].
    #[arg(long)]
    source_kubeconfig: Option<PathBuf>,
    /// Where the target listens: NAMESPACE/POD:PORT.
    #[arg(long)]
    target: PodPort,
    /// Kubeconfig of the target's cluster [default: the cluster this pod runs in].
    #[arg(long)]
    target_kubeconfig: Option<PathBuf>,
    /// Number of data connections of the source, in addition to those for control.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DATA_LANES)))]
    data_lanes: u32,
    /// Maximum number of bytes per second, for instance 64Mi; 0 means no limit.
    #[arg(long, default_value = "64Mi", value_parser = bandwidth)]
    bandwidth: Bandwidth,
    /// Longest time for one call to an API server.
    #[arg(long, default_value = "10s", value_parser = duration)]
    call_timeout: Duration,
    /// Format of log lines.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

/// Bytes in a second, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bandwidth(Option<NonZeroU64>);

fn bandwidth(text: &str) -> Result<Bandwidth, String> {
    let bytes = parse_quantity(text).ok_or_else(|| format!("{text:?} is not a quantity: write 64Mi or 0"))?;
    Ok(Bandwidth(NonZeroU64::new(bytes)))
}

pub(super) fn run(args: Args) -> Outcome {
    log::start(args.log_format);
    block_on(relay(args))
}

async fn relay(args: Args) -> Outcome {
    let stop = until_signalled()?;
    let source = End {
        client: client_for(args.source_kubeconfig.as_deref(), args.call_timeout).await?,
        port: args.source,
    };
    let target = End {
        client: client_for(args.target_kubeconfig.as_deref(), args.call_timeout).await?,
        port: args.target,
    };
    tracing::info!(source = %source.port, target = %target.port, "connecting the two ends of a move");
    let relay = Relay {
        source,
        target,
        bandwidth: Throttle::new(args.bandwidth.0),
    };
    relay.run(CONTROL_LANES + args.data_lanes, &stop).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_is_a_quantity() {
        assert_eq!(bandwidth("0"), Ok(Bandwidth(None)));
        assert_eq!(bandwidth("64Mi"), Ok(Bandwidth(NonZeroU64::new(64 << 20))));
        assert!(bandwidth("fast").is_err());
    }
}
