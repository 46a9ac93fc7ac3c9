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

// BinaryVariable is the environment variable with the path of a program to use instead of building it.
const BinaryVariable = "LIQO_CSI_BINARY"

// ProfileVariable is the environment variable with the cargo profile of the driver: dev, which is
// the default, or release. Only dev builds have crash points.
const ProfileVariable = "LIQO_CSI_PROFILE"

const (
	profileDev     = "dev"
	profileRelease = "release"
)

// buildLimit is enough for a release build from scratch on two slow cores.
const buildLimit = 45 * time.Minute

// compiled is the result of this process's only build. An interrupted build is repeated.
var compiled struct {
	sync.Mutex
	done   bool
	binary string
	err    error
}

// Compile returns the path of the driver's program, and builds it on the first call. Relays and
// movers use the same program.
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
	if path := os.Getenv(BinaryVariable); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("program in %s: %w", BinaryVariable, err)
		}
		return filepath.Abs(path)
	}
	module, err := components.ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	root := filepath.Dir(module)
	switch profile := cmp.Or(os.Getenv(ProfileVariable), profileDev); profile {
	case profileDev:
		// The whole workspace, as for its tests: for a single package, cargo would compile the
		// dependencies again, with fewer features.
		return DevBinary(root), cargoBuild(ctx, root, "--workspace")
	case profileRelease:
		return filepath.Join(targetDir(root), "release", "liqo-csi"), cargoBuild(ctx, root, "--release", "--package", "liqo-csi")
	default:
		return "", fmt.Errorf("%s=%s: it must be %s or %s", ProfileVariable, profile, profileDev, profileRelease)
	}
}

// DevBinary is the program that `cargo build --workspace` builds in this repository.
func DevBinary(root string) string { return filepath.Join(targetDir(root), "debug", "liqo-csi") }

// UseRelease makes this process use a release build, unless the environment selects another
// profile, and builds it. Benchmarks call it first, outside of their timeout.
func UseRelease(ctx context.Context) error {
	if os.Getenv(ProfileVariable) == "" {
		if err := os.Setenv(ProfileVariable, profileRelease); err != nil {
			return err
		}
	}
	_, err := Compile(ctx)
	return err
}

// targets are the Rust targets of the architectures of a release.
var targets = map[string]string{"amd64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu"}

// CompileReleaseFor builds the program of a release for an architecture.
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

// CanCompileFor returns an error that says what must be installed to cross-compile the driver, and
// otherwise configures cargo's linker.
func CanCompileFor(ctx context.Context, architecture string) error {
	target, known := targets[architecture]
	if !known {
		return fmt.Errorf("the driver is not released for %s", architecture)
	}
	out, err := exec.CommandContext(ctx, "rustc", "--print", "target-libdir", "--target", target).Output()
	if err != nil {
		return fmt.Errorf("rustc --target %s: %w", target, err)
	}
	if _, err := os.Stat(strings.TrimSpace(string(out))); err != nil {
		return fmt.Errorf("the Rust target %s is not installed: rustup target add %s", target, target)
	}
	// For C code in crates, and to link.
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
	// Compilers may keep the output open after cargo was stopped.
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

// lockedCrates counts the crates in Cargo.lock, which are more than one platform needs.
func lockedCrates(root string) int {
	locked, err := os.ReadFile(filepath.Join(root, "Cargo.lock"))
	if err != nil {
		return 0 // cargo reports it
	}
	return bytes.Count(locked, []byte("[[package]]"))
}

// cargoOutput collects the output of cargo.
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

// progress returns how many crates cargo has started to compile, and its last line.
func (o *cargoOutput) progress(crates int) string {
	text := bytes.TrimSpace([]byte(o.String()))
	started := bytes.Count(text, []byte("Compiling "))
	last := bytes.TrimSpace(text[bytes.LastIndexByte(text, '\n')+1:])
	return fmt.Sprintf("%d of about %d crates started; cargo: %s", started, crates, last)
}

// targetDir is cargo's target directory.
func targetDir(root string) string {
	dir := cmp.Or(os.Getenv("CARGO_TARGET_DIR"), "target")
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(root, dir)
}
