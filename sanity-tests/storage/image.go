package storage

import (
	"context"
	"os"
	"path/filepath"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/images"
)

// driverTools are the programs with which the driver creates, checks, expands and copies
// filesystems.
var driverTools = []string{
	"/usr/sbin/mkfs.ext4", "/usr/sbin/e2fsck", "/usr/sbin/resize2fs",
	"/usr/sbin/mkfs.xfs", "/usr/sbin/xfs_growfs", "/usr/bin/cp",
}

// importDriver builds the reference driver and imports its image into the nodes that do not have
// it.
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
	const repository = "storage.liqo.io/reference-driver"
	image := images.New(repository, "/reference-driver").AddBinary(binary, "/reference-driver").AddHostBinaries(driverTools...)
	if err := image.NameByContent(repository); err != nil {
		return "", err
	}
	_, err = cluster.ImportMissing(ctx, image)
	return image.Name, err
}
