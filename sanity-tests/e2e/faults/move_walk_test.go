package faults

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// aMove is the name of the move in each of these legs. The orphan grace of this suite is over long
// before it ends.
const aMove = "there"

// The controller dies around every write that comes before the users of a volume notice its move,
// and when the gate is closed. Nobody uses the volume just then.
func (w *walk) movePrepared(t *testing.T, b *neighbour) {
	b.written(t)
	b.here.DeletePod("writer")
	controller := w.onController(t, b.here, both("move-hold", "move-status", "move-lock", "move-make-target",
		"move-issue", "move-make-mover-volume", "move-make-mover-claim", "move-make-pod", "move-make-pod-secret",
		"move-gate", "move-mark-source", "move-touch"))
	b.here.Move(aMove, "data", "target: {nodeName: "+b.id+"}")
	w.carriedOut(t, b.here, controller)
	b.here.WaitMove(aMove, "Retaining")
	b.readThere(t)
	b.here.EditMove(aMove, `{"retainSource":"1s"}`)
	b.here.WaitMove(aMove, "Done")
	b.oneTwinEach()
	b.discard()
}

// The controller dies around every write from the eviction of the users to the end.
func (w *walk) moveCutOver(t *testing.T, b *neighbour) {
	b.written(t)
	b.here.DeletePod("writer")
	pod := b.here.Set("user", "data")
	b.here.WaitReady(pod)
	controller := w.onController(t, b.here, both("move-evict", "move-delete-pod", "move-delete-mover-claim",
		"move-delete-mover-volume", "move-delete-volume", "move-let-volume-go", "move-make-volume", "move-hand-over",
		"move-forget-certificates", "move-restore-policy", "move-unlock", "move-free-twin", "move-release-source",
		"move-let-go"))
	b.here.Move(aMove, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}")
	b.here.WaitMove(aMove, "Retaining")
	b.here.WaitOn(pod, b.id)
	read(t, b.there, pod, b.here.Name)
	b.here.EditMove(aMove, `{"retainSource":"1s"}`)
	b.here.WaitMove(aMove, "Done")
	w.carriedOut(t, b.here, controller)
	b.oneTwinEach()
	b.here.DeleteSet("user")
	b.discard()
}

// A move is cancelled while its users go, and does not harm them.
func (w *walk) moveCancelled(t *testing.T, b *neighbour) {
	b.written(t)
	b.here.DeletePod("writer")
	pod := b.here.Set("user", "data", stubborn)
	b.here.WaitReady(pod)
	b.here.Move(aMove, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}")
	b.here.WaitMove(aMove, "Draining")
	controller := w.onController(t, b.here, both("move-give-back", "move-delete-target"))
	b.here.EditMove(aMove, `{"cancel":true}`)
	b.here.WaitMove(aMove, "Cancelled")
	w.carriedOut(t, b.here, controller)
	b.here.WaitReady(pod)
	read(t, b.here, pod, b.here.Name)
	b.oneTwinEach()
	b.here.DeleteSet("user")
	b.discard()
}

// A claim is deleted while Kubernetes calls it Lost: both copies are kept, until their time is over.
func (w *walk) moveOfADeletedClaim(t *testing.T, b *neighbour) {
	b.written(t)
	b.here.DeletePod("writer")
	pod := b.here.Set("user", "data", stubborn)
	b.here.WaitReady(pod)
	b.here.Move(aMove, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}")
	b.here.Eventually("Kubernetes calls the claim Lost", func(ctx context.Context) (string, error) {
		claim, err := b.here.Client.CoreV1().PersistentVolumeClaims(b.here.Name).Get(ctx, "data", metav1.GetOptions{})
		if err != nil || claim.Status.Phase == corev1.ClaimLost {
			return "", err
		}
		return fmt.Sprintf("it is %s", claim.Status.Phase), nil
	})
	controller := w.onController(t, b.here, both("move-retain-target"))
	if err := b.here.Client.CoreV1().PersistentVolumeClaims(b.here.Name).Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.here.DeleteSet("user")
	b.here.WaitGone("pvc", "data")
	w.carriedOut(t, b.here, controller)
	twins := func(ctx context.Context) (int, error) {
		of, err := b.twins(ctx)
		count := 0
		for _, some := range of {
			count += len(some)
		}
		return count, err
	}
	if count, err := twins(t.Context()); err != nil || count != 2 {
		t.Errorf("there are %d copies of the volume, not 2: %v", count, err)
	}
	b.here.EditMove(aMove, `{"retainSource":"1s"}`)
	b.here.WaitMove(aMove, "Cancelled", "Failed")
	b.discard()
}

// written is a volume at home with a word in it, and its writer.
func (b *neighbour) written(t *testing.T) {
	t.Helper()
	if _, err := driver.ImportImage(t.Context(), b.there.Cluster, driver.Options{Features: []string{crashBuild}}); err != nil {
		t.Fatal(err)
	}
	b.declare(t)
	b.ready()
	b.here.Claim("data", "liqo-reference", "64Mi")
	b.here.Pod("writer", "data", user.OnNode("home-1"))
	b.here.WaitReady("writer")
	write(b.here, "writer", b.here.Name)
}

// readThere reads the word in the other cluster.
func (b *neighbour) readThere(t *testing.T) {
	t.Helper()
	b.here.Pod("reader", "data", b.onIt)
	b.here.WaitReady("reader")
	read(t, b.there, "reader", b.here.Name)
	b.here.DeletePod("reader")
}

// discard deletes the move and the claim, if it is still there.
func (b *neighbour) discard() {
	deleteClaim(b.here, "data")
	if _, err := b.here.Kubectl("delete", "volumemove", aMove, "--wait=false"); err == nil {
		b.here.WaitGone("volumemove", aMove)
	}
	b.oneTwinEach()
}

// stubborn pods take their time to go.
func stubborn(pod *corev1.Pod) {
	pod.Spec.TerminationGracePeriodSeconds = new(int64(45))
	pod.Spec.Containers[0].Command = []string{"sh", "-c", "trap '' TERM; while true; do sleep 1; done"}
}
