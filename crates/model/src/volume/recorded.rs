//! What the PV that users see remembers of the twin: its volume attributes.

use std::collections::BTreeMap;

use super::ClaimName;

/// Namespace of the twin.
pub const TWIN_NAMESPACE: &str = "storage.liqo.io/twin-namespace";
/// Name of the twin.
pub const TWIN_NAME: &str = "storage.liqo.io/twin-name";
/// The twin's PV. Without the twin, this is how it is found.
pub const TWIN_VOLUME: &str = "storage.liqo.io/twin-volume";
/// The real class, for people who cannot look at the twin.
pub const TWIN_CLASS: &str = "storage.liqo.io/twin-class";

/// The twin that the attributes of a PV name.
#[must_use]
pub fn twin_in(attributes: &BTreeMap<String, String>) -> Option<ClaimName> {
    Some(ClaimName {
        namespace: attributes.get(TWIN_NAMESPACE)?.clone(),
        name: attributes.get(TWIN_NAME)?.clone(),
    })
}

/// The twin's PV that the attributes of a PV name, if it was known when they were written.
#[must_use]
pub fn twin_volume_in(attributes: &BTreeMap<String, String>) -> Option<String> {
    attributes
        .get(TWIN_VOLUME)
        .filter(|name| !name.is_empty())
        .cloned()
}
