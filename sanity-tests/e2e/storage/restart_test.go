package storage

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// restartPlugin deletes the pod of a driver's node plugin, and waits for the next one.
func restartPlugin(t *testing.T, n *user.Namespace, driver storage.Driver, node string) {
	t.Helper()
	plugins := n.Client.CoreV1().Pods(storage.Namespace)
	selector := metav1.ListOptions{LabelSelector: "app=" + driver.Short + "-node", FieldSelector: "spec.nodeName=" + node}
	found, err := plugins.List(t.Context(), selector)
	if err != nil || len(found.Items) != 1 {
		t.Fatalf("%d pods of the node plugin on node %s, %v", len(found.Items), node, err)
	}
	if err := plugins.Delete(t.Context(), found.Items[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := storage.WaitUsable(t.Context(), n.Cluster); err != nil {
		t.Fatal(err)
	}
}

func TestVolumesSurviveARestartOfTheNodePlugin(t *testing.T) {
	n := home(t)
	n.Claim("data", "reference-ext4", "64Mi")
	n.Pod("user", "data")
	node := n.WaitReady("user").Spec.NodeName
	n.Exec("user", "echo before > /data/file")
	restartPlugin(t, n, storage.Reference, node)
	if got := n.Exec("user", "cat /data/file && echo after >> /data/file"); got != "before" {
		user.Violated(t, "read %q", got)
	}
	n.DeletePod("user")
	n.WaitUnstaged(storage.Reference, n.WaitBound("data"))
	n.Pod("next", "data")
	n.WaitReady("next")
	if got := n.Exec("next", "cat /data/file"); got != "before\nafter" {
		user.Violated(t, "read %q", got)
	}
}
