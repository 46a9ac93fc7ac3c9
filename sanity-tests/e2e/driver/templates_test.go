package driver

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/storage"
)

// textParameter is one that the reference driver takes with any value: what the Secret
// must hold without which it mounts nothing.
const textParameter = "requireStageSecret"

// The real driver would see one namespace for the volumes of all users, and no
// annotation of theirs.
func TestRealClassesWithTemplates(t *testing.T) {
	n := home(t)
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	virtual := func(name, template string, parameters map[string]string) string {
		real, class := n.Name+"-real-"+name, n.Name+"-"+name
		n.Class(&storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: real}, Provisioner: storage.Reference.Name, VolumeBindingMode: &wait,
			Parameters: map[string]string{textParameter: template},
		})
		parameters["realStorageClass"] = real
		n.Class(&storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: driver.CSIName, VolumeBindingMode: &wait,
			Parameters: parameters,
		})
		return class
	}
	known := map[string]string{"allowSharedNamespace": "true"}
	n.Claim("mixed", virtual("mixed", "${pvc.metadata.namespace}/${pvc.metadata.name}", map[string]string{}), "64Mi")
	n.Claim("chosen", virtual("chosen", "${.PVC.annotations.path}", known), "64Mi")
	n.Claim("meant", virtual("meant", "${pvc.metadata.namespace}/${pvc.metadata.name}", known), "64Mi")
	for _, claim := range []string{"mixed", "chosen", "meant"} {
		n.Pod(claim, claim)
	}
	n.WaitEvent("mixed", "ProvisioningFailed", textParameter+" expands the namespace of the claim", "allowSharedNamespace")
	n.WaitEvent("chosen", "ProvisioningFailed", textParameter+" expands annotations of the claim")
	n.WaitVolume("meant")
}
