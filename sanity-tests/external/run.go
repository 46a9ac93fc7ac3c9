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

// skipped are specs that do not fit a cluster that others use at the same time, need
// more than one machine, or are for features behind a gate.
const skipped = `\[Disruptive\]|\[Serial\]|\[Feature:Volumes\]|\[Feature:Windows\]`

// conformance are the specs of the conformance of nodes that do not need a cluster for
// themselves, by their labels.
const conformance = "NodeConformance && !Disruptive && !Serial"

// Options are what one can choose about a run.
type Options struct {
	// Focus is a regular expression for the specs to run, Skip one for those to leave
	// out; empty for all, or none.
	Focus, Skip string
	// Procs is how many specs run side by side.
	Procs int
	// Until is when the run should have ended; specs that still run are interrupted and
	// clean up.
	Until time.Time
}

// Run runs the specs that apply to a class, which the test-driver file describes. An
// error says that the tests could not be run; specs that failed are in the report.
func (s *Suite) Run(ctx context.Context, driver string, options Options) (Report, error) {
	file, err := s.writeDriver(driver)
	if err != nil {
		return Report{}, err
	}
	return s.run(ctx, driver, options.Until,
		[]string{"--procs=" + strconv.Itoa(options.Procs), "--focus=External.Storage.*" + options.Focus, "--skip=" + skipped},
		"--storage.testdriver="+file)
}

// RunNodeConformance runs the specs by which Kubernetes says what a node does for pods.
// The name is that of the run.
func (s *Suite) RunNodeConformance(ctx context.Context, name string, options Options) (Report, error) {
	which := []string{"--procs=" + strconv.Itoa(options.Procs), "--label-filter=" + conformance, "--focus=" + options.Focus}
	if options.Skip != "" {
		which = append(which, "--skip="+options.Skip)
	}
	return s.run(ctx, name, options.Until, which)
}

// run runs those specs that the flags of ginkgo select.
func (s *Suite) run(ctx context.Context, name string, until time.Time, which []string, ofTests ...string) (Report, error) {
	dir := filepath.Join(s.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Report{}, fmt.Errorf("make a folder for the report: %w", err)
	}
	const report = "report.json"
	args := slices.Concat(which, []string{
		"--timeout=" + time.Until(until).Round(time.Second).String(),
		"--no-color", "--silence-skips", "--output-dir=" + dir, "--json-report=" + report,
		s.programs.Path("e2e.test"), "--",
		"--kubeconfig=" + s.cluster.Kubeconfig(), "--kubectl-path=" + s.kubectl, "--provider=skeleton",
		// Or the suite would wait until virtual nodes take all pods.
		"--non-blocking-taints=node-role.kubernetes.io/control-plane,virtual-node.liqo.io/not-allowed",
	}, ofTests)
	cmd := exec.CommandContext(ctx, s.programs.Path("ginkgo"), args...)
	var output bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, s.environment(), &output, &output
	// Interrupted, ginkgo lets specs clean up.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Minute
	ended := cmd.Run()

	read, err := readReport(filepath.Join(dir, report))
	if err == nil && ended != nil && read.Failed() == 0 {
		err = errors.New("it failed without a spec that failed")
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
