//! Runs each `VolumeMove` from preflight to its end, with the protocol of `placement::moving`. Every move
//! has a loop of its own (`follow`), because a move whose clusters are unreachable must not delay one
//! whose users wait. Between two rounds no state is kept but when to run the next one: a new leader
//! continues from the same objects.
//!
//! `preflight` finds what blocks a move, `reachable` what blocks it once the new volumes exist, `status`
//! writes its status, `leftovers` cleans up after moves whose `VolumeMove` was deleted. The movers, and the twins to which they write, are in the crate
//! `moves`.

mod events;
mod evict;
mod follow;
mod leftovers;
mod metrics;
mod preflight;
mod progress;
mod reachable;
mod status;
#[cfg(test)]
mod tests;
mod volumes;
mod waits;

use std::{collections::BTreeSet, time::Duration};

use kube::Resource;
use tokio::time;

pub(super) use self::metrics::MoveMetrics;
use self::{
    follow::{MoveKey, MoveLoop},
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

/// How often to check whether the kind `VolumeMove` is installed.
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

/// Runs all moves as soon as their kind is installed, if this driver may create movers.
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
    let helpers = LeaderHelpers(ClusterHelpers::new(movers.clone()));
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

/// The movers; this replica stops giving them orders when it no longer leads.
struct LeaderHelpers(ClusterHelpers);

impl Drop for LeaderHelpers {
    fn drop(&mut self) {
        self.0.on_leadership_lost();
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
            |key| drive(MoveLoop::new(context, key), context.metrics.loops()),
            |key: &MoveKey| context.metrics.moves().forget(&key.uid),
        ),
        drive(Leftovers::new(context), context.metrics.loops()),
    );
}

/// Whether the kind `VolumeMove` is installed; after an upgrade of the driver it may not be yet.
async fn is_served(home: &Cluster) -> bool {
    let group = VolumeMove::api_version(&());
    let request = home.client().list_api_group_resources(&group);
    let answer = time::timeout(home.calls().timeout, request).await;
    let plural = VolumeMove::plural(&());
    matches!(answer, Ok(Ok(list)) if list.resources.iter().any(|one| one.name == plural))
}
