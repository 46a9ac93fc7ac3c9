// Package faults crashes processes while volumes are created, used and deleted, and checks that nothing
// is lost or leaked.
//
// *_walk_test.go crash the driver at its crash points: crash_walk_test.go at home, remote_walk_test.go
// in another cluster, and others for snapshots, imports, releases, moves and the fabric.
// forgotten_test.go kills kubelet between two steps, kills_test.go kills anything at random times,
// remote_test.go cuts, delays and stops the connection between two clusters.
package faults

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/account"
	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

func TestMain(m *testing.M) { user.Main(m) }

// shortTimeouts are values with shorter timeouts than the defaults: for retries, the collection of
// orphans, and volumes that kubelet has forgotten.
func shortTimeouts(replicas int) chart.Values {
	return chart.Values{
		// For a move within a cluster.
		"allowedRealStorageClasses": []string{"reference-immediate"},
		"controller": chart.Values{
			"replicas":    replicas,
			"orphanGrace": "5s",
			"provisioner": chart.Values{"retryIntervalMax": "5s"},
			"attacher":    chart.Values{"extraArgs": []string{"--retry-interval-max=5s"}},
			"resizer":     chart.Values{"retryIntervalMax": "5s"},
			"snapshotter": chart.Values{"retryIntervalMax": "5s"},
		},
		"node": chart.Values{"extraArgs": []string{"--forgotten-after=40s"}},
	}
}

func install(t *testing.T, cluster *clusters.Cluster, replicas int) {
	t.Helper()
	values := shortTimeouts(replicas)
	t.Run(fmt.Sprintf("timeouts shortened: %v", values), func(*testing.T) {})
	err := driver.Install(t.Context(), cluster, driver.Options{Values: values, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
}

// checkLeaks compares the inventories before and after the test. A retry in the same lab is compared with
// the inventory before the first attempt.
func checkLeaks(t *testing.T, accountable ...*clusters.Cluster) {
	t.Helper()
	baselines := account.LabBaselines()
	before, again, err := baselines.Before(t.Name(), func() (account.Inventory, error) {
		ctx, cancel := context.WithTimeout(t.Context(), user.Timeout)
		defer cancel()
		return account.WaitStable(ctx, 2*time.Second, func(ctx context.Context) (account.Inventory, error) { return inventory(ctx, accountable) })
	})
	if err != nil {
		t.Fatal(err)
	}
	if again != "" {
		t.Logf("compared with the inventory before the first attempt in this lab, at %s", again)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), user.Timeout)
		defer cancel()
		var leaked, lost []string
		for ctx.Err() == nil {
			var after account.Inventory
			if after, err = inventory(ctx, accountable); err == nil {
				if leaked, lost = after.Except(before), before.Except(after); len(leaked)+len(lost) == 0 {
					if err := baselines.Delete(t.Name()); err != nil {
						t.Error(err)
					}
					return
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		if len(leaked)+len(lost) == 0 {
			t.Errorf("no inventory at the end: %v", err)
			return
		}
		user.Violated(t, "leaked:\n  %s\nlost:\n  %s", strings.Join(leaked, "\n  "), strings.Join(lost, "\n  "))
	})
}

// inventory lists several clusters.
func inventory(ctx context.Context, accountable []*clusters.Cluster) (account.Inventory, error) {
	all := account.Inventory{}
	for _, cluster := range accountable {
		items, err := account.List(ctx, cluster)
		if err != nil {
			return nil, err
		}
		for item := range items {
			all[cluster.Name()+": "+item] = struct{}{}
		}
	}
	return all, nil
}

// write writes a word to the volume of a pod, read checks it. Both retry, because kubelet may be down.
func write(n *user.Namespace, pod, word string) {
	n.Eventually("the pod "+pod+" writes", func(context.Context) (string, error) {
		_, err := n.Kubectl("exec", pod, "--", "sh", "-c", "echo "+word+" > /data/file && sync")
		return "", err
	})
}

func read(t *testing.T, n *user.Namespace, pod, word string) {
	t.Helper()
	n.Eventually("the pod "+pod+" reads", func(context.Context) (string, error) {
		got, err := n.Kubectl("exec", pod, "--", "cat", "/data/file")
		if got = strings.TrimSpace(got); err == nil && got != word {
			user.ViolatedNow(t, "the data is %q, it was %q", got, word)
		}
		return "", err
	})
}

// exercise creates a volume; a pod writes, another one reads, and the claim is deleted.
func exercise(t *testing.T, n *user.Namespace, class string, edits ...func(*corev1.Pod)) {
	t.Helper()
	startWriter(n, class, edits...)
	finishExercise(t, n, edits...)
}

// startWriter is the first part of exercise: the claim and the writer.
func startWriter(n *user.Namespace, class string, edits ...func(*corev1.Pod)) {
	n.Claim("data", class, "64Mi")
	n.Pod("writer", "data", append(edits, gracefully)...)
}

// gracefully sets a grace period: after a forced deletion, kubelet forgets mounts if the node plugin
// crashes at the same time (docs/troubleshooting.md).
func gracefully(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = new(int64(1)) }

// finishExercise is the second part of exercise.
func finishExercise(t *testing.T, n *user.Namespace, edits ...func(*corev1.Pod)) {
	t.Helper()
	n.WaitReady("writer")
	write(n, "writer", n.Name)
	n.DeletePod("writer")
	n.Pod("reader", "data", append(edits, gracefully)...)
	n.WaitReady("reader")
	read(t, n, "reader", n.Name)
	n.DeletePod("reader")
	deleteClaim(n, "data")
}

// deleteClaim deletes a claim and waits until it is deleted.
func deleteClaim(n *user.Namespace, name string) {
	n.Eventually("the claim "+name+" is deleted", func(ctx context.Context) (string, error) {
		claims := n.Client.CoreV1().PersistentVolumeClaims(n.Name)
		if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return "it still exists", err
		}
		return "", nil
	})
}
