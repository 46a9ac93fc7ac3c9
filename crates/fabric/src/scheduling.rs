//! The label of offloaded namespaces, by which the admission policies of the chart select them. A user may set the label
//! beforehand, so that pods wait until the namespace is offloaded: that label is never removed.

use std::{collections::HashSet, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::json;
use tokio::sync::watch;

use super::{
    Idle,
    marks::{SCHEDULING, SCHEDULING_BY_US},
};
use crate::{
    api::namespace_offloading::{NAME, NamespaceOffloading},
    cluster::{ApiError, Cluster, unless_conflict},
    observe::crash::{self, Step},
    rounds::Rounds,
};

/// Removes the fabric's label from namespaces whose `NamespaceOffloading` disappeared without its finalizer, as after a
/// restore of namespaces alone: such a namespace would accept no pods.
pub(super) struct ForgottenLabels<'a> {
    home: &'a Cluster,
    idle: &'a Idle,
}

impl<'a> ForgottenLabels<'a> {
    pub(super) fn new(home: &'a Cluster, idle: &'a Idle) -> Self {
        Self { home, idle }
    }
}

impl Rounds for ForgottenLabels<'_> {
    const NAME: &'static str = "forgotten-labels";
    const RESYNC: Duration = Duration::from_mins(1);
    /// Each status write of a `NamespaceOffloading` is a change, and each round lists namespaces.
    const GATHER: Duration = Duration::from_secs(5);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.home.views().offloadings.version()]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let offloadings = &self.home.views().offloadings;
        if self.idle.borrow().is_some() || offloadings.outdated_since().is_some() {
            // Another tool may own these objects, or not all of them are known.
            return Ok(());
        }
        let wanted = format!("{SCHEDULING}=true");
        let labelled = self.home.all::<Namespace>();
        let labelled = labelled
            .pick(Some(&wanted), None, |it| {
                it.annotations().contains_key(SCHEDULING_BY_US).then_some(it)
            })
            .await?;
        let offloaded: HashSet<String> = offloadings.all().iter().filter_map(|it| it.namespace()).collect();
        for namespace in labelled {
            let name = namespace.name_any();
            if offloaded.contains(&name) {
                continue;
            }
            if self
                .home
                .within::<NamespaceOffloading>(&name)
                .get(NAME)
                .await?
                .is_none()
            {
                keep(self.home, &namespace, false).await?;
                tracing::info!(
                    namespace = name,
                    "removed the label of a namespace whose NamespaceOffloading does not exist any more"
                );
            }
        }
        Ok(())
    }
}

/// Sets the label, or removes it if the fabric has set it.
pub(super) async fn keep(home: &Cluster, namespace: &Namespace, offloaded: bool) -> Result<(), ApiError> {
    let is_ours = namespace.annotations().contains_key(SCHEDULING_BY_US);
    let is_labelled = namespace.labels().contains_key(SCHEDULING);
    let value = match (offloaded, is_ours) {
        (true, _) if !is_labelled => json!("true"),
        (false, true) => json!(null),
        _ => return Ok(()),
    };
    let patch = json!({"metadata": {
        "uid": namespace.uid(),
        "resourceVersion": namespace.resource_version(),
        "labels": {SCHEDULING: value},
        "annotations": {SCHEDULING_BY_US: value},
    }});
    let (all, name) = (home.all::<Namespace>(), namespace.name_any());
    let written = all.merge(&name, &patch);
    unless_conflict(crash::around(Step::OffloadLabel, written).await).map(drop)
}
