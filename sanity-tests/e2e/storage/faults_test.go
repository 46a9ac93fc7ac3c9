package storage

import (
	"testing"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

func TestProvisioningErrorsAreReported(t *testing.T) {
	n := home(t)
	removeFault := n.AddFault(storage.Reference, storage.Fault{Match: n.Name + "/", RPC: "CreateVolume", Code: "Internal", Message: "the backend failed"})
	n.Claim("data", "reference", "64Mi")
	n.Pod("user", "data")
	n.WaitEvent("data", "ProvisioningFailed", "the backend failed")
	removeFault()
	n.WaitReady("user")
}

func TestMountErrorsAreReported(t *testing.T) {
	n := home(t)
	removeFault := n.AddFault(storage.Reference, storage.Fault{Match: n.Name + "/", RPC: "NodeStageVolume", Code: "Internal", Message: "the connection is lost"})
	n.Claim("data", "reference", "64Mi")
	n.Pod("user", "data")
	n.WaitEvent("user", "FailedMount", "the connection is lost")
	removeFault()
	n.WaitReady("user")
}

func TestHangingBackendBlocksOnlyItsOwnVolumes(t *testing.T) {
	n, other := home(t), user.NewNamespace(t, user.Cluster(t, "home"))
	removeFault := n.AddFault(storage.Reference, storage.Fault{Match: n.Name + "/", RPC: "CreateVolume", Hang: true})
	n.Claim("data", "reference", "64Mi")
	n.Pod("user", "data")
	n.WaitEvent("data", "Provisioning")
	other.Claim("data", "reference", "64Mi")
	other.Pod("user", "data")
	other.WaitReady("user")
	removeFault()
	n.WaitReady("user")
}

// No other test uses the driver Group, because its capacity is limited here.
func TestFullBackendAndMountGroup(t *testing.T) {
	n := home(t)
	backend := storage.BackendOf(n.Cluster, storage.Group)
	if err := backend.SetSpaceLeft(new(int64(1 << 20))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := backend.SetSpaceLeft(nil); err != nil {
			t.Error(err)
		}
	})
	n.Claim("large", "reference-group", "64Mi")
	n.Pod("user", "large", withFSGroup(4321))
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
		t.Errorf("no NodePublishVolume had the group: %v", err)
	}
}
