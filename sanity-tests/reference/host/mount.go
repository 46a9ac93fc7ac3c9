package host

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrUnknownOption means that a mount option is not supported.
var ErrUnknownOption = errors.New("unknown mount option")

// Each option sets or clears flags that belong to a mount point, not to the
// filesystem, so they work for bind mounts as well.
var mountPointOptions = map[string]struct{ set, clear uintptr }{
	"defaults":   {},
	"rw":         {clear: unix.MS_RDONLY},
	"ro":         {set: unix.MS_RDONLY},
	"noatime":    {set: unix.MS_NOATIME},
	"relatime":   {set: unix.MS_RELATIME},
	"nodiratime": {set: unix.MS_NODIRATIME},
	"noexec":     {set: unix.MS_NOEXEC},
	"exec":       {clear: unix.MS_NOEXEC},
	"nosuid":     {set: unix.MS_NOSUID},
	"suid":       {clear: unix.MS_NOSUID},
	"nodev":      {set: unix.MS_NODEV},
	"dev":        {clear: unix.MS_NODEV},
}

// splitOptions separates flags of the mount point from options of the filesystem.
func splitOptions(options []string) (flags uintptr, filesystem []string) {
	for _, option := range options {
		known, ok := mountPointOptions[option]
		if !ok {
			filesystem = append(filesystem, option)
			continue
		}
		flags = flags&^known.clear | known.set
	}
	return flags, filesystem
}

// BindMount mounts source at target. It rejects options of a filesystem, which a bind mount cannot
// change.
func BindMount(source, target string, options []string) error {
	flags, rest := splitOptions(options)
	if len(rest) > 0 {
		return fmt.Errorf("%w for a directory: %s", ErrUnknownOption, strings.Join(rest, ","))
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	if flags == 0 {
		return nil
	}
	// A bind mount ignores flags until it is remounted. Remounting replaces all of them, so those
	// of the source are set again.
	inherited, err := mountFlags(target)
	if err == nil {
		err = unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|inherited|flags, "")
	}
	if err != nil {
		return errors.Join(fmt.Errorf("set options %v on %s: %w", options, target, err), Unmount(target))
	}
	return nil
}

func mountFlags(path string) (uintptr, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return 0, fmt.Errorf("read mount flags of %s: %w", path, err)
	}
	var flags uintptr
	for reported, flag := range map[int64]uintptr{
		unix.ST_RDONLY: unix.MS_RDONLY, unix.ST_NOSUID: unix.MS_NOSUID, unix.ST_NODEV: unix.MS_NODEV,
		unix.ST_NOEXEC: unix.MS_NOEXEC, unix.ST_NOATIME: unix.MS_NOATIME, unix.ST_NODIRATIME: unix.MS_NODIRATIME,
		unix.ST_RELATIME: unix.MS_RELATIME,
	} {
		if stat.Flags&reported != 0 {
			flags |= flag
		}
	}
	return flags, nil
}

// MountDevice mounts a formatted device.
func MountDevice(device, target, filesystem string, options []string) error {
	flags, rest := splitOptions(options)
	if err := unix.Mount(device, target, filesystem, flags, strings.Join(rest, ",")); err != nil {
		if errors.Is(err, unix.EINVAL) && len(rest) > 0 {
			return fmt.Errorf("%w for %s among %s", ErrUnknownOption, filesystem, strings.Join(rest, ","))
		}
		return fmt.Errorf("mount %s at %s: %w", device, target, err)
	}
	return nil
}

// Unmount removes all mounts at target, if any.
func Unmount(target string) error {
	for {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
}

// IsMounted reports whether exactly this path, which may be a file, is a mount point. It reads the
// mount table, because a bind mount within one filesystem does not change the device number.
func IsMounted(path string) (bool, error) {
	// Mounts are listed under their real path; only the parent is resolved,
	// since the mount point itself is never a symbolic link.
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("resolve %s: %w", path, err)
	}
	wanted := filepath.Join(parent, filepath.Base(path))

	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	defer table.Close()
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && unescape.Replace(fields[4]) == wanted {
			return true, nil
		}
	}
	return false, lines.Err()
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
