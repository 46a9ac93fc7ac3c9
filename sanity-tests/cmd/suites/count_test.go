package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

func feed(c counter, ended error, text string) result {
	// In two writes, so that a line is split.
	half := len(text) / 2
	_, _ = c.Write([]byte(text[:half]))
	_, _ = c.Write([]byte(text[half:]))
	return c.result(ended)
}

// want compares the numbers, and the names of the failures.
func want(t *testing.T, got result, passed, skipped int, failures ...string) {
	t.Helper()
	var names []string
	for _, f := range got.failures {
		names = append(names, f.name)
	}
	if got.passed != passed || got.skipped != skipped || !slices.Equal(names, failures) {
		t.Errorf("got %d passed, %d skipped, failed %q; want %d, %d, %q", got.passed, got.skipped, names, passed, skipped, failures)
	}
}

func TestCargoResultLinesAreSummed(t *testing.T) {
	got := feed(newCargoCounter(io.Discard), errors.New("exit status 101"), `running 9 tests
test a ... ok
test one::of::them ... FAILED
test it - should panic ... ok

failures:

---- one::of::them stdout ----

thread 'one::of::them' panicked at src/one.rs:3:5:
no answer

failures:
    one::of::them

test result: FAILED. 8 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out
running 2 tests
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out
`)
	want(t, got, 10, 1, "one::of::them")
	if log := got.failures[0].log; !strings.Contains(log, "no answer") || strings.Contains(log, "failures") {
		t.Errorf("its log: %q", log)
	}
	if !got.passes["a"] || !got.passes["it"] || got.passes["one::of::them"] {
		t.Errorf("passed: %v", got.passes)
	}
}

// The output of a program that crashed does not name a failed test, that of another program may.
func TestCargoProgramThatEndsEarlyIsAFailure(t *testing.T) {
	got := feed(newCargoCounter(io.Discard), errors.New("exit status 101"), `running 2 tests
test a ... FAILED
test result: FAILED. 1 passed; 1 failed; 0 ignored
running 5 tests
test b ... ok
error: test failed, to rerun pass `+"`--test trouble`"+`
`)
	want(t, got, 1, 0, "a", "a test program")
	if got.failures[1].noRetry == "" {
		t.Error("it would be retried")
	}
}

func TestHangingCargoTestIsNamed(t *testing.T) {
	got := feed(newCargoCounter(io.Discard), errTimeout, `running 2 tests
test a has been running for over 60 seconds
test b has been running for over 60 seconds
test b ... ok
`)
	want(t, got, 0, 0, "a (did not end)")
}

func TestFailedCheckShowsTheEndOfItsOutput(t *testing.T) {
	got := feed(newCheckCounter(io.Discard), errors.New("exit status 1"), strings.Repeat("compiling\n", 20)+"error: no such thing\n")
	want(t, got, 0, 0, "")
	if log := got.failures[0].log; !strings.HasSuffix(log, "error: no such thing") {
		t.Errorf("its log: %q", log)
	}
}

func TestGoTestsWithSubtestsAreCountedByLeaves(t *testing.T) {
	got := feed(newGoCounter(io.Discard), errors.New("exit status 1"), `{"Action":"run","Package":"m/p","Test":"A"}
{"Action":"run","Package":"m/p","Test":"A/x"}
{"Action":"output","Package":"m/p","Test":"A/x","Output":"no such thing\n"}
{"Action":"fail","Package":"m/p","Test":"A/x"}
{"Action":"run","Package":"m/p","Test":"A/y"}
{"Action":"pass","Package":"m/p","Test":"A/y"}
{"Action":"fail","Package":"m/p","Test":"A"}
{"Action":"skip","Package":"m/p","Test":"B"}
{"Action":"fail","Package":"m/p"}
`)
	want(t, got, 1, 1, "p A/x")
	if f := got.failures[0]; f.log != "no such thing\n" || f.retry != (candidates{function: "m/p A", leg: "m/p A/x"}) {
		t.Errorf("got %+v", f)
	}
}

// A function that logged something may have failed itself, so its leg alone proves nothing.
func TestGoFunctionThatLogsIsRetriedAsAWhole(t *testing.T) {
	got := feed(newGoCounter(io.Discard), errors.New("exit status 1"), `{"Action":"run","Package":"m/p","Test":"A"}
{"Action":"fail","Package":"m/p","Test":"A/x"}
{"Action":"output","Package":"m/p","Test":"A","Output":"    a_test.go:7: nobody was killed\n"}
{"Action":"fail","Package":"m/p","Test":"A"}
{"Action":"fail","Package":"m/p"}
`)
	want(t, got, 0, 0, "p A/x")
	if f := got.failures[0]; f.retry.leg != "" || f.retry.function != "m/p A" {
		t.Errorf("got %+v", f)
	}
}

func TestGoFunctionMayFailAlthoughItsSubtestsPass(t *testing.T) {
	got := feed(newGoCounter(io.Discard), errors.New("exit status 1"), `{"Action":"run","Package":"m/p","Test":"A"}
{"Action":"pass","Package":"m/p","Test":"A/x"}
{"Action":"fail","Package":"m/p","Test":"A"}
{"Action":"fail","Package":"m/p"}
`)
	want(t, got, 1, 0, "p A")
}

func TestGoPackageThatFailsWithoutAFailedTestIsNamed(t *testing.T) {
	got := feed(newGoCounter(io.Discard), errors.New("exit status 1"), `{"ImportPath":"m/q [m/q.test]","Action":"build-output","Output":"q.go:1: no such thing\n"}
{"ImportPath":"m/q [m/q.test]","Action":"build-fail"}
{"Action":"fail","Package":"m/q","FailedBuild":"m/q [m/q.test]"}
{"Action":"fail","Package":"m/p","Test":"A"}
{"Action":"fail","Package":"m/p"}
{"Action":"pass","Package":"m/r","Test":"A"}
{"Action":"output","Package":"m/r","Output":"cannot remove what the tests share\n"}
{"Action":"fail","Package":"m/r"}
`)
	want(t, got, 1, 0, "p A", "q", "r")
	if f := got.failures[1]; f.noRetry == "" || !strings.Contains(f.log, "no such thing") {
		t.Errorf("got %+v", f)
	}
	if f := got.failures[2]; f.noRetry == "" || !strings.Contains(f.log, "cannot remove") {
		t.Errorf("got %+v", f)
	}
}

// Paused parallel tests have not failed; they have not run.
func TestGoTestsThatRunAtTheTimeoutFail(t *testing.T) {
	var out strings.Builder
	got := feed(newGoCounter(&out), errors.New("exit status 1"), `{"Action":"run","Package":"m/p","Test":"Waits"}
{"Action":"pause","Package":"m/p","Test":"Waits"}
{"Action":"pass","Package":"m/p","Test":"Ends"}
{"Action":"run","Package":"m/p","Test":"Hangs"}
{"Action":"run","Package":"m/p","Test":"Hangs/leg"}
{"Action":"output","Package":"m/p","Test":"Hangs/leg","Output":"waiting for the pod\n"}
{"Action":"output","Package":"m/p","Test":"Hangs/leg","Output":"panic: test timed out after 1s\n"}
{"Action":"output","Package":"m/p","Test":"Hangs/leg","Output":"\trunning tests:\n\n"}
{"Action":"output","Package":"m/p","Test":"Hangs/leg","Output":"goroutine 1 [chan receive]:\nmain.main()\n\n"}
{"Action":"output","Package":"m/p","Test":"Hangs/leg","Output":"goroutine 2 [select]:\nm/p.Hangs()\n\tp_test.go:5\n"}
{"Action":"fail","Package":"m/p"}
`)
	want(t, got, 1, 0, "p Hangs/leg (did not end)")
	f := got.failures[0]
	if f.noRetry != "" || f.log != "waiting for the pod\n" || f.retry != (candidates{function: "m/p Hangs"}) {
		t.Errorf("got %+v", f)
	}
	if len(got.early) != 1 || !slices.Equal(got.early[0].begun, []string{"Ends", "Hangs"}) {
		t.Errorf("started: %+v", got.early)
	}
	log := out.String()
	own, other := strings.Index(log, "goroutine 2"), strings.Index(log, "goroutine 1")
	if !strings.Contains(log, "waiting for the pod") || own < 0 || other < own {
		t.Errorf("the goroutine of the test is missing, or not first:\n%s", log)
	}
}

func TestPrintedGoroutinesAreLimited(t *testing.T) {
	last := crashOutput("panic: test timed out after 1s\n\n" + strings.Repeat("goroutine 1 [select]:\nmain.f()\n\n", 1000))
	if n := strings.Count(last.shortened(), "\n"); n != linesOfGoroutines+1 {
		t.Errorf("%d lines", n)
	}
}

func TestGoProgramThatCrashesIsNotRetried(t *testing.T) {
	got := feed(newGoCounter(io.Discard), errors.New("exit status 1"), `{"Action":"run","Package":"m/p","Test":"A"}
{"Action":"output","Package":"m/p","Test":"A","Output":"panic: nil map\n"}
{"Action":"run","Package":"m/p","Test":"B"}
{"Action":"fail","Package":"m/p","Test":"A"}
{"Action":"fail","Package":"m/p"}
`)
	want(t, got, 0, 0, "p A", "p B (did not end)")
	for _, f := range got.failures {
		if f.noRetry == "" {
			t.Errorf("%s would be retried", f.name)
		}
	}
}
