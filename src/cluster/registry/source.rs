//! Where declarations come from: the objects of one fabric, watched while the
//! fabric is installed. A fabric that is not costs nothing.

use std::{collections::BTreeSet, fmt, sync::Arc};

use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{kosmos::Kosmos, liqo::Liqo, native::Native};
use crate::{cluster::kubeconfig::Allowed, placement::Declared};

/// A secret as part of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SecretRef {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret {}/{}", self.namespace, self.name)
    }
}

/// Where the credentials of a cluster are.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    /// In a key of a Secret.
    Secret { secret: SecretRef, key: String },
    /// In the declaring object itself.
    Inline(Arc<[u8]>),
    /// Nowhere, for this reason.
    Missing(String),
}

/// What a source says about one cluster.
#[derive(Clone)]
pub(super) struct Told {
    pub(super) declared: Declared,
    pub(super) credentials: Credentials,
    pub(super) allowed: Allowed,
}

/// What the sources need to know.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) client: Client,
    /// Namespace of this driver.
    pub(super) namespace: String,
    /// What kubeconfigs of `RemoteCluster`s and Kosmos may contain.
    pub(super) allowed: Allowed,
}

/// The objects of one fabric, watched.
pub(super) trait Source: Send {
    /// What they declare now; `None` until all of them have been seen.
    fn told(&self) -> Option<Vec<Told>>;
    /// Change whenever that may have changed.
    fn signs(&self) -> Vec<watch::Receiver<u64>>;
}

/// The fabrics this driver knows, by the API group that tells whether they are installed.
const FABRICS: [(&str, Start); 3] = [
    ("storage.liqo.io", |context, stop| {
        Box::new(Native::start(context, stop))
    }),
    ("offloading.liqo.io", |context, stop| {
        Box::new(Liqo::start(context, stop))
    }),
    ("kosmos.io", |context, stop| {
        Box::new(Kosmos::start(context, stop))
    }),
];

type Start = fn(&Context, &CancellationToken) -> Box<dyn Source>;

/// The fabrics that are installed.
#[derive(Default)]
pub(super) struct Installed {
    sources: Vec<(&'static str, Box<dyn Source>, DropGuard)>,
}

impl Installed {
    /// Watches what is installed now, and forgets what is no longer.
    pub(super) fn follow(&mut self, groups: &BTreeSet<String>, context: &Context) {
        self.sources.retain(|(group, ..)| groups.contains(*group));
        for (group, start) in FABRICS {
            let known = self.sources.iter().any(|(watched, ..)| *watched == group);
            if groups.contains(group) && !known {
                tracing::info!(group, "a fabric is installed: its clusters are looked for");
                let stop = CancellationToken::new();
                let source = start(context, &stop);
                self.sources.push((group, source, stop.drop_guard()));
            }
        }
    }

    /// What all of them declare; `None` until all of them have been heard.
    pub(super) fn told(&self) -> Option<Vec<Told>> {
        let each: Option<Vec<Vec<Told>>> = self.sources.iter().map(|(_, source, _)| source.told()).collect();
        each.map(|each| each.into_iter().flatten().collect())
    }

    pub(super) fn signs(&self) -> Vec<watch::Receiver<u64>> {
        self.sources
            .iter()
            .flat_map(|(_, source, _)| source.signs())
            .collect()
    }
}
