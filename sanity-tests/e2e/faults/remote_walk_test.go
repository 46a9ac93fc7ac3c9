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
)

// The controller dies wherever it makes a node one that can have volumes and says
// what it knows of the cluster, and wherever it takes that back.
func (w *walk) standingIn(t *testing.T, b *neighbour) {
	controller := w.onController(t, b.here, both("node-label", "csi-node-write", "cluster-write"))
	b.declare(t)
	w.carriedOut(t, b.here, controller)
	b.ready()

	controller = w.onController(t, b.here, both("node-label", "csi-node-write"))
	b.forget(t)
	w.carriedOut(t, b.here, controller)
	b.marked(false)
}

func (w *walk) remoteRefused(t *testing.T, b *neighbour) {
	b.declare(t)
	b.ready()
	b.there.StorageQuota("nothing", "1Mi")
	controller := w.onController(t, b.here, both("note-refusal"))
	b.here.Claim("data", "liqo-reference", "64Mi")
	b.here.Pod("user", "data", b.onIt)
	w.carriedOut(t, b.here, controller)
	b.here.Eventually("it is noted that "+b.id+" refuses the claim", func(ctx context.Context) (string, error) {
		noted, err := b.here.Client.CoreV1().ConfigMaps(chart.Namespace).Get(ctx, "liqo-csi-refusals", metav1.GetOptions{})
		if err != nil || strings.Contains(fmt.Sprint(noted.Data), b.id) {
			return "", err
		}
		return fmt.Sprintf("noted is %v", noted.Data), nil
	})
	b.here.DeletePod("user")
	deleteClaim(b.here, "data")
	b.oneTwinEach()
}

func (w *walk) remoteLife(t *testing.T, b *neighbour) {
	b.declare(t)
	b.ready()
	controller := w.onController(t, b.here, both("twin-create", "hand-over", "mark-holder", "mirror", "twin-delete", "remove-finalizer"))
	b.here.Claim("data", "liqo-reference", "64Mi")
	b.here.Pod("writer", "data", b.onIt)
	b.here.WaitReady("writer")
	write(b.there, "writer", b.here.Name)
	b.oneTwinEach()
	b.here.DeletePod("writer")
	b.here.Pod("reader", "data", b.onIt)
	b.here.WaitReady("reader")
	read(t, b.there, "reader", b.here.Name)
	b.here.DeletePod("reader")
	deleteClaim(b.here, "data")
	w.carriedOut(t, b.here, controller)
	b.oneTwinEach()
}

func (w *walk) remoteRetained(t *testing.T, b *neighbour) {
	b.declare(t)
	b.ready()
	controller := w.onController(t, b.here, append(both("retain"), "after-mirror"))
	b.here.Claim("data", "liqo-retain", "64Mi")
	b.here.Pod("user", "data", b.onIt)
	b.here.WaitReady("user")
	w.carriedOut(t, b.here, controller)
	volume := b.follow("data")
	b.here.DeletePod("user")
	deleteClaim(b.here, "data")

	// What administrators of both clusters do who want it gone after all.
	here, there := b.here.Client.CoreV1(), b.there.Client.CoreV1()
	b.here.Eventually("the volume is released and can be discarded", func(ctx context.Context) (string, error) {
		found, err := here.PersistentVolumes().Get(ctx, volume.Object.Name, metav1.GetOptions{})
		if err != nil || found.Status.Phase != corev1.VolumeReleased {
			return "it is not released yet", err
		}
		return "", here.PersistentVolumes().Delete(ctx, volume.Object.Name, metav1.DeleteOptions{})
	})
	b.there.WantRetained(volume.Real.Name)
	deleteClaim(b.there, volume.Twin.Name)
	if _, err := there.PersistentVolumes().Patch(t.Context(), volume.Real.Name, types.MergePatchType,
		[]byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *walk) remoteRescued(t *testing.T, b *neighbour) {
	b.declare(t)
	b.ready()
	b.here.Claim("data", "liqo-reference", "64Mi")
	b.here.Pod("writer", "data", b.onIt)
	b.here.WaitReady("writer")
	write(b.there, "writer", b.here.Name)
	// Kubernetes itself lets no claim go that a pod uses.
	b.here.DeletePod("writer")
	was := b.follow("data")
	controller := w.onController(t, b.here, both("rescue", "remove-finalizer", "twin-again", "pass-on", "policy-back"))
	if err := b.there.Client.CoreV1().PersistentVolumeClaims(b.there.Name).Delete(t.Context(), was.Twin.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.carriedOut(t, b.here, controller)
	b.madeAgain(was)
	b.here.Pod("reader", "data", b.onIt)
	b.here.WaitReady("reader")
	read(t, b.there, "reader", b.here.Name)
	b.oneTwinEach()
	b.here.DeletePod("reader")
	deleteClaim(b.here, "data")
	b.oneTwinEach()
}

// The filesystem needs the node there, so that the claim here is left for us to tell.
func (w *walk) remoteGrown(t *testing.T, b *neighbour) {
	b.declare(t)
	b.ready()
	b.here.Claim("data", "liqo-reference-xfs", "320Mi")
	b.here.Pod("user", "data", b.onIt)
	b.here.WaitReady("user")
	write(b.there, "user", b.here.Name)
	b.follow("data")
	controller := w.onController(t, b.here, both("expand", "mirror-size"))
	b.here.Resize("data", "400Mi")
	b.here.WaitGrownTo(b.there, "data", "400Mi")
	w.carriedOut(t, b.here, controller)
	b.here.Resize("data", "480Mi")
	b.here.WaitGrownTo(b.there, "data", "480Mi")
	read(t, b.there, "user", b.here.Name)
	b.here.DeletePod("user")
	deleteClaim(b.here, "data")
	b.oneTwinEach()
}
