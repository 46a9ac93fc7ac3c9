package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// mostSecondTries is how many tests of one suite are run again. Where more fail, it is
// not for bad luck.
const mostSecondTries = 3

// Violated marks, in the output of a test, that it has seen something that must never
// be: other data, an object that leaked, a pod that ran twice, access that was granted.
// That it is not seen a second time does not make it good.
const Violated = "VIOLATED:"

var (
	goCrash = regexp.MustCompile(`(?m)^\s*(panic|fatal error): |DATA RACE|panicked at `)
	// rustProperty is what proptest says of a case that it found.
	rustProperty = regexp.MustCompile(`minimal failing input|Test aborted: `)
	// rustModel are words in the paths of tests that go through what can happen, in an
	// order drawn by chance, or that die between any two steps.
	rustModel = regexp.MustCompile(`model|propert|proptest|crash|death|dies|dying|killed`)
)

// neverOfGo says why a Go test with this log is not run again, if that is so.
func neverOfGo(log string) string {
	switch {
	case strings.Contains(log, Violated):
		return "it observed something that must never be"
	case goCrash.MatchString(log):
		return "a program crashed"
	}
	return ""
}

// neverOfRust says the same of a unit test. Those panic when they fail.
func neverOfRust(name, log string) string {
	switch {
	case strings.Contains(log, Violated):
		return "it observed something that must never be"
	case rustModel.MatchString(name) || rustProperty.MatchString(log):
		return "properties, models and crash points are not tried again"
	}
	return ""
}

// secondTry is what is run again, with the failures that are decided by it.
type secondTry struct {
	key      string
	failures []failure
	never    string
}

// secondTries groups failures by what is run again: the leg in suites that have legs,
// else the test function.
func secondTries(s suite, failures []failure) (tries []*secondTry) {
	byKey := map[string]*secondTry{}
	for _, f := range failures {
		key := f.again.function
		if s.hasLegs {
			key = cmp.Or(f.again.leg, key)
		}
		try := byKey[key]
		if try == nil || key == "" {
			try = &secondTry{key: key}
			byKey[key] = try
			tries = append(tries, try)
		}
		try.failures = append(try.failures, f)
		try.never = cmp.Or(try.never, f.never)
	}
	return tries
}

// secondTries runs each failed test of a suite once more, alone. One that passes then is
// flaky, every other is red. At the end comes what had not begun when a test hung.
func (r *runner) secondTries(ctx context.Context, s suite, first result, began time.Time) {
	tries := secondTries(s, first.failures)
	tooMany := ""
	if len(tries) > mostSecondTries {
		tooMany = fmt.Sprintf("not run again: %d tests of the suite failed", len(tries))
	}
	red := map[string]bool{} // packages
	failedTwice := false
	for _, try := range tries {
		why := tooMany
		if try.never != "" {
			why = "not run again: " + try.never
		}
		if why == "" {
			var tried bool
			if tried, why = r.try(ctx, s, try, began); tried && why != "" {
				failedTwice = true
			}
		}
		if why == "" {
			continue
		}
		pkg, _, _ := strings.Cut(try.key, " ")
		red[pkg] = true
		r.redTests++
		for _, f := range try.failures {
			r.red = append(r.red, redTest{strings.TrimSuffix(s.name+": "+f.name, ": "), why, f.log})
		}
	}
	if failedTwice {
		r.evidence(ctx, s, "second")
	}
	for _, end := range first.early {
		if red[end.pkg] {
			r.leaveOut(s.name+": what had not begun in "+shortPackage(end.pkg), "the test program ended before its tests")
			continue
		}
		r.rest(ctx, s, end, began)
	}
}

// mayTry has everything ready for another attempt, or says why there is none.
func (r *runner) mayTry(ctx context.Context, s suite, began time.Time) (left time.Duration, why string) {
	left = min(s.limit, mostOfASuite-time.Since(began), r.untilTheEnd())
	switch {
	case s.again == nil:
		return 0, "not run again: the suite has no command for that"
	case r.over(ctx) != "":
		return 0, "not run again: " + r.over(ctx)
	case left <= 0:
		return 0, fmt.Sprintf("not run again: the suite had taken %s", mostOfASuite)
	}
	if s.needs == sharedLab {
		if why := r.haveLab(ctx); why != "" {
			return 0, "not run again: " + why
		}
	}
	return left, ""
}

// try runs a test again and says why it counts as failed, if it does.
func (r *runner) try(ctx context.Context, s suite, try *secondTry, began time.Time) (tried bool, why string) {
	left, why := r.mayTry(ctx, s, began)
	if why != "" {
		return false, why
	}
	got := r.attempt(ctx, s, s.again(try.key), left)
	if len(got.failures) > 0 || !got.passes[try.key] {
		r.labIsDirty = r.labIsDirty || s.needs == sharedLab
		return true, secondFailure(try, got)
	}
	r.passed += len(try.failures)
	test := flakyTest{s.name, nameOf(try.key), r.commits}
	r.flaky = append(r.flaky, test)
	fmt.Fprintf(r.out, "=== FLAKY %s: %s: what it said when it failed:\n", test.suite, test.name)
	for _, f := range try.failures {
		printIndented(r.out, f.log)
	}
	fmt.Fprintf(r.out, "=== FLAKY %s: %s: what it said when it passed:\n", test.suite, test.name)
	printIndented(r.out, got.log)
	return true, ""
}

// secondFailure says how the second try ended.
func secondFailure(try *secondTry, got result) string {
	for _, f := range got.failures {
		if f.never != "" {
			return "failed again: " + f.never
		}
	}
	if len(got.failures) == 0 {
		return "when it was to be run again, it was not"
	}
	return "failed twice"
}

// rest runs the tests of a package that had not begun when it was stopped. Those that
// fail are red: that a test may fail once is for those that had their turn.
func (r *runner) rest(ctx context.Context, s suite, end earlyEnd, began time.Time) {
	name := s.name + ": what had not begun in " + shortPackage(end.pkg)
	left, why := r.mayTry(ctx, s, began)
	if why != "" {
		r.leaveOut(name, why)
		r.trouble(name, fmt.Errorf("it was not run: %s", why))
		return
	}
	got := r.attempt(ctx, s, s.rest(end), left)
	r.count(got)
	red := map[string]bool{}
	for _, f := range got.failures {
		r.labIsDirty = r.labIsDirty || s.needs == sharedLab
		red[f.again.function] = true
		r.red = append(r.red, redTest{s.name + ": " + f.name, "after a test that did not end", f.log})
	}
	r.redTests += len(slices.Collect(maps.Keys(red)))
}

// nameOf is a key as people read it.
func nameOf(key string) string {
	if pkg, test, found := strings.Cut(key, " "); found {
		return shortPackage(pkg) + " " + test
	}
	return key
}
