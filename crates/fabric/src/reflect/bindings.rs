//! The right to read the Secrets of an offloaded namespace: a `RoleBinding` that the fabric creates for itself, and
//! deletes again. An admission policy of the chart restricts it to offloaded namespaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use kube::{ResourceExt, api::ObjectMeta};
use tokio::time::Instant;

use crate::{
    cluster::{ApiError, Cluster, Precondition, unless_conflict},
    observe::crash::{self, Step},
    volume::mark,
};

/// The name of the bindings and of their `ClusterRole`.
pub(super) const ROLE: &str = "liqo-csi-fabric-reflected";
/// The service account of the fabric.
const ACCOUNT: &str = "liqo-csi-fabric";
const RBAC: &str = "rbac.authorization.k8s.io";
/// The interval of the lists that show bindings which others have deleted.
const RELIST: Duration = Duration::from_mins(2);

pub(super) struct Bindings<'a> {
    home: &'a Cluster,
    /// The namespace of the fabric's service account.
    fabric: String,
    /// The binding of each namespace that has one.
    known: BTreeMap<String, Binding>,
    next_list: Instant,
}

struct Binding {
    uid: String,
    /// Whether a fabric created it.
    ours: bool,
    /// Whether it names the account of this fabric.
    for_us: bool,
}

impl<'a> Bindings<'a> {
    pub(super) fn new(home: &'a Cluster, fabric: &str) -> Self {
        Self {
            home,
            fabric: fabric.to_owned(),
            known: BTreeMap::new(),
            next_list: Instant::now(),
        }
    }

    pub(super) fn has(&self, namespace: &str) -> bool {
        self.known.contains_key(namespace)
    }

    /// Creates a binding in each of these namespaces, and deletes our others, also those for the account of an earlier
    /// release, which was in another namespace. Continues after an error.
    pub(super) async fn reconcile(&mut self, wanted: &BTreeSet<String>) -> Result<(), ApiError> {
        if self.next_list <= Instant::now() {
            self.known = self.list().await?;
            self.next_list = Instant::now() + RELIST;
        }
        let mut outcome = Ok(());
        let is_kept = |namespace: &String, it: &Binding| !it.ours || it.for_us && wanted.contains(namespace);
        let left = self
            .known
            .iter()
            .filter(|&(namespace, it)| !is_kept(namespace, it));
        let left: Vec<String> = left.map(|(namespace, _)| namespace.clone()).collect();
        for namespace in left {
            outcome = outcome.and(self.unbind(&namespace).await);
        }
        for namespace in wanted {
            if !self.known.contains_key(namespace) {
                outcome = outcome.and(self.bind(namespace).await);
            }
        }
        outcome
    }

    async fn list(&self) -> Result<BTreeMap<String, Binding>, ApiError> {
        let all = self.home.all::<RoleBinding>();
        let named = format!("metadata.name={ROLE}");
        let found = all.pick(None, Some(&named), |it| {
            Some((it.namespace().unwrap_or_default(), Binding::of(&it, &self.fabric)))
        });
        Ok(found.await?.into_iter().collect())
    }

    async fn bind(&mut self, namespace: &str) -> Result<(), ApiError> {
        let bindings = self.home.within::<RoleBinding>(namespace);
        let wanted = self.binding();
        let made = crash::around(Step::ReflectBind, bindings.create(&wanted)).await?;
        let there = match made {
            Some(made) => Some(made),
            None => bindings.get(ROLE).await?,
        };
        if let Some(there) = there {
            let binding = Binding::of(&there, &self.fabric);
            self.known.insert(namespace.to_owned(), binding);
            tracing::info!(
                namespace,
                "created the RoleBinding to read the Secrets of a namespace"
            );
        }
        Ok(())
    }

    async fn unbind(&mut self, namespace: &str) -> Result<(), ApiError> {
        let Some(binding) = self.known.get(namespace) else {
            return Ok(());
        };
        let exactly = Precondition {
            uid: binding.uid.clone(),
            resource_version: None,
        };
        let bindings = self.home.within::<RoleBinding>(namespace);
        let deleted = bindings.delete(ROLE, exactly);
        let deleted = crash::around(Step::ReflectUnbind, deleted).await.map(Some);
        unless_conflict(deleted)?;
        self.known.remove(namespace);
        tracing::info!(
            namespace,
            "deleted the RoleBinding to read the Secrets of a namespace"
        );
        Ok(())
    }

    fn binding(&self) -> RoleBinding {
        let labels = [(mark::MANAGED_BY.to_owned(), mark::MANAGED_BY_US.to_owned())];
        RoleBinding {
            metadata: ObjectMeta {
                name: Some(ROLE.to_owned()),
                labels: Some(labels.into()),
                ..ObjectMeta::default()
            },
            role_ref: RoleRef {
                api_group: RBAC.to_owned(),
                kind: "ClusterRole".to_owned(),
                name: ROLE.to_owned(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: ACCOUNT.to_owned(),
                namespace: Some(self.fabric.clone()),
                ..Subject::default()
            }]),
        }
    }
}

impl Binding {
    /// `fabric` is the namespace of this fabric's account.
    fn of(binding: &RoleBinding, fabric: &str) -> Self {
        let is_us = |it: &Subject| {
            it.kind == "ServiceAccount" && it.name == ACCOUNT && it.namespace.as_deref() == Some(fabric)
        };
        Self {
            for_us: binding.subjects.iter().flatten().any(is_us),
            uid: binding.uid().unwrap_or_default(),
            ours: mark::manager(binding.labels()) == Some(mark::MANAGED_BY_US),
        }
    }
}
