package driver

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"storage.liqo.io/sanity-tests/components"
)

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
	return compile(ctx, io.Discard, features)
}

func compile(ctx context.Context, progress io.Writer, features []string) (binary string, err error) {
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
	out := &cargoOutput{}
	cargo := exec.CommandContext(ctx, "cargo", "build", "--locked", "--profile", profile, "--features", strings.Join(features, ","))
	cargo.Dir = root
	cargo.Stdout, cargo.Stderr = out, out
	start := time.Now()
	done := components.ReportEvery(15*time.Second, func() {
		fmt.Fprintf(progress, "building the driver (the first time takes minutes): %d crates compiled, %s so far\n",
			out.crates.Load(), time.Since(start).Round(time.Second))
	})
	err = cargo.Run()
	done()
	if err != nil {
		return "", fmt.Errorf("build the driver: %w\n%s", err, out.text.Bytes())
	}
	folder := profile
	if profile == "dev" {
		folder = "debug" // where cargo puts it
	}
	return filepath.Join(targetDir(root), folder, "liqo-csi"), nil
}

// cargoOutput keeps what cargo prints, and counts the crates that it begins to compile.
type cargoOutput struct {
	text   bytes.Buffer
	crates atomic.Int64
}

func (o *cargoOutput) Write(p []byte) (int, error) {
	o.crates.Add(int64(bytes.Count(p, []byte("Compiling "))))
	return o.text.Write(p)
}

// targetDir is where cargo builds.
func targetDir(root string) string {
	dir := cmp.Or(os.Getenv("CARGO_TARGET_DIR"), "target")
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(root, dir)
}
