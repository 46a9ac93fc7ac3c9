//! How a volume is whose twin is in a remote cluster. This side cannot look there:
//! it reads what the controller, which can, has said on the claim.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::{
    Storage,
    state::{Health, State},
    words::{Name, reach},
};
use crate::{
    placement::Diagnosis,
    twin::{TWIN_CLASS, twin_in},
    volume::{ClusterId, mark::TWIN_READY},
};

/// How it is.
pub(super) fn health(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    cluster: &ClusterId,
    storage: &Storage,
) -> Health {
    let conditions = claim
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let told = conditions.into_iter().find(|one| one.type_ == TWIN_READY);
    let reason = told.and_then(|one| one.reason.as_deref()).unwrap_or_default();
    let message = told.and_then(|one| one.message.clone()).unwrap_or_default();
    let advice = "liqo-csi clusters shows how it is with the cluster.";
    let diagnosis = Diagnosis::named(reason);
    match diagnosis {
        None | Some(Diagnosis::Bound | Diagnosis::Ending)
            if storage.nodes.is_complete() && reach(volume, storage).is_empty() =>
        {
            let message = format!("its data is in the cluster {cluster}, and no node leads there");
            Health::new(State::Unreachable, message, advice)
        }
        Some(Diagnosis::Bound | Diagnosis::Ending) => Health::new(State::Bound, "", ""),
        None => Health::new(
            State::Bound,
            "the controller has said nothing about its twin yet",
            advice,
        ),
        Some(Diagnosis::Pending) => Health::new(State::Twin(Diagnosis::Pending), message, ""),
        Some(unwell) => Health::new(State::Twin(unwell), message, advice),
    }
}

/// Where the PV says its twin is.
pub(super) fn twin(volume: &PersistentVolume) -> Option<Name> {
    let attributes = volume.spec.as_ref()?.csi.as_ref()?.volume_attributes.as_ref()?;
    let twin = twin_in(attributes)?;
    Some(Name {
        namespace: twin.namespace,
        name: twin.name,
    })
}

/// The real class that the PV names.
pub(super) fn real_class(volume: &PersistentVolume) -> Option<String> {
    let attributes = volume.spec.as_ref()?.csi.as_ref()?.volume_attributes.as_ref()?;
    attributes.get(TWIN_CLASS).cloned()
}
