package driver

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"storage.liqo.io/sanity-tests/images"
)

// Name and tag are those of the published image: the chart runs unmodified.
const (
	imageName = "ghcr.io/liqo-csi/liqo-csi"
	imageTag  = "0.1.0"
)

// Tools are the programs the Dockerfile puts beside the driver.
var Tools = []string{"mkfs.ext2", "mkfs.ext3", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mount.nfs"}

// Not in the lab: no kernel here has NFS, and btrfs-progs would be one more
// package for a file system that no class of the lab uses.
var notInTheLab = map[string]bool{"mkfs.btrfs": true, "mount.nfs": true}

// image is the content of the Dockerfile's image, taken from this machine.
func image(binary, mover string) (*images.Image, error) {
	const program = "/usr/local/bin/liqo-csi"
	built := images.New(imageName+":"+imageTag, program).AddProgram(binary, program).AddProgram(mover, program+"-mover")
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
	return built, built.Err()
}

// digest tells two builds apart.
func digest(file string) (string, error) {
	opened, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer opened.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, opened); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:8]), nil
}
