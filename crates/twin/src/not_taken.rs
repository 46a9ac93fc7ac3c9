//! A twin that an API server does not take, and what that means for its claim. And
//! what is remembered of a cluster that cannot have a twin.

use super::{CreateError, CreateRequest, Policy, Site, observation::Observation, reading, refusals};
use crate::{
    cluster::{ApiError, Cause},
    volume::Refused,
};

/// Why the API server did not take a twin, and what that means for its claim.
pub(super) fn not_taken(site: &Site, error: ApiError) -> CreateError {
    match (&error.cause, site.remote_cluster()) {
        // At home only an administrator can mend it. Elsewhere there are other clusters.
        (Cause::Forbidden(_) | Cause::Invalid(_) | Cause::NotFound(_), None)
        | (Cause::Invalid(_), Some(_)) => CreateError::NotAccepted(error),
        (Cause::Forbidden(message), Some(_)) if !may_pass(message) => {
            CreateError::Elsewhere(error.to_string())
        }
        _ => error.into(),
    }
}

/// Notes that this remote cluster cannot have the twin. A help for the scheduler: if
/// it cannot be written, the pod only comes back sooner. At home the real driver is who
/// tells what room there is.
pub(super) async fn note_refusal(
    site: &Site,
    policy: &Policy,
    request: &CreateRequest,
    observation: &Observation,
) {
    let class = observation.claim.as_ref().and_then(reading::class_name);
    let Some(class) = class.filter(|_| site.remote_cluster().is_some()) else {
        return;
    };
    let now = jiff::Timestamp::now().as_second();
    let refused = Refused::new(class, site.cluster().id(), request.spec.size.request(), now);
    if let Err(error) = refusals::note(site.home(), &policy.namespace, &refused, now).await {
        tracing::warn!(%error, "a refusal could not be noted");
    }
}

/// Whether something forbidden may be allowed in a moment: a namespace that is
/// not there yet, whose roles are not, or that is on its way out. Quotas, limits
/// and admission stay as they are.
fn may_pass(message: &str) -> bool {
    ["cannot create resource", "is being terminated"]
        .iter()
        .any(|sign| message.contains(sign))
}
