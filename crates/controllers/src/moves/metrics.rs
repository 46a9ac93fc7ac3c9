//! The Prometheus metrics of moves.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::SignedDuration;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::{api::volume_move::VolumeMove, placement::moving::Stage};

/// Buckets from a small volume to the longest usual `maxDowntime`.
const SECONDS: [f64; 11] = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

/// The metric families of moves. Cheap to clone.
#[derive(Clone)]
pub(crate) struct MoveMetrics {
    active: Family<Phase, Gauge>,
    retained: Gauge,
    downtime: Histogram,
    retries: Counter,
    differences: Counter,
    /// The last observation of each move, by its uid.
    seen: Arc<Mutex<HashMap<String, Seen>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Phase {
    phase: String,
}

struct Seen {
    /// `None` if the move has ended.
    phase: Option<String>,
    /// The size of its retained sources in bytes.
    retained: u64,
}

impl Default for MoveMetrics {
    fn default() -> Self {
        Self {
            active: Family::default(),
            retained: Gauge::default(),
            downtime: Histogram::new(SECONDS),
            retries: Counter::default(),
            differences: Counter::default(),
            seen: Arc::default(),
        }
    }
}

impl MoveMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "liqo_csi_move_active",
            "Moves of volumes in progress, by phase",
            self.active.clone(),
        );
        registry.register_with_unit(
            "liqo_csi_move_retained",
            "Size of the volumes that are retained at the sources of moves",
            Unit::Bytes,
            self.retained.clone(),
        );
        registry.register_with_unit(
            "liqo_csi_move_downtime",
            "How long the volumes of a move could not be used",
            Unit::Seconds,
            self.downtime.clone(),
        );
        registry.register(
            "liqo_csi_move_retries",
            "How often a cut-over was rolled back, to be tried again later",
            self.retries.clone(),
        );
        registry.register(
            "liqo_csi_move_verify_failures",
            "How often source and target of a move differed after the last pass",
            self.differences.clone(),
        );
    }

    /// Records the state of a move. `bytes` is the size of its volumes.
    pub(super) fn seen(&self, of: &VolumeMove, stage: &Stage, bytes: u64) {
        let Some(uid) = of.metadata.uid.clone() else {
            return;
        };
        let seen = Seen {
            phase: (!matches!(stage, Stage::Ended(_))).then(|| stage.phase(false).to_string()),
            retained: if stage.is_committed() && !matches!(stage, Stage::Ended(_)) {
                bytes
            } else {
                0
            },
        };
        self.lock().insert(uid, seen);
        self.count();
    }

    /// Removes a deleted move.
    pub(super) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
        self.count();
    }

    /// Records the downtime of a move whose volumes are at the target.
    pub(super) fn record_downtime(&self, for_so_long: SignedDuration) {
        self.downtime.observe(for_so_long.as_secs_f64());
    }

    /// Counts a rollback that will be tried again.
    pub(super) fn rolled_back(&self) {
        self.retries.inc();
    }

    /// Counts a comparison that found a difference.
    pub(super) fn differed(&self) {
        self.differences.inc();
    }

    /// Removes all moves: the new leader publishes them.
    pub(crate) fn clear(&self) {
        self.lock().clear();
        self.count();
    }

    fn count(&self) {
        let seen = self.lock();
        let mut phases: BTreeMap<&str, i64> = BTreeMap::new();
        for phase in seen.values().filter_map(|one| one.phase.as_deref()) {
            *phases.entry(phase).or_default() += 1;
        }
        self.active.clear();
        for (phase, count) in phases {
            let phase = phase.to_owned();
            self.active.get_or_create(&Phase { phase }).set(count);
        }
        let retained = seen
            .values()
            .fold(0_u64, |sum, one| sum.saturating_add(one.retained));
        self.retained.set(retained.try_into().unwrap_or(i64::MAX));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
