package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Teardown stops the lab and restores the machine, also after a partial start or crashes. It is
// idempotent.
func Teardown(ctx context.Context) error {
	if err := killEverything(ctx); err != nil {
		return err
	}
	if err := restoreSettings(); err != nil {
		return err
	}
	devices, err := loopDevicesBelow(StateDir)
	if err != nil {
		return err
	}
	if err := UnmountBelow(StateDir); err != nil {
		return err
	}
	// The kernel releases mounts that were only in a node's namespace asynchronously.
	if err := detach(ctx, devices); err != nil {
		return err
	}
	if err := Until(ctx, "the lab's cgroups to empty", removeCgroups); err != nil {
		return err
	}
	if err := restoreControllers(cgroupRoot, delegatedFile()); err != nil {
		return err
	}
	if err := os.RemoveAll(StateDir); err != nil {
		return fmt.Errorf("remove the state directory: %w", err)
	}
	return nil
}

// killEverything kills all recorded processes and all others in the lab's cgroups or namespaces
// (shims, containers, commands), until none is left.
func killEverything(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return Until(ctx, "the lab's processes to end", func() error {
		pids, err := labPids()
		if err != nil {
			return err
		}
		for pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				return fmt.Errorf("kill pid %d: %w", pid, err)
			}
		}
		if len(pids) > 0 {
			return fmt.Errorf("%d processes still run", len(pids))
		}
		return nil
	})
}

func labPids() (map[int]bool, error) {
	pids := map[int]bool{}
	recorded, err := Processes()
	if err != nil {
		return nil, err
	}
	for _, process := range recorded {
		if process.Alive() {
			pids[process.PID] = true
		}
	}
	for _, pid := range cgroupPids() {
		if _, err := startTime(pid); err == nil {
			pids[pid] = true
		}
	}
	inside, err := namespacePids()
	if err != nil {
		return nil, err
	}
	for _, pid := range inside {
		pids[pid] = true
	}
	delete(pids, os.Getpid())
	return pids, nil
}

// namespacePids returns the processes in namespaces of the lab.
func namespacePids() ([]int, error) {
	ours := map[uint64]bool{}
	files, _ := filepath.Glob(Path("ns", "lqlab-*"))
	for _, file := range files {
		var stat unix.Stat_t
		var filesystem unix.Statfs_t
		if unix.Stat(file, &stat) == nil && unix.Statfs(file, &filesystem) == nil && filesystem.Type == unix.NSFS_MAGIC {
			ours[stat.Ino] = true
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		for _, kind := range []string{"net", "mnt"} {
			var stat unix.Stat_t
			if unix.Stat(fmt.Sprintf("/proc/%d/ns/%s", pid, kind), &stat) == nil && ours[stat.Ino] {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids, nil
}

// loopDevicesBelow returns the loop devices with a file below dir. It compares device and inode,
// because the kernel's path is that in the namespace that opened the file.
func loopDevicesBelow(dir string) ([]string, error) {
	type file struct{ device, inode uint64 }
	devices := map[file][]string{}
	attached, err := LoopDevices()
	if err != nil {
		return nil, err
	}
	for device, info := range attached {
		backing := file{info.Device, info.Inode}
		devices[backing] = append(devices[backing], device)
	}
	if len(devices) == 0 {
		return nil, nil
	}

	var below []string
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		var stat unix.Stat_t
		if unix.Lstat(path, &stat) == nil {
			backing := file{stat.Dev, stat.Ino}
			below = append(below, devices[backing]...)
			delete(devices, backing)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return below, err
}

// LoopDevices returns the status of all attached loop devices.
func LoopDevices() (map[string]*unix.LoopInfo64, error) {
	devices := map[string]*unix.LoopInfo64{}
	attached, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range attached {
		device := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(path)))
		info, err := loopStatus(device)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
			continue // it was detached
		}
		if err != nil {
			return nil, fmt.Errorf("status of %s: %w", device, err)
		}
		devices[device] = info
	}
	return devices, nil
}

func loopStatus(device string) (*unix.LoopInfo64, error) {
	opened, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	return unix.IoctlLoopGetStatus64(int(opened.Fd()))
}

// detach detaches loop devices and waits until this is done: one that is mounted, or used by another
// loop device, is detached when it is closed.
func detach(ctx context.Context, devices []string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return Until(ctx, "loop devices to be free", func() error {
		var busy error
		for _, device := range devices {
			busy = errors.Join(busy, detachOne(device))
		}
		return busy
	})
}

func detachOne(device string) error {
	opened, err := os.Open(device)
	if err != nil {
		return fmt.Errorf("detach %s: %w", device, err)
	}
	defer opened.Close()
	switch err := unix.IoctlSetInt(int(opened.Fd()), unix.LOOP_CLR_FD, 0); err {
	case unix.ENXIO:
		return nil
	case nil:
		return fmt.Errorf("%s was in use", device) // check again
	default:
		return fmt.Errorf("detach %s: %w", device, err)
	}
}
