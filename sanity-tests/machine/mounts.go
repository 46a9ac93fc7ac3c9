package machine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MountTable has the mount points of a mount namespace, in the order of the kernel.
type MountTable []string

// Mounts reads the mount table of the calling thread.
func Mounts() (MountTable, error) {
	raw, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return parseMountInfo(raw), nil
}

func parseMountInfo(raw []byte) MountTable {
	var table MountTable
	for line := range bytes.Lines(raw) {
		if fields := strings.Fields(string(line)); len(fields) > 4 {
			table = append(table, unescapeMount(fields[4]))
		}
	}
	return table
}

// unescapeMount decodes the kernel's octal escapes.
func unescapeMount(path string) string {
	var plain strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if code, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				plain.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		plain.WriteByte(path[i])
	}
	return plain.String()
}

// Has reports whether path is a mount point.
func (t MountTable) Has(path string) bool { return slices.Contains(t, path) }

// Below returns the mount points at and below dir in an order in which they can be unmounted: deepest
// first, then newest first.
func (t MountTable) Below(dir string) MountTable {
	var below MountTable
	for _, point := range slices.Backward(t) {
		if within(dir, point) {
			below = append(below, point)
		}
	}
	slices.SortStableFunc(below, func(a, b string) int {
		return strings.Count(b, "/") - strings.Count(a, "/")
	})
	return below
}

func within(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// UnmountBelow unmounts everything at and below dir. It reads the table until no mount is left,
// because mounts can be stacked and hide each other.
func UnmountBelow(dir string) error {
	var failures error
	for range 20 {
		table, err := Mounts()
		if err != nil {
			return err
		}
		points := table.Below(dir)
		if len(points) == 0 {
			return nil
		}
		failures = nil
		for _, point := range points {
			failures = errors.Join(failures, unmount(point))
		}
	}
	return fmt.Errorf("mounts are left below %s: %w", dir, failures)
}

func unmount(point string) error {
	err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW)
	if err == unix.EBUSY {
		err = unix.Unmount(point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	// EINVAL and ENOENT: it was unmounted with another mount.
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unmount %s: %w", point, err)
	}
	return nil
}
