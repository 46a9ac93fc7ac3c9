//! The client of the real drivers on this node: makes the calls that kubelet would make if the pod used
//! the twin directly.

mod capability;
mod error;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tonic::{Request, Response, Status, transport::Channel};

pub use self::error::DriverError;
use super::{consumer::Consumer, registry::Registry, secrets::Secrets};
use crate::{
    volume::{CsiSource, DataPath, SecretRef},
    wire::csi::{
        self as wire,
        node_client::NodeClient,
        node_service_capability::{self, rpc::Type as Can},
    },
};

/// Kubelet waits two minutes for a volume operation.
const CALL_TIMEOUT: Duration = Duration::from_secs(110);

/// The real drivers of this node. Caches only the paths of their sockets.
#[derive(Clone)]
pub struct Drivers {
    registry: Registry,
    secrets: Secrets,
    sockets: Arc<Mutex<HashMap<String, PathBuf>>>,
}

/// A connection to one real driver.
pub struct RealDriver {
    name: String,
    client: NodeClient<Channel>,
    secrets: Secrets,
    can: Vec<Can>,
}

/// The paths of a volume for its driver.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub staging: &'a Path,
    /// Where it is, or will be, published.
    pub target: &'a Path,
}

/// One figure of the usage of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub unit: Unit,
    pub total: i64,
    pub used: i64,
    pub available: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    /// Files and directories.
    Inodes,
}

impl Drivers {
    /// The drivers in `registry`; they get secrets as far as `secrets` allows.
    #[must_use]
    pub fn new(registry: Registry, secrets: Secrets) -> Self {
        Self {
            registry,
            secrets,
            sockets: Arc::default(),
        }
    }

    /// Connects to a driver and reads its capabilities: it may have been replaced since the last call.
    pub async fn reach(&self, name: &str) -> Result<RealDriver, DriverError> {
        let mut driver = RealDriver {
            name: name.to_owned(),
            client: NodeClient::new(self.connect(name).await?),
            secrets: self.secrets.clone(),
            can: Vec::new(),
        };
        driver.can = driver.capabilities().await?;
        Ok(driver)
    }

    /// Tries the last known socket first, because a search calls every plugin of the node, including
    /// those that hang.
    async fn connect(&self, name: &str) -> Result<Channel, DriverError> {
        let known = self.lock().get(name).cloned();
        if let Some(socket) = known
            && let Ok(channel) = self.registry.connect(name, &socket).await
        {
            return Ok(channel);
        }
        let socket = self.registry.find(name).await?;
        let channel = self.registry.connect(name, &socket).await?;
        self.lock().insert(name.to_owned(), socket);
        Ok(channel)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, PathBuf>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RealDriver {
    /// Whether volumes are staged before they are published.
    #[must_use]
    pub fn stages(&self) -> bool {
        self.can(Can::StageUnstageVolume)
    }

    /// Stages a volume, if the driver stages volumes.
    pub async fn stage(
        &self,
        volume: &DataPath,
        source: &CsiSource,
        staging: &Path,
        mount_flags: &[String],
    ) -> Result<(), DriverError> {
        if !self.stages() {
            return Ok(());
        }
        let request = wire::NodeStageVolumeRequest {
            volume_id: source.handle.clone(),
            publish_context: volume.attachment.clone().into_iter().collect(),
            staging_target_path: text(staging),
            volume_capability: Some(self.capability(volume, source, mount_flags)?),
            secrets: self
                .secret(source.stage_secret.as_ref())
                .await?
                .into_iter()
                .collect(),
            volume_context: source.attributes.clone().into_iter().collect(),
        };
        let mut client = self.client.clone();
        self.call("NodeStageVolume", client.node_stage_volume(with_timeout(request)))
            .await?;
        Ok(())
    }

    pub async fn publish(
        &self,
        volume: &DataPath,
        source: &CsiSource,
        place: Place<'_>,
        read_only: bool,
        mount_flags: &[String],
        consumer: &Consumer,
    ) -> Result<(), DriverError> {
        let info = consumer
            .info_for(&source.wants)
            .map_err(|error| DriverError::Token {
                driver: self.name.clone(),
                error,
            })?;
        let secrets = self.secret(source.publish_secret.as_ref()).await?;
        let request = wire::NodePublishVolumeRequest {
            volume_id: source.handle.clone(),
            publish_context: volume.attachment.clone().into_iter().collect(),
            staging_target_path: self.staging(place),
            target_path: text(place.target),
            volume_capability: Some(self.capability(volume, source, mount_flags)?),
            readonly: read_only,
            secrets: secrets.into_iter().chain(info.secrets).collect(),
            volume_context: source
                .attributes
                .clone()
                .into_iter()
                .chain(info.context)
                .collect(),
        };
        let mut client = self.client.clone();
        let published = self
            .call(
                "NodePublishVolume",
                client.node_publish_volume(with_timeout(request)),
            )
            .await;
        match published {
            Ok(_) => Ok(()),
            Err(error) => Err(error.with_missing_tokens(&info.missing_tokens)),
        }
    }

    /// Unpublishes a volume from a target.
    pub async fn unpublish(&self, handle: &str, target: &Path) -> Result<(), DriverError> {
        let request = wire::NodeUnpublishVolumeRequest {
            volume_id: handle.to_owned(),
            target_path: text(target),
        };
        let mut client = self.client.clone();
        self.call(
            "NodeUnpublishVolume",
            client.node_unpublish_volume(with_timeout(request)),
        )
        .await?;
        Ok(())
    }

    /// Unstages a volume.
    pub async fn unstage(&self, handle: &str, staging: &Path) -> Result<(), DriverError> {
        let request = wire::NodeUnstageVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: text(staging),
        };
        let mut client = self.client.clone();
        self.call(
            "NodeUnstageVolume",
            client.node_unstage_volume(with_timeout(request)),
        )
        .await?;
        Ok(())
    }

    /// The usage of a volume; `None` if the driver does not report it.
    pub async fn stats(&self, handle: &str, place: Place<'_>) -> Result<Option<Vec<Usage>>, DriverError> {
        if !self.can(Can::GetVolumeStats) {
            return Ok(None);
        }
        let request = wire::NodeGetVolumeStatsRequest {
            volume_id: handle.to_owned(),
            volume_path: text(place.target),
            staging_target_path: self.staging(place),
        };
        let mut client = self.client.clone();
        let answer = self
            .call(
                "NodeGetVolumeStats",
                client.node_get_volume_stats(with_timeout(request)),
            )
            .await?;
        Ok(Some(answer.usage.iter().filter_map(usage).collect()))
    }

    /// Expands the file system of an expanded volume. `None` if the driver has nothing to do on the node.
    pub async fn expand(
        &self,
        volume: &DataPath,
        source: &CsiSource,
        place: Place<'_>,
        size: (i64, i64),
        mount_flags: &[String],
    ) -> Result<Option<i64>, DriverError> {
        if !self.can(Can::ExpandVolume) {
            return Ok(None);
        }
        let (required_bytes, limit_bytes) = size;
        let request = wire::NodeExpandVolumeRequest {
            volume_id: source.handle.clone(),
            volume_path: text(place.target),
            capacity_range: Some(wire::CapacityRange {
                required_bytes,
                limit_bytes,
            }),
            staging_target_path: self.staging(place),
            volume_capability: Some(self.capability(volume, source, mount_flags)?),
            secrets: self
                .secret(source.expand_secret.as_ref())
                .await?
                .into_iter()
                .collect(),
        };
        let mut client = self.client.clone();
        let answer = self
            .call(
                "NodeExpandVolume",
                client.node_expand_volume(with_timeout(request)),
            )
            .await?;
        Ok(Some(answer.capacity_bytes))
    }

    /// Kubelet passes a staging path only to drivers that stage.
    fn staging(&self, place: Place<'_>) -> String {
        if self.stages() {
            text(place.staging)
        } else {
            String::new()
        }
    }

    async fn secret(&self, reference: Option<&SecretRef>) -> Result<BTreeMap<String, String>, DriverError> {
        let Some(reference) = reference else {
            return Ok(BTreeMap::new());
        };
        self.secrets
            .read(reference)
            .await
            .map_err(|error| DriverError::Secret {
                driver: self.name.clone(),
                error,
            })
    }

    async fn capabilities(&self) -> Result<Vec<Can>, DriverError> {
        let mut client = self.client.clone();
        let request = with_timeout(wire::NodeGetCapabilitiesRequest {});
        let answer = self
            .call("NodeGetCapabilities", client.node_get_capabilities(request))
            .await?;
        let rpcs = answer.capabilities.into_iter().filter_map(|it| match it.r#type {
            Some(node_service_capability::Type::Rpc(rpc)) => Can::try_from(rpc.r#type).ok(),
            None => None,
        });
        Ok(rpcs.collect())
    }

    fn can(&self, what: Can) -> bool {
        self.can.contains(&what)
    }

    async fn call<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, DriverError> {
        let driver = self.name.clone();
        match tokio::time::timeout(CALL_TIMEOUT, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            // Only a status that tonic created on this side has a source: the driver sent no response.
            Ok(Err(status)) if std::error::Error::source(&status).is_some() => Err(DriverError::Gone {
                driver,
                call,
                reason: status.message().to_owned(),
            }),
            Ok(Err(status)) => Err(DriverError::Refused {
                driver,
                call,
                code: status.code(),
                message: status.message().to_owned(),
            }),
            Err(_) => Err(DriverError::Slow { driver, call }),
        }
    }
}

/// Sets the timeout, which is sent to the driver.
fn with_timeout<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

fn usage(figure: &wire::VolumeUsage) -> Option<Usage> {
    use wire::volume_usage::Unit as Wire;
    let unit = match figure.unit() {
        Wire::Bytes => Unit::Bytes,
        Wire::Inodes => Unit::Inodes,
        Wire::Unknown => return None,
    };
    Some(Usage {
        unit,
        total: figure.total,
        used: figure.used,
        available: figure.available,
    })
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
