package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func newRunner(t *testing.T) (*runner, *output) {
	out := &output{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out.String())
		}
	})
	return &runner{out: out, root: t.TempDir(), began: time.Now(), commits: 450}, out
}

// wantLines checks that the output has lines with these parts, in this order.
func wantLines(t *testing.T, out *output, parts ...string) {
	t.Helper()
	rest := out.String()
	for _, part := range parts {
		_, after, found := strings.Cut(rest, part)
		if !found {
			t.Errorf("the output does not have %q, or not after the others", part)
			return
		}
		_, rest, _ = strings.Cut(after, "\n")
	}
}

func wantNone(t *testing.T, out *output, part string) {
	t.Helper()
	if strings.Contains(out.String(), part) {
		t.Errorf("the output has %q", part)
	}
}

func TestSuiteThatFailsWithoutAFailingTestCountsAsOneFailure(t *testing.T) {
	r, out := newRunner(t)
	r.run(t.Context(), []suite{{name: "broken", dir: ".", command: []string{"false"}, counter: newCargoCounter, limit: time.Minute}})
	r.summary()
	if r.printTotals() || len(r.red) != 1 || r.passed != 0 {
		t.Errorf("got %+v, want one failure", r.red)
	}
	wantLines(t, out, "FAILED broken (not run again: ", "exit status 1", "0 passed, 1 failed, 0 skipped")
}

func TestSuiteIsStoppedAtItsLimit(t *testing.T) {
	r, out := newRunner(t)
	r.run(t.Context(), []suite{{name: "endless", dir: ".", command: []string{"sleep", "600"}, counter: newCheckCounter, limit: 100 * time.Millisecond}})
	r.summary()
	if r.printTotals() || len(r.red) != 1 {
		t.Errorf("got %+v, want one failure", r.red)
	}
	wantLines(t, out, "stopped after 100ms", "FAILED endless")
}

// ok and bad return suites with one check.
func ok(name string) suite  { return check(name, nothing, "true") }
func bad(name string) suite { return check(name, nothing, "false") }

func TestNoSuiteStartsAfterTheThirdRedTest(t *testing.T) {
	r, out := newRunner(t)
	r.run(t.Context(), []suite{ok("a"), bad("b"), bad("c"), ok("d"), bad("e"), ok("f"), ok("g")})
	r.summary()
	r.printTotals()
	wantLines(t, out, "FAILED b", "FAILED c", "FAILED e", "NOT RUN f: 3 tests were red", "NOT RUN g: 3 tests were red", "2 passed, 3 failed, 2 skipped")
}

func TestNoSuiteStartsAfterTheTimeLimit(t *testing.T) {
	r, out := newRunner(t)
	r.budget = time.Hour
	slow := ok("slow")
	slow.counter = func(out io.Writer) counter {
		r.began = r.began.Add(-time.Hour) // as if it took that long
		return newCheckCounter(out)
	}
	r.run(t.Context(), []suite{slow, ok("late")})
	r.summary()
	if r.printTotals() {
		t.Error("a run that skipped a suite has passed")
	}
	wantLines(t, out, "FAILED the run", "1 suites were not run", "NOT RUN late: the run had taken 1h0m0s", "1 passed, 1 failed, 1 skipped")
}

func TestFailureAtTheTimeLimitIsNotRetried(t *testing.T) {
	r, out := newRunner(t)
	r.budget, r.began = time.Hour, time.Now().Add(-2*time.Hour)
	r.suite(t.Context(), fake("late", failing("A", "no answer")+packageFails, map[string]string{"m/p A": passing("A")}))
	r.summary()
	if r.printTotals() {
		t.Error("the run passed")
	}
	wantLines(t, out, "FAILED late: p A (not run again: the run had taken 1h0m0s)")
}

func TestSummaryIsPrintedAfterASignal(t *testing.T) {
	r, out := newRunner(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	r.run(ctx, []suite{ok("a"), check("endless", nothing, "sleep", "600"), ok("b")})
	r.summary()
	r.printTotals()
	wantLines(t, out, "FAILED endless", "FAILED the run", "stopped by a signal", "NOT RUN b: the run was stopped by a signal", "1 passed, 2 failed, 1 skipped")
}

// fakeLab records the commands of the lab; those in fails fail.
func fakeLab(r *runner, fails ...string) (commands *[]string) {
	commands = &[]string{}
	r.isRoot = true
	r.lab = func(_ context.Context, arguments ...string) error {
		*commands = append(*commands, arguments[0])
		if slices.Contains(fails, arguments[0]) {
			return errors.New("lab " + arguments[0] + ": exit status 1")
		}
		return nil
	}
	return commands
}

func inLab(s suite) suite {
	s.needs = sharedLab
	return s
}

func TestLabThatDoesNotStartSkipsOnlyItsSuites(t *testing.T) {
	r, out := newRunner(t)
	commands := fakeLab(r, "up")
	r.run(t.Context(), []suite{ok("a"), inLab(ok("b")), ok("c"), inLab(ok("d"))})
	r.labDown()
	r.summary()
	if r.printTotals() || !slices.Equal(*commands, []string{"up", "down"}) {
		t.Errorf("commands of the lab: %v", *commands)
	}
	wantLines(t, out, "FAILED the lab", "lab up: exit status 1", "NOT RUN b: lab up: exit status 1", "NOT RUN d: ", "2 passed, 1 failed, 2 skipped")
}

// Evidence is saved before the reset, and the reset comes before the retry.
func TestLabIsResetAfterAFailure(t *testing.T) {
	t.Setenv("CI_ARTIFACTS", t.TempDir())
	flaky := inLab(fake("Some, flaky", failing("A", "no answer")+packageFails, map[string]string{"m/p A": passing("A")}))
	red := inLab(fake("red", failing("A", "no answer")+packageFails, map[string]string{"m/p A": failing("A", "no answer") + packageFails}))
	for _, test := range []struct {
		name     string
		suites   []suite
		fails    []string
		commands []string
		flaky    int
		redOnes  int
	}{
		{"a flaky test", []suite{flaky, inLab(ok("next"))}, nil, []string{"up", "evidence", "reset"}, 1, 0},
		{"a red test", []suite{red, inLab(ok("next"))}, nil, []string{"up", "evidence", "reset", "evidence", "reset"}, 0, 1},
		{"the lab cannot be put in order", []suite{flaky}, []string{"reset"}, []string{"up", "evidence", "reset", "down", "up"}, 1, 0},
		{"evidence cannot be had", []suite{flaky}, []string{"evidence"}, []string{"up", "evidence", "reset"}, 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, _ := newRunner(t)
			commands := fakeLab(r, test.fails...)
			r.run(t.Context(), test.suites)
			if !slices.Equal(*commands, test.commands) || len(r.flaky) != test.flaky || len(r.red) != test.redOnes {
				t.Errorf("commands of the lab: %v, want %v; flaky %v, red %v", *commands, test.commands, r.flaky, r.red)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(os.Getenv("CI_ARTIFACTS"), "evidence", "some-flaky", "first")); err != nil {
		t.Error(err)
	}
}

// A lab that was running before is not taken down.
func TestLabThatWasRunningBeforeIsKept(t *testing.T) {
	r, out := newRunner(t)
	commands := fakeLab(r, "reset")
	r.labIsUp, r.keepLab = true, true
	r.run(t.Context(), []suite{inLab(bad("red")), inLab(ok("next"))})
	r.labDown()
	r.summary()
	if !slices.Equal(*commands, []string{"evidence", "reset"}) {
		t.Errorf("commands of the lab: %v", *commands)
	}
	wantLines(t, out, "NOT RUN next: lab reset: exit status 1")
}

func TestSuitesThatNeedRootAreSkippedWithoutRoot(t *testing.T) {
	r, out := newRunner(t)
	r.run(t.Context(), []suite{ok("a"), inLab(ok("b"))})
	r.summary()
	if !r.printTotals() {
		t.Error("the run failed")
	}
	wantLines(t, out, "NOT RUN b: needs root", "1 passed, 0 failed, 1 skipped")
}
