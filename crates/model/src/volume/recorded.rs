//! The twin as recorded in the volume attributes of the virtual PV.

use std::collections::BTreeMap;

use super::ClaimName;

pub const TWIN_NAMESPACE: &str = "storage.liqo.io/twin-namespace";
pub const TWIN_NAME: &str = "storage.liqo.io/twin-name";
/// The twin's PV, by which the data is found after the twin was deleted.
pub const TWIN_VOLUME: &str = "storage.liqo.io/twin-volume";
/// The real class, for users who may not read the twin.
pub const TWIN_CLASS: &str = "storage.liqo.io/twin-class";

/// The twin that these attributes name.
#[must_use]
pub fn twin_in(attributes: &BTreeMap<String, String>) -> Option<ClaimName> {
    Some(ClaimName {
        namespace: attributes.get(TWIN_NAMESPACE)?.clone(),
        name: attributes.get(TWIN_NAME)?.clone(),
    })
}

/// The twin's PV that these attributes name, if it was known when they were written.
#[must_use]
pub fn twin_volume_in(attributes: &BTreeMap<String, String>) -> Option<String> {
    attributes
        .get(TWIN_VOLUME)
        .filter(|name| !name.is_empty())
        .cloned()
}
