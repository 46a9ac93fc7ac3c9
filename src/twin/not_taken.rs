//! A twin that an API server does not take, and what that means for its claim. And
//! what a claim remembers of any cluster that cannot have its twin.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

use super::{CreateError, Order, Site, sight::Sight};
use crate::{
    cluster::{ApiError, Cause},
    observe::crash::{self, Step},
    volume::{Refused, mark},
};

/// How many seconds a refusal counts: quotas change, and nobody tells.
const REFUSAL_COUNTS: i64 = 120;

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

/// Notes on the claim that its twin cannot be in this remote cluster. A help for the
/// scheduler: if it cannot be written, the pod only comes back sooner. At home the
/// real driver is who tells what room there is.
pub(super) async fn note_refusal(site: &Site, order: &Order, sight: &Sight) {
    let Some(claim) = sight.claim.as_ref().filter(|_| site.remote_cluster().is_some()) else {
        return;
    };
    let until = jiff::Timestamp::now().as_second() + REFUSAL_COUNTS;
    let refused = Refused::new(site.cluster().id(), order.spec.size.request(), until);
    let known = claim.annotations().get(mark::REFUSED);
    let known = known.and_then(|text| Refused::parse(text));
    if known.is_some_and(|known| known.counts(site.cluster().id(), until - REFUSAL_COUNTS / 2)) {
        return;
    }
    let patch = json!({"metadata": {
        "uid": claim.uid(),
        "annotations": {mark::REFUSED: refused.to_string()},
    }});
    let claims = site
        .home()
        .within::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
    let noted = crash::around(Step::NoteRefusal, claims.merge(&claim.name_any(), &patch)).await;
    if let Err(error) = noted {
        tracing::warn!(%error, "a refusal could not be noted on the claim");
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
