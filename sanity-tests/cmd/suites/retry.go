package main

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// maxRetries is how many tests of one suite are retried. If more fail, they are not flaky.
const maxRetries = 3

// Violated marks in the output of a test that an invariant was violated: other data, a leaked
// object, a pod that ran twice, access that was granted. Such a test is not retried.
const Violated = "VIOLATED:"

var (
	goCrash = regexp.MustCompile(`(?m)^\s*(panic|fatal error): |DATA RACE|panicked at `)
	// rustProperty matches what proptest prints about a failing case.
	rustProperty = regexp.MustCompile(`minimal failing input|Test aborted: `)
	// rustModel matches the names of model tests and crash tests, which are randomized or exhaustive.
	rustModel = regexp.MustCompile(`model|propert|proptest|crash|death|dies|dying|killed`)
)

// noRetryOfGo returns why a Go test with this log must not be retried, or "".
func noRetryOfGo(log string) string {
	switch {
	case strings.Contains(log, Violated):
		return "it observed a violated invariant"
	case goCrash.MatchString(log):
		return "a program crashed"
	}
	return ""
}

// noRetryOfRust is the same for a Rust test. Those panic when they fail.
func noRetryOfRust(name, log string) string {
	switch {
	case strings.Contains(log, Violated):
		return "it observed a violated invariant"
	case rustModel.MatchString(name) || rustProperty.MatchString(log):
		return "tests of properties, models and crash points are not retried"
	}
	return ""
}

// retry is a test that is run again, with the failures that this decides.
type retry struct {
	key      string
	failures []failure
	noRetry  string
}

// retries groups failures by what is run again: the leg in suites with legs, otherwise the test
// function.
func retries(s suite, failures []failure) (all []*retry) {
	byKey := map[string]*retry{}
	for _, f := range failures {
		key := f.retry.function
		if s.hasLegs {
			key = cmp.Or(f.retry.leg, key)
		}
		again := byKey[key]
		if again == nil || key == "" {
			again = &retry{key: key}
			byKey[key] = again
			all = append(all, again)
		}
		again.failures = append(again.failures, f)
		again.noRetry = cmp.Or(again.noRetry, f.noRetry)
	}
	return all
}

// retryFailed runs each failed test of a suite again, alone. One that passes is flaky, the others
// are red. At the end it runs the tests that had not started when one hung.
func (r *runner) retryFailed(ctx context.Context, s suite, first result, began time.Time) {
	all := retries(s, first.failures)
	tooMany := ""
	if len(all) > maxRetries {
		tooMany = fmt.Sprintf("not run again: %d tests of the suite failed", len(all))
	}
	red := map[string]bool{} // packages
	failedTwice := false
	for _, again := range all {
		why := tooMany
		if again.noRetry != "" {
			why = "not run again: " + again.noRetry
		}
		if why == "" {
			var tried bool
			if tried, why = r.retry(ctx, s, again, began); tried && why != "" {
				failedTwice = true
			}
		}
		if why == "" {
			continue
		}
		pkg, _, _ := strings.Cut(again.key, " ")
		red[pkg] = true
		r.redTests++
		for _, f := range again.failures {
			r.red = append(r.red, redTest{strings.TrimSuffix(s.name+": "+f.name, ": "), why, f.log})
		}
	}
	if failedTwice {
		r.evidence(ctx, s, "second")
	}
	for _, end := range first.early {
		if red[end.pkg] {
			r.skip(s.name+": what had not started in "+shortPackage(end.pkg), "the test program ended before its tests")
			continue
		}
		r.runRest(ctx, s, end, began)
	}
}

// prepareRetry makes the lab ready for another attempt, or returns why there is none.
func (r *runner) prepareRetry(ctx context.Context, s suite, began time.Time) (left time.Duration, why string) {
	left = min(s.limit, maxSuiteTime-time.Since(began), r.timeLeft())
	switch {
	case s.again == nil:
		return 0, "not run again: the suite has no command for it"
	case r.over(ctx) != "":
		return 0, "not run again: " + r.over(ctx)
	case left <= 0:
		return 0, fmt.Sprintf("not run again: the suite had taken %s", maxSuiteTime)
	}
	if s.needs == sharedLab {
		if why := r.prepareLab(ctx); why != "" {
			return 0, "not run again: " + why
		}
	}
	return left, ""
}

// retry runs a test again and returns why it counts as failed, or "".
func (r *runner) retry(ctx context.Context, s suite, again *retry, began time.Time) (tried bool, why string) {
	left, why := r.prepareRetry(ctx, s, began)
	if why != "" {
		return false, why
	}
	got := r.attempt(ctx, s, s.again(again.key), left)
	if len(got.failures) > 0 || !got.passes[again.key] {
		r.labIsDirty = r.labIsDirty || s.needs == sharedLab
		return true, secondFailure(got)
	}
	r.passed += len(again.failures)
	test := flakyTest{s.name, nameOf(again.key), r.commits}
	r.flaky = append(r.flaky, test)
	fmt.Fprintf(r.out, "=== FLAKY %s: %s: its output when it failed:\n", test.suite, test.name)
	for _, f := range again.failures {
		printIndented(r.out, f.log)
	}
	fmt.Fprintf(r.out, "=== FLAKY %s: %s: its output when it passed:\n", test.suite, test.name)
	printIndented(r.out, got.log)
	return true, ""
}

// secondFailure describes how the retry failed.
func secondFailure(got result) string {
	for _, f := range got.failures {
		if f.noRetry != "" {
			return "failed again: " + f.noRetry
		}
	}
	if len(got.failures) == 0 {
		return "the retry did not run it"
	}
	return "failed twice"
}

// runRest runs the tests of a package that had not started when it was stopped. They are not
// retried.
func (r *runner) runRest(ctx context.Context, s suite, end earlyEnd, began time.Time) {
	name := s.name + ": what had not started in " + shortPackage(end.pkg)
	left, why := r.prepareRetry(ctx, s, began)
	if why != "" {
		r.skip(name, why)
		r.fail(name, fmt.Errorf("it was not run: %s", why))
		return
	}
	got := r.attempt(ctx, s, s.rest(end), left)
	r.count(got)
	red := map[string]bool{}
	for _, f := range got.failures {
		r.labIsDirty = r.labIsDirty || s.needs == sharedLab
		red[f.retry.function] = true
		r.red = append(r.red, redTest{s.name + ": " + f.name, "after a test that did not end", f.log})
	}
	r.redTests += len(red)
}

// nameOf returns a key with a short package name.
func nameOf(key string) string {
	if pkg, test, found := strings.Cut(key, " "); found {
		return shortPackage(pkg) + " " + test
	}
	return key
}
