//! The marks of a snapshot's twin: its home cluster, snapshot and volume. As with the twins of volumes, these
//! labels and annotations are the only record.

use std::collections::BTreeMap;

use super::{ClusterId, MarksError, SnapshotKey, mark};

type Map = BTreeMap<String, String>;

/// The user's `VolumeSnapshot`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotName {
    pub namespace: String,
    pub name: String,
}

/// Everything that this driver records on the twin of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMarks {
    /// The cluster whose user owns the data.
    pub home: ClusterId,
    pub key: SnapshotKey,
    /// Id of its volume.
    pub source: String,
    /// The user's object, if the request named it.
    pub snapshot: Option<SnapshotName>,
    /// Name of the request, before it was converted to a key.
    pub request_name: String,
}

/// Why an object under the name of a snapshot's twin is not ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignSnapshot {
    /// Another client created it.
    #[error("it was not created by this driver: {0}")]
    Unmarked(MarksError),
    /// It belongs to another home cluster.
    #[error("it belongs to the home cluster {0}")]
    OtherHome(ClusterId),
    /// It is the twin of another snapshot.
    #[error("it is the twin of the snapshot {0}")]
    Other(SnapshotKey),
}

impl SnapshotMarks {
    #[must_use]
    pub fn labels(&self) -> Map {
        [
            (mark::HOME_CLUSTER, self.home.as_str()),
            (mark::SNAPSHOT, self.key.as_str()),
            (mark::MANAGED_BY, mark::MANAGED_BY_US),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    #[must_use]
    pub fn annotations(&self) -> Map {
        let mut annotations = Map::from([
            (mark::REQUEST_NAME.to_owned(), self.request_name.clone()),
            (mark::SNAPSHOT_SOURCE.to_owned(), self.source.clone()),
        ]);
        if let Some(snapshot) = &self.snapshot {
            annotations.insert(mark::SNAPSHOT_NAMESPACE.to_owned(), snapshot.namespace.clone());
            annotations.insert(mark::SNAPSHOT_NAME.to_owned(), snapshot.name.clone());
        }
        annotations
    }

    /// Reads the marks. Only the labels are required; without its annotations the volume of a snapshot is
    /// unknown.
    pub fn read(labels: &Map, annotations: &Map) -> Result<Self, MarksError> {
        let label = |key| labels.get(key).ok_or(MarksError::Missing(key));
        let malformed = |key, value: &String| MarksError::Malformed(key, value.clone());
        let manager = label(mark::MANAGED_BY)?;
        if manager != mark::MANAGED_BY_US {
            return Err(malformed(mark::MANAGED_BY, manager));
        }
        let home = label(mark::HOME_CLUSTER)?;
        let key = label(mark::SNAPSHOT)?;
        let annotation = |key| annotations.get(key).cloned();
        Ok(Self {
            home: home.parse().map_err(|_| malformed(mark::HOME_CLUSTER, home))?,
            key: SnapshotKey::parse(key).ok_or_else(|| malformed(mark::SNAPSHOT, key))?,
            source: annotation(mark::SNAPSHOT_SOURCE).unwrap_or_default(),
            snapshot: annotation(mark::SNAPSHOT_NAME).map(|name| SnapshotName {
                namespace: annotation(mark::SNAPSHOT_NAMESPACE).unwrap_or_default(),
                name,
            }),
            request_name: annotation(mark::REQUEST_NAME).unwrap_or_default(),
        })
    }

    /// Reads the marks of the object under the twin's name, if it is the twin. The key contains the uid of
    /// the user's object, so nothing else needs to be compared.
    pub fn recognise(
        home: &ClusterId,
        key: &SnapshotKey,
        labels: &Map,
        annotations: &Map,
    ) -> Result<Self, ForeignSnapshot> {
        let marks = Self::read(labels, annotations).map_err(ForeignSnapshot::Unmarked)?;
        if marks.home != *home {
            return Err(ForeignSnapshot::OtherHome(marks.home));
        }
        if marks.key != *key {
            return Err(ForeignSnapshot::Other(marks.key));
        }
        Ok(marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks() -> SnapshotMarks {
        SnapshotMarks {
            home: "home".parse().unwrap(),
            key: SnapshotKey::from_request("x"),
            source: "v1:home:pvc-1".into(),
            snapshot: Some(SnapshotName {
                namespace: "shop".into(),
                name: "backup".into(),
            }),
            request_name: "x".into(),
        }
    }

    fn recognise(labels: &Map) -> Result<SnapshotMarks, ForeignSnapshot> {
        let ours = marks();
        SnapshotMarks::recognise(&ours.home, &ours.key, labels, &ours.annotations())
    }

    #[test]
    fn marks_survive_the_twin() {
        assert_eq!(recognise(&marks().labels()), Ok(marks()));
    }

    #[test]
    fn a_foreign_snapshot_is_reported_with_its_reason() {
        let with = |key: &str, value: &str| {
            let mut labels = marks().labels();
            labels.insert(key.to_owned(), value.to_owned());
            recognise(&labels)
        };
        assert_eq!(
            with(mark::HOME_CLUSTER, "rome"),
            Err(ForeignSnapshot::OtherHome("rome".parse().unwrap()))
        );
        let other = SnapshotKey::from_request("y");
        assert_eq!(
            with(mark::SNAPSHOT, other.as_str()),
            Err(ForeignSnapshot::Other(other))
        );
        for key in [mark::MANAGED_BY, mark::SNAPSHOT] {
            assert!(matches!(with(key, "x"), Err(ForeignSnapshot::Unmarked(_))));
            let mut labels = marks().labels();
            labels.remove(key);
            assert_eq!(
                recognise(&labels),
                Err(ForeignSnapshot::Unmarked(MarksError::Missing(key)))
            );
        }
    }
}
