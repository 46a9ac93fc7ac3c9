package driver

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"storage.liqo.io/sanity-tests/components"
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

// BinaryVariable names, in the environment, a program to install instead of
// building one; for those who have just built it otherwise.
const BinaryVariable = "LIQO_CSI_BINARY"

// ProfileVariable names, in the environment, the profile of cargo to build the
// driver in, instead of that of releases.
const ProfileVariable = "LIQO_CSI_PROFILE"

// Compile builds the driver in the profile asked for; with cargo features quickly, in
// the one whose dependencies the tests have built. Builds of one profile end in one
// file, so what is wanted of a build is to be done before the next.
func Compile(ctx context.Context, features ...string) (binary string, err error) {
	if given := os.Getenv(BinaryVariable); given != "" && len(features) == 0 {
		return filepath.Abs(given)
	}
	module, err := components.ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	root := filepath.Dir(module)
	profile := cmp.Or(os.Getenv(ProfileVariable), "release")
	if len(features) > 0 {
		profile = "dev"
	}
	cargo := exec.CommandContext(ctx, "cargo", "build", "--locked", "--profile", profile, "--features", strings.Join(features, ","))
	cargo.Dir = root
	if out, err := cargo.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the driver: %w\n%s", err, out)
	}
	folder := profile
	if profile == "dev" {
		folder = "debug" // where cargo puts it
	}
	return filepath.Join(targetDir(root), folder, "liqo-csi"), nil
}

// targetDir is where cargo builds.
func targetDir(root string) string {
	dir := cmp.Or(os.Getenv("CARGO_TARGET_DIR"), "target")
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(root, dir)
}

// image is the content of the Dockerfile's image, taken from this machine.
func image(binary string) (*images.Image, error) {
	const program = "/usr/local/bin/liqo-csi"
	built := images.New(imageName+":"+imageTag, program).AddProgram(binary, program)
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
