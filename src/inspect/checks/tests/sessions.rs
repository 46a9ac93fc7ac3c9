//! The tokens with which the driver reaches remote clusters.

use serde_json::json;

use super::*;
use crate::inspect::offloading::Offloading;

/// The findings about a cluster with such a token, at noon.
fn found(expires: &str, renews: Option<&str>) -> Vec<Finding> {
    found_after(Some(expires), renews, "Unreachable")
}

/// The same, with this reason of its conditions.
fn found_after(expires: Option<&str>, renews: Option<&str>, reason: &str) -> Vec<Finding> {
    let reachable = json!({
        "type": "Reachable", "status": "False", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let cluster = json!({
        "apiVersion": "storage.liqo.io/v1alpha1", "kind": "RemoteCluster", "metadata": {"name": "milan"},
        "spec": {"kubeconfigSecretRef": {"name": "a"}, "fabric": {}},
        "status": {"credentials": {"kubeconfig": "a", "expires": expires, "renews": renews}, "conditions": [reachable]},
    });
    let installation = Installation {
        now: "2026-01-01T12:00:00Z".parse().unwrap(),
        offloading: Offloading {
            clusters: listing([cluster]),
            ..Offloading::default()
        },
        ..Installation::default()
    };
    crate::inspect::checks::sessions::expiry(&installation)
}

#[test]
fn tokens_that_are_renewed_in_time_are_fine() {
    assert_eq!(found("2026-01-21T12:00:00Z", Some("2026-01-02T12:00:00Z")), []);
    assert_eq!(
        found("2026-01-01T13:00:00Z", Some("2026-01-01T11:30:00Z")),
        [],
        "it is about to be"
    );
    assert_eq!(found("2026-12-31T12:00:00Z", None), []);
}

#[test]
fn tokens_that_end_are_named_with_the_way_out() {
    for (expires, renews, severity, word) in [
        (
            "2026-01-01T11:59:00Z",
            Some("2025-12-01T12:00:00Z"),
            Severity::Error,
            "expired at",
        ),
        (
            "2026-01-20T12:00:00Z",
            Some("2026-01-01T10:00:00Z"),
            Severity::Warning,
            "not renewed in time",
        ),
        // A token of half an hour.
        (
            "2026-01-01T12:12:00Z",
            Some("2026-01-01T11:52:00Z"),
            Severity::Warning,
            "not renewed in time",
        ),
        ("2026-01-03T12:00:00Z", None, Severity::Warning, "cannot renew"),
    ] {
        let [finding] = found(expires, renews).try_into().unwrap();
        assert_eq!(finding.severity, severity);
        assert!(finding.problem.contains(word), "{}", finding.problem);
        assert!(
            finding
                .fix
                .starts_with("liqo-csi connect milan --remote-context CONTEXT gives"),
            "{}",
            finding.fix
        );
    }
}

#[test]
fn tokens_that_are_not_accepted_are_named_with_the_way_out() {
    for expires in [Some("2026-01-21T12:00:00Z"), None] {
        assert_eq!(found_after(expires, expires, "Unreachable"), []);
        let [finding] = found_after(expires, expires, "Unauthorized").try_into().unwrap();
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.problem.contains("does not accept"), "{}", finding.problem);
        assert!(
            finding
                .fix
                .starts_with("liqo-csi connect milan --remote-context CONTEXT gives"),
            "{}",
            finding.fix
        );
    }
}
