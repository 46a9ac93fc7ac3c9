//! Waits until the pods of the controller reach a cluster: only what they say counts, for what is reached
//! from here may not be reached from there.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Home, Outcome, ends::Way, remote_cluster};
use crate::{
    access::fingerprint,
    api::remote_cluster::{READY, RemoteCluster},
    volume::ClusterId,
};

const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What the controller says, as far as it is about this very kubeconfig.
fn said<'a>(object: &'a RemoteCluster, fingerprint: &str) -> Option<(bool, &'a str, &'a str)> {
    let status = object.status.as_ref()?;
    let credentials = status.credentials.as_ref()?;
    let ready = status.conditions.iter().find(|it| it.type_ == READY)?;
    (credentials.kubeconfig == fingerprint && status.observed_generation >= object.metadata.generation)
        .then_some((
            ready.status == "True",
            ready.reason.as_str(),
            ready.message.as_str(),
        ))
}

/// The object, once its cluster is reached by this kubeconfig; `None` if that takes too long, which has
/// been said then.
pub(super) async fn until_reached(
    home: &Home,
    name: &ClusterId,
    kubeconfig: &str,
    way: &Way,
    until: Instant,
) -> Outcome<Option<RemoteCluster>> {
    let fingerprint = fingerprint(kubeconfig.as_bytes());
    let mut shown = String::new();
    println!("Waiting until the pods of the controller reach {} …", way.server);
    loop {
        let Some(object) = remote_cluster(home, name).await? else {
            return Err(format!("somebody has deleted the RemoteCluster {name} just now").into());
        };
        let now = said(&object, &fingerprint);
        if let Some((true, _, _)) = now {
            return Ok(Some(object));
        }
        let words = match now {
            Some((_, reason, message)) => format!("{reason}: {message}"),
            None => "the controller has not looked at it yet".to_owned(),
        };
        if words != shown {
            println!("  {words}");
            shown = words;
        }
        let is_refused = matches!(now, Some((_, "Refused", _)));
        if is_refused || Instant::now() >= until {
            eprint!("{}", trouble(home, name, way, now).await);
            return Ok(None);
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Why it is not reached, and what to do.
async fn trouble(home: &Home, name: &ClusterId, way: &Way, now: Option<(bool, &str, &str)>) -> String {
    let namespace = &home.namespace;
    let Some((_, _, message)) = now else {
        let why = if home.setup().await.is_ready() {
            format!(
                "kubectl -n {namespace} logs -l app.kubernetes.io/component=controller -c liqo-csi says what it does"
            )
        } else {
            format!("no pod of it is ready: kubectl -n {namespace} get pods")
        };
        return format!("{name}: all is made, but the controller has not looked at it in time. {why}\n");
    };
    let lower = message.to_ascii_lowercase();
    let hint = if lower.contains("certificate") {
        format!(
            "The certificate of {} is not what your kubeconfig vouches for: it names another host, or is of another \
             authority. --server names a URL that is in it.",
            way.server
        )
    } else if lower.contains("unauthorized") {
        "It is reached, and does not know the token: is the server that of the same cluster as your kubeconfig?".to_owned()
    } else {
        format!(
            "Pods here reach {} by their own network: see firewalls and DNS, or name another URL by --server.",
            way.server
        )
    };
    format!(
        "{name}: all is made, but the pods of the controller do not reach it: {message}\n{hint}\nRun this again when it is \
         mended; or `liqo-csi disconnect {name}` takes everything back.\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_said_about_another_kubeconfig_does_not_count() {
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
        assert_eq!(said(&object("new", 2), "new"), Some((true, "Usable", "")));
        assert_eq!(said(&object("old", 2), "new"), None);
        assert_eq!(said(&object("new", 1), "new"), None, "about an older spec");
    }
}
