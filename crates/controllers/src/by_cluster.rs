//! Runs a loop of its own for each cluster: a cluster that is slow or unreachable delays only its own
//! volumes.

use std::collections::BTreeSet;

use super::{Metrics, watched::Watched};
use crate::{
    cluster::{
        Cluster,
        slim::Volume,
        view::{Changed, Feed, View},
    },
    fleet::Registry,
    keyed::drive_keyed,
    rounds::{Rounds, drive},
    volume::ClusterId,
};

/// Runs one loop for the home cluster, one for each declared remote cluster, and one for each cluster
/// with volumes.
pub(super) async fn drive_each<R: Rounds>(
    home: &Cluster,
    registry: &Registry,
    watched: &Watched,
    make: impl Fn(ClusterId) -> R,
    metrics: &Metrics,
) {
    let mut with_volumes = ClustersWithVolumes::new(&watched.volumes);
    let of_virtual = |volume: &Volume| volume.as_virtual().is_some();
    let triggers = vec![registry.changes(), watched.volumes.changes_of(of_virtual)];
    let clusters = || {
        let mut clusters = with_volumes.now().clone();
        clusters.extend(registry.all().iter().map(|remote| remote.id.clone()));
        clusters.insert(home.id().clone());
        clusters
    };
    let start = |id| drive(make(id), metrics.loops());
    drive_keyed(clusters, triggers, start, |id| metrics.forget(id)).await;
}

/// The clusters that contain volumes.
struct ClustersWithVolumes<'a> {
    volumes: &'a View<Volume>,
    changes: Feed<Volume>,
    clusters: BTreeSet<ClusterId>,
}

impl<'a> ClustersWithVolumes<'a> {
    fn new(volumes: &'a View<Volume>) -> Self {
        Self {
            volumes,
            changes: volumes.feed(),
            clusters: BTreeSet::new(),
        }
    }

    /// The current clusters. A change names the clusters that may contain volumes now, so only
    /// those are checked.
    fn now(&mut self) -> &BTreeSet<ClusterId> {
        let changed = match self.changes.take() {
            Changed::Everything => self.volumes.all(),
            Changed::These(changed) => changed,
        };
        let changed = changed.iter().filter_map(|volume| volume.as_virtual());
        self.clusters.extend(changed.map(|volume| volume.cluster.clone()));
        self.clusters
            .retain(|id| self.volumes.count_of_topic(id.as_str()) > 0);
        &self.clusters
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Mutex, time::Duration};

    use tokio::{sync::watch, time};

    use super::*;
    use crate::{
        cluster::{ApiError, testing::FakeApi},
        fleet::Link,
        placement::Declared,
    };

    /// Never ends its round for the cluster `slow`, and records the rounds of the others.
    struct Noting<'a> {
        cluster: ClusterId,
        done: &'a Mutex<Vec<String>>,
        news: &'a watch::Sender<u64>,
    }

    impl Rounds for Noting<'_> {
        const NAME: &'static str = "noting";
        const RESYNC: Duration = Duration::from_secs(1);

        fn triggers(&self) -> Vec<watch::Receiver<u64>> {
            Vec::new()
        }

        async fn round(&mut self) -> Result<(), ApiError> {
            if self.cluster.as_str() == "slow" {
                pending::<()>().await;
            }
            self.done.lock().unwrap().push(self.cluster.to_string());
            self.news.send_modify(|count| *count += 1);
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_cluster_that_hangs_delays_no_other() {
        let api = FakeApi::start().await;
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        let silent = || Link::Unreachable("no route".into());
        let registry = Registry::fixed([
            (Declared::plain("slow"), silent()),
            (Declared::plain("quick"), silent()),
        ]);
        let (done, news) = (Mutex::default(), watch::Sender::new(0));
        let make = |cluster| Noting {
            cluster,
            done: &done,
            news: &news,
        };
        let metrics = Metrics::default();
        let driven = drive_each(&home, &registry, &watched, make, &metrics);
        let rounds = |name: &str| done.lock().unwrap().iter().filter(|one| *one == name).count();
        let several = async {
            let mut news = news.subscribe();
            while rounds("home") < 3 || rounds("quick") < 3 {
                news.changed().await.unwrap();
            }
        };
        tokio::select! {
            () = driven => {}
            done = time::timeout(Duration::from_secs(20), several) => done.expect("they wait for the slow one"),
        }
        assert_eq!(rounds("slow"), 0);
    }
}
