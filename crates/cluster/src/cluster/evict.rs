//! Evicts a pod: Kubernetes deletes it, unless a `PodDisruptionBudget` or a webhook forbids that for now.

use http::{Request, header::CONTENT_TYPE};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, core::Status};
use serde_json::json;

use super::{ApiError, Cluster, api::bounded, short};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The pod is being deleted, or gone.
    Accepted,
    /// The pod stays for now, for this reason.
    Refused(String),
}

impl Cluster {
    /// Evicts exactly this pod, or only checks by a dry run whether that would be accepted.
    pub async fn evict(
        &self,
        namespace: &str,
        pod: &str,
        uid: &str,
        only_ask: bool,
    ) -> Result<Eviction, ApiError> {
        let described = || format!("Pod {namespace}/{pod}");
        let asks = if only_ask { "?dryRun=All" } else { "" };
        let path = format!("{}/{pod}/eviction{asks}", Pod::url_path(&(), Some(namespace)));
        // The request type of kube names the options differently from the API, so that the uid would be
        // ignored.
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        });
        let ask = || async {
            let request = Request::post(&path)
                .header(CONTENT_TYPE, "application/json")
                .body(eviction.to_string().into_bytes())
                .map_err(kube::Error::HttpError)?;
            let status = match self.client().request::<Status>(request).await {
                Ok(status) if !status.is_failure() => return Ok(Eviction::Accepted),
                // Two budgets for one pod are answered with the code 201 and this as the object.
                Ok(failure) => Box::new(failure),
                Err(kube::Error::Api(status)) => status,
                Err(other) => return Err(other),
            };
            match status.code {
                // The pod is gone, or another one has its name by now.
                404 | 409 => Ok(Eviction::Accepted),
                _ if is_refused(&status) => Ok(Eviction::Refused(short(&status.message))),
                _ => Err(kube::Error::Api(status)),
            }
        };
        bounded(self.calls(), self.id().as_str(), "evict", described, ask).await
    }
}

/// Whether a budget, a policy or a webhook forbids the eviction. Two budgets for one pod are reported as an error of the
/// server, which lasts.
fn is_refused(status: &Status) -> bool {
    match status.code {
        400 | 403 | 422 | 429 => true,
        code => code == 500 && status.message.contains("more than one PodDisruptionBudget"),
    }
}
