//! What is written on the content of a snapshot that is being imported: what it and the user's
//! `VolumeSnapshot` were before. This annotation is all that such an import remembers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ClaimName, SnapshotKey, mark};

type Map = BTreeMap<String, String>;

const VERSION: u8 = 1;
/// What `kubectl apply` compares with: the source of a snapshot cannot be changed, so that a
/// manifest of before can never be applied again.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A snapshot as it was before its import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotImport {
    version: u8,
    /// Its namespace.
    pub namespace: String,
    /// The uid of that: one made later under the same name may be somebody else's.
    pub namespace_uid: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its labels.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map,
    /// Its annotations.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub annotations: Map,
    /// Its `ownerReferences`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<Value>,
    /// The class of this driver that it gets.
    pub class: String,
    /// The deletion policy that its content had.
    pub policy: String,
}

/// A record that this program cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the annotation {key} cannot be read ({why}): use the liqo-csi that began the import",
    key = mark::IMPORT_SNAPSHOT
)]
pub struct SnapshotRecordError {
    why: String,
}

impl SnapshotImport {
    /// The record of a snapshot of this name and uid that is to get this class.
    #[must_use]
    pub fn new(
        snapshot: &ClaimName,
        namespace_uid: String,
        uid: String,
        class: String,
        policy: String,
    ) -> Self {
        Self {
            version: VERSION,
            namespace: snapshot.namespace.clone(),
            namespace_uid,
            name: snapshot.name.clone(),
            uid,
            labels: Map::new(),
            annotations: Map::new(),
            owners: Vec::new(),
            class,
            policy,
        }
    }

    /// The same, with what else its user wrote on it.
    #[must_use]
    pub fn with(mut self, labels: &Map, annotations: &Map, owners: Vec<Value>) -> Self {
        self.labels.clone_from(labels);
        self.annotations.clone_from(annotations);
        self.annotations
            .retain(|key, _| key != LAST_APPLIED && key != mark::IMPORT_UNDONE);
        self.owners = owners;
        self
    }

    /// Reads the record of a content, if it has one.
    pub fn read(annotations: &Map) -> Result<Option<Self>, SnapshotRecordError> {
        let Some(text) = annotations.get(mark::IMPORT_SNAPSHOT) else {
            return Ok(None);
        };
        let unreadable = |why: String| SnapshotRecordError { why };
        let read: Self = serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?;
        if read.version != VERSION {
            return Err(unreadable(format!("it is of version {}", read.version)));
        }
        Ok(Some(read))
    }

    /// The annotation to write.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// The name under which the driver knows it from now on.
    #[must_use]
    pub fn key(&self) -> SnapshotKey {
        import_key(&self.uid)
    }

    /// What stands for the name of a request, for nobody asked for it.
    #[must_use]
    pub fn request_name(&self) -> String {
        request_name(&self.uid)
    }

    /// Name of the content that its twin gets.
    #[must_use]
    pub fn real_content(&self) -> String {
        self.key().twin()
    }

    /// Name of the content that the user's snapshot gets.
    #[must_use]
    pub fn user_content(&self) -> String {
        imported_content(&self.key())
    }
}

/// The name under which the driver knows the snapshot of this uid, once it is imported.
#[must_use]
pub fn import_key(uid: &str) -> SnapshotKey {
    SnapshotKey::from_request(&request_name(uid))
}

fn request_name(uid: &str) -> String {
    format!("import-{uid}")
}

/// Name of the content of an imported snapshot: nothing else leads there from its key.
#[must_use]
pub fn imported_content(key: &SnapshotKey) -> String {
    format!("imported-{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SnapshotImport {
        let text = |text: &str| text.to_owned();
        let labels = Map::from([(text("app"), text("web"))]);
        let annotations = Map::from([(text(LAST_APPLIED), text("{}")), (text("why"), text("night"))]);
        SnapshotImport::new(
            &"shop/backup".parse().unwrap(),
            text("n-1"),
            text("u-1"),
            text("liqo"),
            text("Delete"),
        )
        .with(&labels, &annotations, Vec::new())
    }

    #[test]
    fn a_record_survives_the_content() {
        let record = record();
        let annotations = Map::from([(mark::IMPORT_SNAPSHOT.to_owned(), record.text().unwrap())]);
        let read = SnapshotImport::read(&annotations).unwrap().unwrap();
        assert_eq!(read, record);
        assert_eq!(read.annotations.keys().collect::<Vec<_>>(), ["why"]);
        assert_eq!(SnapshotImport::read(&Map::new()), Ok(None));
    }

    #[test]
    fn a_record_of_another_version_is_not_guessed_at() {
        for text in [
            record().text().unwrap().replace(":1,", ":2,"),
            "{}".to_owned(),
            String::new(),
        ] {
            let annotations = Map::from([(mark::IMPORT_SNAPSHOT.to_owned(), text)]);
            assert!(SnapshotImport::read(&annotations).is_err());
        }
    }

    #[test]
    fn its_names_follow_from_the_snapshot() {
        let (one, mut other) = (record(), record());
        other.uid = "u-2".into();
        assert_ne!(one.key(), other.key());
        assert_eq!(SnapshotKey::parse(one.key().as_str()), Some(one.key()));
        assert_ne!(one.user_content(), one.real_content());
    }
}
