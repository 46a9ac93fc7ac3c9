package faults

import (
	"context"
	"slices"
	"strings"
	"testing"

	"storage.liqo.io/sanity-tests/account"
	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// Kubelet crashes after a pod is deleted and before it has unstaged the pod's volume, which it forgets.
// The real driver would never delete the volume.
func TestVolumeThatKubeletForgetsIsUnstaged(t *testing.T) {
	cluster := user.Cluster(t, "home")
	install(t, cluster, 2)
	checkLeaks(t, cluster)
	n := user.NewNamespace(t, cluster)
	node := cluster.Nodes()[0]
	kubelet := "kubelet@" + node.Name
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("user", "data", user.OnNode(node.Name))
	n.WaitReady("user")
	volume := n.WaitBound("data")

	removeFault := n.AddFault(storage.Reference, storage.Fault{
		RPC: "NodeUnstageVolume", Node: node.Name, Code: "Unavailable", Message: "not now",
	})
	n.DeletePod("user")
	n.Eventually("the volume is staged and not published", func(context.Context) (string, error) {
		idle, err := account.Idle(node)
		if !slices.Contains(idle, volume.Spec.CSI.VolumeHandle) {
			return "such volumes: " + strings.Join(idle, ", "), err
		}
		return "", err
	})
	if err := cluster.Kill(t.Context(), kubelet); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Restart(context.Background(), kubelet); err != nil {
			t.Error(err)
		}
	})
	removeFault()
	if err := cluster.Restart(t.Context(), kubelet); err != nil {
		t.Fatal(err)
	}

	deleteClaim(n, "data")
	n.Eventually("the node plugin unstages it", func(ctx context.Context) (string, error) {
		pod, missing, err := onlyPod(ctx, n, "node", node.Name)
		if err != nil || missing != "" {
			return missing, err
		}
		log, err := n.Kubectl("logs", "--namespace", chart.Namespace, pod.Name, "--container", "driver")
		for line := range strings.Lines(log) {
			if strings.Contains(line, volume.Spec.CSI.VolumeHandle) && strings.Contains(line, "unstaged a volume that kubelet forgot") {
				return "", nil
			}
		}
		return "its log does not have it", err
	})
}
