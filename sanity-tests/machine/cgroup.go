package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// CgroupName is the cgroup of the lab's components and pods, in every hierarchy.
	CgroupName = "liqo-csi-lab"
)

// CgroupV2 reports whether the machine has cgroup v2.
func CgroupV2() bool {
	var stat unix.Statfs_t
	return unix.Statfs(cgroupRoot, &stat) == nil && stat.Type == unix.CGROUP2_SUPER_MAGIC
}

// hierarchies returns the roots of all cgroup hierarchies: one with v2, one per controller with v1.
func hierarchies() []string {
	if CgroupV2() {
		return []string{cgroupRoot}
	}
	entries, _ := os.ReadDir(cgroupRoot)
	var roots []string
	for _, entry := range entries {
		dir := filepath.Join(cgroupRoot, entry.Name())
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil && entry.IsDir() {
			roots = append(roots, dir)
		}
	}
	return roots
}

// EnsureCgroup creates a cgroup below CgroupName in every hierarchy and returns its path for kubelet's
// --cgroup-root.
func EnsureCgroup(name string) (string, error) {
	for _, root := range hierarchies() {
		dir := root
		for _, part := range []string{CgroupName, name} {
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return "", fmt.Errorf("create a cgroup: %w", err)
			}
			if err := inheritCPUs(dir); err != nil {
				return "", err
			}
		}
	}
	if CgroupV2() {
		if err := delegateControllers(cgroupRoot, delegatedFile()); err != nil {
			return "", err
		}
	}
	return "/" + CgroupName + "/" + name, nil
}

// inheritCPUs sets the CPUs and memory nodes of a new cpuset of cgroup v1, which no process can enter
// without.
func inheritCPUs(dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || strings.TrimSpace(string(own)) != "" || CgroupV2() {
			continue
		}
		parent, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), parent, 0o644)
		}
		if err != nil {
			return fmt.Errorf("set up the cpuset %s: %w", dir, err)
		}
	}
	return nil
}

// cgroupJoin returns a shell script that moves the shell into the cgroup.
func cgroupJoin(name string) string {
	var script strings.Builder
	for _, root := range hierarchies() {
		fmt.Fprintf(&script, "echo 0 > %s/cgroup.procs; ", filepath.Join(root, CgroupName, name))
	}
	return script.String()
}

// cgroupPids lists every process in the lab's cgroups.
func cgroupPids() []int {
	var pids []int
	for _, root := range hierarchies() {
		_ = filepath.WalkDir(filepath.Join(root, CgroupName), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.Name() != "cgroup.procs" {
				return nil
			}
			content, _ := os.ReadFile(path)
			for word := range strings.FieldsSeq(string(content)) {
				if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	return pids
}

// removeCgroups removes the lab's cgroups, children first.
func removeCgroups() error {
	var failures error
	for _, root := range hierarchies() {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(root, CgroupName), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append([]string{path}, dirs...)
			}
			return nil
		})
		for _, dir := range dirs {
			if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
				failures = errors.Join(failures, fmt.Errorf("remove cgroup %s: %w", dir, err))
			}
		}
	}
	return failures
}
