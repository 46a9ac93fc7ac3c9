//! The Identity service, of the controller and of the node plugin.

use tonic::{Request, Response, Status, service::Routes};

use crate::{
    volume::DRIVER_NAME,
    wire::csi::{
        self as wire,
        identity_server::IdentityServer,
        plugin_capability::{self, service, volume_expansion},
    },
};

/// The part of the driver that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The controller.
    Controller,
    /// It reports the capabilities of the controller, too: they are the driver's, and csi-sanity
    /// skips tests where the node's endpoint does not have them.
    Node,
}

/// The Identity service.
pub struct Identity {
    role: Role,
}

impl Identity {
    /// The identity of the driver's half `role`.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self { role }
    }

    /// Routes with this service, to which each process adds its own services.
    #[must_use]
    pub fn routes(self) -> Routes {
        Routes::new(IdentityServer::new(self))
    }
}

#[tonic::async_trait]
impl wire::identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        _: Request<wire::GetPluginInfoRequest>,
    ) -> Result<Response<wire::GetPluginInfoResponse>, Status> {
        let component = match self.role {
            Role::Controller => "controller",
            Role::Node => "node",
        };
        Ok(Response::new(wire::GetPluginInfoResponse {
            name: DRIVER_NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: [("component".to_owned(), component.to_owned())].into(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<wire::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<wire::GetPluginCapabilitiesResponse>, Status> {
        let services = [
            service::Type::ControllerService,
            service::Type::VolumeAccessibilityConstraints,
        ];
        let services = services
            .map(|it| plugin_capability::Type::Service(plugin_capability::Service { r#type: it.into() }));
        // Whether a volume in use may be expanded is decided by its real driver.
        let expansion = plugin_capability::Type::VolumeExpansion(plugin_capability::VolumeExpansion {
            r#type: volume_expansion::Type::Online.into(),
        });
        let capabilities = services.into_iter().chain([expansion]);
        Ok(Response::new(wire::GetPluginCapabilitiesResponse {
            capabilities: capabilities
                .map(|it| wire::PluginCapability { r#type: Some(it) })
                .collect(),
        }))
    }

    /// Always ready once it answers: each call waits for the objects that it needs.
    async fn probe(&self, _: Request<wire::ProbeRequest>) -> Result<Response<wire::ProbeResponse>, Status> {
        Ok(Response::new(wire::ProbeResponse { ready: Some(true) }))
    }
}

#[cfg(test)]
mod tests {
    use wire::identity_server::Identity as _;

    use super::*;

    #[tokio::test]
    async fn both_roles_report_the_controller_service() {
        for role in [Role::Controller, Role::Node] {
            let identity = Identity::new(role);
            let answer = identity
                .get_plugin_capabilities(Request::new(wire::GetPluginCapabilitiesRequest {}))
                .await
                .unwrap();
            assert_eq!(answer.into_inner().capabilities.len(), 3);
        }
    }
}
