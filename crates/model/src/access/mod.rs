//! The identity of a home cluster in a remote one: the manifests of each level, and its tokens. API calls are
//! in the commands: `liqo-csi connect` creates it, `liqo-csi disconnect` deletes it.

mod address;
mod fingerprint;
mod leaving;
mod level;
mod manifests;
mod token;

pub use self::{
    address::{UnusableAddress, for_pods},
    fingerprint::fingerprint,
    leaving::{BlockerText, DisconnectBlocker, may_disconnect},
    level::{Level, LevelError},
    manifests::{Identity, NamespaceName, NamespaceNameError, ObjectRef, document, every, render},
    token::TokenFacts,
};

#[cfg(any(test, feature = "testkit"))]
pub use self::token::token_saying;

/// The service account in the remote cluster, as the chart names it.
pub const ACCOUNT: &str = "liqo-csi-remote";
/// The Secret in the remote cluster that all tokens of the account are bound to.
pub const SESSION: &str = "liqo-csi-session";
/// Value of the label `app.kubernetes.io/managed-by` on every object that `liqo-csi connect` creates.
pub const MANAGED_BY_CONNECT: &str = "liqo-csi-connect";
/// Annotation of that account: the level of its rights.
pub const LEVEL: &str = "storage.liqo.io/level";
/// Annotation of that account: the longest lifetime of a token in seconds that the admission policy allows.
pub const TOKEN_SECONDS: &str = "storage.liqo.io/token-seconds";
/// Annotation of that account: the home cluster to which it belongs.
pub const HOME: &str = crate::volume::mark::HOME_CLUSTER;
/// Annotation of the Secret at home with the kubeconfig: the uid of the namespace kube-system of the cluster
/// that the kubeconfig connects to.
pub const CLUSTER_UID: &str = "storage.liqo.io/cluster-uid";

/// The longest lifetime of a token in seconds: the admission policy in the remote cluster refuses more.
pub const LONGEST_TOKEN: u64 = 30 * 24 * 3600;
/// The Secret at home in which the controller keeps kubeconfigs with renewed tokens.
pub const RENEWED: &str = "liqo-csi-sessions";

/// Key in that Secret of the renewed kubeconfig of a cluster.
#[must_use]
pub fn renewed_key(cluster: &str) -> String {
    format!("kubeconfig_{cluster}")
}

/// Key in that Secret of the fingerprint of the kubeconfig from which it was renewed. The renewed one is used
/// only while the user's kubeconfig has this fingerprint.
#[must_use]
pub fn seed_key(cluster: &str) -> String {
    format!("seed_{cluster}")
}
