//! What the loops tell Prometheus.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The families of the loops. Cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics {
    leads: Gauge,
    rounds: Family<Round, Counter>,
    volumes: Family<Condition, Gauge>,
    orphans: Family<Reason, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Round {
    name: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Condition {
    health: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
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
            "Volumes with a PV, by the health of their twins",
            metrics.volumes.clone(),
        );
        registry.register(
            "liqo_csi_orphaned_twins",
            "Twins that look forgotten and are left alone, by reason",
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

    pub(super) fn volumes(&self, health: &'static str, count: usize) {
        let gauge = self.volumes.get_or_create(&Condition { health });
        gauge.set(count.try_into().unwrap_or(i64::MAX));
    }

    pub(super) fn orphans(&self, reason: &'static str, count: usize) {
        let gauge = self.orphans.get_or_create(&Reason { reason });
        gauge.set(count.try_into().unwrap_or(i64::MAX));
    }
}
