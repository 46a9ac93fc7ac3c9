//! Background controllers: loops that compare the observed with the desired state, and fix or report the
//! difference. One replica runs them at a time, under a lease; the lease saves cost, correctness never
//! depends on it. Calls of CSI are not served here.
//!
//! | loop | what it does |
//! |---|---|
//! | `virtual_nodes` | makes virtual nodes usable for the scheduler and csi-provisioner |
//! | `fabric_nodes` | grants the fabric rights on the pods of its nodes, and of no others |
//! | `serving` | approves the serving certificates of the fabric, if that is enabled |
//! | `sessions` | renews the tokens of remote clusters |
//! | `clusters` | creates and deletes the `RemoteCluster`s of discovered clusters, writes the status of all, adds the finalizer while they have volumes or snapshots |
//! | `capacity` | publishes for the scheduler which nodes can have volumes of this driver's classes |
//! | `unserved` | reports on claims that wait for a remote cluster which cannot be used, or has no real class for them |
//! | `claim_gates` | opens the scheduling gate of pods in offloaded namespaces when it is known where their claims can be |
//! | `pinned` | selects the node for claims of pods that bypass the scheduler |
//! | `sources` | selects a node for claims of copies where their source is |
//! | `orphans` | deletes twins that were never handed over, reports other orphaned twins |
//! | `health` | detects deleted twins, retains their data, creates them again, keeps them in sync, completes imports |
//! | `snapshots` | retains the data of snapshots whose twins another client deletes, and reports it |
//! | `attachments` | removes unused attachments of twins |
//! | `attach_limits` | writes to the `CSINode`s how many volumes the real drivers can attach there |
//! | `moves` | runs each `VolumeMove` from preflight to its end, cleans up after deleted ones |
//!
//! `orphans`, `health` and `snapshots` have a loop for each cluster, `moves` one for each move, so that a slow
//! one delays only itself.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

mod attach_limits;
mod attachments;
mod by_cluster;
mod capacity;
mod claim_gates;
mod clusters;
mod fabric_nodes;
mod health;
mod imported;
mod metrics;
mod mirror;
mod moves;
mod orphans;
mod pinned;
mod recovery;
mod reports;
mod retention;
mod serving;
mod sessions;
mod snapshot_twins;
mod snapshots;
mod sources;
mod sync;
mod twin_condition;
mod unserved;
mod virtual_nodes;
mod watched;

use std::{collections::BTreeSet, pin::pin, time::Duration};

use liqo_csi_cluster::{api, cluster, controller, fleet, keyed, lease, queue, rounds};
use liqo_csi_model::{access, offload, placement, topology, volume};
use liqo_csi_moves::{gate, movers};
use liqo_csi_observe as observe;
use liqo_csi_twin as twin;

use tokio::time;
use tokio_util::sync::CancellationToken;

use self::{
    attach_limits::AttachLimits, attachments::Attachments, by_cluster::drive_each, capacity::Capacities,
    claim_gates::ClaimGates, clusters::Clusters, fabric_nodes::FabricNodes, health::Health,
    moves::drive_moves, orphans::Orphans, pinned::Pinned, reports::Reports, serving::ServingCertificates,
    sessions::Sessions, snapshot_twins::SnapshotTwins, sources::Sources, virtual_nodes::VirtualNodes,
    watched::Watched,
};
pub use self::{
    metrics::Metrics,
    serving::{Decided, approve_serving},
};
use crate::{
    cluster::{Cluster, events::Events},
    controller::control,
    fleet::Registry,
    lease::Lease,
    movers::HelperSettings,
    rounds::drive,
};

/// Settings of the loops.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the lease and of the published capacities: that of the driver.
    pub namespace: String,
    /// The holder in the lease: the name of this pod.
    pub identity: String,
    /// How long an object has to look orphaned or unused before it is changed.
    pub grace: Duration,
    /// Real classes that claims may choose by annotation.
    pub allowed_classes: BTreeSet<String>,
    /// Settings for the pods of movers; `None` disables moves.
    pub movers: Option<HelperSettings>,
    pub approves_serving: bool,
    /// Whether it writes how many volumes a node takes. Otherwise the node plugin has a fixed number.
    pub limits_attachments: bool,
}

#[cfg(test)]
impl Settings {
    fn for_test(grace: Duration) -> Self {
        Self {
            namespace: "ours".into(),
            identity: "a".into(),
            grace,
            allowed_classes: BTreeSet::new(),
            movers: None,
            approves_serving: false,
            limits_attachments: true,
        }
    }
}

/// Runs the loops whenever this replica holds the lease, until `stop`. To be joined with the other
/// futures of the process, not spawned: the loops borrow the views that they share.
pub async fn run(
    home: Cluster,
    registry: Registry,
    events: Events,
    settings: Settings,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let lease = Lease::new(&home, &settings.namespace, &settings.identity);
    let turn = async || {
        metrics.leads(true);
        Box::pin(loops(&home, &registry, &events, &settings, &metrics)).await;
    };
    while !stop.is_cancelled() {
        stop.run_until_cancelled(lease.lead(turn)).await;
        metrics.leads(false);
    }
    lease.release().await;
}

/// How long the first lists may take before an error is logged.
const LONG: Duration = Duration::from_secs(30);

/// All loops in one task: each waits for the API server nearly all the time.
async fn loops(home: &Cluster, registry: &Registry, events: &Events, settings: &Settings, metrics: &Metrics) {
    let watched = Watched::start(home);
    let complete = async { tokio::join!(home.views().complete(), watched.complete()) };
    let mut complete = pin!(complete);
    if time::timeout(LONG, &mut complete).await.is_err() {
        tracing::error!(
            "the objects that the background loops need are not read yet: is the API server slow, or may this driver's \
             role not list and watch them?"
        );
        complete.await;
    }
    let reports = || Reports::new(events.clone());
    let loops = metrics.loops();
    let claim_gates = ClaimGates::new(home, &watched, reports());
    tokio::join!(
        drive(VirtualNodes::new(home, registry), loops),
        drive(FabricNodes::new(home, &settings.namespace), loops),
        async {
            if settings.approves_serving {
                drive(ServingCertificates::new(home, &settings.namespace), loops).await;
            }
        },
        drive(Sessions::new(home, registry, &settings.namespace), loops),
        drive(Clusters::new(home, registry, &watched, settings, metrics), loops),
        drive(Capacities::new(home, registry, &watched, settings), loops),
        drive(
            unserved::WaitingClaims::new(home, registry, &watched, settings, reports()),
            loops
        ),
        control(&claim_gates, loops),
        drive(Pinned::new(home, &watched, events), loops),
        drive(Sources::new(home, &watched, events, reports()), loops),
        drive_each(
            home,
            registry,
            &watched,
            |cluster| Orphans::new(home, registry, &watched, reports(), settings, metrics, cluster),
            metrics
        ),
        drive_each(
            home,
            registry,
            &watched,
            |cluster| Health::new(home, registry, &watched, reports(), metrics, cluster),
            metrics
        ),
        drive_each(
            home,
            registry,
            &watched,
            |cluster| SnapshotTwins::new(home, registry, &watched, reports(), cluster),
            metrics
        ),
        drive(Attachments::new(home, &watched, settings), loops),
        async {
            if settings.limits_attachments {
                drive(AttachLimits::new(home, &watched, settings), loops).await;
            }
        },
        drive_moves(home, registry, &watched, events, settings, metrics),
    );
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cluster::testing::FakeApi, volume::DRIVER_NAME};

    #[tokio::test]
    async fn the_lease_is_held_while_running_and_released_at_the_end() {
        const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ours/leases/storage-liqo-io-reconcilers";
        const CAPACITIES: &str = "/apis/storage.k8s.io/v1/namespaces/ours/csistoragecapacities/";
        let api = FakeApi::start().await;
        let class = json!({"provisioner": DRIVER_NAME, "volumeBindingMode": "WaitForFirstConsumer"});
        api.put("/apis/storage.k8s.io/v1/storageclasses/liqo", class);
        let labels = json!({"topology.storage.liqo.io/node": "n1"});
        api.put("/api/v1/nodes/n1", json!({"metadata": {"labels": labels}}));

        let home = api.cluster_unwatched().await;
        let events = Events::new(home.client().clone());
        let settings = Settings::for_test(Duration::from_mins(10));
        let stop = CancellationToken::new();
        let watching = async {
            api.until(|store| !store.below(CAPACITIES).is_empty()).await;
            assert_eq!(api.object(LEASE).unwrap()["spec"]["holderIdentity"], "a");
            stop.cancel();
        };
        tokio::join!(
            run(
                home,
                Registry::default(),
                events,
                settings,
                Metrics::default(),
                stop.clone()
            ),
            watching
        );
        assert_eq!(api.object(LEASE).unwrap()["spec"]["holderIdentity"], "");
    }
}
