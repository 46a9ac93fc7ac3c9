package storage

import (
	"slices"
	"testing"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

func TestPodsFollowNodeLocalData(t *testing.T) {
	n := home(t)
	nodes := n.Cluster.Nodes()
	if len(nodes) < 2 {
		t.Skip("one node cannot show that pods stay off others")
	}
	// The last node is the one the scheduler would not choose by chance.
	owner, other := nodes[len(nodes)-1].Name, nodes[0].Name
	n.Claim("local", "reference-local", "64Mi")
	n.Pod("first", "local", user.OnNode(owner))
	n.WaitReady("first")
	n.Exec("first", "echo here > /data/file")
	n.DeletePod("first")

	n.Pod("second", "local")
	if pod := n.WaitReady("second"); pod.Spec.NodeName != owner {
		t.Errorf("pod runs on %s, its data is on %s", pod.Spec.NodeName, owner)
	}
	if got := n.Exec("second", "cat /data/file"); got != "here" {
		user.Violated(t, "read %q", got)
	}
	n.Pod("misled", "local", user.OnNode(other))
	n.WaitEvent("misled", "FailedScheduling", "affinity")
}

func TestSchedulerKnowsWhatNodesHaveLeft(t *testing.T) {
	n := home(t)
	n.Claim("huge", "reference-local", "21Gi")
	n.Pod("user", "huge")
	n.WaitEvent("user", "FailedScheduling", "free storage")
	calls, err := storage.BackendOf(n.Cluster, storage.Local).Calls(func(call storage.Call) bool {
		return call.RPC == "CreateVolume" && call.Claim == n.Name+"/huge"
	})
	if err != nil || len(calls) > 0 {
		t.Errorf("the driver was asked all the same: %v, %v", calls, err)
	}
}

func TestVolumesOfOneNodeSayWhereTheyAre(t *testing.T) {
	n := home(t)
	n.Claim("local", "reference-local", "64Mi")
	n.Pod("user", "local")
	pod := n.WaitReady("user")
	volume := n.WaitBound("local")
	terms := volume.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || !slices.Contains(terms[0].MatchExpressions[0].Values, pod.Spec.NodeName) {
		t.Errorf("node affinity %v of a volume on %s", terms, pod.Spec.NodeName)
	}
}
