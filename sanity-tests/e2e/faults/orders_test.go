package faults

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// walk records which crash points were hit.
type walk struct {
	cluster *clusters.Cluster
	hit     []string
}

// order is the file that makes one process crash at these points.
type order struct {
	file   string
	points []string
	// pod of the process, and its restarts before.
	pod      string
	restarts int32
}

// bothSides returns the points before and after each step.
func bothSides(steps ...string) (points []string) {
	for _, step := range steps {
		points = append(points, "before-"+step, "after-"+step)
	}
	return points
}

// crashNodePlugin makes the node plugin of a node crash at these points.
func (w *walk) crashNodePlugin(t *testing.T, n *user.Namespace, name string, points []string) order {
	t.Helper()
	node, err := w.cluster.Node(name)
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	n.Eventually("the node plugin runs on "+name, func(ctx context.Context) (missing string, err error) {
		pod, missing, err = onlyPod(ctx, n, "node", name)
		return missing, err
	})
	return writeOrders(t, filepath.Join(node.KubeletRoot(), "plugins", driver.CSIName), pod, selectPoints(t, points))
}

// crashController makes the controller, which has one replica, crash at these points.
func (w *walk) crashController(t *testing.T, n *user.Namespace, points []string) order {
	t.Helper()
	return inEmptyDir(t, n, "controller", "socket", "csi.sock", points)
}

// inEmptyDir writes orders for the only pod of a component to one of its emptyDirs, when this file exists
// in it, or with file "" when the emptyDir exists.
func inEmptyDir(t *testing.T, n *user.Namespace, component, volume, file string, points []string) order {
	t.Helper()
	var folder string
	var pod corev1.Pod
	n.Eventually("the "+component+" runs", func(ctx context.Context) (missing string, err error) {
		if pod, missing, err = onlyPod(ctx, n, component, ""); err != nil || missing != "" {
			return missing, err
		}
		node, err := n.Cluster.Node(pod.Spec.NodeName)
		if err != nil {
			return "", err
		}
		folder = filepath.Join(node.KubeletRoot(), "pods", string(pod.UID), "volumes/kubernetes.io~empty-dir", volume)
		_, err = os.Stat(filepath.Join(folder, file))
		return "", err
	})
	return writeOrders(t, folder, pod, selectPoints(t, points))
}

// onlyPod returns the only pod of a component, on this node unless it is empty.
func onlyPod(ctx context.Context, n *user.Namespace, component, node string) (pod corev1.Pod, missing string, err error) {
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component}
	if node != "" {
		options.FieldSelector = "spec.nodeName=" + node
	}
	pods, err := n.Client.CoreV1().Pods(chart.Namespace).List(ctx, options)
	if err != nil || len(pods.Items) != 1 || len(pods.Items[0].Status.ContainerStatuses) == 0 {
		return pod, "there is not exactly one pod", err
	}
	return pods.Items[0], "", nil
}

// restarts returns the restart count of a pod's container with the driver's program.
func restarts(pod *corev1.Pod) int32 {
	for _, container := range pod.Status.ContainerStatuses {
		if container.Name == "driver" || container.Name == "fabric" {
			return container.RestartCount
		}
	}
	return 0
}

// writeOrders makes a process crash at these points. The process replaces the file by one with a line less
// at each crash, which requires that it owns the file.
func writeOrders(t *testing.T, folder string, pod corev1.Pod, points []string) order {
	t.Helper()
	owner := 0
	if as := pod.Spec.SecurityContext; as != nil && as.RunAsUser != nil {
		owner = int(*as.RunAsUser)
	}
	file := filepath.Join(folder, "crash-at")
	// Renamed, so that the process never reads a part of it.
	if err := os.WriteFile(file+".new", []byte(strings.Join(points, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chown(file+".new", owner, -1), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file) }) // after a failure
	return order{file, points, pod.Name, restarts(&pod)}
}

// waitCrashed waits until each process has crashed at every point of its orders, and has restarted.
func (w *walk) waitCrashed(t *testing.T, n *user.Namespace, orders ...order) {
	t.Helper()
	for _, order := range orders {
		n.Eventually("the process crashes at all points", func(context.Context) (string, error) {
			left, err := os.ReadFile(order.file)
			return strings.TrimSpace(string(left)), err
		})
		n.Eventually("the process restarts after each crash", func(ctx context.Context) (string, error) {
			pod, err := n.Client.CoreV1().Pods(chart.Namespace).Get(ctx, order.pod, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			if restarted := restarts(pod) - order.restarts; int(restarted) < len(order.points) {
				return fmt.Sprintf("it restarted %d times, not %d", restarted, len(order.points)), nil
			}
			return "", nil
		})
		if err := os.Remove(order.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		w.hit = append(w.hit, order.points...)
	}
}

// testOf returns the test whose legs reach a crash point.
func testOf(point string) string {
	switch {
	case slices.Contains(fabricPoints, point):
		return "TestFabricWithCrashAtEveryPoint"
	case strings.Contains(point, "-move-"):
		return "TestMovesWithCrashAtEveryPoint"
	}
	return "TestCrashAtEveryPoint"
}

// report runs a subtest for every crash point that legs of this test reach. -run with a leg selects none of
// them.
func (w *walk) report(t *testing.T) {
	program, err := driver.Compile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := exec.CommandContext(t.Context(), program, "crash-points").Output()
	if err != nil {
		t.Fatalf("list the crash points (releases have none): %v", err)
	}
	points := strings.Fields(string(all))
	legFailed := t.Failed()
	for _, point := range points {
		if testOf(point) != t.Name() {
			continue
		}
		t.Run(point, func(t *testing.T) {
			if !slices.Contains(w.hit, point) && legFailed {
				t.Skip("a leg failed, which may be the one that reaches it, and checks its points when it is retried")
			}
			if !slices.Contains(w.hit, point) {
				t.Error("no process crashed here")
			}
		})
	}
	for _, point := range w.hit {
		if !slices.Contains(points, point) {
			t.Errorf("the driver has no crash point %s", point)
		}
	}
}
