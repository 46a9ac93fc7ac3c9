package storage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

func TestOnlineExpansion(t *testing.T) {
	n := home(t)
	n.Claim("data", "reference-xfs", "320Mi")
	n.Pod("user", "data")
	before := n.WaitReady("user")
	n.Exec("user", "echo kept > /data/file")
	small := n.FileSystemKiB("user")

	n.Resize("data", "640Mi")
	n.WaitCapacity("data", "640Mi")
	if large := n.FileSystemKiB("user"); large < small+300*1024 {
		t.Errorf("the filesystem had %d KiB and has %d KiB", small, large)
	}
	if got := n.Exec("user", "cat /data/file"); got != "kept" {
		user.Violated(t, "read %q", got)
	}
	if after := n.WaitReady("user"); after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Error("the pod was restarted or replaced")
	}
}

func TestOfflineExpansion(t *testing.T) {
	for class, driver := range map[string]storage.Driver{
		"reference-ext4": storage.Reference, "reference-attach": storage.Attach, "reference-local": storage.Local,
	} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			n.Claim("data", class, "64Mi")
			n.Pod("first", "data")
			n.WaitReady("first")
			n.DeletePod("first")
			waitUnstaged(n, driver, "data")
			n.Resize("data", "128Mi")
			n.Pod("second", "data")
			n.WaitReady("second")
			n.WaitCapacity("data", "128Mi")
			if class == "reference-ext4" {
				if size := n.FileSystemKiB("second"); size < 100*1024 {
					t.Errorf("the filesystem has %d KiB", size)
				}
			}
		})
	}
}

// waitUnstaged waits until the volume of a claim is staged on no node, some time after its last pod was deleted.
func waitUnstaged(n *user.Namespace, driver storage.Driver, claim string) {
	id := n.WaitBound(claim).Spec.CSI.VolumeHandle
	n.Eventually("claim "+claim+" is unstaged", func(context.Context) (string, error) {
		volume, err := storage.BackendOf(n.Cluster, driver).Volume(id)
		if err != nil || len(volume.Stages) == 0 {
			return "", err
		}
		return fmt.Sprintf("it is staged on %v", slices.Sorted(maps.Keys(volume.Stages))), nil
	})
}

func TestBlockVolumesGrowOnline(t *testing.T) {
	for _, class := range []string{"reference", "reference-attach"} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			n.Claim("device", class, "16Mi", user.Block)
			n.Pod("writer", "device", user.WithDevice)
			n.WaitReady("writer")
			n.Exec("writer", "echo kept | dd of=/data bs=512 count=1 conv=sync,fsync")
			n.Resize("device", "32Mi")
			n.WaitCapacity("device", "32Mi")
			size := n.Exec("writer", "wc -c < /data")
			if size != fmt.Sprint(32<<20) {
				t.Errorf("the device has %s bytes", size)
			}
			n.DeletePod("writer")
			n.Pod("reader", "device", user.WithDevice)
			n.WaitReady("reader")
			if got := n.Exec("reader", "head -c 4 /data"); got != "kept" {
				user.Violated(t, "read %q", got)
			}
		})
	}
}
