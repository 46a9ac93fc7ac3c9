//! The offloaded namespaces and the state of the fabric, read once.

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
};

use super::{Listing, checks, setup};
use crate::{
    api::{namespace_offloading::NamespaceOffloading, remote_cluster::RemoteCluster},
    cluster::{ApiError, Cause, Cluster},
    fabric,
    volume::mark,
};

/// The offloaded namespaces and the objects of the fabric.
#[derive(Clone, Debug)]
pub(crate) struct Offloading {
    /// The offloaded namespaces; none where the kind is not defined.
    pub(super) asked: Listing<NamespaceOffloading>,
    /// Whether the kind is certainly not defined.
    pub(super) is_undefined: bool,
    pub(super) clusters: Listing<RemoteCluster>,
    /// All `DaemonSets`, if the fabric serves a cluster.
    pub(super) daemons: Listing<DaemonSet>,
    pub(super) fabrics: Listing<Deployment>,
    /// The serving certificates that the fabric requests, if it is installed.
    pub(super) certificates: Listing<CertificateSigningRequest>,
    /// The lease that the active pod of the fabric holds.
    pub(super) leases: Listing<Lease>,
    /// A sign that Liqo is installed, if it is.
    pub(super) liqo: Result<Option<String>, String>,
}

/// Why an offloaded namespace has no status yet, as far as that is known.
pub(crate) async fn why_not_offloaded(cluster: &Cluster) -> String {
    let offloading = Offloading::read(cluster).await;
    checks::offloading::why_not_offloaded(&offloading, Timestamp::now())
}

impl Default for Offloading {
    /// A cluster without offloaded namespaces.
    fn default() -> Self {
        Self {
            asked: Listing::default(),
            is_undefined: false,
            certificates: Listing::default(),
            clusters: Listing::default(),
            daemons: Listing::default(),
            fabrics: Listing::default(),
            leases: Listing::default(),
            liqo: Ok(None),
        }
    }
}

impl Offloading {
    /// Never fails: what could not be read is in [`Self::unknown`].
    pub(super) async fn read(cluster: &Cluster) -> Self {
        let component = format!("{},{}=fabric", setup::LABELS, setup::COMPONENT);
        let (deployments, leases) = (cluster.all::<Deployment>(), cluster.all::<Lease>());
        let (offloadings, clusters) = (
            cluster.all::<NamespaceOffloading>(),
            cluster.all::<RemoteCluster>(),
        );
        let lease_is = format!("metadata.name={}", fabric::LEASE);
        let (asked, clusters, fabrics, leases, liqo) = tokio::join!(
            offloadings.select(None, None),
            clusters.select(None, None),
            Listing::ask(&deployments, Some(&component), None),
            Listing::ask(&leases, None, Some(&lease_is)),
            fabric::liqo(cluster),
        );
        let clusters = Listing::of_installed(clusters);
        let daemons = if clusters.iter().any(|it| it.spec.fabric.is_some()) {
            Listing::all(cluster).await
        } else {
            Listing::default()
        };
        let certificates = if fabrics.iter().next().is_some() {
            let ours = format!("{}={}", mark::MANAGED_BY, mark::MANAGED_BY_US);
            Listing::ask(&cluster.all(), Some(&ours), None).await
        } else {
            Listing::default()
        };
        let not_found = |error: &ApiError| matches!(error.cause, Cause::NotFound(_));
        Self {
            is_undefined: asked.as_ref().is_err_and(not_found),
            asked: Listing::of_installed(asked),
            certificates,
            clusters,
            daemons,
            fabrics,
            leases,
            liqo,
        }
    }

    /// What could not be read, and why.
    pub(super) fn unknown(&self) -> Vec<String> {
        [
            ("which namespaces are offloaded", self.asked.refusal()),
            ("which remote clusters there are", self.clusters.refusal()),
            ("which DaemonSets run on virtual nodes", self.daemons.refusal()),
            ("how the fabric is deployed", self.fabrics.refusal()),
            ("which serving certificates wait", self.certificates.refusal()),
            ("whether the fabric runs", self.leases.refusal()),
            (
                "whether Liqo is installed",
                self.liqo.as_ref().err().map(String::as_str),
            ),
        ]
        .into_iter()
        .filter_map(|(what, why)| why.map(|why| format!("{what}: {why}")))
        .collect()
    }
}
