//! Whether the owner of an object exists. Owners are of any kind, so their path is read first (discovery).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Client,
    api::{DynamicObject, GroupVersionKind},
    discovery::{Scope, pinned_kind},
};

use super::{
    ApiError, Cluster,
    api::{bounded, is_unserved},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerNow {
    Exists,
    /// It does not exist, or another object has its name: garbage collection deletes its dependents.
    Gone,
    /// The cluster does not serve the kind, for example while an operator is being reinstalled. Garbage
    /// collection cannot look the owner up, and keeps the dependents until the kind is served again. Objects
    /// are deleted with their kind, so the owner is gone then.
    Unserved,
}

impl Cluster {
    /// The state of the owner of an object in this namespace.
    pub async fn owner_now(&self, namespace: &str, owner: &OwnerReference) -> Result<OwnerNow, ApiError> {
        let described = || format!("{} {namespace}/{}", owner.kind, owner.name);
        bounded(self.calls(), self.id().as_str(), "read", described, || {
            owner_now(self.client(), namespace, owner)
        })
        .await
    }
}

async fn owner_now(
    client: &Client,
    namespace: &str,
    owner: &OwnerReference,
) -> Result<OwnerNow, kube::Error> {
    let (group, version) = owner
        .api_version
        .split_once('/')
        .unwrap_or(("", &owner.api_version));
    let kind = GroupVersionKind::gvk(group, version, &owner.kind);
    let (resource, capabilities) = match pinned_kind(client, &kind).await {
        Ok(found) => found,
        Err(kube::Error::Discovery(_)) => return Ok(OwnerNow::Unserved),
        Err(error) if is_unserved(&error) => return Ok(OwnerNow::Unserved),
        Err(error) => return Err(error),
    };
    let objects: Api<DynamicObject> = match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    let found = objects.get_metadata_opt(&owner.name).await?;
    let is_it = found.is_some_and(|found| found.metadata.uid.as_ref() == Some(&owner.uid));
    Ok(if is_it { OwnerNow::Exists } else { OwnerNow::Gone })
}
