package faults

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// crashBuild is the cargo feature of builds that take orders to die.
const crashBuild = "crash-points"

// walk remembers which crash points were hit.
type walk struct {
	cluster *clusters.Cluster
	hit     []string
}

// order is the file through which one process is told where to die.
type order struct {
	file   string
	points []string
}

// both are the points on the two sides of each step.
func both(steps ...string) (points []string) {
	for _, step := range steps {
		points = append(points, "before-"+step, "after-"+step)
	}
	return points
}

// onNode tells the node plugin of a node where to die.
func (w *walk) onNode(t *testing.T, name string, points []string) order {
	t.Helper()
	node, err := w.cluster.Node(name)
	if err != nil {
		t.Fatal(err)
	}
	return give(t, filepath.Join(node.KubeletRoot(), "plugins", driver.CSIName), points)
}

// onController tells the controller where to die. There is one replica.
func (w *walk) onController(t *testing.T, n *user.Namespace, points []string) order {
	t.Helper()
	var folder string
	n.Eventually("the controller runs", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(chart.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Spec.NodeName == "" {
			return "there is not exactly one pod", err
		}
		node, err := w.cluster.Node(pods.Items[0].Spec.NodeName)
		if err != nil {
			return "", err
		}
		folder = filepath.Join(node.KubeletRoot(), "pods", string(pods.Items[0].UID), "volumes/kubernetes.io~empty-dir/socket")
		_, err = os.Stat(filepath.Join(folder, "csi.sock"))
		return "", err
	})
	return give(t, folder, points)
}

func give(t *testing.T, folder string, points []string) order {
	t.Helper()
	file := filepath.Join(folder, "crash-at")
	// Written beside and renamed: nobody may read half of it.
	if err := os.WriteFile(file+".new", []byte(strings.Join(points, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	// The controller is not root, and crosses out what it has done: the file has to be its own.
	socket, err := os.Stat(filepath.Join(folder, "csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	owner := int(socket.Sys().(*syscall.Stat_t).Uid)
	if err := errors.Join(os.Chown(file+".new", owner, -1), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file) }) // of a test that failed
	return order{file, points}
}

// carriedOut waits until the process has died at every point of its orders.
func (w *walk) carriedOut(t *testing.T, n *user.Namespace, orders ...order) {
	t.Helper()
	for _, order := range orders {
		n.Eventually("the process dies where it was told to", func(context.Context) (string, error) {
			left, err := os.ReadFile(order.file)
			return strings.TrimSpace(string(left)), err
		})
		if err := os.Remove(order.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		w.hit = append(w.hit, order.points...)
	}
}

// report names every crash point as a test of its own.
func (w *walk) report(t *testing.T) {
	module, err := components.ModuleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	program, err := driver.Compile(t.Context(), filepath.Dir(module), []string{crashBuild})
	if err != nil {
		t.Fatal(err)
	}
	all, err := exec.CommandContext(t.Context(), program, "crash-points").Output()
	if err != nil {
		t.Fatal(err)
	}
	points := strings.Fields(string(all))
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
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
