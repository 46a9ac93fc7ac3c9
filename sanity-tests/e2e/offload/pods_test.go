package offload

import (
	"context"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// offloadedTenant returns a tenant that is offloaded to a namespace of the same name, and that
// namespace.
func offloadedTenant(t *testing.T) (tenant, *user.Namespace) {
	t.Helper()
	n := newTenant(t)
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	return n, user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
}

// stateless schedules a pod without volumes on the virtual node.
func stateless(pod *corev1.Pod) {
	withoutVolumes(pod)
	onVirtualNode(pod)
}

func (n tenant) pod(name string) *corev1.Pod {
	n.t.Helper()
	pod, err := n.Client.CoreV1().Pods(n.Name).Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return pod
}

// waitPod waits until wrong returns "" for the pod.
func (n tenant) waitPod(what, name string, wrong func(pod *corev1.Pod) string) {
	n.t.Helper()
	n.Eventually(what, func(ctx context.Context) (string, error) {
		pod, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return wrong(pod), nil
	})
}

func waitDeleted(n *user.Namespace, name string) {
	n.Eventually("pod "+name+" to go", func(ctx context.Context) (string, error) {
		pod, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("it still exists: %s, finalizers %v", pod.Status.Phase, pod.Finalizers), nil
	})
}

func TestPodRunsInTheClusterOfItsData(t *testing.T) {
	n, remote := offloadedTenant(t)
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("writer", "data", onVirtualNode)
	here := n.WaitReady("writer")
	remote.Exec("writer", "echo kept > "+user.DataPath+"/file && sync")
	running, err := remote.Client.CoreV1().Pods(remote.Name).Get(t.Context(), "writer", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if here.Spec.NodeName != node || here.Status.PodIP == "" || here.Status.PodIP != running.Status.PodIP {
		t.Errorf("it is on %s with the address %q, the remote pod has the address %q", here.Spec.NodeName, here.Status.PodIP, running.Status.PodIP)
	}
	if uid := running.Annotations["fabric.storage.liqo.io/home-pod-uid"]; uid != string(here.UID) {
		t.Errorf("the remote pod runs for %q, not for %s", uid, here.UID)
	}
	n.DeletePod("writer")
	waitDeleted(remote, "writer")
	n.Pod("reader", "data", onVirtualNode)
	n.WaitReady("reader")
	if text := remote.Exec("reader", "cat "+user.DataPath+"/file"); strings.TrimSpace(text) != "kept" {
		user.Violated(t, "the file has %q", text)
	}
}

func TestChangesOfAPodReachItsRemotePod(t *testing.T) {
	n, remote := offloadedTenant(t)
	n.Pod("web", "", stateless, func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
	})
	n.WaitReady("web")
	first, err := remote.Client.CoreV1().Pods(remote.Name).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"label", "pod", "web", "role=primary", "app-"},
		{"annotate", "pod", "web", "note=new"},
		{"patch", "pod", "web", "--subresource", "resize", "--patch",
			`{"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "20m"}}}]}}`},
	} {
		if out, err := n.Kubectl(args...); err != nil {
			t.Fatal(err, out)
		}
	}
	n.Eventually("the changes to reach the remote pod", func(ctx context.Context) (string, error) {
		pod, err := remote.Client.CoreV1().Pods(remote.Name).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if _, still := pod.Labels["app"]; still || pod.Labels["role"] != "primary" || pod.Annotations["note"] != "new" {
			return fmt.Sprintf("the labels are %v, the annotations %v", pod.Labels, pod.Annotations), nil
		}
		if cpu := pod.Spec.Containers[0].Resources.Requests.Cpu().String(); cpu != "20m" {
			return "the CPU is " + cpu, nil
		}
		return "", nil
	})

	n.waitPod("its generation to be observed", "web", func(pod *corev1.Pod) string {
		if pod.Status.ObservedGeneration != pod.Generation || pod.Generation < 2 {
			return fmt.Sprintf("it is %d, and %d is observed", pod.Generation, pod.Status.ObservedGeneration)
		}
		return ""
	})

	// The kubelet restarts the container because the image has another name.
	if out, err := n.Kubectl("set", "image", "pod/web", "main=busybox:1.37"); err != nil {
		t.Fatal(err, out)
	}
	n.waitPod("the container to be restarted", "web", func(pod *corev1.Pod) string {
		status := pod.Status.ContainerStatuses[0]
		if status.RestartCount == 0 || status.State.Running == nil {
			return fmt.Sprintf("%+v", status)
		}
		return ""
	})

	for name, profile := range map[string]string{"looker": "baseline", "tracer": "general"} {
		if out, err := n.Kubectl("debug", "web", "--image=busybox:1.37", "--profile="+profile, "--container="+name, "--attach=false",
			"--", "sh", "-c", "echo looked; sleep 1000"); err != nil {
			t.Fatal(err, out)
		}
	}
	n.Eventually("the log of the ephemeral container", func(context.Context) (string, error) {
		out, err := n.stream(true, "", "logs", "web", "--container=looker")
		if err != nil || out != "looked\n" {
			return fmt.Sprintf("%v: %s%s", err, out, stderr(err)), nil
		}
		return "", nil
	})
	// The policies in the remote cluster refuse the capability to trace.
	n.WaitEvent("web", "RemoteChangeRefused", "capabilities")
	last, err := remote.Client.CoreV1().Pods(remote.Name).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if last.UID != first.UID || len(last.Spec.EphemeralContainers) != 1 {
		t.Errorf("it is %s, not %s, and has the ephemeral containers %v", last.UID, first.UID, last.Spec.EphemeralContainers)
	}
}

// The API server refuses this unless the node declares the feature.
func TestPodLevelResourcesAreChanged(t *testing.T) {
	n, remote := offloadedTenant(t)
	n.Pod("web", "", stateless, func(pod *corev1.Pod) {
		cpu := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
		pod.Spec.Resources = &corev1.ResourceRequirements{Requests: cpu}
	})
	n.WaitReady("web")
	if out, err := n.Kubectl("patch", "pod", "web", "--subresource", "resize", "--patch", `{"spec": {"resources": {"requests": {"cpu": "20m"}}}}`); err != nil {
		t.Fatal(err, out)
	}
	n.Eventually("the change to reach the remote pod", func(ctx context.Context) (string, error) {
		pod, err := remote.Client.CoreV1().Pods(remote.Name).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if cpu := pod.Spec.Resources.Requests.Cpu().String(); cpu != "20m" {
			return "the CPU is " + cpu, nil
		}
		return "", nil
	})
}

// createJob creates the job once, whose pod runs this script on the virtual node.
func (n tenant) createJob(script string) {
	n.t.Helper()
	spec := user.NewPod("", "", stateless).Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	spec.Containers[0].Command = []string{"sh", "-c", script}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{
		BackoffLimit: new(int32), Template: corev1.PodTemplateSpec{Spec: spec},
	}}
	if _, err := n.Client.BatchV1().Jobs(n.Name).Create(n.t.Context(), job, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

func TestJobHasTheResultOfItsPod(t *testing.T) {
	n, _ := offloadedTenant(t)
	n.createJob("exit 0")
	n.Eventually("the job to succeed", func(ctx context.Context) (string, error) {
		job, err := n.Client.BatchV1().Jobs(n.Name).Get(ctx, "once", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if job.Status.Succeeded != 1 {
			return fmt.Sprintf("%+v", job.Status), nil
		}
		return "", nil
	})
}

func TestDeletedRemotePodIsReplaced(t *testing.T) {
	n, remote := offloadedTenant(t)
	n.createDeployment(1, stateless)
	ready := func(but string) (name string) {
		n.Eventually("a pod of the deployment to be ready", func(ctx context.Context) (string, error) {
			pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil {
				return "", err
			}
			for _, pod := range pods.Items {
				for _, condition := range pod.Status.Conditions {
					if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && pod.Name != but && pod.DeletionTimestamp == nil {
						name = pod.Name
						return "", nil
					}
				}
			}
			return fmt.Sprintf("none of %d is", len(pods.Items)), nil
		})
		return name
	}
	first := ready("")
	if out, err := remote.Kubectl("delete", "pod", first); err != nil {
		t.Fatal(err, out)
	}
	ready(first)
	waitDeleted(n.Namespace, first)

	// A pod without an owner is not deleted, but fails.
	n.Pod("alone", "", stateless)
	n.WaitReady("alone")
	if out, err := remote.Kubectl("delete", "pod", "alone"); err != nil {
		t.Fatal(err, out)
	}
	n.waitPod("the pod to have failed", "alone", func(pod *corev1.Pod) string {
		if pod.Status.Phase != corev1.PodFailed {
			return string(pod.Status.Phase)
		}
		return ""
	})
}

func TestForceDeletedPodExistsUntilItsRemotePodEnds(t *testing.T) {
	n, remote := offloadedTenant(t)
	n.Pod("stubborn", "", stateless, func(pod *corev1.Pod) {
		grace := int64(8)
		pod.Spec.TerminationGracePeriodSeconds = &grace
		pod.Spec.Containers[0].Command = []string{"sh", "-c", "trap : TERM; while true; do sleep 1; done"}
	})
	n.WaitReady("stubborn")
	// Delete gracefully, then by force.
	if out, err := n.Kubectl("delete", "pod", "stubborn", "--wait=false"); err != nil {
		t.Fatal(err, out)
	}
	if out, err := n.Kubectl("delete", "pod", "stubborn", "--force", "--grace-period=0", "--wait=false"); err != nil {
		t.Fatal(err, out)
	}
	n.Eventually("the home pod to be deleted", func(ctx context.Context) (string, error) {
		_, here := n.Client.CoreV1().Pods(n.Name).Get(ctx, "stubborn", metav1.GetOptions{})
		if !apierrors.IsNotFound(here) {
			return "the pod exists", here
		}
		_, running := remote.Client.CoreV1().Pods(remote.Name).Get(ctx, "stubborn", metav1.GetOptions{})
		switch {
		case running == nil:
			user.Violated(t, "the home pod is deleted while its remote pod runs")
		case !apierrors.IsNotFound(running):
			return "", running
		}
		return "", nil
	})
}

func TestPodsThatCannotRunRemotelyReportTheReason(t *testing.T) {
	n, remote := offloadedTenant(t)
	waits := func(name, reason string, words ...string) {
		t.Helper()
		n.waitPod(name+" to say why it waits", name, func(pod *corev1.Pod) string {
			said := fmt.Sprintf("%s %s: %s", pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
			for _, word := range append(words, reason, "Pending") {
				if !strings.Contains(said, word) {
					return said
				}
			}
			return ""
		})
	}
	n.Pod("host", "", stateless, func(pod *corev1.Pod) {
		pod.Spec.HostPID = true
		// The scheduler would not choose the virtual node.
		pod.Spec.NodeName, pod.Spec.NodeSelector = node, nil
	})
	waits("host", "PodNotSupported", "spec.hostPID")
	remote.Pod("taken", "", withoutVolumes)
	n.Pod("taken", "", stateless)
	waits("taken", "RemoteNameTaken", "did not create")
	if out, err := remote.Kubectl("delete", "pod", "taken"); err != nil {
		t.Fatal(err, out)
	}
	n.WaitReady("taken")
	n.Pod("device", "", stateless, func(pod *corev1.Pod) {
		// A resource that no other pod requests: the other resources of the node are unaffected.
		device := corev1.ResourceList{"example.test/device": resource.MustParse("1")}
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: device, Limits: device}
		// The scheduler would not choose the virtual node.
		pod.Spec.NodeName, pod.Spec.NodeSelector = node, nil
	})
	waits("device", "OutOfCapacity", "example.test/device")
	n.Pod("foreign", "", stateless, func(pod *corev1.Pod) {
		// No remote node has this label, so the scheduler would not choose the virtual node.
		pod.Spec.NodeName, pod.Spec.NodeSelector = node, map[string]string{corev1.LabelArchStable: "s390x"}
	})
	waits("foreign", "RemoteUnschedulable", "node affinity/selector")
	n.WaitEvent("foreign", "RemoteUnschedulable", "node affinity/selector")

	// Without offloading of the namespace no remote pod is created.
	home := user.NewNamespace(t, user.Cluster(t, "home"))
	home.Pod("web", "", stateless)
	other := tenant{home, t}
	other.waitPod("the pod to report why it waits", "web", func(pod *corev1.Pod) string {
		if pod.Status.Reason != "OffloadingBackOff" || !strings.Contains(pod.Status.Message, "not offloaded") {
			return pod.Status.Reason + ": " + pod.Status.Message
		}
		return ""
	})
	home.DeletePod("web")
}
