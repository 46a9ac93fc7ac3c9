//! Moves of volumes: each `VolumeMove` is carried from its check to its end, by the protocol of
//! `placement::moving`. Every move has a loop of its own (`follow`), for one whose clusters are
//! silent must not delay one that keeps users away. Nothing is remembered between two looks but
//! when to look again: the next leader goes on from the same objects.
//!
//! What speaks against a move is found in `preflight`, what its status says is in `status`. The
//! movers, and the twins that they write to, are `movers`' business. What is left of a move
//! whose `VolumeMove` is gone is that of `leftovers`.

mod evict;
mod follow;
mod leftovers;
mod metrics;
mod preflight;
mod progress;
mod status;
mod telling;
#[cfg(test)]
mod tests;
mod volumes;
mod waits;

use std::{collections::BTreeSet, time::Duration};

use kube::Resource;
use tokio::time;

pub(super) use self::metrics::MoveMetrics;
use self::{
    follow::{Following, MoveKey},
    leftovers::Leftovers,
};
use super::{Metrics, Settings, watched::Watched};
use crate::{
    api::volume_move::VolumeMove,
    cluster::{Cluster, events::Events},
    fleet::Registry,
    keyed::drive_keyed,
    movers::{ClusterHelpers, MoveHelpers},
    rounds::drive,
};

/// Until it is looked again whether the kind `VolumeMove` is installed.
const NOT_SERVED: Duration = Duration::from_mins(1);

/// What all moves share.
pub(super) struct Context<'a, H> {
    pub(super) home: &'a Cluster,
    pub(super) registry: &'a Registry,
    pub(super) watched: &'a Watched,
    pub(super) events: &'a Events,
    pub(super) settings: &'a Settings,
    pub(super) metrics: &'a Metrics,
    pub(super) helpers: &'a H,
}

/// Follows all moves, if this driver may make movers, from when their kind is installed.
pub(super) async fn drive_moves(
    home: &Cluster,
    registry: &Registry,
    watched: &Watched,
    events: &Events,
    settings: &Settings,
    metrics: &Metrics,
) {
    let Some(movers) = &settings.movers else {
        return;
    };
    let helpers = Leading(ClusterHelpers::new(movers.clone()));
    let context = Context {
        home,
        registry,
        watched,
        events,
        settings,
        metrics,
        helpers: &helpers.0,
    };
    follow_all(&context).await;
}

/// The movers, as long as this replica leads.
struct Leading(ClusterHelpers);

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.rest();
    }
}

async fn follow_all<H: MoveHelpers>(context: &Context<'_, H>) {
    while !is_served(context.home).await {
        time::sleep(NOT_SERVED).await;
    }
    let moves = &context.home.views().moves;
    moves.complete().await;
    let keys = || {
        let all = moves.all();
        all.iter().map(|seen| MoveKey::of(seen)).collect::<BTreeSet<_>>()
    };
    tokio::join!(
        drive_keyed(
            keys,
            vec![moves.version()],
            |key| drive(Following::new(context, key), context.metrics.loops()),
            |key: &MoveKey| context.metrics.moves().forget(&key.uid),
        ),
        drive(Leftovers::new(context), context.metrics.loops()),
    );
}

/// Whether there can be moves. Whoever upgrades the driver may not have installed their kind yet.
async fn is_served(home: &Cluster) -> bool {
    let group = VolumeMove::api_version(&());
    let asked = home.client().list_api_group_resources(&group);
    let answer = time::timeout(home.calls().timeout, asked).await;
    let plural = VolumeMove::plural(&());
    matches!(answer, Ok(Ok(list)) if list.resources.iter().any(|one| one.name == plural))
}
