package storage

import (
	"fmt"
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
	t.Parallel()
	for class, driver := range map[string]storage.Driver{
		"reference-ext4": storage.Reference, "reference-attach": storage.Attach, "reference-local": storage.Local,
	} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			n.Claim("data", class, "64Mi")
			n.Pod("first", "data")
			n.WaitReady("first")
			n.DeletePod("first")
			n.WaitUnstaged(driver, n.WaitBound("data"))
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

func TestBlockVolumesGrowOnline(t *testing.T) {
	t.Parallel()
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
