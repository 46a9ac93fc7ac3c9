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

// MountTable is the list of mount points of one mount namespace, in the order
// of the kernel's table.
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

// unescapeMount undoes the kernel's octal escapes of blanks and backslashes.
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

// Below returns the mount points at and below dir, newest first, so that
// unmounting them in this order never meets a busy parent.
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

// UnmountBelow takes away every mount at and below dir. Mounts can be stacked
// and can hide one another, so the table is read again until none is left.
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
	return fmt.Errorf("mounts below %s do not go away: %w", dir, failures)
}

func unmount(point string) error {
	err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW)
	if err == unix.EBUSY {
		err = unix.Unmount(point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	// EINVAL and ENOENT: gone with a mount that was taken away before it.
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unmount %s: %w", point, err)
	}
	return nil
}
