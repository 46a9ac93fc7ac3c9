package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// goCounter reads `go test -json`. It counts tests without subtests, prints a line for each that
// ends, and the whole output of those that failed. The output of a test program that ended before
// its tests is printed last: go reports nothing about the tests that were running.
type goCounter struct {
	lines
	out      io.Writer
	packages map[string]*goPackage
	builds   map[string]*strings.Builder // output of compilers, by package
	log      strings.Builder
}

type goPackage struct {
	name   string
	tests  map[string]*goCase // "" is for output outside of tests
	failed bool
	build  string // the build that failed, if one did
}

type goCase struct {
	state  string // its last action: run, pause, cont, pass, skip, fail
	output strings.Builder
}

type goEvent struct {
	Action, Package, Test, Output string
	ImportPath, FailedBuild       string
	Elapsed                       float64
}

func newGoCounter(out io.Writer) counter {
	c := &goCounter{out: out, packages: map[string]*goPackage{}, builds: map[string]*strings.Builder{}}
	c.each = c.line
	return c
}

// readsErrors: go may write to stderr in the middle of a line of stdout.
func (*goCounter) readsErrors() bool { return false }

func (c *goCounter) line(line []byte) {
	var e goEvent
	if json.Unmarshal(line, &e) != nil {
		fmt.Fprintf(c.out, "%s\n", line) // from the go command itself
		return
	}
	c.log.WriteString(e.Output)
	if e.Action == "build-output" {
		fmt.Fprint(c.out, e.Output)
		if c.builds[e.ImportPath] == nil {
			c.builds[e.ImportPath] = &strings.Builder{}
		}
		c.builds[e.ImportPath].WriteString(e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	pkg := c.packages[e.Package]
	if pkg == nil {
		pkg = &goPackage{name: e.Package, tests: map[string]*goCase{}}
		c.packages[e.Package] = pkg
	}
	test := pkg.test(e.Test)
	switch {
	case e.Action == "output":
		test.output.WriteString(e.Output)
	case e.Test == "":
		pkg.failed = pkg.failed || e.Action == "fail"
		pkg.build = cmp.Or(pkg.build, e.FailedBuild)
	default:
		test.state = e.Action
		c.print(e, test)
	}
}

func (p *goPackage) test(name string) *goCase {
	if p.tests[name] == nil {
		p.tests[name] = &goCase{}
	}
	return p.tests[name]
}

// print prints the result of a test that has ended.
func (c *goCounter) print(e goEvent, test *goCase) {
	if !test.ended() {
		return
	}
	fmt.Fprintf(c.out, "%-4s %s %s (%.1fs)\n", strings.ToUpper(e.Action), shortPackage(e.Package), e.Test, e.Elapsed)
	if e.Action == "fail" || e.Action == "skip" {
		printIndented(c.out, test.output.String())
	}
}

func (t *goCase) ended() bool { return t.state == "pass" || t.state == "skip" || t.state == "fail" }

// hangs reports whether the test has started and not ended. A paused test waits until others have
// ended.
func (t *goCase) hangs() bool { return t.state == "run" || t.state == "cont" }

func shortPackage(path string) string {
	if _, short, found := strings.Cut(path, "/"); found {
		return short
	}
	return path
}

func (c *goCounter) result(err error) result {
	got := result{passes: map[string]bool{}, log: c.log.String()}
	for _, name := range slices.Sorted(maps.Keys(c.packages)) {
		c.count(&got, c.packages[name], errors.Is(err, errTimeout))
	}
	return got.orOneFailure(err)
}

// count adds the tests of a package.
func (c *goCounter) count(got *result, pkg *goPackage, timeIsUp bool) {
	crash := pkg.crashOutput()
	timeIsUp = timeIsUp || crash.isTimeout()
	complete := true
	failed := len(got.failures)
	for _, name := range slices.Sorted(maps.Keys(pkg.tests)) {
		test := pkg.tests[name]
		switch {
		case name == "":
		case test.state == "pass":
			got.passes[key(pkg.name, name)] = true
			got.passed += leaf(pkg, name)
		case test.state == "skip":
			got.skipped += leaf(pkg, name)
		case test.state == "fail":
			if !pkg.anySubtest(name, func(t *goCase) bool { return t.state == "fail" || t.hangs() }) {
				got.failures = append(got.failures, pkg.failure(name, ""))
			}
		default:
			complete = false
			if test.hangs() && !pkg.anySubtest(name, (*goCase).hangs) {
				got.failures = append(got.failures, c.didNotEnd(pkg, name, timeIsUp))
			}
		}
	}
	if !complete {
		got.early = append(got.early, pkg.earlyEnd())
		fmt.Fprintf(c.out, "=== %s: the test program ended before its tests\n", shortPackage(pkg.name))
		printIndented(c.out, crash.shortened())
	}
	if pkg.failed && complete && (len(got.failures) == failed || crash != "") {
		got.failures = append(got.failures, c.packageFailure(pkg))
	}
}

// didNotEnd returns the failure of a test that was running when its program ended, and prints its
// output, which go does not report.
func (c *goCounter) didNotEnd(pkg *goPackage, name string, timeIsUp bool) failure {
	f := pkg.failure(name, " (did not end)")
	f.retry.leg = "" // later subtests of the function have not run either
	if !timeIsUp {
		f.noRetry = "the test program ended before its tests"
	}
	fmt.Fprintf(c.out, "FAIL %s\n", f.name)
	printIndented(c.out, f.log)
	return f
}

// packageFailure returns the failure of a package outside of its tests.
func (c *goCounter) packageFailure(pkg *goPackage) failure {
	log := pkg.tests[""].output.String()
	if build := c.builds[pkg.build]; build != nil {
		log = build.String() + log
	}
	printIndented(c.out, log)
	return failure{name: shortPackage(pkg.name), log: log, noRetry: "it did not compile, or failed outside of its tests"}
}

// failure describes a failed test. Its log begins with those of its parents, without the output of
// a crash.
func (p *goPackage) failure(name, suffix string) failure {
	f := failure{name: shortPackage(p.name) + " " + name + suffix}
	function, _, _ := strings.Cut(name, "/")
	parents := p.parents(name)
	var leg string
	for i, test := range append(parents, name) {
		output := p.tests[test].output.String()
		if p.tests[name].hangs() {
			output, _ = cutCrash(output)
		}
		f.log += output
		if i == 1 {
			leg = test
		}
	}
	// A function that logged something may have failed itself.
	if leg != "" && !logged.MatchString(p.tests[parents[0]].output.String()) {
		f.retry.leg = key(p.name, leg)
	}
	f.retry.function = key(p.name, function)
	f.noRetry = noRetryOfGo(f.log)
	return f
}

// logged matches a line of t.Log and of t.Error, which look the same.
var logged = regexp.MustCompile(`(?m)^ +\S+\.go:\d+: `)

// parents returns the tests that this one is a subtest of, the function first. Not every slash in a
// name separates tests.
func (p *goPackage) parents(name string) (parents []string) {
	for i, char := range name {
		if char == '/' && p.tests[name[:i]] != nil {
			parents = append(parents, name[:i])
		}
	}
	return parents
}

// anySubtest reports whether a subtest satisfies the predicate.
func (p *goPackage) anySubtest(name string, predicate func(*goCase) bool) bool {
	for other, test := range p.tests {
		if strings.HasPrefix(other, name+"/") && predicate(test) {
			return true
		}
	}
	return false
}

// leaf returns 1 for a test without subtests, and 0 for others, which are not counted.
func leaf(p *goPackage, name string) int {
	if p.anySubtest(name, func(*goCase) bool { return true }) {
		return 0
	}
	return 1
}

func (p *goPackage) earlyEnd() earlyEnd {
	end := earlyEnd{pkg: p.name}
	for _, name := range slices.Sorted(maps.Keys(p.tests)) {
		if name != "" && !strings.Contains(name, "/") && p.tests[name].state != "pause" {
			end.begun = append(end.begun, name)
		}
	}
	return end
}

func key(pkg, test string) string { return pkg + " " + test }

// crashOutput is what a Go program prints when it crashes: the reason, and its goroutines.
type crashOutput string

var (
	timedOut = regexp.MustCompile(`(?m)^(panic: test timed out after |SIGQUIT: quit)`)
	crashed  = regexp.MustCompile(`(?m)^(panic: |fatal error: )`)
)

// cutCrash separates the output of a crash from that of a running test: go attributes it to any of
// those.
func cutCrash(output string) (before string, crash crashOutput) {
	for _, start := range []*regexp.Regexp{timedOut, crashed} {
		if at := start.FindStringIndex(output); at != nil {
			return output[:at[0]], crashOutput(output[at[0]:])
		}
	}
	return output, ""
}

// crashOutput returns the output of the program's crash, if it crashed.
func (p *goPackage) crashOutput() (last crashOutput) {
	for name, test := range p.tests {
		if name != "" && test.ended() {
			continue
		}
		if _, crash := cutCrash(test.output.String()); crash.isTimeout() || last == "" {
			last = cmp.Or(crash, last)
		}
	}
	return last
}

func (l crashOutput) isTimeout() bool { return timedOut.MatchString(string(l)) }

// linesOfGoroutines is how many lines are printed of a crash.
const linesOfGoroutines = 400

// shortened puts the goroutines that run code of tests first, because they show what a test was
// waiting for, and limits the lines.
func (l crashOutput) shortened() string {
	parts := strings.Split(string(l), "\n\n")
	first := slices.IndexFunc(parts, func(part string) bool { return strings.HasPrefix(part, "goroutine ") })
	if first < 0 {
		first = len(parts)
	}
	slices.SortStableFunc(parts[first:], func(a, b string) int { return rank(a) - rank(b) })
	all := strings.SplitAfter(strings.Join(parts, "\n\n"), "\n")
	if len(all) > linesOfGoroutines {
		all = append(all[:linesOfGoroutines:linesOfGoroutines], fmt.Sprintf("(%d more lines)\n", len(all)-linesOfGoroutines))
	}
	return strings.Join(all, "")
}

// rank orders goroutines: running tests, others, paused parallel tests.
func rank(goroutine string) int {
	switch {
	case strings.Contains(goroutine, "testing.(*T).Parallel("):
		return 2
	case strings.Contains(goroutine, "_test.go:"):
		return 0
	}
	return 1
}
