package clusters

import (
	"fmt"
	"io"
	"regexp"
)

// ClusterSpec is what one can choose about a cluster.
type ClusterSpec struct {
	Name  string
	Nodes int
	// Port is where the API server listens on the host's loopback; 0 takes a
	// free one.
	Port int `json:",omitempty"`
}

// String describes the cluster for people.
func (s ClusterSpec) String() string { return fmt.Sprintf("%s with %d nodes", s.Name, s.Nodes) }

// Options are what one can choose about a lab.
type Options struct {
	// Clusters defaults to home with two nodes and remote with one.
	Clusters []ClusterSpec
	// Progress is told what happens; nil for nobody.
	Progress io.Writer
}

// DefaultClusters is the lab that most tests want.
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
		case spec.Port < 0 || spec.Port > 65535:
			return fmt.Errorf("cluster %s: %d is not a port", spec.Name, spec.Port)
		}
		seen[spec.Name] = true
	}
	return nil
}
