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

func TestPodRunsInTheRemoteCluster(t *testing.T) {
	t.Parallel()
	home, remote := newNamespaces(t)
	options := fabric.Liqo("liqo-"+home.Name, "fabric-test")
	options.Namespace = mapNamespace(home, remote)
	start(t, options)
	remote.Claim("data", "reference", "64Mi")

	home.Pod("user", "data", boundTo(options.Node), withGracePeriod)
	homePod := home.WaitReady("user")
	remotePod := remote.WaitReady("user")
	if node, err := remote.Cluster.Node(remotePod.Spec.NodeName); err != nil {
		t.Errorf("the pod runs on %v: %v", node, err)
	}
	if got := remote.Exec("user", "echo kept > /data/file && cat /data/file && hostname"); got != "kept\nuser" {
		t.Errorf("read %q", got)
	}
	if !equality.Semantic.DeepEqual(homePod.Spec.Volumes, remotePod.Spec.Volumes) {
		t.Errorf("the volumes are %v at home, %v remote", homePod.Spec.Volumes, remotePod.Spec.Volumes)
	}
	if remotePod.Annotations[fabric.UIDAnnotation] != string(homePod.UID) || remotePod.Labels["app"] != "user" {
		t.Errorf("the labels of the remote pod are %v, the annotations %v", remotePod.Labels, remotePod.Annotations)
	}
	if homePod.Status.PodIP == "" || homePod.Status.PodIP != remotePod.Status.PodIP || homePod.Status.HostIP != remotePod.Status.HostIP ||
		homePod.Status.ContainerStatuses[0].ContainerID != remotePod.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the status is %+v at home, %+v remote", homePod.Status, remotePod.Status)
	}
	claims, err := home.Client.CoreV1().PersistentVolumeClaims(home.Name).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(claims.Items) > 0 {
		t.Errorf("claims at home: %v, %v", claims, err)
	}

	if err := home.Client.CoreV1().Pods(home.Name).Delete(t.Context(), "user", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	home.Eventually("the pod is deleted", func(ctx context.Context) (string, error) {
		_, err := home.Client.CoreV1().Pods(home.Name).Get(ctx, "user", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return "it still exists", err
		}
		if getPod(t, remote, "user") != nil {
			t.Error("the home pod was deleted before the remote pod")
		}
		return "", nil
	})
}

func TestSchedulerUsesTheVirtualNode(t *testing.T) {
	t.Parallel()
	home, remote := newNamespaces(t)
	options := fabric.Kosmos(home.Name)
	options.Namespace = mapNamespace(home, remote)
	start(t, options)
	home.Pod("user", "", withoutVolume, withTolerations, user.OnNode(options.Node))
	home.WaitReady("user")
	remote.WaitReady("user")
}

func TestPodThatCannotRunRemotelyReportsTheReason(t *testing.T) {
	t.Parallel()
	home, remote, options := startPlain(t)
	home.Pod("user", "missing", boundTo(options.Node))
	waitPending(t, home, "user", "Unschedulable", `in cluster remote: 0/`)
	waitPending(t, home, "user", "Unschedulable", `"missing" not found`)
	remote.Claim("missing", "reference", "64Mi")
	home.WaitReady("user")
	if reason := getPod(t, home, "user").Status.Reason; reason != "" {
		t.Errorf("its reason is %s", reason)
	}
}

func TestRemotePodIsRecreatedWhileTheHomePodExists(t *testing.T) {
	t.Parallel()
	home, remote, options := startPlain(t)
	home.Pod("user", "", withoutVolume, boundTo(options.Node))
	homePod, first := home.WaitReady("user"), remote.WaitReady("user")

	remote.DeletePod("user")
	if second := remote.WaitReady("user"); second.UID == first.UID {
		t.Error("the remote pod was not deleted")
	}
	if home.WaitReady("user").UID != homePod.UID {
		t.Error("the home pod was replaced")
	}

	if err := home.Client.CoreV1().Pods(home.Name).Delete(t.Context(), "user", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	remote.WaitDeleted("pod", "user")
}

func TestForeignPodOfTheSameNameIsKept(t *testing.T) {
	t.Parallel()
	home, remote, options := startPlain(t)
	remote.Pod("user", "", withoutVolume)
	foreign := remote.WaitReady("user")

	home.Pod("user", "", withoutVolume, boundTo(options.Node), withGracePeriod)
	waitPending(t, home, "user", fabric.ReasonPodExists, remote.Name+"/user")
	home.DeletePod("user")
	if found := getPod(t, remote, "user"); found == nil || found.UID != foreign.UID || found.DeletionTimestamp != nil {
		t.Errorf("the foreign pod was changed: %v", found)
	}

	home.Pod("user", "", withoutVolume, boundTo(options.Node))
	waitPending(t, home, "user", fabric.ReasonPodExists, remote.Name+"/user")
	remote.DeletePod("user")
	home.WaitReady("user")
}

func TestPodsWaitUntilTheirNamespaceIsMapped(t *testing.T) {
	t.Parallel()
	home, remote := newNamespaces(t)
	var mapped atomic.Bool
	options := fabric.Plain("plain-" + home.Name)
	options.Namespace = func(string) (string, bool) { return remote.Name, mapped.Load() }
	start(t, options)
	home.Pod("user", "", withoutVolume, boundTo(options.Node))
	waitPending(t, home, "user", fabric.ReasonNamespaceNotMapped, "namespace "+home.Name)
	mapped.Store(true)
	home.WaitReady("user")
}

func TestRemoteNamespaceIsCreatedUnlessDisabled(t *testing.T) {
	t.Parallel()
	home, remote := newNamespaces(t)
	missing := home.Name // which does not exist in the remote cluster
	removeNamespace := func() {
		err := remote.Client.CoreV1().Namespaces().Delete(user.CleanupContext(t), missing, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	t.Cleanup(removeNamespace)

	options := fabric.Plain("plain-" + home.Name)
	options.NoNamespaces = true
	first := start(t, options)
	home.Pod("user", "", withoutVolume, boundTo(options.Node))
	waitPending(t, home, "user", fabric.ReasonNamespaceMissing, missing)
	stop(t, first)
	if found := getPod(t, home, "user"); found != nil {
		t.Errorf("the pod was not deleted with its node: %v", found)
	}

	options.NoNamespaces = false
	start(t, options)
	home.Pod("user", "", withoutVolume, boundTo(options.Node))
	home.WaitReady("user")
}

func TestDaemonSetPodsDoNotRunInTheRemoteCluster(t *testing.T) {
	t.Parallel()
	home, remote, options := startPlain(t)
	sets, labels := home.Client.AppsV1().DaemonSets(home.Name), map[string]string{"app": "daemon"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "daemon"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       user.NewPod("daemon", "", withoutVolume, withGracePeriod, user.OnNode(options.Node)).Spec,
			},
		},
	}
	if _, err := sets.Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantPods := func(n *user.Namespace, number int) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=daemon"})
			if err != nil || len(pods.Items) == number && (number == 0 || pods.Items[0].Spec.NodeName == options.Node) {
				return "", err
			}
			return fmt.Sprintf("there are %d", len(pods.Items)), nil
		}
	}
	home.Eventually("the DaemonSet has a pod on the node", wantPods(home, 1))
	home.Pod("user", "", withoutVolume, boundTo(options.Node))
	home.WaitReady("user") // it was created after the pod of the set
	if found, err := wantPods(remote, 0)(t.Context()); found != "" || err != nil {
		t.Errorf("pods of the DaemonSet in the remote cluster: %s %v", found, err)
	}
	if err := sets.Delete(t.Context(), "daemon", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	home.Eventually("the pod of the DaemonSet is deleted", wantPods(home, 0))
}
