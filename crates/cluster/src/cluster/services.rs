//! The Services of a namespace by their addresses. Each cluster has its own, so an address in a pod spec is one of its
//! own cluster.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::api::{core::v1::Service, networking::v1::ServiceCIDR};
use kube::ResourceExt;

use super::{ApiError, Cluster};

/// The names of Services by their addresses, or why they are not known.
pub(super) type ServiceAddresses = Result<BTreeMap<IpAddr, String>, ApiError>;

impl Cluster {
    /// The Services of a namespace by their addresses, from a list that concurrent calls share.
    pub async fn service_addresses(&self, namespace: &str) -> Arc<ServiceAddresses> {
        let read = || async {
            let addresses = |service: Service| {
                let name = service.name_any();
                let addresses = service.spec?.cluster_ips?;
                let parsed = addresses.iter().filter_map(|ip| ip.parse::<IpAddr>().ok());
                Some(parsed.map(|ip| (ip, name.clone())).collect::<Vec<_>>())
            };
            let found = self
                .within::<Service>(namespace)
                .pick(None, None, addresses)
                .await?;
            Ok(found.into_iter().flatten().collect())
        };
        self.0.recent.service_addresses.get(namespace, read).await
    }

    /// The ranges of the addresses of Services, from a list that concurrent calls share. They are not known before
    /// Kubernetes 1.33.
    pub async fn service_ranges(&self) -> Arc<Vec<String>> {
        let read = || async {
            let ranges = self.all::<ServiceCIDR>();
            let found = ranges.pick(None, None, |it| it.spec?.cidrs).await;
            found.unwrap_or_default().concat()
        };
        self.0.recent.service_ranges.get("", read).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cluster::testing::FakeApi;

    #[tokio::test]
    async fn the_services_of_a_namespace_are_listed_once_for_all() {
        let api = FakeApi::start().await;
        for (name, addresses) in [
            ("db", json!(["10.96.0.7", "fd00::7"])),
            ("headless", json!(["None"])),
        ] {
            api.put(
                &format!("/api/v1/namespaces/shop/services/{name}"),
                json!({"spec": {"clusterIPs": addresses}}),
            );
        }
        let cluster = api.cluster_unwatched().await;
        let (first, second) = tokio::join!(
            cluster.service_addresses("shop"),
            cluster.service_addresses("shop")
        );
        let known = first.as_ref().as_ref().unwrap();
        assert_eq!(known.len(), 2);
        assert_eq!(known[&"fd00::7".parse().unwrap()], "db");
        assert!(std::sync::Arc::ptr_eq(&first, &second));
    }
}
