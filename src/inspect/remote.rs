//! The state of a volume whose twin is, or may be, in a remote cluster. The commands have no access there: they
//! read the condition that the controller has set on the claim.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::{
    Storage,
    names::{Name, reach},
    state::{Health, State},
};
use crate::{
    placement::Diagnosis,
    twin::{TWIN_CLASS, twin_in},
    volume::{ClusterId, mark::TWIN_READY},
};

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
    let condition = conditions.into_iter().find(|one| one.type_ == TWIN_READY);
    let reason = condition
        .and_then(|one| one.reason.as_deref())
        .unwrap_or_default();
    let message = condition.and_then(|one| one.message.clone()).unwrap_or_default();
    let advice = "liqo-csi clusters shows the state of the cluster.";
    let diagnosis = Diagnosis::named(reason);
    match diagnosis {
        None | Some(Diagnosis::Bound | Diagnosis::Ending)
            if storage.nodes.is_complete() && reach(volume, storage).is_empty() =>
        {
            let message =
                format!("its data is in the cluster {cluster}, and no node represents that cluster");
            Health::new(State::Unreachable, message, advice)
        }
        Some(Diagnosis::Bound | Diagnosis::Ending) => Health::new(State::Bound, "", ""),
        None => Health::new(
            State::Bound,
            "the controller has not reported the state of its twin yet",
            advice,
        ),
        Some(Diagnosis::Pending) => Health::new(State::Twin(Diagnosis::Pending), message, ""),
        Some(unhealthy) => Health::new(State::Twin(unhealthy), message, advice),
    }
}

/// The name of the twin in the PV.
pub(super) fn twin(volume: &PersistentVolume) -> Option<Name> {
    let attributes = volume.spec.as_ref()?.csi.as_ref()?.volume_attributes.as_ref()?;
    let twin = twin_in(attributes)?;
    Some(Name {
        namespace: twin.namespace,
        name: twin.name,
    })
}

/// The real class in the PV.
pub(super) fn real_class(volume: &PersistentVolume) -> Option<String> {
    let attributes = volume.spec.as_ref()?.csi.as_ref()?.volume_attributes.as_ref()?;
    attributes.get(TWIN_CLASS).cloned()
}
