package driver

import (
	"testing"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// Without the driver pods keep their volumes; with it again, everything goes on.
func TestUninstallAndReinstallWithLiveVolumes(t *testing.T) {
	n := homeAlone(t)
	n.Claim("data", "liqo-reference-attach", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	n.Exec("user", "echo before > /data/file")
	found := n.WaitVolume("data")

	if err := driver.Uninstall(t.Context(), n.Cluster); err != nil {
		t.Fatal(err)
	}
	if got := n.Exec("user", "cat /data/file && echo meanwhile >> /data/file"); got != "before" {
		user.Violated(t, "without the driver the pod reads %q", got)
	}
	if twin := n.WaitVolume("data").Twin; twin.UID != found.Twin.UID || twin.DeletionTimestamp != nil {
		user.Violated(t, "the twin did not survive: %v", twin)
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
	wantGone(t, n, found)
}
