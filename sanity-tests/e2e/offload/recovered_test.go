package offload

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/faults"
	"storage.liqo.io/sanity-tests/storage"
)

// writeNumbers makes a pod append increasing numbers to a file.
func writeNumbers(pod *corev1.Pod) {
	const file = user.DataPath + "/numbers"
	pod.Spec.TerminationGracePeriodSeconds = new(int64(1))
	pod.Spec.Containers[0].Command = []string{"sh", "-c", `i=$(tail -n 1 ` + file + ` 2>/dev/null || echo 0)
while true; do i=$((i+1)); echo $i >> ` + file + `; sync; sleep 0.1; done`}
}

// copyOfNumbers is the file of a volume, read without a pod.
type copyOfNumbers struct {
	t    *testing.T
	file string
}

func numbersIn(t *testing.T, cluster *clusters.Cluster, volume *corev1.PersistentVolume) copyOfNumbers {
	return copyOfNumbers{t, filepath.Join(storage.BackendOf(cluster, storage.Reference).Data(volume.Spec.CSI.VolumeHandle), "numbers")}
}

// lines are all complete lines.
func (c copyOfNumbers) lines() []string {
	c.t.Helper()
	text, err := os.ReadFile(c.file)
	if err != nil {
		c.t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	return lines[:len(lines)-1]
}

// A volume has moved to a cluster that then cannot be reached, and whose pod writes on. An administrator declares it out of
// service, and a user has the source recovered. When the cluster is reached again, its pod ends, no other one gets that
// copy, and both copies are kept.
func TestSourceIsRecoveredWhileAnUnreachableTargetWrites(t *testing.T) {
	// The taint evicts all pods of the node.
	n := newExclusiveTenant(t)
	there := user.Cluster(t, "remote")
	if err := driver.ImportImage(t.Context(), there); err != nil {
		t.Fatal(err)
	}
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	remote := user.ExistingNamespace(t, there, n.Name)
	proxy := there.Proxy()
	const taint = "node.kubernetes.io/out-of-service"
	t.Cleanup(func() {
		_ = proxy.Set(user.CleanupContext(t), faults.Setting{Mode: faults.Pass})
		_, _ = n.Kubectl("taint", "node", node, taint+"-")
	})
	n.Claim("data", "liqo-reference", "64Mi")
	pod := n.StatefulSet("writer", "data", user.PreferNode(n.Cluster.Nodes()[0].Name), writeNumbers)
	n.waitAtHome(pod)
	source := n.WaitVolume("data")
	n.Move("there", "data", "target: {nodeName: "+node+"}, quiesce: {mode: Evict}")
	n.WaitMove("there", "Retaining")
	n.WaitRunningOn(pod, node)
	remote.WaitReady(pod)
	target := n.WaitRemoteVolume(remote, "data")
	here, lost := numbersIn(t, n.Cluster, source.Real), numbersIn(t, there, target.Real)
	committed := here.lines()

	n.set(proxy, faults.Hang)
	n.Eventually("the node not to be ready", func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil || slices.ContainsFunc(found.Status.Conditions, func(one corev1.NodeCondition) bool {
			return one.Type == corev1.NodeReady && one.Status != corev1.ConditionTrue
		}) {
			return "", err
		}
		return "it is ready", nil
	})
	// Without the oath nothing is recovered, whatever the user says.
	n.PatchMove("there", `{"recoverSource":true}`)
	n.Eventually("the move to say what is missing", func(ctx context.Context) (string, error) {
		phase, status, err := n.MoveStatus(ctx, "there")
		if err == nil && phase == "Recovering" {
			user.ViolatedNow(t, "the source is recovered although its target may be alive: %s", status)
		}
		if strings.Contains(status, "out-of-service") {
			return "", err
		}
		return "it says " + status, err
	})
	before := len(lost.lines())
	if out, err := n.Kubectl("taint", "node", node, taint+"=nodeshutdown:NoExecute"); err != nil {
		t.Fatal(err, out)
	}
	n.WaitMove("there", "Recovered")
	n.waitAtHome(pod)
	n.Eventually("the pod to write here", func(context.Context) (string, error) {
		now := here.lines()
		if len(now) < len(committed) || !slices.Equal(now[:len(committed)], committed) {
			user.ViolatedNow(t, "what was committed is changed: %d lines, now %d", len(committed), len(now))
		}
		if len(now) == len(committed) {
			return "nothing was written yet", nil
		}
		return "", nil
	})
	if now := len(lost.lines()); now <= before {
		t.Errorf("the pod there has not written while it could not be reached: %d numbers, and %d before", now, before)
	}

	n.set(proxy, faults.Pass)
	if out, err := n.Kubectl("taint", "node", node, taint+"-"); err != nil {
		t.Fatal(err, out)
	}
	waitDeleted(remote, pod)
	ended := lost.lines()
	n.waitFabric()
	n.waitSuperseded(remote, target)
	n.Pod("stranger", "data", func(pod *corev1.Pod) {
		pod.Spec.NodeName = node
		pod.Spec.Tolerations = []corev1.Toleration{virtualNodeToleration}
	})
	n.neverRunsThere(remote, "stranger", 20*time.Second)
	n.DeletePod("stranger")
	if now := lost.lines(); len(now) != len(ended) {
		user.Violated(t, "something writes to the lost copy: %d numbers, and %d when its pod had ended", len(now), len(ended))
	}
	n.wantConsecutive(here)
	remote.WantRetained(target.Real.Name)
	out, err := n.program("volumes", "--namespace", n.Name)
	t.Logf("what the user sees of both copies: %v\n%s", err, out)

	n.DeleteStatefulSet("writer")
	if out, err := n.Kubectl("delete", "volumemove", "there"); err != nil {
		t.Fatal(err, out)
	}
	n.deleteLostCopy(remote, target)
	n.unoffload()
}

// waitAtHome waits until a pod is ready on a node of the home cluster.
func (n tenant) waitAtHome(name string) {
	n.t.Helper()
	n.Eventually(name+" to run here", func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		ready := slices.ContainsFunc(found.Status.Conditions, func(one corev1.PodCondition) bool {
			return one.Type == corev1.PodReady && one.Status == corev1.ConditionTrue
		})
		if !ready || found.DeletionTimestamp != nil || found.Spec.NodeName == node {
			return fmt.Sprintf("it is %s on %q", found.Status.Phase, found.Spec.NodeName), nil
		}
		return "", nil
	})
}

// waitSuperseded waits until the twin that came back is marked.
func (n tenant) waitSuperseded(remote *user.Namespace, target user.Volume) {
	n.t.Helper()
	n.Eventually("the twin that came back to be superseded", func(ctx context.Context) (string, error) {
		found, err := remote.Client.CoreV1().PersistentVolumeClaims(remote.Name).Get(ctx, target.Twin.Name, metav1.GetOptions{})
		if err != nil || strings.HasPrefix(found.Annotations["storage.liqo.io/source-of-move"], "superseded:") {
			return "", err
		}
		return fmt.Sprintf("it has %v", found.Annotations), nil
	})
}

// neverRunsThere checks for a while that no container of a pod starts in the remote cluster.
func (n tenant) neverRunsThere(remote *user.Namespace, name string, during time.Duration) {
	n.t.Helper()
	began, last := time.Now(), "none"
	n.Eventually(name+" never to start there", func(ctx context.Context) (string, error) {
		found, err := remote.Client.CoreV1().Pods(remote.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", err
		}
		if err == nil {
			for _, container := range found.Status.ContainerStatuses {
				if container.State.Waiting == nil {
					user.ViolatedNow(n.t, "%s runs there with the copy that was given up", name)
				}
			}
		}
		if time.Since(began) < during {
			return "observed for too short a time", nil
		}
		return "", nil
	})
	if found := n.pod(name); found.Status.Message != "" {
		last = found.Status.Reason + ": " + found.Status.Message
	}
	n.t.Logf("it says %s", last)
}

// wantConsecutive checks that one writer at a time has written the numbers.
func (n tenant) wantConsecutive(c copyOfNumbers) {
	n.t.Helper()
	for at, line := range c.lines() {
		if line != fmt.Sprint(at+1) {
			user.Violated(n.t, "number %d is %q", at+1, line)
			return
		}
	}
}

// deleteLostCopy does what the documentation says of a twin that is left: the user deletes it, and then its volume.
func (n tenant) deleteLostCopy(remote *user.Namespace, target user.Volume) {
	n.t.Helper()
	core := remote.Client.CoreV1()
	n.Eventually("the twin to be deleted", func(ctx context.Context) (string, error) {
		err := core.PersistentVolumeClaims(remote.Name).Delete(ctx, target.Twin.Name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it exists", err
	})
	policy := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	_, err := core.PersistentVolumes().Patch(n.t.Context(), target.Real.Name, types.MergePatchType, policy, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		n.t.Error(err)
	}
	remote.WaitDeleted("pv", target.Real.Name)
}
