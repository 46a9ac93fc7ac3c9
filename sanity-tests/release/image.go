// Package release makes what is published: the image, the packaged chart, archives of the program,
// and what belongs to them. `make image` and `make release` call it.
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

// MaxImageSize is how large the unpacked image may be: every node of every cluster fetches it.
const MaxImageSize = 100 << 20

// packages are where driver.Tools come from.
var packages = []string{"btrfs-progs", "e2fsprogs", "nfs-common", "xfsprogs"}

// settings of Debian's that these programs read: how ext file systems are made, and which networks RPC has.
var settings = []string{"/etc/mke2fs.conf", "/etc/netconfig"}

// user is the controller's; the node plugin's pod asks for root, because it mounts, and movers do,
// because they copy files of all owners.
const user = "65532:65532"

// versionFlag has a program say its version, which shows that it runs.
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
	// Size is that of the unpacked files.
	Size int64
	// Packages are those of Debian of which it has something.
	Packages []images.Package
}

// Image makes the image around a program, tries it, and writes its archive.
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

// assemble puts together the driver, the programs that it runs, and the libraries of both,
// without a container engine. Without a program, it is all but the driver.
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

// check refuses an image that is too large, or in which a program does not start, and says how large
// it is. Programs of another architecture than this machine's cannot be tried.
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
		return 0, fmt.Errorf("the image has %d MiB, and may have %d", size>>20, MaxImageSize>>20)
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

// runIn runs a program of the unpacked image as if that were all there is.
func runIn(ctx context.Context, root, program string, args ...string) ([]byte, error) {
	if !filepath.IsAbs(program) {
		program = filepath.Join("/usr/sbin", program)
	}
	// Without root, the right to change the root directory is that of a user namespace.
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
