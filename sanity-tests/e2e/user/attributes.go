package user

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/storage"
)

// WithAttributesClass sets the VolumeAttributesClass of a claim.
func WithAttributesClass(class string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeAttributesClassName = &class }
}

// AttributesClass creates a VolumeAttributesClass, and deletes it at the end of the test.
func (n *Namespace) AttributesClass(name, driver string, parameters map[string]string) {
	n.t.Helper()
	classes := n.Client.StorageV1().VolumeAttributesClasses()
	class := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver, Parameters: parameters}
	if _, err := classes.Create(n.t.Context(), class, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := classes.Delete(CleanupContext(n.t), name, metav1.DeleteOptions{}); err != nil {
			n.t.Error(err)
		}
	})
}

// WaitAttributes waits until a claim and its volume have a VolumeAttributesClass and no change is in
// progress.
func (n *Namespace) WaitAttributes(claim, class string) {
	n.t.Helper()
	n.Eventually("claim "+claim+" has the attributes class "+class, func(ctx context.Context) (string, error) {
		found, volume, err := n.withVolume(ctx, claim)
		if err != nil {
			return "", err
		}
		if status := found.Status.ModifyVolumeStatus; status != nil {
			return fmt.Sprintf("the change to %s is %s: %v", status.TargetVolumeAttributesClassName, status.Status, found.Status.Conditions), nil
		}
		ofClaim, ofVolume := found.Status.CurrentVolumeAttributesClassName, volume.Spec.VolumeAttributesClassName
		if ofClaim == nil || *ofClaim != class || ofVolume == nil || *ofVolume != class {
			return fmt.Sprintf("it has %s, its volume %s", orNone(ofClaim), orNone(ofVolume)), nil
		}
		return "", nil
	})
}

// WaitModifyStatus waits until the change of a claim's attributes is in this state.
func (n *Namespace) WaitModifyStatus(claim string, state corev1.PersistentVolumeClaimModifyVolumeStatus) {
	n.t.Helper()
	n.Eventually(fmt.Sprintf("the change of the attributes of claim %s is %s", claim, state), func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if status := found.Status.ModifyVolumeStatus; status == nil || status.Status != state {
			return fmt.Sprintf("it is %v", status), nil
		}
		return "", nil
	})
}

// WaitIOPS waits until the backend has set the IOPS of a real volume of this driver.
func (n *Namespace) WaitIOPS(driver storage.Driver, real *corev1.PersistentVolume, iops string) {
	n.t.Helper()
	backend := storage.BackendOf(n.Cluster, driver)
	n.Eventually("the backend sets "+iops+" IOPS", func(context.Context) (string, error) {
		record, err := backend.Volume(real.Spec.CSI.VolumeHandle)
		if err != nil || record.Mutable["iops"] == iops {
			return "", err
		}
		return "they are " + record.Mutable["iops"], nil
	})
}

func orNone(class *string) string {
	if class == nil {
		return "none"
	}
	return *class
}
