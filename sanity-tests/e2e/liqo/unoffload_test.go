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

// Whoever ends the offloading of a namespace has Liqo delete the namespace there, with
// the twins of living claims in it. It always ends. What becomes of the data depends
// on the rights.

// That nothing can be rescued is said before, by the limits of the cluster, and that the
// twin is gone by the claim. No empty volume takes the place of the lost one.
func TestUnoffloadWithLiqosOwnIdentityTellsTheLoss(t *testing.T) {
	p := offloaded(t, asLiqoMadeIt)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.writes("user", "data", "precious")
	p.home.WaitRemoteVolume(p.remote, "data")

	p.unoffload()
	p.condition("data", "TwinVanished", because("TwinVanished"))
	p.home.WaitEvent("data", "TwinVanished", p.remote.Name+"/data", "was deleted by another client")

	p.offload()
	p.condition("data", "which right is missing to know more", func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Reason == "TwinVanished" && strings.Contains(c.Message, "not known whether its data is kept") && strings.Contains(c.Message, "PersistentVolumes")
	})
	twins, err := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, twin := range twins.Items {
		if twin.Name == "data" {
			user.Violated(t, "an empty twin was made in the place of the lost one: %+v", twin)
		}
	}
}

// With the rights that docs/remote/liqo.md advises the data stays, and is there again when
// the namespace is offloaded again.
func TestUnoffloadKeepsTheData(t *testing.T) {
	for _, level := range []string{namespaced, full} {
		t.Run(level, func(t *testing.T) { keepsTheData(t, offloaded(t, level)) })
	}
}

func keepsTheData(t *testing.T, p *pair) {
	t.Helper()
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.writes("user", "data", "precious")
	found := p.home.WaitRemoteVolume(p.remote, "data")

	p.unoffload()
	p.waitRetained(found)

	p.offload()
	p.home.DeletePod("user")
	p.home.Pod("next", "data", there)
	p.home.WaitReady("next")
	p.wantRead("next", "precious")
	again := p.home.WaitRemoteVolume(p.remote, "data")
	if again.Real.Name != found.Real.Name {
		user.Violated(t, "the twin is on %s, its data is on %s", again.Real.Name, found.Real.Name)
	}
	p.condition("data", "TwinBound", because("TwinBound"))
	p.home.DeletePod("next")
	p.deleteClaim("data")
	p.wantGone(again)
}

// The namespace at home is deleted with all that is in it: the user wants none of it.
// Liqo deletes the one there meanwhile; neither waits for the other for ever.
func TestDeletingAnOffloadedNamespaceLeavesNothing(t *testing.T) {
	p := offloaded(t, namespaced)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.writes("user", "data", "unwanted")
	found := p.home.WaitRemoteVolume(p.remote, "data")
	namespaces := p.home.Client.CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), p.home.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.waitNamespaceGone(p.home)
	p.waitNamespaceGone(p.remote)
	p.wantGone(found)
}

// waitRetained waits until the real volume of a twin that is gone is kept for an
// administrator, or for the twin that is made again.
func (p *pair) waitRetained(v user.Volume) {
	p.t.Helper()
	p.remote.Eventually("the data of claim "+v.Claim.Name+" is kept", func(ctx context.Context) (string, error) {
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
