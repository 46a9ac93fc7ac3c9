package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// unified returns a folder like a cgroup v2 hierarchy with some controllers enabled at the root. A file
// contains only the last text written; the kernel would keep a set.
func unified(t *testing.T, enabled string) (root, saved string) {
	t.Helper()
	root = t.TempDir()
	if err := os.Mkdir(filepath.Join(root, CgroupName), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{root, filepath.Join(root, CgroupName)} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(enabled), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root, filepath.Join(t.TempDir(), "saved")
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestControllersAreDelegatedAndRestored(t *testing.T) {
	root, saved := unified(t, "cpu memory pids\n")
	for range 2 { // a second start must not save what the first one has enabled
		if err := delegateControllers(root, saved); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{root, filepath.Join(root, CgroupName)} {
		if last := read(t, filepath.Join(dir, "cgroup.subtree_control")); last != "+pids" {
			t.Errorf("last written in %s: %q", dir, last)
		}
	}
	if text := read(t, saved); text != "cpu memory pids\n" {
		t.Errorf("saved %q", text)
	}
	if err := restoreControllers(root, saved); err != nil {
		t.Fatal(err)
	}
	if last := read(t, filepath.Join(root, "cgroup.subtree_control")); last != "-cpuset" {
		t.Errorf("disabled: %q, want only -cpuset", last)
	}
}

func TestMissingControllersAreReported(t *testing.T) {
	root, saved := unified(t, "")
	if err := os.RemoveAll(filepath.Join(root, CgroupName)); err != nil {
		t.Fatal(err)
	}
	err := delegateControllers(root, saved)
	if err == nil || !strings.Contains(err.Error(), filepath.Join(root, CgroupName)) {
		t.Errorf("got %v", err)
	}
}

func TestRestoreWithoutDelegationChangesNothing(t *testing.T) {
	root, saved := unified(t, "cpu\n")
	if err := restoreControllers(root, saved); err != nil {
		t.Fatal(err)
	}
	if kept := read(t, filepath.Join(root, "cgroup.subtree_control")); kept != "cpu\n" {
		t.Errorf("changed to %q", kept)
	}
}
