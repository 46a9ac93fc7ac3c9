//! One namespace in one remote cluster: what is there, and the writes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::{ResourceExt, api::ObjectMeta};

use super::{
    marks::{HOME, HOME_NAMESPACE, HOME_NAMESPACE_UID, HOME_UID},
    rights,
};
use crate::{
    cluster::{ApiError, Cluster, Precondition, may_within},
    observe::crash::{self, Step},
    offload::{Claim, Seen},
    volume::{ClusterId, mark},
};

/// For whom a namespace is made.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) home: ClusterId,
    pub(super) home_uid: String,
    pub(super) namespace: String,
    pub(super) namespace_uid: String,
}

/// What is wanted to be known of a namespace that is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Whether twins can be made in it, and pods if the fabric runs them.
    Usable {
        /// Whether it does.
        pods: bool,
    },
    /// Which claims it holds.
    Claims,
    /// Neither.
    Presence,
}

impl Owner {
    /// What the cluster has under this name, read live.
    pub(super) async fn look(&self, there: &Cluster, name: &str, asked: Question) -> Seen {
        self.read(there, name, asked)
            .await
            .unwrap_or_else(|error| Seen::Unknown(error.to_string()))
    }

    async fn read(&self, there: &Cluster, name: &str, asked: Question) -> Result<Seen, ApiError> {
        let Some(found) = there.all::<Namespace>().get(name).await? else {
            return Ok(Seen::Absent);
        };
        if let Some(why) = self.disowns(&found, name) {
            return Ok(Seen::Foreign(why));
        }
        let (mut claims, mut usable) = (Vec::new(), Ok(()));
        match asked {
            Question::Claims => claims = claims_in(there, name).await?,
            Question::Usable { pods } => {
                usable = if !may_within(there, name, "create", "", "persistentvolumeclaims").await? {
                    Err(format!(
                        "the namespace {name} is there, but this driver may not make claims in it: see \
                         remoteAccess.level fabric of the chart"
                    ))
                } else if pods {
                    rights::take(there, name).await?
                } else {
                    Ok(())
                };
            }
            Question::Presence => {}
        }
        Ok(Seen::Ours {
            uid: found.uid().unwrap_or_default(),
            deleting: found.metadata.deletion_timestamp.is_some(),
            claims,
            usable,
        })
    }

    /// Why a namespace is not the one that was made for this owner, if it is not.
    fn disowns(&self, found: &Namespace, name: &str) -> Option<String> {
        let (labels, annotations) = (found.labels(), found.annotations());
        let taken = |by: &str| {
            Some(format!(
                "the cluster has a namespace {name} already, {by}; it is left as it is. Choose another name, or have it \
                 deleted there"
            ))
        };
        let Some(home) = labels.get(HOME) else {
            return taken("which this driver did not make");
        };
        if *home != self.home.as_str() || annotations.get(HOME_UID) != Some(&self.home_uid) {
            return taken(&format!("which belongs to another home cluster ({home})"));
        }
        let namespace = labels.get(HOME_NAMESPACE).map_or("", String::as_str);
        if namespace != self.namespace {
            return taken(&format!(
                "which belongs to the namespace {namespace} of this cluster"
            ));
        }
        if annotations.get(HOME_NAMESPACE_UID) != Some(&self.namespace_uid) {
            return taken("which belongs to an earlier namespace of this name");
        }
        None
    }

    /// Makes the namespace; nothing, if one of that name is there by now.
    pub(super) async fn create(&self, there: &Cluster, name: &str) -> Result<(), ApiError> {
        let pairs = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect()
        };
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(pairs(&[
                    (mark::MANAGED_BY, mark::MANAGED_BY_US),
                    (HOME, self.home.as_str()),
                    (HOME_NAMESPACE, &self.namespace),
                ])),
                annotations: Some(pairs(&[
                    (HOME_UID, &self.home_uid),
                    (HOME_NAMESPACE_UID, &self.namespace_uid),
                ])),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let all = there.all::<Namespace>();
        crash::around(Step::OffloadCreate, all.create(&namespace)).await?;
        tracing::info!(cluster = %there.id(), name, home = self.namespace, "made a namespace");
        Ok(())
    }

    /// Deletes the namespace of this uid.
    pub(super) async fn delete(&self, there: &Cluster, name: &str, uid: String) -> Result<(), ApiError> {
        let exactly = Precondition {
            uid,
            resource_version: None,
        };
        let all = there.all::<Namespace>();
        crash::around(Step::OffloadDelete, all.delete(name, exactly)).await?;
        tracing::info!(cluster = %there.id(), name, home = self.namespace, "deleted a namespace");
        Ok(())
    }
}

/// The claims of a namespace, whoever made them. Whether their likes at home are leaving is for
/// others to tell.
async fn claims_in(there: &Cluster, namespace: &str) -> Result<Vec<Claim>, ApiError> {
    let claims = there.within::<PersistentVolumeClaim>(namespace);
    let describe = |claim: PersistentVolumeClaim| {
        Some(Claim {
            is_twin: claim.labels().get(mark::MANAGED_BY).map(String::as_str) == Some(mark::MANAGED_BY_US),
            name: claim.name_any(),
            leaving: false,
        })
    };
    claims.pick(None, None, describe).await
}
