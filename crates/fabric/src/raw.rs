//! Pods with all fields that the API server has: the typed `Pod` drops those that it does not know.

use std::borrow::Cow;

use kube::{Resource, ResourceExt, api::ObjectMeta, core::NamespaceResourceScope};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::marks::{HOME_POD, HOME_POD_UID, REMOTE_CLUSTER, REMOTE_CLUSTER_UID, REMOTE_NAMESPACE};
use crate::offload::{
    is_name, is_uid,
    pods::{FINALIZER, GATE, HomePod, RemotePod, STARTED},
};

/// Why the state of a started remote pod is unknown: other clients have changed its annotations.
const CHANGED_MARKS: &str = "its annotations fabric.storage.liqo.io/home-* were changed there. Restore them, or delete it there: \
                             this pod ends then";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RawPod {
    #[serde(rename = "apiVersion", default = "version")]
    api_version: String,
    #[serde(default = "kind")]
    kind: String,
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Value,
    #[serde(default)]
    pub(super) status: Value,
}

fn version() -> String {
    "v1".to_owned()
}

fn kind() -> String {
    "Pod".to_owned()
}

impl Resource for RawPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl RawPod {
    /// `namespace/name`.
    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.namespace().unwrap_or_default(), self.name_any())
    }

    pub(super) fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations().get(key).map(String::as_str)
    }

    /// Whether its name and uid are well-formed: those of a remote pod become parts of requests and messages here.
    pub(super) fn is_plausible(&self) -> bool {
        is_name(&self.name_any()) && is_uid(self.uid())
    }

    /// As JSON, for the decisions in [`crate::offload::pods`].
    pub(super) fn json(&self) -> Value {
        json!({"metadata": self.metadata, "spec": self.spec, "status": self.status})
    }

    /// The metadata of a patch that applies to exactly this version.
    pub(super) fn exactly(&self) -> Value {
        json!({"uid": self.metadata.uid, "resourceVersion": self.metadata.resource_version})
    }

    /// The grace period in seconds, if it is being deleted.
    fn deleting(&self) -> Option<i64> {
        deleting(&self.metadata)
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.status["phase"].as_str(), Some("Succeeded" | "Failed"))
    }

    /// The facts about a home pod for decisions.
    pub(super) fn as_home(&self) -> HomePod {
        // Other clients may erase one of the two; a pod that has started must never be started again.
        let has_started = self.status["startTime"].is_string() || self.started().is_some();
        home_pod(&self.metadata, has_started, self.has_ended())
    }

    /// The facts about a remote pod for decisions, for the home pod with this key, if that exists.
    pub(super) fn as_there(&self, is_ours: bool, key: &str, home: Option<&Self>) -> RemotePod {
        let is_marked = is_ours && self.home_key() == Some(key);
        let is_of_uid = |home: &Self| is_marked && self.annotation(HOME_POD_UID) == Some(home.uid());
        // The uid shows that this pod was started for the home pod, although its marks do not match any more: its name
        // must not be used again, and it must not be deleted.
        if home.is_some_and(|home| home.started() == Some(self.uid()) && !is_of_uid(home)) {
            return RemotePod::Unknown(CHANGED_MARKS.to_owned());
        }
        if !is_marked {
            return RemotePod::Foreign;
        }
        let is_of = |home: &Self| {
            let started = home.started().is_none_or(|uid| uid == self.uid());
            is_of_uid(home) && started
        };
        if !home.is_none_or(is_of) {
            return RemotePod::Earlier {
                deleting: self.deleting().is_some(),
            };
        }
        RemotePod::Ours {
            gated: self.is_gated(),
            deleting: self.deleting(),
            ended: self.has_ended(),
        }
    }

    /// The uid of the remote pod that this home pod was started as, if it was.
    pub(super) fn started(&self) -> Option<&str> {
        let conditions = self.status["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.find(|it| it["type"] == STARTED)?["message"].as_str()
    }

    pub(super) fn has_our_finalizer(&self) -> bool {
        has_our_finalizer(&self.metadata)
    }

    fn is_gated(&self) -> bool {
        let gates = self.spec["schedulingGates"].as_array();
        gates.into_iter().flatten().any(|gate| gate["name"] == GATE)
    }

    /// Cluster and namespace in which a home pod may run.
    pub(super) fn place(&self) -> Option<(&str, &str)> {
        place(&self.metadata)
    }

    /// The home pod in the annotation of a remote pod, as `namespace/name`.
    pub(super) fn home_key(&self) -> Option<&str> {
        home_key(&self.metadata)
    }

    pub(super) fn is_of_daemon_set(&self) -> bool {
        let owners = self.owner_references();
        owners
            .iter()
            .any(|it| it.controller == Some(true) && it.kind == "DaemonSet")
    }
}

/// The facts about a home pod with this metadata, for decisions.
pub(super) fn home_pod(meta: &ObjectMeta, started: bool, ended: bool) -> HomePod {
    let owners = meta.owner_references.iter().flatten();
    HomePod {
        deleting: deleting(meta),
        claimed: has_our_finalizer(meta)
            && place(meta).is_some()
            && annotation(meta, REMOTE_CLUSTER_UID).is_some(),
        started,
        ended,
        controlled: owners.into_iter().any(|it| it.controller == Some(true)),
    }
}

fn deleting(meta: &ObjectMeta) -> Option<i64> {
    meta.deletion_timestamp.as_ref()?;
    Some(meta.deletion_grace_period_seconds.unwrap_or_default())
}

pub(super) fn has_our_finalizer(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|it| it == FINALIZER)
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(super) fn place(meta: &ObjectMeta) -> Option<(&str, &str)> {
    let namespace = annotation(meta, REMOTE_NAMESPACE).filter(|it| is_name(it))?;
    Some((annotation(meta, REMOTE_CLUSTER)?, namespace))
}

pub(super) fn home_key(meta: &ObjectMeta) -> Option<&str> {
    let key = annotation(meta, HOME_POD)?;
    let (namespace, name) = key.split_once('/')?;
    (is_name(namespace) && is_name(name)).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another pod of its name would run beside it.
    #[test]
    fn a_started_remote_pod_with_other_marks_is_neither_gone_nor_replaced() {
        let pod = |json: Value| serde_json::from_value::<RawPod>(json).unwrap();
        let home = |started: &str| {
            pod(json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "h1"},
                "status": {"conditions": [{"type": STARTED, "status": "True", "message": started}]},
            }))
        };
        let remote = |key: &str, uid: &str| {
            let annotations = json!({HOME_POD: key, HOME_POD_UID: uid});
            pod(json!({"metadata": {"name": "web", "uid": "r1", "annotations": annotations}, "spec": {}}))
        };
        let ours = remote("shop/web", "h1");
        let unknown = RemotePod::Unknown(CHANGED_MARKS.to_owned());
        for (remote, is_ours) in [
            (remote("shop/other", "h1"), true),
            (remote("shop/web", "h0"), true),
            (ours.clone(), false),
        ] {
            assert_eq!(remote.as_there(is_ours, "shop/web", Some(&home("r1"))), unknown);
            assert_ne!(remote.as_there(is_ours, "shop/web", Some(&home("r0"))), unknown);
        }
        let there = ours.as_there(true, "shop/web", Some(&home("r1")));
        assert!(matches!(there, RemotePod::Ours { .. }), "{there:?}");
    }

    #[test]
    fn a_pod_counts_as_started_by_its_start_time_or_our_condition() {
        let started = |status: Value| {
            let pod = json!({"metadata": {"name": "web"}, "status": status});
            serde_json::from_value::<RawPod>(pod).unwrap().as_home().started
        };
        let condition = json!([{"type": STARTED, "status": "True", "message": "uid"}]);
        assert!(!started(json!({"phase": "Pending", "conditions": []})));
        assert!(started(json!({"startTime": "2026-01-01T00:00:00Z"})));
        assert!(started(json!({ "conditions": condition })));
    }
}
