// Package components builds the programs of the lab. Nested modules (kubernetes, containerd,
// localpath, coredns; liqo, e2e and kwok for some tests) pin them in their `tool` lines, and have
// hardly any code. Programs are kept in the user's cache under a hash of their inputs, which clones
// of the repository share.
package components

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
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

// Path returns the path of a program.
func (b Binaries) Path(program string) string { return filepath.Join(string(b), program) }

// module is a nested module and how it is built.
type module struct {
	folder string
	tags   string
	// stamps are -X settings: variable to the path of a module, whose version is set, or to "="
	// and a literal.
	stamps map[string]string
	// renames maps names of packages to those of their programs.
	renames map[string]string
	// tests maps names of test programs to packages.
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
		// These snapshotters need C libraries or device-mapper.
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

// liqoModules are built by the suite liqo only.
var liqoModules = []module{
	{
		folder: "liqo",
		stamps: map[string]string{
			"github.com/liqotech/liqo/pkg/liqoctl/version.LiqoctlVersion": "github.com/liqotech/liqo",
		},
	},
}

// e2eModules are Kubernetes' own end-to-end tests and their programs.
var e2eModules = []module{
	{folder: "e2e", stamps: kubernetesStamps, tests: map[string]string{"e2e.test": "k8s.io/kubernetes/test/e2e"}},
}

// kwokModules simulate nodes without a kubelet for benchmarks of the fabric.
var kwokModules = []module{{folder: "kwok"}}

// Build returns the programs of the lab, and builds them if the cache does not have them.
func Build(ctx context.Context, progress io.Writer) (Binaries, error) {
	return build(ctx, modules, progress)
}

// BuildLiqo does the same for Liqo's programs.
func BuildLiqo(ctx context.Context, progress io.Writer) (Binaries, error) {
	return build(ctx, liqoModules, progress)
}

// BuildE2E does the same for e2e.test, ginkgo, agnhost and nonewprivs.
func BuildE2E(ctx context.Context, progress io.Writer) (Binaries, error) {
	return build(ctx, e2eModules, progress)
}

// BuildKwok does the same for kwok.
func BuildKwok(ctx context.Context, progress io.Writer) (Binaries, error) {
	return build(ctx, kwokModules, progress)
}

// KwokStages returns the files by which kwok makes nodes ready at once, keeps their leases, and
// starts and deletes pods at once. kwok exits without them.
func KwokStages(ctx context.Context) ([]string, error) {
	root, err := ModuleRoot(ctx)
	if err != nil {
		return nil, err
	}
	out, err := goCommand(ctx, kwokModules[0].dir(root), "mod", "download", "-json", "sigs.k8s.io/kwok").Output()
	if err != nil {
		return nil, fmt.Errorf("download the module of kwok: %w", err)
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(out, &downloaded); err != nil {
		return nil, fmt.Errorf("read the folder of kwok's module: %w", err)
	}
	files := []string{
		"node/fast/node-initialize.yaml", "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
		"pod/fast/pod-ready.yaml", "pod/fast/pod-complete.yaml", "pod/fast/pod-delete.yaml",
	}
	for i, file := range files {
		files[i] = filepath.Join(downloaded.Dir, "kustomize", "stage", file)
	}
	return files, nil
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

	// Built in a temporary folder and renamed, so that a folder of that name is always complete.
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("create the cache: %w", err)
	}
	temporary, err := os.MkdirTemp(filepath.Dir(dir), "building-")
	if err != nil {
		return "", fmt.Errorf("create the cache: %w", err)
	}
	defer os.RemoveAll(temporary)
	for _, module := range modules {
		if err := module.build(ctx, root, filepath.Join(temporary, "bin"), progress); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(temporary, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(temporary, dir); err != nil && !errors.Is(err, fs.ErrExist) {
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
	stop := reportBuild(progress, m.folder)
	err = m.compile(ctx, root, out, flags)
	stop()
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
		// vet would take longer than the compilation.
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

// cacheKey is a hash of everything that determines the programs: pins, flags, code and compiler.
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
				return "", fmt.Errorf("read the module %s: %w", module.folder, err)
			}
			hash.Write(content)
		}
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:8]), nil
}

// Tool returns a program of a module that is not part of the lab, such as Helm, and builds it if the
// cache does not have it.
func Tool(ctx context.Context, folder, pkg string) (program string, err error) {
	root, err := ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "components", folder)
	pins, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		return "", fmt.Errorf("read the pins of %s: %w", pkg, err)
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
	// Built under another name, so that a program of that name is always complete.
	temporary := fmt.Sprintf("%s.%d", program, os.Getpid())
	if err := GoBuild(ctx, module, pkg, temporary); err != nil {
		return "", err
	}
	if err := os.Rename(temporary, program); err != nil {
		return "", fmt.Errorf("put %s into the cache: %w", path.Base(pkg), err)
	}
	return program, nil
}

// GoBuild builds a program from a package of the module in dir, and writes it to out.
func GoBuild(ctx context.Context, dir, pkg, out string) error {
	defer reportBuild(os.Stderr, pkg)()
	if err := runBuild(goCommand(ctx, dir, "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	return nil
}

// ModuleRoot returns the folder of the module sanity-tests. The working directory must be inside it,
// as it is with `go run` and `go test`.
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

// goCommand runs Go without cgo, because the images have no C library, and without a workspace.
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

// ReportEvery calls report at this interval until stop is called, to show progress of long steps.
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
