package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const (
	// maxRed is the number of red tests after which a run stops.
	maxRed = 3
	// maxSuiteTime limits a suite together with its retries.
	maxSuiteTime = 59 * time.Minute
	// timeAfterBudget is for the suite that is running when the budget is used up. It leaves ten
	// minutes of CI's 90 to take the lab down.
	timeAfterBudget = 20 * time.Minute
)

// runner runs suites sequentially and collects their results.
type runner struct {
	out     io.Writer
	root    string // of the repository
	began   time.Time
	budget  time.Duration // after which no suite starts; 0: unlimited
	isRoot  bool
	commits int // in the history; 0: unknown

	// lab runs cmd/lab.
	lab func(ctx context.Context, arguments ...string) error
	// labIsUp: the lab must be taken down, unless keepLab.
	labIsUp, keepLab bool
	// labIsDirty: a test failed in the lab since its last reset.
	labIsDirty bool
	// labError is why no suite can use the lab any more, or "".
	labError string

	passed, skipped int
	red             []redTest
	redTests        int // counted like retries: a function with three failing subtests is one
	flaky           []flakyTest
	known           []flakyTest // the list in the repository
	notRun          []string
	times           []string
}

// redTest is a test, or something else, that makes the run fail.
type redTest struct{ name, why, log string }

// fail makes the run fail for a reason other than a test.
func (r *runner) fail(what string, err error) {
	fmt.Fprintf(r.out, "=== %s: %v\n", what, err)
	r.red = append(r.red, redTest{name: what, log: err.Error()})
	r.redTests++
}

// run runs the suites in order. The lab is started before the first suite that shares it.
func (r *runner) run(ctx context.Context, todo []suite) {
	if r.root == "" {
		return
	}
	late := 0
	for _, s := range todo {
		if s.needs != nothing && !r.isRoot {
			r.skip(s.name, "needs root (network namespaces, mounts)")
			continue
		}
		why := r.over(ctx)
		if why == "" && s.needs == sharedLab {
			why = r.prepareLab(ctx)
		}
		if why != "" {
			r.skip(s.name, why)
			if r.isLate() {
				late++
			}
			continue
		}
		r.suite(ctx, s)
	}
	if late > 0 {
		r.fail("the run", fmt.Errorf("it took more than %s, so that %d suites were not run", r.budget, late))
	}
	if ctx.Err() != nil {
		r.fail("the run", errors.New("it was stopped by a signal"))
	}
}

// over returns why no further suite starts, or "".
func (r *runner) over(ctx context.Context) string {
	switch {
	case ctx.Err() != nil:
		return "the run was stopped by a signal"
	case r.isLate():
		return fmt.Sprintf("the run had taken %s", r.budget)
	case r.redTests >= maxRed:
		return fmt.Sprintf("%d tests were red", r.redTests)
	}
	return ""
}

// timeLeft is how long a command may take, so that the summary is printed before CI stops the run.
func (r *runner) timeLeft() time.Duration {
	if r.budget == 0 {
		return maxSuiteTime
	}
	return max(time.Second, r.budget+timeAfterBudget-time.Since(r.began))
}

func (r *runner) isLate() bool { return r.budget > 0 && time.Since(r.began) >= r.budget }

// skip records something that is not run.
func (r *runner) skip(name, why string) {
	fmt.Fprintf(r.out, "=== %s: not run: %s\n", name, why)
	r.notRun = append(r.notRun, name+": "+why)
	r.skipped++
}

// suite runs one suite and retries its failed tests.
func (r *runner) suite(ctx context.Context, s suite) {
	began := time.Now()
	passed, failed, skipped := r.passed, len(r.red), r.skipped
	got := r.attempt(ctx, s, s.command, min(s.limit, r.timeLeft()))
	r.count(got)
	if len(got.failures) > 0 {
		r.labIsDirty = r.labIsDirty || s.needs == sharedLab
		r.evidence(ctx, s, "first")
		r.retryFailed(ctx, s, got, began)
	}
	line := fmt.Sprintf("%d passed, %d failed, %d skipped in %s", r.passed-passed, len(r.red)-failed,
		r.skipped-skipped, time.Since(began).Round(time.Second))
	fmt.Fprintf(r.out, "=== %s: %s\n", s.name, line)
	r.times = append(r.times, fmt.Sprintf("%-32s %s", s.name, line))
}

// count adds passed and skipped tests; failures are counted after their retry.
func (r *runner) count(got result) {
	r.passed += got.passed
	r.skipped += got.skipped
}

// prepareLab makes the lab run and clean, or returns why it cannot.
func (r *runner) prepareLab(ctx context.Context) (why string) {
	if r.labError != "" {
		return r.labError
	}
	if err := r.startOrResetLab(ctx); err != nil {
		r.labError = err.Error()
		r.fail("the lab", err)
	}
	return r.labError
}

// startOrResetLab starts the lab, or resets it after failed tests. If the reset fails, it restarts
// the lab, unless the lab was running before.
func (r *runner) startOrResetLab(ctx context.Context) error {
	if r.labIsUp && !r.labIsDirty {
		return nil
	}
	if r.labIsUp {
		err := r.lab(ctx, "reset")
		if err == nil || r.keepLab {
			r.labIsDirty = err != nil
			return err
		}
		fmt.Fprintf(r.out, "=== %v; restarting the lab\n", err)
		if err := r.lab(context.WithoutCancel(ctx), "down"); err != nil {
			return err
		}
	}
	r.labIsUp = true // a failed start must be taken down too
	err := r.lab(ctx, "up", quickNode)
	r.labIsDirty = err != nil
	return err
}

// quickNode makes half of the nodes at home report volumes in use ten times as often as Kubernetes does by default, which
// is most of what a test with an attached volume takes. The others have the default, so that each run has both.
const quickNode = "--home-quick-nodes=1"

// labDown takes the lab down at the end.
func (r *runner) labDown() {
	if !r.labIsUp || r.keepLab {
		return
	}
	// Not the caller's context, which may be cancelled.
	if err := r.lab(context.Background(), "down"); err != nil {
		r.fail("the lab", err)
	}
}

// labCommand runs cmd/lab.
func (r *runner) labCommand(ctx context.Context, arguments ...string) error {
	limit := 5 * time.Minute
	if arguments[0] == "up" {
		limit = 30 * time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	defer cancel()
	cmd := group(ctx, append([]string{"go", "run", "./cmd/lab"}, arguments...))
	cmd.Dir = filepath.Join(r.root, "sanity-tests")
	cmd.Env = environment()
	// Not a pipe, which processes of the lab would keep open.
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	if err := runGroup(ctx, cmd); err != nil {
		return fmt.Errorf("lab %s: %w", arguments[0], err)
	}
	return nil
}

// evidence saves logs and objects of the lab after a failed test.
func (r *runner) evidence(ctx context.Context, s suite, attempt string) {
	if s.needs != sharedLab || ctx.Err() != nil {
		return
	}
	folder := filepath.Join(cmp.Or(os.Getenv("CI_ARTIFACTS"), filepath.Join(r.root, ".lab")), "evidence", fileName(s.name), attempt)
	err := os.RemoveAll(folder) // of an earlier run
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err == nil {
		err = r.lab(ctx, "evidence", folder)
	}
	if err != nil {
		fmt.Fprintf(r.out, "=== %s: logs and objects of the lab could not be saved: %v\n", s.name, err)
		return
	}
	fmt.Fprintf(r.out, "=== %s: logs and objects of the lab are in %s\n", s.name, folder)
}

var notInFileNames = regexp.MustCompile(`[^a-z0-9]+`)

func fileName(suite string) string {
	return strings.Trim(notInFileNames.ReplaceAllString(strings.ToLower(suite), "-"), "-")
}
