package fabric

import (
	"context"
	"fmt"
	"runtime"
	"slices"
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

// The first two tests are serial, because they restart API servers or need that no other fabric runs.

func TestPodsSurviveRestartsOfBothAPIServers(t *testing.T) {
	home, remote, options := startPlain(t)
	home.Pod("before", "", withoutVolume, boundTo(options.Node), withGracePeriod)
	home.WaitReady("before")
	copied := remote.WaitReady("before")
	for _, n := range []*user.Namespace{remote, home} {
		if err := n.Cluster.Restart(t.Context(), "kube-apiserver"); err != nil {
			t.Fatal(err)
		}
	}
	home.Pod("after", "", withoutVolume, boundTo(options.Node))
	home.WaitReady("after")
	if found := getPod(t, remote, "before"); found == nil || found.UID != copied.UID {
		t.Errorf("the remote pod was replaced: %v", found)
	}
	home.DeletePod("before")
	if getPod(t, remote, "before") != nil {
		t.Error("the home pod was deleted before the remote pod")
	}
}

func TestRemotePodIsDeletedAfterAMissedDeletionOfItsHomePod(t *testing.T) {
	home, remote := newNamespaces(t)
	options := fabric.Plain("plain-" + home.Name)
	options.Namespace = mapNamespace(home, remote)
	killed, kill := context.WithCancel(t.Context())
	options.Home, options.Remote, options.Progress = home.Cluster, remote.Cluster, logOnFailure(t)
	first, err := fabric.Start(killed, options)
	kill()
	if err != nil {
		t.Fatal(err)
	}
	stop(t, first)
	waitNoGoroutines(home)

	killed, kill = context.WithCancel(t.Context())
	if _, err = fabric.Start(killed, options); err != nil {
		kill()
		t.Fatal(err)
	}
	home.Pod("kept", "", withoutVolume, boundTo(options.Node))
	home.Pod("deleted", "", withoutVolume, boundTo(options.Node))
	home.WaitReady("kept")
	home.WaitReady("deleted")
	kept := remote.WaitReady("kept")
	kill()
	home.DeletePod("deleted") // without a grace period, so without the fabric

	start(t, options)
	remote.WaitDeleted("pod", "deleted")
	if found := getPod(t, remote, "kept"); found == nil || found.UID != kept.UID {
		t.Errorf("the other pod was replaced: %v", found)
	}
}

// waitNoGoroutines waits until no goroutines of any fabric are left.
func waitNoGoroutines(n *user.Namespace) {
	n.Eventually("the fabric's goroutines end", func(context.Context) (string, error) {
		stacks := make([]byte, 1<<20)
		all := string(stacks[:runtime.Stack(stacks, true)])
		for _, code := range []string{"sanity-tests/fabric.", "client-go/tools/cache.", "client-go/util/workqueue."} {
			if strings.Contains(all, code) {
				return "goroutines in " + code, nil
			}
		}
		return "", nil
	})
}

func TestDeletedNodeIsRecreatedAndCordonIsKept(t *testing.T) {
	t.Parallel()
	home, remote := newNamespaces(t)
	options := fabric.Liqo("liqo-"+home.Name, "fabric-test")
	options.Namespace = mapNamespace(home, remote)
	f := start(t, options)
	nodes := home.Client.CoreV1().Nodes()
	first := waitNode(t, home, options.Node, func(node *corev1.Node) bool { return true })
	wantMarks(t, first, options)

	patch := `{"metadata":{"labels":{"liqo.io/remote-cluster-id":"other","test":"kept"},"annotations":{"test":"kept"}},"spec":{"unschedulable":true}}`
	if _, err := nodes.Patch(t.Context(), options.Node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	changed := time.Now()
	updated := waitNode(t, home, options.Node, func(node *corev1.Node) bool {
		return heartbeatOf(node).After(changed.Add(2 * time.Second))
	})
	if !updated.Spec.Unschedulable || updated.Labels["test"] != "kept" || updated.Annotations["test"] != "kept" || updated.Labels["liqo.io/remote-cluster-id"] != "other" {
		t.Errorf("changes of other clients were reverted: %v %+v", updated.ObjectMeta, updated.Spec)
	}
	home.Pod("user", "", withoutVolume, withLiqoToleration, user.OnNode(options.Node))
	home.WaitEvent("user", "FailedScheduling", "unschedulable")

	if err := nodes.Delete(t.Context(), options.Node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second := waitNode(t, home, options.Node, func(node *corev1.Node) bool { return node.UID != first.UID })
	wantMarks(t, second, options)
	home.WaitReady("user") // the new Node is not cordoned

	stop(t, f)
	stop(t, f)
	if _, err := nodes.Get(t.Context(), options.Node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Node was not deleted: %v", err)
	}
	_, err := home.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), options.Node, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the Lease was not deleted: %v", err)
	}
	if getPod(t, remote, "user") != nil || getPod(t, home, "user") != nil {
		t.Error("the pods were not deleted")
	}
}

func TestRealNodesAreNotTakenOver(t *testing.T) {
	t.Parallel()
	options := fabric.Plain(user.Cluster(t, "home").Nodes()[0].Name)
	options.Home, options.Remote = user.Cluster(t, "home"), user.Cluster(t, "remote")
	if f, err := fabric.Start(t.Context(), options); err == nil {
		stop(t, f)
		t.Fatal("a fabric started with the name of a real node")
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
		t.Errorf("labels: %v", node.Labels)
	}
	for _, taint := range options.Taints {
		if !slices.ContainsFunc(node.Spec.Taints, func(found corev1.Taint) bool { return found.Key == taint.Key }) {
			t.Errorf("taints: %v", node.Spec.Taints)
		}
	}
}

// withLiqoToleration tolerates the taint of Liqo's nodes, but not that of a cordon.
func withLiqoToleration(pod *corev1.Pod) {
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "virtual-node.liqo.io/not-allowed", Operator: corev1.TolerationOpExists}}
}

// heartbeatOf returns the last heartbeat of a ready node, otherwise the zero time.
func heartbeatOf(node *corev1.Node) time.Time {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return condition.LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}

// waitNode waits for a ready node with this property.
func waitNode(t *testing.T, n *user.Namespace, name string, wanted func(*corev1.Node) bool) *corev1.Node {
	t.Helper()
	var node *corev1.Node
	n.Eventually("node "+name+" is ready and as wanted", func(ctx context.Context) (string, error) {
		var err error
		if node, err = n.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return "", err
		}
		if heartbeatOf(node).IsZero() || !wanted(node) {
			return fmt.Sprintf("its conditions: %v", node.Status.Conditions), nil
		}
		return "", nil
	})
	return node
}
