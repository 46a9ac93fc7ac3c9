//! Waits until the controller reports that its pods reach a cluster. That the user's machine reaches
//! it does not prove that.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tokio::time::{Instant, sleep};

use super::{Home, Outcome, ends::Endpoint, remote_cluster};
use crate::{
    access::fingerprint,
    api::remote_cluster::{READY, RemoteCluster},
    volume::ClusterId,
};

const POLL: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 500 });

/// The condition Ready, if the controller wrote it for this kubeconfig.
fn reported<'a>(object: &'a RemoteCluster, fingerprint: &str) -> Option<&'a Condition> {
    let status = object.status.as_ref()?;
    let credentials = status.credentials.as_ref()?;
    let is_current =
        credentials.kubeconfig == fingerprint && status.observed_generation >= object.metadata.generation;
    condition(object).filter(|_| is_current)
}

/// The condition Ready, for whatever kubeconfig.
fn condition(object: &RemoteCluster) -> Option<&Condition> {
    let conditions = &object.status.as_ref()?.conditions;
    conditions.iter().find(|it| it.type_ == READY)
}

/// Whether waiting does not help.
fn is_refused(now: Option<&Condition>) -> bool {
    now.is_some_and(|it| it.reason == "Refused")
}

/// The object, once the controller reaches its cluster by this kubeconfig; `None` if it does not in
/// time, after printing the reason.
pub(super) async fn until_reached(
    home: &Home,
    name: &ClusterId,
    kubeconfig: &str,
    endpoint: &Endpoint,
    until: Instant,
) -> Outcome<Option<RemoteCluster>> {
    let fingerprint = fingerprint(kubeconfig.as_bytes());
    let mut shown = String::new();
    println!(
        "Waiting until the pods of the controller reach {} …",
        endpoint.server
    );
    loop {
        let Some(object) = remote_cluster(home, name).await? else {
            return Err(format!("the RemoteCluster {name} was deleted while this command waited").into());
        };
        let now = reported(&object, &fingerprint);
        if now.is_some_and(|it| it.status == "True") {
            return Ok(Some(object));
        }
        let words = match now {
            Some(ready) => format!("{}: {}", ready.reason, ready.message),
            None => "the controller has not tried it yet".to_owned(),
        };
        if words != shown {
            println!("  {words}");
            shown = words;
        }
        if is_refused(now) || Instant::now() >= until {
            eprint!("{}", explain(home, name, endpoint, &object, now).await);
            return Ok(None);
        }
        sleep(POLL).await;
    }
}

/// Why the cluster is not reached, and what to do.
async fn explain(
    home: &Home,
    name: &ClusterId,
    endpoint: &Endpoint,
    object: &RemoteCluster,
    now: Option<&Condition>,
) -> String {
    let namespace = &home.namespace;
    let Some(Condition { message, .. }) = now else {
        let why = if !home.setup().await.is_ready() {
            format!("No pod of it is ready: kubectl -n {namespace} get pods")
        } else if let Some(ready) = condition(object).filter(|it| it.status != "True") {
            format!("It reports {}: {}", ready.reason, ready.message)
        } else {
            format!(
                "See its log: kubectl -n {namespace} logs -l app.kubernetes.io/component=controller -c driver"
            )
        };
        return format!(
            "{name}: all objects exist, but the controller has not tried the new kubeconfig in time. {why}\n"
        );
    };
    if is_refused(now) {
        return format!(
            "{name}: all objects exist, but the driver refuses the cluster: {message}\nFix that, and run this again; or `liqo-csi \
             disconnect {name} --remote-context CONTEXT` deletes everything.\n"
        );
    }
    let lower = message.to_ascii_lowercase();
    let hint = if lower.contains("certificate") {
        format!(
            "The certificate of {} is for another host, or of another certificate authority than the one in the Secret. \
             --server names a URL that the certificate is for, or this one, with its authority in your kubeconfig \
             (certificate-authority-data).",
            endpoint.server
        )
    } else if lower.contains("unauthorized") {
        "The server answers, but does not know the token: is it the API server of the same cluster as your kubeconfig?".to_owned()
    } else {
        format!(
            "Pods here reach {} by their own network: check firewalls and DNS, or name another URL by --server.",
            endpoint.server
        )
    };
    format!(
        "{name}: all objects exist, but the pods of the controller do not reach the cluster: {message}\n{hint}\nThen run this \
         again; or `liqo-csi disconnect {name} --remote-context CONTEXT` deletes everything.\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::connect::tests::Two;

    #[tokio::test]
    async fn the_network_is_not_the_cause_of_a_refusal() {
        let two = Two::new().await;
        let (home, _) = two.ends().await;
        let endpoint = Endpoint {
            server: "https://192.0.2.1".to_owned(),
            authority: None,
            tls_server_name: None,
        };
        let object = serde_json::from_value(json!({"metadata": {}, "spec": {}})).unwrap();
        for (reason, is_network) in [("Unreachable", true), ("Refused", false)] {
            let now = serde_json::from_value(json!({
                "type": "Ready", "status": "False", "reason": reason, "message": "no",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }));
            let now: Condition = now.unwrap();
            let text = explain(&home, &"milan".parse().unwrap(), &endpoint, &object, Some(&now)).await;
            assert_eq!(text.contains("firewalls"), is_network, "{text}");
        }
    }

    #[test]
    fn a_condition_about_another_kubeconfig_or_spec_is_ignored() {
        let object = |fingerprint: &str, generation: i64| -> RemoteCluster {
            serde_json::from_value(json!({
                "metadata": {"name": "milan", "generation": 2},
                "spec": {"kubeconfigSecretRef": {"name": "a"}, "fabric": {}},
                "status": {
                    "observedGeneration": generation,
                    "credentials": {"kubeconfig": fingerprint},
                    "conditions": [{
                        "type": "Ready", "status": "True", "reason": "Usable", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }],
                },
            }))
            .unwrap()
        };
        let reason = |object: &RemoteCluster| reported(object, "new").map(|it| it.reason.clone());
        assert_eq!(reason(&object("new", 2)).as_deref(), Some("Usable"));
        assert_eq!(reason(&object("old", 2)), None);
        assert_eq!(reason(&object("new", 1)), None, "about an older spec");
    }
}
