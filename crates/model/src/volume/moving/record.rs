//! The records of the claims in the status of a `VolumeMove`: the virtual PV, from before it is gated, and
//! after the commit also the PV that replaces it. Either can be created again from its record, if any client
//! deletes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{GateNote, VolumeMark};
use crate::volume::{
    ClaimName, ReclaimPolicy, TWIN_NAME, VolumeId, VolumeIdError, mark, parse_quantity, quantity,
};

/// The maximum length of a manifest in bytes: the status of eight claims with two manifests each must fit
/// into an object of at most 1.5 MiB.
pub const MANIFEST_MAX: usize = 64 * 1024;

const VERSION: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedClaim {
    pub name: ClaimName,
    pub uid: String,
}

/// A record that cannot be read, or must not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveRecordError {
    #[error("it is not a PersistentVolume of this driver: {0}")]
    NoVolume(String),
    #[error(
        "the PersistentVolume {name} takes {bytes} bytes, and at most {MANIFEST_MAX} can be recorded: remove annotations from it"
    )]
    TooLong { name: String, bytes: usize },
    /// Source and target are not of the same move.
    #[error("{target} cannot replace {origin}: {why}")]
    NoSuccessor {
        origin: String,
        target: String,
        why: &'static str,
    },
    #[error("the record of a claim in the status of the VolumeMove cannot be read: {0}")]
    Malformed(String),
    /// A different version of the driver has written it.
    #[error(
        "the record of a claim in the status of the VolumeMove is of version {0}, which this driver does not know: use the one that began the move"
    )]
    Version(u8),
}

/// A virtual PV that can be created again, without the fields that the API server, a move or the binding has
/// added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    name: String,
    handle: VolumeId,
    labels: Value,
    annotations: Value,
    spec: Value,
}

impl Manifest {
    /// The manifest of a PV.
    pub fn of(volume: &Value) -> Result<Self, MoveRecordError> {
        let missing = |what: &str| MoveRecordError::NoVolume(format!("it has no {what}"));
        let name = volume["metadata"]["name"]
            .as_str()
            .ok_or_else(|| missing("name"))?;
        let handle = volume["spec"]["csi"]["volumeHandle"]
            .as_str()
            .ok_or_else(|| missing("volumeHandle"))?;
        let handle = handle
            .parse()
            .map_err(|error: VolumeIdError| MoveRecordError::NoVolume(error.to_string()))?;
        let mut annotations = own(&volume["metadata"]["annotations"]);
        annotations.remove(mark::GATE);
        let mut spec = own(&volume["spec"]);
        spec.remove("claimRef");
        spec.remove("persistentVolumeReclaimPolicy");
        let manifest = Self {
            name: name.to_owned(),
            handle,
            labels: Value::Object(own(&volume["metadata"]["labels"])),
            annotations: Value::Object(annotations),
            spec: Value::Object(spec),
        };
        let bytes = manifest.to_json().to_string().len();
        if bytes > MANIFEST_MAX {
            let name = manifest.name;
            return Err(MoveRecordError::TooLong { name, bytes });
        }
        Ok(manifest)
    }

    #[must_use]
    pub fn handle(&self) -> &VolumeId {
        &self.handle
    }

    /// The capacity; 0 if it has none.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let size = self.spec["capacity"]["storage"].as_str();
        size.and_then(parse_quantity).unwrap_or_default()
    }

    /// The PV of the same name and labels for another twin of the volume.
    pub fn for_twin(&self, there: &TwinReference) -> Result<Self, MoveRecordError> {
        let mut volume = self.to_json();
        let csi = &mut volume["spec"]["csi"];
        csi["volumeHandle"] = there.handle.to_string().into();
        for (key, value) in &there.attributes {
            csi["volumeAttributes"][key] = value.as_str().into();
        }
        volume["spec"]["nodeAffinity"] = there.affinity.clone();
        volume["spec"]["capacity"] = json!({"storage": quantity(there.bytes)});
        Self::of(&volume)
    }

    /// The PV to create: retained and marked as gated, but with its claim in `claimRef`. Like an ungated PV,
    /// it gets its reclaim policy back only after Kubernetes has bound it: otherwise a claim that was deleted
    /// meanwhile would take the data with it.
    pub fn to_volume(&self, claim: &ClaimName, note: &GateNote) -> Result<Value, serde_json::Error> {
        let mut volume = self.to_json();
        let gate = VolumeMark::Gated(note.clone()).to_annotation()?;
        volume["metadata"]["annotations"][mark::GATE] = gate.into();
        volume["metadata"]["finalizers"] = json!([mark::MOVE]);
        volume["spec"]["persistentVolumeReclaimPolicy"] = ReclaimPolicy::Retain.as_str().into();
        volume["spec"]["claimRef"] = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": note.claim_uid,
        });
        Ok(volume)
    }

    fn to_json(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": self.name, "labels": self.labels, "annotations": self.annotations},
            "spec": self.spec,
        })
    }
}

/// The fields of a PV that refer to its twin.
#[derive(Clone, Debug, PartialEq)]
pub struct TwinReference {
    pub handle: VolumeId,
    /// The volume attributes with the location of the twin.
    pub attributes: BTreeMap<String, String>,
    /// The node affinity.
    pub affinity: Value,
    /// The capacity.
    pub bytes: u64,
}

fn own(map: &Value) -> serde_json::Map<String, Value> {
    map.as_object().cloned().unwrap_or_default()
}

/// The record before the first gate, from which the PV can be created again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRecord {
    pub claim: MovedClaim,
    /// The reclaim policy that the user wants.
    pub policy: ReclaimPolicy,
    /// The PV, with the handle of the source.
    pub source: Manifest,
}

/// The record that the commit writes: from then on the data is at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRecord {
    of: SourceRecord,
    target: Manifest,
}

impl CommitRecord {
    /// The target's PV must have the name of the source's, because `volumeName` of a claim is immutable, and
    /// the next epoch.
    pub fn new(of: SourceRecord, target: Manifest) -> Result<Self, MoveRecordError> {
        let (from, to) = (of.source.handle(), target.handle());
        let why = if from.name != to.name {
            "it is of another volume"
        } else if from.epoch.next() != Some(to.epoch) {
            "its epoch is not the next one"
        } else if of.source.name != target.name {
            "its PersistentVolume has another name"
        } else {
            return Ok(Self { of, target });
        };
        Err(MoveRecordError::NoSuccessor {
            origin: from.to_string(),
            target: to.to_string(),
            why,
        })
    }

    #[must_use]
    pub fn source(&self) -> &SourceRecord {
        &self.of
    }

    /// The PV that replaces the source's, with the handle of the target.
    #[must_use]
    pub fn target(&self) -> &Manifest {
        &self.target
    }

    /// The PV of the recovered source: the one from before the move, with this handle and twin.
    pub fn recovered(&self, handle: &VolumeId, twin: &str) -> Result<Manifest, MoveRecordError> {
        let mut volume = self.of.source.to_json();
        let csi = &mut volume["spec"]["csi"];
        csi["volumeHandle"] = handle.to_string().into();
        csi["volumeAttributes"][TWIN_NAME] = twin.into();
        Manifest::of(&volume)
    }

    /// The same record with another reclaim policy.
    #[must_use]
    pub fn with_policy(self, policy: ReclaimPolicy) -> Self {
        let of = SourceRecord { policy, ..self.of };
        Self { of, ..self }
    }

    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        to_text(&self.of, Some(&self.target))
    }

    pub fn from_text(text: &str) -> Result<Self, MoveRecordError> {
        let (of, target) = from_text(text)?;
        let target = target.ok_or_else(|| MoveRecordError::Malformed("it names no target".to_owned()))?;
        Self::new(of, target)
    }
}

impl SourceRecord {
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        to_text(self, None)
    }

    /// Reads a record, also one that has a commit.
    pub fn from_text(text: &str) -> Result<Self, MoveRecordError> {
        from_text(text).map(|(of, _)| of)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RecordJson {
    version: u8,
    namespace: String,
    name: String,
    uid: String,
    policy: ReclaimPolicy,
    source: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<Value>,
}

fn to_text(of: &SourceRecord, target: Option<&Manifest>) -> Result<String, serde_json::Error> {
    serde_json::to_string(&RecordJson {
        version: VERSION,
        namespace: of.claim.name.namespace.clone(),
        name: of.claim.name.name.clone(),
        uid: of.claim.uid.clone(),
        policy: of.policy,
        source: of.source.to_json(),
        target: target.map(Manifest::to_json),
    })
}

fn from_text(text: &str) -> Result<(SourceRecord, Option<Manifest>), MoveRecordError> {
    let malformed = |error: serde_json::Error| MoveRecordError::Malformed(error.to_string());
    let any: Value = serde_json::from_str(text).map_err(malformed)?;
    let version = any["version"]
        .as_u64()
        .and_then(|version| u8::try_from(version).ok());
    if let Some(version) = version.filter(|version| *version != VERSION) {
        return Err(MoveRecordError::Version(version));
    }
    let written: RecordJson = serde_json::from_value(any).map_err(malformed)?;
    let of = SourceRecord {
        claim: MovedClaim {
            name: ClaimName {
                namespace: written.namespace,
                name: written.name,
            },
            uid: written.uid,
        },
        policy: written.policy,
        source: Manifest::of(&written.source)?,
    };
    Ok((of, written.target.as_ref().map(Manifest::of).transpose()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::moving::GateNumber;

    const NAME: &str = "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

    fn volume(handle: &str) -> Value {
        json!({
            "metadata": {
                "name": NAME, "uid": "x", "resourceVersion": "7", "labels": {"team": "blue"},
                "annotations": {"pv.kubernetes.io/provisioned-by": "storage.liqo.io", mark::GATE: "old"},
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
            },
            "spec": {
                "csi": {"driver": "storage.liqo.io", "volumeHandle": handle},
                "claimRef": {"name": "data", "uid": "u1", "resourceVersion": "3"},
                "persistentVolumeReclaimPolicy": "Retain",
                "nodeAffinity": {"required": {}},
            },
            "status": {"phase": "Bound"},
        })
    }

    fn place(handle: &str) -> Manifest {
        Manifest::of(&volume(handle)).unwrap()
    }

    fn source() -> SourceRecord {
        SourceRecord {
            claim: MovedClaim {
                name: "shop/data".parse().unwrap(),
                uid: "u1".into(),
            },
            policy: ReclaimPolicy::Delete,
            source: place(&format!("v1:home:{NAME}")),
        }
    }

    #[test]
    fn records_survive_the_status() {
        let before = source().to_text().unwrap();
        assert_eq!(SourceRecord::from_text(&before), Ok(source()));
        let committed = CommitRecord::new(source(), place(&format!("v2:milan:{NAME}:1"))).unwrap();
        let text = committed.to_text().unwrap();
        assert_eq!(CommitRecord::from_text(&text), Ok(committed));
        assert_eq!(SourceRecord::from_text(&text), Ok(source()));
    }

    #[test]
    fn a_source_record_is_not_accepted_as_a_commit_record() {
        let before = source().to_text().unwrap();
        assert!(matches!(
            CommitRecord::from_text(&before),
            Err(MoveRecordError::Malformed(_))
        ));
    }

    #[test]
    fn an_unreadable_source_record_is_an_error() {
        for wrong in ["", "{}", "[]", r#"{"version":1}"#, r#"{"version":"1"}"#] {
            let read = SourceRecord::from_text(wrong);
            assert!(matches!(read, Err(MoveRecordError::Malformed(_))), "{wrong}");
        }
        let newer = SourceRecord::from_text(r#"{"version":2,"new":1}"#);
        assert_eq!(newer, Err(MoveRecordError::Version(2)));
    }

    #[test]
    fn a_target_must_be_the_next_epoch_of_the_same_volume() {
        let other = "pvc-1c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
        for handle in [
            format!("v1:milan:{NAME}"),
            format!("v2:milan:{NAME}:2"),
            format!("v2:milan:{other}:1"),
        ] {
            let refused = CommitRecord::new(source(), place(&handle));
            assert!(
                matches!(refused, Err(MoveRecordError::NoSuccessor { .. })),
                "{handle}"
            );
        }
        let mut renamed = volume(&format!("v2:milan:{NAME}:1"));
        renamed["metadata"]["name"] = "temporary".into();
        let renamed = Manifest::of(&renamed).unwrap();
        assert!(CommitRecord::new(source(), renamed).is_err());
    }

    #[test]
    fn the_manifest_for_the_target_keeps_labels_of_users() {
        let there = TwinReference {
            handle: format!("v2:milan:{NAME}:1").parse().unwrap(),
            attributes: [("twin".to_owned(), "data".to_owned())].into(),
            affinity: json!({"required": {"nodeSelectorTerms": []}}),
            bytes: 2 << 30,
        };
        let target = source().source.for_twin(&there).unwrap();
        assert_eq!(*target.handle(), there.handle);
        let kept = target.to_json();
        assert_eq!(kept["metadata"]["labels"]["team"], "blue");
        assert_eq!(kept["spec"]["csi"]["volumeAttributes"]["twin"], "data");
        assert_eq!(kept["spec"]["capacity"]["storage"], "2Gi");
        assert!(CommitRecord::new(source(), target).is_ok());
    }

    #[test]
    fn a_recovered_source_differs_only_in_its_epoch() {
        let committed = CommitRecord::new(source(), place(&format!("v2:milan:{NAME}:1"))).unwrap();
        let handle = format!("v2:home:{NAME}:2").parse().unwrap();
        let kept = committed.recovered(&handle, "u1-2").unwrap().to_json();
        let mut before = source().source.to_json();
        before["spec"]["csi"]["volumeHandle"] = handle.to_string().into();
        before["spec"]["csi"]["volumeAttributes"] = json!({TWIN_NAME: "u1-2"});
        assert_eq!(kept, before);
        let changed = committed.with_policy(ReclaimPolicy::Retain);
        let read = CommitRecord::from_text(&changed.to_text().unwrap()).unwrap();
        assert_eq!(read.source().policy, ReclaimPolicy::Retain);
    }

    #[test]
    fn a_recreated_pv_is_retained_until_it_is_bound() {
        let note = GateNote {
            by: "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222".parse().unwrap(),
            gate: GateNumber::FIRST,
            policy: ReclaimPolicy::Delete,
            claim_uid: "u1".into(),
        };
        let again = source().source.to_volume(&source().claim.name, &note).unwrap();
        assert_eq!(again["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(again["spec"]["claimRef"]["uid"], "u1");
        assert_eq!(again["spec"]["claimRef"]["resourceVersion"], Value::Null);
        assert_eq!(again["metadata"]["finalizers"], json!([mark::MOVE]));
        assert_eq!(again["metadata"]["labels"]["team"], "blue");
        assert_eq!(again["metadata"]["uid"], Value::Null);
        assert_eq!(again["status"], Value::Null);
        let annotation = again["metadata"]["annotations"][mark::GATE].as_str().unwrap();
        let annotations = [(mark::GATE.to_owned(), annotation.to_owned())].into();
        assert_eq!(VolumeMark::read(&annotations), Ok(Some(VolumeMark::Gated(note))));
    }

    #[test]
    fn a_manifest_that_does_not_fit_into_the_status_is_refused() {
        let mut long = volume(&format!("v1:home:{NAME}"));
        long["metadata"]["annotations"]["notes"] = "x".repeat(MANIFEST_MAX).into();
        let refused = Manifest::of(&long);
        assert!(matches!(refused, Err(MoveRecordError::TooLong { .. })));
        let foreign = Manifest::of(&volume("vol-1"));
        assert!(matches!(foreign, Err(MoveRecordError::NoVolume(_))));
    }
}
