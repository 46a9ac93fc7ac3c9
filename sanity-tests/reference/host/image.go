package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// CreateImage creates an empty sparse file.
func CreateImage(path string, bytes int64) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("create image: %w", err)
	}
	defer file.Close()
	if err := file.Truncate(bytes); err != nil {
		return fmt.Errorf("size image: %w", err)
	}
	return nil
}

// Format creates a filesystem in an image file, which the caller knows to be empty.
func Format(ctx context.Context, image, filesystem string) error {
	switch filesystem {
	case "ext4":
		// No reserved blocks, so that users get the requested size.
		return run(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", image)
	case "xfs":
		return run(ctx, "mkfs.xfs", "-q", "-f", image)
	}
	return fmt.Errorf("no way to make a filesystem of type %q", filesystem)
}

// ErrOffline means that a filesystem can be expanded here only while it is not mounted.
var ErrOffline = errors.New("this process lacks CAP_SYS_RESOURCE, without which ext4 grows only while it is not mounted")

// GrowMounted expands a mounted filesystem to its device.
func GrowMounted(ctx context.Context, device, mountPoint, filesystem string) error {
	switch filesystem {
	case "ext4":
		err := run(ctx, "resize2fs", device) // succeeds everywhere if there is nothing to expand
		if err != nil && !CanGrowMounted(filesystem) {
			return ErrOffline
		}
		return err
	case "xfs":
		return run(ctx, "xfs_growfs", mountPoint)
	}
	return fmt.Errorf("no way to grow a filesystem of type %q", filesystem)
}

// GrowUnmounted expands an ext4 filesystem to its image file.
func GrowUnmounted(ctx context.Context, image string) error {
	// resize2fs requires a recent check, which also replays the journal of a copy of a mounted
	// filesystem. Status 1 means that errors were corrected.
	err := run(ctx, "e2fsck", "-f", "-p", image)
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 1) {
		return err
	}
	return run(ctx, "resize2fs", image)
}

// CanGrowMounted reports whether GrowMounted works for this filesystem on this machine.
func CanGrowMounted(filesystem string) bool { return filesystem != "ext4" || hasSysResource() }

func hasSysResource() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	err := unix.Capget(&header, &sets[0])
	return err == nil && sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// Copy copies an image file, or a directory with its contents. The copy gets its name when it is
// complete.
//
// Writes of users may still be in memory, so they are flushed first. A file that changes meanwhile
// is copied as it is when it is read.
func Copy(ctx context.Context, source, target string) error {
	unix.Sync()
	return copyWhole(ctx, source, target)
}

func copyWhole(ctx context.Context, source, target string) error {
	draft := target + ".partial"
	if err := os.RemoveAll(draft); err != nil {
		return fmt.Errorf("remove an unfinished copy: %w", err)
	}
	if err := run(ctx, "cp", "-a", "--sparse=always", "--reflink=auto", "-T", source, draft); err != nil {
		return errors.Join(err, os.RemoveAll(draft))
	}
	if err := os.Rename(draft, target); err != nil {
		return fmt.Errorf("finish copy: %w", err)
	}
	return nil
}

// ChangeGroup changes the group of everything below root, as kubelet does for drivers without
// VOLUME_MOUNT_GROUP.
func ChangeGroup(root string, group int) error {
	return walkOwn(root, func(path string, info fs.FileInfo) error {
		if err := os.Lchown(path, -1, group); err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return nil
		}
		mode := info.Mode() | 0o660
		if info.IsDir() {
			mode |= fs.ModeSetgid | 0o110
		}
		return os.Chmod(path, mode)
	})
}

func run(ctx context.Context, name string, args ...string) error {
	output, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", name, ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(output)))
	}
	return nil
}
