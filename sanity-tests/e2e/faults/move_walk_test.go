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

// moveName is the name of the move in each leg. Moves take longer than this suite's orphan grace.
const moveName = "there"

// The controller crashes before and after every write of a move.
func TestMovesWithCrashAtEveryPoint(t *testing.T) {
	cluster := user.Cluster(t, "home")
	install(t, cluster, 1)
	w := &walk{cluster: cluster}
	for _, leg := range []leg[*remoteSetup]{
		{"a move until its gate is closed", w.movePrepared},
		{"a move from its cut-over on", w.moveCutOver},
		{"a move that is cancelled", w.moveCancelled},
		{"a claim that is deleted while it is moved", w.moveOfADeletedClaim},
		{"a move that is cancelled before its gate is closed", w.moveNeverGated},
		{"a PersistentVolume that is deleted while it is moved", w.moveOfADeletedVolume},
		{"a move of a retained volume", w.moveRetained},
		{"a move within another cluster", w.moveWithin},
		{"a move whose target is lost after its commit", w.moveRecovered},
		{"a move that the next controller finishes", w.moveFinishedByTheNext},
		{"a move that is finished without a mover", w.moveFinishedWithoutMover},
	} {
		w.runRemote(t, leg)
	}
	w.report(t)
}

// The controller crashes around every write before the drain, and when the gate is closed. No pod uses
// the volume.
func (w *walk) movePrepared(t *testing.T, b *remoteSetup) {
	b.createWritten(t)
	b.home.DeletePod("writer")
	controller := w.crashController(t, b.home, bothSides("move-hold", "move-status", "move-lock", "move-make-target",
		"move-issue", "move-make-mover-volume", "move-make-mover-claim", "move-make-pod", "move-make-pod-secret",
		"move-gate", "move-mark-source", "move-touch"))
	b.home.Move(moveName, "data", "target: {nodeName: "+b.id+"}")
	w.waitCrashed(t, b.home, controller)
	b.home.WaitMove(moveName, "Retaining")
	b.readRemotely(t)
	b.home.PatchMove(moveName, `{"retainSource":"1s"}`)
	b.home.WaitMove(moveName, "Done")
	b.waitOneTwinEach()
	b.discard()
}

// The controller crashes around every write from the eviction of the users to the end.
func (w *walk) moveCutOver(t *testing.T, b *remoteSetup) {
	pod := b.createWrittenBySet(t)
	controller := w.crashController(t, b.home, bothSides("move-evict", "move-delete-pod", "move-delete-mover-claim",
		"move-delete-mover-volume", "move-delete-volume", "move-let-volume-go", "move-make-volume", "move-hand-over",
		"move-forget-certificates", "move-restore-policy", "move-unlock", "move-free-twin", "move-release-source",
		"move-let-go"))
	b.home.Move(moveName, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}")
	b.home.WaitMove(moveName, "Retaining")
	b.home.WaitRunningOn(pod, b.id)
	read(t, b.remote, pod, b.home.Name)
	b.home.PatchMove(moveName, `{"retainSource":"1s"}`)
	b.home.WaitMove(moveName, "Done")
	w.waitCrashed(t, b.home, controller)
	b.waitOneTwinEach()
	b.home.DeleteStatefulSet("user")
	b.discard()
}

// A move is cancelled during the drain. It is cancelled after the gate is closed, because it restores the
// PersistentVolume only then.
func (w *walk) moveCancelled(t *testing.T, b *remoteSetup) {
	pod := b.createWrittenBySet(t, ignoringTermination)
	volume := b.home.WaitVolume("data").Virtual
	b.home.Move(moveName, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}")
	b.waitGated(volume)
	controller := w.crashController(t, b.home, bothSides("move-give-back", "move-delete-target"))
	b.home.PatchMove(moveName, `{"cancel":true}`)
	b.home.WaitMove(moveName, "Cancelled")
	w.waitCrashed(t, b.home, controller)
	b.endPod(b.home, pod)
	b.home.WaitReady(pod)
	read(t, b.home, pod, b.home.Name)
	b.waitOneTwinEach()
	b.endSet(t, b.home, "user")
	b.discard()
}

// A claim is deleted while it is Lost: both copies are retained for retainSource.
func (w *walk) moveOfADeletedClaim(t *testing.T, b *remoteSetup) {
	b.createWrittenBySet(t, ignoringTermination)
	b.home.Move(moveName, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}")
	b.home.Eventually("the claim is Lost", func(ctx context.Context) (string, error) {
		claim, err := b.home.Client.CoreV1().PersistentVolumeClaims(b.home.Name).Get(ctx, "data", metav1.GetOptions{})
		if err != nil || claim.Status.Phase == corev1.ClaimLost {
			return "", err
		}
		return fmt.Sprintf("it is %s", claim.Status.Phase), nil
	})
	controller := w.crashController(t, b.home, bothSides("move-retain-target"))
	if err := b.home.Client.CoreV1().PersistentVolumeClaims(b.home.Name).Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// The controller must observe the deletion before the drain ends and the move commits.
	b.home.WaitMove(moveName, "Returning")
	b.endSet(t, b.home, "user")
	b.home.WaitDeleted("pvc", "data")
	w.waitCrashed(t, b.home, controller)
	twins := func(ctx context.Context) (int, error) {
		byClaim, err := b.twins(ctx)
		count := 0
		for _, twins := range byClaim {
			count += len(twins)
		}
		return count, err
	}
	if count, err := twins(t.Context()); err != nil || count != 2 {
		t.Errorf("the volume has %d copies, not 2: %v", count, err)
	}
	b.home.PatchMove(moveName, `{"retainSource":"1s"}`)
	b.home.WaitMove(moveName, "Cancelled", "Failed")
	b.discard()
}

// A move is cancelled after its gate has got a number, and while a PodDisruptionBudget keeps it open: a
// late leader must not close the gate any more.
func (w *walk) moveNeverGated(t *testing.T, b *remoteSetup) {
	pod := b.createWrittenBySet(t)
	b.home.Move(moveName, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}, cutover: {mode: Manual}")
	b.home.WaitMove(moveName, "Ready")
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "stays"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(0)),
			Selector:       &metav1.LabelSelector{},
		},
	}
	budgets := b.home.Client.PolicyV1().PodDisruptionBudgets(b.home.Name)
	if _, err := budgets.Create(t.Context(), budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.home.PatchMove(moveName, `{"cutover":{"requested":true}}`)
	b.home.WaitMove(moveName, "Draining")
	controller := w.crashController(t, b.home, bothSides("move-refuse-gate"))
	b.home.PatchMove(moveName, `{"cancel":true}`)
	b.home.WaitMove(moveName, "Cancelled")
	w.waitCrashed(t, b.home, controller)
	read(t, b.home, pod, b.home.Name)
	b.waitOneTwinEach()
	if err := budgets.Delete(t.Context(), budget.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.home.DeleteStatefulSet("user")
	b.discard()
}

// A gated PersistentVolume is deleted, and its move is cancelled. It is created again when its last user
// has ended; until then its data must be kept, whatever its reclaim policy.
func (w *walk) moveOfADeletedVolume(t *testing.T, b *remoteSetup) {
	pod := b.createWrittenBySet(t, ignoringTermination)
	volume := b.home.WaitVolume("data").Virtual
	b.home.Move(moveName, "data", "target: {nodeName: "+b.id+"}, quiesce: {mode: Evict}")
	b.waitGated(volume)
	if err := b.home.Client.CoreV1().PersistentVolumes().Delete(t.Context(), volume.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.home.PatchMove(moveName, `{"cancel":true}`)
	controller := w.crashController(t, b.home, bothSides("move-retain"))
	b.setReclaimPolicy(b.home, volume.Name, corev1.PersistentVolumeReclaimDelete)
	w.waitCrashed(t, b.home, controller)
	// The deleted PersistentVolume names the move until the pod has ended, and is then created again for its claim.
	b.endSet(t, b.home, "user")
	b.home.WaitMove(moveName, "Cancelled")
	pod = b.home.StatefulSet("user", "data")
	b.home.WaitReady(pod)
	read(t, b.home, pod, b.home.Name)
	b.waitOneTwinEach()
	b.home.DeleteStatefulSet("user")
	b.discard()
}

// A volume with the reclaim policy Retain is retained at the source too.
func (w *walk) moveRetained(t *testing.T, b *remoteSetup) {
	b.createWritten(t)
	b.home.DeletePod("writer")
	was := b.home.WaitVolume("data")
	b.setReclaimPolicy(b.home, was.Virtual.Name, corev1.PersistentVolumeReclaimRetain)
	b.home.Move(moveName, "data", "target: {nodeName: "+b.id+"}")
	b.home.WaitMove(moveName, "Retaining")
	b.readRemotely(t)
	b.setReclaimPolicy(b.home, was.Real.Name, corev1.PersistentVolumeReclaimDelete)
	controller := w.crashController(t, b.home, bothSides("move-retain-source"))
	b.home.PatchMove(moveName, `{"retainSource":"1s"}`)
	b.home.WaitMove(moveName, "Done")
	w.waitCrashed(t, b.home, controller)
	b.waitOneTwinEach()
	b.home.WantRetained(was.Real.Name)
	b.setReclaimPolicy(b.home, was.Real.Name, corev1.PersistentVolumeReclaimDelete)
	b.home.WaitDeleted("pv", was.Real.Name)
	b.setReclaimPolicy(b.home, was.Virtual.Name, corev1.PersistentVolumeReclaimDelete)
	b.discard()
}

// The controller crashes around every write that closes and opens the gate of a remote source in its
// cluster, and that renames a twin to its predecessor, whose volume is kept without a claim.
func (w *walk) moveWithin(t *testing.T, b *remoteSetup) {
	if err := driver.ImportImage(t.Context(), b.remote.Cluster); err != nil {
		t.Fatal(err)
	}
	b.declare(t)
	b.waitReady()
	b.home.Claim("data", "liqo-reference", "64Mi")
	b.home.Pod("writer", "data", b.onVirtualNode)
	b.home.WaitReady("writer")
	write(b.remote, "writer", b.home.Name)
	if _, err := b.remote.Kubectl("exec", "writer", "--", "sh", "-c", "head -c 20971520 /dev/urandom > /data/much && sync"); err != nil {
		t.Fatal(err)
	}
	b.home.DeletePod("writer")
	was := b.follow("data")
	target := "target: {nodeName: " + b.id + ", storageClassName: reference-immediate}"
	// Everything is copied by the last pass, so slowly that it can be cancelled.
	controller := w.crashController(t, b.home, bothSides("move-open-there", "move-opened-there"))
	b.home.Move(moveName, "data", target+", warm: None, transport: {bandwidth: 1Mi}")
	b.home.WaitMove(moveName, "Finishing")
	b.home.PatchMove(moveName, `{"cancel":true}`)
	b.home.WaitMove(moveName, "Cancelled")
	w.waitCrashed(t, b.home, controller)
	if _, err := b.home.Kubectl("delete", "volumemove", moveName); err != nil {
		t.Fatal(err)
	}

	controller = w.crashController(t, b.home, bothSides("move-gate-there", "move-retain-source", "move-free-twin",
		"move-release-source", "move-take-name", "move-pass-on", "move-delete-target", "move-hand-over"))
	b.home.Move(moveName, "data", target)
	b.home.WaitMove(moveName, "Retaining")
	w.waitCrashed(t, b.home, controller)
	b.waitOneTwinEach()
	b.readRemotely(t)
	now := b.follow("data")
	if now.Twin.Name != "data" || *now.Twin.Spec.StorageClassName != "reference-immediate" {
		t.Errorf("the twin is %s, of class %s", now.Twin.Name, *now.Twin.Spec.StorageClassName)
	}
	b.remote.WantRetained(was.Real.Name)
	b.home.PatchMove(moveName, `{"retainSource":"1s"}`)
	b.home.WaitMove(moveName, "Done")
	b.remote.WaitDeleted("pv", was.Real.Name)
	b.waitOneTwinEach()
	b.discard()
}

// The target of a committed move is lost, with its data. The user requests the recovery of the source, and
// the controller crashes around each write of it. Then the twin exists again, as after a restore from a
// backup.
func (w *walk) moveRecovered(t *testing.T, b *remoteSetup) {
	b.createWritten(t)
	b.home.DeletePod("writer")
	b.home.Move(moveName, "data", "target: {nodeName: "+b.id+"}")
	b.home.WaitMove(moveName, "Retaining")
	b.readRemotely(t)
	target := b.follow("data")
	b.lose(t, target)

	controller := w.crashController(t, b.home, bothSides("move-recover-source", "move-recover-volume", "move-forget-source",
		"move-supersede-target"))
	b.home.PatchMove(moveName, `{"recoverSource":true}`)
	b.home.WaitMove(moveName, "Recovered")
	b.home.Pod("reader", "data", user.OnNode("home-1"))
	b.home.WaitReady("reader")
	read(t, b.home, "reader", b.home.Name)

	twins := b.remote.Client.CoreV1().PersistentVolumeClaims(b.remote.Name)
	again := &corev1.PersistentVolumeClaim{Spec: target.Twin.Spec}
	again.Name, again.Labels, again.Annotations = target.Twin.Name, target.Twin.Labels, target.Twin.Annotations
	if _, err := twins.Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.remote.Eventually("the twin that exists again is superseded", func(ctx context.Context) (string, error) {
		found, err := twins.Get(ctx, again.Name, metav1.GetOptions{})
		if err != nil || strings.HasPrefix(found.Annotations["storage.liqo.io/source-of-move"], "superseded:") {
			return "", err
		}
		return fmt.Sprintf("it has %q", found.Annotations), nil
	})
	w.waitCrashed(t, b.home, controller)
	read(t, b.home, "reader", b.home.Name)
	b.home.DeletePod("reader")
	if err := twins.Delete(t.Context(), again.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.deleteLost(t, target)
	b.waitOneTwinEach()
	b.discard()
}

// lose deletes a remote real volume and its twin, without the driver.
func (b *remoteSetup) lose(t *testing.T, volume user.Volume) {
	t.Helper()
	core := b.remote.Client.CoreV1()
	if err := core.PersistentVolumes().Delete(t.Context(), volume.Real.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	free := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := core.PersistentVolumes().Patch(t.Context(), volume.Real.Name, types.MergePatchType, free, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	b.remote.WaitDeleted("pv", volume.Real.Name)
	twins := core.PersistentVolumeClaims(b.remote.Name)
	b.remote.Eventually("the twin is deleted", func(ctx context.Context) (string, error) {
		if err := twins.Delete(ctx, volume.Twin.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return "it still exists", err
		}
		return "", nil
	})
}

// deleteLost makes the real driver delete the data of a lost volume.
func (b *remoteSetup) deleteLost(t *testing.T, volume user.Volume) {
	t.Helper()
	const provisioner = "pv.kubernetes.io/provisioned-by"
	again := &corev1.PersistentVolume{Spec: volume.Real.Spec}
	again.Name = volume.Real.Name
	again.Annotations = map[string]string{provisioner: volume.Real.Annotations[provisioner]}
	again.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	if _, err := b.remote.Client.CoreV1().PersistentVolumes().Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.remote.WaitDeleted("pv", again.Name)
}

// waitGated waits until the gate of a move is closed: the claimRef of the PersistentVolume names the move.
func (b *remoteSetup) waitGated(volume *corev1.PersistentVolume) {
	b.home.Eventually("the PersistentVolume names the move", func(ctx context.Context) (string, error) {
		found, err := b.home.Client.CoreV1().PersistentVolumes().Get(ctx, volume.Name, metav1.GetOptions{})
		if err == nil && found.Spec.ClaimRef.UID == volume.Spec.ClaimRef.UID {
			return "it names its claim", nil
		}
		return "", err
	})
}

// setReclaimPolicy sets the reclaim policy of a PersistentVolume.
func (b *remoteSetup) setReclaimPolicy(n *user.Namespace, name string, policy corev1.PersistentVolumeReclaimPolicy) {
	n.Eventually("the reclaim policy of "+name+" is set to "+string(policy), func(ctx context.Context) (string, error) {
		patch := fmt.Sprintf(`{"spec":{"persistentVolumeReclaimPolicy":%q}}`, policy)
		_, err := n.Client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return "", err
	})
}

// createWritten creates a volume at home with a word in it, and its writer.
func (b *remoteSetup) createWritten(t *testing.T) {
	t.Helper()
	b.createClaim(t)
	b.home.Pod("writer", "data", user.OnNode("home-1"))
	b.home.WaitReady("writer")
	write(b.home, "writer", b.home.Name)
}

// createWrittenBySet is createWritten with the pod of a StatefulSet as the writer.
func (b *remoteSetup) createWrittenBySet(t *testing.T, edits ...func(*corev1.Pod)) (pod string) {
	t.Helper()
	b.createClaim(t)
	// Home is only preferred, so that the pod can run where the volume moves to.
	pod = b.home.StatefulSet("user", "data", append(edits, user.PreferNode("home-1"))...)
	if node := b.home.WaitReady(pod).Spec.NodeName; node == b.id {
		t.Fatal("the pod runs in the other cluster before its volume is moved")
	}
	write(b.home, pod, b.home.Name)
	return pod
}

// createClaim creates a claim at home, and what a move to the other cluster needs.
func (b *remoteSetup) createClaim(t *testing.T) {
	t.Helper()
	if err := driver.ImportImage(t.Context(), b.remote.Cluster); err != nil {
		t.Fatal(err)
	}
	b.declare(t)
	b.waitReady()
	b.home.Claim("data", "liqo-reference", "64Mi")
}

// readRemotely reads the word in the other cluster.
func (b *remoteSetup) readRemotely(t *testing.T) {
	t.Helper()
	b.home.Pod("reader", "data", b.onVirtualNode)
	b.home.WaitReady("reader")
	read(t, b.remote, "reader", b.home.Name)
	b.home.DeletePod("reader")
}

// discard deletes the move and the claim, if they exist.
func (b *remoteSetup) discard() {
	deleteClaim(b.home, "data")
	if _, err := b.home.Kubectl("delete", "volumemove", moveName, "--wait=false"); err == nil {
		b.home.WaitDeleted("volumemove", moveName)
	}
	b.waitOneTwinEach()
}

// ignoringTermination makes a pod ignore SIGTERM until endPod ends it, so that a move stays in the drain
// for as long as a leg needs. Shortening the grace period would not help, because kubelet uses the one at
// the start of the termination.
func ignoringTermination(pod *corev1.Pod) {
	pod.Spec.TerminationGracePeriodSeconds = new(int64(600))
	container := &pod.Spec.Containers[0]
	container.Command = []string{"sh", "-c", "trap '' TERM; until [ -e " + endFile + " ]; do sleep 1; done"}
	// In a volume, because the container may be restarted before kubelet sees the deletion of its pod.
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "end", MountPath: filepath.Dir(endFile)})
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "end", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
}

const endFile = "/end/now"

// endPod deletes a pod that ignores SIGTERM, if it is not deleted yet, and ends it where it runs.
func (b *remoteSetup) endPod(where *user.Namespace, pod string) {
	pods, uid := b.home.Client.CoreV1().Pods(b.home.Name), types.UID("")
	b.home.Eventually("the pod "+pod+" ends", func(ctx context.Context) (string, error) {
		found, err := pods.Get(ctx, pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && uid != "" && found.UID != uid {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		uid = found.UID
		if found.DeletionTimestamp == nil {
			options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(uid))}
			return "it was not deleted yet", pods.Delete(ctx, pod, options)
		}
		_, err = where.Kubectl("exec", pod, "--", "touch", endFile)
		return "", err
	})
}

// endSet deletes a StatefulSet whose pod ignores SIGTERM, and waits until the pod is deleted.
func (b *remoteSetup) endSet(t *testing.T, where *user.Namespace, name string) {
	t.Helper()
	if err := b.home.Client.AppsV1().StatefulSets(b.home.Name).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.endPod(where, name+"-0")
	b.home.WaitDeleted("pod", name+"-0")
}
