//! Serves CSI on a unix socket until it is stopped, then lets calls in flight finish for a grace
//! period.

use std::{io, time::Duration};

use axum::middleware;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{self, Channel},
};

use super::{Endpoint, observed::observed};
use crate::{observe::Metrics, wire::csi as wire};

/// Why a server ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket cannot be created.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// The transport failed.
    #[error("the CSI server failed: {0}")]
    Transport(#[from] transport::Error),
}

/// How a server runs.
pub struct Settings {
    /// Where to listen.
    pub endpoint: Endpoint,
    /// Permissions of the socket.
    pub mode: u32,
    /// How long calls in flight may continue after `stop`.
    pub grace: Duration,
}

/// Serves `routes` until `stop` is cancelled.
pub async fn serve(
    settings: Settings,
    routes: Routes,
    metrics: Metrics,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let listener = settings.endpoint.listen(settings.mode)?;
    tracing::info!(endpoint = %settings.endpoint, "serving CSI");
    let observe = middleware::from_fn(move |request, next| observed(metrics.clone(), request, next));
    let routes = Routes::from(routes.into_axum_router().layer(observe));
    let server = transport::Server::builder()
        .add_routes(routes)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.clone().cancelled_owned());

    let out_of_patience = async {
        stop.cancelled().await;
        tokio::time::sleep(settings.grace).await;
    };
    tokio::select! {
        ended = server => Ok(ended?),
        () = out_of_patience => {
            tracing::warn!(grace = ?settings.grace, "aborting the calls that are still in flight");
            Ok(())
        }
    }
}

/// Calls `Probe` of the identity service at `endpoint`: whether it is ready, and an error if it does
/// not answer.
pub async fn probe(endpoint: &Endpoint) -> Result<bool, String> {
    let failed = |what: &dyn std::fmt::Display| format!("{endpoint} does not answer: {what}");
    let channel = connect(endpoint).await.map_err(|error| failed(&error))?;
    let answer = wire::identity_client::IdentityClient::new(channel)
        .probe(wire::ProbeRequest {})
        .await
        .map_err(|status| failed(&status.message()))?;
    Ok(answer.into_inner().ready.unwrap_or(true))
}

async fn connect(endpoint: &Endpoint) -> Result<Channel, transport::Error> {
    transport::Endpoint::from_shared(endpoint.to_string())?
        .connect_timeout(Duration::from_secs(2))
        .timeout(Duration::from_secs(2))
        .connect()
        .await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Notify;
    use tonic::{Code, Request, Response, Status};
    use wire::{controller_client::ControllerClient, controller_server::ControllerServer};

    use super::*;
    use crate::csi::{Identity, Role};

    /// Panics on create, blocks on delete.
    #[derive(Clone, Default)]
    struct Awkward {
        entered: Arc<Notify>,
        release: Arc<Notify>,
    }

    #[tonic::async_trait]
    impl wire::controller_server::Controller for Awkward {
        async fn create_volume(
            &self,
            _: Request<wire::CreateVolumeRequest>,
        ) -> Result<Response<wire::CreateVolumeResponse>, Status> {
            panic!("a bug")
        }

        async fn delete_volume(
            &self,
            _: Request<wire::DeleteVolumeRequest>,
        ) -> Result<Response<wire::DeleteVolumeResponse>, Status> {
            self.entered.notify_one();
            self.release.notified().await;
            Ok(Response::new(wire::DeleteVolumeResponse {}))
        }
    }

    struct Running {
        awkward: Awkward,
        client: ControllerClient<Channel>,
        endpoint: Endpoint,
        metrics: Metrics,
        stop: CancellationToken,
        server: tokio::task::JoinHandle<Result<(), ServeError>>,
        _dir: tempfile::TempDir,
    }

    async fn run(grace: Duration) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let endpoint: Endpoint = dir.path().join("s").display().to_string().parse().unwrap();
        let (awkward, metrics) = (Awkward::default(), Metrics::new("test", |_| {}));
        let stop = CancellationToken::new();
        let routes = Identity::new(Role::Controller).routes();
        let settings = Settings {
            endpoint: endpoint.clone(),
            mode: 0o600,
            grace,
        };
        let server = tokio::spawn(serve(
            settings,
            routes.add_service(ControllerServer::new(awkward.clone())),
            metrics.clone(),
            stop.clone(),
        ));
        let channel = loop {
            match connect(&endpoint).await {
                Ok(channel) => break channel,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let client = ControllerClient::new(channel);
        Running {
            awkward,
            client,
            endpoint,
            metrics,
            stop,
            server,
            _dir: dir,
        }
    }

    #[tokio::test]
    async fn a_panic_is_internal_and_counted() {
        let mut it = run(Duration::from_secs(5)).await;
        let status = it
            .client
            .create_volume(wire::CreateVolumeRequest::default())
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        let page = it.metrics.print().unwrap();
        assert!(
            page.contains(r#"CreateVolume",grpc_status_code="Internal"} 1"#),
            "{page}"
        );
        assert_eq!(probe(&it.endpoint).await, Ok(true));
    }

    #[tokio::test]
    async fn stopping_waits_for_a_call_in_flight() {
        let mut it = run(Duration::from_secs(30)).await;
        let mut client = it.client.clone();
        let call =
            tokio::spawn(async move { client.delete_volume(wire::DeleteVolumeRequest::default()).await });
        it.awkward.entered.notified().await;
        it.stop.cancel();
        assert!(
            tokio::time::timeout(Duration::from_millis(50), &mut it.server)
                .await
                .is_err()
        );
        it.awkward.release.notify_one();
        assert!(call.await.unwrap().is_ok());
        it.server.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn stopping_does_not_wait_for_ever() {
        let it = run(Duration::from_millis(50)).await;
        let mut client = it.client.clone();
        let call =
            tokio::spawn(async move { client.delete_volume(wire::DeleteVolumeRequest::default()).await });
        it.awkward.entered.notified().await;
        it.stop.cancel();
        it.server.await.unwrap().unwrap();
        call.abort();
    }

    #[tokio::test]
    async fn probing_a_missing_socket_is_an_error() {
        let endpoint: Endpoint = "/nonexistent/csi.sock".parse().unwrap();
        assert!(
            probe(&endpoint)
                .await
                .unwrap_err()
                .contains("/nonexistent/csi.sock")
        );
    }
}
