//! The installed fabrics. The objects of a fabric are watched only while it is installed.

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

/// The fabrics that this driver knows, by the API group that shows whether they are installed.
const FABRICS: [(&str, Start); 3] = [
    (NATIVE, |context, _| Box::new(Native::start(context))),
    (DiscoveringFabric::Liqo.api_group(), |context, stop| {
        Box::new(Liqo::start(context, stop))
    }),
    (DiscoveringFabric::Kosmos.api_group(), |context, stop| {
        Box::new(Kosmos::start(context, stop))
    }),
];

/// How long all fabrics wait for one of them, which may declare the same clusters.
const DECLARATION_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an API group has to be missing until its fabric counts as removed, or as not installed. An API server
/// that has just started does not list all groups, and the clusters would count as undeclared. Nothing waits for
/// a removal: the objects of a kind are deleted with it, which the watches show at once.
const REMOVAL_TIMEOUT: Duration = Duration::from_mins(1);

type Start = fn(&Context, &CancellationToken) -> Box<dyn Source>;

#[derive(Default)]
pub(super) struct Installed {
    /// Whether the installed fabrics were ever read: before that, an empty list means nothing.
    groups_known: bool,
    /// When the API groups were first read.
    first_read: Option<Instant>,
    sources: Vec<WatchedFabric>,
}

struct WatchedFabric {
    group: &'static str,
    since: Instant,
    /// Since when its API group is missing.
    missing: Option<Instant>,
    source: Box<dyn Source>,
    _stops: DropGuard,
}

impl WatchedFabric {
    /// Whether the fabric counts as installed, now that its API group is listed or not.
    fn is_installed(&mut self, is_listed: bool) -> bool {
        if is_listed {
            self.missing = None;
            return true;
        }
        self.missing.get_or_insert_with(Instant::now).elapsed() < REMOVAL_TIMEOUT
    }
}

/// All declarations that could be read.
pub(super) struct AllDeclarations {
    pub(super) declared: Vec<ClusterDeclaration>,
    /// Settings for clusters that a fabric declares.
    pub(super) adjustments: BTreeMap<ClusterId, Adjustments>,
    /// The API groups of fabrics whose objects cannot be read.
    pub(super) unread: BTreeSet<&'static str>,
}

impl Installed {
    /// Watches the fabrics whose API groups are listed, and drops those that are removed.
    pub(super) fn follow(&mut self, groups: &BTreeSet<String>, context: &Context) {
        let first_read = *self.first_read.get_or_insert_with(Instant::now);
        // Nearly every installation has the kinds of this driver.
        self.groups_known |= groups.contains(NATIVE) || first_read.elapsed() >= REMOVAL_TIMEOUT;
        self.sources
            .retain_mut(|one| one.is_installed(groups.contains(one.group)));
        for (group, start) in FABRICS {
            let known = self.sources.iter().any(|one| one.group == group);
            if groups.contains(group) && !known {
                tracing::info!(group, "a fabric is installed; reading its clusters");
                let stop = CancellationToken::new();
                let source = start(context, &stop);
                self.sources.push(WatchedFabric {
                    group,
                    since: Instant::now(),
                    missing: None,
                    source,
                    _stops: stop.drop_guard(),
                });
            }
        }
    }

    /// The API groups cannot be read: the API server may be starting, so the times without a group begin again.
    pub(super) fn interrupted(&mut self) {
        self.first_read = None;
        for one in &mut self.sources {
            one.missing = None;
        }
    }

    /// All declarations; `None` while a fabric may still be read. A fabric that cannot be read, for example
    /// because it is only partly installed, does not stop the others.
    pub(super) fn all_declarations(&self) -> Option<AllDeclarations> {
        if !self.groups_known {
            return None;
        }
        let mut all = AllDeclarations {
            declared: Vec::new(),
            adjustments: BTreeMap::new(),
            unread: BTreeSet::new(),
        };
        for one in &self.sources {
            all.adjustments.extend(one.source.adjustments());
            match one.source.declarations() {
                Some(declared) => all.declared.extend(declared),
                None if one.since.elapsed() < DECLARATION_TIMEOUT => return None,
                None => {
                    all.unread.insert(one.group);
                }
            }
        }
        Some(all)
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
        cluster::testing::FakeApi,
        fleet::{declaration::Credentials, kubeconfig::Allowed},
        placement::Declared,
    };

    struct FixedSource(Option<Vec<ClusterDeclaration>>);

    impl Source for FixedSource {
        fn declarations(&self) -> Option<Vec<ClusterDeclaration>> {
            self.0.clone()
        }

        fn triggers(&self) -> Vec<watch::Receiver<u64>> {
            Vec::new()
        }
    }

    fn watched(group: &'static str, says: Option<Vec<ClusterDeclaration>>) -> WatchedFabric {
        WatchedFabric {
            group,
            since: Instant::now(),
            missing: None,
            source: Box::new(FixedSource(says)),
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
    fn no_declaration_is_read_before_the_installed_kinds_are_known() {
        assert!(Installed::default().all_declarations().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_fabric_that_cannot_be_read_does_not_stop_the_others() {
        let installed = Installed {
            groups_known: true,
            sources: vec![
                watched("storage.liqo.io", Some(vec![milan()])),
                watched("kosmos.io", None),
            ],
            ..Installed::default()
        };
        assert!(installed.all_declarations().is_none(), "it may just be slow");
        tokio::time::sleep(DECLARATION_TIMEOUT).await;
        let all = installed.all_declarations().unwrap();
        assert_eq!(all.declared.len(), 1);
        assert_eq!(all.unread, ["kosmos.io"].into());
    }

    /// How many clusters are declared after these API groups were listed.
    fn clusters(installed: &mut Installed, groups: &[&str], context: &Context) -> Option<usize> {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        installed.follow(&groups, context);
        installed.all_declarations().map(|all| all.declared.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_fabric_stays_while_its_group_is_missing_for_a_moment() {
        let api = FakeApi::start().await;
        let context = Context::fake(&api).await;
        let mut installed = Installed {
            groups_known: true,
            sources: vec![watched("kosmos.io", Some(vec![milan()]))],
            ..Installed::default()
        };
        let mut clusters = |groups: &[&str]| clusters(&mut installed, groups, &context);
        assert_eq!(clusters(&[]), Some(1), "the API server has just started");
        tokio::time::sleep(REMOVAL_TIMEOUT / 2).await;
        assert_eq!(clusters(&["kosmos.io"]), Some(1));
        tokio::time::sleep(REMOVAL_TIMEOUT).await;
        assert_eq!(clusters(&[]), Some(1), "the time begins again");
        tokio::time::sleep(REMOVAL_TIMEOUT).await;
        assert_eq!(clusters(&[]), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_list_may_lack_groups() {
        let api = FakeApi::start().await;
        let context = Context::fake(&api).await;
        let mut installed = Installed::default();
        let mut clusters = |groups: &[&str]| clusters(&mut installed, groups, &context);
        assert_eq!(clusters(&[]), None, "the API server has just started");
        tokio::time::sleep(REMOVAL_TIMEOUT).await;
        assert_eq!(clusters(&[]), Some(0), "no fabric is installed");
        let mut installed = Installed::default();
        installed.follow(&[NATIVE.to_owned()].into(), &context);
        assert!(installed.groups_known);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_may_start_more_than_once() {
        let api = FakeApi::start().await;
        let context = Context::fake(&api).await;
        let mut unread = Installed::default();
        let mut known = Installed {
            groups_known: true,
            sources: vec![watched("kosmos.io", Some(vec![milan()]))],
            ..Installed::default()
        };
        for (installed, count) in [(&mut unread, None), (&mut known, Some(1))] {
            assert_eq!(clusters(installed, &[], &context), count);
            installed.interrupted();
            tokio::time::sleep(REMOVAL_TIMEOUT).await;
            assert_eq!(clusters(installed, &[], &context), count);
        }
    }
}
