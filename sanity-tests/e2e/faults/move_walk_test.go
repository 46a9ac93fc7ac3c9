package faults

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

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

// A move is cancelled while its users go, and does not harm them. Its phase is Draining before the gate
// is closed, too, and then the PersistentVolume is never given back: it is cancelled only after that.
func (w *walk) moveCancelled(t *testing.T, b *neighbour) {
	b.written(t)
	b.here.DeletePod("writer")
	volume := b.here.Follow("data").Object
	pod := b.here.Set("user", "data", stubborn)
	b.here.WaitReady(pod)
	b.here.Move(aMove, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}")
	b.gated(volume)
	controller := w.onController(t, b.here, both("move-give-back", "move-delete-target"))
	b.here.EditMove(aMove, `{"cancel":true}`)
	b.here.WaitMove(aMove, "Cancelled")
	w.carriedOut(t, b.here, controller)
	b.end(b.here, pod)
	b.here.WaitReady(pod)
	read(t, b.here, pod, b.here.Name)
	b.oneTwinEach()
	b.endSet(t, b.here, "user")
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
	// The move has seen it before the users are gone, and would be committed.
	b.here.WaitMove(aMove, "Returning")
	b.endSet(t, b.here, "user")
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

// A move is cancelled when its gate has a number, and a pod that may not be evicted holds it open: a
// leader that is late finds that it is not to be closed any more.
func (w *walk) moveNeverGated(t *testing.T, b *neighbour) {
	b.written(t)
	b.here.DeletePod("writer")
	pod := b.here.Set("user", "data")
	b.here.WaitReady(pod)
	b.here.Move(aMove, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}, cutover: {mode: Manual}")
	b.here.WaitMove(aMove, "Ready")
	stays := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "stays"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(0)),
			Selector:       &metav1.LabelSelector{},
		},
	}
	budgets := b.here.Client.PolicyV1().PodDisruptionBudgets(b.here.Name)
	if _, err := budgets.Create(t.Context(), stays, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.here.EditMove(aMove, `{"cutover":{"requested":true}}`)
	b.here.WaitMove(aMove, "Draining")
	controller := w.onController(t, b.here, both("move-refuse-gate"))
	b.here.EditMove(aMove, `{"cancel":true}`)
	b.here.WaitMove(aMove, "Cancelled")
	w.carriedOut(t, b.here, controller)
	read(t, b.here, pod, b.here.Name)
	b.oneTwinEach()
	if err := budgets.Delete(t.Context(), stays.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.here.DeleteSet("user")
	b.discard()
}

// A gated PersistentVolume is deleted, and its move is cancelled. It is made again as soon as its last
// user has gone; until then nothing may happen to its data, whatever else is written on it.
func (w *walk) moveOfADeletedVolume(t *testing.T, b *neighbour) {
	b.written(t)
	b.here.DeletePod("writer")
	volume := b.here.Follow("data").Object
	pod := b.here.Set("user", "data", stubborn)
	b.here.WaitReady(pod)
	b.here.Move(aMove, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}")
	b.gated(volume)
	if err := b.here.Client.CoreV1().PersistentVolumes().Delete(t.Context(), volume.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.here.EditMove(aMove, `{"cancel":true}`)
	b.waitNamed(volume, "its claim", func(uid types.UID) bool { return uid == volume.Spec.ClaimRef.UID })
	controller := w.onController(t, b.here, both("move-retain"))
	b.reclaimed(b.here, volume.Name, corev1.PersistentVolumeReclaimDelete)
	w.carriedOut(t, b.here, controller)
	// A pod that has got the volume back meanwhile keeps it: its PersistentVolume can still be used.
	b.endSet(t, b.here, "user")
	b.here.WaitMove(aMove, "Cancelled")
	pod = b.here.Set("user", "data")
	b.here.WaitReady(pod)
	read(t, b.here, pod, b.here.Name)
	b.oneTwinEach()
	b.here.DeleteSet("user")
	b.discard()
}

// What is to be retained is also at the source, when that goes.
func (w *walk) moveRetained(t *testing.T, b *neighbour) {
	b.written(t)
	b.here.DeletePod("writer")
	was := b.here.Follow("data")
	b.reclaimed(b.here, was.Object.Name, corev1.PersistentVolumeReclaimRetain)
	b.here.Move(aMove, "data", "target: {nodeName: "+b.id+"}")
	b.here.WaitMove(aMove, "Retaining")
	b.readThere(t)
	b.reclaimed(b.here, was.Real.Name, corev1.PersistentVolumeReclaimDelete)
	controller := w.onController(t, b.here, both("move-retain-source"))
	b.here.EditMove(aMove, `{"retainSource":"1s"}`)
	b.here.WaitMove(aMove, "Done")
	w.carriedOut(t, b.here, controller)
	b.oneTwinEach()
	b.here.WantRetained(was.Real.Name)
	// Nobody needs it any more.
	b.reclaimed(b.here, was.Real.Name, corev1.PersistentVolumeReclaimDelete)
	b.here.WaitGone("pv", was.Real.Name)
	b.reclaimed(b.here, was.Object.Name, corev1.PersistentVolumeReclaimDelete)
	b.discard()
}

// The controller dies around every write by which a remote source is gated in its cluster and opened again,
// and by which a twin takes over the name of the one before it, which is kept without a claim.
func (w *walk) moveWithin(t *testing.T, b *neighbour) {
	if err := driver.ImportImage(t.Context(), b.there.Cluster); err != nil {
		t.Fatal(err)
	}
	b.declare(t)
	b.ready()
	b.here.Claim("data", "liqo-reference", "64Mi")
	b.here.Pod("writer", "data", b.onIt)
	b.here.WaitReady("writer")
	write(b.there, "writer", b.here.Name)
	if _, err := b.there.Kubectl("exec", "writer", "--", "sh", "-c", "head -c 20971520 /dev/urandom > /data/much && sync"); err != nil {
		t.Fatal(err)
	}
	b.here.DeletePod("writer")
	was := b.follow("data")
	target := "target: {nodeName: " + b.id + ", storageClassName: reference-immediate}"
	// Everything is copied by the last pass, so slowly that it can be cancelled.
	controller := w.onController(t, b.here, both("move-open-there", "move-opened-there"))
	b.here.Move(aMove, "data", target+", warm: None, transport: {bandwidth: 1Mi}")
	b.here.WaitMove(aMove, "Finishing")
	b.here.EditMove(aMove, `{"cancel":true}`)
	b.here.WaitMove(aMove, "Cancelled")
	w.carriedOut(t, b.here, controller)
	if _, err := b.here.Kubectl("delete", "volumemove", aMove); err != nil {
		t.Fatal(err)
	}

	controller = w.onController(t, b.here, both("move-gate-there", "move-retain-source", "move-free-twin",
		"move-release-source", "move-take-name", "move-pass-on", "move-delete-target", "move-hand-over"))
	b.here.Move(aMove, "data", target)
	b.here.WaitMove(aMove, "Retaining")
	w.carriedOut(t, b.here, controller)
	b.oneTwinEach()
	b.readThere(t)
	now := b.follow("data")
	if now.Twin.Name != "data" || *now.Twin.Spec.StorageClassName != "reference-immediate" {
		t.Errorf("the twin is %s, of class %s", now.Twin.Name, *now.Twin.Spec.StorageClassName)
	}
	b.there.WantRetained(was.Real.Name)
	b.here.EditMove(aMove, `{"retainSource":"1s"}`)
	b.here.WaitMove(aMove, "Done")
	b.there.WaitGone("pv", was.Real.Name)
	b.oneTwinEach()
	b.discard()
}

// The target of a committed move is lost, with its data. The user requests the recovery of the source, and the
// controller dies around each write of it. Then the twin exists again, as restored from a backup.
func (w *walk) moveRecovered(t *testing.T, b *neighbour) {
	b.written(t)
	b.here.DeletePod("writer")
	b.here.Move(aMove, "data", "target: {nodeName: "+b.id+"}")
	b.here.WaitMove(aMove, "Retaining")
	b.readThere(t)
	target := b.follow("data")
	b.lose(t, target)

	controller := w.onController(t, b.here, both("move-recover-source", "move-recover-volume", "move-forget-source",
		"move-supersede-target"))
	b.here.EditMove(aMove, `{"recoverSource":true}`)
	b.here.WaitMove(aMove, "Recovered")
	b.here.Pod("reader", "data", user.OnNode("home-1"))
	b.here.WaitReady("reader")
	read(t, b.here, "reader", b.here.Name)

	twins := b.there.Client.CoreV1().PersistentVolumeClaims(b.there.Name)
	again := &corev1.PersistentVolumeClaim{Spec: target.Twin.Spec}
	again.Name, again.Labels, again.Annotations = target.Twin.Name, target.Twin.Labels, target.Twin.Annotations
	if _, err := twins.Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.there.Eventually("the twin that exists again is superseded", func(ctx context.Context) (string, error) {
		found, err := twins.Get(ctx, again.Name, metav1.GetOptions{})
		if err != nil || strings.HasPrefix(found.Annotations["storage.liqo.io/source-of-move"], "superseded:") {
			return "", err
		}
		return fmt.Sprintf("it has %q", found.Annotations), nil
	})
	w.carriedOut(t, b.here, controller)
	read(t, b.here, "reader", b.here.Name)
	b.here.DeletePod("reader")
	if err := twins.Delete(t.Context(), again.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.deleteLost(t, target)
	b.oneTwinEach()
	b.discard()
}

// lose deletes a real volume of the other cluster without the driver, and its twin.
func (b *neighbour) lose(t *testing.T, volume user.Volume) {
	t.Helper()
	core := b.there.Client.CoreV1()
	if err := core.PersistentVolumes().Delete(t.Context(), volume.Real.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	free := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := core.PersistentVolumes().Patch(t.Context(), volume.Real.Name, types.MergePatchType, free, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	b.there.WaitGone("pv", volume.Real.Name)
	twins := core.PersistentVolumeClaims(b.there.Name)
	b.there.Eventually("the twin is deleted", func(ctx context.Context) (string, error) {
		if err := twins.Delete(ctx, volume.Twin.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return "it is still there", err
		}
		return "", nil
	})
}

// deleteLost has the real driver delete the data of a volume that was lost.
func (b *neighbour) deleteLost(t *testing.T, volume user.Volume) {
	t.Helper()
	const provisioner = "pv.kubernetes.io/provisioned-by"
	again := &corev1.PersistentVolume{Spec: volume.Real.Spec}
	again.Name = volume.Real.Name
	again.Annotations = map[string]string{provisioner: volume.Real.Annotations[provisioner]}
	again.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	if _, err := b.there.Client.CoreV1().PersistentVolumes().Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.there.WaitGone("pv", again.Name)
}

// gated waits until the gate of a move is closed: the PersistentVolume names the move, and not its claim.
func (b *neighbour) gated(volume *corev1.PersistentVolume) {
	b.waitNamed(volume, "the move", func(uid types.UID) bool { return uid != volume.Spec.ClaimRef.UID })
}

// waitNamed waits until the uid in the claimRef of a PersistentVolume is as wanted.
func (b *neighbour) waitNamed(volume *corev1.PersistentVolume, what string, wanted func(uid types.UID) bool) {
	b.here.Eventually("the PersistentVolume names "+what, func(ctx context.Context) (string, error) {
		found, err := b.here.Client.CoreV1().PersistentVolumes().Get(ctx, volume.Name, metav1.GetOptions{})
		if err != nil || wanted(found.Spec.ClaimRef.UID) {
			return "", err
		}
		return fmt.Sprintf("it names %s", found.Spec.ClaimRef.UID), nil
	})
}

// reclaimed gives a PersistentVolume a reclaim policy, as administrators do.
func (b *neighbour) reclaimed(n *user.Namespace, name string, policy corev1.PersistentVolumeReclaimPolicy) {
	n.Eventually("the PersistentVolume "+name+" is to be "+string(policy), func(ctx context.Context) (string, error) {
		patch := fmt.Sprintf(`{"spec":{"persistentVolumeReclaimPolicy":%q}}`, policy)
		_, err := n.Client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return "", err
	})
}

// written is a volume at home with a word in it, and its writer.
func (b *neighbour) written(t *testing.T) {
	t.Helper()
	if err := driver.ImportImage(t.Context(), b.there.Cluster); err != nil {
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

// stubborn pods do not go before end ends them, so that a move stays at draining for as long as a leg
// needs it. Their grace is not shortened for that: kubelet waits for what it was when it began to stop them.
func stubborn(pod *corev1.Pod) {
	pod.Spec.TerminationGracePeriodSeconds = new(int64(600))
	container := &pod.Spec.Containers[0]
	container.Command = []string{"sh", "-c", "trap '' TERM; until [ -e " + endFile + " ]; do sleep 1; done"}
	// The file outlives a container that ends before kubelet has heard that its pod is deleted.
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "end", MountPath: filepath.Dir(endFile)})
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "end", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
}

const endFile = "/end/now"

// end deletes a stubborn pod, if nobody has yet, and lets it go from where it runs.
func (b *neighbour) end(where *user.Namespace, pod string) {
	pods, uid := b.here.Client.CoreV1().Pods(b.here.Name), types.UID("")
	b.here.Eventually("the pod "+pod+" is let go", func(ctx context.Context) (string, error) {
		found, err := pods.Get(ctx, pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && uid != "" && found.UID != uid {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		uid = found.UID
		if found.DeletionTimestamp == nil {
			these := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(uid))}
			return "it was not deleted yet", pods.Delete(ctx, pod, these)
		}
		_, err = where.Kubectl("exec", pod, "--", "touch", endFile)
		return "", err
	})
}

// endSet deletes a StatefulSet whose pod is stubborn, and waits until that is gone.
func (b *neighbour) endSet(t *testing.T, where *user.Namespace, name string) {
	t.Helper()
	if err := b.here.Client.AppsV1().StatefulSets(b.here.Name).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.end(where, name+"-0")
	b.here.WaitGone("pod", name+"-0")
}
