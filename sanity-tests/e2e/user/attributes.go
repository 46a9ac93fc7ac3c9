package user

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/storage"
)

// WithAttributes asks for a volume that is made with these attributes.
func WithAttributes(class string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeAttributesClassName = &class }
}

// AttributesClass makes an attributes class of the cluster that goes with the test: it
// is deleted then, and gone when the last volume is that has it.
func (n *Namespace) AttributesClass(name, driver string, parameters map[string]string) {
	n.t.Helper()
	classes := n.Client.StorageV1().VolumeAttributesClasses()
	class := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver, Parameters: parameters}
	if _, err := classes.Create(n.t.Context(), class, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := classes.Delete(Afterwards(n.t), name, metav1.DeleteOptions{}); err != nil {
			n.t.Error(err)
		}
	})
}

// WaitAttributes waits until a claim and its volume have an attributes class, and
// nothing about it is still going on.
func (n *Namespace) WaitAttributes(claim, class string) {
	n.t.Helper()
	n.Eventually("claim "+claim+" has the attributes class "+class, func(ctx context.Context) (string, error) {
		found, volume, err := n.withVolume(ctx, claim)
		if err != nil {
			return "", err
		}
		if going := found.Status.ModifyVolumeStatus; going != nil {
			return fmt.Sprintf("to have %s is %s: %v", going.TargetVolumeAttributesClassName, going.Status, found.Status.Conditions), nil
		}
		has, volumeHas := found.Status.CurrentVolumeAttributesClassName, volume.Spec.VolumeAttributesClassName
		if has == nil || *has != class || volumeHas == nil || *volumeHas != class {
			return fmt.Sprintf("it has %s, its volume %s", named(has), named(volumeHas)), nil
		}
		return "", nil
	})
}

// WaitModifying waits until the change of a claim's attributes is in this state.
func (n *Namespace) WaitModifying(claim string, state corev1.PersistentVolumeClaimModifyVolumeStatus) {
	n.t.Helper()
	n.Eventually(fmt.Sprintf("the change of the attributes of claim %s is %s", claim, state), func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if going := found.Status.ModifyVolumeStatus; going == nil || going.Status != state {
			return fmt.Sprintf("it is %v", going), nil
		}
		return "", nil
	})
}

// WaitOperations waits until the backend gives a real volume of this driver, in this
// cluster, so many operations per second.
func (n *Namespace) WaitOperations(driver storage.Driver, real *corev1.PersistentVolume, iops string) {
	n.t.Helper()
	backend := storage.BackendOf(n.Cluster, driver)
	n.Eventually("the backend gives "+iops+" operations per second", func(context.Context) (string, error) {
		record, err := backend.Volume(real.Spec.CSI.VolumeHandle)
		if err != nil || record.Mutable["iops"] == iops {
			return "", err
		}
		return "it gives " + record.Mutable["iops"], nil
	})
}

func named(class *string) string {
	if class == nil {
		return "none"
	}
	return *class
}
