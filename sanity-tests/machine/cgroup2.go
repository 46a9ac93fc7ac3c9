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

// neededControllers are those without which a kubelet does not start.
var neededControllers = []string{"cpu", "cpuset", "memory", "pids"}

func delegatedFile() string { return Path("cgroup-controllers") }

// delegateControllers lets the cgroups below the lab's use the controllers:
// cgroup v2 hands them down level by level. What was handed down at the root
// before is noted in a file, so that the rest can be taken back.
func delegateControllers(root, note string) error {
	before, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if err != nil {
		return fmt.Errorf("read the cgroup controllers: %w", err)
	}
	if _, err := os.Stat(note); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(note, before, 0o644); err != nil {
			return fmt.Errorf("note the cgroup controllers: %w", err)
		}
	}
	for _, dir := range []string{root, filepath.Join(root, CgroupName)} {
		if err := handDown(dir); err != nil {
			return err
		}
	}
	return nil
}

// handDown lets the children of a cgroup use the needed controllers.
func handDown(dir string) error {
	for _, controller := range neededControllers {
		file := filepath.Join(dir, "cgroup.subtree_control")
		if err := os.WriteFile(file, []byte("+"+controller), 0o644); err != nil {
			return fmt.Errorf("hand the cgroup controller %s down in %s"+
				" (inside a container, its processes have to be in a cgroup below that one): %w", controller, dir, err)
		}
	}
	return nil
}

// withdrawControllers undoes delegateControllers. What somebody else relies on
// by now stays.
func withdrawControllers(root, note string) error {
	before, err := os.ReadFile(note)
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
