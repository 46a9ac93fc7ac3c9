//! Decides which volumes a round checks: those that have changed, and those that were unhealthy in the
//! last check. All of them every 30 seconds, and after a failed round. So the cost of a change does not
//! depend on the number of volumes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    cluster::{
        Cluster, slim,
        view::{Changed, Feed},
    },
    placement::Diagnosis,
    volume::VolumeName,
    watched::{Claim, Watched},
};

/// All volumes are checked this often, whatever the feeds report.
const ALL: Duration = Duration::from_secs(30);

/// The changes about the volumes of a cluster.
pub(super) struct DueVolumes {
    /// The cluster as it was last reachable, with its changes.
    reached: Option<ReachedCluster>,
    volumes: Feed<slim::Volume>,
    claims: Feed<Claim>,
    /// When all volumes were checked last.
    all: Option<Instant>,
    /// Whether this round checks all volumes.
    is_all: bool,
    /// Whether the last round succeeded.
    is_done: bool,
}

/// A reachable cluster.
struct ReachedCluster {
    cluster: Cluster,
    twins: Feed<slim::Twin>,
    /// PVs are watched at home only.
    real: Feed<slim::Volume>,
}

/// The volumes that a round checks.
pub(super) enum Scope {
    All,
    /// The volumes whose PVs have these names.
    Some(BTreeSet<String>),
}

impl ReachedCluster {
    fn new(cluster: Cluster) -> Self {
        let (twins, real) = (cluster.views().twins.feed(), cluster.views().volumes.feed());
        // This round checks all volumes.
        let _everything = (twins.take(), real.take());
        Self { cluster, twins, real }
    }

    /// The volumes with changes in that cluster; `None` if all may have changed.
    fn take(&self) -> Option<BTreeSet<String>> {
        if !self.cluster.rights().all_claims {
            // The feeds do not report changes in single namespaces.
            return None;
        }
        let (Changed::These(twins), Changed::These(real)) = (self.twins.take(), self.real.take()) else {
            return None;
        };
        let mut names: BTreeSet<String> = twins.iter().map(|twin| twin.volume.to_string()).collect();
        for real in real.iter().filter_map(|volume| volume.as_real()) {
            // The name of a twin contains that of its volume.
            names.extend(VolumeName::of_home_twin(&real.twin).map(|(volume, _)| volume.to_string()));
            let twins = self.cluster.views().twins.of_topic(&real.twin);
            names.extend(twins.iter().map(|twin| twin.volume.to_string()));
        }
        Some(names)
    }
}

impl DueVolumes {
    pub(super) fn new(watched: &Watched) -> Self {
        Self {
            reached: None,
            volumes: watched.volumes.feed(),
            claims: watched.claims.feed(),
            all: None,
            is_all: false,
            is_done: false,
        }
    }

    /// The volumes that the next round checks. `cluster` is the cluster of the twins, if it is reachable.
    pub(super) fn take(&mut self, cluster: Option<Cluster>) -> Scope {
        let is_known = match (&self.reached, &cluster) {
            (Some(reached), Some(cluster)) => reached.cluster.is_same(cluster),
            (_, None) | (None, Some(_)) => false,
        };
        if !is_known {
            self.reached = cluster.map(ReachedCluster::new);
        }
        let names = self
            .reached
            .as_ref()
            .and_then(ReachedCluster::take)
            .filter(|_| is_known);
        let changes = (self.volumes.take(), self.claims.take());
        let is_time = self.all.is_none_or(|when| when.elapsed() >= ALL);
        let is_done = std::mem::take(&mut self.is_done);
        let (Some(mut names), (Changed::These(volumes), Changed::These(claims)), true) =
            (names, changes, is_done && !is_time)
        else {
            self.all = Some(Instant::now());
            self.is_all = true;
            return Scope::All;
        };
        self.is_all = false;
        let virtual_volumes = volumes.iter().filter_map(|volume| volume.as_virtual());
        names.extend(virtual_volumes.map(|volume| volume.name.clone()));
        // A PV with another name, for example after a restore or a bind to another claim, is checked
        // together with all others.
        names.extend(claims.iter().map(|claim| VolumeName::requested_for(&claim.uid)));
        Scope::Some(names)
    }

    /// The time until all volumes are checked again.
    pub(super) fn left(&self) -> Duration {
        self.all
            .map_or(Duration::ZERO, |when| ALL.saturating_sub(when.elapsed()))
    }

    /// The round succeeded. Without this call, because the round failed or was cancelled, the next round
    /// checks all volumes.
    pub(super) fn done(&mut self) {
        self.is_done = true;
        if self.is_all {
            // A long round does not start again at once.
            self.all = Some(Instant::now());
        }
    }
}

/// The last diagnosis of each volume, by the name of its PV, and the number of volumes per diagnosis.
#[derive(Default)]
pub(super) struct VolumeCounts {
    seen: HashMap<String, Kind>,
    counts: BTreeMap<Kind, usize>,
    /// The volumes that are checked in every round.
    unhealthy: BTreeSet<String>,
}

/// What is counted together: the virtual class and the diagnosis.
type Kind = (String, Diagnosis);

impl VolumeCounts {
    /// Forgets all volumes, but keeps the kinds, with a count of zero.
    pub(super) fn clear(&mut self) {
        self.seen.clear();
        self.unhealthy.clear();
        self.counts.values_mut().for_each(|count| *count = 0);
    }

    /// Records the diagnosis of a volume; `None` if the volume does not exist or its state is unknown.
    pub(super) fn record(&mut self, name: &str, kind: Option<Kind>) {
        match &kind {
            // The view reports when a pending twin is bound.
            None
            | Some((_, Diagnosis::Bound | Diagnosis::Ending | Diagnosis::Moving | Diagnosis::Pending)) => {
                self.unhealthy.remove(name)
            }
            Some(_) => self.unhealthy.insert(name.to_owned()),
        };
        let before = match &kind {
            Some(kind) => self.seen.insert(name.to_owned(), kind.clone()),
            None => self.seen.remove(name),
        };
        if let Some(count) = before.and_then(|before| self.counts.get_mut(&before)) {
            *count -= 1;
        }
        if let Some(kind) = kind {
            *self.counts.entry(kind).or_default() += 1;
        }
    }

    /// The number of volumes of each kind that was ever recorded.
    pub(super) fn by_kind(&self) -> impl Iterator<Item = (&Kind, &usize)> {
        self.counts.iter()
    }

    /// Volumes that were unhealthy.
    pub(super) fn unhealthy(&self) -> impl Iterator<Item = &String> {
        self.unhealthy.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_counted_by_their_last_state() {
        let mut counts = VolumeCounts::default();
        let kind = |diagnosis| Some(("liqo".to_owned(), diagnosis));
        let count = |counts: &VolumeCounts, diagnosis| {
            let counts = counts.by_kind().find(|((_, one), _)| *one == diagnosis);
            counts.map(|(_, count)| *count)
        };
        counts.record("a", kind(Diagnosis::Bound));
        counts.record("b", kind(Diagnosis::Vanished));
        counts.record("b", kind(Diagnosis::Vanished));
        counts.record("c", kind(Diagnosis::Ending));
        assert_eq!(count(&counts, Diagnosis::Bound), Some(1));
        assert_eq!(count(&counts, Diagnosis::Vanished), Some(1));
        assert_eq!(counts.unhealthy().collect::<Vec<_>>(), ["b"]);
        counts.record("b", kind(Diagnosis::Bound));
        counts.record("a", None);
        counts.record("never seen", None);
        assert_eq!(count(&counts, Diagnosis::Bound), Some(1));
        assert_eq!(count(&counts, Diagnosis::Vanished), Some(0));
        assert_eq!(count(&counts, Diagnosis::Lost), None);
        assert_eq!(counts.unhealthy().count(), 0);
        counts.clear();
        assert_eq!(count(&counts, Diagnosis::Ending), Some(0));
    }
}
