//! The marks of a move on the two twins. No pod may use the target twin until it is handed over. The source
//! twin itself shows whether it may be attached, so that no call needs the cluster where the move was
//! decided.

use std::{collections::BTreeMap, fmt, str::FromStr};

use super::{GateNumber, MoveUid};
use crate::volume::{Epoch, mark};

type Map = BTreeMap<String, String>;

/// The mark on a target twin until it is handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetMark {
    pub by: MoveUid,
    pub epoch: Epoch,
}

/// An unreadable mark of a move. The twin is then not changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("its label or annotation {key} has the value {value:?}, which this driver never writes")]
pub struct TwinMarkError {
    pub key: &'static str,
    pub value: String,
}

impl TargetMark {
    /// The labels to add to those of every twin.
    #[must_use]
    pub fn labels(&self) -> Map {
        Map::from([(mark::MOVE.to_owned(), self.by.to_string())])
    }

    /// The annotations to add; they remain after the hand-over.
    #[must_use]
    pub fn annotations(&self) -> Map {
        epoch_mark(self.epoch)
    }

    /// The mark on a twin; `None` if it is not the target of a move.
    pub fn read(labels: &Map, annotations: &Map) -> Result<Option<Self>, TwinMarkError> {
        let Some(by) = labels.get(mark::MOVE) else {
            return Ok(None);
        };
        Ok(Some(Self {
            by: by.parse().map_err(|_| malformed(mark::MOVE, by))?,
            epoch: epoch_of(annotations)?,
        }))
    }
}

/// The annotation with this epoch; none if the volume has never moved.
#[must_use]
pub fn epoch_mark(epoch: Epoch) -> Map {
    let moved = (epoch > Epoch::NEVER_MOVED).then(|| (mark::EPOCH.to_owned(), epoch.to_string()));
    moved.into_iter().collect()
}

/// The epoch of a twin or of an attachment.
pub fn epoch_of(annotations: &Map) -> Result<Epoch, TwinMarkError> {
    annotations
        .get(mark::EPOCH)
        .map_or(Ok(Epoch::NEVER_MOVED), |text| {
            text.parse().map_err(|_| malformed(mark::EPOCH, text))
        })
}

fn malformed(key: &'static str, value: &str) -> TwinMarkError {
    TwinMarkError {
        key,
        value: value.to_owned(),
    }
}

/// The mark of a move on its source twin. It is one annotation, so that a twin is never both moving and
/// rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceMark {
    /// Only the mover may attach the twin.
    Moving { by: MoveUid, gate: GateNumber },
    /// The move was rolled back from this gate: users may attach the twin.
    RolledBack { by: MoveUid, gate: GateNumber },
    /// The data has moved: the twin is never attached again.
    Superseded { by: MoveUid, epoch: Epoch },
}

impl SourceMark {
    pub fn read(annotations: &Map) -> Result<Option<Self>, TwinMarkError> {
        let text = annotations.get(mark::SOURCE_OF);
        text.map(|text| text.parse()).transpose()
    }

    #[must_use]
    pub fn by(&self) -> &MoveUid {
        match self {
            Self::Moving { by, .. } | Self::RolledBack { by, .. } | Self::Superseded { by, .. } => by,
        }
    }
}

impl fmt::Display for SourceMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moving { by, gate } => write!(f, "moving:{by}:{gate}"),
            Self::RolledBack { by, gate } => write!(f, "given-back:{by}:{gate}"),
            Self::Superseded { by, epoch } => write!(f, "superseded:{by}:{epoch}"),
        }
    }
}

impl FromStr for SourceMark {
    type Err = TwinMarkError;

    fn from_str(text: &str) -> Result<Self, TwinMarkError> {
        parse_source(text).ok_or_else(|| malformed(mark::SOURCE_OF, text))
    }
}

fn parse_source(text: &str) -> Option<SourceMark> {
    let (state, rest) = text.split_once(':')?;
    let (by, number) = rest.split_once(':')?;
    let by = by.parse().ok()?;
    Some(match state {
        "moving" => SourceMark::Moving {
            by,
            gate: number.parse().ok()?,
        },
        "given-back" => SourceMark::RolledBack {
            by,
            gate: number.parse().ok()?,
        },
        "superseded" => SourceMark::Superseded {
            by,
            epoch: number.parse().ok()?,
        },
        _ => return None,
    })
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TwinMarks {
    /// The twin is the target of a move.
    pub target: Option<TargetMark>,
    /// The twin is, or was, the source of a move.
    pub source: Option<SourceMark>,
}

impl TwinMarks {
    pub fn read(labels: &Map, annotations: &Map) -> Result<Self, TwinMarkError> {
        Ok(Self {
            target: TargetMark::read(labels, annotations)?,
            source: SourceMark::read(annotations)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";

    fn target() -> TargetMark {
        TargetMark {
            by: UID.parse().unwrap(),
            epoch: "3".parse().unwrap(),
        }
    }

    #[test]
    fn the_mark_of_a_target_survives_the_twin() {
        let target = target();
        let read = TargetMark::read(&target.labels(), &target.annotations());
        assert_eq!(read, Ok(Some(target)));
    }

    #[test]
    fn a_target_that_is_handed_over_keeps_its_epoch() {
        let annotations = target().annotations();
        assert_eq!(TargetMark::read(&Map::new(), &annotations), Ok(None));
        assert_eq!(epoch_of(&annotations), Ok(target().epoch));
        assert_eq!(epoch_of(&Map::new()), Ok(Epoch::NEVER_MOVED));
    }

    #[test]
    fn marks_of_a_source_survive_the_twin() {
        let (by, gate, epoch) = (target().by, GateNumber::FIRST, target().epoch);
        for source in [
            SourceMark::Moving { by: by.clone(), gate },
            SourceMark::RolledBack { by: by.clone(), gate },
            SourceMark::Superseded { by, epoch },
        ] {
            let annotations = Map::from([(mark::SOURCE_OF.to_owned(), source.to_string())]);
            assert_eq!(SourceMark::read(&annotations), Ok(Some(source)));
        }
        assert_eq!(SourceMark::read(&Map::new()), Ok(None));
    }

    #[test]
    fn an_unreadable_annotation_is_an_error_and_does_not_count_as_absent() {
        for wrong in [
            "",
            "moving",
            "moving:m:1",
            &format!("moving:{UID}:0"),
            &format!("superseded:{UID}:"),
            &format!("odd:{UID}:1"),
        ] {
            let annotations = Map::from([(mark::SOURCE_OF.to_owned(), wrong.to_owned())]);
            assert!(SourceMark::read(&annotations).is_err(), "{wrong}");
        }
        let label = Map::from([(mark::MOVE.to_owned(), "m".to_owned())]);
        assert!(TargetMark::read(&label, &Map::new()).is_err());
        let epoch = Map::from([(mark::EPOCH.to_owned(), "x".to_owned())]);
        assert!(epoch_of(&epoch).is_err());
    }
}
