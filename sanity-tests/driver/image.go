package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/images"
)

const (
	// repository is that of the published image. The tag is a hash of the content, so that the image
	// is imported only into nodes without it, and pods are replaced when it changes.
	repository = "ghcr.io/liqo-csi/liqo-csi"
	// Program is the path of the driver in its image.
	Program = "/usr/local/bin/liqo-csi"
)

// Tools are the other programs in the image of a release.
var Tools = []string{"mkfs.ext2", "mkfs.ext3", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mount.nfs"}

// notInTheLab: the lab's kernels have no NFS, and no class of the lab uses btrfs.
var notInTheLab = map[string]bool{"mkfs.btrfs": true, "mount.nfs": true}

// built is the image of this process's program.
var built struct {
	sync.Mutex
	image *images.Image
}

// Image returns an image with the programs of a release's image, from files of this machine. It is built once.
func Image(ctx context.Context) (*images.Image, error) {
	binary, err := Compile(ctx)
	if err != nil {
		return nil, err
	}
	built.Lock()
	defer built.Unlock()
	if built.image == nil {
		built.image, err = image(binary)
	}
	return built.image, err
}

func image(binary string) (*images.Image, error) {
	built := images.New(repository, Program).AddProgram(binary, Program)
	for _, tool := range Tools {
		if notInTheLab[tool] {
			continue
		}
		found, err := exec.LookPath(tool)
		if err != nil {
			return nil, fmt.Errorf("%w: run make deps", err)
		}
		built.AddHostBinaries(found)
	}
	if settings, err := os.ReadFile("/etc/mke2fs.conf"); err == nil {
		built.AddFile("/etc/mke2fs.conf", 0o644, settings)
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := built.NameByContent(repository); err != nil {
		return nil, err
	}
	return built, nil
}

// ImportImage builds the driver and imports its image into the nodes of a cluster that do not have
// it. Pods of moves need it in clusters without the driver too. It removes images of earlier builds.
func ImportImage(ctx context.Context, cluster *clusters.Cluster) error {
	built, err := Image(ctx)
	if err != nil {
		return err
	}
	if _, err := cluster.ImportMissing(ctx, built); err != nil {
		return err
	}
	return cluster.RemoveOtherTags(ctx, built.Name)
}

// imageFor is the image of this program, or of the one that is built.
func imageFor(ctx context.Context, program string) (*images.Image, error) {
	if program == "" {
		return Image(ctx)
	}
	return image(program)
}

// ImportProgram imports the image of this program, which is that of another version, into the nodes of a cluster that
// lack it.
func ImportProgram(ctx context.Context, cluster *clusters.Cluster, program string) error {
	built, err := image(program)
	if err != nil {
		return err
	}
	_, err = cluster.ImportMissing(ctx, built)
	return err
}

// WriteImageAs builds the driver and writes an archive of its image under another name, such as that of a release.
func WriteImageAs(ctx context.Context, name, file string) error {
	binary, err := Compile(ctx)
	if err != nil {
		return err
	}
	built, err := image(binary)
	if err != nil {
		return err
	}
	built.Name = name
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(images.WriteArchive(out, built), out.Close())
}

// RemoveImages removes the driver's images of all builds from the nodes of a cluster.
func RemoveImages(ctx context.Context, cluster *clusters.Cluster) error {
	return cluster.RemoveOtherTags(ctx, repository+":")
}
