//! A fake API server for tests: an in-memory store of objects of any kind behind
//! real HTTP, with the faults an API server can have.
//! It implements what clients rely on (uids, resource versions, optimistic locking, deletion preconditions,
//! finalizers, selectors, watches) but no rules of specific kinds: no admission, no controllers, no
//! validation.

mod faults;
mod http;
mod life;
mod store;
mod warnings;

use std::{sync::Arc, time::Duration};

use kube::Config;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::faults::{Act, Fault};
pub use self::life::Life;
pub use self::store::Store;
pub use self::warnings::Warnings;
use super::{Calls, Cluster, Rights, Settings, connect};

/// The timeout of calls to a fake API server.
const ANSWER: Duration = Duration::from_secs(10);

/// A running fake API server. It stops when dropped.
pub struct FakeApi {
    server: Arc<http::Server>,
    address: std::net::SocketAddr,
    stop: CancellationToken,
    _stops: DropGuard,
}

impl FakeApi {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Arc::new(http::Server::default());
        let router = http::router(Arc::clone(&server));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                ended = axum::serve(listener, router) => ended.unwrap(),
                () = stopped.cancelled() => {}
            }
        });
        Self {
            server,
            address,
            _stops: stop.clone().drop_guard(),
            stop,
        }
    }

    /// A cluster served by this API server, its views filled. Calls take at most [`ANSWER`].
    pub async fn cluster(&self) -> Cluster {
        let cluster = self.cluster_unwatched().await;
        cluster.views().complete().await;
        cluster
    }

    /// The cluster, with a timeout of one second: for an API server that does not answer.
    pub async fn impatient_cluster(&self) -> Cluster {
        let calls = Calls::without_metrics(Duration::from_secs(1));
        let cluster = self.cluster_with(calls).await;
        cluster.views().complete().await;
        cluster
    }

    pub async fn cluster_unwatched(&self) -> Cluster {
        self.cluster_with(Calls::without_metrics(ANSWER)).await
    }

    /// The URL of this API server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Without certificates, or each client would read those of this machine.
    fn config(&self) -> Config {
        let mut config = Config::new(self.url().parse().unwrap());
        config.root_cert = Some(Vec::new());
        config
    }

    /// The cluster, with these settings for calls.
    pub async fn cluster_with(&self, calls: Calls) -> Cluster {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let config = self.config();
        let settings = Settings {
            id: Some("home".parse().unwrap()),
            storage_namespace: "liqo-storage".into(),
            carried: crate::volume::CarriedAnnotations::new(["team", "note"].map(str::to_owned)),
            node_annotations: &["example.test/cluster"],
            calls,
        };
        Cluster::from_config(config, settings, &self.stop).await.unwrap()
    }

    /// The same API server as a remote cluster of the one named `home`.
    pub async fn remote_cluster(&self, id: &str, rights: Rights) -> Cluster {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let config = self.config();
        let calls = Calls::without_metrics(ANSWER);
        let (id, home) = (id.parse().unwrap(), "home".parse().unwrap());
        let client = connect::remote_client(config, &id, &calls).unwrap();
        let cluster = Cluster::remote(id, &home, client, rights, calls);
        cluster.views().complete().await;
        cluster
    }

    pub fn store(&self) -> &Store {
        &self.server.store
    }

    /// Creates an object, or replaces it, whatever its version.
    pub fn put(&self, path: &str, object: Value) -> Value {
        self.store().put(path, object)
    }

    pub fn object(&self, path: &str) -> Option<Value> {
        self.store().get(path)
    }

    /// Changes an object in place, if it exists.
    pub fn change(&self, path: &str, change: impl FnOnce(&mut Value)) -> bool {
        let Some(mut object) = self.object(path) else {
            return false;
        };
        change(&mut object);
        self.put(path, object);
        true
    }

    /// Removes an object, ignoring its finalizers.
    pub fn remove(&self, path: &str) {
        self.store().remove(path);
    }

    pub fn fault(&self, fault: Fault) {
        self.server.faults.add(fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.server.faults.clear();
    }

    /// Sets the lifetime of all callers; unlimited, if it is `None`.
    pub fn live(&self, life: Option<Life>) {
        self.server.lives.set(life);
    }

    /// Makes this change once, just before a request of this method to exactly this path.
    pub fn before(&self, method: &'static str, path: &str, change: impl FnOnce(&Store) + Send + 'static) {
        self.server.changes.add(method, path, Box::new(change));
    }

    /// The number of faults that were not used up.
    pub fn faults_left(&self) -> usize {
        self.server.faults.left()
    }

    /// Ends all running watches; clients list again or resume.
    pub fn cut_watches(&self) {
        self.store().cut_watches();
    }

    /// Every request so far, as `METHOD path`; watches and queries left out.
    pub fn requests(&self) -> Vec<String> {
        self.server.requests.lock().unwrap().clone()
    }

    /// The number of requests so far that changed something.
    pub fn writes(&self) -> usize {
        self.requests()
            .iter()
            .filter(|request| !request.starts_with("GET"))
            .count()
    }

    /// Waits until the store satisfies `condition`.
    pub async fn until(&self, condition: impl Fn(&Store) -> bool) {
        let mut changes = self.store().changes();
        let wait = async {
            while !condition(self.store()) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait)
            .await
            .expect("the condition never came true");
    }
}

/// A paused clock while sockets work: every event was triggered by another one, because no timer fires. It
/// resumes when this is dropped.
pub struct StoppedClock {
    since: Instant,
    _goes_on: std::sync::mpsc::Sender<()>,
}

impl StoppedClock {
    /// Pauses the clock, for a minute at most. Then timers fire as soon as nothing else can run, so that a
    /// test that waits for a timer ends.
    pub fn new() -> Self {
        let (goes_on, stopped) = std::sync::mpsc::channel();
        tokio::time::pause();
        // tokio does not advance its clock as long as a thread works.
        drop(tokio::task::spawn_blocking(move || {
            let _: Result<(), _> = stopped.recv_timeout(Duration::from_mins(1));
        }));
        Self {
            since: Instant::now(),
            _goes_on: goes_on,
        }
    }

    /// Whether no time has passed.
    pub fn stands_still(&self) -> bool {
        self.since == Instant::now()
    }
}

impl Drop for StoppedClock {
    fn drop(&mut self) {
        tokio::time::resume();
    }
}
