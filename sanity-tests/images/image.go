// Package images creates container images without a container engine: a file system of a few files,
// and the archive that containerd imports. The same content always results in the same archive.
//
// Package nodes imports archives into nodes.
package images

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Image is a container image.
type Image struct {
	// Name is the full name, with registry and tag.
	Name       string
	Entrypoint []string
	Cmd        []string
	Env        []string
	// User is the user of its process; empty for root.
	User string
	// Labels have keys of org.opencontainers.image.
	Labels map[string]string
	// Architecture is Go's name of the architecture; by default this machine's.
	Architecture string
	// Created is the Unix epoch by default, so that archives are reproducible.
	Created time.Time
	// Compressed compresses the layer with gzip, for archives that users download.
	Compressed bool

	files    map[string]file
	failures []error

	// digest is the digest in the name; empty if the name was given.
	digest string
	// archive is written at the first call of Archive.
	archive struct {
		sync.Mutex
		file *os.File
	}
}

// file is an entry of the file system: a folder, a link, or content in memory or in a file of the
// host.
type file struct {
	mode    fs.FileMode
	link    string
	content []byte
	source  string
}

// New returns an image that runs this command. It has the few folders and accounts that programs
// expect.
func New(name string, entrypoint ...string) *Image {
	image := &Image{
		Name:         name,
		Entrypoint:   entrypoint,
		Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Architecture: runtime.GOARCH,
		Created:      epoch,
		files:        map[string]file{},
	}
	image.AddDir("/tmp", 0o777|fs.ModeSticky)
	for _, dir := range []string{"/dev", "/proc", "/sys", "/run", "/var", "/root"} {
		image.AddDir(dir, 0o755)
	}
	image.AddFile("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	image.AddFile("/etc/group", 0o644, []byte("root:x:0:\nnobody:x:65534:\n"))
	return image
}

// AddDir adds a folder.
func (i *Image) AddDir(dir string, mode fs.FileMode) *Image {
	return i.add(dir, file{mode: mode | fs.ModeDir})
}

// AddFile adds a file with the given content.
func (i *Image) AddFile(name string, mode fs.FileMode, content []byte) *Image {
	return i.add(name, file{mode: mode, content: content})
}

// AddLink adds a symbolic link.
func (i *Image) AddLink(name, target string) *Image {
	return i.add(name, file{mode: fs.ModeSymlink | 0o777, link: target})
}

// AddBinary adds a program of the host under another path.
func (i *Image) AddBinary(source, target string) *Image {
	if _, err := os.Stat(source); err != nil {
		i.failures = append(i.failures, fmt.Errorf("add %s to the image: %w", source, err))
		return i
	}
	return i.add(target, file{mode: 0o755, source: source})
}

// RunAsOwner sets the setuid bit of a program that was added, so that it runs as root.
func (i *Image) RunAsOwner(name string) *Image {
	entry, there := i.files[name]
	if !there {
		i.failures = append(i.failures, fmt.Errorf("there is no %s to run as its owner", name))
		return i
	}
	entry.mode |= fs.ModeSetuid
	return i.add(name, entry)
}

func (i *Image) add(name string, entry file) *Image {
	name = path.Clean("/" + name)
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		if _, there := i.files[dir]; !there {
			i.files[dir] = file{mode: 0o755 | fs.ModeDir}
		}
	}
	i.files[name] = entry
	return i
}

// Err returns everything that could not be added.
func (i *Image) Err() error {
	if len(i.failures) == 0 {
		return nil
	}
	return fmt.Errorf("image %s: %w", i.Name, errors.Join(i.failures...))
}

// Paths returns the paths of all files.
func (i *Image) Paths() []string { return slices.Sorted(maps.Keys(i.files)) }

// Unpack writes the file system of the image into an empty folder, and returns the size of its
// files.
func (i *Image) Unpack(root string) (size int64, err error) {
	if err := i.Err(); err != nil {
		return 0, err
	}
	for _, name := range i.Paths() { // sorted: a folder comes before its files
		written, err := i.files[name].unpack(filepath.Join(root, name))
		if err != nil {
			return 0, fmt.Errorf("unpack image %s: %w", i.Name, err)
		}
		size += written
	}
	return size, nil
}

func (f file) unpack(to string) (size int64, err error) {
	switch {
	case f.mode.IsDir():
		return 0, os.Mkdir(to, f.mode.Perm())
	case f.mode&fs.ModeSymlink != 0:
		return 0, os.Symlink(f.link, to)
	}
	content := f.content
	if f.source != "" {
		if content, err = os.ReadFile(f.source); err != nil {
			return 0, err
		}
	}
	return int64(len(content)), os.WriteFile(to, content, f.mode)
}
