//! Parses the requests of the Node service. Missing fields are reported first, then ids that are not
//! of this driver: csi-sanity tests that order.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Component, Path, PathBuf},
};

use tonic::Status;

use crate::{
    csi::status::Coded,
    node::{
        access::{Access, AccessMode},
        consumer::Consumer,
        publication::{Publish, Unpublish},
        upkeep::InUse,
        volumes::{Stage, Unstage},
    },
    volume::{DataPath, DataPathError, VolumeId, VolumeMode, mark},
    wire::csi::{
        self as wire,
        volume_capability::{AccessType, access_mode::Mode},
    },
};

pub(super) fn stage(request: wire::NodeStageVolumeRequest) -> Result<Stage, Status> {
    let volume_id = required(request.volume_id, "volume_id")?;
    let staging = path(&request.staging_target_path, "staging_target_path")?;
    let access = access(request.volume_capability)?;
    known(&volume_id)?;
    let data_path = data_path(&request.publish_context)?;
    Ok(Stage {
        volume_id,
        staging,
        data_path,
        access,
    })
}

pub(super) fn unstage(request: wire::NodeUnstageVolumeRequest) -> Result<Unstage, Status> {
    Ok(Unstage {
        volume_id: required(request.volume_id, "volume_id")?,
        staging: path(&request.staging_target_path, "staging_target_path")?,
    })
}

pub(super) fn publish(request: wire::NodePublishVolumeRequest) -> Result<Publish, Status> {
    let volume_id = required(request.volume_id, "volume_id")?;
    let target = path(&request.target_path, "target_path")?;
    let access = access(request.volume_capability)?;
    let staging = path(&request.staging_target_path, "staging_target_path")?;
    known(&volume_id)?;
    let data_path = data_path(&request.publish_context)?;
    // A mover requests a read-only volume of files only so that their SELinux labels are not changed, and its container has
    // a read-only mount. Drivers that mount a device for each pod cannot do that read-only while another pod writes to it.
    let is_for_labels =
        access.volume_mode == VolumeMode::Filesystem && request.volume_context.contains_key(mark::MOVER);
    Ok(Publish {
        stage: Stage {
            volume_id,
            staging,
            data_path,
            access,
        },
        target,
        read_only: request.readonly && !is_for_labels,
        consumer: Consumer {
            context: ordered(request.volume_context),
            secrets: ordered(request.secrets),
        },
    })
}

pub(super) fn unpublish(request: wire::NodeUnpublishVolumeRequest) -> Result<Unpublish, Status> {
    Ok(Unpublish {
        volume_id: required(request.volume_id, "volume_id")?,
        target: path(&request.target_path, "target_path")?,
    })
}

pub(super) fn stats(request: wire::NodeGetVolumeStatsRequest) -> Result<InUse, Status> {
    in_use(request.volume_id, request.volume_path)
}

/// The volume, and its required and maximum size.
pub(super) fn expand(request: wire::NodeExpandVolumeRequest) -> Result<(InUse, (i64, i64)), Status> {
    let range = request.capacity_range.unwrap_or_default();
    let size = (range.required_bytes, range.limit_bytes);
    Ok((in_use(request.volume_id, request.volume_path)?, size))
}

/// For an id of another driver the answer is that the volume does not exist, however odd the path is.
fn in_use(volume_id: String, volume_path: String) -> Result<InUse, Status> {
    let volume_id = required(volume_id, "volume_id")?;
    let path = required(volume_path, "volume_path")?.into();
    known(&volume_id)?;
    Ok(InUse { volume_id, path })
}

fn required(value: String, field: &str) -> Result<String, Status> {
    if value.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is missing")));
    }
    Ok(value)
}

/// Written as in the mount table: without double or trailing slashes.
fn path(value: &str, field: &str) -> Result<PathBuf, Status> {
    if value.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is missing")));
    }
    let path = Path::new(value);
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(Status::invalid_argument(format!(
            "{field} must be an absolute path without '..', not {value:?}"
        )));
    }
    Ok(path.components().collect())
}

fn known(volume_id: &str) -> Result<(), Status> {
    volume_id.parse::<VolumeId>().map_err(Coded::status)?;
    Ok(())
}

fn access(capability: Option<wire::VolumeCapability>) -> Result<Access, Status> {
    let missing = |field: &str| Status::invalid_argument(format!("{field} is missing"));
    let capability = capability.ok_or_else(|| missing("volume_capability"))?;
    let mode = capability
        .access_mode
        .ok_or_else(|| missing("volume_capability.access_mode"))?;
    let (volume_mode, mount_flags) = match capability.access_type {
        None => return Err(missing("volume_capability.access_type")),
        Some(AccessType::Block(_)) => (VolumeMode::Block, Vec::new()),
        Some(AccessType::Mount(mount)) => (VolumeMode::Filesystem, mount.mount_flags),
    };
    Ok(Access {
        mode: access_mode(mode.mode())?,
        volume_mode,
        mount_flags,
    })
}

fn access_mode(mode: Mode) -> Result<AccessMode, Status> {
    Ok(match mode {
        Mode::Unknown => {
            return Err(Status::invalid_argument(
                "volume_capability.access_mode is not known to this driver",
            ));
        }
        Mode::SingleNodeWriter => AccessMode::SingleNodeWriter,
        Mode::SingleNodeReaderOnly => AccessMode::SingleNodeReaderOnly,
        Mode::MultiNodeReaderOnly => AccessMode::MultiNodeReaderOnly,
        Mode::MultiNodeSingleWriter => AccessMode::MultiNodeSingleWriter,
        Mode::MultiNodeMultiWriter => AccessMode::MultiNodeMultiWriter,
        Mode::SingleNodeSingleWriter => AccessMode::SingleNodeSingleWriter,
        Mode::SingleNodeMultiWriter => AccessMode::SingleNodeMultiWriter,
    })
}

fn data_path(publish_context: &HashMap<String, String>) -> Result<DataPath, Status> {
    DataPath::from_publish_context(publish_context).map_err(|error| match error {
        DataPathError::Malformed(_) => Status::invalid_argument(error.to_string()),
        DataPathError::Missing | DataPathError::Version(_) => Status::failed_precondition(error.to_string()),
    })
}

fn ordered(map: HashMap<String, String>) -> BTreeMap<String, String> {
    map.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::volume::RealSource;

    const ID: &str = "v1:home:pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

    fn capability() -> wire::VolumeCapability {
        wire::VolumeCapability {
            access_mode: Some(wire::volume_capability::AccessMode {
                mode: Mode::SingleNodeMultiWriter.into(),
            }),
            access_type: Some(AccessType::Mount(wire::volume_capability::MountVolume::default())),
        }
    }

    fn context() -> HashMap<String, String> {
        let source = RealSource::Local {
            path: "/d".into(),
            fs_type: None,
        };
        let path = DataPath::new(source, VolumeMode::Filesystem, vec!["ReadWriteOnce".into()]);
        path.to_publish_context().unwrap().into_iter().collect()
    }

    fn request(volume_id: &str) -> wire::NodePublishVolumeRequest {
        wire::NodePublishVolumeRequest {
            volume_id: volume_id.into(),
            publish_context: context(),
            staging_target_path: "/staging/".into(),
            target_path: "/pods//mount".into(),
            volume_capability: Some(capability()),
            readonly: true,
            ..Default::default()
        }
    }

    fn code<T>(parsed: Result<T, Status>) -> (Code, String) {
        let status = parsed.err().unwrap();
        (status.code(), status.message().to_owned())
    }

    #[test]
    fn a_valid_publish_request_is_parsed() {
        let parsed = publish(request(ID)).unwrap();
        assert_eq!(parsed.target, Path::new("/pods/mount"));
        assert_eq!(parsed.stage.staging.as_os_str(), "/staging");
        assert_eq!(parsed.stage.access.mode, AccessMode::SingleNodeMultiWriter);
        assert!(parsed.read_only);
    }

    #[test]
    fn the_real_driver_mounts_a_file_system_writable_for_a_mover() {
        let mut of_mover = request(ID);
        of_mover
            .volume_context
            .insert(mark::MOVER.into(), "source:m".into());
        assert!(!publish(of_mover).unwrap().read_only);
    }

    #[test]
    fn missing_fields_are_named_before_the_volume_is_looked_for() {
        type Change = fn(&mut wire::NodePublishVolumeRequest);
        let changes: [(&str, Change); 6] = [
            ("volume_id", |it| it.volume_id.clear()),
            ("target_path", |it| it.target_path.clear()),
            ("target_path", |it| it.target_path = "../etc".into()),
            ("staging_target_path", |it| {
                it.staging_target_path = "/a/../b".into();
            }),
            ("volume_capability", |it| it.volume_capability = None),
            ("access_mode", |it| {
                it.volume_capability = Some(wire::VolumeCapability {
                    access_mode: Some(wire::volume_capability::AccessMode { mode: 99 }),
                    ..capability()
                });
            }),
        ];
        for (field, change) in changes {
            let mut wrong = request("fake-vol-id");
            change(&mut wrong);
            let (code, message) = code(publish(wrong));
            assert_eq!(code, Code::InvalidArgument, "{field}: {message}");
            assert!(message.contains(field), "{field}: {message}");
        }
    }

    #[test]
    fn a_foreign_volume_id_is_not_found_but_can_be_unpublished() {
        assert_eq!(code(publish(request("fake-vol-id"))).0, Code::NotFound);
        let newer = ID.replace("v1:", "v3:");
        assert_eq!(code(publish(request(&newer))).0, Code::Unavailable);
        let asked = wire::NodeGetVolumeStatsRequest {
            volume_id: "fake-vol-id".into(),
            volume_path: "some/path".into(),
            ..Default::default()
        };
        assert_eq!(code(stats(asked)).0, Code::NotFound);
        let gone = wire::NodeUnpublishVolumeRequest {
            volume_id: "fake-vol-id".into(),
            target_path: "/t".into(),
        };
        assert!(unpublish(gone).is_ok());
    }

    #[test]
    fn a_volume_our_controller_did_not_publish_is_refused() {
        let mut bare = request(ID);
        bare.publish_context.clear();
        let (code, message) = code(publish(bare));
        assert_eq!(code, Code::FailedPrecondition);
        assert!(message.contains("not published by this driver"), "{message}");
    }
}
