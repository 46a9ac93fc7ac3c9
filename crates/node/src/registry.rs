//! Finds the socket of a real driver like kubelet does: every plugin of a node has a registration socket
//! in `plugins_registry`, which returns its name and its endpoint. This module only reads that; kubelet
//! decides about registrations.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::join_all;
use tonic::transport::{Channel, Endpoint};

use crate::{
    volume::DRIVER_NAME,
    wire::{
        csi::{GetPluginInfoRequest, identity_client::IdentityClient},
        registration::{InfoRequest, PluginInfo, registration_client::RegistrationClient},
    },
};

pub const PLUGINS_REGISTRY: &str = "plugins_registry";
/// The registration type of CSI drivers; DRA and device plugins have others.
pub const CSI_PLUGIN: &str = "CSIPlugin";

/// Plugins answer within milliseconds, or within seconds on a node whose CPU or disk is overloaded.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Kubelet searches sub-directories, too.
const DEPTH: usize = 3;
const ROOT: u32 = 0;

/// The plugins that are registered with the kubelet of this node.
#[derive(Clone, Debug)]
pub struct Registry {
    kubelet_root: PathBuf,
    /// The socket of this node plugin: never a result.
    own_socket: PathBuf,
    owner: u32,
    timeout: Duration,
}

/// Why there is no socket of a driver.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("reading {path}: {error}")]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("the driver {driver} does not run on this node: no socket in {dir} answers for it{passed_over}")]
    Absent {
        driver: String,
        dir: PathBuf,
        /// Sockets that were skipped, and why.
        passed_over: String,
    },
    /// More than one plugin has the name.
    #[error("the driver {driver} runs more than once on this node, at {}: remove all but one", sockets.join(" and "))]
    Ambiguous { driver: String, sockets: Vec<String> },
    /// The socket that answers cannot be that of the driver.
    #[error("the driver {driver} is not used on this node: {reason}")]
    Untrusted { driver: String, reason: String },
}

impl Registry {
    /// The registry below kubelet's root; `own_socket` is that of this node plugin.
    #[must_use]
    pub fn new(kubelet_root: PathBuf, own_socket: PathBuf) -> Self {
        Self {
            kubelet_root,
            own_socket,
            owner: ROOT,
            timeout: ANSWER_TIMEOUT,
        }
    }

    pub async fn find(&self, driver: &str) -> Result<PathBuf, RegistryError> {
        if driver == DRIVER_NAME {
            return Err(untrusted(driver, "a twin cannot be of this driver itself".into()));
        }
        let dir = self.kubelet_root.join(PLUGINS_REGISTRY);
        let sockets = sockets_in(&dir, DEPTH).map_err(|error| RegistryError::Unreadable {
            path: dir.clone(),
            error,
        })?;
        let answers = join_all(sockets.iter().map(|socket| self.plugin_info(socket))).await;

        let mut found = Vec::new();
        let mut passed_over = Vec::new();
        for (socket, answer) in sockets.iter().zip(answers) {
            match answer {
                Ok(plugin) if plugin.r#type == CSI_PLUGIN && plugin.name == driver => {
                    found.push(PathBuf::from(plugin.endpoint));
                }
                Ok(_) => {}
                Err(reason) => passed_over.push(skipped(socket, &reason)),
            }
        }
        // A driver whose old registration socket still exists is found twice.
        found.sort();
        found.dedup();
        match found.as_slice() {
            [] => Err(RegistryError::Absent {
                driver: driver.to_owned(),
                dir,
                passed_over: passed_over.concat(),
            }),
            [socket] => self.trusted(driver, socket),
            many => Err(RegistryError::Ambiguous {
                driver: driver.to_owned(),
                sockets: many.iter().map(|socket| socket.display().to_string()).collect(),
            }),
        }
    }

    /// Connects to `socket` if `driver` answers there.
    pub async fn connect(&self, driver: &str, socket: &Path) -> Result<Channel, RegistryError> {
        let refused = |reason: String| untrusted(driver, format!("{} {reason}", socket.display()));
        let name = async {
            let channel = dial(socket).await?;
            let mut identity = IdentityClient::new(channel.clone());
            let answer = identity.get_plugin_info(GetPluginInfoRequest {}).await;
            let name = answer
                .map_err(|status| status.message().to_owned())?
                .into_inner()
                .name;
            Ok::<_, String>((channel, name))
        };
        match tokio::time::timeout(self.timeout, name).await {
            Ok(Ok((channel, name))) if name == driver => Ok(channel),
            Ok(Ok((_, name))) => Err(refused(format!("answers for {name}"))),
            Ok(Err(error)) => Err(self.absent(driver, socket, &error)),
            Err(_) => Err(self.absent(driver, socket, "it hangs")),
        }
    }

    /// The plugin that is registered at `socket`.
    async fn plugin_info(&self, socket: &Path) -> Result<PluginInfo, String> {
        self.check_owner(socket)?;
        let info = async {
            let channel = dial(socket).await?;
            let answer = RegistrationClient::new(channel).get_info(InfoRequest {}).await;
            answer
                .map(tonic::Response::into_inner)
                .map_err(|status| status.message().to_owned())
        };
        tokio::time::timeout(self.timeout, info)
            .await
            .unwrap_or_else(|_| Err("it hangs".into()))
    }

    fn trusted(&self, driver: &str, socket: &Path) -> Result<PathBuf, RegistryError> {
        let refuse = |reason: &str| {
            Err(untrusted(
                driver,
                format!("its socket {} {reason}", socket.display()),
            ))
        };
        let Ok(real) = fs::canonicalize(socket) else {
            return Err(self.absent(driver, socket, "it does not exist"));
        };
        let below_root = fs::canonicalize(&self.kubelet_root).is_ok_and(|root| real.starts_with(root));
        if !below_root {
            return refuse("is not below kubelet's root directory");
        }
        if fs::canonicalize(&self.own_socket).is_ok_and(|own| own == real) {
            return refuse("is the socket of this node plugin itself");
        }
        match self.check_owner(&real) {
            Ok(()) => Ok(real),
            Err(reason) => refuse(&reason),
        }
    }

    /// Checks that the socket belongs to root: any user who can create a socket there could impersonate the driver.
    fn check_owner(&self, socket: &Path) -> Result<(), String> {
        match fs::symlink_metadata(socket) {
            Ok(found) if !found.file_type().is_socket() => Err("is not a socket".into()),
            Ok(found) if found.uid() != self.owner => Err(format!("belongs to user {}", found.uid())),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn absent(&self, driver: &str, socket: &Path, reason: &str) -> RegistryError {
        RegistryError::Absent {
            driver: driver.to_owned(),
            dir: self.kubelet_root.join(PLUGINS_REGISTRY),
            passed_over: skipped(socket, reason),
        }
    }
}

fn skipped(socket: &Path, reason: &str) -> String {
    format!("; skipped {}: {reason}", socket.display())
}

async fn dial(socket: &Path) -> Result<Channel, String> {
    let address = format!("unix://{}", socket.display());
    let endpoint = Endpoint::from_shared(address).map_err(|error| error.to_string())?;
    endpoint
        .connect()
        .await
        .map_err(|error| match std::error::Error::source(&error) {
            Some(cause) => cause.to_string(),
            None => error.to_string(),
        })
}

fn sockets_in(dir: &Path, depth: usize) -> io::Result<Vec<PathBuf>> {
    let mut sockets = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_socket() {
            sockets.push(entry.path());
        } else if kind.is_dir() && depth > 1 {
            // The directory may have been removed since.
            sockets.extend(sockets_in(&entry.path(), depth - 1).unwrap_or_default());
        }
    }
    Ok(sockets)
}

fn untrusted(driver: &str, reason: String) -> RegistryError {
    RegistryError::Untrusted {
        driver: driver.to_owned(),
        reason,
    }
}

#[cfg(test)]
impl Registry {
    /// A registry whose sockets belong to the user who runs the tests.
    pub(super) fn for_tests(kubelet_root: PathBuf, own_socket: PathBuf) -> Self {
        Self {
            owner: nix::unistd::geteuid().as_raw(),
            timeout: Duration::from_millis(300),
            ..Self::new(kubelet_root, own_socket)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeDriver, Node};

    #[tokio::test]
    async fn a_driver_is_found_among_other_sockets() {
        let node = Node::new();
        let wanted = FakeDriver::start(&node, "real.example");
        let _other = FakeDriver::start(&node, "other.example");
        node.register(
            "dra.sock",
            "DRAPlugin",
            "real.example",
            &node.path("plugins/dra.sock"),
        );
        node.register("sub/dir.sock", CSI_PLUGIN, "deep.example", wanted.socket());
        node.hang("hung.sock");
        node.leave_stale("stale.sock");
        fs::write(node.path("plugins_registry/file"), "").unwrap();

        let registry = node.registry();
        let found = registry.find("real.example").await.unwrap();
        assert_eq!(found, wanted.socket().canonicalize().unwrap());
        assert!(registry.connect("real.example", &found).await.is_ok());
        assert!(registry.find("deep.example").await.is_ok());
    }

    #[tokio::test]
    async fn an_absent_driver_is_reported_with_the_skipped_sockets() {
        let node = Node::new();
        node.hang("hung.sock");
        node.leave_stale("stale.sock");
        let error = node.registry().find("real.example").await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, RegistryError::Absent { .. }));
        assert!(
            text.contains("real.example") && text.contains("hung.sock") && text.contains("stale.sock"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn two_drivers_of_one_name_are_refused_unless_they_share_a_socket() {
        let node = Node::new();
        let driver = FakeDriver::start(&node, "real.example");
        node.register("again.sock", CSI_PLUGIN, "real.example", driver.socket());
        assert!(node.registry().find("real.example").await.is_ok());
        node.register(
            "second.sock",
            CSI_PLUGIN,
            "real.example",
            &node.path("plugins/x.sock"),
        );
        let error = node.registry().find("real.example").await.unwrap_err();
        assert!(matches!(error, RegistryError::Ambiguous { .. }), "{error}");
    }

    #[tokio::test]
    async fn sockets_that_could_be_anybodys_are_refused() {
        let node = Node::new();
        let outside = tempfile::tempdir().unwrap();
        let elsewhere = outside.path().join("csi.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&elsewhere).unwrap();
        node.register("outside.sock", CSI_PLUGIN, "outside.example", &elsewhere);
        node.register(
            "climber.sock",
            CSI_PLUGIN,
            "climber.example",
            &node.path("plugins/../../x"),
        );
        let own = node.own_socket();
        let _own = std::os::unix::net::UnixListener::bind(&own).unwrap();
        node.register("mirror.sock", CSI_PLUGIN, "mirror.example", &own);
        node.register("self.sock", CSI_PLUGIN, DRIVER_NAME, &own);

        let registry = node.registry();
        for driver in ["outside.example", "mirror.example", DRIVER_NAME] {
            let error = registry.find(driver).await.unwrap_err();
            assert!(
                matches!(error, RegistryError::Untrusted { .. }),
                "{driver}: {error}"
            );
        }
        assert!(registry.find("climber.example").await.is_err());

        let mut stranger = node.registry();
        stranger.owner += 1;
        let _driver = FakeDriver::start(&node, "real.example");
        let error = stranger.find("real.example").await.unwrap_err();
        assert!(error.to_string().contains("belongs to user"), "{error}");
    }

    #[tokio::test]
    async fn a_socket_that_changed_hands_is_noticed() {
        let node = Node::new();
        let driver = FakeDriver::start(&node, "other.example");
        let error = node
            .registry()
            .connect("real.example", driver.socket())
            .await
            .unwrap_err();
        assert!(matches!(error, RegistryError::Untrusted { .. }), "{error}");
        assert!(error.to_string().contains("answers for other.example"), "{error}");
    }
}
