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

// The scheduler counts volumes of storage.liqo.io only, and would choose the node on which the real driver
// can attach no more.
func TestNodeAtTheAttachLimitOfTheRealDriverIsNotChosen(t *testing.T) {
	n := homeAlone(t)
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
	n.Eventually("the node takes no more volumes", func(ctx context.Context) (string, error) {
		return wantLimit(ctx, n, full.Name, limit)
	})
	n.Claim("last", "liqo-reference-attach", "64Mi")
	n.Pod("last", "last", preferring(full.Name))
	if pod := n.WaitReady("last"); pod.Spec.NodeName != other.Name {
		t.Errorf("the pod runs on %s", pod.Spec.NodeName)
	}
	n.DeletePod("first-0")
	n.Eventually("the node takes volumes again", func(ctx context.Context) (string, error) {
		return wantLimit(ctx, n, full.Name, 0)
	})
}

// wantLimit says what is wrong if the node does not take this number of volumes; 0 is no limit.
func wantLimit(ctx context.Context, n *user.Namespace, node string, limit int32) (string, error) {
	found, err := n.Client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if count := *attachLimit(found, driver.CSIName); count != limit {
		return fmt.Sprintf("it takes %d", count), nil
	}
	return "", nil
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
			t.Errorf("give the limit of node %s back: %v", node, err)
		}
	})
}

// attachLimit is the limit of a driver on a node, a zero if it has none.
func attachLimit(node *storagev1.CSINode, name string) *int32 {
	for _, entry := range node.Spec.Drivers {
		if entry.Name == name && entry.Allocatable != nil && entry.Allocatable.Count != nil {
			return entry.Allocatable.Count
		}
	}
	return new(int32)
}
