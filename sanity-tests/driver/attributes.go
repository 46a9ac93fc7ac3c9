package driver

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The VolumeAttributesClasses of the lab. The chart creates none, because it does not know the real
// ones.
const (
	Silver = "liqo-silver"
	Gold   = "liqo-gold"
)

// RealAttributesClass is the parameter of the driver's VolumeAttributesClasses that names the class
// of the twin.
const RealAttributesClass = "realVolumeAttributesClass"

// ensureAttributesClasses creates the classes of the lab. They outlive an installation, like the
// volumes that use them.
func ensureAttributesClasses(ctx context.Context, client kubernetes.Interface) error {
	for name, real := range map[string]string{Silver: "reference-silver", Gold: "reference-gold"} {
		class := &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			DriverName: CSIName,
			Parameters: map[string]string{RealAttributesClass: real},
		}
		_, err := client.StorageV1().VolumeAttributesClasses().Create(ctx, class, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create the attributes class %s: %w", name, err)
		}
	}
	return nil
}
