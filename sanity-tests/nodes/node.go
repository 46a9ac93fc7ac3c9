// Package nodes creates and runs the nodes of a cluster: each is a network namespace and a mount
// namespace with its own containerd, CNI network and kubelet. Inside, a node has the usual paths:
// /var/lib/kubelet, /run/containerd, /var/log/pods.
//
// Package clusters creates the credentials and runs the API server.
package nodes

import (
	"context"
	"fmt"
	"os/exec"

	"storage.liqo.io/sanity-tests/machine"
)

// Node is a node of a running or starting lab.
type Node struct {
	// Name is also the name of the Node object.
	Name string
	// Cluster is the name of its cluster.
	Cluster string
	// IP is the node's address, PodCIDR the address range of its pods.
	IP      string
	PodCIDR string
	// DNS is the name server of its pods.
	DNS string
	// QuickStatus: kubelet updates the node's status every second, not every ten. A pod with an
	// attached volume starts only when the status names the volume (volumesInUse), and the volume
	// is detached only when it does not any more, so that both are up to ten seconds quicker.
	QuickStatus bool
}

// Paths inside each node.
const (
	KubeletDir = "/var/lib/kubelet"
	// SharedDir is a folder that all nodes of a cluster share.
	SharedDir = "/mnt/shared"
	// ProgramsDir has the programs of the lab.
	ProgramsDir = "/opt/lab/bin"

	containerdConfig = "/var/lib/containerd/config.toml"
	containerdSocket = "/run/containerd/containerd.sock"
	cniConfigDir     = "/var/lib/cni/net.d"
	kubeletConfig    = KubeletDir + "/config.yaml"
	// Package clusters writes Kubeconfig and CertificateDir before kubelet starts.
	Kubeconfig     = KubeletDir + "/kubeconfig"
	CertificateDir = KubeletDir + "/pki"

	proxyConfig = "/var/lib/kube-proxy/config.yaml"
	// Package clusters writes ProxyKubeconfig, too.
	ProxyKubeconfig = "/var/lib/kube-proxy/kubeconfig"
)

// Namespace returns the namespaces of the node's processes.
func (n *Node) Namespace() machine.Namespace {
	return machine.Namespace{Name: n.Name, Dirs: machine.Path("n", n.Name)}
}

// HostPath returns the host's path of a path on the node. Mounts below the node's private folders
// are visible there, too.
func (n *Node) HostPath(path string) string { return n.Namespace().HostPath(path) }

// KubeletRoot returns the host's path of the node's /var/lib/kubelet.
func (n *Node) KubeletRoot() string { return n.HostPath(KubeletDir) }

// ContainerdSocket returns the host's path of containerd's socket.
func (n *Node) ContainerdSocket() string { return n.HostPath(containerdSocket) }

// Command returns a command that runs on the node.
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
