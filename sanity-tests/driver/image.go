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
	// repository is that of the published image. The tag is made of the content instead: nodes that
	// have an image of that name need not be given it again, and pods roll over when it changes.
	repository = "ghcr.io/liqo-csi/liqo-csi"
	// Program is where the driver is in its image.
	Program = "/usr/local/bin/liqo-csi"
)

// Tools are the programs the Dockerfile puts beside the driver.
var Tools = []string{"mkfs.ext2", "mkfs.ext3", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mount.nfs"}

// Not in the lab: no kernel here has NFS, and btrfs-progs would be one more
// package for a file system that no class of the lab uses.
var notInTheLab = map[string]bool{"mkfs.btrfs": true, "mount.nfs": true}

// made is the image of this process's program.
var made struct {
	sync.Mutex
	image *images.Image
}

// Image is the content of the Dockerfile's image, taken from this machine. It is made once.
func Image(ctx context.Context) (*images.Image, error) {
	binary, err := Compile(ctx)
	if err != nil {
		return nil, err
	}
	made.Lock()
	defer made.Unlock()
	if made.image == nil {
		made.image, err = image(binary)
	}
	return made.image, err
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

// ImportImage builds the driver and gives its image to the nodes of a cluster that do not have it:
// also of a cluster without the driver, where pods of a move run. Images of former builds go.
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

// ImportProgram gives the image of this program, which is that of another version, to the nodes of a cluster that do not
// have it.
func ImportProgram(ctx context.Context, cluster *clusters.Cluster, program string) error {
	built, err := image(program)
	if err != nil {
		return err
	}
	_, err = cluster.ImportMissing(ctx, built)
	return err
}

// ImportImageAs builds the driver and gives its image to the nodes of a cluster under another name, as that of a
// release.
func ImportImageAs(ctx context.Context, name string, cluster *clusters.Cluster) error {
	binary, err := Compile(ctx)
	if err != nil {
		return err
	}
	built, err := image(binary)
	if err != nil {
		return err
	}
	built.Name = name
	return cluster.Import(ctx, built)
}
