//! The owner references of an object that is created again. Kubernetes deletes an object whose owners are
//! all gone, and with it the data. So only owners that were found are kept: a missing reference at worst
//! leaves an object behind, a wrong one loses data.
//!
//! - An owner that is gone is dropped.
//! - An owner of a kind that is not served is dropped, too: see [`OwnerNow::Unserved`].
//! - An owner that cannot be read is an obstacle as long as nothing is deleted. If the user loses the right
//!   to read it after that, it is dropped, so that the object can be created. A transient error, such as an
//!   API that is unreachable, ends the command, which continues when it is run again.

use std::fmt;

use kube::Resource;

use super::Context;
use crate::cluster::{ApiError, OwnerNow};

/// An owner that is left out.
pub(super) struct Dropped {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) why: DropReason,
}

/// Why an owner is left out.
pub(super) enum DropReason {
    Gone,
    /// The API group and version of its kind.
    Unserved(String),
    Unreadable(ApiError),
}

impl fmt::Display for Dropped {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "its owner, the {} {}, ", self.kind, self.name)?;
        match &self.why {
            DropReason::Gone => write!(out, "is gone: the object is created without it"),
            DropReason::Unserved(api) => write!(
                out,
                "is of a kind that this cluster does not serve ({api}): the object is created without this owner, because Kubernetes would consider it gone and delete \
                 the object as soon as that kind is served again"
            ),
            DropReason::Unreadable(error) => write!(
                out,
                "cannot be read: the object is created without it, because Kubernetes deletes the object if the owner is gone. If it exists, add it to the \
                 ownerReferences again ({error})"
            ),
        }
    }
}

/// Removes the owners that were not found from an object before its creation.
pub(super) async fn drop_unseen_owners<K: Resource>(context: &Context<'_>, object: &mut K) -> Vec<Dropped> {
    let namespace = object.meta().namespace.clone().unwrap_or_default();
    let owners = object.meta_mut().owner_references.take();
    let (mut living, mut dropped) = (Vec::new(), Vec::new());
    for owner in owners.into_iter().flatten() {
        let why = match context.cluster.owner_now(&namespace, &owner).await {
            Ok(OwnerNow::Exists) => {
                living.push(owner);
                continue;
            }
            Ok(OwnerNow::Gone) => DropReason::Gone,
            Ok(OwnerNow::Unserved) => DropReason::Unserved(owner.api_version),
            Err(error) => DropReason::Unreadable(error),
        };
        dropped.push(Dropped {
            kind: owner.kind,
            name: owner.name,
            why,
        });
    }
    object.meta_mut().owner_references = (!living.is_empty()).then_some(living);
    dropped
}

/// The same after a deletion, when the object must be created: transient errors are returned, and dropped
/// owners are reported.
pub(super) async fn keep_living_owners<K: Resource>(
    context: &Context<'_>,
    object: &mut K,
) -> Result<(), ApiError> {
    keep_living_owners_once(context, object, &mut Vec::new()).await
}

/// As [`keep_living_owners`], for several attempts to create an object: owners in `reported` are not reported again.
pub(super) async fn keep_living_owners_once<K: Resource>(
    context: &Context<'_>,
    object: &mut K,
    reported: &mut Vec<String>,
) -> Result<(), ApiError> {
    for dropped in drop_unseen_owners(context, object).await {
        let text = dropped.to_string();
        if let DropReason::Unreadable(error) = dropped.why
            && error.is_transient()
        {
            return Err(error);
        }
        if !reported.contains(&text) {
            (context.report)(&text);
            reported.push(text);
        }
    }
    Ok(())
}
