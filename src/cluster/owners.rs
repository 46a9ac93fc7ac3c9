//! Whether the owner of an object is still there. Owners are of any kind, so it is asked first
//! where objects of their kind are (discovery). One of a kind that is not served counts as gone.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Client,
    api::{DynamicObject, GroupVersionKind},
    discovery::{Scope, pinned_kind},
};

use super::{ApiError, Cluster, api::bounded};

impl Cluster {
    /// Whether the owner of an object of this namespace exists, and is not another one of its
    /// name.
    pub async fn has_owner(&self, namespace: &str, owner: &OwnerReference) -> Result<bool, ApiError> {
        let described = || format!("{} {namespace}/{}", owner.kind, owner.name);
        bounded(self.calls(), self.id().as_str(), "read", described, || {
            exists(self.client(), namespace, owner)
        })
        .await
    }
}

async fn exists(client: &Client, namespace: &str, owner: &OwnerReference) -> Result<bool, kube::Error> {
    let (group, version) = owner
        .api_version
        .split_once('/')
        .unwrap_or(("", &owner.api_version));
    let kind = GroupVersionKind::gvk(group, version, &owner.kind);
    let (resource, capabilities) = match pinned_kind(client, &kind).await {
        Ok(found) => found,
        Err(kube::Error::Discovery(_)) => return Ok(false),
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(false),
        Err(error) => return Err(error),
    };
    let objects: Api<DynamicObject> = match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    let found = objects.get_metadata_opt(&owner.name).await?;
    Ok(found.is_some_and(|found| found.metadata.uid.as_ref() == Some(&owner.uid)))
}
