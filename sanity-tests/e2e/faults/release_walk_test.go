package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// createVirtualClaim creates a claim of the driver with data, which no pod uses.
func createVirtualClaim(t *testing.T, n *user.Namespace) user.Volume {
	t.Helper()
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("before", "data")
	n.WaitReady("before")
	write(n, "before", n.Name)
	found := n.WaitVolume("data")
	n.DeletePod("before")
	waitDetached(n, found.Virtual.Name, found.Real.Name)
	return found
}

func waitDetached(n *user.Namespace, volumes ...string) {
	n.Eventually("the volume is detached", func(ctx context.Context) (string, error) {
		all, err := n.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, attachment := range all.Items {
			if volume := attachment.Spec.Source.PersistentVolumeName; volume != nil && slices.Contains(volumes, *volume) {
				return "it is attached to " + attachment.Spec.NodeName, nil
			}
		}
		return "", nil
	})
}

func wantReal(t *testing.T, n *user.Namespace, was user.Volume) {
	t.Helper()
	now := n.WaitBound("data")
	if now.UID != was.Real.UID || now.Spec.PersistentVolumeReclaimPolicy != was.Real.Spec.PersistentVolumeReclaimPolicy {
		user.ViolatedNow(t, "the claim has the volume %s (%s) instead of %s", now.Name, now.Spec.PersistentVolumeReclaimPolicy, was.Real.Name)
	}
	if _, left := now.Annotations["storage.liqo.io/release"]; left {
		t.Fatal("the record of the release is left")
	}
	n.Pod("after", "data")
	n.WaitReady("after")
	read(t, n, "after", n.Name)
	discard(n, "after", "data")
}

func (w *walk) released(t *testing.T, n *user.Namespace) {
	was := createVirtualClaim(t, n)
	command := newTransferCommand(t, n, "release", "pvc")
	command.crashes(t, w, bothSides("release-mark", "release-record", "release-retain", "release-claim", "release-virtual",
		"release-twin", "release-give", "release-make", "release-wake", "release-settle"))
	command.succeeds(t)
	wantReal(t, n, was)
}

// The controller, with csi-provisioner, is scaled down until restart.
func (w *walk) releaseUndone(t *testing.T, n *user.Namespace) {
	was := createVirtualClaim(t, n)
	restart := scaleDownController(t, n)
	defer restart()
	command := newTransferCommand(t, n, "release", "pvc")
	undoAfter := func(point string, undo ...string) {
		t.Helper()
		command.crashes(t, w, []string{point})
		if len(undo) > 0 {
			command.crashes(t, w, bothSides(undo...), "--undo")
		}
		command.succeeds(t, "--undo")
		wantVirtual(t, n, was)
	}
	undoAfter("after-release-mark", "unrelease-mark")
	undoAfter("after-release-retain", "unrelease-withdraw", "unrelease-touch", "unrelease-policy", "unrelease-restore", "unrelease-untouch")
	undoAfter("after-release-claim", "unrelease-give", "unrelease-make", "unrelease-wake")
	// Nothing else removes csi-provisioner's finalizer.
	undoAfter("before-release-finalizer")
	undoAfter("after-release-finalizer")
	undoAfter("after-release-virtual", "unrelease-touch-twin", "unrelease-virtual")

	// Another client creates the claim with the virtual class before the command does.
	command.crashes(t, w, []string{"after-release-claim"})
	waitNoClaim(n)
	n.Claim("data", "liqo-reference", "64Mi")
	command.crashes(t, w, bothSides("unrelease-give"), "--undo")
	command.succeeds(t, "--undo")
	wantVirtual(t, n, was)

	// The twin is deleted: the controller imports the volume again.
	command.crashes(t, w, []string{"after-release-twin"})
	command.crashes(t, w, bothSides("unrelease-import"), "--undo")
	restart()
	command.succeeds(t, "--undo")
	now := n.WaitVolume("data")
	if now.Real.UID != was.Real.UID {
		user.ViolatedNow(t, "the real volume is %s, it was %s", now.Real.Name, was.Real.Name)
	}

	// Another client creates the claim with the real class before the command does.
	command.crashes(t, w, []string{"after-release-claim"})
	waitNoClaim(n)
	n.Claim("data", "reference", "64Mi")
	command.crashes(t, w, bothSides("release-give"))
	command.succeeds(t)
	wantReal(t, n, was)
}

// wantVirtual checks that a claim is bound to the same twin and real volume, without marks of the release.
func wantVirtual(t *testing.T, n *user.Namespace, was user.Volume) {
	t.Helper()
	n.Eventually("the claim is bound to its virtual volume", func(ctx context.Context) (string, error) {
		claim, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, "data", metav1.GetOptions{})
		if err != nil || claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName != was.Virtual.Name {
			return fmt.Sprintf("it is %s, with the volume %s", claim.Status.Phase, claim.Spec.VolumeName), err
		}
		for key := range claim.Annotations {
			if strings.HasPrefix(key, "storage.liqo.io/release") {
				return "the claim has the annotation " + key, nil
			}
		}
		return "", nil
	})
	core := n.Client.CoreV1()
	outer, err := core.PersistentVolumes().Get(t.Context(), was.Virtual.Name, metav1.GetOptions{})
	if err != nil || outer.Spec.PersistentVolumeReclaimPolicy != was.Virtual.Spec.PersistentVolumeReclaimPolicy {
		t.Fatalf("%v: the virtual volume is %s", err, outer.Spec.PersistentVolumeReclaimPolicy)
	}
	real, err := core.PersistentVolumes().Get(t.Context(), was.Real.Name, metav1.GetOptions{})
	if err != nil || real.Spec.PersistentVolumeReclaimPolicy != was.Real.Spec.PersistentVolumeReclaimPolicy {
		t.Fatalf("%v: the real volume is %s", err, real.Spec.PersistentVolumeReclaimPolicy)
	}
	if _, left := real.Annotations["storage.liqo.io/release"]; left {
		t.Fatal("the record of the release is left")
	}
	twin, err := core.PersistentVolumeClaims(chart.StorageNamespace).Get(t.Context(), was.Twin.Name, metav1.GetOptions{})
	if err != nil || twin.UID != was.Twin.UID {
		t.Fatalf("%v: the twin is another one", err)
	}
	if _, left := twin.Annotations["storage.liqo.io/releasing"]; left {
		t.Fatal("the twin is still marked")
	}
}
