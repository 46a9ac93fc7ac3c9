package clusters

import (
	"fmt"
	"io"
	"regexp"
)

// ClusterSpec describes a cluster.
type ClusterSpec struct {
	Name  string
	Nodes int
	// QuickNodes is how many of them, the first ones, have a kubelet that updates their status every
	// second (nodes.Node.QuickStatus).
	QuickNodes int `json:",omitempty"`
	// Port of the API server on the host's loopback; 0: a free one.
	Port int `json:",omitempty"`
}

func (s ClusterSpec) String() string { return fmt.Sprintf("%s with %d nodes", s.Name, s.Nodes) }

// Options of a lab.
type Options struct {
	// Clusters defaults to DefaultClusters.
	Clusters []ClusterSpec
	// Progress gets a line per step; nil discards them.
	Progress io.Writer
}

// DefaultClusters returns the clusters that most tests need.
func DefaultClusters() []ClusterSpec {
	return []ClusterSpec{{Name: "home", Nodes: 2}, {Name: "remote", Nodes: 1}}
}

var clusterName = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)

const (
	maxNodes    = 30
	maxClusters = 8
)

func (o *Options) complete() error {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if len(o.Clusters) == 0 {
		o.Clusters = DefaultClusters()
	}
	if len(o.Clusters) > maxClusters {
		return fmt.Errorf("%d clusters are too many: the lab has addresses for %d", len(o.Clusters), maxClusters)
	}
	seen := map[string]bool{}
	for _, spec := range o.Clusters {
		switch {
		case !clusterName.MatchString(spec.Name):
			return fmt.Errorf("cluster name %q: use a lowercase letter followed by up to 15 lowercase letters and digits", spec.Name)
		case seen[spec.Name]:
			return fmt.Errorf("two clusters are named %q", spec.Name)
		case spec.Nodes < 1 || spec.Nodes > maxNodes:
			return fmt.Errorf("cluster %s: %d nodes; from 1 to %d are possible", spec.Name, spec.Nodes, maxNodes)
		case spec.QuickNodes < 0 || spec.QuickNodes > spec.Nodes:
			return fmt.Errorf("cluster %s: %d quick nodes of %d", spec.Name, spec.QuickNodes, spec.Nodes)
		case spec.Port < 0 || spec.Port > 65535:
			return fmt.Errorf("cluster %s: %d is not a port", spec.Name, spec.Port)
		}
		seen[spec.Name] = true
	}
	return nil
}
