package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// failing returns the output of a test function that fails with these words.
func failing(function, words string) string {
	return fmt.Sprintf(`{"Action":"run","Package":"m/p","Test":"%[1]s"}
{"Action":"output","Package":"m/p","Test":"%[1]s","Output":"%[2]s\n"}
{"Action":"fail","Package":"m/p","Test":"%[1]s"}
`, function, words)
}

func passing(function string) string {
	return fmt.Sprintf(`{"Action":"output","Package":"m/p","Test":"%[1]s","Output":"it works\n"}
{"Action":"pass","Package":"m/p","Test":"%[1]s"}
`, function)
}

const packageFails = `{"Action":"fail","Package":"m/p"}`

// prints returns a command that prints this and fails if it contains a failure.
func prints(text string) []string {
	if strings.Contains(text, `"fail"`) {
		return []string{"sh", "-c", `printf '%s\n' "$1"; exit 1`, "sh", text}
	}
	return []string{"printf", `%s\n`, text}
}

// fake returns a suite that prints this, and what each test prints when it is run again.
func fake(name, text string, again map[string]string) suite {
	return suite{name: name, dir: ".", command: prints(text), counter: newGoCounter, limit: time.Minute,
		again: func(key string) []string { return prints(again[key]) }}
}

func TestFailedTestThatPassesOnRetryIsFlaky(t *testing.T) {
	r, out := newRunner(t)
	r.run(t.Context(), []suite{fake("flaky", failing("A", "no answer")+passing("B")+packageFails, map[string]string{"m/p A": passing("A")})})
	r.summary()
	if !r.printTotals() || r.passed != 2 || len(r.flaky) != 1 {
		t.Errorf("%d passed, red %v, flaky %v", r.passed, r.red, r.flaky)
	}
	wantLines(t, out, "FLAKY flaky: p A: its output when it failed", "no answer", "FLAKY flaky: p A: its output when it passed", "it works",
		"FLAKY flaky: p A: failed, and passed when it was run again", "flaky\tp A\t450", "2 passed, 0 failed, 0 skipped")
}

func TestFailedTestThatFailsOnRetryIsRed(t *testing.T) {
	r, out := newRunner(t)
	r.run(t.Context(), []suite{fake("red", failing("A", "no answer")+packageFails, map[string]string{"m/p A": failing("A", "no answer") + packageFails})})
	r.summary()
	if r.printTotals() || len(r.red) != 1 || r.redTests != 1 {
		t.Errorf("red %v", r.red)
	}
	wantLines(t, out, "FAILED red: p A (failed twice)", "     no answer", "0 passed, 1 failed, 0 skipped")
}

// A pattern that selects nothing passes, with go as with cargo.
func TestRetryThatRunsNoTestIsRed(t *testing.T) {
	r, _ := newRunner(t)
	r.run(t.Context(), []suite{fake("red", failing("A", "no answer")+packageFails, map[string]string{"m/p A": passing("Other")})})
	if r.printTotals() || len(r.red) != 1 {
		t.Errorf("red %v", r.red)
	}
}

func TestGoFailuresThatAreNeverRetried(t *testing.T) {
	for _, words := range []string{
		"    a_test.go:3: VIOLATED: the data differ", "panic: nil map", "fatal error: all goroutines are asleep", "WARNING: DATA RACE",
		"thread 'main' panicked at src/main.rs:3",
	} {
		t.Run(words, func(t *testing.T) {
			r, out := newRunner(t)
			r.run(t.Context(), []suite{fake("red", failing("A", words)+packageFails, map[string]string{"m/p A": passing("A")})})
			r.summary()
			if r.printTotals() || len(r.red) != 1 || len(r.flaky) != 0 {
				t.Errorf("red %v, flaky %v", r.red, r.flaky)
			}
			wantLines(t, out, "FAILED red: p A (not run again: ")
		})
	}
	if noRetryOfGo("    a_test.go:3: the pod is not ready") != "" {
		t.Error("a test whose wait timed out is not run again")
	}
}

func TestRustFailuresThatAreNeverRetried(t *testing.T) {
	const failed = "thread 'x' panicked at src/x.rs:3:5:\nno answer"
	for name, log := range map[string]string{
		"placement::moving::tests::model::every_order_ends": failed,
		"reconcile::moves::tests::deaths::moved":            failed,
		"fabric::tests::completes_after_a_crash":            failed,
		"either_side_may_be_killed_at_any_time":             failed,
		"volume::size::tests::sums":                         "Test failed: no.\nminimal failing input: 3\n",
		"twin::tests::create":                               "VIOLATED: two twins",
	} {
		if noRetryOfRust(name, log) == "" {
			t.Errorf("%s would be retried", name)
		}
	}
	if noRetryOfRust("relay::tests::connects", failed) != "" {
		t.Error("a unit test that failed is not run again")
	}
}

func TestMoreThanThreeFailuresAreNotRetried(t *testing.T) {
	again := map[string]string{}
	text := ""
	for _, function := range []string{"A", "B", "C", "D"} {
		text += failing(function, "no answer")
		again["m/p "+function] = passing(function)
	}
	r, out := newRunner(t)
	r.run(t.Context(), []suite{fake("red", text+packageFails, again)})
	r.summary()
	if len(r.red) != 4 || len(r.flaky) != 0 {
		t.Errorf("red %v, flaky %v", r.red, r.flaky)
	}
	wantLines(t, out, "FAILED red: p D (not run again: 4 tests of the suite failed)")
}

// A function with several failing subtests is run again once; legs are run again one by one.
func TestLegsAreRetriedSeparately(t *testing.T) {
	text := `{"Action":"run","Package":"m/p","Test":"A"}
{"Action":"run","Package":"m/p","Test":"A/one_leg"}
{"Action":"fail","Package":"m/p","Test":"A/one_leg/x"}
{"Action":"fail","Package":"m/p","Test":"A/one_leg/y"}
{"Action":"fail","Package":"m/p","Test":"A/one_leg"}
{"Action":"run","Package":"m/p","Test":"A/other"}
{"Action":"fail","Package":"m/p","Test":"A/other"}
{"Action":"fail","Package":"m/p","Test":"A"}
` + packageFails
	for hasLegs, keys := range map[bool][]string{false: {"m/p A"}, true: {"m/p A/one_leg", "m/p A/other"}} {
		s := fake("legs", text, nil)
		s.hasLegs = hasLegs
		r, _ := newRunner(t)
		got := r.attempt(t.Context(), s, s.command, s.limit)
		var tried []string
		for _, try := range retries(s, got.failures) {
			tried = append(tried, try.key)
		}
		if strings.Join(tried, ",") != strings.Join(keys, ",") {
			t.Errorf("with legs %t: %q", hasLegs, tried)
		}
	}
}

func TestCommandsOfRetries(t *testing.T) {
	s := goTest("faults", "sanity-tests", sharedLab, time.Minute, "-parallel=6", "./e2e/faults", "./e2e/move", "-args", "-x")
	for got, want := range map[string]string{
		strings.Join(s.command, " "):                                                                             "go test -json -count=1 -timeout 1m0s -parallel=6 ./e2e/faults ./e2e/move -args -x",
		strings.Join(s.again("m/p A/a_leg_(x)"), " "):                                                            `go test -json -count=1 -timeout 1m0s -parallel=6 -run ^A$/^a_leg_\(x\)$ m/p -args -x`,
		strings.Join(s.rest(earlyEnd{"m/p", []string{"A", "B"}}), " "):                                           `go test -json -count=1 -timeout 1m0s -parallel=6 -skip ^(A|B)$ m/p -args -x`,
		strings.Join(withLegs("-setup", goTest("x", ".", nothing, time.Minute, "./x")).again("m/p A/ext4"), " "): `go test -json -count=1 -timeout 1m0s -run ^A$/^ext4$ m/p -args -setup=ext4`,
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if s.limit != 3*time.Minute {
		t.Errorf("the suite is stopped after %s", s.limit)
	}
}
