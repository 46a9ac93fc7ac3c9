package faults

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// Controller and node plugin die before and after every write, and come back:
// each volume still becomes what it was asked to be, and nothing is left of it.
func TestDyingAtEveryCrashPoint(t *testing.T) {
	cluster := user.Cluster(t, "home")
	// One controller, or orders would have to be given to one and reach another.
	install(t, cluster, 1)
	w := &walk{cluster: cluster}
	for _, leg := range []leg[*user.Namespace]{
		{"a volume that is attached", w.attached},
		{"a static volume, mounted by us", w.static},
		{"a volume to be retained", w.retained},
		{"a node that the real driver refuses", w.refused},
		{"a claim that goes while its volume is reserved", w.abandoned},
		{"a twin deleted behind our back", w.rescued},
		{"a volume that grows", w.grown},
		{"a volume that gets other attributes", w.modified},
		{"labels, a fixed node, room and the lease", w.loops},
		{"a snapshot that is restored", w.snapshotted},
		{"a snapshot that is retained, and discarded after all", w.snapshotRetained},
		{"a snapshot that its user gives up", w.snapshotGivenUp},
		{"a claim that is imported", w.imported},
		{"an import that is undone", w.importUndone},
		{"a snapshot that is imported", w.snapshotImported},
		{"a claim that is released", w.released},
		{"a release that is undone", w.releaseUndone},
	} {
		t.Run(leg.name, func(t *testing.T) {
			accounted(t, cluster)
			leg.run(t, user.NewNamespace(t, cluster))
		})
	}
	for _, leg := range []leg[*neighbour]{
		{"a node that stands for another cluster", w.standingIn},
		{"a volume that another cluster refuses", w.remoteRefused},
		{"a volume in another cluster", w.remoteLife},
		{"a volume to be retained in another cluster", w.remoteRetained},
		{"a twin in another cluster deleted behind our back", w.remoteRescued},
		{"a volume that grows in another cluster", w.remoteGrown},
		{"a restore that is sent back to its snapshot", w.restoreSentBack},
		{"a move until its gate is closed", w.movePrepared},
		{"a move from its cut-over on", w.moveCutOver},
		{"a move that is cancelled", w.moveCancelled},
		{"a claim that is deleted while it is moved", w.moveOfADeletedClaim},
		{"a move that is cancelled before its gate is closed", w.moveNeverGated},
		{"a PersistentVolume that is deleted while it is moved", w.moveOfADeletedVolume},
		{"a move of a volume to be retained", w.moveRetained},
		{"a move within another cluster", w.moveWithin},
		{"a move whose target is lost after its commit", w.moveRecovered},
	} {
		t.Run(leg.name, func(t *testing.T) {
			accounted(t, cluster, user.Cluster(t, "remote"))
			leg.run(t, newNeighbour(t))
		})
	}
	w.report(t, false)
}

func (w *walk) attached(t *testing.T, n *user.Namespace) {
	controller := w.onController(t, n, both("twin-create", "hand-over", "attachment-create", "attachment-confirm", "attachment-delete", "twin-delete", "remove-finalizer"))
	// Not all steps at once: kubelet waits twice as long after each failure.
	node := w.onNode(t, n, "home-1", both("node-stage", "node-publish", "node-unstage", "record-remove"))
	live(t, n, "liqo-reference-attach", user.OnNode("home-1"))
	w.carriedOut(t, n, controller, node)
}

func (w *walk) static(t *testing.T, n *user.Namespace) {
	controller := w.onController(t, n, []string{"before-prebind", "after-tell-volume"})
	node := w.onNode(t, n, "home-2", both("record-write", "node-publish", "node-unpublish", "record-remove"))
	live(t, n, "liqo-static-local", user.OnNode("home-2"))
	w.carriedOut(t, n, controller, node)
}

func (w *walk) retained(t *testing.T, n *user.Namespace) {
	controller := w.onController(t, n, both("retain"))
	n.Claim("data", "liqo-retain", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	w.carriedOut(t, n, controller)
	volume := n.Follow("data")
	n.DeletePod("user")
	deleteClaim(n, "data")

	// What an administrator does who wants it gone after all. The twin goes first: its
	// volume is retained until nobody could mean it to be kept.
	core := n.Client.CoreV1()
	n.Eventually("the volume is released and can be discarded", func(ctx context.Context) (string, error) {
		found, err := core.PersistentVolumes().Get(ctx, volume.Object.Name, metav1.GetOptions{})
		if err != nil || found.Status.Phase != corev1.VolumeReleased {
			return "it is not released yet", err
		}
		return "", core.PersistentVolumes().Delete(ctx, volume.Object.Name, metav1.DeleteOptions{})
	})
	twins := core.PersistentVolumeClaims(chart.StorageNamespace)
	n.Eventually("the retained twin goes away", func(ctx context.Context) (string, error) {
		if err := twins.Delete(ctx, volume.Twin.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return "it is still there", err
		}
		return "", nil
	})
	if _, err := core.PersistentVolumes().Patch(t.Context(), volume.Real.Name, types.MergePatchType,
		[]byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *walk) refused(t *testing.T, n *user.Namespace) {
	controller := w.onController(t, n, both("withdraw"))
	remove, err := storage.BackendOf(w.cluster, storage.Local).AddFault(storage.Fault{
		RPC: "CreateVolume", Match: "liqo-storage/", Code: "ResourceExhausted", Message: "full, for now",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = remove() })
	// The fault stays until the controller has died at both points: a twin that gets its volume while the
	// controller is dead is not withdrawn.
	born(n, "liqo-reference-local")
	w.carriedOut(t, n, controller)
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	lived(t, n)
}

// Without kube-controller-manager a reserved volume is never bound, and a claim
// goes only when somebody forces it.
func (w *walk) abandoned(t *testing.T, n *user.Namespace) {
	controller := w.onController(t, n, append(both("release-prebind"), "after-prebind", "before-tell-volume"))
	const manager = "kube-controller-manager"
	if err := w.cluster.Kill(t.Context(), manager); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.cluster.Restart(context.Background(), manager); err != nil {
			t.Error(err)
		}
	})
	node := w.cluster.Nodes()[0].Name
	n.Claim("data", "liqo-static-local", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		// What kube-controller-manager and the scheduler would note.
		claim.Annotations = map[string]string{
			"volume.kubernetes.io/storage-provisioner": driver.CSIName,
			"volume.kubernetes.io/selected-node":       node,
		}
	})
	claims := n.Client.CoreV1().PersistentVolumeClaims(n.Name)
	claim, err := claims.Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Eventually("the twin is told its static volume", func(ctx context.Context) (string, error) {
		twin, err := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).Get(ctx, string(claim.UID), metav1.GetOptions{})
		if err != nil || twin.Spec.VolumeName == "" {
			return "it is not yet", err
		}
		return "", nil
	})
	if err := claims.Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := claims.Patch(t.Context(), "data", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.carriedOut(t, n, controller)
}

func (w *walk) rescued(t *testing.T, n *user.Namespace) {
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	write(n, "user", n.Name)
	was := n.Follow("data")
	controller := w.onController(t, n, both("rescue", "twin-again", "pass-on", "policy-back"))
	if err := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).Delete(t.Context(), was.Twin.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.carriedOut(t, n, controller)
	n.Eventually("the twin is bound to its data again", func(ctx context.Context) (string, error) {
		now, err := n.Behind(ctx, "data")
		if now.Real == nil || now.Twin.UID == was.Twin.UID || now.Real.Name != was.Real.Name ||
			now.Real.Spec.PersistentVolumeReclaimPolicy != was.Real.Spec.PersistentVolumeReclaimPolicy {
			return fmt.Sprintf("twin %v, volume %v", now.Twin, now.Real), err
		}
		return "", nil
	})
	read(t, n, "user", n.Name)
	n.DeletePod("user")
	deleteClaim(n, "data")
}

// The filesystem needs a node, so that the twin's expansion is left for us to finish. That
// it grows a second time shows that nothing was left unfinished.
func (w *walk) grown(t *testing.T, n *user.Namespace) {
	n.Claim("data", "liqo-reference-xfs", "320Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	write(n, "user", n.Name)
	n.Follow("data")
	controller := w.onController(t, n, both("expand", "finish-expansion"))
	n.Resize("data", "400Mi")
	n.WaitGrown("data", "400Mi")
	w.carriedOut(t, n, controller)
	n.Resize("data", "480Mi")
	n.WaitGrown("data", "480Mi")
	read(t, n, "user", n.Name)
	n.DeletePod("user")
	deleteClaim(n, "data")
}

func (w *walk) modified(t *testing.T, n *user.Namespace) {
	n.Claim("data", "liqo-reference", "64Mi", user.WithAttributes(driver.Silver))
	n.Pod("user", "data")
	n.WaitReady("user")
	real := n.Follow("data").Real
	n.WaitOperations(storage.Reference, real, "1000")
	controller := w.onController(t, n, both("modify"))
	n.SetAttributesClass("data", driver.Gold)
	n.WaitAttributes("data", driver.Gold)
	n.WaitOperations(storage.Reference, real, "5000")
	w.carriedOut(t, n, controller)
	n.DeletePod("user")
	deleteClaim(n, "data")
}

func (w *walk) loops(t *testing.T, n *user.Namespace) {
	controller := w.onController(t, n, both("sync", "add-finalizer", "select-node", "capacity-write", "capacity-delete", "lease-write"))
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: n.Name},
		Provisioner:       driver.CSIName,
		Parameters:        map[string]string{"realStorageClass": "reference-local"},
		VolumeBindingMode: &wait,
	}
	classes := n.Client.StorageV1().StorageClasses()
	if _, err := classes.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Claim("data", n.Name, "64Mi")
	n.Pod("user", "data", func(pod *corev1.Pod) { pod.Spec.NodeName = "home-2" })
	n.WaitReady("user")
	if _, err := n.Kubectl("label", "pvc", "data", "team=blue"); err != nil {
		t.Fatal(err)
	}
	n.Eventually("the twin has the new label", func(ctx context.Context) (string, error) {
		now, err := n.Behind(ctx, "data")
		if now.Twin == nil || now.Twin.Labels["team"] != "blue" {
			return "it has not", err
		}
		return "", nil
	})
	unprotect := []byte(`{"metadata":{"finalizers":["kubernetes.io/pvc-protection"]}}`)
	twins := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace)
	if _, err := twins.Patch(t.Context(), n.Follow("data").Twin.Name, types.MergePatchType, unprotect, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Eventually("the twin has its finalizer again", func(ctx context.Context) (string, error) {
		now, err := n.Behind(ctx, "data")
		if now.Twin == nil || !slices.Contains(now.Twin.Finalizers, "storage.liqo.io/twin") {
			return "it has not", err
		}
		return "", nil
	})
	n.DeletePod("user")
	deleteClaim(n, "data")
	if err := classes.Delete(t.Context(), n.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.carriedOut(t, n, controller)
}
