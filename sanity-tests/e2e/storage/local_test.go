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
		t.Skip("needs two nodes")
	}
	// The scheduler does not prefer the last node.
	owner, other := nodes[len(nodes)-1].Name, nodes[0].Name
	n.Claim("data", "reference-local", "64Mi")
	n.Pod("first", "data", user.OnNode(owner))
	n.WaitReady("first")
	n.Exec("first", "echo kept > /data/file")
	n.DeletePod("first")

	n.Pod("second", "data")
	if pod := n.WaitReady("second"); pod.Spec.NodeName != owner {
		t.Errorf("the pod runs on %s, its data is on %s", pod.Spec.NodeName, owner)
	}
	if got := n.Exec("second", "cat /data/file"); got != "kept" {
		user.Violated(t, "read %q", got)
	}
	n.Pod("on-other-node", "data", user.OnNode(other))
	n.WaitEvent("on-other-node", "FailedScheduling", "affinity")
}

func TestSchedulerUsesPublishedCapacity(t *testing.T) {
	n := home(t)
	n.Claim("huge", "reference-local", "21Gi")
	n.Pod("user", "huge")
	n.WaitEvent("user", "FailedScheduling", "free storage")
	calls, err := storage.BackendOf(n.Cluster, storage.Local).Calls(func(call storage.Call) bool {
		return call.RPC == "CreateVolume" && call.Claim == n.Name+"/huge"
	})
	if err != nil || len(calls) > 0 {
		t.Errorf("the driver got CreateVolume: %v, %v", calls, err)
	}
}

func TestNodeLocalVolumesHaveNodeAffinity(t *testing.T) {
	n := home(t)
	n.Claim("data", "reference-local", "64Mi")
	n.Pod("user", "data")
	pod := n.WaitReady("user")
	volume := n.WaitBound("data")
	terms := volume.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || !slices.Contains(terms[0].MatchExpressions[0].Values, pod.Spec.NodeName) {
		t.Errorf("the node affinity is %v, the pod runs on %s", terms, pod.Spec.NodeName)
	}
}
