// Package machine manages what the lab uses of its Linux machine: the state directory, processes,
// namespaces, networks, mounts and cgroups. It checks the machine before a start, and restores it at
// the end. It has nothing about Kubernetes.
package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// StateDir has all files of the lab. It is short because paths of unix sockets have at most 108 bytes,
// and constant because there is one lab per machine.
const StateDir = "/var/lib/liqo-csi-lab"

// Path joins names below the state directory.
func Path(names ...string) string {
	return filepath.Join(append([]string{StateDir}, names...)...)
}

// WriteFile replaces a file atomically.
func WriteFile(file string, content []byte, mode os.FileMode) error {
	temporary := file + ".new"
	if err := os.WriteFile(temporary, content, mode); err != nil {
		return err
	}
	return os.Rename(temporary, file)
}

// Lock excludes other lab commands until unlock is called. It locks the parent of the state directory,
// because the state directory is deleted.
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
			return nil, fmt.Errorf("another lab command is running: %w", context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Prepare creates the state directory as a mount with shared propagation, so that mounts of a node are
// visible in its containers and on the host, and a private mount in it for namespace files, which the
// kernel does not allow on shared mounts. It is idempotent.
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
	return saveSettings()
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
