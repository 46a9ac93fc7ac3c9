//! The capability with which a volume is requested of its driver.

use super::{DriverError, RealDriver};
use crate::{
    access::AccessMode,
    volume::{CsiSource, DataPath, VolumeMode},
    wire::csi::{self as wire, node_service_capability::rpc::Type as Can, volume_capability},
};

impl RealDriver {
    /// The capability that kubelet would derive from the twin's PV and the driver's capabilities.
    pub(super) fn capability(
        &self,
        volume: &DataPath,
        source: &CsiSource,
        mount_flags: &[String],
    ) -> Result<wire::VolumeCapability, DriverError> {
        let apart = self.can(Can::SingleNodeMultiWriter);
        let mode = volume
            .access_modes
            .first()
            .and_then(|mode| AccessMode::for_driver(mode, apart));
        let mode = mode.ok_or_else(|| DriverError::AccessMode(volume.access_modes.clone()))?;
        let access_type = match volume.volume_mode {
            VolumeMode::Block => volume_capability::AccessType::Block(volume_capability::BlockVolume {}),
            VolumeMode::Filesystem => volume_capability::AccessType::Mount(volume_capability::MountVolume {
                fs_type: source.fs_type.clone().unwrap_or_default(),
                mount_flags: merged(&volume.mount_options, mount_flags),
                volume_mount_group: String::new(),
            }),
        };
        Ok(wire::VolumeCapability {
            access_mode: Some(volume_capability::AccessMode {
                mode: wire_mode(mode).into(),
            }),
            access_type: Some(access_type),
        })
    }
}

/// The mount options of the twin first, then those of the virtual PV that are missing there.
fn merged(twins: &[String], ours: &[String]) -> Vec<String> {
    let new = ours.iter().filter(|option| !twins.contains(option));
    twins.iter().chain(new).cloned().collect()
}

fn wire_mode(mode: AccessMode) -> volume_capability::access_mode::Mode {
    use volume_capability::access_mode::Mode;
    match mode {
        AccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly => Mode::SingleNodeReaderOnly,
        AccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        AccessMode::MultiNodeSingleWriter => Mode::MultiNodeSingleWriter,
        AccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
        AccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_options_add_to_the_twins() {
        let options = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let all = merged(&options(&["noatime", "ro"]), &options(&["ro", "nodev"]));
        assert_eq!(all, options(&["noatime", "ro", "nodev"]));
    }
}
