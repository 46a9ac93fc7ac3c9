// Package release creates what is published: the image, the packaged chart, archives of the
// program, checksums and lists of parts. `make image` and `make release` call it.
package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/images"
)

// MaxImageSize is the maximum size of the unpacked image, because every node of every cluster pulls
// it.
const MaxImageSize = 100 << 20

// packages have the programs of driver.Tools.
var packages = []string{"btrfs-progs", "e2fsprogs", "nfs-common", "xfsprogs"}

// settings are files of Debian that these programs read: the defaults of mkfs.ext4, and the
// networks of RPC.
var settings = []string{"/etc/mke2fs.conf", "/etc/netconfig"}

// user is the controller's. The node plugin's pod runs as root, because it mounts, and so do
// movers, because they copy files of all owners.
const user = "65532:65532"

// versionFlag returns the flag with which a program prints its version, which shows that it runs.
func versionFlag(program string) string {
	if program == "mkfs.btrfs" || program == driver.Program {
		return "--version"
	}
	return "-V"
}

// BuiltImage is the image of one architecture.
type BuiltImage struct {
	*images.Image
	Architecture, Archive string
	// Size is the size of the unpacked files.
	Size int64
	// Packages are the Debian packages with files in the image.
	Packages []images.Package
}

// Image creates the image of a program, checks it, and writes its archive.
func (r *Release) Image(ctx context.Context, architecture, binary string) (*BuiltImage, error) {
	image, packages, err := assemble(ctx, r.ImageName, architecture, binary)
	if err != nil {
		return nil, err
	}
	image.Created = r.Time
	built := &BuiltImage{Image: image, Architecture: architecture, Archive: r.ImageArchive(architecture), Packages: packages}
	if built.Size, err = check(ctx, image); err != nil {
		return nil, err
	}
	out, err := os.Create(built.Archive)
	if err != nil {
		return nil, err
	}
	return built, errors.Join(images.WriteArchive(out, image), out.Close())
}

// assemble returns an image with the driver, the programs that it runs, and their libraries.
// Without a program, the driver is left out.
func assemble(ctx context.Context, name, architecture, binary string) (*images.Image, []images.Package, error) {
	debian, err := images.UnpackDebian(ctx, architecture, packages...)
	if err != nil {
		return nil, nil, err
	}
	image := images.New(name, driver.Program)
	if binary != "" {
		debian.AddLibraries(image.AddBinary(binary, driver.Program), binary)
	}
	debian.AddPrograms(image, driver.Tools...)
	debian.AddFiles(image, settings...)
	image.Architecture, image.Compressed = architecture, true
	image.User = user
	image.Labels = map[string]string{
		"org.opencontainers.image.title":    "liqo-csi",
		"org.opencontainers.image.version":  name[strings.LastIndexByte(name, ':')+1:],
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	return image, debian.Used(), image.Err()
}

// check returns the size of an image, and an error if it is too large or one of its programs does
// not start. It does not start programs of another architecture than this machine's.
func check(ctx context.Context, image *images.Image) (size int64, err error) {
	root, err := os.MkdirTemp("", "image-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(root)
	if size, err = image.Unpack(root); err != nil {
		return 0, err
	}
	if size > MaxImageSize {
		return 0, fmt.Errorf("the image has %d MiB, the maximum is %d", size>>20, MaxImageSize>>20)
	}
	if image.Architecture != runtime.GOARCH {
		return size, nil
	}
	for _, program := range append([]string{driver.Program}, driver.Tools...) {
		if out, failure := runIn(ctx, root, program, versionFlag(program)); failure != nil {
			err = errors.Join(err, fmt.Errorf("%s does not run in the image: %w: %s", program, failure, out))
		}
	}
	return size, err
}

// runIn runs a program with the unpacked image as its root directory.
func runIn(ctx context.Context, root, program string, args ...string) ([]byte, error) {
	if !filepath.IsAbs(program) {
		program = filepath.Join("/usr/sbin", program)
	}
	// Without root, changing the root directory requires a user namespace.
	attributes := &syscall.SysProcAttr{Chroot: root}
	if os.Geteuid() != 0 {
		attributes.Cloneflags = syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", []string{"PATH=/usr/local/bin:/usr/sbin"}, attributes
	out, err := cmd.CombinedOutput()
	return bytes.TrimSpace(out), err
}

// Push pushes images with crane, under one name if there are several. Credentials are those of
// `docker login`.
func Push(ctx context.Context, name string, built ...*BuiltImage) error {
	program, err := components.Tool(ctx, "registry", "github.com/google/go-containerregistry/cmd/crane")
	if err != nil {
		return err
	}
	crane := func(args ...string) error {
		if out, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("push %s: crane %s: %w: %s", name, args[0], err, bytes.TrimSpace(out))
		}
		return nil
	}
	if len(built) == 1 {
		return crane("push", built[0].Archive, name)
	}
	index := []string{"index", "append", "--tag", name}
	for _, image := range built {
		part := name + "-" + image.Architecture
		if err := crane("push", image.Archive, part); err != nil {
			return err
		}
		index = append(index, "--manifest", part)
	}
	return crane(index...)
}
