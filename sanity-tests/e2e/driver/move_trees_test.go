package driver

import (
	"testing"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/trees"
)

// A tree with every kind of metadata that is kept moves to another node without consent, and is the same
// afterwards.
func TestMoveOfAGeneratedTree(t *testing.T) {
	n := home(t)
	nodes := n.Cluster.Nodes()
	n.Claim("data", "liqo-reference-local", "640Mi")
	pod := n.StatefulSet("user", "data")
	n.WaitReady(pod)
	tree := n.GrowTree(pod, trees.Options{LongestLink: trees.LongestPath})
	to := nodes[0].Name
	if n.WaitReady(pod).Spec.NodeName == to {
		to = nodes[1].Name
	}
	n.Move("move", "data", "target: {nodeName: "+to+"}, quiesce: {mode: Evict}")
	n.WaitMove("move", "Retaining")
	n.WaitRunningOn(pod, to)
	n.WantTree(pod, tree.Without())
	if lossy, err := n.Kubectl("get", "volumemove", "move", "-o", "jsonpath={.status.lossy}"); err != nil || lossy != "" {
		t.Errorf("the move without losses reports %s, %v", lossy, err)
	}
}

// A tree with every kind of metadata moves from ext4 to XFS, a class that has to be allowed. Until a user consents, the move waits and the source is
// unchanged; then that, and nothing else, is lost. A path that cannot be copied is an error until it is deleted.
func moveOfAGeneratedTreeWithLosses(t *testing.T, n *user.Namespace) {
	node := n.Cluster.Nodes()[0].Name
	n.Claim("data", "liqo-reference-ext4", "640Mi")
	pod := n.StatefulSet("user", "data", user.OnNode(node))
	n.WaitReady(pod)
	tree := n.GrowTree(pod, trees.Options{LongestLink: 1023, Losses: true})
	n.RefuseTooDeepPath(pod, func() {
		n.Move("move", "data", "target: {nodeName: "+node+", storageClassName: reference-xfs}, quiesce: {mode: Evict}")
	})
	n.AcceptLosses("move", pod, tree)
	n.WaitMove("move", "Retaining")
	n.WaitReady(pod)
	n.WantTree(pod, tree.Without(trees.Losses...))
}
