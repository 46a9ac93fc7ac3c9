package driver

import (
	"context"
	"fmt"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// The scheduler counts the volumes of storage.liqo.io. Without the real driver's limit in its CSINode it would choose
// the full node.
func TestNodeAtTheAttachLimitOfTheRealDriverIsNotSelected(t *testing.T) {
	n := homeSerial(t)
	full, other := twoNodes(t, n)
	const limit = 2
	setAttachLimit(t, n, full.Name, limit)
	for i := range limit {
		name := fmt.Sprintf("first-%d", i)
		n.Claim(name, "liqo-reference-attach", "64Mi")
		n.Pod(name, name, user.OnNode(full.Name))
	}
	for i := range limit {
		n.WaitReady(fmt.Sprintf("first-%d", i))
	}
	waitAttachLimit(n, full.Name, limit)
	n.Claim("last", "liqo-reference-attach", "64Mi")
	n.Pod("last", "last", user.PreferNode(full.Name))
	if pod := n.WaitReady("last"); pod.Spec.NodeName != other.Name {
		t.Errorf("the pod runs on %s", pod.Spec.NodeName)
	}
	n.DeletePod("first-0")
	waitAttachLimit(n, full.Name, 0)
}

// waitAttachLimit waits until the driver has this limit on the node; 0 is no limit.
func waitAttachLimit(n *user.Namespace, node string, limit int32) {
	n.Eventually(fmt.Sprintf("the limit of node %s is %d", node, limit), func(ctx context.Context) (string, error) {
		found, err := n.Client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if count := *attachLimit(found, driver.CSIName); count != limit {
			return fmt.Sprintf("it is %d", count), nil
		}
		return "", nil
	})
}

// setAttachLimit limits the attachments of the real driver on a node until the test ends.
func setAttachLimit(t *testing.T, n *user.Namespace, node string, limit int32) {
	t.Helper()
	nodes := n.Client.StorageV1().CSINodes()
	var before int32
	set := func(ctx context.Context, limit int32) error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			found, err := nodes.Get(ctx, node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			count := attachLimit(found, storage.Attach.Name)
			before, *count = *count, limit
			_, err = nodes.Update(ctx, found, metav1.UpdateOptions{})
			return err
		})
	}
	if err := set(t.Context(), limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set(context.WithoutCancel(t.Context()), before); err != nil {
			t.Errorf("restore the limit of node %s: %v", node, err)
		}
	})
}

// attachLimit returns the limit of a driver on a node, 0 if it has none. The result can be modified.
func attachLimit(node *storagev1.CSINode, name string) *int32 {
	for _, entry := range node.Spec.Drivers {
		if entry.Name == name && entry.Allocatable != nil && entry.Allocatable.Count != nil {
			return entry.Allocatable.Count
		}
	}
	return new(int32)
}
