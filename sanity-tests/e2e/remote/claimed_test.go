package remote

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// A user changes the claimRef of the PersistentVolume, and changes it back. Meanwhile it is Released with the
// policy Delete, and csi-provisioner calls DeleteVolume.
func TestRemoteVolumeOfAnExistingClaimIsNotDeleted(t *testing.T) {
	p := newPair(t)
	found := p.createWithData()
	setClaimUID := func(uid types.UID) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"spec":{"claimRef":{"uid":%q}}}`, uid)
		if _, err := p.home.Client.CoreV1().PersistentVolumes().Patch(t.Context(), found.Virtual.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	setClaimUID("another")
	p.home.WaitEvent("data", "VolumeNotDeleted")
	setClaimUID(found.Claim.UID)
	p.home.Eventually("the claim is bound again", func(ctx context.Context) (string, error) {
		claim, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(ctx, "data", metav1.GetOptions{})
		if err != nil || claim.Status.Phase == corev1.ClaimBound {
			return "", err
		}
		return "it is " + string(claim.Status.Phase), nil
	})
	p.wantData()
	if now := p.waitVolume("data"); now.Twin.UID != found.Twin.UID || now.Real.UID != found.Real.UID {
		user.Violated(t, "the twin or the real PersistentVolume was replaced: %v %v", now.Twin, now.Real)
	}
	p.deleteClaim("data")
	p.waitVolumeDeleted(found)
}
