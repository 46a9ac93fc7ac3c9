package trees

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reader reads one tree.
type reader struct {
	firstError
	tree Manifest
	// first are the first paths of inodes with several names.
	first map[uint64]string
}

// Read reads a tree. Of lost+found in the root it reads nothing if it is an empty directory, which file systems have
// of their own.
func Read(root string) (Manifest, error) {
	r := &reader{tree: Manifest{}, first: map[uint64]string{}}
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	r.directory(fd, ".")
	return r.tree, r.err
}

// directory reads a directory, and closes it. Everything is opened from it, because paths may be longer than the
// kernel allows.
func (r *reader) directory(fd int, at string) {
	directory := os.NewFile(uintptr(fd), at)
	defer directory.Close()
	r.inode(fd, ".", at)
	names, err := directory.Readdirnames(-1)
	r.keep(err, "read directory %q", at)
	slices.Sort(names)
	for _, name := range names {
		if at == "." && name == "lost+found" && isEmpty(fd, name) {
			continue
		}
		below, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			r.directory(below, path.Join(at, name))
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			r.inode(fd, name, path.Join(at, name))
		default:
			r.keep(err, "open %q in %q", name, at)
		}
	}
}

// isEmpty reports whether a name is an empty directory.
func isEmpty(parent int, name string) bool {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	directory := os.NewFile(uintptr(fd), name)
	defer directory.Close()
	_, err = directory.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

var kinds = map[uint32]string{
	unix.S_IFREG: "file", unix.S_IFDIR: "directory", unix.S_IFLNK: "symbolic link", unix.S_IFIFO: "pipe", unix.S_IFSOCK: "socket",
	unix.S_IFCHR: "character device", unix.S_IFBLK: "block device",
}

func (r *reader) inode(parent int, name, at string) {
	var status unix.Stat_t
	r.keep(unix.Fstatat(parent, name, &status, unix.AT_SYMLINK_NOFOLLOW), "stat %q", at)
	kind := status.Mode & unix.S_IFMT
	entry := Entry{Written: unknown, Fields: map[string]string{
		"kind":  kinds[kind],
		"owner": fmt.Sprintf("%d:%d", status.Uid, status.Gid),
		"time":  fmt.Sprintf("%d.%09d", status.Mtim.Sec, status.Mtim.Nsec),
	}}
	fields := entry.Fields
	if kind != unix.S_IFLNK {
		fields["mode"] = fmt.Sprintf("%04o", status.Mode&^unix.S_IFMT)
	}
	if kind != unix.S_IFDIR && status.Nlink > 1 {
		fields["links"] = fmt.Sprint(status.Nlink)
		if r.first[status.Ino] == "" {
			r.first[status.Ino] = at
		}
		fields["same inode as"] = r.first[status.Ino]
	}
	switch kind {
	case unix.S_IFLNK:
		fields["target"] = r.link(parent, name, at)
	case unix.S_IFCHR, unix.S_IFBLK:
		fields["device"] = fmt.Sprintf("%d:%d", unix.Major(status.Rdev), unix.Minor(status.Rdev))
	case unix.S_IFREG, unix.S_IFDIR:
		r.opened(parent, name, at, &entry)
	}
	r.xattrs(fmt.Sprintf("/proc/self/fd/%d/%s", parent, name), at, fields)
	r.tree[at] = entry
}

func (r *reader) link(parent int, name, at string) string {
	target := make([]byte, 2*unix.PathMax)
	length, err := unix.Readlinkat(parent, name, target)
	r.keep(err, "read link %q", at)
	return string(target[:max(length, 0)])
}

// opened reads properties that require the file or directory to be open.
func (r *reader) opened(parent int, name, at string, entry *Entry) {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		r.keep(err, "open %q", at)
		return
	}
	file := os.NewFile(uintptr(fd), at)
	defer file.Close()
	bits, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EOPNOTSUPP) {
		r.keep(err, "read the flags of %q", at)
	}
	if set := letters(bits); set != "" {
		entry.Fields[flagsField] = set
	}
	if entry.Fields["kind"] != "file" {
		return
	}
	hash := sha256.New()
	entry.Size, err = io.Copy(hash, file)
	r.keep(err, "read %q", at)
	entry.Fields["size"], entry.Fields["content"] = fmt.Sprint(entry.Size), fmt.Sprintf("%x", hash.Sum(nil))
	r.keep(entry.readExtents(fd), "read the extents of %q", at)
}

func (r *reader) xattrs(link, at string, fields map[string]string) {
	list := make([]byte, 64<<10)
	length, err := unix.Llistxattr(link, list)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return
	}
	r.keep(err, "list the attributes of %q", at)
	for name := range bytes.SplitSeq(list[:max(length, 0)], []byte{0}) {
		// XFS also lists the ACLs under its own names.
		isACL := bytes.HasPrefix(name, []byte("trusted.SGI_ACL_"))
		if len(name) == 0 || isACL || string(name) == "security.selinux" {
			continue
		}
		value := make([]byte, 64<<10)
		length, err := unix.Lgetxattr(link, string(name), value)
		r.keep(err, "read the attribute %q of %q", name, at)
		fields[xattrField+string(name)] = string(value[:max(length, 0)])
	}
}

// extents of <linux/fiemap.h>.
type extents struct {
	start, length      uint64
	flags, found, most uint32
	_                  uint32
	all                [64]extent
}

type extent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

const (
	ioctlExtents    = 0xc020660b // FS_IOC_FIEMAP
	lastExtent      = 0x1        // FIEMAP_EXTENT_LAST
	unwrittenExtent = 0x800      // FIEMAP_EXTENT_UNWRITTEN
)

// readExtents reads for which bytes of a file space is allocated. SEEK_DATA returns something else: unwritten space
// counts as data while pages of it are cached.
func (e *Entry) readExtents(fd int) error {
	e.Allocated, e.Written = 0, 0
	for at := uint64(0); ; {
		request := extents{start: at, length: math.MaxInt64 - at}
		request.most = uint32(len(request.all))
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlExtents, uintptr(unsafe.Pointer(&request)))
		if errno == unix.EOPNOTSUPP || errno == unix.ENOTTY {
			e.Written = unknown
			return nil
		}
		if errno != 0 {
			return errno
		}
		for _, one := range request.all[:request.found] {
			at = one.logical + one.length
			e.Allocated += int64(one.length)
			if one.flags&unwrittenExtent == 0 {
				e.Written += max(0, min(int64(at), e.Size)-int64(one.logical))
			}
			if one.flags&lastExtent != 0 {
				return nil
			}
		}
		if request.found == 0 {
			return nil
		}
	}
}
