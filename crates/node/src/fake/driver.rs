//! A real driver that fails as a test requests, and records its calls.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tonic::{Request, Response, Status, service::Routes};

use super::Node;
use crate::{
    mounts,
    registry::CSI_PLUGIN,
    wire::csi::{
        self as wire,
        identity_server::{Identity, IdentityServer},
        node_server::{Node as NodeService, NodeServer},
        node_service_capability::{self as capability, rpc::Type as Can},
    },
};

/// One call that the driver received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    pub(crate) rpc: &'static str,
    pub(crate) handle: String,
    pub(crate) staging: String,
    pub(crate) target: String,
    pub(crate) capability: Option<wire::VolumeCapability>,
    pub(crate) publish_context: HashMap<String, String>,
    pub(crate) volume_context: HashMap<String, String>,
    pub(crate) secrets: Vec<String>,
    pub(crate) read_only: bool,
}

#[derive(Default)]
struct FakeState {
    can: Vec<Can>,
    calls: Vec<Call>,
    failures: HashMap<&'static str, VecDeque<Status>>,
    crashes: Vec<&'static str>,
    mounts: bool,
}

/// A real driver. Clones share their state.
#[derive(Clone)]
pub(crate) struct FakeDriver {
    name: String,
    socket: PathBuf,
    registration: PathBuf,
    script: Arc<Mutex<FakeState>>,
}

impl FakeDriver {
    /// Starts and registers a driver that stages, reports usage and expands.
    pub(crate) fn start(node: &Node, name: &str) -> Self {
        let driver = Self {
            name: name.into(),
            socket: node.path(&format!("plugins/{name}.sock")),
            registration: node.path(&format!("plugins_registry/{name}-reg.sock")),
            script: Arc::default(),
        };
        driver.set_capabilities(&[Can::StageUnstageVolume, Can::GetVolumeStats, Can::ExpandVolume]);
        driver.restart(node);
        driver
    }

    /// Removes the driver's sockets, as when its pod is being replaced.
    pub(crate) fn stop(&self) {
        for socket in [&self.socket, &self.registration] {
            fs::remove_file(socket).unwrap();
        }
    }

    pub(crate) fn restart(&self, node: &Node) {
        let routes =
            Routes::new(IdentityServer::new(self.clone())).add_service(NodeServer::new(self.clone()));
        node.serve(&self.socket, routes);
        let name = self.registration.file_name().unwrap().to_str().unwrap();
        node.register(name, CSI_PLUGIN, &self.name, &self.socket);
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn set_capabilities(&self, what: &[Can]) {
        self.script.lock().unwrap().can = what.to_vec();
    }

    /// From now on it really mounts (a tmpfs): for tests that run as root in their own mount namespace.
    pub(crate) fn mount_really(&self) {
        self.script.lock().unwrap().mounts = true;
    }

    /// The next call of this kind fails.
    pub(crate) fn fail(&self, rpc: &'static str, status: Status) {
        self.script
            .lock()
            .unwrap()
            .failures
            .entry(rpc)
            .or_default()
            .push_back(status);
    }

    /// From now on it panics in calls of this kind, without an answer.
    pub(crate) fn crash(&self, rpc: &'static str) {
        self.script.lock().unwrap().crashes.push(rpc);
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.script.lock().unwrap().calls.clone()
    }

    /// The calls since the last time, whether they succeeded or not.
    pub(crate) fn take_calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.script.lock().unwrap().calls)
            .iter()
            .map(|call| call.rpc)
            .collect()
    }

    fn take(&self, call: Call) -> Result<bool, Status> {
        let mut script = self.script.lock().unwrap();
        let rpc = call.rpc;
        script.calls.push(call);
        if script.crashes.contains(&rpc) {
            drop(script);
            panic!("dying on request");
        }
        match script.failures.get_mut(rpc).and_then(VecDeque::pop_front) {
            Some(status) => Err(status),
            None => Ok(script.mounts),
        }
    }
}

#[tonic::async_trait]
impl Identity for FakeDriver {
    async fn get_plugin_info(
        &self,
        _: Request<wire::GetPluginInfoRequest>,
    ) -> Result<Response<wire::GetPluginInfoResponse>, Status> {
        Ok(Response::new(wire::GetPluginInfoResponse {
            name: self.name.clone(),
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl NodeService for FakeDriver {
    async fn node_stage_volume(
        &self,
        request: Request<wire::NodeStageVolumeRequest>,
    ) -> Result<Response<wire::NodeStageVolumeResponse>, Status> {
        let it = request.into_inner();
        let mounts = self.take(Call {
            rpc: "stage",
            handle: it.volume_id,
            staging: it.staging_target_path.clone(),
            capability: it.volume_capability,
            publish_context: it.publish_context,
            volume_context: it.volume_context,
            secrets: it.secrets.into_keys().collect(),
            ..Default::default()
        })?;
        if mounts {
            tmpfs(Path::new(&it.staging_target_path));
        }
        Ok(Response::new(wire::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<wire::NodeUnstageVolumeRequest>,
    ) -> Result<Response<wire::NodeUnstageVolumeResponse>, Status> {
        let it = request.into_inner();
        let mounts = self.take(Call {
            rpc: "unstage",
            handle: it.volume_id,
            staging: it.staging_target_path.clone(),
            ..Default::default()
        })?;
        if mounts {
            let _not_mounted = umount2(Path::new(&it.staging_target_path), MntFlags::empty());
        }
        Ok(Response::new(wire::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<wire::NodePublishVolumeRequest>,
    ) -> Result<Response<wire::NodePublishVolumeResponse>, Status> {
        let it = request.into_inner();
        let target = PathBuf::from(&it.target_path);
        let mounts = self.take(Call {
            rpc: "publish",
            handle: it.volume_id,
            staging: it.staging_target_path,
            target: it.target_path,
            capability: it.volume_capability,
            publish_context: it.publish_context,
            volume_context: it.volume_context,
            secrets: it.secrets.into_keys().collect(),
            read_only: it.readonly,
        })?;
        fs::create_dir_all(&target).unwrap();
        if mounts {
            tmpfs(&target);
        }
        Ok(Response::new(wire::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<wire::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<wire::NodeUnpublishVolumeResponse>, Status> {
        let it = request.into_inner();
        let mounts = self.take(Call {
            rpc: "unpublish",
            handle: it.volume_id,
            target: it.target_path.clone(),
            ..Default::default()
        })?;
        if mounts {
            let _not_mounted = umount2(Path::new(&it.target_path), MntFlags::empty());
        }
        let _gone = fs::remove_dir(&it.target_path);
        Ok(Response::new(wire::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<wire::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<wire::NodeGetVolumeStatsResponse>, Status> {
        let it = request.into_inner();
        self.take(Call {
            rpc: "stats",
            handle: it.volume_id,
            staging: it.staging_target_path,
            target: it.volume_path,
            ..Default::default()
        })?;
        let usage = wire::VolumeUsage {
            available: 1,
            total: 3,
            used: 2,
            unit: wire::volume_usage::Unit::Bytes.into(),
        };
        Ok(Response::new(wire::NodeGetVolumeStatsResponse {
            usage: vec![usage],
        }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<wire::NodeExpandVolumeRequest>,
    ) -> Result<Response<wire::NodeExpandVolumeResponse>, Status> {
        let it = request.into_inner();
        self.take(Call {
            rpc: "expand",
            handle: it.volume_id,
            staging: it.staging_target_path,
            target: it.volume_path,
            capability: it.volume_capability,
            ..Default::default()
        })?;
        Ok(Response::new(wire::NodeExpandVolumeResponse {
            capacity_bytes: it.capacity_range.unwrap_or_default().required_bytes,
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<wire::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<wire::NodeGetCapabilitiesResponse>, Status> {
        let can = self.script.lock().unwrap().can.clone();
        let capabilities = can.into_iter().map(|it| wire::NodeServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc { r#type: it.into() })),
        });
        Ok(Response::new(wire::NodeGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }
}

fn tmpfs(path: &Path) {
    let table = mounts::table().unwrap();
    if table.at(&path.canonicalize().unwrap()).is_none() {
        mount(Some("fake"), path, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    }
}
