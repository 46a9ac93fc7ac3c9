package driver

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/nodes"
	"storage.liqo.io/sanity-tests/storage"
)

func TestPodsReturnToTheirDataAfterACordon(t *testing.T) {
	n := homeSerial(t)
	owner, _ := twoNodes(t, n)
	n.Claim("data", "liqo-reference-local", "64Mi")
	n.Pod("first", "data", user.OnNode(owner.Name))
	n.WaitReady("first")
	n.Exec("first", "echo kept > /data/file")
	n.DeletePod("first")

	n.Pod("second", "data")
	if pod := n.WaitReady("second"); pod.Spec.NodeName != owner.Name {
		t.Errorf("the pod runs on %s, its data is on %s", pod.Spec.NodeName, owner.Name)
	}
	n.DeletePod("second")

	cordon(t, n, owner.Name, true)
	t.Cleanup(func() { cordon(t, n, owner.Name, false) })
	n.Pod("third", "data")
	n.WaitEvent("third", "FailedScheduling")
	cordon(t, n, owner.Name, false)
	if pod := n.WaitReady("third"); pod.Spec.NodeName != owner.Name {
		t.Errorf("the pod runs on %s, its data is on %s", pod.Spec.NodeName, owner.Name)
	}
	if got := n.Exec("third", "cat /data/file"); got != "kept" {
		user.Violated(t, "read %q", got)
	}
}

// The pod prefers the node that the real class excludes.
func TestNodeExcludedByTheRealClassIsNotSelected(t *testing.T) {
	n := home(t)
	allowed, excluded := twoNodes(t, n)
	real := realClass(n.Name+"-real", storage.Local, nil)
	real.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
		{Key: "topology." + storage.Local.Name + "/node", Values: []string{allowed.Name}},
	}}}
	n.Class(real)
	virtual := virtualClass(n.Name+"-virtual", map[string]string{"realStorageClass": real.Name})
	n.Class(virtual)
	n.Claim("data", virtual.Name, "64Mi")
	n.Pod("user", "data", user.PreferNode(excluded.Name))
	if pod := n.WaitReady("user"); pod.Spec.NodeName != allowed.Name {
		t.Errorf("the pod runs on %s", pod.Spec.NodeName)
	}
}

func TestNodeWithoutCapacityIsNotSelected(t *testing.T) {
	n := home(t)
	n.Claim("huge", "liqo-reference-local", "21Gi")
	n.Pod("user", "huge")
	n.WaitEvent("user", "FailedScheduling", "free storage")
}

func TestPodWithNodeName(t *testing.T) {
	n := home(t)
	_, node := twoNodes(t, n)
	n.Claim("data", "liqo-reference-local", "64Mi")
	n.Pod("pinned", "data", func(pod *corev1.Pod) { pod.Spec.NodeName = node.Name })
	n.WaitReady("pinned")
}

func TestGenericEphemeralVolume(t *testing.T) {
	n := home(t)
	n.Pod("user", "", func(pod *corev1.Pod) {
		pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: spec("liqo")},
		}}
	})
	n.WaitReady("user")
	n.Exec("user", "echo scratch > /data/file")
	found := n.WaitVolume("user-data")
	n.DeletePod("user")
	waitVolumeDeleted(t, n, found)
}

func TestPodsInTheStorageNamespaceMayNotUseTwins(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo")
	twin := n.WaitVolume("data").Twin
	pod := user.NewPod("pod", twin.Name)
	_, err := n.Client.CoreV1().Pods(chart.StorageNamespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err == nil {
		user.Violated(t, "a pod with a twin was created")
		_ = n.Client.CoreV1().Pods(chart.StorageNamespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{})
	}
}

// twoNodes returns the last and the first node. The scheduler does not prefer the last.
func twoNodes(t *testing.T, n *user.Namespace) (last, first *nodes.Node) {
	t.Helper()
	all := n.Cluster.Nodes()
	if len(all) < 2 {
		t.Skip("needs two nodes")
	}
	return all[len(all)-1], all[0]
}

func cordon(t *testing.T, n *user.Namespace, node string, on bool) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, on)
	_, err := n.Client.CoreV1().Nodes().Patch(user.CleanupContext(t), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
