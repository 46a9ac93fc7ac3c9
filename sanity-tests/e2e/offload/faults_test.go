package offload

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/faults"
	"storage.liqo.io/sanity-tests/sample"
)

const members = 3

var trials = flag.Int("trials", 12, "number of random faults in TestPodsRunAtMostOnceDespiteFaults")

// Pods of a StatefulSet are deleted in both clusters, also by force, while the fabric is killed and
// the link is cut: none of them ever runs twice, and in the end all run.
func TestPodsRunAtMostOnceDespiteFaults(t *testing.T) {
	prepare(t)
	n := tenant{user.NewNamespace(t, user.Cluster(t, "home")), t}
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
	proxy := user.Cluster(t, "remote").Proxy()
	t.Cleanup(func() { _ = proxy.Set(user.CleanupContext(t), faults.Setting{Mode: faults.Pass}) })

	pods := user.WatchRuns(t, remote)
	n.createSet()
	n.waitSet()
	seed := sample.Seed()
	t.Logf("the faults follow from the seed: %s=%d repeats them", sample.SeedVariable, seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	for range *trials {
		member := fmt.Sprintf("ring-%d", random.IntN(members))
		switch random.IntN(5) {
		case 0:
			forceDelete(n.Namespace, n.Name, member)
		case 1:
			forceDelete(remote, remote.Name, member)
		case 2:
			n.killFabric()
		case 3:
			modes := []faults.Mode{faults.Hang, faults.Reset}
			n.set(proxy, modes[random.IntN(len(modes))])
			forceDelete(n.Namespace, n.Name, member)
			sleep(t, time.Duration(random.IntN(12))*time.Second)
			n.set(proxy, faults.Pass)
		case 4:
			if err := n.Client.CoreV1().Pods(n.Name).Delete(t.Context(), member, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
		sleep(t, time.Duration(random.IntN(3000))*time.Millisecond)
	}
	n.waitFabric()
	n.waitSet()
	if ran := pods.CheckNoneTwice(); ran <= members {
		t.Errorf("no fault affected a pod: only %d pods ran", ran)
	}
}

// A Job's pod succeeds while its cluster is unreachable, and is evicted at home, as Kubernetes does
// after five minutes.
func TestJobThatSucceededWhileUnreachableIsNotRunAgain(t *testing.T) {
	prepare(t)
	n := tenant{user.NewNamespace(t, user.Cluster(t, "home")), t}
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
	proxy := user.Cluster(t, "remote").Proxy()
	t.Cleanup(func() { _ = proxy.Set(user.CleanupContext(t), faults.Setting{Mode: faults.Pass}) })

	n.createJob("until test -e /tmp/done; do sleep 1; done")
	name := n.onlyPod("job-name=once")
	n.WaitReady(name)
	n.set(proxy, faults.Hang)
	remote.Exec(name, "touch /tmp/done")
	remote.Eventually("the pod to succeed", func(ctx context.Context) (string, error) {
		pod, err := remote.Client.CoreV1().Pods(remote.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil || pod.Status.Phase == corev1.PodSucceeded {
			return "", err
		}
		return "it is " + string(pod.Status.Phase), nil
	})
	if out, err := n.Kubectl("delete", "pod", name, "--wait=false"); err != nil {
		t.Fatal(err, out)
	}
	n.set(proxy, faults.Pass)
	n.Eventually("the job to succeed", func(ctx context.Context) (string, error) {
		job, err := n.Client.BatchV1().Jobs(n.Name).Get(ctx, "once", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if job.Status.Failed != 0 {
			user.Violated(t, "its pod has succeeded, and is counted as failed")
		}
		if job.Status.Succeeded != 1 {
			return fmt.Sprintf("%+v", job.Status), nil
		}
		return "", nil
	})
}

// createSet creates the StatefulSet ring on the virtual node.
func (n tenant) createSet() {
	n.t.Helper()
	labels := map[string]string{"app": "ring"}
	spec := user.NewPod("", "", stateless).Spec
	grace, replicas := int64(2), int32(members)
	spec.TerminationGracePeriodSeconds = &grace
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "ring"}, Spec: appsv1.StatefulSetSpec{
		Replicas: &replicas, ServiceName: "ring", PodManagementPolicy: appsv1.ParallelPodManagement,
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
	}}
	if _, err := n.Client.AppsV1().StatefulSets(n.Name).Create(n.t.Context(), set, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

func (n tenant) waitSet() {
	n.t.Helper()
	n.Eventually("all of the set to be ready", func(ctx context.Context) (string, error) {
		set, err := n.Client.AppsV1().StatefulSets(n.Name).Get(ctx, "ring", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=ring"})
		if err != nil {
			return "", err
		}
		leaving := slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
		if set.Status.ReadyReplicas != members || leaving {
			return fmt.Sprintf("%d are ready, some are being deleted: %t", set.Status.ReadyReplicas, leaving), nil
		}
		return "", nil
	})
}

// waitFabric waits until the fabric runs with all its replicas, and its node is ready.
func (n tenant) waitFabric() {
	n.t.Helper()
	n.Eventually("the fabric to run again", func(ctx context.Context) (string, error) {
		found, err := n.Client.AppsV1().Deployments(chart.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=fabric"})
		if err != nil {
			return "", err
		}
		if len(found.Items) != 1 {
			return fmt.Sprintf("it has %d Deployments", len(found.Items)), nil
		}
		if wanted, ready := *found.Items[0].Spec.Replicas, found.Items[0].Status.ReadyReplicas; ready != wanted {
			return fmt.Sprintf("%d of %d replicas are ready", ready, wanted), nil
		}
		on, err := n.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range on.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return "", nil
			}
		}
		return fmt.Sprintf("its node has %v", on.Status.Conditions), nil
	})
}

func (n tenant) killFabric() {
	n.t.Helper()
	selector := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=fabric"}
	err := n.Client.CoreV1().Pods(chart.Namespace).DeleteCollection(n.t.Context(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, selector)
	if err != nil {
		n.t.Error(err)
	}
}

func (n tenant) set(proxy *faults.Client, mode faults.Mode) {
	n.t.Helper()
	if err := proxy.Set(n.t.Context(), faults.Setting{Mode: mode}); err != nil {
		n.t.Error(err)
	}
}

// forceDelete deletes a pod without a grace period.
func forceDelete(n *user.Namespace, namespace, name string) {
	_ = n.Client.CoreV1().Pods(namespace).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
}

// sleep varies when faults occur.
func sleep(t *testing.T, most time.Duration) {
	select {
	case <-time.After(most):
	case <-t.Context().Done():
	}
}
