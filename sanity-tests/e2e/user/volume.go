package user

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
)

// Volume has all objects of a volume of the driver.
type Volume struct {
	Claim *corev1.PersistentVolumeClaim
	// Virtual is the claim's PersistentVolume, which has no data of its own.
	Virtual *corev1.PersistentVolume
	Twin    *corev1.PersistentVolumeClaim
	// Real is the twin's PersistentVolume.
	Real *corev1.PersistentVolume
}

// GetVolume returns the current objects of a claim whose twin is in the same cluster; absent ones are nil.
func (n *Namespace) GetVolume(ctx context.Context, claim string) (v Volume, err error) {
	claims, twins := n.Client.CoreV1().PersistentVolumeClaims(n.Name), n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace)
	if v.Claim, err = present(claims.Get(ctx, claim, metav1.GetOptions{})); v.Claim == nil {
		return v, err
	}
	if v.Virtual, err = n.volumeOf(ctx, v.Claim); err != nil {
		return v, err
	}
	if v.Twin, err = present(twins.Get(ctx, v.twinName(), metav1.GetOptions{})); v.Twin == nil {
		return v, err
	}
	v.Real, err = n.volumeOf(ctx, v.Twin)
	return v, err
}

// WantRetained checks that a PersistentVolume exists and has the reclaim policy Retain.
func (n *Namespace) WantRetained(name string) *corev1.PersistentVolume {
	n.t.Helper()
	volume, err := present(n.Client.CoreV1().PersistentVolumes().Get(n.t.Context(), name, metav1.GetOptions{}))
	if err != nil {
		n.t.Fatal(err)
	}
	if volume == nil {
		ViolatedNow(n.t, "the volume %s, which must be retained, does not exist", name)
	}
	if policy := volume.Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimRetain {
		ViolatedNow(n.t, "the reclaim policy of volume %s is %s, not Retain", name, policy)
	}
	return volume
}

// twinName returns the twin's name in the PersistentVolume or, before that exists, what it will be.
func (v Volume) twinName() string {
	if v.Virtual != nil && v.Virtual.Spec.CSI != nil {
		if name := v.Virtual.Spec.CSI.VolumeAttributes["storage.liqo.io/twin-name"]; name != "" {
			return name
		}
	}
	return string(v.Claim.UID)
}

// WaitVolume waits until a claim is Bound and has a twin in the same cluster, and returns all objects.
func (n *Namespace) WaitVolume(claim string) (v Volume) {
	n.t.Helper()
	n.WaitBound(claim)
	n.Eventually("claim "+claim+" has a twin with a volume", func(ctx context.Context) (missing string, err error) {
		if v, err = n.GetVolume(ctx, claim); v.Real == nil {
			missing = "it has none"
		}
		return missing, err
	})
	return v
}

// WaitRemoteVolume is WaitVolume for a claim whose twin is in a namespace of another cluster. It waits until the twin
// is Bound too.
func (n *Namespace) WaitRemoteVolume(remote *Namespace, claim string) Volume {
	n.t.Helper()
	v := Volume{Virtual: n.WaitBound(claim), Real: remote.WaitBound(claim)}
	v.Claim, v.Twin = n.GetClaim(claim), remote.GetClaim(claim)
	return v
}

// GetClaim returns a claim.
func (n *Namespace) GetClaim(name string) *corev1.PersistentVolumeClaim {
	n.t.Helper()
	claim, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return claim
}

// volumeOf returns the PersistentVolume of a claim, nil if there is none.
func (n *Namespace) volumeOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	if claim.Spec.VolumeName == "" {
		return nil, nil
	}
	return present(n.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{}))
}

// present returns the object, nil if there is none.
func present[T any](object *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return object, nil
}
