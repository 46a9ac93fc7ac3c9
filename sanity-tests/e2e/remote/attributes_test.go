package remote

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// mappedAttributes is a VolumeAttributesClass that exists during one test.
const mappedAttributes = "e2e-mapped-attributes"

// waitAttributes waits until the claim data has the virtual class, its twin the real one, and the remote storage
// these IOPS.
func (p *pair) waitAttributes(virtual, real, iops string) {
	p.t.Helper()
	p.home.WaitAttributes("data", virtual)
	p.remote.WaitAttributes("data", real)
	p.remote.WaitIOPS(storage.Reference, p.waitVolume("data").Real, iops)
}

func TestRemoteAttributesAreChangedAndChangedBack(t *testing.T) {
	p := newPair(t)
	p.startPod("user", "data", "liqo-reference")
	for _, class := range []struct{ virtual, real, iops string }{
		{driver.Gold, "reference-gold", "5000"}, {driver.Silver, "reference-silver", "1000"}, {driver.Gold, "reference-gold", "5000"},
	} {
		p.home.SetAttributesClass("data", class.virtual)
		p.waitAttributes(class.virtual, class.real, class.iops)
	}
}

func TestRemoteVolumeIsCreatedWithItsAttributes(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "64Mi", user.WithAttributesClass(driver.Gold))
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	p.waitAttributes(driver.Gold, "reference-gold", "5000")
}

// The mapping of a RemoteCluster names other classes than the virtual class.
func TestAttributesClassesAreMapped(t *testing.T) {
	p := newDedicatedPair(t, spec{"volumeAttributesClasses": map[string]any{"mapping": map[string]any{"reference-gold": mappedAttributes}}})
	p.remote.AttributesClass(mappedAttributes, storage.Reference.Name, map[string]string{"iops": "7000"})
	p.home.Claim("data", "liqo-reference", "64Mi", user.WithAttributesClass(driver.Gold))
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	p.waitAttributes(driver.Gold, mappedAttributes, "7000")
	p.home.SetAttributesClass("data", driver.Silver)
	p.waitAttributes(driver.Silver, "reference-silver", "1000")
	p.home.SetAttributesClass("data", driver.Gold)
	p.waitAttributes(driver.Gold, mappedAttributes, "7000")
}

func TestInvalidRemoteAttributesAreReported(t *testing.T) {
	p := newPair(t)
	prefix, real := p.home.Name, p.remote.Name+"-real"
	p.home.AttributesClass(prefix+"-missing", driver.CSIName, map[string]string{driver.RealAttributesClass: prefix + "-absent"})
	p.home.AttributesClass(prefix+"-refused", driver.CSIName, map[string]string{driver.RealAttributesClass: real})
	p.remote.AttributesClass(real, storage.Reference.Name, map[string]string{"color": "red"})
	p.startPod("user", "data", "liqo-reference")
	p.waitVolume("data")

	p.home.SetAttributesClass("data", prefix+"-missing")
	p.home.WaitEvent("data", "VolumeModifyFailed", "InvalidArgument", prefix+"-absent", p.cluster)
	p.home.WaitModifyStatus("data", corev1.PersistentVolumeClaimModifyVolumeInfeasible)
	p.home.SetAttributesClass("data", driver.Silver)
	p.waitAttributes(driver.Silver, "reference-silver", "1000")

	p.home.SetAttributesClass("data", prefix+"-refused")
	p.home.WaitEvent("data", "VolumeModifyFailed", "InvalidArgument", "unknown mutable parameter")
	p.home.SetAttributesClass("data", driver.Gold)
	p.waitAttributes(driver.Gold, "reference-gold", "5000")
}

// A real class that the driver may not read could be one of another CSI driver.
func TestAttributesNeedTheRightToReadTheirClass(t *testing.T) {
	p, rights := newRestrictedPair(t, "minimal")
	p.createUnused("data")
	p.home.SetAttributesClass("data", driver.Gold)
	p.home.WaitEvent("data", "VolumeModifyFailed", "InvalidArgument", "cannot check whether the VolumeAttributesClass fits")
	p.home.WaitModifyStatus("data", corev1.PersistentVolumeClaimModifyVolumeInfeasible)
	rights.setLevel("namespaced")
	p.waitAttributes(driver.Gold, "reference-gold", "5000")
}
