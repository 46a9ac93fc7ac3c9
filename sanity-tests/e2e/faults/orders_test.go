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

// walk remembers which crash points were hit.
type walk struct {
	cluster *clusters.Cluster
	hit     []string
}

// order is the file through which one process is told where to die.
type order struct {
	file   string
	points []string
	// The pod of the process, and how often that had died before.
	pod    string
	deaths int32
}

// both are the points on the two sides of each step.
func both(steps ...string) (points []string) {
	for _, step := range steps {
		points = append(points, "before-"+step, "after-"+step)
	}
	return points
}

// onNode tells the node plugin of a node where to die.
func (w *walk) onNode(t *testing.T, n *user.Namespace, name string, points []string) order {
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
	return give(t, filepath.Join(node.KubeletRoot(), "plugins", driver.CSIName), pod, some(t, points))
}

// onController tells the controller where to die. There is one replica.
func (w *walk) onController(t *testing.T, n *user.Namespace, points []string) order {
	t.Helper()
	return inEmptyDir(t, n, "controller", "socket", "csi.sock", points)
}

// inEmptyDir gives the only pod of a component orders in one of its emptyDirs, once that has this file. If file is
// empty, once the emptyDir exists.
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
	return give(t, folder, pod, some(t, points))
}

// onlyPod is the one pod of a component, on a node if one is named.
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

// deaths counts how often the container of a pod that runs the driver's program has been started again.
func deaths(pod *corev1.Pod) int32 {
	for _, container := range pod.Status.ContainerStatuses {
		if container.Name == "driver" || container.Name == "fabric" {
			return container.RestartCount
		}
	}
	return 0
}

// give orders a process to die at these points. It replaces the file with one that has a line less each time, which
// in a folder of Kubernetes only the owner of the file may do.
func give(t *testing.T, folder string, pod corev1.Pod, points []string) order {
	t.Helper()
	owner := 0
	if as := pod.Spec.SecurityContext; as != nil && as.RunAsUser != nil {
		owner = int(*as.RunAsUser)
	}
	file := filepath.Join(folder, "crash-at")
	// Renamed, so that the process never reads half of it.
	if err := os.WriteFile(file+".given", []byte(strings.Join(points, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chown(file+".given", owner, -1), os.Rename(file+".given", file)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file) }) // of a test that failed
	return order{file, points, pod.Name, deaths(&pod)}
}

// carriedOut waits until the process has died at every point of its orders.
func (w *walk) carriedOut(t *testing.T, n *user.Namespace, orders ...order) {
	t.Helper()
	for _, order := range orders {
		n.Eventually("the process dies where it was told to", func(context.Context) (string, error) {
			left, err := os.ReadFile(order.file)
			return strings.TrimSpace(string(left)), err
		})
		n.Eventually("the process is back after each of its deaths", func(ctx context.Context) (string, error) {
			pod, err := n.Client.CoreV1().Pods(chart.Namespace).Get(ctx, order.pod, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			if died := deaths(pod) - order.deaths; int(died) < len(order.points) {
				return fmt.Sprintf("it died %d times, not %d", died, len(order.points)), nil
			}
			return "", nil
		})
		if err := os.Remove(order.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		w.hit = append(w.hit, order.points...)
	}
}

// unreached are steps that no leg gets to: of tokens, which live for days. Their unit tests die there.
var unreached = both("token-renew", "token-write")

// report names every crash point of the driver, or of the fabric, as a test of its own. Where legs are
// selected with -run, none of these is.
func (w *walk) report(t *testing.T, ofFabric bool) {
	program, err := driver.Compile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := exec.CommandContext(t.Context(), program, "crash-points").Output()
	if err != nil {
		t.Fatalf("list the crash points, which releases do not have: %v", err)
	}
	points := strings.Fields(string(all))
	legFailed := t.Failed()
	for _, point := range points {
		if slices.Contains(fabricPoints, point) != ofFabric {
			continue
		}
		t.Run(point, func(t *testing.T) {
			if slices.Contains(unreached, point) && !slices.Contains(w.hit, point) {
				t.Skip("no leg gets there")
			}
			if !slices.Contains(w.hit, point) && legFailed {
				t.Skip("a leg failed, which may be the one that gets there: it waits for its points when it is run again")
			}
			if !slices.Contains(w.hit, point) {
				t.Error("nobody died here")
			}
		})
	}
	for _, point := range w.hit {
		if !slices.Contains(points, point) {
			t.Errorf("the driver knows no crash point %s", point)
		}
	}
}
