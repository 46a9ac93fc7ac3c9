package remote

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// mappedAttributes is an attributes class that is there while its test runs.
const mappedAttributes = "e2e-mapped-attributes"

// waitAttributes waits until the claim data, its twin and the storage there have these
// attributes.
func (p *pair) waitAttributes(virtual, there, iops string) {
	p.t.Helper()
	p.home.WaitAttributes("data", virtual)
	p.remote.WaitAttributes("data", there)
	p.remote.WaitOperations(storage.Reference, p.waitVolume("data").Real, iops)
}

func TestAttributesThereAreChangedAndChangedBack(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	for _, class := range []struct{ virtual, there, iops string }{
		{driver.Gold, "reference-gold", "5000"}, {driver.Silver, "reference-silver", "1000"}, {driver.Gold, "reference-gold", "5000"},
	} {
		p.home.SetAttributesClass("data", class.virtual)
		p.waitAttributes(class.virtual, class.there, class.iops)
	}
}

func TestVolumeThereIsMadeWithItsAttributes(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "64Mi", user.WithAttributes(driver.Gold))
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	p.waitAttributes(driver.Gold, "reference-gold", "5000")
}

// What a class at home stands for may have another name there.
func TestAttributesClassesAreMapped(t *testing.T) {
	p := newDedicatedPair(t, spec{"volumeAttributesClasses": map[string]any{"mapping": map[string]any{"reference-gold": mappedAttributes}}})
	p.remote.AttributesClass(mappedAttributes, storage.Reference.Name, map[string]string{"iops": "7000"})
	p.home.Claim("data", "liqo-reference", "64Mi", user.WithAttributes(driver.Gold))
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	p.waitAttributes(driver.Gold, mappedAttributes, "7000")
	p.home.SetAttributesClass("data", driver.Silver)
	p.waitAttributes(driver.Silver, "reference-silver", "1000")
	p.home.SetAttributesClass("data", driver.Gold)
	p.waitAttributes(driver.Gold, mappedAttributes, "7000")
}

func TestAttributesThatCannotBeHadThere(t *testing.T) {
	p := newPair(t)
	here, there := p.home.Name, p.remote.Name+"-real"
	p.home.AttributesClass(here+"-missing", driver.CSIName, map[string]string{driver.RealAttributesClass: here + "-nobody-made"})
	p.home.AttributesClass(here+"-refused", driver.CSIName, map[string]string{driver.RealAttributesClass: there})
	p.remote.AttributesClass(there, storage.Reference.Name, map[string]string{"color": "red"})
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	p.waitVolume("data")

	p.home.SetAttributesClass("data", here+"-missing")
	p.home.WaitEvent("data", "VolumeModifyFailed", "InvalidArgument", here+"-nobody-made", p.cluster)
	p.home.WaitModifying("data", corev1.PersistentVolumeClaimModifyVolumeInfeasible)
	p.home.SetAttributesClass("data", driver.Silver)
	p.waitAttributes(driver.Silver, "reference-silver", "1000")

	p.home.SetAttributesClass("data", here+"-refused")
	p.home.WaitEvent("data", "VolumeModifyFailed", "InvalidArgument", "unknown mutable parameter")
	p.home.SetAttributesClass("data", driver.Gold)
	p.waitAttributes(driver.Gold, "reference-gold", "5000")
}

// A class that cannot be read there could be another driver's.
func TestAttributesNeedTheRightToReadTheirClass(t *testing.T) {
	p, rights := newRestrictedPair(t, "minimal")
	p.createUnused("data")
	p.home.SetAttributesClass("data", driver.Gold)
	p.home.WaitEvent("data", "VolumeModifyFailed", "InvalidArgument", "cannot check whether the VolumeAttributesClass fits")
	p.home.WaitModifying("data", corev1.PersistentVolumeClaimModifyVolumeInfeasible)
	rights.setLevel("namespaced")
	p.waitAttributes(driver.Gold, "reference-gold", "5000")
}
