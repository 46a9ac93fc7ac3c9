// Package clusters is the lab: it starts clusters on this machine, finds running ones, kills and
// restarts components, cuts the link between clusters, and imports images.
//
// Package machine has the namespaces and processes, package nodes the nodes, package components the
// programs.
package clusters

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/faults"
	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/nodes"
	"storage.liqo.io/sanity-tests/pki"
)

// Lab is a set of clusters on this machine.
type Lab struct {
	clusters []*Cluster
	bin      components.Binaries
}

// Cluster is a cluster of the lab.
type Cluster struct {
	spec ClusterSpec
	lab  *Lab
	// index of the cluster in the lab; it determines the addresses.
	index int
	// port of the API server on the host's loopback.
	port  int
	nodes []*nodes.Node
}

// record is the lab's description in the state directory.
type record struct {
	Clusters []ClusterSpec
	Ports    []int
	Bin      components.Binaries
}

func recordFile() string { return machine.Path("lab.json") }

// ErrNoLab: no lab is running.
var ErrNoLab = errors.New("no lab on this machine: start one with `make lab-up`")

// Load reads the record of the lab on this machine.
func Load() (*Lab, error) {
	content, err := os.ReadFile(recordFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoLab
	}
	if err != nil {
		return nil, fmt.Errorf("read the lab's record: %w", err)
	}
	var known record
	if err := json.Unmarshal(content, &known); err != nil {
		return nil, fmt.Errorf("read the lab's record: %w", err)
	}
	return newLab(known), nil
}

func newLab(known record) *Lab {
	lab := &Lab{bin: known.Bin}
	for index, spec := range known.Clusters {
		cluster := &Cluster{spec: spec, lab: lab, index: index, port: known.Ports[index]}
		for number := 1; number <= spec.Nodes; number++ {
			cluster.nodes = append(cluster.nodes, &nodes.Node{
				Name:    fmt.Sprintf("%s-%d", spec.Name, number),
				Cluster: spec.Name,
				IP:      cluster.nodeIP(number),
				PodCIDR: cluster.podCIDR(number),
				DNS:     cluster.dnsServiceIP(),

				QuickStatus: number <= spec.QuickNodes,
			})
		}
		lab.clusters = append(lab.clusters, cluster)
	}
	return lab
}

func (l *Lab) save() error {
	known := record{Bin: l.bin}
	for _, cluster := range l.clusters {
		known.Clusters = append(known.Clusters, cluster.spec)
		known.Ports = append(known.Ports, cluster.port)
	}
	content, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		return err
	}
	if err := machine.WriteFile(recordFile(), content, 0o644); err != nil {
		return fmt.Errorf("write the lab's record: %w", err)
	}
	return nil
}

// Clusters returns all clusters of the lab; the first is home.
func (l *Lab) Clusters() []*Cluster { return l.clusters }

// Cluster returns a cluster by name.
func (l *Lab) Cluster(name string) (*Cluster, error) {
	for _, cluster := range l.clusters {
		if cluster.Name() == name {
			return cluster, nil
		}
	}
	return nil, fmt.Errorf("the lab has no cluster %q", name)
}

// Binaries returns the folder of the lab's programs.
func (l *Lab) Binaries() components.Binaries { return l.bin }

// Proxy returns a client of the fault proxy between the first cluster and the second.
func (l *Lab) Proxy() *faults.Client {
	if len(l.clusters) < 2 {
		return faults.NewClient(faultsSocket(), "")
	}
	return l.clusters[1].Proxy()
}

// Proxy returns a client of the fault proxy between the first cluster and this one.
func (c *Cluster) Proxy() *faults.Client { return faults.NewClient(faultsSocket(), c.Name()) }

func faultsSocket() string { return machine.Path("faults.sock") }

// Name returns the cluster's name.
func (c *Cluster) Name() string { return c.spec.Name }

// Nodes returns the cluster's nodes.
func (c *Cluster) Nodes() []*nodes.Node { return slices.Clone(c.nodes) }

// Node returns a node by name.
func (c *Cluster) Node(name string) (*nodes.Node, error) {
	for _, node := range c.nodes {
		if node.Name == name {
			return node, nil
		}
	}
	return nil, fmt.Errorf("cluster %s has no node %q", c.Name(), name)
}

// dir returns a path in the cluster's folder in the state directory.
func (c *Cluster) dir(names ...string) string {
	return machine.Path(append([]string{c.Name()}, names...)...)
}

func (c *Cluster) pki() pki.Dir { return pki.Dir(c.dir("pki")) }

// Kubeconfig returns the administrator's kubeconfig for the host.
func (c *Cluster) Kubeconfig() string { return c.dir("admin.kubeconfig") }

// ProxyKubeconfig returns the administrator's kubeconfig for pods and nodes of the first cluster,
// through the fault proxy.
func (c *Cluster) ProxyKubeconfig() string { return c.dir("via-proxy.kubeconfig") }

// AuditLog returns the API server's audit log, in JSON lines.
func (c *Cluster) AuditLog() string { return c.dir("audit.log") }

// SharedDir returns the host's path of nodes.SharedDir of all nodes of the cluster.
func (c *Cluster) SharedDir() string { return c.dir("shared") }

// Config returns the administrator's client configuration, without a client-side rate limit.
func (c *Cluster) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("create a client of cluster %s: %w", c.Name(), err)
	}
	config.QPS = -1
	return config, nil
}

// Client returns a client with the administrator's rights.
func (c *Cluster) Client() (kubernetes.Interface, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client of cluster %s: %w", c.Name(), err)
	}
	return client, nil
}
