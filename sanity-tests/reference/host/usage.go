// Package host has the reference driver's operations on the machine: loop devices, mounts,
// filesystems in image files, copies, usage. It has no state.
package host

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Usage is the size and the usage of a volume.
type Usage struct {
	TotalBytes, UsedBytes, FreeBytes    int64
	TotalInodes, UsedInodes, FreeInodes int64
}

// FilesystemUsage returns the usage of the filesystem mounted at path.
func FilesystemUsage(path string) (Usage, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return Usage{}, fmt.Errorf("usage of %s: %w", path, err)
	}
	block := stat.Bsize
	return Usage{
		TotalBytes:  int64(stat.Blocks) * block,
		UsedBytes:   int64(stat.Blocks-stat.Bfree) * block,
		FreeBytes:   int64(stat.Bavail) * block,
		TotalInodes: int64(stat.Files),
		UsedInodes:  int64(stat.Files - stat.Ffree),
		FreeInodes:  int64(stat.Ffree),
	}, nil
}

// DirectoryUsage returns the usage of a directory with this logical size.
func DirectoryUsage(path string, size int64) (Usage, error) {
	usage, err := FilesystemUsage(path)
	if err != nil {
		return Usage{}, err
	}
	usage.TotalBytes, usage.UsedBytes, usage.UsedInodes = size, 0, 0
	err = walkOwn(path, func(_ string, info fs.FileInfo) error {
		usage.UsedInodes++
		if info.Mode().IsRegular() {
			usage.UsedBytes += info.Size()
		}
		return nil
	})
	usage.FreeBytes = max(0, size-usage.UsedBytes)
	usage.TotalInodes = usage.UsedInodes + usage.FreeInodes
	return usage, err
}

// walkOwn visits everything below root. Users delete files at any time, so a missing file is no
// error.
func walkOwn(root string, visit func(string, fs.FileInfo) error) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil {
			var info fs.FileInfo
			if info, err = entry.Info(); err == nil {
				err = visit(path, info)
			}
		}
		if errors.Is(err, fs.ErrNotExist) && path != root {
			return nil
		}
		return err
	})
}
