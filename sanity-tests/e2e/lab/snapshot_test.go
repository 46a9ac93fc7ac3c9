package lab_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"storage.liqo.io/sanity-tests/machine"
)

// snapshot is a set of lines that describe everything on a machine in which a lab could leave
// something.
type snapshot map[string]bool

func takeSnapshot(t *testing.T) snapshot {
	t.Helper()
	taken := snapshot{}
	taken.addMounts(t)
	taken.addProcesses()
	taken.addCgroups()
	for _, pattern := range []string{
		"/sys/block/loop*/loop/backing_file", "/sys/class/net/*", "/run/netns/*",
		"/opt/*", "/mnt/*", "/etc/cni*", "/tmp/layer-*",
		"/usr/libexec/kubernetes*", "/run/containerd/s/*",
	} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			taken["file "+path] = true
		}
	}
	// Folders in which any program of the machine may create files at any time.
	for _, pattern := range []string{"/run/*", "/var/lib/*", "/var/log/*"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			if labNames.MatchString(filepath.Base(path)) {
				taken["file "+path] = true
			}
		}
	}
	for _, setting := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"} {
		value, _ := os.ReadFile("/proc/sys/" + setting)
		taken[fmt.Sprintf("setting %s=%s", setting, bytes.TrimSpace(value))] = true
	}
	return taken
}

// labNames matches the names of files that the lab, or a program in it, could leave.
var labNames = regexp.MustCompile(`lab|liqo|kube|container|runc|cri|cni|csi|etcd|coredns|netns|calico|flannel|pods|local-path`)

func (s snapshot) addMounts(t *testing.T) {
	t.Helper()
	table, err := machine.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, point := range table {
		count[point]++ // mounts can be stacked
		s[fmt.Sprintf("mount %s #%d", point, count[point])] = true
	}
}

// addProcesses adds the processes that look like the lab's, and their namespaces: other programs
// start and exit on any machine.
func (s snapshot) addProcesses() {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		dir := filepath.Join("/proc", entry.Name())
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(command) == 0 { // a kernel thread, or a zombie
			continue
		}
		cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		words := strings.Split(string(command), "\x00")
		program := filepath.Base(words[0])
		if bytes.Contains(cgroup, []byte(machine.CgroupName)) ||
			strings.Contains(string(command), machine.StateDir+"/") ||
			slices.Contains([]string{"etcd", "coredns", "kubelet", "containerd", "containerd-shim-runc-v2", "runc", "relay"}, program) ||
			strings.HasPrefix(program, "kube-") {
			s["process "+entry.Name()+" "+strings.Join(words, " ")] = true
			for _, kind := range []string{"net", "mnt"} {
				if namespace, err := os.Readlink(filepath.Join(dir, "ns", kind)); err == nil {
					s["namespace "+namespace] = true
				}
			}
		}
	}
}

// addCgroups adds the cgroups with names that the lab, or a program in it, could use; other cgroups
// change at any time.
func (s snapshot) addCgroups() {
	names := []string{machine.CgroupName, "k8s.io", "kubepods", "kubelet", "containerd"}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && slices.Contains(names, entry.Name()) {
			s["cgroup "+path] = true
		}
		return nil
	})
}

// requireUnchanged waits until the machine is as before: the kernel finishes some of a teardown in
// the background.
func requireUnchanged(t *testing.T, before snapshot) {
	t.Helper()
	var difference []string
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		difference = before.difference(takeSnapshot(t))
		if len(difference) == 0 {
			return
		}
	}
	t.Fatalf("the machine is not what it was before the lab:\n%s", strings.Join(difference, "\n"))
}

// difference returns what is new, and what is missing except processes and their namespaces,
// because those of others exit at any time.
func (s snapshot) difference(after snapshot) []string {
	var lines []string
	for line := range after {
		if !s[line] {
			lines = append(lines, "new:  "+line)
		}
	}
	for line := range maps.Keys(s) {
		if !after[line] && !strings.HasPrefix(line, "process ") && !strings.HasPrefix(line, "namespace ") {
			lines = append(lines, "gone: "+line)
		}
	}
	slices.Sort(lines)
	return lines
}
