//! The marks by which the fabric knows what it made, at home and in remote clusters.

/// Label of what the fabric made in a remote cluster: the id of the home cluster.
pub(super) const HOME: &str = "fabric.storage.liqo.io/home";
/// Annotation of it: the uid of that home cluster's namespace kube-system. Ids may be chosen,
/// and two clusters choose the same.
pub(super) const HOME_UID: &str = "fabric.storage.liqo.io/home-uid";
/// Label of a remote namespace: the namespace at home that it was made for.
pub(super) const HOME_NAMESPACE: &str = "fabric.storage.liqo.io/home-namespace";
/// Annotation of a remote namespace: the uid of the namespace that it was made for.
pub(super) const HOME_NAMESPACE_UID: &str = "fabric.storage.liqo.io/home-namespace-uid";
/// Annotation of a remote pod: namespace and name of the pod at home that it runs for.
pub(super) const HOME_POD: &str = "fabric.storage.liqo.io/home-pod";
/// Annotation of a remote pod: the uid of that pod.
pub(super) const HOME_POD_UID: &str = "fabric.storage.liqo.io/home-pod-uid";
/// Annotation of a home pod that may run in a remote cluster: the cluster's id.
pub(super) const REMOTE_CLUSTER: &str = "fabric.storage.liqo.io/remote-cluster";
/// Annotation of such a pod: the uid of that cluster's namespace kube-system.
pub(super) const REMOTE_CLUSTER_UID: &str = "fabric.storage.liqo.io/remote-cluster-uid";
/// Annotation of such a pod: the namespace there.
pub(super) const REMOTE_NAMESPACE: &str = "fabric.storage.liqo.io/remote-namespace";
/// Label of a home namespace whose new pods are what its `NamespaceOffloading` makes of them. As
/// Liqo's.
pub(super) const SCHEDULING: &str = "liqo.io/scheduling-enabled";
/// Annotation of such a namespace: the label was put on by the fabric.
pub(super) const SCHEDULING_BY_US: &str = "fabric.storage.liqo.io/scheduling-enabled";
