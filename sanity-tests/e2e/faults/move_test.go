package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// slowly is a move whose first pass takes some twenty seconds. Its users stay until the cut-over is
// asked for, however long that pass takes.
func (b *neighbour) slowly() {
	b.here.Move(aMove, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}, cutover: {mode: Manual}, transport: {bandwidth: 1Mi}")
	b.here.WaitMove(aMove, "Copying", "Ready")
}

// drained asks for the cut-over, and waits until the users are sent away. They are stubborn: the move
// stays there until they are ended.
func (b *neighbour) drained(volume *corev1.PersistentVolume) {
	b.here.WaitMove(aMove, "Ready")
	b.here.EditMove(aMove, `{"cutover":{"requested":true}}`)
	b.gated(volume)
}

// A link that is cut for longer than every timeout, while data is copied and while users go,
// delays a move and changes nothing else.
func cutWhileMoved(t *testing.T, b *neighbour) {
	pod, sum := b.muchToMove(t)
	volume := b.here.Follow("data").Object
	b.slowly()
	heal := cut(t)
	b.lasting(t, "the pod runs on", b.runsOn(pod))
	heal()
	b.drained(volume)
	heal = cut(t)
	b.end(b.here, pod)
	b.lasting(t, "the move has not ended", func(context.Context) (string, error) {
		phase, err := b.here.Kubectl("get", "volumemove", aMove, "-o", "jsonpath={.status.phase}")
		if phase == "Retaining" || phase == "Failed" {
			return phase, nil
		}
		return "", err
	})
	heal()
	b.movedWhole(t, pod, sum)
}

// Movers, relay and controller die while data is copied, and the controller once more while users
// are away: the move goes on where it was.
func killedWhileMoved(t *testing.T, b *neighbour) {
	pod, sum := b.muchToMove(t)
	volume := b.here.Follow("data").Object
	b.slowly()
	b.kill(t, b.there, b.there.Name, "storage.liqo.io/move-side=target")
	b.kill(t, b.here, chart.Namespace, "storage.liqo.io/move-side=source")
	b.kill(t, b.here, chart.Namespace, "app.kubernetes.io/component=relay")
	b.kill(t, b.here, chart.Namespace, "app.kubernetes.io/component=controller")
	if now, err := b.runsOn(pod)(t.Context()); now != "" || err != nil {
		t.Fatalf("the pod does not run on: %s %v", now, err)
	}
	b.drained(volume)
	b.end(b.here, pod)
	b.kill(t, b.here, chart.Namespace, "app.kubernetes.io/component=controller")
	b.movedWhole(t, pod, sum)
}

// muchToMove is a volume in use at home with twenty MiB in it, and their hash.
func (b *neighbour) muchToMove(t *testing.T) (pod, sum string) {
	t.Helper()
	if err := driver.ImportImage(t.Context(), b.there.Cluster); err != nil {
		t.Fatal(err)
	}
	b.here.Claim("data", "liqo-reference", "64Mi")
	b.here.Pod("writer", "data", user.OnNode("home-1"))
	b.here.WaitReady("writer")
	b.here.Eventually("there is much to move", func(context.Context) (string, error) {
		told, err := b.here.Kubectl("exec", "writer", "--", "sh", "-c",
			"head -c 20971520 /dev/urandom > /data/much && sync && sha256sum /data/much")
		sum = told
		return "", err
	})
	b.here.DeletePod("writer")
	pod = b.here.Set("user", "data", stubborn)
	b.here.WaitReady(pod)
	return pod, sum
}

// runsOn tells when the pod is not the one at home any more.
func (b *neighbour) runsOn(pod string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		found, err := b.here.Client.CoreV1().Pods(b.here.Name).Get(ctx, pod, metav1.GetOptions{})
		if err == nil && (found.Status.Phase != corev1.PodRunning || found.DeletionTimestamp != nil || found.Spec.NodeName == b.id) {
			return fmt.Sprintf("it is %s on %s, deleted at %v", found.Status.Phase, found.Spec.NodeName, found.DeletionTimestamp), nil
		}
		return "", err
	}
}

// kill ends pods by force, as a node that fails does, and waits until there is another one.
func (b *neighbour) kill(t *testing.T, n *user.Namespace, namespace, selector string) {
	t.Helper()
	pods := n.Client.CoreV1().Pods(namespace)
	var found *corev1.PodList
	n.Eventually("a pod with "+selector+" runs in "+namespace, func(ctx context.Context) (missing string, err error) {
		if found, err = pods.List(ctx, metav1.ListOptions{LabelSelector: selector}); err != nil {
			return "", err
		}
		if !slices.ContainsFunc(found.Items, func(pod corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }) {
			missing = fmt.Sprintf("there are %d, and none runs", len(found.Items))
		}
		return missing, nil
	})
	killed := map[string]bool{}
	for _, pod := range found.Items {
		killed[string(pod.UID)] = true
		err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	n.Eventually("another pod with "+selector+" runs", func(ctx context.Context) (string, error) {
		found, err := pods.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return "", err
		}
		for _, pod := range found.Items {
			if !killed[string(pod.UID)] && pod.Status.Phase == corev1.PodRunning {
				return "", nil
			}
		}
		return fmt.Sprintf("there are %d", len(found.Items)), nil
	})
}

// movedWhole waits for the end of a move, and compares.
func (b *neighbour) movedWhole(t *testing.T, pod, sum string) {
	t.Helper()
	b.here.WaitMove(aMove, "Retaining")
	b.here.WaitOn(pod, b.id)
	b.there.Eventually("the data is the same there", func(context.Context) (string, error) {
		told, err := b.there.Kubectl("exec", pod, "--", "sha256sum", "/data/much")
		if err == nil && strings.TrimSpace(told) != strings.TrimSpace(sum) {
			user.ViolatedNow(t, "the hash of the data is %s, and was %s", told, sum)
		}
		return "", err
	})
	b.here.EditMove(aMove, `{"retainSource":"1s"}`)
	b.here.WaitMove(aMove, "Done")
	b.oneTwinEach()
	b.endSet(t, b.there, "user")
	b.discard()
}
