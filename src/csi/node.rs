//! The Node service: kubelet's requests, parsed and passed to [`crate::node`].

mod parse;
mod status;

use tonic::{Request, Response, Status};

use super::{status::Coded, work::Work};
use crate::{
    node::{
        driver::{Unit, Usage},
        max_volumes::MaxVolumes,
        volumes::Volumes,
    },
    topology::Segments,
    volume::ClusterId,
    wire::csi::{
        self as wire, node_server,
        node_service_capability::{self as capability, rpc::Type as Can},
    },
};

/// A call of kubelet that changes something continues when its caller disconnects; see [`Work`].
pub struct Node {
    volumes: Volumes,
    work: Work,
    info: NodeInfo,
}

/// What `NodeGetInfo` reports.
#[derive(Clone)]
pub struct NodeInfo {
    /// Name of the Node object, which is also the id that CSI uses for it.
    pub name: String,
    /// Id of its cluster.
    pub cluster: ClusterId,
    /// How many volumes fit on the node.
    pub max_volumes: MaxVolumes,
}

impl Node {
    /// The service over `volumes`; a shutdown waits for `work`.
    #[must_use]
    pub fn new(volumes: Volumes, work: Work, info: NodeInfo) -> Self {
        Self { volumes, work, info }
    }

    /// The gRPC service, for the routes of a server.
    #[must_use]
    pub fn service(self) -> node_server::NodeServer<Self> {
        node_server::NodeServer::new(self)
    }
}

#[tonic::async_trait]
impl node_server::Node for Node {
    async fn node_stage_volume(
        &self,
        request: Request<wire::NodeStageVolumeRequest>,
    ) -> Result<Response<wire::NodeStageVolumeResponse>, Status> {
        let parsed = parse::stage(request.into_inner())?;
        let volumes = self.volumes.clone();
        let id = parsed.volume_id.clone();
        self.work
            .run(&id, async move { volumes.stage(parsed).await })
            .await?;
        Ok(Response::new(wire::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<wire::NodeUnstageVolumeRequest>,
    ) -> Result<Response<wire::NodeUnstageVolumeResponse>, Status> {
        let parsed = parse::unstage(request.into_inner())?;
        let volumes = self.volumes.clone();
        let id = parsed.volume_id.clone();
        self.work
            .run(&id, async move { volumes.unstage(parsed).await })
            .await?;
        Ok(Response::new(wire::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<wire::NodePublishVolumeRequest>,
    ) -> Result<Response<wire::NodePublishVolumeResponse>, Status> {
        let parsed = parse::publish(request.into_inner())?;
        let volumes = self.volumes.clone();
        let id = parsed.stage.volume_id.clone();
        self.work
            .run(&id, async move { volumes.publish(parsed).await })
            .await?;
        Ok(Response::new(wire::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<wire::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<wire::NodeUnpublishVolumeResponse>, Status> {
        let parsed = parse::unpublish(request.into_inner())?;
        let volumes = self.volumes.clone();
        let id = parsed.volume_id.clone();
        self.work
            .run(&id, async move { volumes.unpublish(parsed).await })
            .await?;
        Ok(Response::new(wire::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<wire::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<wire::NodeGetVolumeStatsResponse>, Status> {
        let asked = parse::stats(request.into_inner())?;
        let usage = self.volumes.stats(asked).await.map_err(Coded::status)?;
        Ok(Response::new(wire::NodeGetVolumeStatsResponse {
            usage: usage.into_iter().map(to_wire).collect(),
        }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<wire::NodeExpandVolumeRequest>,
    ) -> Result<Response<wire::NodeExpandVolumeResponse>, Status> {
        let (asked, size) = parse::expand(request.into_inner())?;
        let volumes = self.volumes.clone();
        let id = asked.volume_id.clone();
        let grown = self
            .work
            .run(&id, async move { volumes.expand(asked, size).await })
            .await?;
        Ok(Response::new(wire::NodeExpandVolumeResponse {
            capacity_bytes: grown.unwrap_or(0),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<wire::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<wire::NodeGetCapabilitiesResponse>, Status> {
        // Not VOLUME_MOUNT_GROUP: kubelet would leave fsGroup to the driver without passing the pod's
        // fsGroupChangePolicy.
        let can = [
            Can::StageUnstageVolume,
            Can::GetVolumeStats,
            Can::ExpandVolume,
            Can::SingleNodeMultiWriter,
        ];
        let capabilities = can.map(|it| wire::NodeServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc { r#type: it.into() })),
        });
        Ok(Response::new(wire::NodeGetCapabilitiesResponse {
            capabilities: capabilities.into(),
        }))
    }

    async fn node_get_info(
        &self,
        _: Request<wire::NodeGetInfoRequest>,
    ) -> Result<Response<wire::NodeGetInfoResponse>, Status> {
        let place = Segments::of_node(&self.info.cluster, &self.info.name);
        Ok(Response::new(wire::NodeGetInfoResponse {
            node_id: self.info.name.clone(),
            max_volumes_per_node: self.info.max_volumes.on(&self.info.name).await,
            accessible_topology: Some(wire::Topology {
                segments: place.into_map().into_iter().collect(),
            }),
        }))
    }
}

fn to_wire(usage: Usage) -> wire::VolumeUsage {
    let unit = match usage.unit {
        Unit::Bytes => wire::volume_usage::Unit::Bytes,
        Unit::Inodes => wire::volume_usage::Unit::Inodes,
    };
    wire::VolumeUsage {
        available: usage.available,
        total: usage.total,
        used: usage.used,
        unit: unit.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use node_server::Node as _;
    use tonic::Code;

    use super::*;
    use crate::node::{
        direct::Direct, driver::Drivers, host::HostRoot, registry::Registry, secrets::Secrets, state::State,
    };

    fn node(dir: &tempfile::TempDir, name: &str) -> Node {
        let root = dir.path().to_owned();
        let state = State::open(root.join("state")).unwrap();
        let drivers = Drivers::new(
            Registry::new(root.clone(), root.join("own.sock")),
            Secrets::Forbidden,
        );
        let direct = Direct::new(HostRoot::new(root));
        let volumes = Volumes::new(state, drivers, direct, Duration::MAX).unwrap();
        let info = NodeInfo {
            name: name.to_owned(),
            cluster: "home".parse().unwrap(),
            max_volumes: MaxVolumes::Fixed(7),
        };
        Node::new(volumes, Work::default(), info)
    }

    #[tokio::test]
    async fn node_info_has_the_topology_and_limit_of_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let long = "n".repeat(200);
        for (name, value) in [
            ("worker-1", "worker-1"),
            (&long, &crate::topology::node_value(&long)),
        ] {
            let node = node(&dir, name);
            let asked = node.node_get_info(Request::new(wire::NodeGetInfoRequest {}));
            let info = asked.await.unwrap().into_inner();
            assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), (name, 7));
            let segments = info.accessible_topology.unwrap().segments;
            assert_eq!(segments[crate::topology::CLUSTER_KEY], "home");
            assert_eq!(segments[crate::topology::NODE_KEY], value);
        }
    }

    #[tokio::test]
    async fn file_system_groups_are_left_to_the_kubelet() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(&dir, "n");
        let asked = node.node_get_capabilities(Request::new(wire::NodeGetCapabilitiesRequest {}));
        let capabilities = asked.await.unwrap().into_inner().capabilities;
        let group = capability::Type::Rpc(capability::Rpc {
            r#type: Can::VolumeMountGroup.into(),
        });
        assert_eq!(capabilities.len(), 4);
        assert!(capabilities.iter().all(|it| it.r#type != Some(group)));
    }

    #[tokio::test]
    async fn unpublishing_an_absent_volume_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("mount");
        std::fs::create_dir(&target).unwrap();
        let node = node(&dir, "n");
        for volume_id in ["fake-vol-id", "v1:home:pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111"] {
            let gone = wire::NodeUnpublishVolumeRequest {
                volume_id: volume_id.into(),
                target_path: target.display().to_string(),
            };
            node.node_unpublish_volume(Request::new(gone)).await.unwrap();
            let gone = wire::NodeUnstageVolumeRequest {
                volume_id: volume_id.into(),
                staging_target_path: dir.path().join("staging").display().to_string(),
            };
            node.node_unstage_volume(Request::new(gone)).await.unwrap();
        }
        assert!(!target.exists());
        let stats = wire::NodeGetVolumeStatsRequest {
            volume_id: "v1:home:pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111".into(),
            volume_path: target.display().to_string(),
            ..Default::default()
        };
        let nothing = node.node_get_volume_stats(Request::new(stats)).await.unwrap_err();
        assert_eq!(nothing.code(), Code::NotFound);
    }
}
