//! All objects of an installation of the driver, read once.

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    authorization::v1::{
        ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
    },
    core::v1::{Event, Namespace, Pod, ResourceQuota},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, VolumeAttachment, VolumeAttributesClass},
};

use super::{
    Listing, Scope, Setup, Snapshots, Storage,
    checks::rights::{self, Right},
    listing::{NO_NAMESPACE, reason},
    offloading::Offloading,
    setup,
};
use crate::{
    cluster::Cluster,
    volume::{ClusterId, mark},
};

/// The objects of an installation, as far as they could be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Installation {
    /// When they were read.
    pub(super) now: Timestamp,
    /// How it was deployed.
    pub(super) setup: Setup,
    /// The volumes.
    pub(super) storage: Storage,
    /// The namespace of the twins.
    pub(super) namespace: Listing<Namespace>,
    /// `CSIDriver` objects of all drivers.
    pub(super) drivers: Listing<CSIDriver>,
    /// The drivers that kubelets know.
    pub(super) csi_nodes: Listing<CSINode>,
    /// The capacity that the driver has published.
    pub(super) capacities: Listing<CSIStorageCapacity>,
    /// Attachments of all drivers.
    pub(super) attachments: Listing<VolumeAttachment>,
    /// Attributes classes of all drivers.
    pub(super) attributes_classes: Listing<VolumeAttributesClass>,
    /// Quotas of all namespaces.
    pub(super) quotas: Listing<ResourceQuota>,
    /// The `DaemonSet` of the node plugin.
    pub(super) node_plugins: Listing<DaemonSet>,
    /// Pods of the driver.
    pub(super) pods: Listing<Pod>,
    /// Pods in the namespace of the twins.
    pub(super) storage_pods: Listing<Pod>,
    /// Events about failed mounts and attachments.
    pub(super) failures: Listing<Event>,
    /// Events about PVs in remote clusters that nothing releases.
    pub(super) orphaned_volumes: Listing<Event>,
    pub(super) snapshots: Snapshots,
    /// Offloaded namespaces, and the fabric.
    pub(super) offloading: Offloading,
    /// The rights that the controller lacks, as far as that is known.
    pub(super) missing_rights: Vec<Right>,
    /// Why other rights are unknown.
    pub(super) unknown_rights: Option<String>,
}

impl Installation {
    /// Never fails: what could not be read is in [`Self::unknown`].
    pub(crate) async fn read(
        cluster: &Cluster,
        setup: Setup,
        namespace: Option<&str>,
        id: Option<ClusterId>,
    ) -> Self {
        let ours = format!("{}={}", mark::MANAGED_BY, mark::MANAGED_BY_US);
        let capacities = cluster.all::<CSIStorageCapacity>();
        let (daemon_sets, pods) = (cluster.all::<DaemonSet>(), cluster.all::<Pod>());
        let (storage, of_twins, drivers, attachments, quotas) = tokio::join!(
            Storage::read(cluster, &Scope::All, namespace, id),
            twins_namespace(cluster, namespace),
            Listing::all(cluster),
            Listing::all(cluster),
            Listing::all(cluster),
        );
        // After the nodes, which storage has.
        let (csi_nodes, capacities) = tokio::join!(
            Listing::all(cluster),
            Listing::ask(&capacities, Some(&ours), None),
        );
        let (node_plugins, pods, storage_pods, failures, attributes_classes, rights) = tokio::join!(
            Listing::ask(&daemon_sets, Some(setup::LABELS), None),
            Listing::ask(&pods, Some(setup::LABELS), None),
            Listing::with_twins(cluster, namespace, None, None),
            failures(cluster),
            attributes_classes(cluster),
            missing_rights(cluster, &setup, namespace),
        );
        let orphaned = Some("involvedObject.kind=RemoteCluster,reason=OrphanedVolume");
        let orphaned_volumes = Listing::ask(&cluster.all::<Event>(), None, orphaned).await;
        let snapshots = Snapshots::read(cluster, &Scope::All, namespace, storage.home.clone()).await;
        let offloading = Box::pin(Offloading::read(cluster)).await;
        Self {
            now: Timestamp::now(),
            setup,
            storage,
            namespace: of_twins,
            drivers,
            csi_nodes,
            capacities,
            attachments,
            attributes_classes,
            quotas,
            node_plugins,
            pods,
            storage_pods,
            failures,
            orphaned_volumes,
            snapshots,
            offloading,
            missing_rights: rights.0,
            unknown_rights: rights.1,
        }
    }

    /// What could not be read, and why.
    pub(crate) fn unknown(&self) -> Vec<String> {
        let mut unknown: Vec<String> = self.setup.unknown().into_iter().collect();
        unknown.extend(self.storage.unknown());
        unknown.extend(self.snapshots.unknown());
        unknown.extend(self.offloading.unknown());
        let refusals = [
            (
                "whether the namespace of the twins exists",
                self.namespace.refusal(),
            ),
            ("the CSIDriver objects", self.drivers.refusal()),
            ("which drivers the kubelets know", self.csi_nodes.refusal()),
            ("which capacity is published", self.capacities.refusal()),
            ("what is attached", self.attachments.refusal()),
            (
                "which attributes classes there are",
                self.attributes_classes.refusal(),
            ),
            ("which quotas there are", self.quotas.refusal()),
            ("how the node plugin is deployed", self.node_plugins.refusal()),
            ("the state of the pods of the driver", self.pods.refusal()),
            ("whether pods use twins", self.storage_pods.refusal()),
            ("which mounts failed", self.failures.refusal()),
            (
                "which volumes in remote clusters nothing releases",
                self.orphaned_volumes.refusal(),
            ),
        ];
        unknown.extend(
            refusals
                .into_iter()
                .filter_map(|(what, why)| why.map(|why| format!("{what}: {why}"))),
        );
        let rights = self.unknown_rights.iter();
        unknown.extend(rights.map(|why| format!("the rights of the controller: {why}")));
        unknown
    }
}

/// The namespace of the twins, if it is known and exists.
async fn twins_namespace(cluster: &Cluster, name: Option<&str>) -> Listing<Namespace> {
    match name {
        Some(name) => {
            let name_is = format!("metadata.name={name}");
            Listing::ask(&cluster.all(), None, Some(&name_is)).await
        }
        None => Listing::refused(NO_NAMESPACE),
    }
}

async fn failures(cluster: &Cluster) -> Listing<Event> {
    let events = cluster.all::<Event>();
    let (mounts, attachments) = tokio::join!(
        Listing::ask(&events, None, Some("involvedObject.kind=Pod,reason=FailedMount")),
        Listing::ask(
            &events,
            None,
            Some("involvedObject.kind=Pod,reason=FailedAttachVolume")
        ),
    );
    mounts.and(attachments)
}

/// They do not exist before Kubernetes 1.34.
async fn attributes_classes(cluster: &Cluster) -> Listing<VolumeAttributesClass> {
    Listing::of_installed(cluster.all().select(None, None).await)
}

/// Asks the API server which rights the controller's service account lacks; and why others are unknown.
async fn missing_rights(
    cluster: &Cluster,
    setup: &Setup,
    twins: Option<&str>,
) -> (Vec<Right>, Option<String>) {
    let Some(((namespace, account), twins)) = setup.service_account().zip(twins) else {
        return (Vec::new(), None);
    };
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let needed = rights::needed(&namespace, twins);
    let reviews = cluster.all::<SubjectAccessReview>();
    let asked = needed.iter().map(async |right| {
        let answer = reviews.create(&review(&user, &namespace, right)).await;
        let answer = answer.map_err(|error| reason(&error))?;
        is_allowed(answer.and_then(|it| it.status))
    });
    let (mut missing, mut unknown) = (Vec::new(), None);
    for (right, allowed) in needed.iter().zip(join_all(asked).await) {
        match allowed {
            Ok(true) => {}
            Ok(false) => missing.push(right.clone()),
            Err(why) => unknown = Some(why),
        }
    }
    (missing, unknown)
}

/// Whether an account has a right, or why the API server does not know.
fn is_allowed(answer: Option<SubjectAccessReviewStatus>) -> Result<bool, String> {
    let answer = answer.ok_or("the API server did not answer a SubjectAccessReview")?;
    let failure = answer.evaluation_error.filter(|error| !error.is_empty());
    match failure {
        Some(why) if !answer.allowed && answer.denied != Some(true) => Err(why),
        _ => Ok(answer.allowed),
    }
}

fn review(user: &str, namespace: &str, right: &Right) -> SubjectAccessReview {
    let groups = ["system:authenticated", "system:serviceaccounts"]
        .map(str::to_owned)
        .into_iter();
    let own = format!("system:serviceaccounts:{namespace}");
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (right.resource, None),
    };
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            groups: Some(groups.chain([own]).collect()),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(right.verb.to_owned()),
                group: Some(right.group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource,
                namespace: right.namespace.clone(),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_that_cannot_be_evaluated_is_unknown() {
        let answer = |allowed, error: Option<&str>| {
            is_allowed(Some(SubjectAccessReviewStatus {
                allowed,
                evaluation_error: error.map(str::to_owned),
                ..SubjectAccessReviewStatus::default()
            }))
        };
        assert_eq!((answer(true, None), answer(false, None)), (Ok(true), Ok(false)));
        assert_eq!(answer(true, Some("role x not found")), Ok(true));
        assert!(answer(false, Some("role x not found")).is_err() && is_allowed(None).is_err());
    }
}
