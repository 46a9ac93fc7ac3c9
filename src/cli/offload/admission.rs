//! Whether the API server admits pods of a namespace that was offloaded just now.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube::api::ObjectMeta;
use tokio::time::{Instant, sleep};

use crate::cluster::{ApiError, Cluster, Objects};

/// API servers look every 30 s for kinds that policies have as parameters. Until an API server has found
/// `NamespaceOffloading`, which the chart may have created just now, it refuses the namespace's pods.
const ADMISSION_TIMEOUT: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_secs(1);
/// What the refusals contain: the name of a policy of the chart, or the text of another one.
const TOO_EARLY: [&str; 2] = [
    "namespace-waits-for-its-namespaceoffloading",
    "the namespace was offloaded just now",
];

/// Waits until a dry run that creates a pod is not refused any more because the namespace was offloaded
/// just now; returns the refusal if it is still refused.
pub(super) async fn wait(cluster: &Cluster, namespace: &str) -> Option<ApiError> {
    wait_until(cluster, namespace, Instant::now() + ADMISSION_TIMEOUT).await
}

async fn wait_until(cluster: &Cluster, namespace: &str, until: Instant) -> Option<ApiError> {
    let pods: Objects<Pod> = cluster.within(namespace);
    loop {
        // Other refusals do not depend on the offloading: a user may not be allowed to create pods.
        let refusal = pods.try_create(&pod()).await.err().filter(is_too_early)?;
        if Instant::now() >= until {
            return Some(refusal);
        }
        sleep(PAUSE).await;
    }
}

fn is_too_early(refusal: &ApiError) -> bool {
    let text = refusal.to_string();
    TOO_EARLY.iter().any(|part| text.contains(part))
}

fn pod() -> Pod {
    let container = Container {
        name: "test".to_owned(),
        image: Some("test".to_owned()),
        ..Container::default()
    };
    Pod {
        metadata: ObjectMeta {
            generate_name: Some("liqo-csi-offload-".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container],
            ..PodSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{Act, FakeApi, Fault};

    const NO_PARAMS: &str = "ValidatingAdmissionPolicy 'namespace-waits-for-its-namespaceoffloading.storage.liqo.io' \
                             denied request: no params found";

    #[tokio::test]
    async fn only_refusals_for_missing_policy_params_are_waited_for() {
        let api = FakeApi::start().await;
        let cluster = api.cluster_unwatched().await;
        api.fault(Fault::new("POST", "namespaces/shop/pods", Act::Forbid(NO_PARAMS)).times(1));
        assert!(wait(&cluster, "shop").await.is_none());
        assert_eq!(api.faults_left(), 0);
        api.fault(Fault::new("POST", "namespaces/shop/pods", Act::Forbid("quota")));
        assert!(wait(&cluster, "shop").await.is_none());
        api.heal();
        api.fault(Fault::new("POST", "namespaces/shop/pods", Act::Forbid(NO_PARAMS)));
        let refusal = wait_until(&cluster, "shop", Instant::now()).await;
        let refusal = refusal.map(|it| it.to_string());
        assert!(refusal.is_some_and(|it| it.contains("no params found")));
    }
}
