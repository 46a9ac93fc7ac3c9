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

// result of a command.
type result struct {
	passed, skipped int
	failures        []failure
	// passes are the keys of all tests that passed, including those with subtests.
	passes map[string]bool
	// early are the packages whose test program ended before all of its tests had.
	early []earlyEnd
	// log is the output of the tests.
	log string
}

// failure is one test that failed, or what failed instead of the tests.
type failure struct {
	name string
	log  string
	// retry are the candidates for what is run to retry this test.
	retry candidates
	// noRetry is why it may not be retried, if it may not.
	noRetry string
}

// candidates are keys of tests: the test function, and the subtest that contains the failure. leg is
// empty if the whole function must be run.
type candidates struct{ function, leg string }

// earlyEnd is a package of which some tests had not started when its test program ended.
type earlyEnd struct {
	pkg string
	// begun are the test functions that had started.
	begun []string
}

// orOneFailure makes a command that failed without a failing test count as one failure.
func (r result) orOneFailure(err error) result {
	if err != nil && len(r.failures) == 0 {
		r.failures = append(r.failures, failure{log: err.Error() + "\n", noRetry: "it failed before any test did"})
	}
	return r
}

// counter reads the output of a command and counts its tests.
type counter interface {
	io.Writer
	// readsErrors reports whether it reads stderr too.
	readsErrors() bool
	// result is called when the command has ended, with its error if it failed.
	result(err error) result
}

// lines is a writer that passes whole lines to a function.
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

// checkCounter counts a command as one test.
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

func (c *checkCounter) result(err error) result {
	if err == nil {
		return result{passed: 1}
	}
	// Compilers summarize at the end.
	return result{failures: []failure{{log: err.Error() + "\n" + strings.Join(c.last, "\n"), noRetry: "checks are deterministic"}}}
}

// cargoCounter sums the result lines of `cargo test` and records which tests failed.
type cargoCounter struct {
	lines
	got             result
	failed          []string
	logs            map[string]*strings.Builder
	section         *strings.Builder // log of the test whose output is being read
	slow            map[string]bool  // tests that are running after a minute
	programs, ended int
	log             strings.Builder
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
		c.ended++
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

func (c *cargoCounter) result(err error) result {
	got := c.got
	for _, name := range c.failed {
		log := ""
		if c.logs[name] != nil {
			log = c.logs[name].String()
		}
		got.failures = append(got.failures, failure{name: name, log: log, retry: candidates{function: name}, noRetry: noRetryOfRust(name, log)})
	}
	for name := range c.slow {
		got.failures = append(got.failures, failure{name: name + " (did not end)", noRetry: "a test program ended before all of its tests"})
	}
	if c.programs > c.ended && len(c.slow) == 0 {
		got.failures = append(got.failures, failure{name: "a test program", log: "it ended before all of its tests", noRetry: "programs that crash are not run again"})
	}
	got.log = c.log.String()
	return got.orOneFailure(err)
}

func number(digits string) int {
	n, _ := strconv.Atoi(digits) // the pattern matches digits only
	return n
}
