//! Which volumes a round looks at: those about which something changed, and those that
//! were not well when they were last looked at. Now and then, and whenever a round failed,
//! all of them. So one change costs the same however many volumes there are.

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

/// All volumes are looked at so often, whatever the feeds say.
const ALL: Duration = Duration::from_secs(30);

/// What has changed about the volumes of a cluster.
pub(super) struct Due {
    /// The cluster as it was reached last, and what has changed there.
    reached: Option<Reached>,
    volumes: Feed<slim::Volume>,
    claims: Feed<Claim>,
    /// When all volumes were to be looked at last.
    all: Option<Instant>,
    /// Whether this round looks at all.
    is_all: bool,
    /// Whether the last round came to a good end.
    is_done: bool,
}

/// A cluster that is reached.
struct Reached {
    cluster: Cluster,
    twins: Feed<slim::Twin>,
    /// PVs are watched at home only.
    real: Feed<slim::Volume>,
}

/// What a round looks at.
pub(super) enum Scope {
    /// All volumes.
    All,
    /// The volumes whose PVs have these names.
    Some(BTreeSet<String>),
}

impl Reached {
    fn new(cluster: Cluster) -> Self {
        let (twins, real) = (cluster.views().twins.feed(), cluster.views().volumes.feed());
        // All volumes are looked at now.
        let _everything = (twins.take(), real.take());
        Self { cluster, twins, real }
    }

    /// The volumes about which something has changed there; `None` if that may be all.
    fn take(&self) -> Option<BTreeSet<String>> {
        if !self.cluster.rights().all_claims {
            // What changes in single namespaces is not told.
            return None;
        }
        let (Changed::These(twins), Changed::These(real)) = (self.twins.take(), self.real.take()) else {
            return None;
        };
        let mut names: BTreeSet<String> = twins.iter().map(|twin| twin.volume.to_string()).collect();
        for real in real.iter().filter_map(|volume| volume.as_real()) {
            // A twin is named after its volume.
            names.extend(VolumeName::of_home_twin(&real.twin).map(|(volume, _)| volume.to_string()));
            let twins = self.cluster.views().twins.of_topic(&real.twin);
            names.extend(twins.iter().map(|twin| twin.volume.to_string()));
        }
        Some(names)
    }
}

impl Due {
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

    /// What the next round looks at. `cluster` is the cluster of the twins, if it is reached.
    pub(super) fn take(&mut self, cluster: Option<Cluster>) -> Scope {
        let is_known = match (&self.reached, &cluster) {
            (Some(reached), Some(cluster)) => reached.cluster.is_same(cluster),
            (_, None) | (None, Some(_)) => false,
        };
        if !is_known {
            self.reached = cluster.map(Reached::new);
        }
        let names = self.reached.as_ref().and_then(Reached::take).filter(|_| is_known);
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
        // A PV of another name, as after a restore or where it was given to another claim, is
        // looked at when all are.
        names.extend(claims.iter().map(|claim| VolumeName::requested_for(&claim.uid)));
        Scope::Some(names)
    }

    /// In what time all volumes are looked at again.
    pub(super) fn left(&self) -> Duration {
        self.all
            .map_or(Duration::ZERO, |when| ALL.saturating_sub(when.elapsed()))
    }

    /// What the round was to look at is seen to. Without this word, be it that the round
    /// failed or was given up, the next one looks at all volumes.
    pub(super) fn done(&mut self) {
        self.is_done = true;
        if self.is_all {
            // It may have taken long, and is not to begin again at once.
            self.all = Some(Instant::now());
        }
    }
}

/// How each volume was when it was last seen, by the name of its PV.
#[derive(Default)]
pub(super) struct Census {
    seen: HashMap<String, Kind>,
    counts: BTreeMap<Kind, usize>,
    /// Those that are looked at in every round.
    unwell: BTreeSet<String>,
}

/// What is counted together: the virtual class, and how a volume is.
type Kind = (String, Diagnosis);

impl Census {
    /// Forgets all volumes, but not of which kinds there were.
    pub(super) fn clear(&mut self) {
        self.seen.clear();
        self.unwell.clear();
        self.counts.values_mut().for_each(|count| *count = 0);
    }

    /// Notes how a volume is now; `None` if there is no such volume, or nothing can be said.
    pub(super) fn note(&mut self, name: &str, kind: Option<Kind>) {
        match &kind {
            // A twin that is not bound yet tells when it is.
            None
            | Some((_, Diagnosis::Bound | Diagnosis::Ending | Diagnosis::Moving | Diagnosis::Pending)) => {
                self.unwell.remove(name)
            }
            Some(_) => self.unwell.insert(name.to_owned()),
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

    /// How many volumes there are of each kind that ever was.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&Kind, &usize)> {
        self.counts.iter()
    }

    /// Volumes that were not well.
    pub(super) fn unwell(&self) -> impl Iterator<Item = &String> {
        self.unwell.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_census_counts_volumes_by_how_they_were_last_seen() {
        let mut census = Census::default();
        let kind = |diagnosis| Some(("liqo".to_owned(), diagnosis));
        let count = |census: &Census, diagnosis| {
            let counts = census.counts().find(|((_, one), _)| *one == diagnosis);
            counts.map(|(_, count)| *count)
        };
        census.note("a", kind(Diagnosis::Bound));
        census.note("b", kind(Diagnosis::Vanished));
        census.note("b", kind(Diagnosis::Vanished));
        census.note("c", kind(Diagnosis::Ending));
        assert_eq!(count(&census, Diagnosis::Bound), Some(1));
        assert_eq!(count(&census, Diagnosis::Vanished), Some(1));
        assert_eq!(census.unwell().collect::<Vec<_>>(), ["b"]);
        census.note("b", kind(Diagnosis::Bound));
        census.note("a", None);
        census.note("never seen", None);
        assert_eq!(count(&census, Diagnosis::Bound), Some(1));
        assert_eq!(count(&census, Diagnosis::Vanished), Some(0));
        assert_eq!(count(&census, Diagnosis::Lost), None);
        assert_eq!(census.unwell().count(), 0);
        census.clear();
        assert_eq!(count(&census, Diagnosis::Ending), Some(0));
    }
}
