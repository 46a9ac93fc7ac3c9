package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// From linux/fs.h; package unix does not have them.
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

// frozenMark is appended to the name of an image while its filesystem may be frozen, so that
// another process can thaw it if this one is killed.
const frozenMark = ".frozen"

// CopyPointInTime copies an image file as of one point in time: a filesystem that is mounted from it, on any
// node, is frozen until the copy is complete. The copy has what a disk has after a power failure,
// which a database must survive.
func CopyPointInTime(ctx context.Context, image, filesystem, target string) error {
	device, err := FindLoop(image)
	if err != nil {
		return err
	}
	if device == "" {
		return Copy(ctx, image, target)
	}
	unix.Sync() // before the freeze, which would block it
	mark := image + frozenMark
	return withFilesystem(device, filesystem, func(root *os.File) error {
		if err := os.WriteFile(mark, []byte(filesystem), 0o600); err != nil {
			return fmt.Errorf("note that %s is frozen: %w", image, err)
		}
		if err := unix.IoctlSetInt(int(root.Fd()), fiFreeze, 0); err != nil {
			return errors.Join(fmt.Errorf("freeze the filesystem on %s: %w", device, err), os.Remove(mark))
		}
		return errors.Join(copyWhole(ctx, image, target), thaw(root, mark))
	})
}

// ThawAll thaws the filesystems, in a folder of images, that interrupted copies have left frozen.
func ThawAll(folder string) error {
	marks, err := filepath.Glob(filepath.Join(folder, "*"+frozenMark))
	for _, mark := range marks {
		err = errors.Join(err, thawMarked(mark))
	}
	return err
}

func thawMarked(mark string) error {
	filesystem, err := os.ReadFile(mark)
	if err != nil {
		return fmt.Errorf("read which filesystem is frozen: %w", err)
	}
	device, err := FindLoop(strings.TrimSuffix(mark, frozenMark))
	if err != nil {
		return err
	}
	if device == "" {
		return os.Remove(mark)
	}
	return withFilesystem(device, string(filesystem), func(root *os.File) error { return thaw(root, mark) })
}

func thaw(root *os.File, mark string) error {
	err := unix.IoctlSetInt(int(root.Fd()), fiThaw, 0)
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it is not frozen
		return fmt.Errorf("thaw the filesystem of %s: %w", strings.TrimSuffix(mark, frozenMark), err)
	}
	return os.Remove(mark)
}

// withFilesystem mounts the filesystem of a device once more and calls use with its root. This
// reaches the filesystem wherever else it is mounted: a device has one filesystem in the kernel.
func withFilesystem(device, filesystem string, use func(root *os.File) error) (err error) {
	at, err := os.MkdirTemp("", "filesystem-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(at)) }()
	if err := MountDevice(device, at, filesystem, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, Unmount(at)) }()
	root, err := os.Open(at)
	if err != nil {
		return err
	}
	return errors.Join(use(root), root.Close())
}
