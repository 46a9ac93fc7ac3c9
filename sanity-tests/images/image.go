// Package images makes container images by hand, without a container engine: a
// file system of a few files, and the archive that containerd imports. The
// same content always gives the same archive.
//
// Getting an archive into a node is the business of package nodes.
package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync"
)

// Image is a name, what it runs and what is in it.
type Image struct {
	// Name is the full name it is known by, with registry and tag.
	Name       string
	Entrypoint []string
	Cmd        []string
	Env        []string
	files      map[string]file
	failures   []error

	// digest is what the name was made of; empty if the name was given.
	digest string
	// archive is written when it is first asked for.
	archive struct {
		sync.Mutex
		file *os.File
	}
}

// file is an entry of the file system: a folder, a link or content that is
// either at hand or in a file of the host.
type file struct {
	mode    fs.FileMode
	link    string
	content []byte
	source  string
}

// New starts an image that runs the given command. It has the few folders and
// accounts that programs take for granted.
func New(name string, entrypoint ...string) *Image {
	image := &Image{
		Name:       name,
		Entrypoint: entrypoint,
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		files:      map[string]file{},
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

// AddBinary adds a program of the host, under another path.
func (i *Image) AddBinary(source, target string) *Image {
	if _, err := os.Stat(source); err != nil {
		i.failures = append(i.failures, fmt.Errorf("add %s to the image: %w", source, err))
		return i
	}
	return i.add(target, file{mode: 0o755, source: source})
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

// Err tells what could not be added, all of it at once.
func (i *Image) Err() error {
	if len(i.failures) == 0 {
		return nil
	}
	return fmt.Errorf("image %s: %w", i.Name, errors.Join(i.failures...))
}
