//! What a home cluster has in a remote one: an identity with the rights of a level, and tokens of it.
//! `liqo-csi connect` creates it, `liqo-csi disconnect` deletes it.

mod address;
mod fingerprint;
mod leaving;
mod level;
mod manifests;
mod token;

pub use self::{
    address::{Unusable, for_pods},
    fingerprint::fingerprint,
    leaving::{Held, Holding, may_disconnect},
    level::{Level, LevelError},
    manifests::{Identity, NamespaceName, NamespaceNameError, ObjectRef, document, every, render},
    token::TokenFacts,
};

#[cfg(any(test, feature = "testkit"))]
pub use self::token::token_saying;

/// The service account in the remote cluster, as the chart names it.
pub const ACCOUNT: &str = "liqo-csi-remote";
/// The Secret there that all tokens of the account are bound to.
pub const SESSION: &str = "liqo-csi-session";
/// Value of the label `app.kubernetes.io/managed-by` on all that `liqo-csi connect` creates.
pub const MANAGED_BY_CONNECT: &str = "liqo-csi-connect";
/// Annotation of the account there: the level of its rights.
pub const LEVEL: &str = "storage.liqo.io/level";
/// Annotation of the account there: the longest life of a token in seconds that its policy allows.
pub const TOKEN_SECONDS: &str = "storage.liqo.io/token-seconds";
/// Annotation of the account there: the home cluster to which it belongs.
pub const HOME: &str = crate::volume::mark::HOME_CLUSTER;
/// Annotation of the Secret at home with the kubeconfig: the uid of the namespace kube-system of the
/// cluster that it leads to.
pub const CLUSTER_UID: &str = "storage.liqo.io/cluster-uid";

/// The longest that a token may be valid, in seconds: the policy there refuses more.
pub const LONGEST_TOKEN: u64 = 30 * 24 * 3600;
/// The Secret at home in which the controller keeps the kubeconfigs with the tokens that it has renewed.
pub const RENEWED: &str = "liqo-csi-sessions";

/// Key of that Secret under which the renewed kubeconfig of a cluster is.
#[must_use]
pub fn renewed_key(cluster: &str) -> String {
    format!("kubeconfig_{cluster}")
}

/// Key of that Secret with the fingerprint of the kubeconfig from which it was renewed. The renewed one is
/// used only while the written one has this fingerprint.
#[must_use]
pub fn seed_key(cluster: &str) -> String {
    format!("seed_{cluster}")
}
