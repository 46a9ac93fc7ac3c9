package nodes

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"storage.liqo.io/sanity-tests/machine"
)

// Ensure creates the node's namespaces and configuration. bin is the folder of the programs, shared
// the host's folder for SharedDir.
func (n *Node) Ensure(bin, shared string) error {
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return fmt.Errorf("create the shared folder of %s: %w", n.Cluster, err)
	}
	if err := n.Namespace().Ensure(map[string]string{bin: ProgramsDir, shared: SharedDir}); err != nil {
		return err
	}
	cgroup, err := machine.EnsureCgroup(n.Name)
	if err != nil {
		return fmt.Errorf("prepare node %s: %w", n.Name, err)
	}
	for path, content := range map[string]string{
		containerdConfig:                  containerdToml,
		cniConfigDir + "/10-lab.conflist": cniConflist(n.PodCIDR),
		kubeletConfig:                     n.kubeletYaml(cgroup),
		proxyConfig:                       n.proxyYaml(),
	} {
		file := n.HostPath(path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("configure node %s: %w", n.Name, err)
		}
		if err := machine.WriteFile(file, []byte(content), 0o644); err != nil {
			return fmt.Errorf("configure node %s: %w", n.Name, err)
		}
	}
	return nil
}

// ContainerdSpec returns how the node's containerd is started.
func (n *Node) ContainerdSpec() machine.Spec {
	return machine.Spec{
		Name:      n.Containerd(),
		Namespace: n.Namespace(),
		Command:   []string{ProgramsDir + "/containerd", "--config", containerdConfig},
		Env:       []string{"PATH=" + ProgramsDir + ":/usr/sbin:/usr/bin:/sbin:/bin"},
	}
}

// KubeletSpec returns how the node's kubelet is started.
func (n *Node) KubeletSpec() machine.Spec {
	return machine.Spec{
		Name:      n.Kubelet(),
		Namespace: n.Namespace(),
		Command: []string{
			ProgramsDir + "/kubelet",
			"--config=" + kubeletConfig,
			"--kubeconfig=" + Kubeconfig,
			"--hostname-override=" + n.Name,
			"--node-ip=" + n.IP,
			"--root-dir=" + KubeletDir,
			"--node-labels=topology.kubernetes.io/region=lab,topology.kubernetes.io/zone=" + n.Cluster,
		},
		Env: []string{"PATH=" + ProgramsDir + ":/usr/sbin:/usr/bin:/sbin:/bin"},
	}
}

// KubeProxySpec returns how the node's kube-proxy is started.
func (n *Node) KubeProxySpec() machine.Spec {
	return machine.Spec{
		Name:      n.KubeProxy(),
		Namespace: n.Namespace(),
		Command:   []string{ProgramsDir + "/kube-proxy", "--config=" + proxyConfig},
		Env:       []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, // it runs nft
	}
}

// LeadsTo succeeds when kube-proxy has created the node's rules for the address of a service.
func (n *Node) LeadsTo(ctx context.Context, service string) error {
	out, err := n.Command(ctx, "nft", "list", "map", "ip", "kube-proxy", "service-ips").CombinedOutput()
	if err != nil {
		return fmt.Errorf("look at the services of node %s: %w: %s", n.Name, err, bytes.TrimSpace(out))
	}
	if !bytes.Contains(out, []byte(service+" ")) {
		return fmt.Errorf("node %s does not know the service %s yet", n.Name, service)
	}
	return nil
}

// ContainerdAnswers succeeds when containerd accepts connections.
func (n *Node) ContainerdAnswers(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", n.ContainerdSocket())
	if err != nil {
		return err
	}
	return conn.Close()
}
