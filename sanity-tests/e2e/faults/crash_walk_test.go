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

// Controller and node plugin crash before and after every write. After their restart each volume still
// works, and nothing is leaked.
func TestCrashAtEveryPoint(t *testing.T) {
	cluster := user.Cluster(t, "home")
	// One replica, because crash orders are for one process.
	install(t, cluster, 1)
	w := &walk{cluster: cluster}
	for _, leg := range []leg[*user.Namespace]{
		{"a volume that is attached", w.attached},
		{"a static volume that the driver mounts", w.static},
		{"a retained volume", w.retained},
		{"a node that the real driver refuses", w.refused},
		{"a claim that is deleted while its volume is reserved", w.abandoned},
		{"a twin that is deleted by a user", w.recovered},
		{"a volume that grows", w.grown},
		{"a volume that gets other attributes", w.modified},
		{"labels, finalizers, node, capacity and lease", w.loops},
		{"a snapshot that is restored", w.snapshotted},
		{"a retained snapshot that is deleted later", w.snapshotRetained},
		{"a snapshot that is deleted during its creation", w.snapshotAbandoned},
		{"a claim that is imported", w.imported},
		{"an import that is undone", w.importUndone},
		{"a snapshot that is imported", w.snapshotImported},
		{"a claim that is released", w.released},
		{"a release that is undone", w.releaseUndone},
	} {
		t.Run(leg.name, func(t *testing.T) {
			checkLeaks(t, cluster)
			leg.run(t, user.NewNamespace(t, cluster))
		})
	}
	for _, leg := range []leg[*remoteSetup]{
		{"a node that represents another cluster", w.virtualNodeMarked},
		{"a session that is renewed", w.sessionRenewed},
		{"a volume that another cluster refuses", w.remoteRefused},
		{"a volume in another cluster", w.remoteLife},
		{"a retained volume in another cluster", w.remoteRetained},
		{"a twin in another cluster that is deleted by a user", w.remoteRecovered},
		{"a volume that grows in another cluster", w.remoteGrown},
		{"a restore that is rescheduled to its snapshot", w.restoreRescheduled},
	} {
		w.runRemote(t, leg)
	}
	w.report(t)
}

func (w *walk) attached(t *testing.T, n *user.Namespace) {
	controller := w.crashController(t, n, bothSides("twin-create", "hand-over", "attachment-create", "attachment-confirm", "attachment-delete", "twin-delete", "remove-finalizer"))
	// Not all steps in one test, because kubelet doubles its back-off after each failure.
	node := w.crashNodePlugin(t, n, "home-1", bothSides("node-stage", "node-publish", "node-unstage", "record-remove"))
	exercise(t, n, "liqo-reference-attach", user.OnNode("home-1"))
	w.waitCrashed(t, n, controller, node)
}

func (w *walk) static(t *testing.T, n *user.Namespace) {
	controller := w.crashController(t, n, []string{"before-prebind", "after-tell-volume"})
	node := w.crashNodePlugin(t, n, "home-2", bothSides("record-write", "node-publish", "node-unpublish", "record-remove"))
	exercise(t, n, "liqo-static-local", user.OnNode("home-2"))
	w.waitCrashed(t, n, controller, node)
}

func (w *walk) retained(t *testing.T, n *user.Namespace) {
	controller := w.crashController(t, n, bothSides("retain"))
	n.Claim("data", "liqo-retain", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	w.waitCrashed(t, n, controller)
	volume := n.WaitVolume("data")
	n.DeletePod("user")
	deleteClaim(n, "data")

	// An administrator deletes the retained volume: PersistentVolume, twin, and then the data.
	core := n.Client.CoreV1()
	n.Eventually("the volume is released and can be discarded", func(ctx context.Context) (string, error) {
		found, err := core.PersistentVolumes().Get(ctx, volume.Virtual.Name, metav1.GetOptions{})
		if err != nil || found.Status.Phase != corev1.VolumeReleased {
			return "it is not released", err
		}
		return "", core.PersistentVolumes().Delete(ctx, volume.Virtual.Name, metav1.DeleteOptions{})
	})
	twins := core.PersistentVolumeClaims(chart.StorageNamespace)
	n.Eventually("the retained twin is deleted", func(ctx context.Context) (string, error) {
		if err := twins.Delete(ctx, volume.Twin.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return "it still exists", err
		}
		return "", nil
	})
	if _, err := core.PersistentVolumes().Patch(t.Context(), volume.Real.Name, types.MergePatchType,
		[]byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *walk) refused(t *testing.T, n *user.Namespace) {
	controller := w.crashController(t, n, bothSides("withdraw"))
	removeFault := n.AddFault(storage.Local, storage.Fault{
		RPC: "CreateVolume", Match: "liqo-storage/", Code: "ResourceExhausted", Message: "full, for now",
	})
	// Keep the fault until the controller has crashed at both points: it does not withdraw a twin that got
	// its volume meanwhile.
	startWriter(n, "liqo-reference-local")
	w.waitCrashed(t, n, controller)
	removeFault()
	finishExercise(t, n)
}

// Without kube-controller-manager a reserved volume is never bound, and the deletion of a claim must be
// forced.
func (w *walk) abandoned(t *testing.T, n *user.Namespace) {
	controller := w.crashController(t, n, append(bothSides("release-prebind"), "after-prebind", "before-tell-volume"))
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
		// These are set by kube-controller-manager and the scheduler.
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
	n.Eventually("the twin has a volumeName", func(ctx context.Context) (string, error) {
		twin, err := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).Get(ctx, string(claim.UID), metav1.GetOptions{})
		if err != nil || twin.Spec.VolumeName == "" {
			return "it has none", err
		}
		return "", nil
	})
	if err := claims.Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := claims.Patch(t.Context(), "data", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitCrashed(t, n, controller)
}

func (w *walk) recovered(t *testing.T, n *user.Namespace) {
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	write(n, "user", n.Name)
	was := n.WaitVolume("data")
	controller := w.crashController(t, n, bothSides("rescue", "twin-again", "pass-on", "policy-back"))
	if err := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).Delete(t.Context(), was.Twin.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitCrashed(t, n, controller)
	n.Eventually("the twin is bound to its data again", func(ctx context.Context) (string, error) {
		now, err := n.GetVolume(ctx, "data")
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

// The file system is expanded on a node, so that the driver must finish the twin's expansion. The second
// expansion shows that it has.
func (w *walk) grown(t *testing.T, n *user.Namespace) {
	n.Claim("data", "liqo-reference-xfs", "320Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	write(n, "user", n.Name)
	n.WaitVolume("data")
	controller := w.crashController(t, n, bothSides("expand", "finish-expansion"))
	n.Resize("data", "400Mi")
	n.WaitExpanded("data", "400Mi")
	w.waitCrashed(t, n, controller)
	n.Resize("data", "480Mi")
	n.WaitExpanded("data", "480Mi")
	read(t, n, "user", n.Name)
	n.DeletePod("user")
	deleteClaim(n, "data")
}

func (w *walk) modified(t *testing.T, n *user.Namespace) {
	n.Claim("data", "liqo-reference", "64Mi", user.WithAttributesClass(driver.Silver))
	n.Pod("user", "data")
	n.WaitReady("user")
	real := n.WaitVolume("data").Real
	n.WaitIOPS(storage.Reference, real, "1000")
	controller := w.crashController(t, n, bothSides("modify"))
	n.SetAttributesClass("data", driver.Gold)
	n.WaitAttributes("data", driver.Gold)
	n.WaitIOPS(storage.Reference, real, "5000")
	w.waitCrashed(t, n, controller)
	n.DeletePod("user")
	deleteClaim(n, "data")
}

func (w *walk) loops(t *testing.T, n *user.Namespace) {
	controller := w.crashController(t, n, bothSides("sync", "add-finalizer", "select-node", "capacity-write", "capacity-delete", "lease-write"))
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: n.Name},
		Provisioner:       driver.CSIName,
		Parameters:        map[string]string{"realStorageClass": "reference-local"},
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
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
		now, err := n.GetVolume(ctx, "data")
		if now.Twin == nil || now.Twin.Labels["team"] != "blue" {
			return "it does not have it", err
		}
		return "", nil
	})
	unprotect := []byte(`{"metadata":{"finalizers":["kubernetes.io/pvc-protection"]}}`)
	twins := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace)
	if _, err := twins.Patch(t.Context(), n.WaitVolume("data").Twin.Name, types.MergePatchType, unprotect, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Eventually("the twin has its finalizer again", func(ctx context.Context) (string, error) {
		now, err := n.GetVolume(ctx, "data")
		if now.Twin == nil || !slices.Contains(now.Twin.Finalizers, "storage.liqo.io/twin") {
			return "it does not have it", err
		}
		return "", nil
	})
	n.DeletePod("user")
	deleteClaim(n, "data")
	if err := classes.Delete(t.Context(), n.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitCrashed(t, n, controller)
}
