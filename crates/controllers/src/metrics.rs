//! The Prometheus metrics of the background controllers.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use super::moves::MoveMetrics;
use crate::{rounds::LoopMetrics, volume::ClusterId};

/// The metric families of the controllers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics {
    loops: LoopMetrics,
    reachable: Family<Remote, Gauge>,
    expiry: Family<Remote, Gauge>,
    unread: Family<ApiGroup, Gauge>,
    volumes: Family<Volumes, Gauge>,
    orphans: Family<Reason, Gauge>,
    moves: MoveMetrics,
    /// The labels in use, which are removed together with their cluster.
    used: Arc<Mutex<Used>>,
}

type Used = (HashSet<Volumes>, HashSet<Reason>, HashSet<Remote>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Remote {
    cluster: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiGroup {
    api_group: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Volumes {
    state: &'static str,
    cluster: String,
    storage_class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
    cluster: String,
}

impl Metrics {
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            loops: LoopMetrics::register(registry),
            ..Self::default()
        };
        registry.register(
            "liqo_csi_remote_cluster_reachable",
            "Whether the API server of a remote cluster answers, and twins can be created there",
            metrics.reachable.clone(),
        );
        registry.register(
            "liqo_csi_remote_token_expiry_timestamp_seconds",
            "When the token with which the driver reaches a remote cluster expires, in seconds since 1970, if it does",
            metrics.expiry.clone(),
        );
        registry.register(
            "liqo_csi_fabric_unreadable",
            "Fabrics that are installed and whose clusters cannot be read, by their API group",
            metrics.unread.clone(),
        );
        registry.register(
            "liqo_csi_volumes",
            "Volumes with a PV, by their state, the cluster of their twins and their virtual class",
            metrics.volumes.clone(),
        );
        registry.register(
            "liqo_csi_orphaned_twins",
            "Orphaned twins that are not deleted, by reason and cluster",
            metrics.orphans.clone(),
        );
        metrics.moves.register(registry);
        metrics
    }

    /// The metrics of the loops themselves.
    pub(super) fn loops(&self) -> &LoopMetrics {
        &self.loops
    }

    pub(super) fn moves(&self) -> &MoveMetrics {
        &self.moves
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.loops.leads(leads);
        if !leads {
            // The new leader publishes these.
            self.volumes.clear();
            self.orphans.clear();
            self.reachable.clear();
            self.expiry.clear();
            self.unread.clear();
            self.moves.clear();
        }
    }

    /// Sets for all remote clusters whether each is reachable.
    pub(super) fn reachable<'a>(&self, clusters: impl Iterator<Item = (&'a str, bool)>) {
        let mut gone = std::mem::take(&mut self.used().2);
        for (cluster, reachable) in clusters {
            let labels = Remote {
                cluster: cluster.to_owned(),
            };
            self.reachable.get_or_create(&labels).set(reachable.into());
            gone.remove(&labels);
            self.used().2.insert(labels);
        }
        for labels in gone {
            self.reachable.remove(&labels);
        }
    }

    /// Sets when the tokens of remote clusters expire.
    pub(super) fn expiry<'a>(&self, clusters: impl Iterator<Item = (&'a str, i64)>) {
        self.expiry.clear();
        for (cluster, at) in clusters {
            let cluster = cluster.to_owned();
            self.expiry.get_or_create(&Remote { cluster }).set(at);
        }
    }

    /// Sets the API groups of fabrics whose objects cannot be read.
    pub(super) fn fabrics_unread(&self, groups: &BTreeSet<&'static str>) {
        self.unread.clear();
        for &api_group in groups {
            self.unread.get_or_create(&ApiGroup { api_group }).set(1);
        }
    }

    pub(super) fn volumes(&self, cluster: &ClusterId, class: &str, state: &'static str, count: usize) {
        let labels = Volumes {
            state,
            cluster: cluster.to_string(),
            storage_class: class.to_owned(),
        };
        let gauge = self.volumes.get_or_create(&labels);
        gauge.set(count.try_into().unwrap_or(i64::MAX));
        self.used().0.insert(labels);
    }

    pub(super) fn orphans(&self, cluster: &ClusterId, reason: &'static str, count: usize) {
        let cluster = cluster.to_string();
        let labels = Reason { reason, cluster };
        let gauge = self.orphans.get_or_create(&labels);
        gauge.set(count.try_into().unwrap_or(i64::MAX));
        self.used().1.insert(labels);
    }

    /// Removes the metrics of a cluster whose volumes are not counted any more.
    pub(super) fn forget(&self, cluster: &ClusterId) {
        let mut used = self.used();
        let cluster = cluster.as_str();
        for labels in used.0.extract_if(|labels| labels.cluster == cluster) {
            self.volumes.remove(&labels);
        }
        for labels in used.1.extract_if(|labels| labels.cluster == cluster) {
            self.orphans.remove(&labels);
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::placement::Diagnosis;

    // sanity-tests/chart feeds these series to the alerts of the chart.
    #[test]
    fn the_series_have_the_labels_that_alerts_use() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.volumes(&"milan".parse().unwrap(), "liqo", Diagnosis::Lost.name(), 2);
        metrics.reachable([("milan", false)].into_iter());
        metrics.expiry([("milan", 600)].into_iter());
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        for line in [
            r#"liqo_csi_volumes{state="TwinLost",cluster="milan",storage_class="liqo"} 2"#,
            r#"liqo_csi_remote_cluster_reachable{cluster="milan"} 0"#,
            r#"liqo_csi_remote_token_expiry_timestamp_seconds{cluster="milan"} 600"#,
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in {page}");
        }
    }
}
