//! The handle of a volume that may have moved: its id, and how often it moved. A node or a
//! cluster that comes back with an old handle is known by its epoch.

use std::{fmt, str::FromStr};

use super::Epoch;
use crate::volume::{VolumeId, VolumeIdError, VolumeName};

const MOVED_VERSION: &str = "v2";

/// What the `volumeHandle` of a virtual PV says.
///
/// A volume that never moved keeps the id that it has, `v1:<cluster>:<volume>`; every other one
/// is written `v2:<cluster>:<volume>:<epoch>`, at most 122 bytes (CSI allows 128).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeHandle {
    /// Where the volume is, and its name.
    pub id: VolumeId,
    /// How often it has moved.
    pub epoch: Epoch,
}

impl FromStr for VolumeHandle {
    type Err = VolumeIdError;

    fn from_str(text: &str) -> Result<Self, VolumeIdError> {
        let Some(rest) = text
            .strip_prefix(MOVED_VERSION)
            .and_then(|rest| rest.strip_prefix(':'))
        else {
            return Ok(Self {
                id: text.parse()?,
                epoch: Epoch::NEVER_MOVED,
            });
        };
        moved(rest).ok_or_else(|| VolumeIdError::Foreign(text.chars().take(128).collect()))
    }
}

fn moved(rest: &str) -> Option<VolumeHandle> {
    let (cluster, rest) = rest.split_once(':')?;
    let (name, epoch) = rest.split_once(':')?;
    let handle = VolumeHandle {
        id: VolumeId {
            cluster: cluster.parse().ok()?,
            name: VolumeName::parse(name)?,
        },
        epoch: epoch.parse().ok()?,
    };
    // `+1`, `01` and 0 are no second ways to write an epoch.
    (handle.epoch > Epoch::NEVER_MOVED && handle.epoch.to_string() == epoch).then_some(handle)
}

impl fmt::Display for VolumeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.epoch == Epoch::NEVER_MOVED {
            return self.id.fmt(f);
        }
        let VolumeId { cluster, name } = &self.id;
        write!(f, "{MOVED_VERSION}:{cluster}:{name}:{}", self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAME: &str = "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

    #[test]
    fn a_volume_that_never_moved_keeps_its_id() {
        let text = format!("v1:home:{NAME}");
        let handle: VolumeHandle = text.parse().unwrap();
        assert_eq!(handle.epoch, Epoch::NEVER_MOVED);
        assert_eq!(handle.to_string(), text);
    }

    #[test]
    fn there_is_one_way_to_write_an_epoch() {
        for wrong in ["0", "01", "+1", "", "x", "4294967296", "1:2"] {
            let text = format!("v2:home:{NAME}:{wrong}");
            let parsed = text.parse::<VolumeHandle>();
            assert_eq!(parsed, Err(VolumeIdError::Foreign(text)));
        }
        let later = format!("v3:home:{NAME}:1");
        let parsed = later.parse::<VolumeHandle>();
        assert_eq!(parsed, Err(VolumeIdError::UnknownVersion(later)));
    }

    proptest! {
        #[test]
        fn handles_survive_the_round_trip(
            cluster in "[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?", request in ".{0,128}", epoch in any::<u32>(),
        ) {
            let id = VolumeId { cluster: cluster.parse().unwrap(), name: VolumeName::from_request(&request) };
            let handle = VolumeHandle { id, epoch: epoch.to_string().parse().unwrap() };
            let text = handle.to_string();
            prop_assert!(text.len() <= 128);
            prop_assert_eq!(text.parse::<VolumeHandle>(), Ok(handle));
        }

        #[test]
        fn no_text_makes_parsing_panic(text in "\\PC{0,200}") {
            let _ = text.parse::<VolumeHandle>();
        }
    }
}
