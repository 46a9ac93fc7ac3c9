//! The record of a snapshot import on the real content: the content and the user's `VolumeSnapshot` before.
//! This annotation is the only state of the import.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ClaimName, SnapshotKey, mark};

type Map = BTreeMap<String, String>;

const VERSION: u8 = 1;
/// Used by `kubectl apply`: the source of a snapshot is immutable, so the previous manifest could not be
/// applied again.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A snapshot before its import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotImport {
    version: u8,
    pub namespace: String,
    /// The uid of the namespace: a later one of the same name may belong to another user.
    pub namespace_uid: String,
    pub name: String,
    pub uid: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub annotations: Map,
    /// Its `ownerReferences`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<Value>,
    /// The class of this driver that it gets.
    pub class: String,
    /// The previous deletion policy of its content.
    pub policy: String,
}

/// A record that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the annotation {key} cannot be read ({why}): use the version of liqo-csi that started the import",
    key = mark::IMPORT_SNAPSHOT
)]
pub struct SnapshotRecordError {
    why: String,
}

impl SnapshotImport {
    /// The record of a snapshot with this name and uid that gets this class.
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

    /// The same, with the other metadata of the user's object.
    #[must_use]
    pub fn with(mut self, labels: &Map, annotations: &Map, owners: Vec<Value>) -> Self {
        self.labels.clone_from(labels);
        self.annotations.clone_from(annotations);
        self.annotations
            .retain(|key, _| key != LAST_APPLIED && key != mark::IMPORT_UNDONE);
        self.owners = owners;
        self
    }

    /// The record on a content, if any.
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

    pub fn text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// The key of the imported snapshot.
    #[must_use]
    pub fn key(&self) -> SnapshotKey {
        import_key(&self.uid)
    }

    /// A replacement for the name of the `CreateSnapshot` request, which an import does not have.
    #[must_use]
    pub fn request_name(&self) -> String {
        request_name(&self.uid)
    }

    /// Name of the twin's content.
    #[must_use]
    pub fn real_content(&self) -> String {
        self.key().twin()
    }

    /// Name of the user's new content.
    #[must_use]
    pub fn user_content(&self) -> String {
        imported_content(&self.key())
    }
}

/// The key of the snapshot with this uid after its import.
#[must_use]
pub fn import_key(uid: &str) -> SnapshotKey {
    SnapshotKey::from_request(&request_name(uid))
}

fn request_name(uid: &str) -> String {
    format!("import-{uid}")
}

/// Name of the content of an imported snapshot, by which it is found from the key.
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
    fn an_import_record_of_another_version_is_an_error() {
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
    fn names_of_an_import_depend_on_the_snapshot_uid() {
        let (one, mut other) = (record(), record());
        other.uid = "u-2".into();
        assert_ne!(one.key(), other.key());
        assert_eq!(SnapshotKey::parse(one.key().as_str()), Some(one.key()));
        assert_ne!(one.user_content(), one.real_content());
    }
}
