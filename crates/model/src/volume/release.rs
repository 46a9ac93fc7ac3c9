//! The record of a release on the real PV: the volume and its claim before. This annotation, and a mark on
//! the twin, are the only state of a release.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    ClaimName, OldClaim, RecordError, mark,
    transfer::{VERSION, read_record},
};

type Map = BTreeMap<String, String>;

/// The virtual PV before the release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OldVolume {
    pub name: String,
    pub policy: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub annotations: Map,
    /// Its `spec`, without the `claimRef`.
    pub spec: Value,
}

impl OldVolume {
    /// The PV as before, but retained, and with a `claimRef` to the deleted claim: with a name only, any new
    /// claim of that name could be bound to it.
    #[must_use]
    pub fn again(&self, claim: &ClaimName, uid: &str) -> Value {
        let mut volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": self.name, "labels": self.labels, "annotations": self.annotations},
            "spec": self.spec,
        });
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        volume["spec"]["claimRef"] = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": uid,
        });
        volume
    }
}

/// A volume and its claim before a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseRecord {
    version: u8,
    /// Whether the release is being undone.
    #[serde(default)]
    pub undone: bool,
    /// The reclaim policy of the real PV.
    pub policy: String,
    /// The policy before this driver replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
    pub twin_namespace: String,
    pub twin_name: String,
    pub twin_uid: String,
    pub volume: OldVolume,
    pub claim: OldClaim,
}

/// The content of a record.
#[derive(Clone, Debug)]
pub struct Released {
    /// The reclaim policy of the real PV.
    pub policy: String,
    /// The policy before this driver replaced it.
    pub replaced: Option<String>,
    /// Namespace, name and uid of the twin.
    pub twin: (String, String, String),
    pub volume: OldVolume,
    pub claim: OldClaim,
}

impl ReleaseRecord {
    /// A record of the current version.
    #[must_use]
    pub fn new(of: Released) -> Self {
        let (twin_namespace, twin_name, twin_uid) = of.twin;
        Self {
            version: VERSION,
            undone: false,
            policy: of.policy,
            replaced: of.replaced,
            twin_namespace,
            twin_name,
            twin_uid,
            volume: of.volume,
            claim: of.claim,
        }
    }

    #[must_use]
    pub fn twin(&self) -> ClaimName {
        ClaimName {
            namespace: self.twin_namespace.clone(),
            name: self.twin_name.clone(),
        }
    }

    /// The reclaim policy of the real PV after the release: Retain if the user chose that for the virtual
    /// one, and otherwise its own.
    #[must_use]
    pub fn final_policy(&self) -> &str {
        if self.volume.policy == "Retain" {
            return &self.volume.policy;
        }
        self.replaced.as_ref().unwrap_or(&self.policy)
    }

    /// The reclaim policy to restore on the real PV after this driver has created its twin again, if it is
    /// not Retain.
    #[must_use]
    pub fn given_back(&self) -> Option<&str> {
        let own = self.replaced.as_ref().unwrap_or(&self.policy);
        (own != "Retain").then_some(own)
    }

    pub fn to_annotation(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Whether the PV has a record, of any version, for the claim of this name.
    #[must_use]
    pub fn is_for(annotations: &Map, claim: &ClaimName) -> bool {
        let text = annotations.get(mark::RELEASE).map(String::as_str);
        let record: Option<Value> = text.and_then(|text| serde_json::from_str(text).ok());
        record.is_some_and(|record| {
            let recorded = &record["claim"];
            recorded["namespace"] == *claim.namespace && recorded["name"] == *claim.name
        })
    }

    /// The record on a PV, if any.
    pub fn read(annotations: &Map) -> Result<Option<Self>, RecordError> {
        read_record(annotations, mark::RELEASE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(virtual_policy: &str, policy: &str, replaced: Option<&str>) -> ReleaseRecord {
        ReleaseRecord::new(Released {
            policy: policy.into(),
            replaced: replaced.map(str::to_owned),
            twin: ("liqo-storage".into(), "u1".into(), "t1".into()),
            volume: OldVolume {
                name: "pvc-u1".into(),
                policy: virtual_policy.into(),
                labels: Map::new(),
                annotations: Map::new(),
                spec: json!({"persistentVolumeReclaimPolicy": virtual_policy, "claimRef": {"uid": "u1"}}),
            },
            claim: OldClaim {
                namespace: "shop".into(),
                namespace_uid: "n".into(),
                name: "data".into(),
                uid: "u1".into(),
                labels: Map::new(),
                annotations: Map::new(),
                owners: Vec::new(),
                spec: json!({}),
            },
        })
    }

    #[test]
    fn a_record_survives_the_annotation() {
        let record = record("Delete", "Delete", None);
        let annotations = Map::from([(mark::RELEASE.to_owned(), record.to_annotation().unwrap())]);
        assert_eq!(ReleaseRecord::read(&annotations), Ok(Some(record)));
        assert_eq!(ReleaseRecord::read(&Map::new()), Ok(None));
        let newer = Map::from([(mark::RELEASE.to_owned(), r#"{"version":2}"#.to_owned())]);
        assert!(matches!(
            ReleaseRecord::read(&newer),
            Err(RecordError::Version { version: 2, .. })
        ));
    }

    #[test]
    fn a_release_keeps_a_retain_policy_of_user_or_administrator() {
        for (outer, real, replaced, expected) in [
            ("Delete", "Delete", None, "Delete"),
            // An administrator retained it, not the class.
            ("Delete", "Retain", None, "Retain"),
            ("Retain", "Retain", Some("Delete"), "Retain"),
            // The class was Retain earlier, and is not any more.
            ("Delete", "Retain", Some("Delete"), "Delete"),
        ] {
            let record = record(outer, real, replaced);
            assert_eq!(record.final_policy(), expected, "{outer} {real} {replaced:?}");
        }
    }

    #[test]
    fn a_recreated_virtual_pv_is_retained_and_reserved_for_the_old_claim() {
        let again = record("Delete", "Delete", None)
            .volume
            .again(&"shop/data".parse().unwrap(), "u-old");
        assert_eq!(again["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(again["spec"]["claimRef"]["name"], "data");
        assert_eq!(again["spec"]["claimRef"]["uid"], "u-old");
    }
}
