//! Finalizers of this driver on objects of any kind.

use std::fmt::Debug;

use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::{ApiError, Objects};

/// Whether the object has the finalizer.
#[must_use]
pub fn has_finalizer<K: Resource>(object: &K, finalizer: &str) -> bool {
    object.finalizers().iter().any(|one| one == finalizer)
}

/// The finalizers that delay the deletion of an object, as the end of a message; `None` if it has none, or is
/// not being deleted.
#[must_use]
pub fn held_by<K: Resource>(object: &K) -> Option<String> {
    object.meta().deletion_timestamp.as_ref()?;
    let names = object.finalizers().join(", ");
    (!names.is_empty()).then(|| format!("it has the finalizers {names}"))
}

impl<K> Objects<K>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    /// Adds the finalizer to exactly this version of the object, or removes it. A concurrent change is a
    /// conflict; `None` if there is no such object.
    pub async fn set_finalizer(
        &self,
        object: &K,
        finalizer: &str,
        wanted: bool,
    ) -> Result<Option<K>, ApiError> {
        let mut finalizers = object.finalizers().to_vec();
        finalizers.retain(|one| one != finalizer);
        if wanted {
            finalizers.push(finalizer.to_owned());
        }
        let patch = json!({"metadata": {
            "uid": object.uid(),
            "resourceVersion": object.resource_version(),
            "finalizers": finalizers,
        }});
        self.merge(&object.name_any(), &patch).await
    }
}
