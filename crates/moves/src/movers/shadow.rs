//! The object from which a pod of a move is created: the pod itself or, where Liqo's identity must not create
//! pods, a `ShadowPod`. Liqo creates a pod with the same name, labels and annotations, and creates it again
//! if it is deleted, until it has ended.

// The fields are documented by Liqo.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{CustomResource, Resource, ResourceExt};
use serde::{Deserialize, Serialize};

/// Liqo's label with the cluster for which it creates a pod.
const ORIGIN: &str = "offloading.liqo.io/origin";

#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "offloading.liqo.io",
    version = "v1beta1",
    kind = "ShadowPod",
    namespaced,
    status = "ShadowPodStatus",
    derive = "PartialEq",
    schema = "disabled",
    doc = "A pod that Liqo makes."
)]
#[serde(default)]
pub(super) struct ShadowPodSpec {
    pub(super) pod: PodSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ShadowPodStatus {
    pub(super) phase: Option<String>,
}

impl ShadowPod {
    /// A `ShadowPod` for this pod, on behalf of the cluster of that name.
    pub(super) fn making(pod: Pod, origin: &str) -> Self {
        let mut metadata = pod.metadata;
        let labels = metadata.labels.get_or_insert_default();
        labels.insert(ORIGIN.to_owned(), origin.to_owned());
        Self {
            metadata,
            spec: ShadowPodSpec {
                pod: pod.spec.unwrap_or_default(),
            },
            status: None,
        }
    }

    /// Whether Liqo creates no more pods for it.
    pub(super) fn has_ended(&self) -> bool {
        let phase = self.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }
}

/// The object that was created for a pod.
#[derive(Clone, Copy)]
pub(super) enum PodObject<'p> {
    Pod(&'p Pod),
    Shadow(&'p ShadowPod),
}

impl PodObject<'_> {
    pub(super) fn annotations(&self) -> &BTreeMap<String, String> {
        match self {
            Self::Pod(pod) => pod.annotations(),
            Self::Shadow(shadow) => shadow.annotations(),
        }
    }

    /// The Secret that the pod needs, if any.
    pub(super) fn secret_owner(&self) -> Option<SecretOwner> {
        match self {
            Self::Pod(pod) => SecretOwner::of(*pod, pod.spec.as_ref()),
            Self::Shadow(shadow) => SecretOwner::of(*shadow, Some(&shadow.spec.pod)),
        }
    }
}

/// The owner and name of a Secret.
#[derive(Clone, Debug)]
pub(super) struct SecretOwner {
    pub(super) owner: OwnerReference,
    pub(super) namespace: String,
    pub(super) secret: String,
}

impl SecretOwner {
    fn of<K: Resource<DynamicType = ()>>(object: &K, spec: Option<&PodSpec>) -> Option<Self> {
        let mut volumes = spec?.volumes.iter().flatten();
        let secret = volumes.find_map(|volume| volume.secret.as_ref()?.secret_name.clone())?;
        let owner = OwnerReference {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            ..OwnerReference::default()
        };
        Some(Self {
            owner,
            namespace: object.namespace().unwrap_or_default(),
            secret,
        })
    }
}

/// The uid of the `ShadowPod` from which Liqo created a pod.
pub(super) fn shadow_uid(pod: &Pod) -> Option<&str> {
    let owners = pod.owner_references().iter();
    let mut shadows = owners.filter(|owner| owner.kind == ShadowPod::kind(&()));
    shadows.next().map(|owner| owner.uid.as_str())
}
