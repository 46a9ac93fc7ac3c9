//! The owners of an object that is made again. Kubernetes' garbage collector deletes what has no
//! owner left that is there, and with it the data. So it is made again with those owners only that
//! were seen: one that it has too few leaves an object behind at worst, one too many loses data.
//!
//! - One that is gone is dropped.
//! - One of a kind that is not served is dropped, too: see [`OwnerNow::Unserved`].
//! - One that cannot be read is an obstacle as long as nothing is deleted. Whoever loses the right
//!   to read it after that has it dropped, rather than be left without the object. What may
//!   pass, as an API that is out of reach, ends the command, which goes on when it is run again.

use std::fmt;

use kube::Resource;

use super::Context;
use crate::cluster::{ApiError, OwnerNow};

/// An owner that an object is made without.
pub(super) struct Dropped {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) why: Why,
}

/// Why it is.
pub(super) enum Why {
    Gone,
    /// Of which API its kind was.
    Unserved(String),
    Unreadable(ApiError),
}

impl fmt::Display for Dropped {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "its owner, the {} {}, ", self.kind, self.name)?;
        match &self.why {
            Why::Gone => write!(out, "is gone: it is made without this owner"),
            Why::Unserved(api) => write!(
                out,
                "is of a kind that this cluster does not serve ({api}): it is made without this owner, since Kubernetes would find it gone and delete \
                 what it owned as soon as that kind is served again"
            ),
            Why::Unreadable(error) => write!(
                out,
                "cannot be read: it is made without this owner, since Kubernetes deletes it if that is gone. If it is there, add it to the \
                 ownerReferences again ({error})"
            ),
        }
    }
}

/// Takes those owners off an object that is to be made that are not seen to be there.
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
            Ok(OwnerNow::Gone) => Why::Gone,
            Ok(OwnerNow::Unserved) => Why::Unserved(owner.api_version),
            Err(error) => Why::Unreadable(error),
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

/// The same when there is no way back: what may pass is an error, and what is dropped is told.
pub(super) async fn keep_living_owners<K: Resource>(
    context: &Context<'_>,
    object: &mut K,
) -> Result<(), ApiError> {
    keep_and_tell(context, object, &mut Vec::new()).await
}

/// The same for an object that is tried to be made several times: what was `told` is not told again.
pub(super) async fn keep_and_tell<K: Resource>(
    context: &Context<'_>,
    object: &mut K,
    told: &mut Vec<String>,
) -> Result<(), ApiError> {
    for dropped in drop_unseen_owners(context, object).await {
        let text = dropped.to_string();
        if let Why::Unreadable(error) = dropped.why
            && error.is_transient()
        {
            return Err(error);
        }
        if !told.contains(&text) {
            (context.tell)(&text);
            told.push(text);
        }
    }
    Ok(())
}
