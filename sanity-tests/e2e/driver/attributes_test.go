package driver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// VolumeAttributesClasses of the lab, with their real classes and what these set.
var (
	silver = attributes{driver.Silver, "reference-silver", "1000"}
	gold   = attributes{driver.Gold, "reference-gold", "5000"}
)

type attributes struct{ virtual, real, iops string }

// waitAttributes waits until the claim, its twin and the backend have these attributes.
func waitAttributes(t *testing.T, n *user.Namespace, claim string, wanted attributes) {
	t.Helper()
	n.WaitAttributes(claim, wanted.virtual)
	found := n.WaitVolume(claim)
	has, volumeHas := found.Twin.Status.CurrentVolumeAttributesClassName, found.Real.Spec.VolumeAttributesClassName
	if has == nil || *has != wanted.real || volumeHas == nil || *volumeHas != wanted.real || found.Twin.Status.ModifyVolumeStatus != nil {
		t.Errorf("the VolumeAttributesClass of the twin is not %s: %v", wanted.real, found.Twin.Status)
	}
	n.WaitIOPS(storage.Reference, found.Real, wanted.iops)
}

func TestAttributesAreChangedAndChangedBack(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-reference")
	for _, class := range []attributes{gold, silver, gold} {
		n.SetAttributesClass("data", class.virtual)
		waitAttributes(t, n, "data", class)
	}
}

func TestVolumeIsCreatedWithItsAttributes(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference", "64Mi", user.WithAttributesClass(gold.virtual))
	n.Pod("user", "data")
	n.WaitReady("user")
	if class := n.WaitVolume("data").Twin.Spec.VolumeAttributesClassName; class == nil || *class != gold.real {
		t.Errorf("the VolumeAttributesClass of the twin is %v", class)
	}
	waitAttributes(t, n, "data", gold)
	n.SetAttributesClass("data", silver.virtual)
	waitAttributes(t, n, "data", silver)
}

// An event of the claim reports each error, and then another class still works.
func TestInvalidAttributesAreReported(t *testing.T) {
	n := home(t)
	for name, parameters := range map[string]map[string]string{
		"missing": {driver.RealAttributesClass: n.Name + "-real-missing"},
		"unknown": {"color": "red"},
		"foreign": {driver.RealAttributesClass: n.Name + "-real-foreign"},
		"refused": {driver.RealAttributesClass: n.Name + "-real-refused"},
	} {
		n.AttributesClass(n.Name+"-"+name, driver.CSIName, parameters)
	}
	n.AttributesClass(n.Name+"-real-foreign", storage.Attach.Name, map[string]string{"iops": "1"})
	n.AttributesClass(n.Name+"-real-refused", storage.Reference.Name, map[string]string{"color": "red"})

	startPod(n, "user", "data", "liqo-reference")
	works := []attributes{gold, silver}
	for i, refused := range []struct {
		class   string
		message string
	}{
		{"missing", n.Name + "-real-missing"},
		{"unknown", "color"},
		{"foreign", n.Name + "-real-foreign"},
		// A message of the real driver.
		{"refused", "unknown mutable parameter"},
	} {
		n.SetAttributesClass("data", n.Name+"-"+refused.class)
		n.WaitEvent("data", "VolumeModifyFailed", "InvalidArgument", refused.message)
		n.WaitModifyStatus("data", corev1.PersistentVolumeClaimModifyVolumeInfeasible)
		n.SetAttributesClass("data", works[i%2].virtual)
		waitAttributes(t, n, "data", works[i%2])
	}
}

func TestMissingAttributesClassIsReported(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-reference")
	n.SetAttributesClass("data", n.Name+"-real-missing")
	n.WaitEvent("data", "VolumeModifyFailed", n.Name+"-real-missing", "does not exist")
	n.SetAttributesClass("data", gold.virtual)
	waitAttributes(t, n, "data", gold)
}

func TestVolumeIsNotCreatedWithInvalidAttributes(t *testing.T) {
	n := home(t)
	n.AttributesClass(n.Name+"-missing", driver.CSIName, map[string]string{driver.RealAttributesClass: n.Name + "-real-missing"})
	n.Claim("data", "liqo-reference", "64Mi", user.WithAttributesClass(n.Name+"-missing"))
	n.Pod("user", "data")
	n.WaitEvent("data", "ProvisioningFailed", n.Name+"-real-missing")
	if phase := n.GetClaim("data").Status.Phase; phase != corev1.ClaimPending {
		t.Errorf("the claim is %s", phase)
	}
	// The administrator creates the missing class.
	n.AttributesClass(n.Name+"-real-missing", storage.Reference.Name, map[string]string{"iops": "3000"})
	n.WaitReady("user")
	waitAttributes(t, n, "data", attributes{n.Name + "-missing", n.Name + "-real-missing", "3000"})
}

// Kubernetes finishes the first modification, and then starts the second.
func TestAttributesAreChangedAgainDuringASlowChange(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-reference")
	removeFault := addTwinFault(n, n.WaitVolume("data").Claim, storage.Fault{RPC: "ControllerModifyVolume", Hang: true})
	n.SetAttributesClass("data", gold.virtual)
	n.WaitModifyStatus("data", corev1.PersistentVolumeClaimModifyVolumeInProgress)
	n.SetAttributesClass("data", silver.virtual)
	removeFault()
	waitAttributes(t, n, "data", silver)
}

// An error of the real driver is retried.
func TestFailedChangeOfAttributesIsRetried(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-reference")
	removeFault := addTwinFault(n, n.WaitVolume("data").Claim, storage.Fault{
		RPC: "ControllerModifyVolume", Code: "Internal", Message: "the backend is on fire",
	})
	n.SetAttributesClass("data", gold.virtual)
	n.WaitEvent("data", "VolumeModifyFailed", "the backend is on fire")
	removeFault()
	waitAttributes(t, n, "data", gold)
}
