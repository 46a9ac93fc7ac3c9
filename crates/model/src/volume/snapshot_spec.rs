//! The parameters of a snapshot request: those of the user's `VolumeSnapshotClass`, and those that
//! csi-snapshotter adds about the user's object.

use super::SnapshotName;

/// Why the parameters of a snapshot cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotSpecError {
    /// A parameter that this driver does not know.
    #[error(
        "the VolumeSnapshotClass has an unknown parameter {0:?}; this driver knows {known:?}",
        known = SnapshotParameters::REAL_CLASS
    )]
    Unknown(String),
    /// A parameter without a value.
    #[error("the parameter {0:?} is empty")]
    Empty(&'static str),
}

/// The parameters of a snapshot request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotParameters {
    /// The real class in the user's class.
    pub real_class: Option<String>,
    /// The user's object.
    pub snapshot: Option<SnapshotName>,
}

impl SnapshotParameters {
    /// Parameter of a `VolumeSnapshotClass` of this driver: the real class.
    pub const REAL_CLASS: &'static str = "realSnapshotClass";
    const NAMESPACE: &'static str = "csi.storage.k8s.io/volumesnapshot/namespace";
    const NAME: &'static str = "csi.storage.k8s.io/volumesnapshot/name";
    const CONTENT: &'static str = "csi.storage.k8s.io/volumesnapshotcontent/name";

    /// Parses the parameters; an unknown one is an error, because ignoring it could surprise the user.
    pub fn parse<'a>(
        parameters: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, SnapshotSpecError> {
        let (mut real_class, mut namespace, mut name) = (None, None, None);
        for (key, value) in parameters {
            let value = Some(value.clone()).filter(|value| !value.is_empty());
            match key.as_str() {
                Self::REAL_CLASS => {
                    real_class = Some(value.ok_or(SnapshotSpecError::Empty(Self::REAL_CLASS))?);
                }
                Self::NAMESPACE => namespace = value,
                Self::NAME => name = value,
                // Not needed: the name of the content follows from the name of the request.
                Self::CONTENT => {}
                _ => return Err(SnapshotSpecError::Unknown(key.clone())),
            }
        }
        let snapshot = namespace
            .zip(name)
            .map(|(namespace, name)| SnapshotName { namespace, name });
        Ok(Self { real_class, snapshot })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<SnapshotParameters, SnapshotSpecError> {
        let map: BTreeMap<String, String> = pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        SnapshotParameters::parse(&map)
    }

    #[test]
    fn parameters_name_class_and_snapshot() {
        let read = parse(&[
            ("realSnapshotClass", "fast"),
            ("csi.storage.k8s.io/volumesnapshot/name", "backup"),
            ("csi.storage.k8s.io/volumesnapshot/namespace", "shop"),
            ("csi.storage.k8s.io/volumesnapshotcontent/name", "snapcontent-1"),
        ]);
        let expected = SnapshotParameters {
            real_class: Some("fast".into()),
            snapshot: Some(SnapshotName {
                namespace: "shop".into(),
                name: "backup".into(),
            }),
        };
        assert_eq!(read, Ok(expected));
        assert_eq!(parse(&[]), Ok(SnapshotParameters::default()));
    }

    #[test]
    fn unknown_and_empty_parameters_are_named() {
        assert_eq!(parse(&[("x", "y")]), Err(SnapshotSpecError::Unknown("x".into())));
        assert_eq!(
            parse(&[("realSnapshotClass", "")]),
            Err(SnapshotSpecError::Empty("realSnapshotClass"))
        );
    }
}
