//! The fabrics that are installed: the objects of each are watched while it is. A fabric
//! that is not costs nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    declaration::{ClusterDeclaration, Context, Source},
    kosmos::Kosmos,
    liqo::Liqo,
    native::Native,
};
use crate::{api::remote_cluster::DiscoveringFabric, placement::Adjustments, volume::ClusterId};

/// The API group of `RemoteCluster`s.
pub(super) const NATIVE: &str = "storage.liqo.io";

/// The fabrics this driver knows, by the API group that tells whether they are installed.
const FABRICS: [(&str, Start); 3] = [
    (NATIVE, |context, _| Box::new(Native::start(context))),
    (DiscoveringFabric::Liqo.api_group(), |context, stop| {
        Box::new(Liqo::start(context, stop))
    }),
    (DiscoveringFabric::Kosmos.api_group(), |context, stop| {
        Box::new(Kosmos::start(context, stop))
    }),
];

/// How long all wait for one: its clusters may be those that another declares too.
const PATIENCE: Duration = Duration::from_secs(30);

type Start = fn(&Context, &CancellationToken) -> Box<dyn Source>;

/// The fabrics that are installed.
#[derive(Default)]
pub(super) struct Installed {
    /// Whether it was ever told which are: before that none is no answer.
    told: bool,
    sources: Vec<Watched>,
}

/// A fabric that is installed.
struct Watched {
    group: &'static str,
    since: Instant,
    source: Box<dyn Source>,
    _stops: DropGuard,
}

/// What is declared, as far as it can be read.
pub(super) struct Heard {
    pub(super) declared: Vec<ClusterDeclaration>,
    /// What is said besides of clusters that a fabric declares.
    pub(super) adjustments: BTreeMap<ClusterId, Adjustments>,
    /// The API groups of fabrics whose objects cannot be.
    pub(super) unread: BTreeSet<&'static str>,
}

impl Installed {
    /// Watches what is installed now, and forgets what is no longer.
    pub(super) fn follow(&mut self, groups: &BTreeSet<String>, context: &Context) {
        self.told = true;
        self.sources.retain(|one| groups.contains(one.group));
        for (group, start) in FABRICS {
            let known = self.sources.iter().any(|one| one.group == group);
            if groups.contains(group) && !known {
                tracing::info!(group, "a fabric is installed: its clusters are looked for");
                let stop = CancellationToken::new();
                let source = start(context, &stop);
                self.sources.push(Watched {
                    group,
                    since: Instant::now(),
                    source,
                    _stops: stop.drop_guard(),
                });
            }
        }
    }

    /// What they declare; `None` while one of them may still be heard. One that
    /// never is, such as a fabric that is half installed, does not stop the others.
    pub(super) fn heard(&self) -> Option<Heard> {
        if !self.told {
            return None;
        }
        let mut heard = Heard {
            declared: Vec::new(),
            adjustments: BTreeMap::new(),
            unread: BTreeSet::new(),
        };
        for one in &self.sources {
            heard.adjustments.extend(one.source.adjustments());
            match one.source.declarations() {
                Some(declared) => heard.declared.extend(declared),
                None if one.since.elapsed() < PATIENCE => return None,
                None => {
                    heard.unread.insert(one.group);
                }
            }
        }
        Some(heard)
    }

    pub(super) fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        self.sources
            .iter()
            .flat_map(|one| one.source.triggers())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fleet::{declaration::Credentials, kubeconfig::Allowed},
        placement::Declared,
    };

    struct Says(Option<Vec<ClusterDeclaration>>);

    impl Source for Says {
        fn declarations(&self) -> Option<Vec<ClusterDeclaration>> {
            self.0.clone()
        }

        fn triggers(&self) -> Vec<watch::Receiver<u64>> {
            Vec::new()
        }
    }

    fn watched(group: &'static str, says: Option<Vec<ClusterDeclaration>>) -> Watched {
        Watched {
            group,
            since: Instant::now(),
            source: Box::new(Says(says)),
            _stops: CancellationToken::new().drop_guard(),
        }
    }

    fn milan() -> ClusterDeclaration {
        ClusterDeclaration {
            declared: Declared::plain("milan"),
            leaving: false,
            credentials: Credentials::Missing("there are none".into()),
            allowed: Allowed::default(),
            believed: true,
        }
    }

    #[test]
    fn nothing_is_heard_before_it_is_told_what_is_installed() {
        assert!(Installed::default().heard().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_fabric_that_cannot_be_read_does_not_stop_the_others() {
        let installed = Installed {
            told: true,
            sources: vec![
                watched("storage.liqo.io", Some(vec![milan()])),
                watched("kosmos.io", None),
            ],
        };
        assert!(installed.heard().is_none(), "it may just be slow");
        tokio::time::sleep(PATIENCE).await;
        let heard = installed.heard().unwrap();
        assert_eq!(heard.declared.len(), 1);
        assert_eq!(heard.unread, ["kosmos.io"].into());
    }
}
