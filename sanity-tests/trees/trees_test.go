package trees

import (
	"cmp"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// grow generates a tree with everything, and reads it.
func grow(t *testing.T, seed int64) (root string, tree Manifest) {
	t.Helper()
	root = t.TempDir()
	var found unix.Statfs_t
	if err := unix.Statfs(root, &found); err != nil || found.Type != unix.EXT4_SUPER_MAGIC || os.Getuid() != 0 {
		t.Skip("devices, attributes and flags need root, and temporary files in ext4")
	}
	t.Cleanup(func() { _ = exec.Command("chattr", "-R", "-f", "-ia", root).Run() })
	if err := Grow(root, Options{Seed: seed, LongestLink: LongestPath, Losses: true}); err != nil {
		t.Fatal(err)
	}
	return root, read(t, root)
}

func read(t *testing.T, root string) Manifest {
	t.Helper()
	tree, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestTreesWithTheSameSeedAreEqual(t *testing.T) {
	_, tree := grow(t, 1)
	_, again := grow(t, 1)
	_, other := grow(t, 2)
	if found := Diff(tree, again); len(found) > 0 {
		t.Errorf("%d differences: %v", len(found), found[:min(len(found), 20)])
	}
	if len(Diff(tree, other)) < 1000 {
		t.Error("another seed generates nearly the same tree")
	}
	if len(tree) < 3000 || len(tree) > 6000 {
		t.Errorf("the tree has only %d names", len(tree))
	}
	longest := slices.MaxFunc(slices.Collect(maps.Keys(tree)), func(a, b string) int { return len(a) - len(b) })
	if len(longest) != LongestPath {
		t.Errorf("the longest path has %d bytes", len(longest))
	}
	for _, loss := range Losses {
		if count, left := tree.Count(loss), tree.Without(loss).Count(loss); count < 5 || left != 0 {
			t.Errorf("%s: %d names, %d without", loss, count, left)
		}
	}
}

// A checker that finds nothing proves nothing.
func TestEveryDifferenceIsFound(t *testing.T) {
	root, before := grow(t, 3)
	at := func(name string) string { return filepath.Join(root, name) }
	keepingTime := func(name string, change func(path string) error) error {
		var found unix.Stat_t
		if err := unix.Lstat(at(name), &found); err != nil {
			return err
		}
		if err := change(at(name)); err != nil {
			return err
		}
		return unix.UtimesNanoAt(unix.AT_FDCWD, at(name), []unix.Timespec{found.Atim, found.Mtim}, 0)
	}
	for _, one := range []struct {
		path, field string
		change      func() error
	}{
		{"modes/file 0444", "mode", func() error { return os.Chmod(at("modes/file 0444"), 0o445) }},
		{"special/link 0", "owner", func() error { return os.Lchown(at("special/link 0"), 1234567, 3) }},
		{"special/link 1", "time", func() error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, at("special/link 1"), []unix.Timespec{{}, {Sec: 5, Nsec: 1}}, unix.AT_SYMLINK_NOFOLLOW)
		}},
		{"files/4096 bytes", "content", func() error {
			return keepingTime("files/4096 bytes", func(path string) error {
				return os.WriteFile(path, []byte(strings.Repeat("x", 4096)), 0)
			})
		}},
		{"files/only a hole", "holes", func() error {
			return keepingTime("files/only a hole", func(path string) error {
				return os.WriteFile(path, make([]byte, 3*mebibyte+5), 0)
			})
		}},
		{"files/hole and attributes", "holes", func() error {
			return keepingTime("files/hole and attributes", func(path string) error {
				file, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					return err
				}
				_, err = file.WriteAt(make([]byte, 4096), 0)
				return cmp.Or(err, file.Close())
			})
		}},
		{"attributes/file, empty", "attribute user.empty", func() error { return unix.Lremovexattr(at("attributes/file, empty"), "user.empty") }},
		{"attributes/pipe, ACL", "attribute " + aclAttribute, func() error {
			return unix.Lsetxattr(at("attributes/pipe, ACL"), aclAttribute, acl(1, 2, 0), 0)
		}},
		{"attributes/link, unseen", "attribute trusted.overlay.opaque", func() error {
			return unix.Lremovexattr(at("attributes/link, unseen"), "trusted.overlay.opaque")
		}},
		{"lost/file d", "flags", func() error { return exec.Command("chattr", "-d", at("lost/file d")).Run() }},
		{"many", "it should not exist", func() error {
			return keepingTime("many", func(path string) error { return os.WriteFile(path+"/x", nil, 0) })
		}},
		{"special/socket", "it is missing", func() error {
			return keepingTime("special", func(path string) error { return os.Remove(path + "/socket") })
		}},
	} {
		if err := one.change(); err != nil {
			t.Fatalf("change %s: %v", one.path, err)
		}
		now := read(t, root)
		found := Diff(before, now)
		if len(found) != 1 || !strings.Contains(found[0], one.path) || !strings.Contains(found[0], ": "+one.field) {
			t.Errorf("%s of %s: %q", one.field, one.path, found)
		}
		before = now
	}
}
