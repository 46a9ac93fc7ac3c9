package fabric

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/fabric"
)

func TestPodRunsInTheOtherCluster(t *testing.T) {
	t.Parallel()
	home, remote := twoNamespaces(t)
	options := fabric.Liqo("liqo-"+home.Name, "far")
	options.Namespace = between(home, remote)
	start(t, options)
	remote.Claim("data", "reference", "64Mi")

	home.Pod("user", "data", bound(options.Node), patient)
	here := home.WaitReady("user")
	there := remote.WaitReady("user")
	if node, err := remote.Cluster.Node(there.Spec.NodeName); err != nil {
		t.Errorf("it runs on %v: %v", node, err)
	}
	if got := remote.Exec("user", "echo far > /data/file && cat /data/file && hostname"); got != "far\nuser" {
		t.Errorf("read %q", got)
	}
	if !equality.Semantic.DeepEqual(here.Spec.Volumes, there.Spec.Volumes) {
		t.Errorf("volumes %v here, %v there", here.Spec.Volumes, there.Spec.Volumes)
	}
	if there.Annotations[fabric.UIDAnnotation] != string(here.UID) || there.Labels["app"] != "user" {
		t.Errorf("labels %v, annotations %v", there.Labels, there.Annotations)
	}
	if here.Status.PodIP == "" || here.Status.PodIP != there.Status.PodIP || here.Status.HostIP != there.Status.HostIP ||
		here.Status.ContainerStatuses[0].ContainerID != there.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("status %+v here, %+v there", here.Status, there.Status)
	}
	claims, err := home.Client.CoreV1().PersistentVolumeClaims(home.Name).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(claims.Items) > 0 {
		t.Errorf("claims %v, %v", claims, err)
	}

	if err := home.Client.CoreV1().Pods(home.Name).Delete(t.Context(), "user", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	home.Eventually("the pod goes away", func(ctx context.Context) (string, error) {
		_, err := home.Client.CoreV1().Pods(home.Name).Get(ctx, "user", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return "it is still there", err
		}
		if get(t, remote, "user") != nil {
			t.Error("the home pod was gone before the remote one")
		}
		return "", nil
	})
}

func TestSchedulerMayUseTheNode(t *testing.T) {
	t.Parallel()
	home, remote := twoNamespaces(t)
	options := fabric.Kosmos(home.Name)
	options.Namespace = between(home, remote)
	start(t, options)
	home.Pod("free", "", withoutVolume, tolerant, user.OnNode(options.Node))
	home.WaitReady("free")
	remote.WaitReady("free")
}

func TestPodThatCannotRunThereTellsWhy(t *testing.T) {
	t.Parallel()
	home, remote := twoNamespaces(t)
	options := fabric.Plain("plain-" + home.Name)
	options.Namespace = between(home, remote)
	start(t, options)
	home.Pod("user", "missing", bound(options.Node))
	waitPending(t, home, "user", "Unschedulable", `in cluster remote: 0/`)
	waitPending(t, home, "user", "Unschedulable", `"missing" not found`)
	remote.Claim("missing", "reference", "64Mi")
	home.WaitReady("user")
	if reason := get(t, home, "user").Status.Reason; reason != "" {
		t.Errorf("it still tells %s", reason)
	}
}

func TestRemotePodIsKeptWhileTheHomePodLives(t *testing.T) {
	t.Parallel()
	home, remote := twoNamespaces(t)
	options := fabric.Plain("plain-" + home.Name)
	options.Namespace = between(home, remote)
	start(t, options)
	home.Pod("user", "", withoutVolume, bound(options.Node))
	here, first := home.WaitReady("user"), remote.WaitReady("user")

	remote.DeletePod("user")
	if second := remote.WaitReady("user"); second.UID == first.UID {
		t.Error("the remote pod was not deleted")
	}
	if home.WaitReady("user").UID != here.UID {
		t.Error("the home pod is another")
	}

	if err := home.Client.CoreV1().Pods(home.Name).Delete(t.Context(), "user", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	waitGone(t, remote, "user")
}

func TestOtherPodsOfTheSameNameAreLeftAlone(t *testing.T) {
	t.Parallel()
	home, remote := twoNamespaces(t)
	options := fabric.Plain("plain-" + home.Name)
	options.Namespace = between(home, remote)
	start(t, options)
	remote.Pod("user", "", withoutVolume)
	foreign := remote.WaitReady("user")

	home.Pod("user", "", withoutVolume, bound(options.Node), patient)
	waitPending(t, home, "user", fabric.ReasonPodExists, remote.Name+"/user")
	home.DeletePod("user")
	if found := get(t, remote, "user"); found == nil || found.UID != foreign.UID || found.DeletionTimestamp != nil {
		t.Errorf("the foreign pod is %v", found)
	}

	home.Pod("user", "", withoutVolume, bound(options.Node))
	waitPending(t, home, "user", fabric.ReasonPodExists, remote.Name+"/user")
	remote.DeletePod("user")
	home.WaitReady("user")
}

func TestPodsWaitUntilTheirNamespaceIsMapped(t *testing.T) {
	t.Parallel()
	home, remote := twoNamespaces(t)
	var mapped atomic.Bool
	options := fabric.Plain("plain-" + home.Name)
	options.Namespace = func(string) (string, bool) { return remote.Name, mapped.Load() }
	start(t, options)
	home.Pod("user", "", withoutVolume, bound(options.Node))
	waitPending(t, home, "user", fabric.ReasonNamespaceNotMapped, "namespace "+home.Name)
	mapped.Store(true)
	home.WaitReady("user")
}

func TestRemoteNamespacesAreMadeUnlessTheyAreSomebodyElses(t *testing.T) {
	t.Parallel()
	home, remote := twoNamespaces(t)
	missing := home.Name // free in the remote cluster
	removeNamespace := func() {
		err := remote.Client.CoreV1().Namespaces().Delete(user.CleanupContext(t), missing, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	t.Cleanup(removeNamespace)

	options := fabric.Plain("plain-" + home.Name)
	options.NoNamespaces = true
	careful := start(t, options)
	home.Pod("user", "", withoutVolume, bound(options.Node))
	waitPending(t, home, "user", fabric.ReasonNamespaceMissing, missing)
	stop(t, careful)
	if found := get(t, home, "user"); found != nil {
		t.Errorf("the pod outlives its node: %v", found)
	}

	options.NoNamespaces = false
	start(t, options)
	home.Pod("user", "", withoutVolume, bound(options.Node))
	home.WaitReady("user")
}

func TestDaemonSetsDoNotReachTheOtherCluster(t *testing.T) {
	t.Parallel()
	home, remote := twoNamespaces(t)
	options := fabric.Plain("plain-" + home.Name)
	options.Namespace = between(home, remote)
	start(t, options)
	sets, labels := home.Client.AppsV1().DaemonSets(home.Name), map[string]string{"app": "machine"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "machine"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       user.NewPod("machine", "", withoutVolume, patient, user.OnNode(options.Node)).Spec,
			},
		},
	}
	if _, err := sets.Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	machines := func(n *user.Namespace, number int) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=machine"})
			if err != nil || len(pods.Items) == number && (number == 0 || pods.Items[0].Spec.NodeName == options.Node) {
				return "", err
			}
			return fmt.Sprintf("there are %d", len(pods.Items)), nil
		}
	}
	home.Eventually("the set has a pod on the node", machines(home, 1))
	home.Pod("user", "", withoutVolume, bound(options.Node))
	home.WaitReady("user") // made later, and there already
	if found, err := machines(remote, 0)(t.Context()); found != "" || err != nil {
		t.Errorf("pods of the set in the other cluster: %s %v", found, err)
	}
	if err := sets.Delete(t.Context(), "machine", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	home.Eventually("the set's pod goes away", machines(home, 0))
}
