// Package nodes makes and runs the nodes of a cluster: each one a network and a
// mount namespace with its own containerd, CNI network and kubelet. Inside, a
// node looks like any other: /var/lib/kubelet, /run/containerd, /var/log/pods.
//
// Credentials and the API server come from package clusters.
package nodes

import (
	"context"
	"fmt"
	"os/exec"

	"storage.liqo.io/sanity-tests/machine"
)

// Node is one node of a running or starting lab.
type Node struct {
	// Name is also the name of the Node object.
	Name string
	// Cluster is the name of the cluster it belongs to.
	Cluster string
	// IP is the node's own address, PodCIDR where its pods get theirs.
	IP      string
	PodCIDR string
	// DNS is where its pods ask for names.
	DNS string
	// QuickStatus: kubelet updates the node's status every second, not every ten. A pod with an
	// attached volume starts only when the status names the volume (volumesInUse), and the volume
	// is detached only when it does not any more, so that both are up to ten seconds quicker.
	QuickStatus bool
}

// Paths inside every node.
const (
	KubeletDir = "/var/lib/kubelet"
	// SharedDir is one folder for all nodes of a cluster.
	SharedDir = "/mnt/shared"
	// ProgramsDir has the programs that the lab is made of.
	ProgramsDir = "/opt/lab/bin"

	containerdConfig = "/var/lib/containerd/config.toml"
	containerdSocket = "/run/containerd/containerd.sock"
	cniConfigDir     = "/var/lib/cni/net.d"
	kubeletConfig    = KubeletDir + "/config.yaml"
	// Kubeconfig and CertificateDir are what package clusters fills in before
	// the kubelet starts.
	Kubeconfig     = KubeletDir + "/kubeconfig"
	CertificateDir = KubeletDir + "/pki"

	proxyConfig = "/var/lib/kube-proxy/config.yaml"
	// ProxyKubeconfig is filled in by package clusters, too.
	ProxyKubeconfig = "/var/lib/kube-proxy/kubeconfig"
)

// Namespace is where the node's processes run.
func (n *Node) Namespace() machine.Namespace {
	return machine.Namespace{Name: n.Name, Dirs: machine.Path("n", n.Name)}
}

// HostPath is where a path of the node is on the host. Mounts that are made
// below the node's own folders are visible there, too.
func (n *Node) HostPath(path string) string { return n.Namespace().HostPath(path) }

// KubeletRoot is where the node's /var/lib/kubelet is on the host.
func (n *Node) KubeletRoot() string { return n.HostPath(KubeletDir) }

// ContainerdSocket is where the node's containerd listens, on the host.
func (n *Node) ContainerdSocket() string { return n.HostPath(containerdSocket) }

// Command prepares a command that runs on the node.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return n.Namespace().Command(ctx, name, args...)
}

// Containerd is the name of the node's containerd process.
func (n *Node) Containerd() string { return n.process("containerd") }

// Kubelet is the name of the node's kubelet process.
func (n *Node) Kubelet() string { return n.process("kubelet") }

// KubeProxy is the name of the node's kube-proxy process.
func (n *Node) KubeProxy() string { return n.process("kube-proxy") }

func (n *Node) process(program string) string {
	return fmt.Sprintf("%s/%s@%s", n.Cluster, program, n.Name)
}
