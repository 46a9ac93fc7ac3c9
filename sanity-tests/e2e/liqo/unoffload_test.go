package liqo

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// Liqo deletes the remote namespace, and the twins in it, when the offloading ends. The deletion must never block.
// Whether the data is retained depends on the rights.

// The limits of the cluster report before that data cannot be retained, and the claim that its twin was deleted. The
// twin must not be recreated with an empty volume.
func TestUnoffloadWithLiqosOwnIdentityReportsDataLoss(t *testing.T) {
	p := newOffloadedPair(t, liqoOnly)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.startWriter("user", "data", "precious")
	p.home.WaitRemoteVolume(p.remote, "data")

	p.unoffload()
	p.waitCondition("data", "the reason TwinVanished", hasReason("TwinVanished"))
	p.home.WaitEvent("data", "TwinVanished", p.remote.Name+"/data", "was deleted by another client")

	p.offload()
	p.waitCondition("data", "the missing right in its message", func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Reason == "TwinVanished" && strings.Contains(c.Message, "not known whether its data is kept") && strings.Contains(c.Message, "PersistentVolumes")
	})
	twins, err := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, twin := range twins.Items {
		if twin.Name == "data" {
			user.Violated(t, "the deleted twin was recreated with an empty volume: %+v", twin)
		}
	}
}

// With the rights of docs/remote/liqo.md the data is retained, and used again when the namespace is offloaded again.
func TestUnoffloadKeepsTheData(t *testing.T) {
	for _, level := range []string{namespaced, full} {
		t.Run(level, func(t *testing.T) { checkDataKept(t, newOffloadedPair(t, level)) })
	}
}

func checkDataKept(t *testing.T, p *pair) {
	t.Helper()
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.startWriter("user", "data", "precious")
	found := p.home.WaitRemoteVolume(p.remote, "data")

	p.unoffload()
	p.waitRetained(found)

	p.offload()
	p.home.DeletePod("user")
	p.home.Pod("next", "data", onLiqoNode)
	p.home.WaitReady("next")
	p.wantRead("next", "precious")
	again := p.home.WaitRemoteVolume(p.remote, "data")
	if again.Real.Name != found.Real.Name {
		user.Violated(t, "the twin has the volume %s, its data is in %s", again.Real.Name, found.Real.Name)
	}
	p.waitCondition("data", "the reason TwinBound", hasReason("TwinBound"))
	p.home.DeletePod("next")
	p.deleteClaim("data")
	p.waitVolumeDeleted(again)
}

// The home namespace is deleted while Liqo deletes the remote one. Neither deletion may wait for the other, and no data
// remains.
func TestDeletingAnOffloadedNamespaceLeavesNothing(t *testing.T) {
	p := newOffloadedPair(t, namespaced)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.startWriter("user", "data", "unwanted")
	found := p.home.WaitRemoteVolume(p.remote, "data")
	namespaces := p.home.Client.CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), p.home.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.waitNamespaceDeleted(p.home)
	p.waitNamespaceDeleted(p.remote)
	p.waitVolumeDeleted(found)
}

// waitRetained waits until the real PersistentVolume of a deleted twin is Released and retained.
func (p *pair) waitRetained(v user.Volume) {
	p.t.Helper()
	p.remote.Eventually("the data of claim "+v.Claim.Name+" is retained", func(ctx context.Context) (string, error) {
		real, err := p.remote.Client.CoreV1().PersistentVolumes().Get(ctx, v.Real.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		policy := real.Spec.PersistentVolumeReclaimPolicy
		if policy == corev1.PersistentVolumeReclaimRetain && real.Status.Phase == corev1.VolumeReleased && real.DeletionTimestamp == nil {
			return "", nil
		}
		return fmt.Sprintf("%s is %s %s", real.Name, real.Status.Phase, policy), nil
	})
}
