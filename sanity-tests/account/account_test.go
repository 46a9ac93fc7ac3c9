package account

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestExceptReturnsOnlyNewItems(t *testing.T) {
	before, after := Inventory{}, Inventory{}
	before.add("twin %s", "a")
	before.add("twin %s", "b")
	after.add("twin %s", "b")
	after.add("twin %s", "d")
	after.add("twin %s", "c")
	if leaked := after.Except(before); !slices.Equal(leaked, []string{"twin c", "twin d"}) {
		t.Errorf("leaked: %v", leaked)
	}
	if lost := before.Except(after); !slices.Equal(lost, []string{"twin a"}) {
		t.Errorf("lost: %v", lost)
	}
}

// Real drivers attach in their own mount namespace, in which files have other paths.
func TestLoopDevicesOfOtherMountNamespacesAreListed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: a loop device in a mount namespace")
	}
	folder := t.TempDir()
	image := filepath.Join(folder, "vol-of-account-test")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 1<<20); err != nil {
		t.Fatal(err)
	}
	attach := `mount --bind "$0" /mnt && losetup --find --show /mnt/vol-of-account-test`
	out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-c", attach, folder).CombinedOutput()
	device := strings.TrimSpace(string(out))
	if err != nil {
		t.Fatalf("attach a loop device: %v: %s", err, device)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", device, err, out)
		}
	})
	inventory := Inventory{}
	if err := inventory.loops(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for item := range inventory {
		if strings.Contains(item, "vol-of-account-test") {
			return
		}
	}
	t.Errorf("%s is not among %v", device, inventory)
}
