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

// startSlowMove starts a move whose first pass takes some twenty seconds. Its cut-over is manual.
func (b *remoteSetup) startSlowMove() {
	b.home.Move(moveName, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}, cutover: {mode: Manual}, transport: {bandwidth: 1Mi}")
	b.home.WaitMove(moveName, "Copying", "Ready")
}

// startCutOver requests the cut-over, and waits until the gate is closed. The move stays there until
// endPod ends the users, which ignore SIGTERM.
func (b *remoteSetup) startCutOver(volume *corev1.PersistentVolume) {
	b.home.WaitMove(moveName, "Ready")
	b.home.PatchMove(moveName, `{"cutover":{"requested":true}}`)
	b.waitGated(volume)
}

// A link that is cut for longer than every timeout, during the copy and during the drain, only delays a
// move.
func cutWhileMoved(t *testing.T, b *remoteSetup) {
	pod, sum := b.createLargeVolume(t)
	volume := b.home.WaitVolume("data").Virtual
	b.startSlowMove()
	heal := cut(t)
	b.wantUnchanged(t, "the pod runs on", b.checkRunning(pod))
	heal()
	b.startCutOver(volume)
	heal = cut(t)
	b.endPod(b.home, pod)
	b.wantUnchanged(t, "the move has not ended", func(context.Context) (string, error) {
		phase, err := b.home.Kubectl("get", "volumemove", moveName, "-o", "jsonpath={.status.phase}")
		if phase == "Retaining" || phase == "Failed" {
			return phase, nil
		}
		return "", err
	})
	heal()
	b.wantMoved(t, pod, sum)
}

// Movers, relay and controller are killed during the copy, and the controller again during the cut-over:
// the move continues.
func killedWhileMoved(t *testing.T, b *remoteSetup) {
	pod, sum := b.createLargeVolume(t)
	volume := b.home.WaitVolume("data").Virtual
	b.startSlowMove()
	b.killPods(t, b.remote, b.remote.Name, "storage.liqo.io/move-side=target")
	b.killPods(t, b.home, chart.Namespace, "storage.liqo.io/move-side=source")
	b.killPods(t, b.home, chart.Namespace, "app.kubernetes.io/component=relay")
	b.killPods(t, b.home, chart.Namespace, "app.kubernetes.io/component=controller")
	if now, err := b.checkRunning(pod)(t.Context()); now != "" || err != nil {
		t.Fatalf("the pod does not run any more: %s %v", now, err)
	}
	b.startCutOver(volume)
	b.endPod(b.home, pod)
	b.killPods(t, b.home, chart.Namespace, "app.kubernetes.io/component=controller")
	b.wantMoved(t, pod, sum)
}

// createLargeVolume creates a volume at home with twenty MiB of data and a pod that uses it, and returns
// the hash of the data.
func (b *remoteSetup) createLargeVolume(t *testing.T) (pod, sum string) {
	t.Helper()
	if err := driver.ImportImage(t.Context(), b.remote.Cluster); err != nil {
		t.Fatal(err)
	}
	b.home.Claim("data", "liqo-reference", "64Mi")
	b.home.Pod("writer", "data", user.OnNode("home-1"))
	b.home.WaitReady("writer")
	b.home.Eventually("the data is written", func(context.Context) (_ string, err error) {
		sum, err = b.home.Kubectl("exec", "writer", "--", "sh", "-c",
			"head -c 20971520 /dev/urandom > /data/much && sync && sha256sum /data/much")
		return "", err
	})
	b.home.DeletePod("writer")
	pod = b.home.StatefulSet("user", "data", ignoringTermination)
	b.home.WaitReady(pod)
	return pod, sum
}

// checkRunning returns a message if the pod does not run at home any more.
func (b *remoteSetup) checkRunning(pod string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		found, err := b.home.Client.CoreV1().Pods(b.home.Name).Get(ctx, pod, metav1.GetOptions{})
		if err == nil && (found.Status.Phase != corev1.PodRunning || found.DeletionTimestamp != nil || found.Spec.NodeName == b.id) {
			return fmt.Sprintf("it is %s on %s, deleted at %v", found.Status.Phase, found.Spec.NodeName, found.DeletionTimestamp), nil
		}
		return "", err
	}
}

// killPods force-deletes pods, and waits until another one runs.
func (b *remoteSetup) killPods(t *testing.T, n *user.Namespace, namespace, selector string) {
	t.Helper()
	pods := n.Client.CoreV1().Pods(namespace)
	var found *corev1.PodList
	n.Eventually("a pod with "+selector+" runs in "+namespace, func(ctx context.Context) (missing string, err error) {
		if found, err = pods.List(ctx, metav1.ListOptions{LabelSelector: selector}); err != nil {
			return "", err
		}
		if !slices.ContainsFunc(found.Items, func(pod corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }) {
			missing = fmt.Sprintf("none of %d is running", len(found.Items))
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

// wantMoved waits for the end of a move, and compares the hash.
func (b *remoteSetup) wantMoved(t *testing.T, pod, sum string) {
	t.Helper()
	b.home.WaitMove(moveName, "Retaining")
	b.home.WaitRunningOn(pod, b.id)
	b.remote.Eventually("the remote data is the same", func(context.Context) (string, error) {
		got, err := b.remote.Kubectl("exec", pod, "--", "sha256sum", "/data/much")
		if err == nil && strings.TrimSpace(got) != strings.TrimSpace(sum) {
			user.ViolatedNow(t, "the hash of the data is %s, it was %s", got, sum)
		}
		return "", err
	})
	b.home.PatchMove(moveName, `{"retainSource":"1s"}`)
	b.home.WaitMove(moveName, "Done")
	b.waitOneTwinEach()
	b.endSet(t, b.remote, "user")
	b.discard()
}
