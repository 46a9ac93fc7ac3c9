package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// result is what a command did.
type result struct {
	passed, skipped int
	failures        []failure
	// passes holds the keys of the tests that passed, those with subtests too.
	passes map[string]bool
	// early are the packages whose test program ended before all of its tests had.
	early []earlyEnd
	// log is all that the tests said.
	log string
}

// failure is one test that failed, or what failed in place of the tests.
type failure struct {
	name string
	log  string
	// again are the candidates for what is run to try this test again.
	again candidates
	// never says why a second try proves nothing.
	never string
}

// candidates are keys of tests: function is the whole test function, leg its subtest that
// contains the failure, or empty where the function cannot do without the rest of itself.
type candidates struct{ function, leg string }

// earlyEnd is a package whose tests are not all known: some had not begun.
type earlyEnd struct {
	pkg string
	// begun are the test functions that had their turn.
	begun []string
}

// orOneFailure makes a command that failed without a failing test count as one failure.
func (r result) orOneFailure(ended error, log string) result {
	if ended != nil && len(r.failures) == 0 {
		r.failures = append(r.failures, failure{log: ended.Error() + "\n" + log, never: "it did not get as far as a test that failed"})
	}
	return r
}

// counter reads the output of a command and counts what it reports.
type counter interface {
	io.Writer
	// readsErrors says whether it is to read the standard error as well.
	readsErrors() bool
	// result is called when the command has ended, with its error if it failed.
	result(ended error) result
}

// lines hands whole lines to a function, however the bytes arrive, and keeps the end.
type lines struct {
	mu   sync.Mutex
	rest []byte
	each func(line []byte)
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.each(line)
		l.rest = rest
	}
}

// checkCounter counts a command as one test: it passes or it does not.
type checkCounter struct {
	lines
	last []string
}

func newCheckCounter(out io.Writer) counter {
	c := &checkCounter{}
	c.each = func(line []byte) {
		fmt.Fprintf(out, "%s\n", line)
		c.last = append(c.last[max(0, len(c.last)-linesOfFailure+2):], string(line))
	}
	return c
}

func (*checkCounter) readsErrors() bool { return true }

func (c *checkCounter) result(ended error) result {
	if ended == nil {
		return result{passed: 1}
	}
	// The end, for that is where compilers sum up.
	return result{failures: []failure{{log: ended.Error() + "\n" + strings.Join(c.last, "\n"), never: "checks say the same each time"}}}
}

// cargoCounter sums the closing lines of `cargo test`, and notes which tests failed.
type cargoCounter struct {
	lines
	got              result
	failed           []string
	logs             map[string]*strings.Builder
	section          *strings.Builder // of the test whose output is being read
	slow             map[string]bool  // tests that were running after a minute
	programs, closed int
	log              strings.Builder
}

var (
	cargoBegins = regexp.MustCompile(`^running \d+ tests?$`)
	cargoResult = regexp.MustCompile(`^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored`)
	cargoTested = regexp.MustCompile(`^test (.+?)(?: - should panic)? \.\.\. (ok|FAILED)$`)
	cargoIsSlow = regexp.MustCompile(`^test (.+) has been running for over `)
	cargoOutput = regexp.MustCompile(`^---- (.+) std(?:out|err) ----$`)
)

func newCargoCounter(out io.Writer) counter {
	c := &cargoCounter{logs: map[string]*strings.Builder{}, slow: map[string]bool{}}
	c.got.passes = map[string]bool{}
	c.each = func(line []byte) {
		fmt.Fprintf(out, "%s\n", line)
		c.log.Write(append(line, '\n'))
		c.line(string(line))
	}
	return c
}

func (*cargoCounter) readsErrors() bool { return true }

func (c *cargoCounter) line(line string) {
	if m := cargoOutput.FindStringSubmatch(line); m != nil {
		c.section = &strings.Builder{}
		c.logs[m[1]] = c.section
	} else if m := cargoResult.FindStringSubmatch(line); m != nil {
		c.section = nil
		c.closed++
		c.got.passed += number(m[1])
		c.got.skipped += number(m[3])
	} else if line == "failures:" || line == "successes:" {
		c.section = nil
	} else if c.section != nil {
		c.section.WriteString(line + "\n")
	} else if cargoBegins.MatchString(line) {
		c.programs++
	} else if m := cargoIsSlow.FindStringSubmatch(line); m != nil {
		c.slow[m[1]] = true
	} else if m := cargoTested.FindStringSubmatch(line); m != nil {
		delete(c.slow, m[1])
		if m[2] == "ok" {
			c.got.passes[m[1]] = true
		} else {
			c.failed = append(c.failed, m[1])
		}
	}
}

func (c *cargoCounter) result(ended error) result {
	got := c.got
	for _, name := range c.failed {
		log := ""
		if c.logs[name] != nil {
			log = c.logs[name].String()
		}
		got.failures = append(got.failures, failure{name: name, log: log, again: candidates{function: name}, never: neverOfRust(name, log)})
	}
	for name := range c.slow {
		got.failures = append(got.failures, failure{name: name + " (did not end)", never: "a test program ended before all of its tests"})
	}
	if c.programs > c.closed && len(c.slow) == 0 {
		got.failures = append(got.failures, failure{name: "a test program", log: "it ended before all of its tests", never: "programs that crash are not run again"})
	}
	got.log = c.log.String()
	return got.orOneFailure(ended, "")
}

func number(digits string) int {
	n, _ := strconv.Atoi(digits) // the pattern admits digits only
	return n
}
