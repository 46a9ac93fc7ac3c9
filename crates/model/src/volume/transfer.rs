//! The record of an import on the real PV: the claim that may adopt it, and the PV and its claim before.
//! These annotations are the only state of an import. The record of a release is in `release`.

use std::{collections::BTreeMap, str::FromStr};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{ClaimName, mark};

type Map = BTreeMap<String, String>;

pub(super) const VERSION: u8 = 1;

/// Annotations of Kubernetes and its sidecars about the binding of a claim: they apply to that claim only,
/// and are not part of what a user wrote.
const BINDING: [&str; 11] = [
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
    "volume.kubernetes.io/selected-node",
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/storage-resizer",
    mark::ADOPT,
    mark::AWAITS_VOLUME,
    mark::IMPORT_UNDONE,
    mark::RELEASE_UNDONE,
    "pv.kubernetes.io/migrated-to",
];

/// Annotation with the class of a claim, which overrides its spec.
const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";

/// Keys by which deployment tools recognise their objects: the domain, or one key of it. (The label
/// `app.kubernetes.io/managed-by` only says which tool wrote a template.)
const OWNED_BY: [(&str, &str); 9] = [
    ("meta.helm.sh/", "Helm"),
    ("argocd.argoproj.io/", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/", "Flux"),
    ("helm.toolkit.fluxcd.io/", "Flux"),
    ("configmanagement.gke.io/managed", "Config Sync"),
    ("kapp.k14s.io/", "kapp"),
    ("objectset.rio.cattle.io/", "Fleet"),
    ("applyset.kubernetes.io/part-of", "kubectl apply --prune"),
    ("config.k8s.io/owning-inventory", "kpt"),
];

/// The deployment tool that manages an object with this metadata, and the key that shows it.
#[must_use]
pub fn managed_by(labels: &Map, annotations: &Map) -> Option<(&'static str, String)> {
    labels.keys().chain(annotations.keys()).find_map(|key| {
        let (_, tool) = OWNED_BY.iter().find(|(start, _)| key.starts_with(start))?;
        Some((*tool, key.clone()))
    })
}

/// A claim as its user wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OldClaim {
    pub namespace: String,
    /// The uid of the namespace: a later one of the same name may belong to another user.
    pub namespace_uid: String,
    pub name: String,
    pub uid: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map,
    /// Its annotations, without those about its binding.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub annotations: Map,
    /// Its `ownerReferences`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<Value>,
    pub spec: Value,
}

impl OldClaim {
    #[must_use]
    pub fn full_name(&self) -> ClaimName {
        ClaimName {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// The annotations of a claim except those about its binding.
    #[must_use]
    pub fn own_annotations(annotations: &Map) -> Map {
        let mut own = annotations.clone();
        own.retain(|key, _| !BINDING.contains(&key.as_str()));
        own
    }

    /// The claim of a virtual class that adopts this one's PV.
    ///
    /// Its source, selector and attributes class are left out: they were for provisioning the existing
    /// volume, and csi-provisioner would delete a volume whose response does not repeat its source.
    #[must_use]
    pub fn adopting(&self, class: &str, volume: &str) -> Value {
        let mut claim = self.manifest();
        for key in [
            "volumeName",
            "dataSource",
            "dataSourceRef",
            "selector",
            "volumeAttributesClassName",
        ] {
            if let Some(spec) = claim["spec"].as_object_mut() {
                spec.remove(key);
            }
        }
        claim["spec"]["storageClassName"] = class.into();
        if let Some(annotations) = claim["metadata"]["annotations"].as_object_mut() {
            annotations.remove(CLASS_BETA);
        }
        claim["metadata"]["annotations"][mark::ADOPT] = volume.into();
        claim
    }

    /// The claim of a real class that gets the PV of this one's twin.
    ///
    /// The fields that selected the virtual volume are left out.
    #[must_use]
    pub fn released(&self, class: &str, volume: &str, attributes: Option<&str>) -> Self {
        let mut released = self.clone();
        if let Some(spec) = released.spec.as_object_mut() {
            for key in [
                "dataSource",
                "dataSourceRef",
                "selector",
                "volumeAttributesClassName",
            ] {
                spec.remove(key);
            }
        }
        released.annotations.remove(CLASS_BETA);
        released.spec["storageClassName"] = class.into();
        released.spec["volumeName"] = volume.into();
        if let Some(attributes) = attributes {
            // A claim is bound only to a PV of the same attributes.
            released.spec["volumeAttributesClassName"] = attributes.into();
        }
        released
    }

    /// The claim as before, with the name of its PV, and a mark until the PV names it.
    #[must_use]
    pub fn as_before(&self, volume: &str) -> Value {
        let mut claim = self.manifest();
        claim["spec"]["volumeName"] = volume.into();
        claim["metadata"]["annotations"][mark::AWAITS_VOLUME] = volume.into();
        claim
    }

    fn manifest(&self) -> Value {
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "namespace": self.namespace,
                "name": self.name,
                "labels": self.labels,
                "annotations": self.annotations,
                "ownerReferences": self.owners,
            },
            "spec": self.spec,
        })
    }
}

/// A PV and its claim before an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImportRecord {
    version: u8,
    /// The virtual class that the claim gets.
    pub class: String,
    /// The reclaim policy of the PV.
    pub policy: String,
    pub claim: OldClaim,
}

/// A record that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("the annotation {key} cannot be read: {why}")]
    Malformed { key: &'static str, why: String },
    /// Another version of this driver wrote it.
    #[error(
        "the annotation {key} is of version {version}, and this program knows {VERSION}: use the version of liqo-csi that started the import, release or move"
    )]
    Version { key: &'static str, version: u8 },
}

impl ImportRecord {
    /// A record of the current version.
    #[must_use]
    pub fn new(class: String, policy: String, claim: OldClaim) -> Self {
        Self {
            version: VERSION,
            class,
            policy,
            claim,
        }
    }

    pub fn to_annotation(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// The record on a PV, if any.
    pub fn read(annotations: &Map) -> Result<Option<Self>, RecordError> {
        read_record(annotations, mark::IMPORT)
    }
}

/// The record in this annotation, if any.
pub(super) fn read_record<T: DeserializeOwned>(
    annotations: &Map,
    key: &'static str,
) -> Result<Option<T>, RecordError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u8,
    }
    let Some(text) = annotations.get(key) else {
        return Ok(None);
    };
    let malformed = |error: serde_json::Error| RecordError::Malformed {
        key,
        why: error.to_string(),
    };
    let Versioned { version } = serde_json::from_str(text).map_err(malformed)?;
    if version != VERSION {
        return Err(RecordError::Version { key, version });
    }
    serde_json::from_str(text).map(Some).map_err(malformed)
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a claim: use NAMESPACE/NAME")]
pub struct ClaimNameError(String);

impl FromStr for ClaimName {
    type Err = ClaimNameError;

    fn from_str(text: &str) -> Result<Self, ClaimNameError> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            _ => Err(ClaimNameError(text.to_owned())),
        }
    }
}

/// The claim that may adopt a PV with these annotations.
#[must_use]
pub fn adoptable_by(annotations: &Map) -> Option<ClaimName> {
    annotations.get(mark::ADOPT_FOR)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map {
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        pairs.iter().map(owned).collect()
    }

    fn record() -> ImportRecord {
        let claim = OldClaim {
            namespace: "shop".into(),
            namespace_uid: "u-shop".into(),
            name: "data".into(),
            uid: "u1".into(),
            labels: map(&[("app", "db")]),
            annotations: map(&[("team", "blue"), (CLASS_BETA, "fast")]),
            owners: vec![json!({"kind": "StatefulSet", "name": "db", "uid": "s"})],
            spec: json!({
                "storageClassName": "fast", "volumeName": "pv-1", "accessModes": ["ReadWriteOnce"],
                "dataSource": {"kind": "VolumeSnapshot", "name": "s"}, "dataSourceRef": {"kind": "VolumeSnapshot", "name": "s"},
                "selector": {"matchLabels": {"a": "b"}}, "volumeAttributesClassName": "gold",
            }),
        };
        ImportRecord::new("liqo".into(), "Delete".into(), claim)
    }

    #[test]
    fn a_record_survives_the_annotation() {
        let annotations = map(&[(mark::IMPORT, &record().to_annotation().unwrap())]);
        assert_eq!(ImportRecord::read(&annotations), Ok(Some(record())));
        assert_eq!(ImportRecord::read(&Map::new()), Ok(None));
    }

    #[test]
    fn an_unreadable_annotation_is_an_error_and_does_not_count_as_absent() {
        let read = |text: &str| ImportRecord::read(&map(&[(mark::IMPORT, text)]));
        assert!(matches!(read("{}"), Err(RecordError::Malformed { .. })));
        assert!(matches!(read("x"), Err(RecordError::Malformed { .. })));
        let newer = read(r#"{"version":2,"new":1}"#);
        assert!(matches!(newer, Err(RecordError::Version { version: 2, .. })));
    }

    #[test]
    fn the_adopting_claim_has_only_class_and_access_modes_in_its_spec() {
        let claim = record().claim.adopting("liqo", "pv-1");
        assert_eq!(
            claim["spec"],
            json!({"storageClassName": "liqo", "accessModes": ["ReadWriteOnce"]})
        );
        assert_eq!(
            claim["metadata"]["annotations"],
            json!({"team": "blue", mark::ADOPT: "pv-1"})
        );
        assert_eq!(claim["metadata"]["labels"]["app"], "db");
        assert_eq!(claim["metadata"]["ownerReferences"][0]["name"], "db");
    }

    #[test]
    fn the_old_claim_is_recreated_as_it_was() {
        let claim = record().claim.as_before("pv-1");
        assert_eq!(claim["spec"], record().claim.spec);
        assert_eq!(claim["metadata"]["annotations"][CLASS_BETA], "fast");
        assert_eq!(claim["metadata"]["annotations"][mark::AWAITS_VOLUME], "pv-1");
    }

    #[test]
    fn a_released_claim_requests_only_the_real_volume() {
        let claim = record().claim.released("fast", "pv-1", Some("silver"));
        assert_eq!(
            claim.spec,
            json!({
                "storageClassName": "fast", "volumeName": "pv-1", "accessModes": ["ReadWriteOnce"],
                "volumeAttributesClassName": "silver",
            })
        );
        assert_eq!(claim.annotations, map(&[("team", "blue")]));
        let without = record().claim.released("", "pv-1", None);
        assert_eq!(without.spec["volumeAttributesClassName"], Value::Null);
        assert_eq!(
            without.spec["storageClassName"], "",
            "none at all would be the default one"
        );
    }

    #[test]
    fn annotations_about_the_binding_are_not_the_users() {
        let all = map(&[
            ("team", "blue"),
            ("pv.kubernetes.io/bind-completed", "yes"),
            ("volume.kubernetes.io/selected-node", "n1"),
            (mark::ADOPT, "another"),
            (mark::AWAITS_VOLUME, "another"),
        ]);
        assert_eq!(OldClaim::own_annotations(&all), map(&[("team", "blue")]));
    }

    #[test]
    fn deployment_tools_are_recognised_by_their_keys() {
        let none = Map::new();
        let tool = |key: &str| managed_by(&none, &map(&[(key, "x")])).map(|(tool, _)| tool);
        assert_eq!(tool("meta.helm.sh/release-name"), Some("Helm"));
        assert_eq!(tool("argocd.argoproj.io/tracking-id"), Some("Argo CD"));
        assert_eq!(tool("kustomize.toolkit.fluxcd.io/name"), Some("Flux"));
        assert_eq!(tool("configmanagement.gke.io/managed"), Some("Config Sync"));
        for key in ["helm.sh/chart", "app.kubernetes.io/managed-by", "team"] {
            assert_eq!(tool(key), None, "a claim template of a chart has it too: {key}");
        }
        let labels = map(&[("kapp.k14s.io/app", "1")]);
        assert_eq!(
            managed_by(&labels, &none),
            Some(("kapp", "kapp.k14s.io/app".to_owned()))
        );
    }

    #[test]
    fn claims_are_named_with_their_namespace() {
        assert_eq!("shop/data".parse::<ClaimName>().unwrap().to_string(), "shop/data");
        for wrong in ["data", "/data", "shop/", "a/b/c", ""] {
            assert!(wrong.parse::<ClaimName>().is_err(), "{wrong}");
        }
        let permitted = map(&[(mark::ADOPT_FOR, "shop/data")]);
        assert_eq!(adoptable_by(&permitted).unwrap().name, "data");
        assert_eq!(adoptable_by(&map(&[(mark::ADOPT_FOR, "data")])), None);
    }
}
