//! Registers the driver with kubelet, which finds the socket in `plugins_registry`, asks for the
//! driver's name and endpoint, registers it, and reports whether that worked.

use std::{fs, io, path::PathBuf};

use tokio::sync::watch;
use tokio_stream::{StreamExt, wrappers::UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport};

use super::{Endpoint, authority};
use crate::{
    node::registry::CSI_PLUGIN,
    volume::DRIVER_NAME,
    wire::registration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{self, RegistrationServer},
    },
};

/// A version of CSI that kubelet knows; it refuses plugins that support none of its own.
const CSI_VERSIONS: &str = "1.0.0";
const SOCKET_MODE: u32 = 0o600;

/// The result of the registration, as kubelet reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Kubelet has not reported a result.
    #[default]
    Pending,
    /// Volumes of this driver can be used on this node.
    Registered,
    /// They cannot; kubelet retries.
    Refused(String),
}

/// The registration socket, and the result of the registration.
#[derive(Debug)]
pub struct Registration {
    socket: PathBuf,
    csi: Endpoint,
    verdict: watch::Sender<Verdict>,
}

impl Registration {
    /// Announces the CSI endpoint `csi` by a socket in `registry`, a directory of kubelet.
    #[must_use]
    pub fn new(registry: &std::path::Path, csi: Endpoint) -> Self {
        Self {
            socket: registry.join(format!("{DRIVER_NAME}-reg.sock")),
            csi,
            verdict: watch::Sender::default(),
        }
    }

    /// The result of the registration, and each change of it.
    #[must_use]
    pub fn verdict(&self) -> watch::Receiver<Verdict> {
        self.verdict.subscribe()
    }

    /// The path of the socket. While that is missing, kubelet does not know the driver.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// Serves until `stop`, then removes the socket, by which kubelet notices that the plugin ends.
    pub async fn serve(self, stop: CancellationToken) -> io::Result<()> {
        let socket = self.socket.clone();
        let endpoint: Endpoint = socket.display().to_string().parse().map_err(io::Error::other)?;
        let connections = UnixListenerStream::new(endpoint.listen(SOCKET_MODE)?);
        let incoming = connections.map(|connection| connection.map(authority::with_valid_authority));
        let leave = async {
            stop.cancelled_owned().await;
            if let Err(error) = fs::remove_file(&socket) {
                tracing::warn!(socket = %socket.display(), %error, "cannot remove the registration socket");
            }
        };
        transport::Server::builder()
            .add_service(RegistrationServer::new(self))
            .serve_with_incoming_shutdown(incoming, leave)
            .await
            .map_err(io::Error::other)
    }
}

#[tonic::async_trait]
impl registration_server::Registration for Registration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: CSI_PLUGIN.to_owned(),
            name: DRIVER_NAME.to_owned(),
            endpoint: self.csi.path().display().to_string(),
            supported_versions: vec![CSI_VERSIONS.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let verdict = if status.plugin_registered {
            tracing::info!("kubelet registered this node plugin");
            Verdict::Registered
        } else {
            tracing::error!(error = status.error, "kubelet refused this node plugin");
            Verdict::Refused(status.error)
        };
        self.verdict.send_replace(verdict);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixStream,
    };

    use super::{super::authority::tests::kubelets_first_call, *};
    use crate::{node::registry::Registry, wire::registration::registration_client::RegistrationClient};

    #[tokio::test]
    async fn requests_of_the_kubelet_client_are_understood() {
        let dir = tempfile::tempdir().unwrap();
        let csi: Endpoint = dir.path().join("csi.sock").display().to_string().parse().unwrap();
        let registration = Registration::new(dir.path(), csi);
        let socket = registration.socket();
        tokio::spawn(registration.serve(CancellationToken::new()));
        let mut kubelet = loop {
            match UnixStream::connect(&socket).await {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let authority = "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fx-reg.sock";
        let call = kubelets_first_call("/pluginregistration.Registration/GetInfo", authority);
        kubelet.write_all(&call).await.unwrap();
        let mut answer = Vec::new();
        let named = async {
            while !answer
                .windows(DRIVER_NAME.len())
                .any(|part| part == DRIVER_NAME.as_bytes())
            {
                assert_ne!(
                    kubelet.read_buf(&mut answer).await.unwrap(),
                    0,
                    "hung up: {answer:?}"
                );
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), named)
            .await
            .expect("no answer");
    }

    #[tokio::test]
    async fn the_kubelet_registers_and_unregisters_the_plugin() {
        let dir = tempfile::tempdir().unwrap();
        let csi: Endpoint = dir.path().join("csi.sock").display().to_string().parse().unwrap();
        let registration = Registration::new(dir.path(), csi.clone());
        let (verdict, socket) = (registration.verdict(), registration.socket());
        let stop = CancellationToken::new();
        let server = tokio::spawn(registration.serve(stop.clone()));

        let address = format!("unix://{}", socket.display());
        let mut kubelet = loop {
            match RegistrationClient::connect(address.clone()).await {
                Ok(client) => break client,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!(
            (info.r#type.as_str(), info.name.as_str()),
            (CSI_PLUGIN, DRIVER_NAME)
        );
        assert_eq!(info.endpoint, csi.path().to_str().unwrap());
        assert_eq!(*verdict.borrow(), Verdict::Pending);

        for (plugin_registered, error, expected) in [
            (
                false,
                "topology value collision",
                Verdict::Refused("topology value collision".into()),
            ),
            (true, "", Verdict::Registered),
        ] {
            let said = RegistrationStatus {
                plugin_registered,
                error: error.into(),
            };
            kubelet.notify_registration_status(said).await.unwrap();
            assert_eq!(*verdict.borrow(), expected);
        }
        assert!(
            Registry::new(dir.path().to_owned(), csi.path().to_owned())
                .find(DRIVER_NAME)
                .await
                .is_err()
        );

        stop.cancel();
        server.await.unwrap().unwrap();
        assert!(!socket.exists());
    }
}
