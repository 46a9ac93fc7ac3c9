//! The labels and annotations of objects that the fabric created or claimed.

/// Label of remote objects of the fabric: the id of the home cluster.
pub(super) const HOME: &str = "fabric.storage.liqo.io/home";
/// Annotation of the same: the uid of the home cluster's namespace kube-system. Two clusters may have chosen the same
/// id.
pub(super) const HOME_UID: &str = "fabric.storage.liqo.io/home-uid";
/// Label of a remote namespace: the namespace at home that is mapped to it.
pub(super) const HOME_NAMESPACE: &str = "fabric.storage.liqo.io/home-namespace";
/// Annotation of a remote namespace: the uid of that namespace.
pub(super) const HOME_NAMESPACE_UID: &str = "fabric.storage.liqo.io/home-namespace-uid";
/// Annotation of a remote pod: namespace and name of the home pod.
pub(super) const HOME_POD: &str = "fabric.storage.liqo.io/home-pod";
/// Annotation of a remote pod: the uid of the home pod.
pub(super) const HOME_POD_UID: &str = "fabric.storage.liqo.io/home-pod-uid";
/// Annotation of a claimed home pod: the id of its remote cluster.
pub(super) const REMOTE_CLUSTER: &str = "fabric.storage.liqo.io/remote-cluster";
/// Annotation of a claimed home pod: the uid of that cluster's namespace kube-system.
pub(super) const REMOTE_CLUSTER_UID: &str = "fabric.storage.liqo.io/remote-cluster-uid";
/// Annotation of a claimed home pod: the remote namespace.
pub(super) const REMOTE_NAMESPACE: &str = "fabric.storage.liqo.io/remote-namespace";
/// Liqo's label of offloaded namespaces: admission policies change their new pods.
pub(super) const SCHEDULING: &str = "liqo.io/scheduling-enabled";
/// Annotation of such a namespace: the fabric has set the label.
pub(super) const SCHEDULING_BY_US: &str = "fabric.storage.liqo.io/scheduling-enabled";
/// Label of a namespace that has the label above from a user and was not offloaded: a policy
/// refuses its pods with a message.
pub(super) const NOT_OFFLOADED: &str = "fabric.storage.liqo.io/not-offloaded";
