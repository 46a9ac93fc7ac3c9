package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Debian has unpacked Debian packages, for programs that this machine need not have installed, and
// for other architectures.
type Debian struct {
	// packages are folders, one per package, with the name of its file without the extension.
	root     string
	packages []string
	triplet  string
	machine  elf.Machine
	used     map[string]bool
}

// Package is a Debian package with files in an image.
type Package struct{ Name, Version, Architecture string }

// machines maps Go's architectures to the names that Debian's library folders and ELF have for
// them.
var machines = map[string]struct {
	triplet string
	machine elf.Machine
}{
	"amd64": {"x86_64-linux-gnu", elf.EM_X86_64},
	"arm64": {"aarch64-linux-gnu", elf.EM_AARCH64},
}

var programFolders = []string{"usr/sbin", "sbin", "usr/bin", "bin"}

// UnpackDebian downloads packages and all their dependencies from this machine's release of Debian,
// and unpacks them. They are cached until a package has another version. Nothing is installed on
// the machine.
func UnpackDebian(ctx context.Context, architecture string, packages ...string) (*Debian, error) {
	install := append([]string{"install", "-qq", "--yes", "--no-install-recommends"}, packages...)
	return unpackDebian(ctx, architecture, install, "--download-only")
}

// UnpackDebianAlone is UnpackDebian without the dependencies, for programs that this machine can run.
func UnpackDebianAlone(ctx context.Context, architecture string, packages ...string) (*Debian, error) {
	return unpackDebian(ctx, architecture, append([]string{"download", "-qq"}, packages...))
}

// unpackDebian downloads with this command of apt-get, which also lists the files with
// --print-uris.
func unpackDebian(ctx context.Context, architecture string, fetch []string, flags ...string) (*Debian, error) {
	known, is := machines[architecture]
	if !is {
		return nil, fmt.Errorf("no programs for the architecture %s: it must be amd64 or arm64", architecture)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find the user's cache: %w", err)
	}
	dir := filepath.Join(cache, "liqo-csi-lab", "apt-"+architecture)
	unlock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	apt, err := newApt(dir, architecture)
	if err != nil {
		return nil, err
	}
	if _, err := apt.run(ctx, "update", "-qq"); err != nil {
		return nil, err
	}
	listed, err := apt.run(ctx, append(slices.Clone(fetch), "--print-uris")...)
	if err != nil {
		return nil, err
	}
	files := fileNames(listed)
	key := sha256.Sum256([]byte(strings.Join(files, "\n")))
	debian := &Debian{
		root:    filepath.Join(cache, "liqo-csi-lab", fmt.Sprintf("debian-%s-%x", architecture, key[:8])),
		triplet: known.triplet, machine: known.machine, used: map[string]bool{},
	}
	for _, file := range files {
		debian.packages = append(debian.packages, strings.TrimSuffix(file, ".deb"))
	}
	if _, err := os.Stat(debian.root); !errors.Is(err, fs.ErrNotExist) {
		return debian, err
	}
	if _, err := apt.run(ctx, append(fetch, flags...)...); err != nil {
		return nil, err
	}
	return debian, debian.unpack(ctx, filepath.Join(apt.dir, "archives"))
}

// fileNames reads the names of files from lines such as 'https://…/x_1_amd64.deb' x_1_amd64.deb 123 SHA256:….
func fileNames(listed string) (files []string) {
	for line := range strings.Lines(listed) {
		if columns := strings.Fields(line); len(columns) >= 2 && strings.HasSuffix(columns[1], ".deb") {
			files = append(files, columns[1])
		}
	}
	slices.Sort(files)
	return files
}

// lockFolder waits for other processes that use the folder: go test runs the tests of several packages at once.
func lockFolder(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create a folder for apt: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the folder of apt: %w", err)
	}
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
	}
	return func() { file.Close() }, nil
}

// apt runs apt-get with lists and a cache of its own, and as if no package were installed.
type apt struct {
	dir   string
	flags []string
}

func newApt(dir, architecture string) (*apt, error) {
	for _, folder := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return nil, fmt.Errorf("create a folder for apt: %w", err)
		}
	}
	status := filepath.Join(dir, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, fmt.Errorf("create a state for apt: %w", err)
	}
	made := &apt{dir: dir}
	for _, option := range []string{
		"Dir::State::Lists=" + filepath.Join(dir, "lists"),
		"Dir::State::status=" + status,
		"Dir::Cache::archives=" + filepath.Join(dir, "archives"),
		"Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache=",
		"APT::Architecture=" + architecture, "APT::Architectures=" + architecture,
		"Acquire::Languages=none",
		// A download needs no root, but apt takes a lock of dpkg anyway; lockFolder replaces it.
		"Debug::NoLocking=true",
	} {
		made.flags = append(made.flags, "-o", option)
	}
	return made, nil
}

func (a *apt) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "apt-get", append(slices.Clone(a.flags), args...)...)
	cmd.Dir = filepath.Join(a.dir, "archives") // apt-get download writes into the working directory
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("fetch Debian packages: apt-get %s: %w: %s",
			strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return out.String(), nil
}

// unpack unpacks into a temporary folder and renames it, so that a folder of that name is always
// complete.
func (d *Debian) unpack(ctx context.Context, archives string) error {
	aside, err := os.MkdirTemp(filepath.Dir(d.root), "unpacking-")
	if err != nil {
		return fmt.Errorf("unpack Debian packages: %w", err)
	}
	defer os.RemoveAll(aside)
	for _, name := range d.packages {
		file := filepath.Join(archives, name+".deb")
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", file, filepath.Join(aside, name)).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w: %s", file, err, out)
		}
	}
	if err := os.Chmod(aside, 0o755); err != nil {
		return err
	}
	if err := os.Rename(aside, d.root); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("unpack Debian packages: %w", err)
	}
	return os.RemoveAll(archives)
}

// Used returns the packages with files in images.
func (d *Debian) Used() (used []Package) {
	for _, file := range slices.Sorted(maps.Keys(d.used)) {
		parts := strings.Split(file, "_")
		version, err := url.PathUnescape(parts[1]) // the colon of an epoch
		if err != nil {
			version = parts[1]
		}
		used = append(used, Package{Name: parts[0], Version: version, Architecture: parts[2]})
	}
	return used
}

// find finds a file of the packages, by its name in the first of these folders that has it. It
// follows links within the package, and returns the path of the file and its real name.
func (d *Debian) find(name string, folders ...string) (file, real string, err error) {
	for _, folder := range folders {
		for _, owner := range d.packages {
			root := filepath.Join(d.root, owner)
			at := filepath.Join(root, folder, name)
			if _, err := os.Lstat(at); err != nil {
				continue
			}
			target, err := filepath.EvalSymlinks(at)
			if err != nil {
				return "", "", err
			}
			if !strings.HasPrefix(target, root+"/") {
				return "", "", fmt.Errorf("%s of the Debian package %s is a link to another one", name, owner)
			}
			d.used[owner] = true
			return target, filepath.Base(target), nil
		}
	}
	return "", "", fmt.Errorf("no Debian package has %s", name)
}

// Program returns the path of a program of the packages on this machine.
func (d *Debian) Program(name string) (string, error) {
	file, _, err := d.find(name, programFolders...)
	return file, err
}

// AddPrograms adds programs of the packages, with their libraries. A link to another program is
// added as a link.
func (d *Debian) AddPrograms(image *Image, names ...string) {
	for _, name := range names {
		file, real, err := d.find(name, programFolders...)
		if err != nil {
			image.failures = append(image.failures, err)
			continue
		}
		image.AddBinary(file, "/usr/sbin/"+real)
		if real != name {
			image.AddLink("/usr/sbin/"+name, real)
		}
		d.AddLibraries(image, file)
	}
}

// AddFiles adds files of the packages, at their paths.
func (d *Debian) AddFiles(image *Image, names ...string) {
	for _, name := range names {
		found, _, err := d.find(path.Base(name), path.Dir(name))
		if err != nil {
			image.failures = append(image.failures, err)
			continue
		}
		image.add(name, file{mode: 0o644, source: found})
	}
}

// AddLibraries adds the dynamic loader and all shared libraries that a program needs.
func (d *Debian) AddLibraries(image *Image, program string) {
	if err := d.addLibraries(image, program); err != nil {
		image.failures = append(image.failures, fmt.Errorf("find what %s needs: %w", program, err))
	}
}

func (d *Debian) addLibraries(image *Image, program string) error {
	parsed, err := elf.Open(program)
	if err != nil {
		return err
	}
	defer parsed.Close()
	if parsed.Machine != d.machine {
		return fmt.Errorf("it is made for %s and not for %s", parsed.Machine, d.machine)
	}
	folders := []string{"lib/" + d.triplet, "usr/lib/" + d.triplet, "lib", "usr/lib"}
	for _, part := range parsed.Progs {
		if part.Type != elf.PT_INTERP {
			continue
		}
		text, err := io.ReadAll(part.Open())
		if err != nil {
			return err
		}
		loader := string(bytes.TrimRight(text, "\x00"))
		file, _, err := d.find(path.Base(loader), folders...)
		if err != nil {
			return err
		}
		image.AddBinary(file, loader)
	}
	needed, err := parsed.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, name := range needed {
		at := "/lib/" + d.triplet + "/" + name
		if _, there := image.files[at]; there {
			continue
		}
		file, _, err := d.find(name, folders...)
		if err != nil {
			return err
		}
		image.AddBinary(file, at)
		if err := d.addLibraries(image, file); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
