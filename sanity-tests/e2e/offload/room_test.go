package offload

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// createDeployment creates the Deployment web.
func (n tenant) createDeployment(replicas int32, edits ...func(*corev1.Pod)) {
	n.t.Helper()
	labels := map[string]string{"app": "web"}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: user.NewPod("", "", edits...).Spec},
	}}
	if _, err := n.Client.AppsV1().Deployments(n.Name).Create(n.t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// requestCPU is a pod without volumes that requests this CPU.
func requestCPU(cpu *resource.Quantity) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		withoutVolumes(pod)
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *cpu}
	}
}

// preferRemote makes a pod prefer virtual nodes.
func preferRemote(weight int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: weight, Preference: term(requirement(typeLabel, corev1.NodeSelectorOpIn, "virtual-node")),
			}},
		}}
	}
}

// The remote nodes are large enough for the pods, but none has enough left for one.
func TestPodsReturnHomeWithoutRemoteCapacity(t *testing.T) {
	n := newExclusiveTenant(t)
	setFabric(t, map[string]any{"pods": map[string]any{"giveUpAfter": "5s"}}, map[string]any{"pods": map[string]any{"giveUpAfter": nil}})
	full := user.NewNamespace(t, user.Cluster(t, "remote"))
	nodes, err := full.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	share := func(node corev1.Node, percent int64) *resource.Quantity {
		return resource.NewMilliQuantity(node.Status.Allocatable.Cpu().MilliValue()*percent/100, resource.DecimalSI)
	}
	for _, node := range nodes.Items {
		full.Pod("on-"+node.Name, "", requestCPU(share(node, 70)), user.OnNode(node.Labels[corev1.LabelHostname]))
	}
	for _, node := range nodes.Items {
		full.WaitReady("on-" + node.Name)
	}
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	n.waitPolicies(placement{strategy: "LocalAndRemote"})
	runs := user.WatchRuns(t, user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name))

	n.createDeployment(2, requestCPU(share(nodes.Items[0], 40)), preferRemote(1))
	n.waitReturned(2)
	if ran := runs.CheckNoneTwice(); ran != 0 {
		user.Violated(t, "%d pods ran in the remote cluster", ran)
	}
	n.unoffload()
}

// Pods that a policy or quota of the remote cluster refuses run in the home cluster.
func TestPodsThatTheRemoteClusterRefusesReturnHome(t *testing.T) {
	n := newExclusiveTenant(t)
	setFabric(t, map[string]any{"pods": map[string]any{"giveUpAfter": "5s"}}, map[string]any{"pods": map[string]any{"giveUpAfter": nil}})
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	n.waitPolicies(placement{strategy: "LocalAndRemote"})
	remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
	remote.Quota("none", corev1.ResourcePods, "0")
	runs := user.WatchRuns(t, remote)
	n.createDeployment(1, requestCPU(resource.NewMilliQuantity(10, resource.DecimalSI)), preferRemote(1))
	n.waitReturned(1)
	if ran := runs.CheckNoneTwice(); ran != 0 {
		user.Violated(t, "%d pods ran in the remote cluster", ran)
	}
	n.unoffload()
}

// waitReturned waits until the fabric has deleted a pod that could not run, and all replicas of the Deployment web
// run in the home cluster.
func (n tenant) waitReturned(replicas int) {
	n.t.Helper()
	n.Eventually("a pod to have returned home", func(ctx context.Context) (string, error) {
		events, err := n.Client.EventsV1().Events(n.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, event := range events.Items {
			if event.Reason == "RemotePodGivenUp" {
				return "", nil
			}
		}
		return fmt.Sprintf("none of %d events reports it", len(events.Items)), nil
	})
	// The fabric deletes at most one pod of a controller per minute.
	n.Eventually("all pods to run at home", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return "", err
		}
		for _, pod := range pods.Items {
			if pod.Status.Phase != corev1.PodRunning || pod.Spec.NodeName == node {
				return fmt.Sprintf("%s is %s on %s: %s", pod.Name, pod.Status.Phase, pod.Spec.NodeName, pod.Status.Message), nil
			}
		}
		if len(pods.Items) != replicas {
			return fmt.Sprintf("there are %d", len(pods.Items)), nil
		}
		return "", nil
	})
}
