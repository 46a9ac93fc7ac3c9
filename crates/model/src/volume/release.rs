//! What is written on the real PV of a volume that is being released: what the volume and its
//! claim were before. This annotation, and a mark on the twin, are all that a release remembers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    ClaimName, OldClaim, RecordError, mark,
    transfer::{VERSION, read_record},
};

type Map = BTreeMap<String, String>;

/// The virtual PV of a volume as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OldVolume {
    /// Its name.
    pub name: String,
    /// Its reclaim policy.
    pub policy: String,
    /// Its labels.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map,
    /// Its annotations.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub annotations: Map,
    /// Its `spec`, without the claim that it had.
    pub spec: Value,
}

impl OldVolume {
    /// The PV as it was, but retained, and still that of the claim that is gone: by its name
    /// only it would be that of whoever gets the name.
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

/// What a volume and its claim were before a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseRecord {
    version: u8,
    /// Whether the release is being undone.
    #[serde(default)]
    pub undone: bool,
    /// The reclaim policy that the real PV had.
    pub policy: String,
    /// The one that it had before this driver replaced that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
    /// Namespace of the twin.
    pub twin_namespace: String,
    /// Name of the twin.
    pub twin_name: String,
    /// Uid of the twin.
    pub twin_uid: String,
    /// The virtual PV.
    pub volume: OldVolume,
    /// The claim.
    pub claim: OldClaim,
}

/// What a record is made of.
#[derive(Clone, Debug)]
pub struct Released {
    /// The reclaim policy that the real PV has.
    pub policy: String,
    /// The one that it had before this driver replaced that.
    pub replaced: Option<String>,
    /// Namespace, name and uid of the twin.
    pub twin: (String, String, String),
    /// The virtual PV.
    pub volume: OldVolume,
    /// The claim.
    pub claim: OldClaim,
}

impl ReleaseRecord {
    /// A record of the version that this driver writes.
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

    /// Where the twin is, or was.
    #[must_use]
    pub fn twin(&self) -> ClaimName {
        ClaimName {
            namespace: self.twin_namespace.clone(),
            name: self.twin_name.clone(),
        }
    }

    /// The reclaim policy that the real PV has in the end: Retain if the user wanted that of
    /// the virtual one, and otherwise its own.
    #[must_use]
    pub fn final_policy(&self) -> &str {
        if self.volume.policy == "Retain" {
            return &self.volume.policy;
        }
        self.replaced.as_ref().unwrap_or(&self.policy)
    }

    /// The reclaim policy that the real PV gets back when this driver has made its twin again,
    /// if it is another one than Retain.
    #[must_use]
    pub fn given_back(&self) -> Option<&str> {
        let own = self.replaced.as_ref().unwrap_or(&self.policy);
        (own != "Retain").then_some(own)
    }

    /// As it stands in the annotation.
    pub fn to_annotation(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Whether there is a record on a PV for the claim of this name, of whatever version.
    #[must_use]
    pub fn is_for(annotations: &Map, claim: &ClaimName) -> bool {
        let text = annotations.get(mark::RELEASE).map(String::as_str);
        let record: Option<Value> = text.and_then(|text| serde_json::from_str(text).ok());
        record.is_some_and(|record| {
            let recorded = &record["claim"];
            recorded["namespace"] == *claim.namespace && recorded["name"] == *claim.name
        })
    }

    /// The record on a PV, if there is one.
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
    fn data_that_was_to_stay_still_is() {
        for (outer, real, replaced, expected) in [
            ("Delete", "Delete", None, "Delete"),
            // An administrator retained it; the class did not ask for that.
            ("Delete", "Retain", None, "Retain"),
            ("Retain", "Retain", Some("Delete"), "Retain"),
            // The class retained once, and does not any more.
            ("Delete", "Retain", Some("Delete"), "Delete"),
        ] {
            let record = record(outer, real, replaced);
            assert_eq!(record.final_policy(), expected, "{outer} {real} {replaced:?}");
        }
    }

    #[test]
    fn a_virtual_volume_made_again_is_retained_and_anybodys_no_more_than_before() {
        let again = record("Delete", "Delete", None)
            .volume
            .again(&"shop/data".parse().unwrap(), "u-old");
        assert_eq!(again["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(again["spec"]["claimRef"]["name"], "data");
        assert_eq!(again["spec"]["claimRef"]["uid"], "u-old");
    }
}
