//! The marks of a twin: its home cluster, volume and claim. Labels and annotations on the twin are the only
//! record of this driver, so they decide what it may adopt, change or delete.

use std::collections::BTreeMap;

use super::{
    ClusterId, Epoch, Fingerprint, VolumeName, mark,
    moving::{TwinMarkError, epoch_mark, epoch_of},
};

type Map = BTreeMap<String, String>;

/// The claim that a twin was created for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimMark {
    pub namespace: String,
    pub name: String,
    /// Its uid, which alone identifies it: names are reused.
    pub uid: String,
}

/// Everything that this driver records on a twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The cluster whose user owns the data.
    pub home: ClusterId,
    pub volume: VolumeName,
    /// The claim, if the request named one.
    pub claim: Option<ClaimMark>,
    /// Name of the request, before it was converted to a volume name.
    pub request_name: String,
    /// The request; `None` if a newer driver wrote it in an unknown format.
    pub fingerprint: Option<Fingerprint>,
    /// Whether success was answered: then the data may be in use, and only `DeleteVolume` deletes
    /// it.
    pub handed_over: bool,
    /// The epoch of the volume when the twin was created.
    pub epoch: Epoch,
}

/// Why an object has no readable marks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MarksError {
    #[error("it has no label {0}")]
    Missing(&'static str),
    #[error("its label {0} has the value {1:?}, which this driver never writes")]
    Malformed(&'static str, String),
    /// The epoch cannot be read, so it is unknown whose data it is now.
    #[error(transparent)]
    Epoch(#[from] TwinMarkError),
}

impl Marks {
    #[must_use]
    pub fn labels(&self) -> Map {
        [
            (mark::HOME_CLUSTER, self.home.as_str()),
            (mark::VOLUME, self.volume.as_str()),
            (mark::MANAGED_BY, mark::MANAGED_BY_US),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    #[must_use]
    pub fn annotations(&self) -> Map {
        let mut annotations = Map::from([(mark::REQUEST_NAME.to_owned(), self.request_name.clone())]);
        if let Some(claim) = &self.claim {
            annotations.insert(mark::CLAIM_NAMESPACE.to_owned(), claim.namespace.clone());
            annotations.insert(mark::CLAIM_NAME.to_owned(), claim.name.clone());
            annotations.insert(mark::CLAIM_UID.to_owned(), claim.uid.clone());
        }
        if let Some(fingerprint) = &self.fingerprint {
            annotations.insert(mark::FINGERPRINT.to_owned(), fingerprint.to_string());
        }
        if self.handed_over {
            annotations.insert(mark::HANDED_OVER.to_owned(), "true".to_owned());
        }
        annotations.extend(epoch_mark(self.epoch));
        annotations
    }

    /// Reads the marks. Only the labels are required: without its annotations a twin is still that of the
    /// volume.
    pub fn read(labels: &Map, annotations: &Map) -> Result<Self, MarksError> {
        let label = |key| labels.get(key).ok_or(MarksError::Missing(key));
        let malformed = |key, value: &String| MarksError::Malformed(key, value.clone());
        if label(mark::MANAGED_BY)? != mark::MANAGED_BY_US {
            return Err(malformed(mark::MANAGED_BY, label(mark::MANAGED_BY)?));
        }
        let home = label(mark::HOME_CLUSTER)?;
        let volume = label(mark::VOLUME)?;
        let annotation = |key| annotations.get(key).cloned();
        Ok(Self {
            home: home.parse().map_err(|_| malformed(mark::HOME_CLUSTER, home))?,
            volume: VolumeName::parse(volume).ok_or_else(|| malformed(mark::VOLUME, volume))?,
            claim: annotation(mark::CLAIM_UID).map(|uid| ClaimMark {
                namespace: annotation(mark::CLAIM_NAMESPACE).unwrap_or_default(),
                name: annotation(mark::CLAIM_NAME).unwrap_or_default(),
                uid,
            }),
            request_name: annotation(mark::REQUEST_NAME).unwrap_or_default(),
            fingerprint: annotation(mark::FINGERPRINT).and_then(|text| text.parse().ok()),
            handed_over: annotations.contains_key(mark::HANDED_OVER),
            epoch: epoch_of(annotations)?,
        })
    }
}

/// The expected marks of a twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub home: ClusterId,
    pub volume: VolumeName,
    /// Uid of the claim; `None` if the request has no claim or it cannot be determined.
    pub claim_uid: Option<String>,
    pub epoch: Epoch,
}

/// Why an object under the name of a twin is not ours, so that it is never adopted, changed or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Foreign {
    /// Another client created it.
    #[error("it was not created by this driver: {0}")]
    Unmarked(MarksError),
    /// It belongs to another home cluster.
    #[error("it belongs to the home cluster {0}")]
    OtherHome(ClusterId),
    /// It is the twin of another volume.
    #[error("it is the twin of the volume {0}")]
    OtherVolume(VolumeName),
    /// It was created for an earlier or another claim.
    #[error("it was created for the claim with uid {0:?}")]
    OtherClaim(String),
    /// It is from before or after a move.
    #[error(
        "it is the twin of epoch {found} of the volume, not of epoch {wanted}; the epoch counts the moves of the volume"
    )]
    OtherEpoch {
        found: Epoch,
        /// The expected epoch.
        wanted: Epoch,
    },
}

impl Owner {
    /// The expected marks, as far as the volume's name determines them.
    #[must_use]
    pub fn of_volume(home: ClusterId, volume: VolumeName, epoch: Epoch) -> Self {
        let claim_uid = volume.claim_uid().map(str::to_owned);
        Self {
            home,
            volume,
            claim_uid,
            epoch,
        }
    }

    /// Reads the marks of the object under the twin's name, if it is this owner's twin.
    pub fn recognise(&self, labels: &Map, annotations: &Map) -> Result<Marks, Foreign> {
        let marks = Marks::read(labels, annotations).map_err(Foreign::Unmarked)?;
        if marks.home != self.home {
            return Err(Foreign::OtherHome(marks.home));
        }
        if marks.volume != self.volume {
            return Err(Foreign::OtherVolume(marks.volume));
        }
        if let Some(expected) = &self.claim_uid {
            let found = marks.claim.as_ref().map_or("", |claim| claim.uid.as_str());
            if found != expected {
                return Err(Foreign::OtherClaim(found.to_owned()));
            }
        }
        if marks.epoch != self.epoch {
            return Err(Foreign::OtherEpoch {
                found: marks.epoch,
                wanted: self.epoch,
            });
        }
        Ok(marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

    fn marks() -> Marks {
        Marks {
            home: "home".parse().unwrap(),
            volume: VolumeName::from_request(&format!("pvc-{UID}")),
            claim: Some(ClaimMark {
                namespace: "shop".into(),
                name: "data".into(),
                uid: UID.into(),
            }),
            request_name: format!("pvc-{UID}"),
            fingerprint: Some("v1:a:b:c:d".parse().unwrap()),
            handed_over: false,
            epoch: Epoch::NEVER_MOVED,
        }
    }

    fn owner() -> Owner {
        Owner::of_volume(marks().home, marks().volume, Epoch::NEVER_MOVED)
    }

    fn recognise(marks: &Marks) -> Result<Marks, Foreign> {
        owner().recognise(&marks.labels(), &marks.annotations())
    }

    #[test]
    fn marks_survive_the_twin() {
        for handed_over in [false, true] {
            let marks = Marks {
                handed_over,
                ..marks()
            };
            assert_eq!(recognise(&marks), Ok(marks));
        }
    }

    #[test]
    fn a_twin_is_ours_only_with_matching_cluster_volume_and_claim() {
        let other_home = Marks {
            home: "away".parse().unwrap(),
            ..marks()
        };
        assert!(matches!(recognise(&other_home), Err(Foreign::OtherHome(_))));

        let other_volume = Marks {
            volume: VolumeName::from_request("x"),
            ..marks()
        };
        assert!(matches!(recognise(&other_volume), Err(Foreign::OtherVolume(_))));

        let mut other_claim = marks();
        other_claim.claim.as_mut().unwrap().uid = "another".into();
        assert_eq!(
            recognise(&other_claim),
            Err(Foreign::OtherClaim("another".into()))
        );
        let no_claim = Marks {
            claim: None,
            ..marks()
        };
        assert_eq!(recognise(&no_claim), Err(Foreign::OtherClaim(String::new())));
    }

    #[test]
    fn every_epoch_has_a_twin_of_its_own() {
        let first = Epoch::NEVER_MOVED.next().unwrap();
        let moved = Marks {
            epoch: first,
            ..marks()
        };
        let other = Foreign::OtherEpoch {
            found: first,
            wanted: Epoch::NEVER_MOVED,
        };
        assert_eq!(recognise(&moved), Err(other));
        let owner = Owner {
            epoch: first,
            ..owner()
        };
        let (labels, annotations) = (moved.labels(), moved.annotations());
        assert_eq!(owner.recognise(&labels, &annotations), Ok(moved));
        assert!(owner.recognise(&labels, &marks().annotations()).is_err());
    }

    #[test]
    fn a_twin_with_an_unreadable_epoch_is_foreign() {
        let marks = marks();
        let mut annotations = marks.annotations();
        annotations.insert(mark::EPOCH.into(), "x".into());
        let verdict = owner().recognise(&marks.labels(), &annotations);
        assert!(matches!(verdict, Err(Foreign::Unmarked(MarksError::Epoch(_)))));
    }

    #[test]
    fn an_object_without_our_labels_is_foreign() {
        let marks = marks();
        for key in marks.labels().keys() {
            let mut labels = marks.labels();
            labels.remove(key);
            let verdict = owner().recognise(&labels, &marks.annotations());
            assert!(
                matches!(verdict, Err(Foreign::Unmarked(MarksError::Missing(_)))),
                "{key}"
            );
            labels.insert(key.clone(), "odd one".into());
            let verdict = owner().recognise(&labels, &marks.annotations());
            assert!(
                matches!(verdict, Err(Foreign::Unmarked(MarksError::Malformed(..)))),
                "{key}"
            );
        }
    }

    #[test]
    fn a_volume_name_without_claim_uid_is_not_compared_by_claim() {
        let volume = VolumeName::from_request("sanity");
        let marks = Marks {
            volume: volume.clone(),
            claim: None,
            ..marks()
        };
        let owner = Owner::of_volume(marks.home.clone(), volume, marks.epoch);
        assert_eq!(owner.claim_uid, None);
        assert_eq!(owner.recognise(&marks.labels(), &marks.annotations()), Ok(marks));
    }

    #[test]
    fn a_twin_with_an_unreadable_fingerprint_is_still_ours() {
        let marks = marks();
        let mut annotations = marks.annotations();
        annotations.insert(mark::FINGERPRINT.into(), "v9:new".into());
        let read = owner().recognise(&marks.labels(), &annotations).unwrap();
        assert_eq!(read.fingerprint, None);
    }
}
