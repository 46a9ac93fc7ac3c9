package external

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// skipped are specs that disturb other tests in the cluster, need several machines, or need a
// feature gate.
const skipped = `\[Disruptive\]|\[Serial\]|\[Feature:Volumes\]|\[Feature:Windows\]`

// conformance selects, by their labels, the node conformance specs that do not need the cluster for
// themselves.
const conformance = "NodeConformance && !Disruptive && !Serial"

// Options of a run.
type Options struct {
	// Focus is a regular expression for the specs to run, Skip one for those to leave
	// out; empty for all, or none.
	Focus, Skip string
	// Procs is the number of specs that run in parallel.
	Procs int
	// Until is the deadline, at which specs are interrupted and clean up.
	Until time.Time
}

// Run runs the specs that apply to a class, which the test-driver file describes. An error means
// that the tests could not be run; failed specs are in the report.
func (s *Suite) Run(ctx context.Context, driver string, options Options) (Report, error) {
	file, err := s.writeDriver(driver)
	if err != nil {
		return Report{}, err
	}
	return s.run(ctx, driver, options.Until,
		[]string{"--procs=" + strconv.Itoa(options.Procs), "--focus=External.Storage.*" + options.Focus, "--skip=" + skipped},
		"--storage.testdriver="+file)
}

// RunNodeConformance runs the node conformance specs of Kubernetes. name is the name of the run.
func (s *Suite) RunNodeConformance(ctx context.Context, name string, options Options) (Report, error) {
	which := []string{"--procs=" + strconv.Itoa(options.Procs), "--label-filter=" + conformance, "--focus=" + options.Focus}
	if options.Skip != "" {
		which = append(which, "--skip="+options.Skip)
	}
	return s.run(ctx, name, options.Until, which)
}

// run runs the specs that these flags of ginkgo select.
func (s *Suite) run(ctx context.Context, name string, until time.Time, which []string, ofTests ...string) (Report, error) {
	dir := filepath.Join(s.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Report{}, fmt.Errorf("create a folder for the report: %w", err)
	}
	const report = "report.json"
	args := slices.Concat(which, []string{
		"--timeout=" + time.Until(until).Round(time.Second).String(),
		"--no-color", "--silence-skips", "--output-dir=" + dir, "--json-report=" + report,
		s.programs.Path("e2e.test"), "--",
		"--kubeconfig=" + s.cluster.Kubeconfig(), "--kubectl-path=" + s.kubectl, "--provider=skeleton",
		// Otherwise the suite would wait until virtual nodes accept all pods.
		"--non-blocking-taints=node-role.kubernetes.io/control-plane,virtual-node.liqo.io/not-allowed",
	}, ofTests)
	cmd := exec.CommandContext(ctx, s.programs.Path("ginkgo"), args...)
	var output bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, s.environment(), &output, &output
	// When ginkgo is interrupted, it lets specs clean up.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Minute
	ended := cmd.Run()

	read, err := readReport(filepath.Join(dir, report))
	if err == nil && ended != nil && read.Failed() == 0 {
		err = errors.New("the run failed without a failed spec")
	}
	if err != nil {
		return read, fmt.Errorf("run %s: %w\n%s", name, errors.Join(ended, err), tail(output.Bytes()))
	}
	return read, nil
}

func tail(output []byte) []byte {
	lines := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-60):], []byte("\n"))
}
