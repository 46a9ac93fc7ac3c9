package nodeconformance

// skipped are specs that are run in neither cluster: they take half an hour to measure kubelet's
// back-off for a container that exits, which is at most a second in the lab.
const skipped = `back-off`

const (
	hostPath    = "its pods have hostPath volumes, which have a meaning in their own cluster only"
	hostNetwork = "its pods have the network of their node, which has a meaning in their own cluster only"
)

// expected are the specs that pass in the remote cluster and not through the virtual node, with the
// reason. docs/offloading-reference.md documents them.
var expected = map[string]string{
	"Downward API should provide host IP and pod IP as an env var if pod uses host network": hostNetwork,
	"HostPath should give a volume the correct mode":                                        hostPath,
	"HostPath should support r-w":                                                           hostPath,
	"HostPath should support subPath":                                                       hostPath,
	"Kubelet with pods in a privileged namespace when scheduling an agnhost Pod with hostAliases and hostNetwork should write entries to -etc-hosts when hostNetwork is enabled": hostNetwork,
	"KubeletManagedEtcHosts should test kubelet managed -etc-hosts file":                hostPath,
	"Networking Granular Checks: Pods should function for node-pod communication: http": hostNetwork,
	"Pods should get a host IP": "status.hostIP is empty: the address of the node there leads nowhere from home",
	"Sysctls should not launch unsafe, but not explicitly enabled sysctls on the node": "the policies in the remote cluster refuse the pod before a kubelet does",
}
