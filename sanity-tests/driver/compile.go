package driver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"storage.liqo.io/sanity-tests/components"
)

// BinaryVariable names, in the environment, a program to use instead of building one.
const BinaryVariable = "LIQO_CSI_BINARY"

// ProfileVariable names, in the environment, the profile of cargo to build the driver in: dev,
// which is the default, or release. Only builds in dev have crash points.
const ProfileVariable = "LIQO_CSI_PROFILE"

const (
	profileDev     = "dev"
	profileRelease = "release"
)

// buildLimit is more than a release takes on two slow cores when nothing was compiled before.
const buildLimit = 45 * time.Minute

// compiled is the outcome of the one build of this process. A build that was interrupted has none.
var compiled struct {
	sync.Mutex
	done   bool
	binary string
	err    error
}

// Compile returns the driver's program, building it when the first caller of the process asks for
// it. It is also the program of relays and movers: one program is in the image.
func Compile(ctx context.Context) (binary string, err error) {
	compiled.Lock()
	defer compiled.Unlock()
	if !compiled.done {
		compiled.binary, compiled.err = compile(ctx)
		compiled.done = ctx.Err() == nil
	}
	return compiled.binary, compiled.err
}

func compile(ctx context.Context) (binary string, err error) {
	if given := os.Getenv(BinaryVariable); given != "" {
		if _, err := os.Stat(given); err != nil {
			return "", fmt.Errorf("the program that %s names: %w", BinaryVariable, err)
		}
		return filepath.Abs(given)
	}
	module, err := components.ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	root := filepath.Dir(module)
	switch profile := cmp.Or(os.Getenv(ProfileVariable), profileDev); profile {
	case profileDev:
		// The whole workspace, as for its tests: a part of it alone would have its dependencies
		// compiled once more, with fewer features.
		return DevBinary(root), cargoBuild(ctx, root, "--workspace")
	case profileRelease:
		return filepath.Join(targetDir(root), "release", "liqo-csi"), cargoBuild(ctx, root, "--release", "--package", "liqo-csi")
	default:
		return "", fmt.Errorf("%s=%s: it must be %s or %s", ProfileVariable, profile, profileDev, profileRelease)
	}
}

// DevBinary is where `cargo build --workspace` puts the program of the repository in this folder.
func DevBinary(root string) string { return filepath.Join(targetDir(root), "debug", "liqo-csi") }

// UseRelease makes this process use a release, unless the environment asks for something else, and
// builds it. Benchmarks call it before anything else, and before their time begins.
func UseRelease(ctx context.Context) error {
	if os.Getenv(ProfileVariable) == "" {
		if err := os.Setenv(ProfileVariable, profileRelease); err != nil {
			return err
		}
	}
	_, err := Compile(ctx)
	return err
}

// targets are Rust's names of architectures that the driver is released for.
var targets = map[string]string{"amd64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu"}

// CompileReleaseFor is the program of a release for an architecture, or an error that says what this
// machine lacks to build it.
func CompileReleaseFor(ctx context.Context, architecture string) (binary string, err error) {
	if architecture == runtime.GOARCH {
		if err := UseRelease(ctx); err != nil {
			return "", err
		}
		return Compile(ctx)
	}
	if err := CanCompileFor(ctx, architecture); err != nil {
		return "", err
	}
	module, err := components.ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	root, target := filepath.Dir(module), targets[architecture]
	binary = filepath.Join(targetDir(root), target, "release", "liqo-csi")
	return binary, cargoBuild(ctx, root, "--release", "--package", "liqo-csi", "--target", target)
}

// CanCompileFor says what this machine lacks to build the driver for an architecture that is not its own.
func CanCompileFor(ctx context.Context, architecture string) error {
	target, known := targets[architecture]
	if !known {
		return fmt.Errorf("the driver is not released for %s", architecture)
	}
	out, err := exec.CommandContext(ctx, "rustc", "--print", "target-libdir", "--target", target).Output()
	if err != nil {
		return fmt.Errorf("ask rustc for the target %s: %w", target, err)
	}
	if _, err := os.Stat(strings.TrimSpace(string(out))); err != nil {
		return fmt.Errorf("the Rust target %s is not installed: rustup target add %s", target, target)
	}
	// For what crates compile of C, and to link.
	cc := strings.Replace(target, "-unknown", "", 1) + "-gcc"
	if _, err := exec.LookPath(cc); err != nil {
		return fmt.Errorf("%s is not installed: as root, apt-get install gcc-%s", cc, strings.TrimSuffix(strings.ReplaceAll(cc, "_", "-"), "-gcc"))
	}
	variable := "CARGO_TARGET_" + strings.ToUpper(strings.ReplaceAll(target, "-", "_")) + "_LINKER"
	return os.Setenv(variable, cc)
}

// cargoBuild runs `cargo build`, and reports its progress on standard error.
func cargoBuild(ctx context.Context, root string, flags ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, buildLimit, fmt.Errorf("it takes more than %s", buildLimit))
	defer cancel()
	cargo := exec.CommandContext(ctx, "cargo", append([]string{"build", "--locked"}, flags...)...)
	cargo.Dir = root
	out := &cargoOutput{}
	cargo.Stdout, cargo.Stderr = out, out
	// When cargo is stopped, compilers that it started may still have its output open.
	cargo.WaitDelay = 10 * time.Second
	crates := lockedCrates(root)
	start := time.Now()
	stop := components.ReportEvery(10*time.Second, func() {
		fmt.Fprintf(os.Stderr, "building the driver (the first time takes minutes): %s so far, %s\n",
			time.Since(start).Round(time.Second), out.progress(crates))
	})
	err := cargo.Run()
	stop()
	if err != nil {
		return fmt.Errorf("build the driver: %w\n%s", errors.Join(err, context.Cause(ctx)), out)
	}
	return nil
}

// lockedCrates is how many crates Cargo.lock lists: some more than a build on one platform needs.
func lockedCrates(root string) int {
	locked, err := os.ReadFile(filepath.Join(root, "Cargo.lock"))
	if err != nil {
		return 0 // cargo will say what is wrong
	}
	return bytes.Count(locked, []byte("[[package]]"))
}

// cargoOutput keeps what cargo prints.
type cargoOutput struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *cargoOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *cargoOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// progress is how many crates cargo has started to compile, and its last line: the crate it compiles,
// or what it waits for.
func (o *cargoOutput) progress(crates int) string {
	text := bytes.TrimSpace([]byte(o.String()))
	started := bytes.Count(text, []byte("Compiling "))
	last := bytes.TrimSpace(text[bytes.LastIndexByte(text, '\n')+1:])
	return fmt.Sprintf("%d of about %d crates started; cargo: %s", started, crates, last)
}

// targetDir is where cargo builds.
func targetDir(root string) string {
	dir := cmp.Or(os.Getenv("CARGO_TARGET_DIR"), "target")
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(root, dir)
}
