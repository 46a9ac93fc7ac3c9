//! The tokens with which the driver reaches remote clusters.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::Finding;
use crate::{
    api::remote_cluster::{RemoteCluster, UNAUTHORIZED},
    inspect::Installation,
};

/// A renewal may be delayed by this much, or by a third of the rest of the token's life if that is less.
const LONGEST_DELAY: SignedDuration = SignedDuration::from_hours(1);
/// Enough time for an administrator to create another token.
const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Tokens that are not valid, or were not renewed in time.
pub(super) fn expiry(installation: &Installation) -> Vec<Finding> {
    let all = installation.offloading.clusters.iter();
    all.filter_map(|cluster| of_cluster(cluster, installation.now))
        .collect()
}

fn of_cluster(cluster: &RemoteCluster, now: Timestamp) -> Option<Finding> {
    // Liqo or Kosmos renew those of discovered clusters.
    if cluster.spec.discovered_from.is_some() {
        return None;
    }
    let status = cluster.status.as_ref()?;
    let credentials = status.credentials.as_ref()?;
    let name = cluster.name_any();
    let object = format!("RemoteCluster {name}");
    let fix = format!(
        "liqo-csi connect {name} --remote-context CONTEXT gives the driver another token. Pods and volumes there are not affected."
    );
    let moment = |text: &Option<String>| text.as_ref()?.parse::<Timestamp>().ok();
    let (expires, renews) = (moment(&credentials.expires), moment(&credentials.renews));
    let text = credentials.expires.as_deref().unwrap_or_default();
    if expires.is_some_and(|at| at <= now) {
        let problem = format!("The token with which the driver reaches the cluster expired at {text}.");
        return Some(Finding::error(object, problem, fix));
    }
    if status.conditions.iter().any(|one| one.reason == UNAUTHORIZED) {
        let problem =
            "The cluster does not accept the token or certificate with which the driver reaches it.";
        return Some(Finding::error(object, problem, fix));
    }
    let expires = expires?;
    match renews {
        Some(renews) if is_overdue(renews, expires, now) => Some(Finding::warning(
            object,
            format!(
                "The token with which the driver reaches the cluster was not renewed in time; it expires at {text}. The log of the \
                 controller says why (token of a remote cluster)."
            ),
            fix,
        )),
        None if expires.duration_since(now) < SOON => Some(Finding::warning(
            object,
            format!(
                "The token with which the driver reaches the cluster expires at {text}, and the driver cannot renew it: it is not \
                 bound to the Secret liqo-csi-session there."
            ),
            fix,
        )),
        _ => None,
    }
}

fn is_overdue(renews: Timestamp, expires: Timestamp, now: Timestamp) -> bool {
    let rest = expires.duration_since(renews);
    now.duration_since(renews) > LONGEST_DELAY.min(rest / 3)
}
