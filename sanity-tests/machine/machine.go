// Package machine is the lab's hold on the Linux machine it runs on: the state
// directory, recorded processes, namespaces, networks, mounts and cgroups, the
// checks before a start and the way back to how the machine was before.
//
// It knows nothing of Kubernetes; what runs on the machine is the business of
// the packages above it.
package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// StateDir holds everything the lab keeps while it runs. It is short because
// unix socket paths below it may not exceed 108 bytes, and fixed because there
// is one lab per machine.
const StateDir = "/var/lib/liqo-csi-lab"

// Path joins names below the state directory.
func Path(names ...string) string {
	return filepath.Join(append([]string{StateDir}, names...)...)
}

// WriteFile replaces a file whole: whoever reads it meanwhile sees the old or
// the new content.
func WriteFile(file string, content []byte, mode os.FileMode) error {
	aside := file + ".new"
	if err := os.WriteFile(aside, content, mode); err != nil {
		return err
	}
	return os.Rename(aside, file)
}

// Lock keeps other lab commands out until the returned function is called. The
// parent of the state directory is what is locked: a lock file of our own would
// have to outlive the removal of everything else.
func Lock(ctx context.Context) (unlock func(), err error) {
	dir, err := os.Open(filepath.Dir(StateDir))
	if err != nil {
		return nil, fmt.Errorf("open the folder of the lab's state: %w", err)
	}
	release := func() { _ = dir.Close() }

	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return release, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			release()
			return nil, fmt.Errorf("lock %s: %w", dir.Name(), err)
		}
		select {
		case <-ctx.Done():
			release()
			return nil, fmt.Errorf("another lab command holds the lab: %w", context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Prepare creates the state directory as a mount of its own with shared
// propagation, so that what a node mounts is seen by its containers and by the
// host, and a private corner for namespace files, which cannot live on a shared
// mount. Calling it again changes nothing.
func Prepare() error {
	if err := os.MkdirAll(Path("ns"), 0o755); err != nil {
		return fmt.Errorf("create the state directory: %w", err)
	}
	mounts, err := Mounts()
	if err != nil {
		return err
	}
	if !mounts.Has(StateDir) {
		if err := bind(StateDir, StateDir, unix.MS_SHARED); err != nil {
			return err
		}
	}
	if !mounts.Has(Path("ns")) {
		if err := bind(Path("ns"), Path("ns"), unix.MS_PRIVATE); err != nil {
			return err
		}
	}
	return rememberSettings()
}

func bind(source, target string, propagation uintptr) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s on %s: %w", source, target, err)
	}
	if err := unix.Mount("", target, "", propagation, ""); err != nil {
		return fmt.Errorf("set the propagation of %s: %w", target, err)
	}
	return nil
}
