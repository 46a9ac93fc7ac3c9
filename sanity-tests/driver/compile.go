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

// CompileMover builds the program that copies volumes, in the profile asked for. It is
// beside the driver where that is given.
func CompileMover(ctx context.Context) (binary string, err error) {
	const program = "liqo-csi-mover"
	if given := os.Getenv(BinaryVariable); given != "" {
		return filepath.Abs(filepath.Join(filepath.Dir(given), program))
	}
	return build(ctx, io.Discard, profile(), program, "--package", program)
}

// compileMover is CompileMover for an image whose driver has these features: quickly, if any.
func compileMover(ctx context.Context, progress io.Writer, features []string) (binary string, err error) {
	if len(features) == 0 {
		return CompileMover(ctx)
	}
	const program = "liqo-csi-mover"
	return build(ctx, progress, "dev", program, "--package", program)
}

func profile() string { return cmp.Or(os.Getenv(ProfileVariable), "release") }

func compile(ctx context.Context, progress io.Writer, features []string) (binary string, err error) {
	if given := os.Getenv(BinaryVariable); given != "" && len(features) == 0 {
		return filepath.Abs(given)
	}
	profile := profile()
	if len(features) > 0 {
		profile = "dev"
	}
	return build(ctx, progress, profile, "liqo-csi", "--features", strings.Join(features, ","))
}

func build(ctx context.Context, progress io.Writer, profile, program string, flags ...string) (binary string, err error) {
	module, err := components.ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	root := filepath.Dir(module)
	out := &cargoOutput{}
	cargo := exec.CommandContext(ctx, "cargo", append([]string{"build", "--locked", "--profile", profile}, flags...)...)
	cargo.Dir = root
	cargo.Stdout, cargo.Stderr = out, out
	start := time.Now()
	done := components.ReportEvery(15*time.Second, func() {
		fmt.Fprintf(progress, "building %s (the first time takes minutes): %d crates compiled, %s so far\n",
			program, out.crates.Load(), time.Since(start).Round(time.Second))
	})
	err = cargo.Run()
	done()
	if err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", program, err, out.text.Bytes())
	}
	folder := profile
	if profile == "dev" {
		folder = "debug" // where cargo puts it
	}
	return filepath.Join(targetDir(root), folder, program), nil
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
