//! How a caller wants to use a volume, in terms of CSI but without its types.

use serde::{Deserialize, Serialize};

use crate::volume::VolumeMode;

/// Which nodes and pods may use a volume at the same time, as CSI spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessMode {
    /// One node, any number of pods unless the driver limits that.
    SingleNodeWriter,
    /// One node, reading only.
    SingleNodeReaderOnly,
    /// Many nodes, reading only.
    MultiNodeReaderOnly,
    /// Many nodes, one of them writing.
    MultiNodeSingleWriter,
    /// Many nodes, all of them writing.
    MultiNodeMultiWriter,
    /// One pod of one node (`ReadWriteOncePod`).
    SingleNodeSingleWriter,
    /// Many pods of one node.
    SingleNodeMultiWriter,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Access {
    pub mode: AccessMode,
    /// As a directory or as a device.
    pub volume_mode: VolumeMode,
    /// Mount options of the virtual PV.
    #[serde(default)]
    pub mount_flags: Vec<String>,
}

impl AccessMode {
    /// The access mode that kubelet requests of a driver, given the first access mode of a PV.
    ///
    /// Kubelet distinguishes one writer on a node from many only for a driver with that capability; for
    /// any other both are `SINGLE_NODE_WRITER`.
    #[must_use]
    pub fn for_driver(kubernetes: &str, tells_writers_apart: bool) -> Option<Self> {
        match (kubernetes, tells_writers_apart) {
            ("ReadWriteOnce" | "ReadWriteOncePod", false) => Some(Self::SingleNodeWriter),
            ("ReadWriteOnce", true) => Some(Self::SingleNodeMultiWriter),
            ("ReadWriteOncePod", true) => Some(Self::SingleNodeSingleWriter),
            ("ReadOnlyMany", _) => Some(Self::MultiNodeReaderOnly),
            ("ReadWriteMany", _) => Some(Self::MultiNodeMultiWriter),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_writer_modes_are_passed_only_to_drivers_that_support_them() {
        let first = |mode, apart| AccessMode::for_driver(mode, apart);
        assert_eq!(
            first("ReadWriteOnce", true),
            Some(AccessMode::SingleNodeMultiWriter)
        );
        assert_eq!(
            first("ReadWriteOncePod", true),
            Some(AccessMode::SingleNodeSingleWriter)
        );
        assert_eq!(first("ReadWriteOnce", false), Some(AccessMode::SingleNodeWriter));
        assert_eq!(
            first("ReadWriteOncePod", false),
            Some(AccessMode::SingleNodeWriter)
        );
        assert_eq!(first("ReadOnlyMany", true), Some(AccessMode::MultiNodeReaderOnly));
        assert_eq!(
            first("ReadWriteMany", false),
            Some(AccessMode::MultiNodeMultiWriter)
        );
        assert_eq!(first("Sideways", true), None);
    }
}
