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
	"storage.liqo.io/sanity-tests/images"
)

// "... and triggering the rescheduling of all offloaded pods locally".
func TestUnoffloadingBringsPodsHome(t *testing.T) {
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
func TestNodeThatIsDeletedIsMadeAgainAsItWas(t *testing.T) {
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
		t.Errorf("what the cluster suggests and what is said here: %v", old.Labels)
	}
	if err := nodes.Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	n.Eventually("the node to be there again, as it was", func(ctx context.Context) (string, error) {
		found, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "it is not there", nil
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
			return "it is another one"
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status != corev1.ConditionTrue {
				return "it is not ready: " + condition.Reason
			}
		}
		return ""
	})
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
func TestPodWithoutOwnerIsNotDeletedUnasked(t *testing.T) {
	n, _ := offloadedTenant(t)
	n.Pod("alone", "", stateless)
	n.WaitReady("alone")
	var refused *exec.ExitError
	_, err := n.program("unoffload", "namespace", n.Name)
	if !errors.As(err, &refused) || refused.ExitCode() != 2 || !strings.Contains(err.Error(), n.Name+"/alone") {
		t.Fatalf("it is not refused with the name of the pod: %v", err)
	}
	if n.offloading().GetDeletionTimestamp() != nil {
		user.Violated(t, "the namespace leaves nevertheless")
	}
	n.unoffload()
	if _, err := n.Client.CoreV1().Pods(n.Name).Get(t.Context(), "alone", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod is there still: %v", err)
	}
}
