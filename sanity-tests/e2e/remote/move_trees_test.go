package remote

import (
	"testing"

	"storage.liqo.io/sanity-tests/trees"
)

// A tree with every kind of metadata moves to another cluster and back. What is lost on the way there is what a user
// consented to, and on the way back nothing is.
func TestMoveOfAGeneratedTreeThereAndBack(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		name, class string
		losses      []trees.Loss
	}{
		{"without losses", "liqo-reference", nil},
		{"with losses", "liqo-reference-ext4", trees.Losses},
	} {
		t.Run(one.name, func(t *testing.T) {
			p := newPair(t)
			p.home.Claim("data", one.class, "640Mi")
			homeNode := p.home.Cluster.Nodes()[0].Name
			pod := p.home.StatefulSet("user", "data", preferNodes([]string{homeNode}, []string{p.node}))
			p.home.WaitRunningOn(pod, homeNode)
			tree := p.home.GrowTree(pod, trees.Options{LongestLink: trees.LongestPath, Losses: one.losses != nil})
			p.home.Move("move", "data", "target: {nodeName: "+p.node+"}, quiesce: {mode: Evict}")
			if one.losses != nil {
				p.home.AcceptLosses("move", pod, tree)
			}
			p.home.WaitMove("move", "Retaining")
			p.home.WaitRunningOn(pod, p.node)
			p.remote.WantTree(pod, tree.Without(one.losses...))

			p.undoMove()
			p.home.WaitRunningOn(pod, homeNode)
			p.home.WantTree(pod, tree.Without(one.losses...))
			p.deleteMoves()
		})
	}
}
