//! Test doubles: a node's directories with plugins of every kind, and a real driver.

mod driver;

use std::{
    fs,
    os::unix::net::UnixListener as StdListener,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, SystemTime},
};

use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, service::Routes, transport::Server};

pub(super) use self::driver::FakeDriver;
use super::{
    direct::Direct, driver::Drivers, host::HostRoot, registry::Registry, secrets::Secrets, state::State,
    volumes::Volumes,
};
use crate::wire::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    registration_server::{Registration, RegistrationServer},
};

/// The time without a call after which a volume counts as forgotten.
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_mins(5);

/// The root directory of kubelet, for one test.
pub(super) struct Node {
    dir: tempfile::TempDir,
    servers: Mutex<Vec<JoinHandle<()>>>,
    hanging: Mutex<Vec<StdListener>>,
}

impl Node {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["plugins_registry/sub", "plugins", "pods", "host"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        Self {
            dir,
            servers: Mutex::default(),
            hanging: Mutex::default(),
        }
    }

    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    pub(super) fn own_socket(&self) -> PathBuf {
        self.path("plugins/own.sock")
    }

    pub(super) fn registry(&self) -> Registry {
        Registry::for_tests(self.dir.path().to_owned(), self.own_socket())
    }

    /// The node plugin after a start: with nothing but its directory.
    pub(super) fn volumes(&self) -> Volumes {
        self.volumes_forgotten(FORGOTTEN_AFTER)
    }

    /// The same, with another time after which volumes count as forgotten.
    pub(super) fn volumes_forgotten(&self, after: Duration) -> Volumes {
        let state = State::open(self.path("plugins/storage.liqo.io/state")).unwrap();
        let drivers = Drivers::new(self.registry(), Secrets::Forbidden);
        let direct = Direct::new(HostRoot::new(self.path("host")));
        Volumes::new(state, drivers, direct, after).unwrap()
    }

    /// The number of records.
    pub(super) fn records(&self) -> usize {
        fs::read_dir(self.path("plugins/storage.liqo.io/state"))
            .unwrap()
            .count()
    }

    /// Sets the age of the last call for each volume.
    pub(super) fn last_called(&self, ago: Duration) {
        for record in fs::read_dir(self.path("plugins/storage.liqo.io/state")).unwrap() {
            let record = fs::File::open(record.unwrap().path()).unwrap();
            record.set_modified(SystemTime::now() - ago).unwrap();
        }
    }

    /// A directory that kubelet creates before it calls.
    pub(super) fn make(&self, below: &str) -> PathBuf {
        let path = self.path(below);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// A registration socket that answers for `driver`.
    pub(super) fn register(&self, socket: &str, plugin_type: &str, driver: &str, endpoint: &Path) {
        let info = PluginInfo {
            r#type: plugin_type.into(),
            name: driver.into(),
            endpoint: endpoint.display().to_string(),
            supported_versions: vec!["1.0.0".into()],
        };
        let socket = self.path("plugins_registry").join(socket);
        self.serve(&socket, Routes::new(RegistrationServer::new(Registrar(info))));
    }

    /// A socket that accepts connections and never answers.
    pub(super) fn hang(&self, socket: &str) {
        let listener = StdListener::bind(self.path("plugins_registry").join(socket)).unwrap();
        self.hanging.lock().unwrap().push(listener);
    }

    /// A socket whose process has ended.
    pub(super) fn leave_stale(&self, socket: &str) {
        drop(StdListener::bind(self.path("plugins_registry").join(socket)).unwrap());
    }

    fn serve(&self, socket: &Path, routes: Routes) {
        let _gone = fs::remove_file(socket);
        let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let server = Server::builder().add_routes(routes).serve_with_incoming(incoming);
        self.servers
            .lock()
            .unwrap()
            .push(tokio::spawn(async move { server.await.unwrap() }));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for server in self.servers.get_mut().unwrap() {
            server.abort();
        }
    }
}

struct Registrar(PluginInfo);

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.0.clone()))
    }

    async fn notify_registration_status(
        &self,
        _: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        panic!("only kubelet may say this")
    }
}
