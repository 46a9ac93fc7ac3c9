package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/nodes"
	"storage.liqo.io/sanity-tests/storage"
)

// outOfService declares that a node is shut down, so that its volumes may be detached without unmounting.
var outOfService = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}

// A node stops and is declared out of service: the real attachment is deleted with the virtual one, so
// that the volume can be attached elsewhere. When the node is back, it unstages the volume.
func TestVolumeIsDetachedFromANodeThatIsOutOfService(t *testing.T) {
	cluster := user.Cluster(t, "home")
	install(t, cluster, 2)
	checkLeaks(t, cluster)
	n := user.NewNamespace(t, cluster)
	down, up := cluster.Nodes()[0], cluster.Nodes()[1]
	n.Claim("data", "liqo-reference-attach", "64Mi")
	n.Pod("user", "data", user.OnNode(down.Name))
	n.WaitReady("user")
	write(n, "user", "precious")
	found := n.WaitVolume("data")
	waitOnlyOn(n, found, down, "attached", attachedTo)

	stopNode(t, n, cluster, down)
	n.Eventually("the pod is force-deleted", func(ctx context.Context) (string, error) {
		_, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, "user", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it still exists", err
	})
	n.Pod("next", "data", user.OnNode(up.Name))
	n.WaitReady("next")
	read(t, n, "next", "precious")
	waitOnlyOn(n, found, up, "attached", attachedTo)

	if err := startNode(t.Context(), n.Client, cluster, down); err != nil {
		t.Fatal(err)
	}
	n.Eventually("the node is ready", func(ctx context.Context) (string, error) { return ready(ctx, n.Client, down, true) })
	waitOnlyOn(n, found, up, "staged", stagedOn)
	read(t, n, "next", "precious")
	n.DeletePod("next")
	deleteClaim(n, "data")
}

// stopNode kills kubelet on a node and, when the node is not ready, declares the node out of service. It is
// started after the test.
func stopNode(t *testing.T, n *user.Namespace, cluster *clusters.Cluster, node *nodes.Node) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), user.Timeout)
		defer cancel()
		if err := startNode(ctx, n.Client, cluster, node); err != nil {
			t.Error(err)
		}
	})
	if err := cluster.Kill(t.Context(), "kubelet@"+node.Name); err != nil {
		t.Fatal(err)
	}
	n.Eventually("the node is not ready", func(ctx context.Context) (string, error) { return ready(ctx, n.Client, node, false) })
	if err := taint(t.Context(), n.Client, node, true); err != nil {
		t.Fatal(err)
	}
}

// startNode restarts kubelet and removes the taint.
func startNode(ctx context.Context, client kubernetes.Interface, cluster *clusters.Cluster, node *nodes.Node) error {
	restarted := cluster.Restart(ctx, "kubelet@"+node.Name)
	return errors.Join(restarted, taint(ctx, client, node, false))
}

// ready returns a message unless the Ready condition of a node is the wanted one.
func ready(ctx context.Context, client kubernetes.Interface, node *nodes.Node, wanted bool) (string, error) {
	found, err := client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, condition := range found.Status.Conditions {
		if condition.Type == corev1.NodeReady && (condition.Status == corev1.ConditionTrue) == wanted {
			return "", nil
		}
	}
	return fmt.Sprintf("its conditions are %v", found.Status.Conditions), nil
}

// taint adds the taint to a node, or removes it.
func taint(ctx context.Context, client kubernetes.Interface, node *nodes.Node, put bool) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		found, err := client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		matches := func(taint corev1.Taint) bool { return taint.MatchTaint(&outOfService) }
		if slices.ContainsFunc(found.Spec.Taints, matches) == put {
			return nil
		}
		found.Spec.Taints = slices.DeleteFunc(found.Spec.Taints, matches)
		if put {
			found.Spec.Taints = append(found.Spec.Taints, outOfService)
		}
		_, err = client.CoreV1().Nodes().Update(ctx, found, metav1.UpdateOptions{})
		return err
	})
}

func attachedTo(volume storage.Volume) []string { return slices.Sorted(maps.Keys(volume.Attachments)) }

func stagedOn(volume storage.Volume) []string { return slices.Sorted(maps.Keys(volume.Stages)) }

// waitOnlyOn waits until a real volume is attached to, or staged on, this node only.
func waitOnlyOn(n *user.Namespace, found user.Volume, node *nodes.Node, how string, places func(storage.Volume) []string) {
	n.Eventually("the real volume is "+how+" on "+node.Name+" only", func(context.Context) (string, error) {
		record, err := storage.BackendOf(n.Cluster, storage.Attach).Volume(found.Real.Spec.CSI.VolumeHandle)
		if err != nil {
			return "", err
		}
		if now := places(record); !slices.Equal(now, []string{node.Name}) {
			return fmt.Sprintf("it is on %v", now), nil
		}
		return "", nil
	})
}
