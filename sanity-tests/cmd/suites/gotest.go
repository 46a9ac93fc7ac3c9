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

// goCounter reads `go test -json`. It counts tests that have no subtests of
// their own, prints one line for each that ends, and the whole output of those
// that failed. What a test program said that ended before its tests is printed last:
// go reports nothing of the tests that were running.
type goCounter struct {
	lines
	out      io.Writer
	packages map[string]*goPackage
	builds   map[string]*strings.Builder // what compilers say, by package
	log      strings.Builder
}

type goPackage struct {
	name   string
	tests  map[string]*goCase // the empty name is for what belongs to no test
	failed bool
	build  string // the build that failed, if one did
}

type goCase struct {
	how    string // the last thing that happened to it: run, pause, cont, pass, skip, fail
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

// readsErrors: go may write there in the middle of a line of the other stream.
func (*goCounter) readsErrors() bool { return false }

func (c *goCounter) line(line []byte) {
	var e goEvent
	if json.Unmarshal(line, &e) != nil {
		fmt.Fprintf(c.out, "%s\n", line) // what the go command itself has to say
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
		test.how = e.Action
		c.print(e, test)
	}
}

func (p *goPackage) test(name string) *goCase {
	if p.tests[name] == nil {
		p.tests[name] = &goCase{}
	}
	return p.tests[name]
}

// print shows how a test ended.
func (c *goCounter) print(e goEvent, test *goCase) {
	if !test.ended() {
		return
	}
	fmt.Fprintf(c.out, "%-4s %s %s (%.1fs)\n", strings.ToUpper(e.Action), shortPackage(e.Package), e.Test, e.Elapsed)
	if e.Action == "fail" || e.Action == "skip" {
		printIndented(c.out, test.output.String())
	}
}

func (t *goCase) ended() bool { return t.how == "pass" || t.how == "skip" || t.how == "fail" }

// hangs says whether the test had its turn and did not end. One that is paused waits
// until others have ended.
func (t *goCase) hangs() bool { return t.how == "run" || t.how == "cont" }

func shortPackage(path string) string {
	if _, short, found := strings.Cut(path, "/"); found {
		return short
	}
	return path
}

func (c *goCounter) result(ended error) result {
	got := result{passes: map[string]bool{}, log: c.log.String()}
	for _, name := range slices.Sorted(maps.Keys(c.packages)) {
		c.count(&got, c.packages[name], errors.Is(ended, errTimeIsUp))
	}
	return got.orOneFailure(ended, "")
}

// count adds the tests of a package.
func (c *goCounter) count(got *result, pkg *goPackage, timeIsUp bool) {
	last := pkg.lastWords()
	timeIsUp = timeIsUp || last.areOfATimeout()
	complete := true
	failed := len(got.failures)
	for _, name := range slices.Sorted(maps.Keys(pkg.tests)) {
		test := pkg.tests[name]
		switch {
		case name == "":
		case test.how == "pass":
			got.passes[key(pkg.name, name)] = true
			got.passed += leaf(pkg, name)
		case test.how == "skip":
			got.skipped += leaf(pkg, name)
		case test.how == "fail":
			if !pkg.anyBelow(name, func(t *goCase) bool { return t.how == "fail" || t.hangs() }) {
				got.failures = append(got.failures, pkg.failure(name, ""))
			}
		default:
			complete = false
			if test.hangs() && !pkg.anyBelow(name, (*goCase).hangs) {
				got.failures = append(got.failures, c.didNotEnd(pkg, name, timeIsUp))
			}
		}
	}
	if !complete {
		got.early = append(got.early, pkg.earlyEnd())
		fmt.Fprintf(c.out, "=== %s: the test program ended before its tests\n", shortPackage(pkg.name))
		printIndented(c.out, last.shown())
	}
	if pkg.failed && complete && (len(got.failures) == failed || last != "") {
		got.failures = append(got.failures, c.packageFailure(pkg))
	}
}

// didNotEnd is the failure of a test that was running when its program ended. It prints
// what go kept to itself.
func (c *goCounter) didNotEnd(pkg *goPackage, name string, timeIsUp bool) failure {
	f := pkg.failure(name, " (did not end)")
	f.again.leg = "" // what comes after it in the same function has not been run either
	if !timeIsUp {
		f.never = "the test program ended before its tests"
	}
	fmt.Fprintf(c.out, "FAIL %s\n", f.name)
	printIndented(c.out, f.log)
	return f
}

// packageFailure is what failed around the tests of a package, or instead of them.
func (c *goCounter) packageFailure(pkg *goPackage) failure {
	log := pkg.tests[""].output.String()
	if build := c.builds[pkg.build]; build != nil {
		log = build.String() + log
	}
	printIndented(c.out, log)
	return failure{name: shortPackage(pkg.name), log: log, never: "it did not compile, or failed outside of its tests"}
}

// failure describes a test that failed. Its log begins with that of the tests it is part
// of, but for the last words of the program.
func (p *goPackage) failure(name, how string) failure {
	f := failure{name: shortPackage(p.name) + " " + name + how}
	f.again.function, _, _ = strings.Cut(name, "/")
	above := p.above(name)
	var leg string
	for i, parent := range append(above, name) {
		said := p.tests[parent].output.String()
		if p.tests[name].hangs() {
			said, _ = cutLastWords(said)
		}
		f.log += said
		if i == 1 {
			leg = parent
		}
	}
	// A function that said something itself may have failed for that.
	if leg != "" && !logged.MatchString(p.tests[above[0]].output.String()) {
		f.again.leg = key(p.name, leg)
	}
	f.again.function = key(p.name, f.again.function)
	f.never = neverOfGo(f.log)
	return f
}

// logged matches a line of t.Log and of t.Error, which look the same.
var logged = regexp.MustCompile(`(?m)^ +\S+\.go:\d+: `)

// above are the tests that this one is a subtest of, the function first. A name may hold
// slashes, so that not every part of it is a test.
func (p *goPackage) above(name string) (parents []string) {
	for i, char := range name {
		if char == '/' && p.tests[name[:i]] != nil {
			parents = append(parents, name[:i])
		}
	}
	return parents
}

// anyBelow says whether a subtest is like this.
func (p *goPackage) anyBelow(name string, is func(*goCase) bool) bool {
	for other, test := range p.tests {
		if strings.HasPrefix(other, name+"/") && is(test) {
			return true
		}
	}
	return false
}

// leaf is 1 for a test without subtests: those with some are not counted beside them.
func leaf(p *goPackage, name string) int {
	if p.anyBelow(name, func(*goCase) bool { return true }) {
		return 0
	}
	return 1
}

func (p *goPackage) earlyEnd() earlyEnd {
	end := earlyEnd{pkg: p.name}
	for _, name := range slices.Sorted(maps.Keys(p.tests)) {
		if name != "" && !strings.Contains(name, "/") && p.tests[name].how != "pause" {
			end.begun = append(end.begun, name)
		}
	}
	return end
}

func key(pkg, test string) string { return pkg + " " + test }

// lastWords is what a Go program says when it dies: why, and its goroutines.
type lastWords string

var (
	timedOut = regexp.MustCompile(`(?m)^(panic: test timed out after |SIGQUIT: quit)`)
	crashed  = regexp.MustCompile(`(?m)^(panic: |fatal error: )`)
)

// cutLastWords separates them from what a test that was running had said before. Go
// attributes them to any of those.
func cutLastWords(said string) (before string, last lastWords) {
	for _, beginning := range []*regexp.Regexp{timedOut, crashed} {
		if at := beginning.FindStringIndex(said); at != nil {
			return said[:at[0]], lastWords(said[at[0]:])
		}
	}
	return said, ""
}

// lastWords of the program, if its tests were not all that it ended with.
func (p *goPackage) lastWords() (last lastWords) {
	for name, test := range p.tests {
		if name != "" && test.ended() {
			continue
		}
		if _, words := cutLastWords(test.output.String()); words.areOfATimeout() || last == "" {
			last = cmp.Or(words, last)
		}
	}
	return last
}

func (l lastWords) areOfATimeout() bool { return timedOut.MatchString(string(l)) }

// linesOfGoroutines are shown of a program that was stopped.
const linesOfGoroutines = 400

// shown are the last words with the goroutines that run code of tests first, for those
// say what was waited for.
func (l lastWords) shown() string {
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

// rank orders goroutines: those of tests that run, then the others, then those of tests
// that wait for their turn.
func rank(goroutine string) int {
	switch {
	case strings.Contains(goroutine, "testing.(*T).Parallel("):
		return 2
	case strings.Contains(goroutine, "_test.go:"):
		return 0
	}
	return 1
}
