package machine

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Abilities are the requirements of the lab. Tests omit some.
type Abilities struct {
	System string
	UID    int
	// Has reports whether a program is installed.
	Has func(program string) bool
	// StaticBusybox reports whether busybox runs without shared libraries.
	StaticBusybox func() bool
	// FileSystems is the content of /proc/filesystems.
	FileSystems       string
	CgroupControllers []string
	// TryLink creates a network interface in a temporary namespace.
	TryLink func(kind string) error
	// TryLoop opens the control device of loop devices.
	TryLoop func() error
	// TryTable creates an nftables table in a temporary namespace.
	TryTable func() error
	// FreeDisk is the number of free bytes on the file system of the state directory.
	FreeDisk uint64
}

// Packages maps programs that are not built from Go modules to Debian packages. Those for file systems
// are copied into images of drivers.
var Packages = map[string]string{
	"ip":         "iproute2",
	"nft":        "nftables",
	"nsenter":    "util-linux",
	"blkid":      "util-linux",
	"mount":      "mount",
	"losetup":    "mount",
	"runc":       "runc",
	"busybox":    "busybox-static",
	"mkfs.ext4":  "e2fsprogs",
	"resize2fs":  "e2fsprogs",
	"mkfs.xfs":   "xfsprogs",
	"xfs_growfs": "xfsprogs",
}

const minimumDisk = 8 << 30

// Preflight returns an error of one sentence if the lab cannot start on this machine.
func Preflight(able Abilities) error {
	switch {
	case able.System != "linux":
		return fmt.Errorf("the lab needs Linux, not %s", able.System)
	case able.UID != 0:
		return errors.New("the lab needs root (it creates namespaces and mounts): run it as root or with sudo")
	}
	if err := checkPackages(able); err != nil {
		return err
	}
	for _, name := range []string{"overlay", "ext4"} {
		if !slices.Contains(strings.Fields(able.FileSystems), name) {
			return fmt.Errorf("the kernel has no %s file system, which the lab's containers and volumes need: try `modprobe %s`", name, name)
		}
	}
	for _, controller := range neededControllers {
		if !slices.Contains(able.CgroupControllers, controller) {
			return fmt.Errorf("the machine has no cgroup controller %q, which kubelet needs (it has: %s)",
				controller, strings.Join(able.CgroupControllers, " "))
		}
	}
	for _, kind := range []string{"veth", "bridge"} {
		if err := able.TryLink(kind); err != nil {
			return fmt.Errorf("the kernel cannot create a %s interface in a new network namespace: %w", kind, err)
		}
	}
	if err := able.TryLoop(); err != nil {
		return fmt.Errorf("the machine has no loop devices, which volumes in the lab need: %w", err)
	}
	if err := able.TryTable(); err != nil {
		return fmt.Errorf("the kernel cannot translate addresses with nftables, which services in the lab need: %w", err)
	}
	if able.FreeDisk < minimumDisk {
		return fmt.Errorf("only %.1f GiB are free below %s, the lab needs %d GiB",
			float64(able.FreeDisk)/(1<<30), filepath.Dir(StateDir), minimumDisk>>30)
	}
	return nil
}

func checkPackages(able Abilities) error {
	missing := map[string]bool{}
	for program, name := range Packages {
		if !able.Has(program) {
			missing[name] = true
		}
	}
	if !missing[Packages["busybox"]] && !able.StaticBusybox() {
		missing[Packages["busybox"]] = true
	}
	if len(missing) == 0 {
		return nil
	}
	names := strings.Join(slices.Sorted(maps.Keys(missing)), " ")
	return fmt.Errorf("packages are missing: run `apt-get install --no-install-recommends %s` (or `make deps`)", names)
}

// ThisMachine returns the abilities of this machine.
func ThisMachine(ctx context.Context) Abilities {
	fileSystems, _ := os.ReadFile("/proc/filesystems")
	var disk unix.Statfs_t
	_ = unix.Statfs(filepath.Dir(StateDir), &disk)
	return Abilities{
		System:            runtime.GOOS,
		UID:               os.Getuid(),
		Has:               installed,
		StaticBusybox:     func() bool { return isStatic("/bin/busybox") },
		FileSystems:       string(fileSystems),
		CgroupControllers: cgroupControllers(),
		TryLink:           func(kind string) error { return tryLink(ctx, kind) },
		TryLoop:           tryLoop,
		TryTable:          func() error { return tryTable(ctx) },
		FreeDisk:          disk.Bavail * uint64(disk.Bsize),
	}
}

func installed(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

func isStatic(program string) bool {
	parsed, err := elf.Open(program)
	if err != nil {
		return false
	}
	defer parsed.Close()
	return parsed.Section(".interp") == nil
}

func cgroupControllers() []string {
	if CgroupV2() {
		content, _ := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
		return strings.Fields(string(content))
	}
	var controllers []string
	for _, root := range hierarchies() {
		controllers = append(controllers, strings.Split(filepath.Base(root), ",")...)
	}
	return controllers
}

func tryLink(ctx context.Context, kind string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return runQuietly(exec.CommandContext(ctx, "unshare", "--net", "ip", "link", "add", "try", "type", kind))
}

// tryTable creates a table like kube-proxy's.
func tryTable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	const chain = "add table ip try; add chain ip try nat { type nat hook prerouting priority dstnat; }"
	return runQuietly(exec.CommandContext(ctx, "unshare", "--net", "nft", chain))
}

func tryLoop() error {
	control, err := os.Open("/dev/loop-control")
	if err != nil {
		return err
	}
	return control.Close()
}
