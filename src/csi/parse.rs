//! Parses the requests of the Controller service. What the driver cannot do is `INVALID_ARGUMENT`
//! with the name of the field; nothing in a request is ignored silently.

use std::collections::HashMap;

use tonic::Status;

use super::{snapshots, status::Coded};
use crate::{
    placement::moving::Caller,
    topology::Segments,
    twin::CreateRequest,
    volume::{
        Access, AccessMode, Capabilities, Capability, Parameters, SizeRange, VolumeId, VolumeIdError,
        VolumeName, VolumeSpec, attributes_class, mark,
    },
    wire::csi::{self as wire, volume_capability::access_mode::Mode},
};

pub(super) fn create_request(request: wire::CreateVolumeRequest) -> Result<CreateRequest, Status> {
    let name = required("name", request.name)?;
    let capabilities = capabilities(request.volume_capabilities)?;
    let range = request.capacity_range.unwrap_or_default();
    let spec = VolumeSpec {
        size: SizeRange::new(range.required_bytes, range.limit_bytes).map_err(Coded::status)?,
        capabilities,
        parameters: Parameters::parse(&request.parameters).map_err(Coded::status)?,
        attributes: attributes_class(&request.mutable_parameters).map_err(Coded::status)?,
        source: snapshots::content_source(request.volume_content_source.as_ref())?,
    };
    let wished = request.accessibility_requirements.unwrap_or_default();
    let places = |all: Vec<wire::Topology>| -> Vec<Segments> {
        all.into_iter().map(|place| segments(place.segments)).collect()
    };
    let preferred = places(wished.preferred);
    let requisite = if wished.requisite.is_empty() {
        preferred.clone()
    } else {
        places(wished.requisite)
    };
    Ok(CreateRequest {
        volume: VolumeName::from_request(&name),
        request_name: name,
        spec,
        requisite,
        preferred,
    })
}

/// The id of a volume to expand, and the requested size. How the volume is used does not matter, and
/// the secrets for its real driver are the twin's.
pub(super) fn expand_request(
    request: wire::ControllerExpandVolumeRequest,
) -> Result<(String, SizeRange), Status> {
    let id = volume_id(request.volume_id)?;
    let range = request.capacity_range.ok_or_else(|| missing("capacity_range"))?;
    Ok((
        id,
        SizeRange::new(range.required_bytes, range.limit_bytes).map_err(Coded::status)?,
    ))
}

/// The id of a volume whose attributes are changed, and their class.
pub(super) fn modify_request(
    request: &wire::ControllerModifyVolumeRequest,
) -> Result<(String, String), Status> {
    let id = volume_id(request.volume_id.clone())?;
    let class = attributes_class(&request.mutable_parameters).map_err(Coded::status)?;
    Ok((id, class.ok_or_else(|| missing("mutable_parameters"))?))
}

/// The topology of a request: any cluster, if it has none.
pub(super) fn place(topology: Option<wire::Topology>) -> Segments {
    segments(topology.unwrap_or_default().segments)
}

/// The capabilities of a request, merged.
pub(super) fn capabilities(asked: Vec<wire::VolumeCapability>) -> Result<Capabilities, Status> {
    if asked.is_empty() {
        return Err(missing("volume_capabilities"));
    }
    let each: Result<Vec<Capability>, Status> = asked.into_iter().map(capability).collect();
    Capabilities::new(each?).map_err(Coded::status)
}

pub(super) fn only_capability(asked: Option<wire::VolumeCapability>) -> Result<Capabilities, Status> {
    let asked = asked.ok_or_else(|| missing("volume_capability"))?;
    Capabilities::new([capability(asked)?]).map_err(Coded::status)
}

fn capability(asked: wire::VolumeCapability) -> Result<Capability, Status> {
    use wire::volume_capability::AccessType;
    let access = match asked.access_type {
        Some(AccessType::Block(_)) => Access::Block,
        Some(AccessType::Mount(mount)) if mount.volume_mount_group.is_empty() => Access::Mount {
            fs_type: Some(mount.fs_type),
            flags: mount.mount_flags,
        },
        Some(AccessType::Mount(_)) => {
            return Err(unsupported(
                "volume_mount_group",
                "kubelet applies the group of a volume",
            ));
        }
        None => return Err(missing("volume_capability.access_type")),
    };
    let mode = asked.access_mode.map(|mode| mode.mode()).unwrap_or_default();
    Ok(Capability {
        mode: access_mode(mode)?,
        access,
    })
}

/// CSI has more modes than Kubernetes; those that Kubernetes lacks become the next mode that allows
/// as much.
fn access_mode(mode: Mode) -> Result<AccessMode, Status> {
    match mode {
        Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter => Ok(AccessMode::ReadWriteOnce),
        Mode::SingleNodeSingleWriter => Ok(AccessMode::ReadWriteOncePod),
        Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly => Ok(AccessMode::ReadOnlyMany),
        Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter => Ok(AccessMode::ReadWriteMany),
        Mode::Unknown => Err(missing("volume_capability.access_mode")),
    }
}

/// The id of a volume, which must not be empty.
pub(super) fn volume_id(id: String) -> Result<String, Status> {
    required("volume_id", id)
}

/// The volume of an id; `None` if the id is not of this driver, so that there is no such volume.
pub(super) fn ours(id: &str) -> Result<Option<VolumeId>, Status> {
    match id.parse() {
        Ok(id) => Ok(Some(id)),
        Err(VolumeIdError::Foreign(_)) => Ok(None),
        Err(unknown @ VolumeIdError::UnknownVersion(_)) => Err(unknown.status()),
    }
}

/// Whether a pod of the user or a mover uses the volume.
pub(super) fn caller(context: &HashMap<String, String>) -> Result<Caller, Status> {
    let attribute = context.get(mark::MOVER).map(String::as_str);
    Caller::read(attribute).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// A field that must be given.
pub(super) fn required(field: &str, value: String) -> Result<String, Status> {
    if value.is_empty() {
        Err(missing(field))
    } else {
        Ok(value)
    }
}

fn segments(segments: HashMap<String, String>) -> Segments {
    Segments::from(segments.into_iter().collect::<std::collections::BTreeMap<_, _>>())
}

fn missing(field: &str) -> Status {
    Status::invalid_argument(format!("the request has no {field}"))
}

fn unsupported(field: &str, why: &str) -> Status {
    Status::invalid_argument(format!("the request has a {field}: {why}"))
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use wire::volume_capability::{AccessMode as WireMode, AccessType, BlockVolume, MountVolume};

    use super::*;

    fn mount(mode: Mode) -> wire::VolumeCapability {
        wire::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(WireMode { mode: mode.into() }),
        }
    }

    fn request() -> wire::CreateVolumeRequest {
        wire::CreateVolumeRequest {
            name: "Some Volume".into(),
            volume_capabilities: vec![mount(Mode::SingleNodeWriter)],
            ..Default::default()
        }
    }

    fn refused(change: impl FnOnce(&mut wire::CreateVolumeRequest)) -> String {
        let mut request = request();
        change(&mut request);
        let status = create_request(request).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        status.message().to_owned()
    }

    #[test]
    fn a_minimal_request_is_accepted() {
        let create_request = create_request(request()).unwrap();
        assert_eq!(create_request.request_name, "Some Volume");
        assert!(create_request.requisite.is_empty());
    }

    #[test]
    fn the_invalid_field_of_a_create_request_is_named() {
        assert!(refused(|it| it.name.clear()).contains("name"));
        assert!(refused(|it| it.volume_capabilities.clear()).contains("volume_capabilities"));
        assert!(refused(|it| it.volume_capabilities[0].access_mode = None).contains("access_mode"));
        assert!(refused(|it| it.volume_capabilities[0].access_type = None).contains("access_type"));
        assert!(
            refused(|it| it.volume_content_source = Some(wire::VolumeContentSource::default()))
                .contains("content_source")
        );
        assert!(refused(|it| drop(it.parameters.insert("x".into(), "y".into()))).contains("\"x\""));
        assert!(
            refused(|it| drop(it.mutable_parameters.insert("x".into(), "y".into())))
                .contains("VolumeAttributesClass")
        );
        assert!(
            refused(|it| {
                let range = wire::CapacityRange {
                    required_bytes: 2,
                    limit_bytes: 1,
                };
                it.capacity_range = Some(range);
            })
            .contains("capacity range")
        );
    }

    #[test]
    fn a_foreign_source_is_not_found() {
        use wire::volume_content_source::{SnapshotSource, Type, VolumeSource};
        let sources = [
            Type::Snapshot(SnapshotSource {
                snapshot_id: "fake".into(),
            }),
            Type::Volume(VolumeSource {
                volume_id: "fake".into(),
            }),
        ];
        for source in sources {
            let mut request = request();
            request.volume_content_source = Some(wire::VolumeContentSource { r#type: Some(source) });
            assert_eq!(create_request(request).unwrap_err().code(), Code::NotFound);
        }
    }

    #[test]
    fn block_and_mount_do_not_mix() {
        let block = wire::VolumeCapability {
            access_type: Some(AccessType::Block(BlockVolume {})),
            access_mode: mount(Mode::SingleNodeWriter).access_mode,
        };
        assert!(only_capability(Some(block.clone())).is_ok());
        assert!(refused(|it| it.volume_capabilities.push(block)).contains("at once"));
        assert_eq!(only_capability(None).unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn every_mode_of_csi_has_one_of_kubernetes() {
        for (mode, expected) in [
            (Mode::SingleNodeWriter, AccessMode::ReadWriteOnce),
            (Mode::SingleNodeMultiWriter, AccessMode::ReadWriteOnce),
            (Mode::SingleNodeSingleWriter, AccessMode::ReadWriteOncePod),
            (Mode::SingleNodeReaderOnly, AccessMode::ReadOnlyMany),
            (Mode::MultiNodeReaderOnly, AccessMode::ReadOnlyMany),
            (Mode::MultiNodeSingleWriter, AccessMode::ReadWriteMany),
            (Mode::MultiNodeMultiWriter, AccessMode::ReadWriteMany),
        ] {
            assert_eq!(access_mode(mode).unwrap(), expected);
        }
        assert!(access_mode(Mode::Unknown).is_err());
    }

    #[test]
    fn requisite_counts_before_preferred() {
        let place = |value: &str| wire::Topology {
            segments: [("k".to_owned(), value.to_owned())].into(),
        };
        let mut request = request();
        request.accessibility_requirements = Some(wire::TopologyRequirement {
            requisite: vec![place("a")],
            preferred: vec![place("b")],
        });
        let create_request = create_request(request).unwrap();
        assert_eq!(create_request.requisite[0].get("k"), Some("a"));
        assert_eq!(create_request.preferred[0].get("k"), Some("b"));
    }
}
