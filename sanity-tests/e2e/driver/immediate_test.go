package driver

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// nodeKey is the driver's topology key for nodes.
const nodeKey = "topology.storage.liqo.io/node"

// Without a pod the driver selects the node. The real class allows all nodes.
func TestImmediateClassRespectsAllowedTopologies(t *testing.T) {
	n := home(t)
	_, excluded := twoNodes(t, n)
	allowed := map[string]bool{}
	var names []string
	for _, node := range n.Cluster.Nodes() {
		if node.Name != excluded.Name {
			allowed[node.Name] = true
			names = append(names, node.Name)
		}
	}
	for _, real := range []string{"reference-local", "reference-immediate"} {
		class := n.Name + "-" + real
		virtual := virtualClass(class, map[string]string{"realStorageClass": real})
		virtual.VolumeBindingMode = new(storagev1.VolumeBindingImmediate)
		virtual.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
			{Key: nodeKey, Values: names},
		}}}
		n.Class(virtual)
		for i := range 5 {
			n.Claim(fmt.Sprintf("%s-%d", real, i), class, "64Mi")
		}
		for i := range 5 {
			claim := fmt.Sprintf("%s-%d", real, i)
			found := n.WaitVolume(claim)
			if node := found.Twin.Annotations["volume.kubernetes.io/selected-node"]; !allowed[node] {
				t.Errorf("the selected node of the twin of %s is %q", claim, node)
			}
			if real == "reference-local" {
				continue // its volumes have topology keys of the real driver
			}
			for _, term := range found.Virtual.Spec.NodeAffinity.Required.NodeSelectorTerms {
				if nodes := valuesOf(term, nodeKey); len(nodes) != 1 || !allowed[nodes[0]] {
					t.Errorf("the volume of %s has affinity to the nodes %v", claim, nodes)
				}
			}
		}
		user := real + "-user"
		n.Pod(user, real+"-0")
		if pod := n.WaitReady(user); !allowed[pod.Spec.NodeName] {
			t.Errorf("the pod runs on %s", pod.Spec.NodeName)
		}
	}
}

// valuesOf returns the values of a label in a term.
func valuesOf(term corev1.NodeSelectorTerm, key string) []string {
	for _, expression := range term.MatchExpressions {
		if expression.Key == key {
			return expression.Values
		}
	}
	return nil
}
