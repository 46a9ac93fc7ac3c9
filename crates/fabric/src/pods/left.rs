//! Remote namespaces of this home cluster that no `NamespaceOffloading` names any more: their cluster was declared lost and
//! came back, a finalizer was removed by force, or a backup was restored, here or there.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Resource, ResourceExt};
use tokio::time::{Instant, timeout};

use super::Pods;
use crate::{
    cluster::ApiError,
    marks::{HOME, HOME_NAMESPACE, HOME_UID},
    offload::{first_names, is_name},
    places::Place,
};

/// Namespaces that are watched. A cluster can invent any number of them.
const MOST: usize = 256;
/// A cluster that hangs must not delay what is known of it already.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// Namespaces that are named in an event.
const MOST_NAMED: usize = 10;

/// Remote namespaces, each with its namespace at home if a label names it.
pub(super) type Listed = BTreeMap<String, Option<String>>;

impl Pods<'_> {
    /// Lists the remote namespaces of this home cluster that are not mapped: when the cluster answers again, and when all
    /// pods are due. Reports those that are left. `None` if they are not listed now, or the right is missing, which charts
    /// before this version did not grant.
    pub(super) async fn list_namespaces(&self, place: Option<&Place>) -> Option<Listed> {
        let is_due = {
            let state = self.state();
            !state.answers || state.resync <= Instant::now()
        };
        let listed = self.unmapped(place.filter(|_| is_due)?);
        let listed = timeout(LIST_TIMEOUT, listed).await.ok()?.ok()?;
        self.report_left(&listed).await;
        Some(listed)
    }

    /// The remote namespaces of this home cluster that are not being deleted.
    async fn unmapped(&self, place: &Place) -> Result<Listed, ApiError> {
        let home_uid = self.places.home_uid().await?;
        let ours = format!("{HOME}={}", self.places.home.id());
        let named = |found: Namespace| {
            let is_ours = found
                .annotations()
                .get(HOME_UID)
                .is_some_and(|uid| uid == home_uid);
            let (name, home) = (found.name_any(), found.labels().get(HOME_NAMESPACE));
            (is_ours && is_name(&name) && found.metadata.deletion_timestamp.is_none())
                .then(|| (name, home.filter(|it| is_name(it)).cloned()))
        };
        let all = place.cluster.all::<Namespace>();
        let found = all.pick(Some(&ours), None, named).await?.into_iter();
        let mapped = self.remote_namespaces();
        Ok(found
            .filter(|(name, _)| !mapped.contains(name))
            .take(MOST)
            .collect())
    }

    /// Emits an event on the `RemoteCluster` if other namespaces than before are left there.
    async fn report_left(&self, there: &Listed) {
        let offloadings = &self.places.home.views().offloadings;
        if *offloadings.version().borrow() == 0 {
            return;
        }
        let offloadings = offloadings.all();
        let named: BTreeSet<&str> = offloadings
            .iter()
            .filter(|one| one.readiness(self.cluster.as_str()).is_some())
            .filter_map(|one| one.status.as_ref()?.remote_namespace_name.as_deref())
            .collect();
        let left = there.iter().filter(|(name, _)| !named.contains(name.as_str()));
        let described = left.map(|(name, home)| match home {
            Some(home) => format!("{name} (of {home})"),
            None => name.clone(),
        });
        let left: Vec<String> = described.collect();
        let is_new = std::mem::replace(&mut self.state().left, left.clone()) != left;
        let Some(object) = self.remote_cluster().filter(|_| is_new && !left.is_empty()) else {
            return;
        };
        let note = format!(
            "the cluster {} has namespaces that this fabric created and that no NamespaceOffloading names any more, for example after \
             the taint out-of-service or a restored backup: {}. Their pods without a pod here are deleted, the rest stays: \
             offload their namespaces again under these names, or delete them there if the data of their claims is not needed",
            self.cluster,
            first_names(&left, MOST_NAMED)
        );
        tracing::warn!("{note}");
        let about = object.object_ref(&());
        self.events.warn_object(about, "NamespacesLeft", &note).await;
    }
}
