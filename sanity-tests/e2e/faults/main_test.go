// Package faults lets processes die while volumes are made, used and deleted,
// and takes stock in the end: nothing may be lost, nothing leaked.
//
// crash_walk_test.go dies at the crash points of the driver, snapshots_walk_test.go at those of
// snapshots, remote_walk_test.go at those of volumes in another cluster, fabric_walk_test.go at
// those of the fabric; forgotten_test.go kills kubelet when that hurts most; kills_test.go, after
// them, kills anything at any moment; remote_test.go cuts, slows and stops what is between two
// clusters.
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

// hurried are the timeouts that are shorter here than in the chart: whoever has
// lost a process tries again soon, an orphan is collected within seconds, and a
// volume of which kubelet says nothing is soon taken for forgotten.
func hurried(replicas int) chart.Values {
	return chart.Values{
		// To which a volume moves within a cluster.
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
	values := hurried(replicas)
	t.Run(fmt.Sprintf("timeouts shortened: %v", values), func(*testing.T) {})
	err := driver.Install(t.Context(), cluster, driver.Options{Values: values, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
}

// accounted compares the stock at the end of the test with that of its beginning, and if it is tried
// again in the same lab with that of its first attempt.
func accounted(t *testing.T, accountable ...*clusters.Cluster) {
	t.Helper()
	book := account.LabBaselines()
	before, again, err := book.Before(t.Name(), func() (account.Inventory, error) {
		ctx, cancel := context.WithTimeout(t.Context(), user.Patience)
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
		ctx, cancel := context.WithTimeout(context.Background(), user.Patience)
		defer cancel()
		var leaked, lost []string
		for ctx.Err() == nil {
			var after account.Inventory
			if after, err = inventory(ctx, accountable); err == nil {
				if leaked, lost = after.Except(before), before.Except(after); len(leaked)+len(lost) == 0 {
					if err := book.Delete(t.Name()); err != nil {
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
		there, err := account.List(ctx, cluster)
		if err != nil {
			return nil, err
		}
		for thing := range there {
			all[cluster.Name()+": "+thing] = struct{}{}
		}
	}
	return all, nil
}

// write puts a word into the volume of a pod, read expects it there. Both go on
// trying: kubelet may be dead just now.
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

// live is the life of a volume: a pod writes, another one reads, the claim goes.
func live(t *testing.T, n *user.Namespace, class string, edits ...func(*corev1.Pod)) {
	t.Helper()
	born(n, class, edits...)
	lived(t, n, edits...)
}

// born is the begin of live: the claim, and the pod that will write.
func born(n *user.Namespace, class string, edits ...func(*corev1.Pod)) {
	n.Claim("data", class, "64Mi")
	n.Pod("writer", "data", append(edits, gently)...)
}

// gently has pods not end by force: kubelet then forgets mounts of pods that it cannot look up any
// more, when the node plugin dies at that moment (docs/troubleshooting.md).
func gently(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = new(int64(1)) }

// lived is what follows.
func lived(t *testing.T, n *user.Namespace, edits ...func(*corev1.Pod)) {
	t.Helper()
	n.WaitReady("writer")
	write(n, "writer", n.Name)
	n.DeletePod("writer")
	n.Pod("reader", "data", append(edits, gently)...)
	n.WaitReady("reader")
	read(t, n, "reader", n.Name)
	n.DeletePod("reader")
	deleteClaim(n, "data")
}

// deleteClaim deletes a claim and waits until it is gone.
func deleteClaim(n *user.Namespace, name string) {
	n.Eventually("the claim "+name+" goes away", func(ctx context.Context) (string, error) {
		claims := n.Client.CoreV1().PersistentVolumeClaims(n.Name)
		if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return "it is still there", err
		}
		return "", nil
	})
}
