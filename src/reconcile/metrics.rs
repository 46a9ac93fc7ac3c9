//! What the loops tell Prometheus.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::volume::ClusterId;

/// The families of the loops. Cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics {
    leads: Gauge,
    rounds: Family<Round, Counter>,
    volumes: Family<Condition, Gauge>,
    orphans: Family<Reason, Gauge>,
    /// The labels that were used, to be removed with their cluster.
    used: Arc<Mutex<Used>>,
}

type Used = (HashSet<Condition>, HashSet<Reason>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Round {
    name: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Condition {
    health: &'static str,
    cluster: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
    cluster: String,
}

impl Metrics {
    /// Registers the families.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "liqo_csi_reconcile_leader",
            "Whether this process runs the background loops",
            metrics.leads.clone(),
        );
        registry.register(
            "liqo_csi_reconcile_rounds",
            "Rounds of the background loops, by loop and outcome",
            metrics.rounds.clone(),
        );
        registry.register(
            "liqo_csi_volumes",
            "Volumes with a PV, by the health of their twins and the cluster these are in",
            metrics.volumes.clone(),
        );
        registry.register(
            "liqo_csi_orphaned_twins",
            "Twins that look forgotten and are left alone, by reason and cluster",
            metrics.orphans.clone(),
        );
        metrics
    }

    pub(super) fn leads(&self, leads: bool) {
        self.leads.set(leads.into());
        if !leads {
            // Whoever leads now knows better.
            self.volumes.clear();
            self.orphans.clear();
        }
    }

    pub(super) fn round(&self, name: &'static str, outcome: &'static str) {
        self.rounds.get_or_create(&Round { name, outcome }).inc();
    }

    pub(super) fn volumes(&self, cluster: &ClusterId, health: &'static str, count: usize) {
        let cluster = cluster.to_string();
        let labels = Condition { health, cluster };
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

    /// Nobody counts any more what is in this cluster.
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
