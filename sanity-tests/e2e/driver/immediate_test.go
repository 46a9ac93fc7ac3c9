package driver

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/driver"
)

// nodeKey is on real nodes; allowedTopologies of classes of the driver use it.
const nodeKey = "topology.storage.liqo.io/node"

// No pod chooses the node here, and the real class could use every one.
func TestImmediateClassKeepsToItsAllowedTopologies(t *testing.T) {
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
	immediate := storagev1.VolumeBindingImmediate
	for _, real := range []string{"reference-local", "reference-immediate"} {
		class := n.Name + "-" + real
		n.Class(&storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: driver.CSIName, VolumeBindingMode: &immediate,
			Parameters: map[string]string{"realStorageClass": real},
			AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
				{Key: nodeKey, Values: names},
			}}},
		})
		for i := range 5 {
			n.Claim(fmt.Sprintf("%s-%d", real, i), class, "64Mi")
		}
		for i := range 5 {
			claim := fmt.Sprintf("%s-%d", real, i)
			found := n.WaitVolume(claim)
			if node := found.Twin.Annotations["volume.kubernetes.io/selected-node"]; !allowed[node] {
				t.Errorf("the twin of %s is for the node %q", claim, node)
			}
			if real == "reference-local" {
				continue // where its volumes are, the real driver says in its own words
			}
			for _, term := range found.Virtual.Spec.NodeAffinity.Required.NodeSelectorTerms {
				if nodes := valuesOf(term, nodeKey); len(nodes) != 1 || !allowed[nodes[0]] {
					t.Errorf("the volume of %s may be used on %v", claim, nodes)
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

// valuesOf are the values that a term wants of a label.
func valuesOf(term corev1.NodeSelectorTerm, key string) []string {
	for _, expression := range term.MatchExpressions {
		if expression.Key == key {
			return expression.Values
		}
	}
	return nil
}
