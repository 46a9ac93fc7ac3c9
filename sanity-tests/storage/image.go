package storage

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/images"
)

// What the driver runs: it makes, checks, grows and copies filesystems.
var driverTools = []string{
	"/usr/sbin/mkfs.ext4", "/usr/sbin/e2fsck", "/usr/sbin/resize2fs",
	"/usr/sbin/mkfs.xfs", "/usr/sbin/xfs_growfs", "/usr/bin/cp",
}

// importDriver builds the reference driver and puts it into the nodes. The tag
// is made of the content, so that a change rolls out by itself.
func importDriver(ctx context.Context, cluster *clusters.Cluster) (name string, err error) {
	root, err := components.ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "reference-driver-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "reference-driver")
	if err := components.GoBuild(ctx, filepath.Join(root, "reference"), "./cmd/reference-driver", binary); err != nil {
		return "", err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return "", err
	}
	name = fmt.Sprintf("storage.liqo.io/reference-driver:%x", sha256.Sum256(content))[:len("storage.liqo.io/reference-driver:")+12]
	image := images.New(name, "/reference-driver").AddBinary(binary, "/reference-driver").AddHostBinaries(driverTools...)
	if err := image.Err(); err != nil {
		return "", err
	}
	return name, cluster.Import(ctx, image)
}
