package driver

import (
	"testing"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// Pods keep their volumes without the driver, and other pods can use them when it is installed again.
func TestUninstallAndReinstallWithVolumesInUse(t *testing.T) {
	n := homeSerial(t)
	startPod(n, "user", "data", "liqo-reference-attach")
	n.Exec("user", "echo before > /data/file")
	found := n.WaitVolume("data")

	if err := driver.Uninstall(t.Context(), n.Cluster); err != nil {
		t.Fatal(err)
	}
	if got := n.Exec("user", "cat /data/file && echo meanwhile >> /data/file"); got != "before" {
		user.Violated(t, "without the driver the pod reads %q", got)
	}
	if twin := n.WaitVolume("data").Twin; twin.UID != found.Twin.UID || twin.DeletionTimestamp != nil {
		user.Violated(t, "the twin was replaced or is being deleted: %v", twin)
	}

	if err := install(t.Context(), n.Cluster); err != nil {
		t.Fatal(err)
	}
	n.DeletePod("user")
	n.Pod("next", "data")
	n.WaitReady("next")
	if got := n.Exec("next", "cat /data/file"); got != "before\nmeanwhile" {
		user.Violated(t, "the next pod reads %q", got)
	}
	n.DeletePod("next")
	deleteClaim(t, n, "data")
	waitVolumeDeleted(t, n, found)
}
