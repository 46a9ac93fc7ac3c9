package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// neededControllers are required by kubelet.
var neededControllers = []string{"cpu", "cpuset", "memory", "pids"}

func delegatedFile() string { return Path("cgroup-controllers") }

// delegateControllers enables the controllers for the lab's cgroups, which cgroup v2 requires on each
// level. It saves those that were enabled at the root before, so that the others can be disabled
// again.
func delegateControllers(root, saved string) error {
	before, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if err != nil {
		return fmt.Errorf("read the cgroup controllers: %w", err)
	}
	if _, err := os.Stat(saved); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(saved, before, 0o644); err != nil {
			return fmt.Errorf("save the cgroup controllers: %w", err)
		}
	}
	for _, dir := range []string{root, filepath.Join(root, CgroupName)} {
		if err := enableControllers(dir); err != nil {
			return err
		}
	}
	return nil
}

// enableControllers enables the needed controllers for the children of a cgroup.
func enableControllers(dir string) error {
	for _, controller := range neededControllers {
		file := filepath.Join(dir, "cgroup.subtree_control")
		if err := os.WriteFile(file, []byte("+"+controller), 0o644); err != nil {
			return fmt.Errorf("enable the cgroup controller %s in %s"+
				" (inside a container, its processes must be in a child of this cgroup): %w", controller, dir, err)
		}
	}
	return nil
}

// restoreControllers disables the controllers that delegateControllers has enabled, unless they are
// in use.
func restoreControllers(root, saved string) error {
	before, err := os.ReadFile(saved)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the former cgroup controllers: %w", err)
	}
	for _, controller := range neededControllers {
		if !slices.Contains(strings.Fields(string(before)), controller) {
			_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("-"+controller), 0o644)
		}
	}
	return nil
}
