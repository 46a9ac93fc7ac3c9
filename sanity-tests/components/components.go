// Package components builds the programs the lab runs. Each nested module
// (kubernetes, containerd, localpath, coredns; liqo, e2e and kwok for those who need them) pins a set of
// them in its `tool` lines and holds no code, or none but the list of what a program is put
// together from; what is built is kept in the user's cache under a name made of everything that
// went into it, so clones of the project share it.
package components

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Binaries is the folder of the built programs.
type Binaries string

// Path is where a program is, by the name its users know it by.
func (b Binaries) Path(program string) string { return filepath.Join(string(b), program) }

// module is one nested module and how it is built.
type module struct {
	folder string
	tags   string
	// stamps are -X settings: package path to a go.mod entry whose version is
	// put there, or to a literal when it starts with "=".
	stamps map[string]string
	// renames are programs whose package is not named as they are.
	renames map[string]string
	// tests are programs made of the tests of a package, by the name they get.
	tests map[string]string
}

const kubernetesVersion = "k8s.io/component-base/version"

var kubernetesStamps = map[string]string{
	kubernetesVersion + ".gitVersion":   "k8s.io/kubernetes",
	kubernetesVersion + ".gitMajor":     "=1",
	kubernetesVersion + ".gitMinor":     "=36",
	kubernetesVersion + ".gitTreeState": "=clean",
}

var modules = []module{
	{folder: "kubernetes", stamps: kubernetesStamps, renames: map[string]string{"server": "etcd"}},
	{
		folder: "containerd",
		// File systems that need C libraries or device-mapper.
		tags: "no_btrfs,no_devmapper,no_zfs",
		stamps: map[string]string{
			"github.com/containerd/containerd/v2/version.Version": "github.com/containerd/containerd/v2",
		},
	},
	{folder: "localpath"},
	{
		folder: "coredns",
		stamps: map[string]string{"github.com/coredns/coredns/coremain.CoreVersion": "github.com/coredns/coredns"},
	},
}

// liqoModules are not part of the lab: only the suite that runs Liqo builds them.
var liqoModules = []module{
	{
		folder: "liqo",
		stamps: map[string]string{
			"github.com/liqotech/liqo/pkg/liqoctl/version.LiqoctlVersion": "github.com/liqotech/liqo",
		},
	},
}

// e2eModules are Kubernetes' own end-to-end tests and what they run.
var e2eModules = []module{
	{folder: "e2e", stamps: kubernetesStamps, tests: map[string]string{"e2e.test": "k8s.io/kubernetes/test/e2e"}},
}

// kwokModules play nodes without a kubelet: the fabric is raced on them.
var kwokModules = []module{{folder: "kwok"}}

// Build returns the programs of the lab, building what the cache does not have.
func Build(ctx context.Context, progress io.Writer) (Binaries, error) {
	return build(ctx, modules, progress)
}

// BuildLiqo returns Liqo's programs, building them unless the cache has them.
func BuildLiqo(ctx context.Context, progress io.Writer) (Binaries, error) {
	return build(ctx, liqoModules, progress)
}

// BuildE2E returns the programs e2e.test, ginkgo, agnhost and nonewprivs, building them
// unless the cache has them.
func BuildE2E(ctx context.Context, progress io.Writer) (Binaries, error) {
	return build(ctx, e2eModules, progress)
}

// BuildKwok returns the program kwok, building it unless the cache has it.
func BuildKwok(ctx context.Context, progress io.Writer) (Binaries, error) {
	return build(ctx, kwokModules, progress)
}

func build(ctx context.Context, modules []module, progress io.Writer) (Binaries, error) {
	root, err := ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	key, err := cacheKey(root, modules)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache: %w", err)
	}
	dir := filepath.Join(cache, "liqo-csi-lab", key)
	binaries := Binaries(filepath.Join(dir, "bin"))
	if _, err := os.Stat(string(binaries)); err == nil {
		return binaries, nil
	}

	// Built aside and renamed, so that a folder of that name is always whole.
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("create the cache: %w", err)
	}
	aside, err := os.MkdirTemp(filepath.Dir(dir), "building-")
	if err != nil {
		return "", fmt.Errorf("create the cache: %w", err)
	}
	defer os.RemoveAll(aside)
	for _, module := range modules {
		if err := module.build(ctx, root, filepath.Join(aside, "bin"), progress); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(aside, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(aside, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("put the programs into the cache: %w", err)
	}
	return binaries, nil
}

func (m module) dir(root string) string { return filepath.Join(root, "components", m.folder) }

func (m module) build(ctx context.Context, root, out string, progress io.Writer) error {
	start := time.Now()
	fmt.Fprintf(progress, "building %s (the first time takes minutes)\n", m.folder)
	flags, err := m.linkerFlags(root)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("build %s: %w", m.folder, err)
	}
	done := reportBuild(progress, m.folder)
	err = m.compile(ctx, root, out, flags)
	done()
	if err != nil {
		return fmt.Errorf("build %s: %w", m.folder, err)
	}
	for from, to := range m.renames {
		if err := os.Rename(filepath.Join(out, from), filepath.Join(out, to)); err != nil {
			return fmt.Errorf("build %s: %w", m.folder, err)
		}
	}
	fmt.Fprintf(progress, "built %s in %s\n", m.folder, time.Since(start).Round(time.Second))
	return nil
}

func (m module) compile(ctx context.Context, root, out, linkerFlags string) error {
	flags := []string{"-trimpath", "-tags", m.tags, "-ldflags", linkerFlags}
	tools := slices.Concat([]string{"build"}, flags, []string{"-o", out + "/", "tool"})
	if err := runBuild(goCommand(ctx, m.dir(root), tools...)); err != nil {
		return err
	}
	for _, program := range sortedKeys(m.tests) {
		// Vetting what others wrote would take longer than compiling it.
		test := slices.Concat([]string{"test", "-c", "-vet=off"}, flags, []string{"-o", filepath.Join(out, program), m.tests[program]})
		if err := runBuild(goCommand(ctx, m.dir(root), test...)); err != nil {
			return err
		}
	}
	return nil
}

func (m module) linkerFlags(root string) (string, error) {
	flags := []string{"-s", "-w"}
	for _, name := range sortedKeys(m.stamps) {
		value, literal := strings.CutPrefix(m.stamps[name], "=")
		if !literal {
			version, err := moduleVersion(filepath.Join(m.dir(root), "go.mod"), value)
			if err != nil {
				return "", err
			}
			value = version
		}
		flags = append(flags, "-X", name+"="+value)
	}
	return strings.Join(flags, " "), nil
}

// cacheKey changes with anything that changes the programs: what is pinned, how
// it is built and by which compiler.
func cacheKey(root string, modules []module) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version(), runtime.GOARCH)
	for _, module := range modules {
		flags, err := module.linkerFlags(root)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(hash, module.folder, module.tags, flags)
		code, _ := filepath.Glob(filepath.Join(module.dir(root), "*.go")) // sorted
		for _, file := range append([]string{filepath.Join(module.dir(root), "go.mod"), filepath.Join(module.dir(root), "go.sum")}, code...) {
			content, err := os.ReadFile(file)
			if err != nil {
				return "", fmt.Errorf("read what %s pins: %w", module.folder, err)
			}
			hash.Write(content)
		}
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:8]), nil
}

// Tool is the one program of a module that nothing of the lab runs, such as Helm. The cache keeps it
// under a name made of what it is built from.
func Tool(ctx context.Context, folder, pkg string) (program string, err error) {
	root, err := ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "components", folder)
	pins, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		return "", fmt.Errorf("read what %s is built from: %w", pkg, err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache: %w", err)
	}
	key := sha256.Sum256(append(pins, runtime.Version()...))
	program = filepath.Join(cache, "liqo-csi-lab", fmt.Sprintf("%s-%x", path.Base(pkg), key[:8]))
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return "", fmt.Errorf("create the cache: %w", err)
	}
	// Built aside, so that a program of that name is always whole.
	aside := fmt.Sprintf("%s.%d", program, os.Getpid())
	if err := GoBuild(ctx, module, pkg, aside); err != nil {
		return "", err
	}
	if err := os.Rename(aside, program); err != nil {
		return "", fmt.Errorf("put %s into the cache: %w", path.Base(pkg), err)
	}
	return program, nil
}

// GoBuild builds one more program from a package of a module: dir is the
// module's folder, out the file to write.
func GoBuild(ctx context.Context, dir, pkg, out string) error {
	defer reportBuild(os.Stderr, pkg)()
	if err := runBuild(goCommand(ctx, dir, "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	return nil
}

// ModuleRoot is the folder of the module that runs, sanity-tests: the working
// directory of `go run` and `go test` lies inside it.
func ModuleRoot(ctx context.Context) (string, error) {
	out, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Path}} {{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module sanity-tests (run from inside it): %w", err)
	}
	path, dir, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if path != "storage.liqo.io/sanity-tests" {
		return "", fmt.Errorf("run from inside the module sanity-tests, not from %s", path)
	}
	return dir, nil
}

// goCommand runs Go without C (the programs are copied into images that have no
// C library) and without a workspace.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	return cmd
}

func runBuild(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	last := bytes.Join(lines[max(0, len(lines)-20):], []byte("\n"))
	return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, last)
}

func reportBuild(progress io.Writer, what string) (stop func()) {
	start := time.Now()
	return ReportEvery(15*time.Second, func() {
		fmt.Fprintf(progress, "building %s: %s so far\n", what, time.Since(start).Round(time.Second))
	})
}

// ReportEvery calls report again and again until it is stopped: whoever waits for
// something that takes minutes is to see that it goes on.
func ReportEvery(interval time.Duration, report func()) (stop func()) {
	ticker, done := time.NewTicker(interval), make(chan struct{})
	go func() {
		for {
			select {
			case <-ticker.C:
				report()
			case <-done:
				return
			}
		}
	}()
	return func() { ticker.Stop(); close(done) }
}
