//! What is written so that a pod of a move runs: the pod itself or, where Liqo's identity may make
//! no pods, the `ShadowPod` from which Liqo makes one there, of the same name, labels and
//! annotations. Liqo makes that pod again if somebody deletes it, until it has ended.

// What Liqo documents is not documented again.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{CustomResource, Resource, ResourceExt};
use serde::{Deserialize, Serialize};

/// Label by which Liqo knows for whom it makes a pod.
const ORIGIN: &str = "offloading.liqo.io/origin";

/// What is wanted of a `ShadowPod`.
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

/// What became of a `ShadowPod`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ShadowPodStatus {
    pub(super) phase: Option<String>,
}

impl ShadowPod {
    /// Has Liqo make this pod for the cluster of that name.
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

    /// Whether Liqo makes no pod any more.
    pub(super) fn has_ended(&self) -> bool {
        let phase = self.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }
}

/// What was written for one pod.
#[derive(Clone, Copy)]
pub(super) enum Written<'p> {
    Pod(&'p Pod),
    Shadow(&'p ShadowPod),
}

impl Written<'_> {
    pub(super) fn annotations(&self) -> &BTreeMap<String, String> {
        match self {
            Self::Pod(pod) => pod.annotations(),
            Self::Shadow(shadow) => shadow.annotations(),
        }
    }

    /// The Secret that the pod waits for, if it needs one.
    pub(super) fn keeper(&self) -> Option<Keeper> {
        match self {
            Self::Pod(pod) => Keeper::of(*pod, pod.spec.as_ref()),
            Self::Shadow(shadow) => Keeper::of(*shadow, Some(&shadow.spec.pod)),
        }
    }
}

/// Whom a Secret goes with, and how it is called.
#[derive(Clone, Debug)]
pub(super) struct Keeper {
    pub(super) owner: OwnerReference,
    pub(super) namespace: String,
    pub(super) secret: String,
}

impl Keeper {
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

/// The uid of the `ShadowPod` from which Liqo made a pod.
pub(super) fn shadow_of(pod: &Pod) -> Option<&str> {
    let owners = pod.owner_references().iter();
    let mut shadows = owners.filter(|owner| owner.kind == ShadowPod::kind(&()));
    shadows.next().map(|owner| owner.uid.as_str())
}
