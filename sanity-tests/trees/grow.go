package trees

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Options of a generated tree.
type Options struct {
	// Seed of everything that is random: trees of one seed are equal.
	Seed int64
	// LongestLink is the longest target of a symbolic link that all file systems can store: 1023 bytes on XFS, 4095
	// elsewhere.
	LongestLink int
	// Losses: the tree has what a move loses with consent.
	Losses bool
}

const (
	// LongestPath is the longest path that is copied, in bytes, as the kernel accepts no longer one in a call.
	LongestPath = unix.PathMax - 1
	longestName = 255
	mebibyte    = 1 << 20
)

// Grow generates a tree of about 5000 names and 40 MB in an existing directory, which has no names of its own but
// lost+found.
func Grow(root string, o Options) error {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", root, err)
	}
	g := &grower{Options: o, random: rand.New(rand.NewPCG(uint64(o.Seed), 0))}
	top := folder{g, fd}
	for _, part := range []struct {
		name string
		fill func(folder)
	}{
		{"files", folder.fillFiles}, {"names", folder.fillNames}, {"links", folder.fillLinks}, {"special", folder.fillSpecial},
		{"modes", folder.fillModes}, {"owners", folder.fillOwners}, {"times", folder.fillTimes}, {"attributes", folder.fillAttributes},
		{"many", folder.fillMany}, {"directories", folder.fillDirectories}, {"paths", folder.fillPaths}, {"random", folder.fillRandomly},
	} {
		top.sub(part.name, part.fill)
	}
	if o.Losses {
		top.sub("lost", folder.fillLosses)
		// What fsck has found. The directory itself is that of the file system, if it has one.
		top.sub("lost+found", func(d folder) { d.file("#12", 100) })
		top.flag(".", "d")
	}
	top.any(".", xattr("user.root", []byte("x")), xattr(defaultACLAttribute, acl(5, 6, 7)), withACL(8, 9, 5))
	for _, flag := range g.flagged {
		flag()
	}
	g.keep(unix.Close(fd), "close")
	return g.err
}

type grower struct {
	firstError
	Options
	random *rand.Rand
	// flagged set flags of inodes, which cannot be changed any more then.
	flagged []func()
}

// attributes of an inode.
type attributes struct {
	mode     uint32
	uid, gid int
	modified unix.Timespec
	xattrs   map[string][]byte
}

func (g *grower) attributes() attributes {
	return attributes{
		mode: g.random.Uint32N(0o10000), uid: int(g.random.Uint32N(1 << 20)), gid: int(g.random.Uint32N(1 << 20)),
		// From 1902 to 2446: ext4 and XFS have these years.
		modified: unix.Timespec{Sec: g.random.Int64N(17_000_000_000) - 2_140_000_000, Nsec: g.random.Int64N(1_000_000_000)},
		xattrs:   map[string][]byte{},
	}
}

// bytes returns random bytes, a third of which are zeros.
func (g *grower) bytes(length int64) []byte {
	data := make([]byte, length)
	for at := range data {
		if word := g.random.Uint32(); word%3 > 0 {
			data[at] = byte(word >> 8)
		}
	}
	return data
}

// folder is a directory that is being filled.
type folder struct {
	*grower
	fd int
}

// sub creates a directory, fills it, and sets its attributes.
func (d folder) sub(name string, fill func(folder), edits ...func(*attributes)) {
	if err := unix.Mkdirat(d.fd, name, 0o700); err != unix.EEXIST {
		d.keep(err, "make directory %q", name)
	}
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		d.keep(err, "open directory %q", name)
		return
	}
	fill(folder{d.grower, fd})
	d.keep(unix.Close(fd), "close")
	d.any(name, edits...)
}

// any sets random attributes of a name, but those which edits set.
func (d folder) any(name string, edits ...func(*attributes)) {
	wanted := d.attributes()
	for _, edit := range edits {
		edit(&wanted)
	}
	d.set(name, wanted)
}

// set sets attributes of a name. Some of them reset others that were set before.
func (d folder) set(name string, wanted attributes) {
	var status unix.Stat_t
	d.keep(unix.Fstatat(d.fd, name, &status, unix.AT_SYMLINK_NOFOLLOW), "stat %q", name)
	d.keep(unix.Fchownat(d.fd, name, wanted.uid, wanted.gid, unix.AT_SYMLINK_NOFOLLOW), "chown %q", name)
	for attribute, value := range wanted.xattrs {
		d.keep(unix.Lsetxattr(d.path(name), attribute, value, 0), "set %q of %q", attribute, name)
	}
	if status.Mode&unix.S_IFMT != unix.S_IFLNK {
		d.keep(unix.Fchmodat(d.fd, name, wanted.mode, 0), "chmod %q", name)
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, wanted.modified}
	d.keep(unix.UtimesNanoAt(d.fd, name, times, unix.AT_SYMLINK_NOFOLLOW), "set the time of %q", name)
}

// path is for calls that have no variant with a directory.
func (d folder) path(name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", d.fd, name) }

// part is a part of a file with data.
type part struct{ offset, length int64 }

// file creates a file with these parts, and holes between them. Without parts all of it is data.
func (d folder) file(name string, size int64, parts ...part) {
	if parts == nil {
		parts = []part{{0, size}}
	}
	d.create(name, func(file *os.File) error {
		for _, one := range parts {
			if _, err := file.WriteAt(d.bytes(one.length), one.offset); err != nil {
				return err
			}
		}
		return file.Truncate(size)
	})
	d.any(name)
}

func (d folder) create(name string, fill func(*os.File) error) {
	fd, err := unix.Openat(d.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		d.keep(err, "create %q", name)
		return
	}
	file := os.NewFile(uintptr(fd), name)
	d.keep(fill(file), "fill %q", name)
	d.keep(file.Close(), "close %q", name)
}

func (d folder) symlink(name, target string, edits ...func(*attributes)) {
	d.keep(unix.Symlinkat(target, d.fd, name), "link %q", name)
	d.any(name, edits...)
}

func (d folder) node(name string, kind uint32, major, minor uint32, edits ...func(*attributes)) {
	d.keep(unix.Mknodat(d.fd, name, kind|0o600, int(unix.Mkdev(major, minor))), "make node %q", name)
	d.any(name, edits...)
}

// again creates one more name of an inode.
func (d folder) again(name string, of folder, first string) {
	d.keep(unix.Linkat(of.fd, first, d.fd, name, 0), "link %q", name)
}

// Files of all sizes around those at which copies are cut, with holes, and with space that was not written.
func (d folder) fillFiles() {
	for _, size := range []int64{0, 1, 4095, 4096, 4097, 65537, mebibyte - 1, mebibyte, mebibyte + 1, 3*mebibyte + 12345} {
		d.file(fmt.Sprintf("%d bytes", size), size)
	}
	d.file("only a hole", 3*mebibyte+5, []part{}...)
	d.file("hole of a byte", 1, []part{{0, 0}}...)
	d.file("hole at the start", 2*mebibyte, part{2*mebibyte - 5000, 5000})
	d.file("hole at the end", 2*mebibyte+1, part{0, 4096})
	d.file("holes in many parts", 33*mebibyte+1, part{0, 1}, part{mebibyte - 1, 2}, part{16 * mebibyte, 4096}, part{32 * mebibyte, 70_000})
	d.file("zeros and a hole", mebibyte, part{0, 4096}, part{mebibyte / 2, 4096})
	// On ext4, the block of its attributes makes up for the hole: it has as many blocks as a file without one.
	d.file("hole and attributes", 8192, part{4096, 4096})
	d.any("hole and attributes", xattr("user.long", d.bytes(3000)))
	var comb []part
	for at := range int64(256) {
		comb = append(comb, part{at * 8192, 4096})
	}
	d.file("comb", 256*8192, comb...)
	for _, one := range []struct {
		name           string
		size           int64
		mode           uint32
		offset, length int64
	}{
		{"allocated", 2 * mebibyte, 0, 0, 2 * mebibyte},
		{"allocated and shorter", 4096, unix.FALLOC_FL_KEEP_SIZE, 0, mebibyte},
		{"allocated and empty", 0, unix.FALLOC_FL_KEEP_SIZE, 0, mebibyte},
		{"hole, and allocated beyond the end", 4 * mebibyte, unix.FALLOC_FL_KEEP_SIZE, 4 * mebibyte, mebibyte},
	} {
		d.create(one.name, func(file *os.File) error {
			if _, err := file.WriteAt(d.bytes(min(one.size, 100)), max(one.size-100, 0)); err != nil {
				return err
			}
			if err := file.Truncate(one.size); err != nil {
				return err
			}
			return unix.Fallocate(int(file.Fd()), one.mode, one.offset, one.length)
		})
		d.any(one.name)
	}
}

// Names of any bytes, and names that a shell, a list or a sorted walk could confuse with others.
func (d folder) fillNames() {
	for _, name := range []string{
		"new\nline", "\n", "tab\t", "trailing blank ", " ", "-rf", "--", "*", "?", "$(reboot)", "`x`", "quo\"te", "quo'te", "back\\slash", "\\n",
		"...", "..x", ".x", "~", "#", "%s%n", "a:b", "con", "COM1.txt", "x.", "\x01\x02", "\x7f", "\x1b[31m", "\xff\xfe", "\xc3\x28",
		"\xed\xa0\x80", "\u00e9", "e\u0301", "\u202egnp.exe", "\u200b", "A", "a", "\u00c5", "\u212b", "lost+found", ".liqo-move-of-a-user",
		"d", "d-", "d.", "d0", strings.Repeat("n", longestName), strings.Repeat("\xfe", longestName), strings.Repeat("\u00fc", 127) + "x",
	} {
		if strings.HasPrefix(name, "d") || d.random.IntN(3) == 0 {
			d.sub(name, func(below folder) { below.file("-", 10) })
		} else {
			d.file(name, d.random.Int64N(100))
		}
	}
}

// Inodes of all kinds with many names, in many directories.
func (d folder) fillLinks() {
	const inodes, names = 8, 60
	d.sub("a", func(a folder) {
		for at := range inodes {
			a.file(fmt.Sprintf("file %d", at), []int64{0, 10, 5000, 2 * mebibyte}[at%4])
		}
		a.symlink("link", "file 0")
		a.node("pipe", unix.S_IFIFO, 0, 0)
		a.node("socket", unix.S_IFSOCK, 0, 0)
		a.node("device", unix.S_IFCHR, 1, 5)
		for _, one := range []string{"link", "pipe", "socket", "device"} {
			a.again(one+" again", a, one)
			d.again("0 before "+one, a, one)
		}
		for _, other := range []string{"A", "b"} {
			d.sub(other, func(b folder) {
				for at := range names {
					b.again(fmt.Sprintf("%02d", at), a, fmt.Sprintf("file %d", d.random.IntN(inodes)))
				}
				b.sub("below", func(c folder) {
					for at := range inodes {
						c.again(fmt.Sprintf("file %d", at), a, fmt.Sprintf("file %d", at))
					}
				})
			})
		}
		a.sub("closed", func(b folder) { b.again("file", a, "file 1") }, mode(0))
	})
}

// Everything that is neither a file nor a directory.
func (d folder) fillSpecial() {
	d.node("pipe", unix.S_IFIFO, 0, 0)
	d.node("socket", unix.S_IFSOCK, 0, 0)
	// The mark of overlayfs that a name was deleted.
	d.node("whiteout", unix.S_IFCHR, 0, 0)
	d.node("null", unix.S_IFCHR, 1, 3)
	// More than eight bits of each number. These are the largest that XFS can store.
	d.node("large numbers", unix.S_IFBLK, 511, 262_143)
	d.node("loop", unix.S_IFBLK, 7, 0)
	for at, target := range []string{
		"nowhere", "/", ".", "..", "dangling/../x", "/proc/self/root", "\xff\n ", strings.Repeat("l/", d.LongestLink/2),
		strings.Repeat("\xfd", d.LongestLink), strings.Repeat("m", 59), strings.Repeat("m", 60), strings.Repeat("m", 61),
	} {
		d.symlink(fmt.Sprintf("link %d", at), target)
	}
	// Loops.
	d.symlink("self", "self")
}

func mode(bits uint32) func(*attributes) { return func(a *attributes) { a.mode = bits } }

// Each mode of files, and each of directories: also those without any permission to read or write.
func (d folder) fillModes() {
	for _, bits := range []uint32{0, 0o1, 0o2, 0o4, 0o111, 0o222, 0o444, 0o777, 0o1000, 0o2000, 0o2010, 0o4000, 0o4100, 0o6755, 0o7777} {
		d.file(fmt.Sprintf("file %04o", bits), 5)
		d.any(fmt.Sprintf("file %04o", bits), mode(bits))
		d.sub(fmt.Sprintf("directory %04o", bits), func(below folder) {
			below.file("file", 5)
			below.sub("directory", func(folder) {})
		}, mode(bits))
		d.node(fmt.Sprintf("pipe %04o", bits), unix.S_IFIFO, 0, 0, mode(bits))
	}
}

func (d folder) fillOwners() {
	for _, id := range []int{0, 1, 65534, 65535, 65536, 1 << 31, math.MaxUint32 - 1} {
		owners := func(a *attributes) { a.uid, a.gid = id, math.MaxUint32-1-id }
		name := fmt.Sprintf("%d", id)
		d.file("file "+name, 3)
		d.any("file "+name, owners)
		d.symlink("link "+name, name, owners)
		d.sub("directory "+name, func(folder) {}, owners)
	}
}

func (d folder) fillTimes() {
	for at, modified := range []unix.Timespec{
		{}, {Nsec: 1}, {Nsec: 999_999_999}, {Sec: -1, Nsec: 1}, {Sec: -1, Nsec: 999_999_999}, {Sec: math.MinInt32},
		{Sec: math.MinInt32, Nsec: 1}, {Sec: math.MaxInt32, Nsec: 999_999_999}, {Sec: math.MaxInt32 + 1}, {Sec: math.MaxUint32, Nsec: 5},
		// The last one of ext4.
		{Sec: 1<<34 - 1<<31 - 1, Nsec: 999_999_999},
	} {
		set := func(a *attributes) { a.modified = modified }
		d.file(fmt.Sprintf("file %d", at), 3)
		d.any(fmt.Sprintf("file %d", at), set)
		d.symlink(fmt.Sprintf("link %d", at), "x", set)
		d.node(fmt.Sprintf("pipe %d", at), unix.S_IFIFO, 0, 0, set)
		d.sub(fmt.Sprintf("directory %d", at), func(below folder) { below.file("file", 1) }, set)
	}
}

// acl returns an ACL, as the kernel encodes it: for owner, a user, group, a group, the mask and others.
func acl(user, group, mask uint32) []byte {
	data := binary.LittleEndian.AppendUint32(nil, 2)
	for _, entry := range [][3]uint32{
		{0x01, 7, math.MaxUint32}, {0x02, 5, user}, {0x04, 4, math.MaxUint32}, {0x08, 6, group}, {0x10, mask, math.MaxUint32}, {0x20, 1, math.MaxUint32},
	} {
		data = binary.LittleEndian.AppendUint16(data, uint16(entry[0]))
		data = binary.LittleEndian.AppendUint16(data, uint16(entry[1]))
		data = binary.LittleEndian.AppendUint32(data, entry[2])
	}
	return data
}

// capability returns security.capability of version 2, or of version 3 for the user namespace of this root.
func capability(root uint32) []byte {
	version := uint32(0x02000000)
	if root != 0 {
		version = 0x03000000
	}
	data := binary.LittleEndian.AppendUint32(nil, version|1)
	for _, word := range []uint32{1 << 10, 1 << 12, 0, 0} {
		data = binary.LittleEndian.AppendUint32(data, word)
	}
	if root != 0 {
		data = binary.LittleEndian.AppendUint32(data, root)
	}
	return data
}

const (
	aclAttribute        = "system.posix_acl_access"
	defaultACLAttribute = "system.posix_acl_default"
	capabilityAttribute = "security.capability"
)

// xattr sets an extended attribute.
func xattr(name string, value []byte) func(*attributes) {
	return func(a *attributes) { a.xattrs[name] = value }
}

// withACL sets an ACL. Its mask is the mode's part for groups.
func withACL(user, group, mask uint32) func(*attributes) {
	return func(a *attributes) {
		a.xattrs[aclAttribute] = acl(user, group, mask)
		a.mode = a.mode&^uint32(0o777) | 0o701 | mask<<3
	}
}

func (d folder) fillAttributes() {
	unseen := xattr(unseenXattrs+"overlay.opaque", []byte("y"))
	for _, one := range []struct {
		name string
		// ofAll: not only files and directories can have it.
		ofAll bool
		edit  func(*attributes)
	}{
		{"empty", false, xattr("user.empty", nil)},
		{"of any bytes", false, xattr("user.\xff\n ", []byte("\x00\xff\n"))},
		{"long", false, xattr("user.long", d.bytes(3000))},
		{"with a long name", false, xattr("user."+strings.Repeat("n", longestName-5), []byte("x"))},
		{"many", false, func(a *attributes) {
			for at := range 40 {
				a.xattrs[fmt.Sprintf("user.%d.%s", at, strings.Repeat("n", at))] = fmt.Append(nil, at)
			}
		}},
		{"ACL and another", false, func(a *attributes) { withACL(1, 2, 7)(a); a.xattrs["user.with"] = []byte("acl") }},
		{"ACL", true, withACL(70_000, math.MaxUint32-1, 0)},
		{"ACL and setgid", true, func(a *attributes) { withACL(3, 4, 6)(a); a.mode |= 0o2000 }},
		{"capability", true, xattr(capabilityAttribute, capability(0))},
		{"capability in a user namespace", true, xattr(capabilityAttribute, capability(100_000))},
		{"unseen", true, unseen},
	} {
		d.file("file, "+one.name, 7)
		d.any("file, "+one.name, one.edit)
		d.sub("directory, "+one.name, func(below folder) { below.file("file", 0) }, one.edit)
		if one.ofAll {
			d.node("pipe, "+one.name, unix.S_IFIFO, 0, 0, one.edit)
			d.node("device, "+one.name, unix.S_IFCHR, 1, 3, one.edit)
		}
	}
	d.symlink("link, unseen", "x", unseen)
	// They hand their ACL down, and some of their names have another.
	inherited := xattr(defaultACLAttribute, acl(5, 6, 7))
	d.sub("default acl", func(below folder) {
		below.file("without", 3)
		below.node("pipe", unix.S_IFIFO, 0, 0)
		below.sub("without directory", func(folder) {})
	}, inherited)
	d.sub("default acl and setgid", func(below folder) { below.file("without", 3) }, inherited, mode(0o2775))
	// While it has one.
	d.sub("default acl before", func(below folder) {
		below.any(".", inherited, mode(0o770))
		below.file("inherits", 3)
		below.node("socket", unix.S_IFSOCK, 0, 0)
		below.sub("inherits too", func(last folder) { last.file("and this", 1) })
	}, inherited)
}

func (d folder) fillMany() {
	for at := range 3000 {
		d.node(fmt.Sprintf("%d-%x", at, d.random.Uint32()), unix.S_IFREG, 0, 0)
	}
}

func (d folder) fillDirectories() {
	d.sub("setgid", func(below folder) {
		below.file("of another group", 3)
		below.sub("of another group, too", func(folder) {})
	}, mode(0o2775))
	d.sub("sticky", func(below folder) { below.file("file", 3) }, mode(0o1777))
	d.sub("closed", func(below folder) {
		below.file("file", 3)
		below.sub("closed", func(last folder) { last.file("file", 3) }, mode(0))
	}, mode(0))
	d.sub("empty", func(folder) {})
	d.sub("of directories", func(below folder) {
		for at := range 200 {
			below.sub(fmt.Sprint(at), func(folder) {})
		}
	})
}

// Paths as long, and as deep, as they are copied.
func (d folder) fillPaths() {
	d.deep(300, "d", func(last folder) { last.file("file", 3) })
	d.long(LongestPath - len("paths"))
}

// long creates a path of this many bytes below a directory, with its slashes.
func (d folder) long(left int) {
	if left <= longestName+1 {
		d.file(strings.Repeat("e", left-1), 3)
		d.any(strings.Repeat("e", left-1), xattr("user.deep", []byte("x")))
		d.again("f", d, strings.Repeat("e", left-1))
		return
	}
	// A slash and a byte have to be left.
	name := strings.Repeat(string(rune('a'+left%26)), min(longestName, left-3))
	d.sub(name, func(below folder) { below.long(left - 1 - len(name)) })
}

// deep creates directories in each other.
func (d folder) deep(levels int, name string, fill func(folder)) {
	if levels == 0 {
		fill(d)
		return
	}
	d.sub(name, func(below folder) { below.deep(levels-1, name, fill) })
}

// fillRandomly creates a random tree.
func (d folder) fillRandomly() { d.randomly(500, 0) }

func (d folder) randomly(inodes, depth int) {
	for at := 0; at < inodes; at++ {
		name := fmt.Sprintf("%d.%s", at, d.bytes(d.random.Int64N(4)))
		name = strings.NewReplacer("/", "_", "\x00", "\n").Replace(name)
		var edits []func(*attributes)
		if d.random.IntN(4) == 0 {
			edits = append(edits, withACL(d.random.Uint32()>>1, d.random.Uint32()>>1, d.random.Uint32N(8)))
		}
		switch d.random.IntN(10) {
		case 0, 1:
			below := 0
			if depth < 5 {
				below = d.random.IntN(inodes - at)
			}
			at += below
			d.sub(name, func(into folder) { into.randomly(below, depth+1) }, edits...)
		case 2:
			d.symlink(name, fmt.Sprintf("%x", d.bytes(d.random.Int64N(200)+1)))
		case 3:
			kind := []uint32{unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK}[d.random.IntN(4)]
			d.node(name, kind, d.random.Uint32N(512), d.random.Uint32N(1<<18), edits...)
		default:
			size := int64(math.Pow(2, d.random.Float64()*16))
			d.file(name, size, part{d.random.Int64N(size), d.random.Int64N(size)}, part{0, 1})
			d.any(name, append(edits, xattr("user."+fmt.Sprint(at), d.bytes(d.random.Int64N(300))))...)
			if d.random.IntN(5) == 0 {
				d.again(name+"+", d, name)
			}
		}
	}
}

// What is lost with consent.
func (d folder) fillLosses() {
	// An attribute that Samba sets.
	lost := xattr("security.NTACL", []byte("acl"))
	kept := func(a *attributes) {
		lost(a)
		a.xattrs["user.kept"] = []byte("x")
		a.xattrs[capabilityAttribute] = capability(0)
	}
	d.file("file", 5)
	d.any("file", kept)
	d.again("file again", d, "file")
	d.sub("directory", func(below folder) { below.file("without", 1) }, kept)
	d.symlink("link", "x", lost)
	d.node("pipe", unix.S_IFIFO, 0, 0, lost)
	for _, letter := range []string{"i", "a", "d", "A", "S", "D", "T"} {
		if letter != "D" && letter != "T" {
			d.file("file "+letter, 5)
			d.flag("file "+letter, letter)
		}
		d.sub("directory "+letter, func(below folder) {
			below.file("without", 1)
			below.sub("deeper", func(folder) {})
		})
		d.flag("directory "+letter, letter)
	}
	d.file("both", 5)
	d.any("both", kept)
	d.flag("both", "i")
	d.again("both again", d, "both")
}

// flag sets an inode flag when the tree is complete.
func (d folder) flag(name, letter string) {
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	d.keep(err, "open %q", name)
	d.flagged = append(d.flagged, func() {
		bits, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
		d.keep(err, "read the flags of %q", name)
		d.keep(unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(bits|bitOf(letter))), "chattr +%s %q", letter, name)
		d.keep(unix.Close(fd), "close")
	})
}

// GrowTooDeep creates a path that is too long to be copied, and returns its first name.
func GrowTooDeep(root string) (first string, err error) {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", root, err)
	}
	first = strings.Repeat("z", longestName)
	d := folder{&grower{random: rand.New(rand.NewPCG(0, 0))}, fd}
	d.deep(LongestPath/(longestName+1), first, func(last folder) {
		last.sub("zz", func(end folder) { end.file(first, 1) })
	})
	d.keep(unix.Close(fd), "close")
	return first, d.err
}
