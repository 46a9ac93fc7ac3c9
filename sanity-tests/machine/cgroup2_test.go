package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// unified is a folder that stands in for a cgroup v2 hierarchy in which the root
// hands down some controllers already. In a plain file only the last word
// written stays; the kernel would keep a set.
func unified(t *testing.T, handedDown string) (root, note string) {
	t.Helper()
	root = t.TempDir()
	if err := os.Mkdir(filepath.Join(root, CgroupName), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{root, filepath.Join(root, CgroupName)} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(handedDown), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root, filepath.Join(t.TempDir(), "note")
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestControllersAreHandedDownAndOnlyOursTakenBack(t *testing.T) {
	root, note := unified(t, "cpu memory pids\n")
	for range 2 { // a second start must not take what the first one added for the machine's own
		if err := delegateControllers(root, note); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{root, filepath.Join(root, CgroupName)} {
		if last := read(t, filepath.Join(dir, "cgroup.subtree_control")); last != "+pids" {
			t.Errorf("in %s the last word is %q", dir, last)
		}
	}
	if noted := read(t, note); noted != "cpu memory pids\n" {
		t.Errorf("noted %q", noted)
	}
	if err := withdrawControllers(root, note); err != nil {
		t.Fatal(err)
	}
	if last := read(t, filepath.Join(root, "cgroup.subtree_control")); last != "-cpuset" {
		t.Errorf("taken back: %q, want only -cpuset", last)
	}
}

func TestAHierarchyThatHandsNothingDownIsNamed(t *testing.T) {
	root, note := unified(t, "")
	if err := os.RemoveAll(filepath.Join(root, CgroupName)); err != nil {
		t.Fatal(err)
	}
	err := delegateControllers(root, note)
	if err == nil || !strings.Contains(err.Error(), filepath.Join(root, CgroupName)) {
		t.Errorf("got %v", err)
	}
}

func TestNothingIsTakenBackThatWasNeverHandedDown(t *testing.T) {
	root, note := unified(t, "cpu\n")
	if err := withdrawControllers(root, note); err != nil {
		t.Fatal(err)
	}
	if kept := read(t, filepath.Join(root, "cgroup.subtree_control")); kept != "cpu\n" {
		t.Errorf("changed to %q", kept)
	}
}
