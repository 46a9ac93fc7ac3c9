package remote

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/machine"
)

func TestTwinGetsLabelsAndListedAnnotationsOfItsClaim(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Labels = map[string]string{"team": "blue", volumeLabel: "forged"}
		claim.Annotations = map[string]string{"cost-center": "42", "nfs.io/storage-path": "somebody-elses"}
	})
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	found := p.waitVolume("data")
	if found.Twin.Labels["team"] != "blue" || found.Twin.Annotations["cost-center"] != "42" || found.Twin.Annotations["nfs.io/storage-path"] != "" || found.Twin.Labels[volumeLabel] == "forged" {
		t.Errorf("labels %v, annotations %v", found.Twin.Labels, found.Twin.Annotations)
	}
	patch := []byte(`{"metadata":{"labels":{"team":"green"},"annotations":{"cost-center":null}}}`)
	_, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Patch(t.Context(), "data", types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.remote.Eventually("the twin has the new labels and annotations", func(ctx context.Context) (string, error) {
		twin, err := p.twin(ctx, "data")
		if err != nil {
			return "", err
		}
		if _, ok := twin.Annotations["cost-center"]; ok || twin.Labels["team"] != "green" {
			return fmt.Sprintf("labels %v, annotations %v", twin.Labels, twin.Annotations), nil
		}
		return "", nil
	})
}

func TestRetainKeepsRemoteData(t *testing.T) {
	p := newPair(t)
	p.startPod("user", "precious", "liqo-retain")
	found := p.waitVolume("precious")
	t.Cleanup(func() { p.discard(found) }) // before the namespaces are deleted
	p.waitReclaimPolicy(found, corev1.PersistentVolumeReclaimRetain)
	p.home.DeletePod("user")
	p.deleteClaim("precious")
	p.home.Eventually("the volume is released", func(ctx context.Context) (string, error) {
		object, err := p.home.Client.CoreV1().PersistentVolumes().Get(ctx, found.Virtual.Name, metav1.GetOptions{})
		if err != nil || object.Status.Phase == corev1.VolumeReleased {
			return "", err
		}
		return "it is " + string(object.Status.Phase), nil
	})
	if err := p.data(found); err != nil {
		t.Error(err)
	}
}

// discard deletes a retained volume as an administrator does: first the virtual PersistentVolume, which keeps the
// real one retained.
func (p *pair) discard(v user.Volume) {
	ctx := user.CleanupContext(p.t)
	patch := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	for _, step := range []struct {
		n    *user.Namespace
		name string
	}{{p.home, v.Virtual.Name}, {p.remote, v.Real.Name}} {
		err := machine.Until(ctx, "volume "+step.name+" to be deleted", func() error {
			found, err := step.n.Client.CoreV1().PersistentVolumes().Patch(ctx, step.name, types.MergePatchType, patch, metav1.PatchOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return err
			}
			return fmt.Errorf("it is %s %s", found.Status.Phase, found.Status.Message)
		})
		if err != nil {
			p.t.Errorf("discard the retained volume: %v", err)
		}
	}
}

func TestChangeFromRetainToDeleteDeletesRemoteData(t *testing.T) {
	p := newPair(t)
	p.startPod("user", "data", "liqo-reference")
	found := p.waitVolume("data")
	for _, policy := range []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimDelete} {
		p.setReclaimPolicy(p.home, found.Virtual, policy)
		p.waitReclaimPolicy(found, policy)
	}
	p.home.DeletePod("user")
	p.deleteClaim("data")
	p.waitVolumeDeleted(found)
}
