package storage

import (
	"testing"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// spoil switches a fault on for the claims of one namespace.
func spoil(t *testing.T, n *user.Namespace, driver storage.Driver, fault storage.Fault) (heal func()) {
	t.Helper()
	fault.Match = n.Name + "/"
	remove, err := storage.BackendOf(n.Cluster, driver).AddFault(fault)
	if err != nil {
		t.Fatal(err)
	}
	heal = func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(heal)
	return heal
}

func TestUsersSeeWhyTheirVolumeIsNotMade(t *testing.T) {
	n := home(t)
	heal := spoil(t, n, storage.Reference, storage.Fault{RPC: "CreateVolume", Code: "Internal", Message: "the backend is on fire"})
	n.Claim("unlucky", "reference", "64Mi")
	n.Pod("user", "unlucky")
	n.WaitEvent("unlucky", "ProvisioningFailed", "the backend is on fire")
	heal()
	n.WaitReady("user")
}

func TestUsersSeeWhyTheirVolumeIsNotMounted(t *testing.T) {
	n := home(t)
	heal := spoil(t, n, storage.Reference, storage.Fault{RPC: "NodeStageVolume", Code: "Internal", Message: "the cable is cut"})
	n.Claim("unlucky", "reference", "64Mi")
	n.Pod("user", "unlucky")
	n.WaitEvent("user", "FailedMount", "the cable is cut")
	heal()
	n.WaitReady("user")
}

func TestAHangingBackendHoldsUpOnlyItsOwn(t *testing.T) {
	n, other := home(t), user.NewNamespace(t, user.Cluster(t, "home"))
	heal := spoil(t, n, storage.Reference, storage.Fault{RPC: "CreateVolume", Hang: true})
	n.Claim("stuck", "reference", "64Mi")
	n.Pod("user", "stuck")
	n.WaitEvent("stuck", "Provisioning")
	other.Claim("lucky", "reference", "64Mi")
	other.Pod("user", "lucky")
	other.WaitReady("user")
	heal()
	n.WaitReady("user")
}

// While the driver Group is full it is so for everybody, which is why this is
// the only test that uses it.
func TestABackendThatIsFullAndTheMountGroup(t *testing.T) {
	n := home(t)
	backend := storage.BackendOf(n.Cluster, storage.Group)
	little := int64(1 << 20)
	if err := backend.SetSpaceLeft(&little); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := backend.SetSpaceLeft(nil); err != nil {
			t.Error(err)
		}
	})
	n.Claim("large", "reference-group", "64Mi")
	n.Pod("user", "large", inGroup(4321))
	n.WaitEvent("large", "ProvisioningFailed", "no space")
	if err := backend.SetSpaceLeft(nil); err != nil {
		t.Fatal(err)
	}
	n.WaitReady("user")
	wantGroup(t, n, "user", "4321")
	calls, err := backend.Calls(func(call storage.Call) bool {
		return call.RPC == "NodePublishVolume" && call.Claim == n.Name+"/large" && call.MountGroup == "4321"
	})
	if err != nil || len(calls) == 0 {
		t.Errorf("the group did not reach the driver: %v", err)
	}
}
