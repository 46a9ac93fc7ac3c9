// Package trees generates directory trees with every kind of inode and metadata that Linux has, reads trees, and
// compares what it has read. It shares nothing with the mover, of which it is a check.
package trees

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Manifest is all that was read of a tree, by path. The root is ".".
type Manifest map[string]Entry

// Entry is an inode under one of its names.
type Entry struct {
	// Fields are all that has to be equal in a copy, by what they are: "mode", "owner", "attribute user.x".
	Fields map[string]string
	// Size is the size of a file. Written is how many of its bytes have space that was written, Allocated all its
	// space, also that beyond its end. Written is unknown if the file system does not report it.
	Size, Written, Allocated int64
}

// Loss is metadata that a move loses with consent, as in spec.acceptLoss of a VolumeMove.
type Loss string

const (
	ExtendedAttributes Loss = "ExtendedAttributes"
	InodeFlags         Loss = "InodeFlags"
)

// Losses are all of them.
var Losses = []Loss{ExtendedAttributes, InodeFlags}

const (
	flagsField = "flags"
	xattrField = "attribute "
	// unseenXattrs are lost without consent, as docs/move.md says: only privileged users can read them.
	unseenXattrs = "trusted."
	// slack is how many bytes of holes a copy of a file may fill: less than a block. Blocks have the same size on both sides.
	slack   = 4<<10 - 1
	unknown = -1
)

// lossOf returns which loss a field is; "" if it is kept.
func lossOf(field string) Loss {
	name, isXattr := strings.CutPrefix(field, xattrField)
	switch {
	case field == flagsField:
		return InodeFlags
	case !isXattr, strings.HasPrefix(name, "user."), strings.HasPrefix(name, "system.posix_acl_"), name == "security.capability":
		return ""
	}
	return ExtendedAttributes
}

// Without returns what a move with consent to these losses leaves of a tree, and what a move without any does.
func (m Manifest) Without(losses ...Loss) Manifest {
	left := Manifest{}
	for path, entry := range m {
		entry.Fields = maps.Clone(entry.Fields)
		maps.DeleteFunc(entry.Fields, func(field, _ string) bool {
			return isUnseen(field) || slices.Contains(losses, lossOf(field))
		})
		left[path] = entry
	}
	return left
}

func isUnseen(field string) bool { return strings.HasPrefix(field, xattrField+unseenXattrs) }

// Count returns the number of names of which a move has such a loss.
func (m Manifest) Count(loss Loss) (names int) {
	for _, entry := range m {
		for field := range entry.Fields {
			if lossOf(field) == loss && !isUnseen(field) {
				names++
				break
			}
		}
	}
	return names
}

// Diff returns how a tree differs from what it should be, one line for each path and field.
func Diff(want, got Manifest) (differences []string) {
	paths := maps.Clone(want)
	maps.Copy(paths, got)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		wanted, isWanted := want[path]
		found, isThere := got[path]
		switch {
		case !isThere:
			differences = append(differences, fmt.Sprintf("%s: it is missing", shown(path)))
		case !isWanted:
			differences = append(differences, fmt.Sprintf("%s: it should not exist: %v", shown(path), found.Fields))
		default:
			for _, difference := range diffEntry(wanted, found) {
				differences = append(differences, shown(path)+": "+difference)
			}
		}
	}
	return differences
}

func diffEntry(want, got Entry) (differences []string) {
	fields := maps.Clone(want.Fields)
	maps.Copy(fields, got.Fields)
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		wanted, isWanted := want.Fields[field]
		if found, isThere := got.Fields[field]; wanted != found || isWanted != isThere {
			differences = append(differences, fmt.Sprintf("%s: it is %s, not %s", field, orNone(found, isThere), orNone(wanted, isWanted)))
		}
	}
	// A copy may have zeros in place of space that was not written.
	if want.Written != unknown && got.Written > want.Allocated+slack {
		differences = append(differences, fmt.Sprintf("holes: %d bytes of %d are written, and at most %d should be", got.Written, got.Size, want.Allocated))
	}
	return differences
}

func orNone(value string, isThere bool) string {
	if !isThere {
		return "none"
	}
	return shown(value)
}

// shown is a text for people, which may be of any bytes. Its end is shown, too, if it is long.
func shown(text string) string {
	const longest = 160
	if len(text) > longest {
		return fmt.Sprintf("%q…%q (%d bytes)", text[:longest/2], text[len(text)-longest/2:], len(text))
	}
	return fmt.Sprintf("%q", text)
}

// flag is an inode flag, with its letter for chattr.
type flag struct {
	bit    uint32
	letter string
}

// flags are those that users set, of <linux/fs.h>. Others show how a file system stores an inode.
var flags = []flag{
	{0x1, "s"}, {0x2, "u"}, {0x4, "c"}, {0x8, "S"}, {0x10, "i"}, {0x20, "a"}, {0x40, "d"}, {0x80, "A"}, {0x800, "E"},
	{0x4000, "j"}, {0x8000, "t"}, {0x10000, "D"}, {0x20000, "T"}, {0x100000, "V"}, {0x800000, "C"}, {0x2000000, "x"},
	{0x20000000, "P"}, {0x40000000, "F"},
}

func letters(bits uint32) (text string) {
	for _, one := range flags {
		if bits&one.bit != 0 {
			text += one.letter
		}
	}
	return text
}

func bitOf(letter string) uint32 {
	at := slices.IndexFunc(flags, func(one flag) bool { return one.letter == letter })
	return flags[max(at, 0)].bit
}

// firstError is the first error that is not nil, and what had failed.
type firstError struct{ err error }

func (f *firstError) keep(err error, doing string, args ...any) {
	if err != nil {
		f.err = cmp.Or(f.err, fmt.Errorf("%s: %w", fmt.Sprintf(doing, args...), err))
	}
}
