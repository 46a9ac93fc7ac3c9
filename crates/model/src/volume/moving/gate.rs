//! The marks of a move on the virtual PV. A gated PV names the move instead of its claim, so that Kubernetes
//! starts no pod with it; the replaced fields are recorded here.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{GateNumber, MoveUid};
use crate::volume::{
    ReclaimPolicy, RecordError, mark,
    transfer::{VERSION, read_record},
};

type Map = BTreeMap<String, String>;

/// The fields that a gate has replaced. As long as the PV has this note, its policy is Retain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateNote {
    pub by: MoveUid,
    pub gate: GateNumber,
    /// The reclaim policy before the gate, which is restored later. It is the one that the user wants: all
    /// loops use it instead of the Retain of the gate.
    pub policy: ReclaimPolicy,
    /// The uid of the claim before the gate, which is restored later.
    pub claim_uid: String,
}

/// The annotation of a move on a virtual PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeMark {
    /// The PV is gated; or it names its claim again, and gets its reclaim policy back when Kubernetes has
    /// bound them.
    Gated(GateNote),
    /// The gate was removed, or refused before it was closed: a late write of an old leader that closes it
    /// fails, because it names an older version. The mark stays until the next move.
    Ungated { by: MoveUid, gate: GateNumber },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MarkJson {
    version: u8,
    r#move: MoveUid,
    gate: GateNumber,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gated: Option<GatedJson>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GatedJson {
    policy: ReclaimPolicy,
    claim_uid: String,
}

impl VolumeMark {
    pub fn to_annotation(&self) -> Result<String, serde_json::Error> {
        let (by, gate, gated) = match self {
            Self::Gated(note) => {
                let taken = GatedJson {
                    policy: note.policy,
                    claim_uid: note.claim_uid.clone(),
                };
                (&note.by, note.gate, Some(taken))
            }
            Self::Ungated { by, gate } => (by, *gate, None),
        };
        serde_json::to_string(&MarkJson {
            version: VERSION,
            r#move: by.clone(),
            gate,
            gated,
        })
    }

    pub fn read(annotations: &Map) -> Result<Option<Self>, RecordError> {
        let Some(written) = read_record::<MarkJson>(annotations, mark::GATE)? else {
            return Ok(None);
        };
        let (by, gate) = (written.r#move, written.gate);
        let Some(taken) = written.gated else {
            return Ok(Some(Self::Ungated { by, gate }));
        };
        if taken.claim_uid.is_empty() {
            return Err(RecordError::Malformed {
                key: mark::GATE,
                why: "it names no claim".to_owned(),
            });
        }
        Ok(Some(Self::Gated(GateNote {
            by,
            gate,
            policy: taken.policy,
            claim_uid: taken.claim_uid,
        })))
    }

    /// The fields that the gate has replaced, unless already restored.
    #[must_use]
    pub fn note(&self) -> Option<&GateNote> {
        match self {
            Self::Gated(note) => Some(note),
            Self::Ungated { .. } => None,
        }
    }
}

/// Whether a PV is gated, or may be: an unreadable mark counts as gated.
#[must_use]
pub fn is_gated(annotations: &Map) -> bool {
    VolumeMark::read(annotations).map_or(true, |mark| mark.is_some_and(|mark| mark.note().is_some()))
}

/// The change of its PV for which a claim is touched, so that Kubernetes reconciles both now and not only at
/// its next resync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    Gated(GateNumber),
    Ungated(GateNumber),
}

/// A text that this driver does not write on claims.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the annotation {key} has the value {0:?}, which this driver never writes", key = mark::MOVE_TOUCHED)]
pub struct TouchError(String);

impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gated(gate) => write!(f, "gated-{gate}"),
            Self::Ungated(gate) => write!(f, "given-back-{gate}"),
        }
    }
}

impl FromStr for Touch {
    type Err = TouchError;

    fn from_str(text: &str) -> Result<Self, TouchError> {
        let number = |prefix| text.strip_prefix(prefix)?.parse().ok();
        let gated = number("gated-").map(Self::Gated);
        gated
            .or_else(|| number("given-back-").map(Self::Ungated))
            .ok_or_else(|| TouchError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";

    fn read(text: &str) -> Result<Option<VolumeMark>, RecordError> {
        VolumeMark::read(&Map::from([(mark::GATE.to_owned(), text.to_owned())]))
    }

    #[test]
    fn marks_survive_the_annotation() {
        let by: MoveUid = UID.parse().unwrap();
        let gate = GateNumber::FIRST.next();
        for mark in [
            VolumeMark::Gated(GateNote {
                by: by.clone(),
                gate,
                policy: ReclaimPolicy::Delete,
                claim_uid: "u1".into(),
            }),
            VolumeMark::Ungated { by, gate },
        ] {
            assert_eq!(read(&mark.to_annotation().unwrap()), Ok(Some(mark)));
        }
        assert_eq!(VolumeMark::read(&Map::new()), Ok(None));
    }

    #[test]
    fn an_unreadable_annotation_is_an_error_and_does_not_count_as_absent() {
        let gated = |taken: &str| format!(r#"{{"version":1,"move":"{UID}","gate":1,"gated":{taken}}}"#);
        for wrong in [
            "",
            "{}",
            r#"{"version":1,"move":"m","gate":1}"#,
            &format!(r#"{{"version":1,"move":"{UID}","gate":0}}"#),
            &format!(r#"{{"version":1,"move":"{UID}","gate":1,"more":1}}"#),
            &gated(r#"{"policy":"Recycle","claimUid":"u1"}"#),
            &gated(r#"{"policy":"Delete","claimUid":""}"#),
            &gated(r#"{"policy":"Delete"}"#),
        ] {
            assert!(
                matches!(read(wrong), Err(RecordError::Malformed { .. })),
                "{wrong}"
            );
        }
        let newer = read(r#"{"version":2,"other":1}"#);
        assert!(matches!(newer, Err(RecordError::Version { version: 2, .. })));
    }

    #[test]
    fn an_unreadable_mark_counts_as_gated() {
        let gated = |text: &str| is_gated(&Map::from([(mark::GATE.to_owned(), text.to_owned())]));
        assert!(gated("?"));
        assert!(gated(r#"{"version":2}"#));
        assert!(!gated(&format!(r#"{{"version":1,"move":"{UID}","gate":1}}"#)));
        assert!(!is_gated(&Map::new()));
    }

    #[test]
    fn touches_survive_the_annotation() {
        let gate = GateNumber::FIRST;
        for touch in [Touch::Gated(gate), Touch::Ungated(gate)] {
            assert_eq!(touch.to_string().parse(), Ok(touch));
        }
        for wrong in ["", "gated-", "gated-0", "given-back-x", "1"] {
            assert!(wrong.parse::<Touch>().is_err(), "{wrong}");
        }
    }
}
