//! What is asked of the fabric, and who is there to do it, read once.

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

/// What is known of offloaded namespaces.
#[derive(Clone, Debug)]
pub(crate) struct Offloading {
    /// The offloaded namespaces; none where the kind is not defined.
    pub(super) asked: Listing<NamespaceOffloading>,
    /// Whether the kind is certainly not defined.
    pub(super) is_undefined: bool,
    /// The remote clusters.
    pub(super) clusters: Listing<RemoteCluster>,
    /// All `DaemonSets`, where a cluster is the fabric's.
    pub(super) daemons: Listing<DaemonSet>,
    /// The Deployments of the fabric.
    pub(super) fabrics: Listing<Deployment>,
    /// The serving certificates that the fabric asks for, where there is one.
    pub(super) certificates: Listing<CertificateSigningRequest>,
    /// What the pod of the fabric holds that works.
    pub(super) leases: Listing<Lease>,
    /// How it shows that Liqo is installed, if it is.
    pub(super) liqo: Result<Option<String>, String>,
}

/// Why nobody has seen to an offloaded namespace yet, as far as that can be told.
pub(crate) async fn why_nobody_offloads(cluster: &Cluster) -> String {
    let offloading = Offloading::read(cluster).await;
    checks::offloading::why_nobody(&offloading, Timestamp::now())
}

impl Default for Offloading {
    /// Nothing is offloaded.
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
    /// Reads it. Never fails: what may not be read is said by [`Self::unknown`].
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

    /// What is not known, and why.
    pub(super) fn unknown(&self) -> Vec<String> {
        [
            ("which namespaces are offloaded", self.asked.refusal()),
            ("which remote clusters there are", self.clusters.refusal()),
            ("which DaemonSets run on virtual nodes", self.daemons.refusal()),
            ("how the fabric is deployed", self.fabrics.refusal()),
            ("which serving certificates wait", self.certificates.refusal()),
            ("whether the fabric works", self.leases.refusal()),
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
