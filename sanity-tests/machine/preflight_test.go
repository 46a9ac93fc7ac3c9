package machine

import (
	"errors"
	"strings"
	"testing"
)

// able returns a machine that has everything.
func able() Abilities {
	return Abilities{
		System:            "linux",
		Has:               func(string) bool { return true },
		StaticBusybox:     func() bool { return true },
		FileSystems:       "nodev\tsysfs\nnodev\toverlay\n\text4\n",
		CgroupControllers: []string{"cpu", "cpuacct", "cpuset", "memory", "pids"},
		TryLink:           func(string) error { return nil },
		TryLoop:           func() error { return nil },
		TryTable:          func() error { return nil },
		FreeDisk:          minimumDisk,
	}
}

func TestPreflightAcceptsACapableMachine(t *testing.T) {
	if err := Preflight(able()); err != nil {
		t.Error(err)
	}
}

func TestPreflightReportsMissingRequirements(t *testing.T) {
	for name, lacking := range map[string]struct {
		take func(*Abilities)
		want string
	}{
		"system":     {func(a *Abilities) { a.System = "darwin" }, "needs Linux, not darwin"},
		"root":       {func(a *Abilities) { a.UID = 1000 }, "needs root"},
		"overlay":    {func(a *Abilities) { a.FileSystems = "ext4\nfuse.overlayfs\n" }, "modprobe overlay"},
		"ext4":       {func(a *Abilities) { a.FileSystems = "nodev overlay\n" }, "modprobe ext4"},
		"controller": {func(a *Abilities) { a.CgroupControllers = []string{"cpu", "cpuset", "pids"} }, `no cgroup controller "memory"`},
		"veth": {func(a *Abilities) {
			a.TryLink = func(kind string) error {
				if kind == "veth" {
					return errors.New("unknown device type")
				}
				return nil
			}
		}, "cannot create a veth interface"},
		"loop": {func(a *Abilities) { a.TryLoop = func() error { return errors.New("no such file") } }, "no loop devices"},
		"nft":  {func(a *Abilities) { a.TryTable = func() error { return errors.New("not supported") } }, "cannot translate addresses"},
		"disk": {func(a *Abilities) { a.FreeDisk = 3 << 30 }, "only 3.0 GiB are free"},
		"packages": {func(a *Abilities) {
			a.Has = func(program string) bool {
				return program != "runc" && program != "mkfs.xfs" && program != "xfs_growfs"
			}
		}, "apt-get install --no-install-recommends runc xfsprogs`"},
		"dynamic busybox": {func(a *Abilities) { a.StaticBusybox = func() bool { return false } }, "busybox-static"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := able()
			lacking.take(&machine)
			err := Preflight(machine)
			if err == nil || !strings.Contains(err.Error(), lacking.want) {
				t.Errorf("got %v, want %q", err, lacking.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
		})
	}
}
