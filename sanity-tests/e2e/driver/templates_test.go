package driver

import (
	"testing"

	"storage.liqo.io/sanity-tests/storage"
)

// textParameter is a parameter of the reference driver that may have any value.
const textParameter = "requireStageSecret"

// The real driver expands templates in its parameters for the twin, which has another namespace and other annotations
// than the claim, so the driver refuses them.
func TestTemplatesInParametersOfRealClasses(t *testing.T) {
	n := home(t)
	create := func(name, template string, parameters map[string]string) string {
		real := realClass(n.Name+"-real-"+name, storage.Reference, map[string]string{textParameter: template})
		n.Class(real)
		parameters["realStorageClass"] = real.Name
		virtual := virtualClass(n.Name+"-"+name, parameters)
		n.Class(virtual)
		return virtual.Name
	}
	shared := map[string]string{"allowSharedNamespace": "true"}
	n.Claim("namespace", create("namespace", "${pvc.metadata.namespace}/${pvc.metadata.name}", map[string]string{}), "64Mi")
	n.Claim("annotation", create("annotation", "${.PVC.annotations.path}", shared), "64Mi")
	n.Claim("allowed", create("allowed", "${pvc.metadata.namespace}/${pvc.metadata.name}", shared), "64Mi")
	for _, claim := range []string{"namespace", "annotation", "allowed"} {
		n.Pod(claim, claim)
	}
	n.WaitEvent("namespace", "ProvisioningFailed", textParameter+" expands the namespace of the claim", "allowSharedNamespace")
	n.WaitEvent("annotation", "ProvisioningFailed", textParameter+" expands annotations of the claim")
	n.WaitVolume("allowed")
}
