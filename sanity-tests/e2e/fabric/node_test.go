package fabric

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/fabric"
)

// These restart API servers, which tests that run beside them would notice.

func TestPodsOutliveRestartsOfBothAPIServers(t *testing.T) {
	home, remote := twoNamespaces(t)
	options := fabric.Plain("plain-" + home.Name)
	options.Namespace = between(home, remote)
	start(t, options)
	home.Pod("before", "", withoutVolume, bound(options.Node), patient)
	home.WaitReady("before")
	copied := remote.WaitReady("before")
	for _, n := range []*user.Namespace{remote, home} {
		if err := n.Cluster.Restart(t.Context(), "kube-apiserver"); err != nil {
			t.Fatal(err)
		}
	}
	home.Pod("after", "", withoutVolume, bound(options.Node))
	home.WaitReady("after")
	if found := get(t, remote, "before"); found == nil || found.UID != copied.UID {
		t.Errorf("the pod from before is %v", found)
	}
	home.DeletePod("before")
	if get(t, remote, "before") != nil {
		t.Error("the home pod was gone before the remote one")
	}
}

func TestRemotePodsGoWhenTheirHomePodWentUnseen(t *testing.T) {
	home, remote := twoNamespaces(t)
	options := fabric.Plain("plain-" + home.Name)
	options.Namespace = between(home, remote)
	killed, kill := context.WithCancel(t.Context())
	options.Home, options.Remote, options.Progress = home.Cluster, remote.Cluster, journal(t)
	first, err := fabric.Start(killed, options)
	kill() // whatever came of it
	if err != nil {
		t.Fatal(err)
	}
	stop(t, first)
	wantNoGoroutines(t, home)

	killed, kill = context.WithCancel(t.Context())
	if _, err = fabric.Start(killed, options); err != nil {
		kill()
		t.Fatal(err)
	}
	home.Pod("kept", "", withoutVolume, bound(options.Node))
	home.Pod("lost", "", withoutVolume, bound(options.Node))
	home.WaitReady("kept")
	home.WaitReady("lost")
	kept := remote.WaitReady("kept")
	kill()
	home.DeletePod("lost") // no grace, so nobody needs to see it

	start(t, options)
	waitGone(t, remote, "lost")
	if found := get(t, remote, "kept"); found == nil || found.UID != kept.UID {
		t.Errorf("the other pod is %v", found)
	}
}

// wantNoGoroutines is for tests beside which no fabric runs.
func wantNoGoroutines(t *testing.T, n *user.Namespace) {
	t.Helper()
	n.Eventually("the fabric's goroutines end", func(context.Context) (string, error) {
		stacks := make([]byte, 1<<20)
		all := string(stacks[:runtime.Stack(stacks, true)])
		for _, code := range []string{"sanity-tests/fabric.", "client-go/tools/cache.", "client-go/util/workqueue."} {
			if strings.Contains(all, code) {
				return "some run " + code, nil
			}
		}
		return "", nil
	})
}

func TestNodeComesBackAndCordonsStay(t *testing.T) {
	t.Parallel()
	home, remote := twoNamespaces(t)
	options := fabric.Liqo("liqo-"+home.Name, "far")
	options.Namespace = between(home, remote)
	f := start(t, options)
	nodes := home.Client.CoreV1().Nodes()
	made := waitNode(t, home, options.Node, func(node *corev1.Node) bool { return true })
	wantMarks(t, made, options)

	patch := `{"metadata":{"labels":{"liqo.io/remote-cluster-id":"other","mine":"kept"},"annotations":{"mine":"kept"}},"spec":{"unschedulable":true}}`
	if _, err := nodes.Patch(t.Context(), options.Node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	changed := time.Now()
	beaten := waitNode(t, home, options.Node, func(node *corev1.Node) bool {
		return heartbeatOf(node).After(changed.Add(2 * time.Second))
	})
	if !beaten.Spec.Unschedulable || beaten.Labels["mine"] != "kept" || beaten.Annotations["mine"] != "kept" || beaten.Labels["liqo.io/remote-cluster-id"] != "other" {
		t.Errorf("others' changes are gone: %v %+v", beaten.ObjectMeta, beaten.Spec)
	}
	home.Pod("user", "", withoutVolume, tolerantOfAllButCordons, user.OnNode(options.Node))
	home.WaitEvent("user", "FailedScheduling", "unschedulable")

	if err := nodes.Delete(t.Context(), options.Node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again := waitNode(t, home, options.Node, func(node *corev1.Node) bool { return node.UID != made.UID })
	wantMarks(t, again, options)
	home.WaitReady("user") // the cordon went with the Node

	stop(t, f)
	stop(t, f)
	if _, err := nodes.Get(t.Context(), options.Node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node outlives its fabric: %v", err)
	}
	_, err := home.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), options.Node, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the lease outlives its fabric: %v", err)
	}
	if get(t, remote, "user") != nil || get(t, home, "user") != nil {
		t.Error("pods outlive their fabric")
	}
}

func TestRealNodesAreNotTakenOver(t *testing.T) {
	t.Parallel()
	options := fabric.Plain(user.Cluster(t, "home").Nodes()[0].Name)
	options.Home, options.Remote = user.Cluster(t, "home"), user.Cluster(t, "remote")
	if f, err := fabric.Start(t.Context(), options); err == nil {
		stop(t, f)
		t.Fatal("a real node became a virtual one")
	}
}

func wantMarks(t *testing.T, node *corev1.Node, options fabric.Options) {
	t.Helper()
	for key, value := range options.Labels {
		if node.Labels[key] != value {
			t.Errorf("label %s is %q, want %q", key, node.Labels[key], value)
		}
	}
	if node.Labels[corev1.LabelHostname] != node.Name || node.Labels[corev1.LabelOSStable] != "linux" {
		t.Errorf("labels %v", node.Labels)
	}
	for _, taint := range options.Taints {
		if !hasTaint(node, taint.Key) {
			t.Errorf("taints %v", node.Spec.Taints)
		}
	}
}

// tolerantOfAllButCordons is for pods that the scheduler places.
func tolerantOfAllButCordons(pod *corev1.Pod) {
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "virtual-node.liqo.io/not-allowed", Operator: corev1.TolerationOpExists}}
}

func hasTaint(node *corev1.Node, key string) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == key {
			return true
		}
	}
	return false
}

func heartbeatOf(node *corev1.Node) time.Time {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return condition.LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}

// waitNode waits for a ready node that is as wanted.
func waitNode(t *testing.T, n *user.Namespace, name string, wanted func(*corev1.Node) bool) *corev1.Node {
	t.Helper()
	var node *corev1.Node
	n.Eventually("node "+name+" is ready", func(ctx context.Context) (string, error) {
		var err error
		if node, err = n.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return "", err
		}
		if heartbeatOf(node).IsZero() || !wanted(node) {
			return "it is not as wanted", nil
		}
		return "", nil
	})
	return node
}
