package offload

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/faults"
	"storage.liqo.io/sanity-tests/images"
)

// "... and triggering the rescheduling of all offloaded pods locally".
func TestUnoffloadingReschedulesPodsAtHome(t *testing.T) {
	n := newTenant(t)
	n.offload("--pod-offloading-strategy", "Remote")
	n.Apply(deploymentManifest("web", 1))
	pod := n.onlyPod("app=web")
	n.WaitReady(pod)
	if on := n.pod(pod).Spec.NodeName; on != node {
		t.Fatalf("it is on %s", on)
	}
	uid := n.pod(pod).UID
	n.unoffload()
	n.Eventually("a pod at home", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return "", err
		}
		for _, pod := range pods.Items {
			if pod.UID == uid || pod.Spec.NodeName == node || pod.Status.Phase != corev1.PodRunning {
				return fmt.Sprintf("%s is %s on %q", pod.Name, pod.Status.Phase, pod.Spec.NodeName), nil
			}
		}
		if len(pods.Items) != 1 {
			return fmt.Sprintf("there are %d", len(pods.Items)), nil
		}
		return "", nil
	})
}

// A recreated node keeps the labels of administrators, and its pods keep running.
func TestDeletedVirtualNodeIsRecreatedWithItsLabels(t *testing.T) {
	// Pods of other tests would run on that node.
	n := newExclusiveTenant(t)
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	n.Pod("web", "", stateless)
	before := n.WaitReady("web")
	nodes := n.Client.CoreV1().Nodes()
	label := func(value string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"team":%s}}}`, value)
		if _, err := nodes.Patch(user.CleanupContext(t), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label(`"a"`)
	t.Cleanup(func() { label("null") })
	all, err := dynamicClient(n.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	n.Eventually("the label to be kept", func(ctx context.Context) (string, error) {
		object, err := all.Resource(clustersOf).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		status, _ := object.Object["status"].(map[string]any)
		if kept := fmt.Sprint(status["virtualNode"]); !strings.Contains(kept, "team:a") {
			return "the status has " + kept, nil
		}
		return "", nil
	})
	old, err := nodes.Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if old.Labels["tier"] != "edge" || old.Labels["region"] != "europe" {
		t.Errorf("suggested labels and those set at home: %v", old.Labels)
	}
	if err := nodes.Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	n.Eventually("the node to be recreated with its labels", func(ctx context.Context) (string, error) {
		found, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "it does not exist", nil
		}
		if err != nil {
			return "", err
		}
		if found.UID == old.UID || found.Labels["team"] != "a" {
			return fmt.Sprintf("it has the uid %s (it was %s), and %v", found.UID, old.UID, found.Labels), nil
		}
		return "", nil
	})
	n.waitPod("the pod to be ready", "web", func(pod *corev1.Pod) string {
		if pod.UID != before.UID {
			return "it was replaced"
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status != corev1.ConditionTrue {
				return "it is not ready: " + condition.Reason
			}
		}
		return ""
	})
}

// A cluster is declared lost, and its namespace unoffloaded while it is unreachable. When it is reachable again,
// nothing at home names that namespace any more: its pods end, and everything else is kept.
func TestPodsEndWhenALostClusterReturnsWithItsNamespace(t *testing.T) {
	// The taint evicts all pods of the node.
	n := newExclusiveTenant(t)
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
	n.Pod("web", "", stateless)
	n.WaitReady("web")
	proxy := user.Cluster(t, "remote").Proxy()
	const taint = "node.kubernetes.io/out-of-service"
	t.Cleanup(func() {
		ctx := user.CleanupContext(t)
		_ = proxy.Set(ctx, faults.Setting{Mode: faults.Pass})
		_, _ = n.Kubectl("taint", "node", node, taint+"-")
		err := remote.Client.CoreV1().Namespaces().Delete(ctx, n.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})

	n.set(proxy, faults.Hang)
	n.Eventually("the node not to be ready", func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				return "", nil
			}
		}
		return "it is ready", nil
	})
	for _, args := range [][]string{
		{"taint", "node", node, taint + "=nodeshutdown:NoExecute"},
		{"delete", "pod", "web", "--wait=false"},
		{"delete", "namespaceoffloading", "offloading", "--wait=false"},
	} {
		// The pod may be deleted by the taint.
		if out, err := n.Kubectl(args...); err != nil && args[1] != "pod" {
			t.Fatal(err, out)
		}
	}
	waitDeleted(n.Namespace, "web")
	n.Eventually("the NamespaceOffloading to be deleted", func(ctx context.Context) (string, error) {
		_, err := n.readOffloading(ctx)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it exists", err
	})
	// So that it ends afterwards, and not because of a deletion that was under way.
	if pod, err := remote.Client.CoreV1().Pods(n.Name).Get(t.Context(), "web", metav1.GetOptions{}); err != nil || pod.DeletionTimestamp != nil {
		t.Fatalf("the remote pod: %v, %v", pod.DeletionTimestamp, err)
	}

	n.set(proxy, faults.Pass)
	if out, err := n.Kubectl("taint", "node", node, taint+"-"); err != nil {
		t.Fatal(err, out)
	}
	waitDeleted(remote, "web")
	if found := n.remote(n.Name); found == nil || found.DeletionTimestamp != nil {
		t.Error("the namespace is deleted, with all claims in it")
	}
	n.waitFabric()
}

// deploymentManifest is a Deployment without claims whose pods terminate quickly.
func deploymentManifest(name string, replicas int) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: web, image: %[3]q, command: [sleep, "2147483647"]}
`, name, replicas, images.BusyboxName)
}

// As with kubectl drain, --force is needed because nothing recreates such a pod.
func TestPodWithoutOwnerIsDeletedOnlyWithForce(t *testing.T) {
	n, _ := offloadedTenant(t)
	n.Pod("alone", "", stateless)
	n.WaitReady("alone")
	var refused *exec.ExitError
	_, err := n.program("unoffload", "namespace", n.Name)
	if !errors.As(err, &refused) || refused.ExitCode() != 2 || !strings.Contains(err.Error(), n.Name+"/alone") {
		t.Fatalf("it is not refused with the name of the pod: %v", err)
	}
	if n.offloading().GetDeletionTimestamp() != nil {
		user.Violated(t, "the namespace is unoffloaded nevertheless")
	}
	n.unoffload()
	if _, err := n.Client.CoreV1().Pods(n.Name).Get(t.Context(), "alone", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod still exists: %v", err)
	}
}
