package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// virtual is a claim of the driver with something on it that no pod uses.
func virtual(t *testing.T, n *user.Namespace) user.Volume {
	t.Helper()
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("before", "data")
	n.WaitReady("before")
	write(n, "before", n.Name)
	found := n.Follow("data")
	n.DeletePod("before")
	waitDetached(n, found)
	return found
}

func waitDetached(n *user.Namespace, found user.Volume) {
	n.Eventually("the volume is detached", func(ctx context.Context) (string, error) {
		all, err := n.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, one := range all.Items {
			named := one.Spec.Source.PersistentVolumeName
			if named != nil && (*named == found.Object.Name || *named == found.Real.Name) {
				return "it is attached to " + one.Spec.NodeName, nil
			}
		}
		return "", nil
	})
}

func wantReal(t *testing.T, n *user.Namespace, was user.Volume) {
	t.Helper()
	now := n.WaitBound("data")
	if now.UID != was.Real.UID || now.Spec.PersistentVolumeReclaimPolicy != was.Real.Spec.PersistentVolumeReclaimPolicy {
		user.ViolatedNow(t, "the claim has the volume %s (%s), and not %s", now.Name, now.Spec.PersistentVolumeReclaimPolicy, was.Real.Name)
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
	was := virtual(t, n)
	command := newTransferCommand(t, n, "release", "pvc")
	command.dies(t, w, both("release-mark", "release-record", "release-retain", "release-claim", "release-virtual",
		"release-twin", "release-give", "release-make", "release-wake", "release-settle"))
	command.ends(t)
	wantReal(t, n, was)
}

// The controller, and csi-provisioner with it, is away where the leg wants that.
func (w *walk) releaseUndone(t *testing.T, n *user.Namespace) {
	was := virtual(t, n)
	restart := withoutController(t, n)
	defer restart()
	command := newTransferCommand(t, n, "release", "pvc")
	rest := func(point string, undo ...string) {
		t.Helper()
		command.dies(t, w, []string{point})
		if len(undo) > 0 {
			command.dies(t, w, both(undo...), "--undo")
		}
		command.ends(t, "--undo")
		wantVirtual(t, n, was)
	}
	rest("after-release-mark", "unrelease-mark")
	rest("after-release-retain", "unrelease-withdraw", "unrelease-touch", "unrelease-policy", "unrelease-restore", "unrelease-untouch")
	rest("after-release-claim", "unrelease-give", "unrelease-make", "unrelease-wake")
	// Nobody else takes csi-provisioner's finalizer off.
	rest("before-release-finalizer")
	rest("after-release-finalizer")
	rest("after-release-virtual", "unrelease-touch-twin", "unrelease-virtual")

	// Somebody makes the claim in the gap, of the virtual class.
	command.dies(t, w, []string{"after-release-claim"})
	waitNoClaim(n)
	n.Claim("data", "liqo-reference", "64Mi")
	command.dies(t, w, both("unrelease-give"), "--undo")
	command.ends(t, "--undo")
	wantVirtual(t, n, was)

	// The twin is gone: the volume is imported again, by the controller.
	command.dies(t, w, []string{"after-release-twin"})
	command.dies(t, w, both("unrelease-import"), "--undo")
	restart()
	command.ends(t, "--undo")
	now := n.Follow("data")
	if now.Real.UID != was.Real.UID {
		user.ViolatedNow(t, "the real volume is %s, and was %s", now.Real.Name, was.Real.Name)
	}

	// Somebody makes the claim in the gap, of the real class.
	command.dies(t, w, []string{"after-release-claim"})
	waitNoClaim(n)
	n.Claim("data", "reference", "64Mi")
	command.dies(t, w, both("release-give"))
	command.ends(t)
	wantReal(t, n, was)
}

// wantVirtual is that a claim is bound to the same twin and real volume, and nothing is left.
func wantVirtual(t *testing.T, n *user.Namespace, was user.Volume) {
	t.Helper()
	n.Eventually("the claim is bound to its virtual volume", func(ctx context.Context) (string, error) {
		claim, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, "data", metav1.GetOptions{})
		if err != nil || claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName != was.Object.Name {
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
	outer, err := core.PersistentVolumes().Get(t.Context(), was.Object.Name, metav1.GetOptions{})
	if err != nil || outer.Spec.PersistentVolumeReclaimPolicy != was.Object.Spec.PersistentVolumeReclaimPolicy {
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
