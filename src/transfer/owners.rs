//! The owners of an object that is made again. What has an owner that is not there any more is
//! deleted by Kubernetes' garbage collector, and with it the data.

use kube::Resource;

use super::Context;
use crate::cluster::ApiError;

/// Takes those owners off an object that is to be made that are not there any more, or that
/// cannot be seen.
pub(super) async fn keep_living_owners<K: Resource>(
    context: &Context<'_>,
    object: &mut K,
) -> Result<(), ApiError> {
    let namespace = object.meta().namespace.clone().unwrap_or_default();
    let owners = object.meta_mut().owner_references.take();
    let mut living = Vec::new();
    for owner in owners.into_iter().flatten() {
        let who = format!("{} {}", owner.kind, owner.name);
        match context.cluster.has_owner(&namespace, &owner).await {
            Ok(true) => living.push(owner),
            Ok(false) => {
                (context.tell)(&format!("its owner, the {who}, is gone: it is made without one"));
            }
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => (context.tell)(&format!(
                "its owner, the {who}, cannot be read, so it is made without one: {error}"
            )),
        }
    }
    object.meta_mut().owner_references = (!living.is_empty()).then_some(living);
    Ok(())
}
