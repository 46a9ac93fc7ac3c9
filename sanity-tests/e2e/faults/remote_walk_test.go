package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
)

func (w *walk) runRemote(t *testing.T, one leg[*remoteSetup]) {
	t.Run(one.name, func(t *testing.T) {
		checkLeaks(t, w.cluster, user.Cluster(t, "remote"))
		one.run(t, newRemoteSetup(t))
	})
}

// The controller crashes around the writes that mark a virtual node and the status of its RemoteCluster,
// and around those that remove the marks.
func (w *walk) virtualNodeMarked(t *testing.T, b *remoteSetup) {
	controller := w.crashController(t, b.home, bothSides("node-label", "csi-node-write", "cluster-write"))
	b.declare(t)
	w.waitCrashed(t, b.home, controller)
	b.waitReady()

	controller = w.crashController(t, b.home, bothSides("node-label", "csi-node-write"))
	b.undeclare(t)
	w.waitCrashed(t, b.home, controller)
	b.waitMarked(false)
}

func (w *walk) remoteRefused(t *testing.T, b *remoteSetup) {
	b.declare(t)
	b.waitReady()
	b.remote.StorageQuota("nothing", "1Mi")
	controller := w.crashController(t, b.home, bothSides("note-refusal"))
	b.home.Claim("data", "liqo-reference", "64Mi")
	b.home.Pod("user", "data", b.onVirtualNode)
	w.waitCrashed(t, b.home, controller)
	b.home.Eventually("the refusal of "+b.id+" is recorded", func(ctx context.Context) (string, error) {
		refusals, err := b.home.Client.CoreV1().ConfigMaps(chart.Namespace).Get(ctx, "liqo-csi-refusals", metav1.GetOptions{})
		if err != nil || strings.Contains(fmt.Sprint(refusals.Data), b.id) {
			return "", err
		}
		return fmt.Sprintf("recorded: %v", refusals.Data), nil
	})
	b.home.DeletePod("user")
	deleteClaim(b.home, "data")
	b.waitOneTwinEach()
}

func (w *walk) remoteLife(t *testing.T, b *remoteSetup) {
	b.declare(t)
	b.waitReady()
	controller := w.crashController(t, b.home, bothSides("twin-create", "hand-over", "mark-holder", "mirror", "twin-delete", "remove-finalizer"))
	b.home.Claim("data", "liqo-reference", "64Mi")
	b.home.Pod("writer", "data", b.onVirtualNode)
	b.home.WaitReady("writer")
	write(b.remote, "writer", b.home.Name)
	b.waitOneTwinEach()
	b.home.DeletePod("writer")
	b.home.Pod("reader", "data", b.onVirtualNode)
	b.home.WaitReady("reader")
	read(t, b.remote, "reader", b.home.Name)
	b.home.DeletePod("reader")
	deleteClaim(b.home, "data")
	w.waitCrashed(t, b.home, controller)
	b.waitOneTwinEach()
}

func (w *walk) remoteRetained(t *testing.T, b *remoteSetup) {
	b.declare(t)
	b.waitReady()
	controller := w.crashController(t, b.home, append(bothSides("retain"), "after-mirror"))
	b.home.Claim("data", "liqo-retain", "64Mi")
	b.home.Pod("user", "data", b.onVirtualNode)
	b.home.WaitReady("user")
	w.waitCrashed(t, b.home, controller)
	volume := b.follow("data")
	b.home.DeletePod("user")
	deleteClaim(b.home, "data")

	// Administrators of both clusters delete the retained volume.
	home, remote := b.home.Client.CoreV1(), b.remote.Client.CoreV1()
	b.home.Eventually("the volume is released and can be discarded", func(ctx context.Context) (string, error) {
		found, err := home.PersistentVolumes().Get(ctx, volume.Virtual.Name, metav1.GetOptions{})
		if err != nil || found.Status.Phase != corev1.VolumeReleased {
			return "it is not released", err
		}
		return "", home.PersistentVolumes().Delete(ctx, volume.Virtual.Name, metav1.DeleteOptions{})
	})
	b.remote.WantRetained(volume.Real.Name)
	deleteClaim(b.remote, volume.Twin.Name)
	if _, err := remote.PersistentVolumes().Patch(t.Context(), volume.Real.Name, types.MergePatchType,
		[]byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *walk) remoteRecovered(t *testing.T, b *remoteSetup) {
	b.declare(t)
	b.waitReady()
	b.home.Claim("data", "liqo-reference", "64Mi")
	b.home.Pod("writer", "data", b.onVirtualNode)
	b.home.WaitReady("writer")
	write(b.remote, "writer", b.home.Name)
	// Kubernetes does not delete a claim that a pod uses.
	b.home.DeletePod("writer")
	was := b.follow("data")
	controller := w.crashController(t, b.home, bothSides("rescue", "remove-finalizer", "twin-again", "pass-on", "policy-back"))
	if err := b.remote.Client.CoreV1().PersistentVolumeClaims(b.remote.Name).Delete(t.Context(), was.Twin.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitCrashed(t, b.home, controller)
	b.waitRecovered(was)
	b.home.Pod("reader", "data", b.onVirtualNode)
	b.home.WaitReady("reader")
	read(t, b.remote, "reader", b.home.Name)
	b.waitOneTwinEach()
	b.home.DeletePod("reader")
	deleteClaim(b.home, "data")
	b.waitOneTwinEach()
}

// The file system is expanded on a remote node, so that the driver must update the claim at home.
func (w *walk) remoteGrown(t *testing.T, b *remoteSetup) {
	b.declare(t)
	b.waitReady()
	b.home.Claim("data", "liqo-reference-xfs", "320Mi")
	b.home.Pod("user", "data", b.onVirtualNode)
	b.home.WaitReady("user")
	write(b.remote, "user", b.home.Name)
	b.follow("data")
	controller := w.crashController(t, b.home, bothSides("expand", "mirror-size"))
	b.home.Resize("data", "400Mi")
	b.home.WaitRemoteExpanded(b.remote, "data", "400Mi")
	w.waitCrashed(t, b.home, controller)
	b.home.Resize("data", "480Mi")
	b.home.WaitRemoteExpanded(b.remote, "data", "480Mi")
	read(t, b.remote, "user", b.home.Name)
	b.home.DeletePod("user")
	deleteClaim(b.home, "data")
	b.waitOneTwinEach()
}
