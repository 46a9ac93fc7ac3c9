//! The label of offloaded namespaces, by which the admission policies of the chart select them. A user may set the label
//! beforehand, so that pods wait until the namespace is offloaded: that label is never removed.

use std::{collections::HashSet, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    Idle,
    marks::{NOT_OFFLOADED, SCHEDULING, SCHEDULING_BY_US},
};
use crate::{
    api::namespace_offloading::{NAME, NamespaceOffloading},
    cluster::{ApiError, Cluster, unless_conflict},
    observe::crash::{self, Step},
    rounds::Rounds,
};

/// Namespaces with the label and without `NamespaceOffloading`, whose pods are refused. If the fabric set the label, it is
/// removed: the object disappeared without its finalizer, as after a restore of namespaces alone. If a user set it, another
/// label selects the policy that says what is missing.
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
        let needs_change = |it: &Namespace| {
            it.annotations().contains_key(SCHEDULING_BY_US) || !it.labels().contains_key(NOT_OFFLOADED)
        };
        let labelled = self.home.all::<Namespace>();
        let labelled = labelled
            .pick(Some(&wanted), None, |it| needs_change(&it).then_some(it))
            .await?;
        let offloaded: HashSet<String> = offloadings.all().iter().filter_map(|it| it.namespace()).collect();
        for namespace in labelled {
            let name = namespace.name_any();
            if offloaded.contains(&name) {
                continue;
            }
            let live = self.home.within::<NamespaceOffloading>(&name).get(NAME).await?;
            if live.is_none() {
                if namespace.annotations().contains_key(SCHEDULING_BY_US) {
                    keep(self.home, &namespace, false).await?;
                } else {
                    write(self.home, &namespace, json!({"labels": {NOT_OFFLOADED: "true"}})).await?;
                }
                tracing::info!(
                    namespace = name,
                    "a namespace has the label {SCHEDULING}, and its NamespaceOffloading does not exist"
                );
            }
        }
        Ok(())
    }
}

/// Sets the label of a namespace that has a `NamespaceOffloading`, or removes it if the fabric has set it.
pub(super) async fn keep(home: &Cluster, namespace: &Namespace, offloaded: bool) -> Result<(), ApiError> {
    let is_ours = namespace.annotations().contains_key(SCHEDULING_BY_US);
    let has = |label: &str| namespace.labels().contains_key(label);
    let value = match (offloaded, is_ours) {
        (true, _) if !has(SCHEDULING) => json!("true"),
        (false, true) => json!(null),
        _ if has(NOT_OFFLOADED) => {
            return write(home, namespace, json!({"labels": {NOT_OFFLOADED: null}})).await;
        }
        _ => return Ok(()),
    };
    let metadata = json!({
        "labels": {SCHEDULING: value, NOT_OFFLOADED: null},
        "annotations": {SCHEDULING_BY_US: value},
    });
    write(home, namespace, metadata).await
}

async fn write(home: &Cluster, namespace: &Namespace, mut metadata: Value) -> Result<(), ApiError> {
    metadata["uid"] = json!(namespace.uid());
    metadata["resourceVersion"] = json!(namespace.resource_version());
    let (all, name, patch) = (
        home.all::<Namespace>(),
        namespace.name_any(),
        json!({ "metadata": metadata }),
    );
    let written = all.merge(&name, &patch);
    unless_conflict(crash::around(Step::OffloadLabel, written).await).map(drop)
}
