//! The Controller service. Each handler parses the request, calls the domain and builds the answer.

use std::{collections::HashMap, sync::Arc};

use tonic::{Request, Response, Status};

use super::{CreateLimiter, Deadline, parse, snapshots, status::Coded, work::Work};
use crate::{
    cluster::{Cluster, events::Events},
    fleet::{NodeKind, Registry},
    placement::moving::Caller,
    topology::Segments,
    twin::{self, Policy},
    volume::{VolumeId, VolumeName, twin_in},
    wire::csi::{self as wire, controller_service_capability as capability},
};

/// The Controller service.
pub struct Controller {
    home: Cluster,
    registry: Registry,
    policy: Arc<Policy>,
    events: Events,
    work: Work,
    creations: CreateLimiter,
}

type Answer<T> = Result<Response<T>, Status>;

impl Controller {
    /// Serves the claims of the cluster `home`. Their pods may run in the clusters of `registry`.
    #[must_use]
    pub fn new(
        home: Cluster,
        registry: Registry,
        policy: Policy,
        work: Work,
        creations: CreateLimiter,
    ) -> Self {
        let events = Events::new(home.client().clone());
        Self {
            home,
            registry,
            policy: Arc::new(policy),
            events,
            work,
            creations,
        }
    }

    /// Whether the data of a volume is in this cluster, and not in a remote one.
    fn is_home(&self, id: &VolumeId) -> bool {
        id.cluster == *self.home.id()
    }

    /// Waits until the objects that calls depend on were read once: a process without earlier calls
    /// begins its watches with the first one.
    async fn observed(&self, deadline: Deadline) -> Result<(), Status> {
        let complete = self.home.views().complete();
        tokio::time::timeout_at(deadline.at(), complete)
            .await
            .map_err(|_| {
                Status::unavailable(format!(
                    "the objects of the cluster {} were not read in time; its API server may be slow, or this driver's role \
                     may lack the right to watch them: see the log",
                    self.home.id()
                ))
            })
    }

    /// A volume of a remote cluster can be used only there, so only on the virtual node of that
    /// cluster, where nothing has to be attached.
    async fn publish_remote(
        &self,
        id: &VolumeId,
        node: &str,
        caller: &Caller,
        context: HashMap<String, String>,
    ) -> Result<(), Status> {
        let found = twin::node(&self.home, node)
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let found = found.ok_or_else(|| Status::not_found(format!("no node has the name {node:?}")))?;
        match self.registry.behind(&found) {
            NodeKind::Virtual(remote) if remote.id == id.cluster => {
                let remembered = twin_in(&context.into_iter().collect());
                let (home, registry) = (&self.home, &self.registry);
                twin::may_publish_elsewhere(home, registry, id, caller, remembered.as_ref())
                    .await
                    .map_err(Coded::status)
            }
            _ => Err(Status::failed_precondition(format!(
                "the volume {} is in the cluster {}, so it cannot be used on the node {node}: let its pod run on a node \
                 of that cluster, or move the volume",
                id.name, id.cluster
            ))),
        }
    }
}

#[tonic::async_trait]
impl wire::controller_server::Controller for Controller {
    async fn create_volume(
        &self,
        request: Request<wire::CreateVolumeRequest>,
    ) -> Answer<wire::CreateVolumeResponse> {
        let deadline = Deadline::of(request.metadata());
        let request = request.into_inner();
        // Without this field in the answer, csi-provisioner would assume that the volume is empty.
        let content_source = request.volume_content_source.clone();
        let create_request = parse::create_request(request)?;
        self.observed(deadline).await?;
        let name = create_request.volume.clone();
        let (home, registry) = (self.home.clone(), self.registry.clone());
        let (policy, events) = (Arc::clone(&self.policy), self.events.clone());
        let creations = self.creations.clone();
        let creation = async move {
            let create = async {
                twin::create(&home, &registry, &policy, &events, &create_request, deadline.at())
                    .await
                    .map_err(Coded::status)
            };
            Box::pin(creations.take(deadline.at(), create)).await
        };
        let made = self.work.run(name.as_str(), creation).await?;
        let id = VolumeId::never_moved(made.cluster, name);
        Ok(Response::new(wire::CreateVolumeResponse {
            volume: Some(wire::Volume {
                volume_id: id.to_string(),
                capacity_bytes: bytes(made.bytes),
                volume_context: made.context.into_iter().collect(),
                accessible_topology: made.topology.into_iter().map(topology).collect(),
                content_source,
            }),
        }))
    }

    async fn delete_volume(
        &self,
        request: Request<wire::DeleteVolumeRequest>,
    ) -> Answer<wire::DeleteVolumeResponse> {
        let deadline = Deadline::of(request.metadata());
        let id = parse::volume_id(request.into_inner().volume_id)?;
        let Some(id) = parse::ours(&id)? else {
            return Ok(Response::new(wire::DeleteVolumeResponse {}));
        };
        self.observed(deadline).await?;
        let (home, registry, events) = (self.home.clone(), self.registry.clone(), self.events.clone());
        let name = id.name.clone();
        let delete = async move { twin::delete(&home, &registry, &events, &id, deadline.at()).await };
        self.work.run(name.as_str(), delete).await?;
        Ok(Response::new(wire::DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<wire::ControllerPublishVolumeRequest>,
    ) -> Answer<wire::ControllerPublishVolumeResponse> {
        let deadline = Deadline::of(request.metadata());
        let request = request.into_inner();
        let id = parse::volume_id(request.volume_id)?;
        let node = parse::required("node_id", request.node_id)?;
        let asked = parse::only_capability(request.volume_capability)?;
        let caller = parse::caller(&request.volume_context)?;
        let id = parse::ours(&id)?.ok_or_else(|| no_such_volume(&id))?;
        self.observed(deadline).await?;
        if !self.is_home(&id) {
            self.publish_remote(&id, &node, &caller, request.volume_context)
                .await?;
            return Ok(Response::new(wire::ControllerPublishVolumeResponse::default()));
        }
        let (home, registry) = (self.home.clone(), self.registry.clone());
        let key = format!("{} on {node}", id.name);
        let publish =
            async move { twin::publish(&home, &registry, &id, &caller, &node, &asked, deadline.at()).await };
        let path = self.work.run(&key, publish).await?;
        let context = path
            .to_publish_context()
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(wire::ControllerPublishVolumeResponse {
            publish_context: context.into_iter().collect(),
        }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<wire::ControllerUnpublishVolumeRequest>,
    ) -> Answer<wire::ControllerUnpublishVolumeResponse> {
        let deadline = Deadline::of(request.metadata());
        let request = request.into_inner();
        let id = parse::volume_id(request.volume_id)?;
        let Some(id) = parse::ours(&id)? else {
            return Ok(Response::new(wire::ControllerUnpublishVolumeResponse {}));
        };
        if !self.is_home(&id) {
            // Nothing was attached for this node.
            return Ok(Response::new(wire::ControllerUnpublishVolumeResponse {}));
        }
        self.observed(deadline).await?;
        let home = self.home.clone();
        let node = request.node_id;
        let key = format!("{} on {node}", id.name);
        let unpublish = Box::pin(async move {
            let node = Some(node.as_str()).filter(|node| !node.is_empty());
            twin::unpublish(&home, &id, node, deadline.at())
                .await
                .map_err(Coded::status)
        });
        self.work.run(&key, unpublish).await?;
        Ok(Response::new(wire::ControllerUnpublishVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<wire::ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<wire::ValidateVolumeCapabilitiesResponse> {
        let request = request.into_inner();
        let id = parse::volume_id(request.volume_id)?;
        let asked = parse::capabilities(request.volume_capabilities.clone())?;
        let known = parse::ours(&id)?.ok_or_else(|| no_such_volume(&id))?;
        let capable = twin::validate(&self.home, &self.registry, &known)
            .await
            .map_err(Coded::status)?;
        let capable = capable.ok_or_else(|| no_such_volume(&id))?;
        let mut answer = wire::ValidateVolumeCapabilitiesResponse::default();
        if capable.contains(&asked) {
            answer.confirmed = Some(wire::validate_volume_capabilities_response::Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: HashMap::new(),
            });
        } else {
            "the volume was created for other access modes or another volume mode"
                .clone_into(&mut answer.message);
        }
        Ok(Response::new(answer))
    }

    async fn list_volumes(
        &self,
        request: Request<wire::ListVolumesRequest>,
    ) -> Answer<wire::ListVolumesResponse> {
        let request = request.into_inner();
        let page = Page::parse(request.max_entries, &request.starting_token)?;
        let volumes = twin::list(&self.home, &self.registry)
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let rest: Vec<_> = volumes
            .into_iter()
            .filter(|it| page.is_after(&it.volume))
            .collect();
        let next = rest
            .get(page.size)
            .and(page.size.checked_sub(1))
            .and_then(|last| rest.get(last));
        let next_token = next.map(|last| last.volume.to_string()).unwrap_or_default();
        let entries = rest.into_iter().take(page.size).map(|listed| {
            let id = VolumeId {
                cluster: listed.cluster,
                name: listed.volume,
                epoch: listed.epoch,
            };
            let volume = wire::Volume {
                volume_id: id.to_string(),
                capacity_bytes: bytes(listed.bytes),
                ..Default::default()
            };
            wire::list_volumes_response::Entry {
                volume: Some(volume),
                status: None,
            }
        });
        Ok(Response::new(wire::ListVolumesResponse {
            entries: entries.collect(),
            next_token,
        }))
    }

    async fn get_capacity(
        &self,
        request: Request<wire::GetCapacityRequest>,
    ) -> Answer<wire::GetCapacityResponse> {
        let deadline = Deadline::of(request.metadata());
        let request = request.into_inner();
        let place = parse::place(request.accessible_topology);
        let parameters = request.parameters.into_iter().collect();
        self.observed(deadline).await?;
        let available =
            twin::available_capacity(&self.home, &self.registry, &self.policy, &parameters, &place)
                .await
                .map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Response::new(wire::GetCapacityResponse {
            available_capacity: bytes(available.capacity()),
            maximum_volume_size: Some(bytes(available.maximum())),
            minimum_volume_size: None,
        }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<wire::ControllerExpandVolumeRequest>,
    ) -> Answer<wire::ControllerExpandVolumeResponse> {
        let deadline = Deadline::of(request.metadata());
        let (id, wanted) = parse::expand_request(request.into_inner())?;
        let id = parse::ours(&id)?.ok_or_else(|| no_such_volume(&id))?;
        self.observed(deadline).await?;
        let (home, registry, name) = (self.home.clone(), self.registry.clone(), id.name.clone());
        let expand = async move { twin::expand(&home, &registry, &id, wanted, deadline.at()).await };
        let expanded = self.work.run(name.as_str(), expand).await?;
        Ok(Response::new(wire::ControllerExpandVolumeResponse {
            capacity_bytes: bytes(expanded.bytes),
            node_expansion_required: expanded.on_node,
        }))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<wire::ControllerModifyVolumeRequest>,
    ) -> Answer<wire::ControllerModifyVolumeResponse> {
        let deadline = Deadline::of(request.metadata());
        let (id, class) = parse::modify_request(request.get_ref())?;
        let id = parse::ours(&id)?.ok_or_else(|| no_such_volume(&id))?;
        self.observed(deadline).await?;
        let (home, registry, name) = (self.home.clone(), self.registry.clone(), id.name.clone());
        let modify = async move { twin::modify(&home, &registry, &id, &class, deadline.at()).await };
        self.work.run(name.as_str(), modify).await?;
        Ok(Response::new(wire::ControllerModifyVolumeResponse {}))
    }

    async fn create_snapshot(
        &self,
        request: Request<wire::CreateSnapshotRequest>,
    ) -> Answer<wire::CreateSnapshotResponse> {
        let deadline = Deadline::of(request.metadata());
        let request = snapshots::create_request(request.into_inner())?;
        self.observed(deadline).await?;
        let (home, registry, events) = (self.home.clone(), self.registry.clone(), self.events.clone());
        let key = request.key.twin();
        let create =
            async move { twin::create_snapshot(&home, &registry, &events, &request, deadline.at()).await };
        let cut = self.work.run(&key, create).await?;
        Ok(Response::new(wire::CreateSnapshotResponse {
            snapshot: Some(snapshots::answer(cut)),
        }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<wire::DeleteSnapshotRequest>,
    ) -> Answer<wire::DeleteSnapshotResponse> {
        let deadline = Deadline::of(request.metadata());
        let id = parse::required("snapshot_id", request.into_inner().snapshot_id)?;
        let Some(id) = snapshots::ours(&id)? else {
            return Ok(Response::new(wire::DeleteSnapshotResponse {}));
        };
        self.observed(deadline).await?;
        let (home, registry, events) = (self.home.clone(), self.registry.clone(), self.events.clone());
        let key = id.key.twin();
        let delete =
            async move { twin::delete_snapshot(&home, &registry, &events, &id, deadline.at()).await };
        self.work.run(&key, delete).await?;
        Ok(Response::new(wire::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<wire::ListSnapshotsRequest>,
    ) -> Answer<wire::ListSnapshotsResponse> {
        let page = snapshots::list(&self.home, &self.registry, request.into_inner()).await?;
        Ok(Response::new(page))
    }

    async fn get_snapshot(
        &self,
        request: Request<wire::GetSnapshotRequest>,
    ) -> Answer<wire::GetSnapshotResponse> {
        let id = request.into_inner().snapshot_id;
        Ok(Response::new(
            snapshots::get(&self.home, &self.registry, id).await?,
        ))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<wire::ControllerGetCapabilitiesRequest>,
    ) -> Answer<wire::ControllerGetCapabilitiesResponse> {
        use capability::rpc::Type;
        // Not LIST_VOLUMES_PUBLISHED_NODES: csi-attacher would sync every attachment of this driver
        // again each minute.
        let supported = [
            Type::CreateDeleteVolume,
            Type::PublishUnpublishVolume,
            Type::ListVolumes,
            Type::GetCapacity,
            Type::ExpandVolume,
            Type::ModifyVolume,
            Type::SingleNodeMultiWriter,
            Type::CreateDeleteSnapshot,
            Type::ListSnapshots,
            Type::GetSnapshot,
            Type::CloneVolume,
        ];
        let capabilities = supported.map(|it| wire::ControllerServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc { r#type: it.into() })),
        });
        Ok(Response::new(wire::ControllerGetCapabilitiesResponse {
            capabilities: capabilities.into(),
        }))
    }
}

/// A page of a list: at most `size` volumes, after the volume `after`.
struct Page {
    size: usize,
    after: Option<VolumeName>,
}

impl Page {
    fn parse(max_entries: i32, token: &str) -> Result<Self, Status> {
        let size = usize::try_from(max_entries)
            .map_err(|_| Status::invalid_argument("the request has a negative max_entries"))?;
        let after = match token {
            "" => None,
            token => Some(VolumeName::parse(token).ok_or_else(|| {
                Status::aborted(
                    "the starting_token was not issued by this driver; begin the list again without it",
                )
            })?),
        };
        Ok(Self {
            size: if size == 0 { usize::MAX } else { size },
            after,
        })
    }

    fn is_after(&self, volume: &VolumeName) -> bool {
        self.after.as_ref().is_none_or(|after| volume > after)
    }
}

fn no_such_volume(id: &str) -> Status {
    Status::not_found(format!("no volume has the id {id:?}"))
}

fn bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn topology(place: Segments) -> wire::Topology {
    wire::Topology {
        segments: place.into_map().into_iter().collect(),
    }
}

#[cfg(test)]
mod tests;
