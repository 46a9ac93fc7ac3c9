//! A twin that an API server rejects: what that means for its claim, and the remembered refusal of a
//! remote cluster.

use super::{CreateError, CreateRequest, Policy, Site, observation::Observation, reading, refusals};
use crate::{
    cluster::{ApiError, Cause},
    volume::Refused,
};

/// Turns the rejection of a twin by the API server into the error for its claim.
pub(super) fn rejected(site: &Site, error: ApiError) -> CreateError {
    match (&error.cause, site.remote_cluster()) {
        // If a remote cluster rejects it, others may accept it.
        (Cause::Forbidden(message), Some(_)) if is_denied(message) || !is_temporary(message) => {
            CreateError::Elsewhere(error.to_string())
        }
        (Cause::Invalid(message), Some(_)) if is_denied(message) => CreateError::Elsewhere(error.to_string()),
        // At home only an administrator can fix it.
        (Cause::Forbidden(_) | Cause::Invalid(_) | Cause::NotFound(_), None)
        | (Cause::Invalid(_), Some(_)) => CreateError::NotAccepted(error),
        _ => error.into(),
    }
}

/// Remembers that this remote cluster refused the twin, as a hint for the scheduler: if it cannot be
/// written, the pod only returns to the scheduler sooner. At home the real driver publishes capacity.
pub(super) async fn record_refusal(
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
    if let Err(error) = refusals::record(site.home(), &policy.namespace, &refused, now).await {
        tracing::warn!(%error, "failed to record the refusal of a remote cluster");
    }
}

/// Whether an admission policy or webhook has denied it: that need not be with the code 403.
fn is_denied(message: &str) -> bool {
    ["denied the request", "denied request:"]
        .iter()
        .any(|sign| message.contains(sign))
}

/// Whether something forbidden may soon be allowed: the namespace or its roles do not exist yet, or the
/// namespace is being deleted. Quotas, limits and admission do not change on their own.
fn is_temporary(message: &str) -> bool {
    ["cannot create resource", "is being terminated"]
        .iter()
        .any(|sign| message.contains(sign))
}
