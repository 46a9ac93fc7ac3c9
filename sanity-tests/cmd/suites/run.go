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
	// mostRed is how many red tests a run has at most: it is red already, and whoever
	// waits for it wants to know.
	mostRed = 3
	// mostOfASuite is the time of a suite together with its tests that are run again.
	mostOfASuite = 59 * time.Minute
	// timeAfterBudget is what the suite has that runs when the budget is used up. It leaves some
	// minutes of CI's 90 for the lab to be taken down.
	timeAfterBudget = 20 * time.Minute
)

// runner runs suites one after the other and keeps what they did.
type runner struct {
	out     io.Writer
	root    string // of the repository
	began   time.Time
	budget  time.Duration // after which nothing new begins; 0: none
	isRoot  bool
	commits int // in the history; 0: unknown

	// lab runs a verb of the lab's command.
	lab func(ctx context.Context, arguments ...string) error
	// labIsUp says that there is something to take down, keepLab that it stays nevertheless.
	labIsUp, keepLab bool
	// labIsDirty says that a test failed in the lab since it was last put in order.
	labIsDirty bool
	// labTrouble says why no suite can have the lab any more.
	labTrouble string

	passed, skipped int
	red             []redTest
	redTests        int // as they are run again: a function with three failing rows is one
	flaky           []flakyTest
	known           []flakyTest // the list in the repository
	notRun          []string
	times           []string
}

// redTest is a test, or something else, that makes the run red.
type redTest struct{ name, why, log string }

// trouble makes the run red for something that is not a test.
func (r *runner) trouble(what string, err error) {
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
			r.leaveOut(s.name, "needs root (network namespaces, mounts)")
			continue
		}
		why := r.over(ctx)
		if why == "" && s.needs == sharedLab {
			why = r.haveLab(ctx)
		}
		if why != "" {
			r.leaveOut(s.name, why)
			if r.isLate() {
				late++
			}
			continue
		}
		r.suite(ctx, s)
	}
	if late > 0 {
		r.trouble("the run", fmt.Errorf("it took more than %s, so that %d suites were not run", r.budget, late))
	}
	if ctx.Err() != nil {
		r.trouble("the run", errors.New("it was ended by a signal"))
	}
}

// over says why nothing new begins, if nothing does.
func (r *runner) over(ctx context.Context) string {
	switch {
	case ctx.Err() != nil:
		return "the run was ended by a signal"
	case r.isLate():
		return fmt.Sprintf("the run had taken %s", r.budget)
	case r.redTests >= mostRed:
		return fmt.Sprintf("%d tests were red", r.redTests)
	}
	return ""
}

// untilTheEnd is how long what runs now may take, so that the closing lines come before CI ends the run.
func (r *runner) untilTheEnd() time.Duration {
	if r.budget == 0 {
		return mostOfASuite
	}
	return max(time.Second, r.budget+timeAfterBudget-time.Since(r.began))
}

func (r *runner) isLate() bool { return r.budget > 0 && time.Since(r.began) >= r.budget }

// leaveOut notes something that is not run.
func (r *runner) leaveOut(name, why string) {
	fmt.Fprintf(r.out, "=== %s: not run: %s\n", name, why)
	r.notRun = append(r.notRun, name+": "+why)
	r.skipped++
}

// suite runs one suite, and those of its tests again that failed.
func (r *runner) suite(ctx context.Context, s suite) {
	began := time.Now()
	passed, failed, skipped := r.passed, len(r.red), r.skipped
	got := r.attempt(ctx, s, s.command, min(s.limit, r.untilTheEnd()))
	r.count(got)
	if len(got.failures) > 0 {
		r.labIsDirty = r.labIsDirty || s.needs == sharedLab
		r.evidence(ctx, s, "first")
		r.secondTries(ctx, s, got, began)
	}
	line := fmt.Sprintf("%d passed, %d failed, %d skipped in %s", r.passed-passed, len(r.red)-failed,
		r.skipped-skipped, time.Since(began).Round(time.Second))
	fmt.Fprintf(r.out, "=== %s: %s\n", s.name, line)
	r.times = append(r.times, fmt.Sprintf("%-32s %s", s.name, line))
}

// count adds what passed and was skipped; what becomes of failures is decided later.
func (r *runner) count(got result) {
	r.passed += got.passed
	r.skipped += got.skipped
}

// haveLab has the lab running and in order, or says why it is not.
func (r *runner) haveLab(ctx context.Context) (why string) {
	if r.labTrouble != "" {
		return r.labTrouble
	}
	if err := r.putLabInOrder(ctx); err != nil {
		r.labTrouble = err.Error()
		r.trouble("the lab", err)
	}
	return r.labTrouble
}

// putLabInOrder starts the lab, or takes back what failed tests left in it. A lab of
// ours that cannot be put in order is started anew.
func (r *runner) putLabInOrder(ctx context.Context) error {
	if r.labIsUp && !r.labIsDirty {
		return nil
	}
	if r.labIsUp {
		err := r.lab(ctx, "reset")
		if err == nil || r.keepLab {
			r.labIsDirty = err != nil
			return err
		}
		fmt.Fprintf(r.out, "=== %v; the lab is started anew\n", err)
		if err := r.lab(context.WithoutCancel(ctx), "down"); err != nil {
			return err
		}
	}
	r.labIsUp = true // also after a failed start there is something to take down
	err := r.lab(ctx, "up")
	r.labIsDirty = err != nil
	return err
}

// labDown takes the lab down at the end, whatever happened.
func (r *runner) labDown() {
	if !r.labIsUp || r.keepLab {
		return
	}
	// Not the caller's context: cleaning up is most needed when that is over.
	if err := r.lab(context.Background(), "down"); err != nil {
		r.trouble("the lab", err)
	}
}

// labCommand runs the lab's command from its source.
func (r *runner) labCommand(ctx context.Context, arguments ...string) error {
	limit := 5 * time.Minute
	if arguments[0] == "up" {
		limit = 30 * time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeIsUp)
	defer cancel()
	cmd := group(ctx, append([]string{"go", "run", "./cmd/lab"}, arguments...))
	cmd.Dir = filepath.Join(r.root, "sanity-tests")
	cmd.Env = environment()
	// Not a pipe: what the lab starts may keep it open.
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	if err := runGroup(ctx, cmd); err != nil {
		return fmt.Errorf("lab %s: %w", arguments[0], err)
	}
	return nil
}

// evidence keeps logs and objects of the lab as a failed test left them.
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
		fmt.Fprintf(r.out, "=== %s: logs and objects of the lab could not be kept: %v\n", s.name, err)
		return
	}
	fmt.Fprintf(r.out, "=== %s: logs and objects of the lab are in %s\n", s.name, folder)
}

var notInFileNames = regexp.MustCompile(`[^a-z0-9]+`)

func fileName(suite string) string {
	return strings.Trim(notInFileNames.ReplaceAllString(strings.ToLower(suite), "-"), "-")
}
