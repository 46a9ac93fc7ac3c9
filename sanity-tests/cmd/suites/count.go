package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// count is how the tests of a suite ended.
type count struct {
	passed, failed, skipped int
	took                    time.Duration
	// failures name the tests that failed, each with how its output begins.
	failures []string
}

// linesOfFailure of a test's output are shown once more at the end.
const linesOfFailure = 12

func (c *count) add(other count) {
	c.passed += other.passed
	c.failed += other.failed
	c.skipped += other.skipped
	c.failures = append(c.failures, other.failures...)
}

// orOneFailure makes a runner that failed without a failing test, because it did
// not compile or ran out of time, count as one failure.
func (c count) orOneFailure(ended error) count {
	if ended != nil && c.failed == 0 {
		c.failed = 1
		c.failures = append(c.failures, ended.Error())
	}
	return c
}

func (c count) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped in %s", c.passed, c.failed, c.skipped, c.took)
}

// counter reads the output of a command and counts what it reports.
type counter interface {
	io.Writer
	// count is called when the command has ended, with its error if it failed.
	count(ended error) count
}

// lines hands whole lines to a function, however the bytes arrive.
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
type checkCounter struct{ lines }

func newCheckCounter() counter {
	return &checkCounter{lines{each: func(line []byte) { fmt.Printf("%s\n", line) }}}
}

func (*checkCounter) count(ended error) count {
	if ended != nil {
		return count{}.orOneFailure(ended)
	}
	return count{passed: 1}
}

// cargoCounter sums the closing lines of `cargo test`, and notes which tests failed.
type cargoCounter struct {
	lines
	got count
}

var (
	cargoResult = regexp.MustCompile(`^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored`)
	cargoFailed = regexp.MustCompile(`^test (.+) \.\.\. FAILED$`)
)

func newCargoCounter() counter {
	c := &cargoCounter{}
	c.each = func(line []byte) {
		fmt.Printf("%s\n", line)
		if m := cargoResult.FindSubmatch(line); m != nil {
			c.got.add(count{passed: number(m[1]), failed: number(m[2]), skipped: number(m[3])})
		} else if m := cargoFailed.FindSubmatch(line); m != nil {
			c.got.failures = append(c.got.failures, string(m[1]))
		}
	}
	return c
}

func (c *cargoCounter) count(ended error) count { return c.got.orOneFailure(ended) }

func number(digits []byte) int {
	n, _ := strconv.Atoi(string(digits)) // the pattern admits digits only
	return n
}

// goCounter reads `go test -json`. It counts tests that have no subtests of
// their own, prints one line for each that ends, and the whole output of those
// that failed.
type goCounter struct {
	lines
	output map[string]*bytes.Buffer
	ended  map[string]string
	began  map[string]string // how the output of those that failed begins
}

type goEvent struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

func newGoCounter() counter {
	c := &goCounter{output: map[string]*bytes.Buffer{}, ended: map[string]string{}, began: map[string]string{}}
	c.each = c.event
	return c
}

func (c *goCounter) event(line []byte) {
	var e goEvent
	if json.Unmarshal(line, &e) != nil {
		fmt.Printf("%s\n", line) // what the go command itself has to say
		return
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output", "build-output":
		if c.output[key] == nil {
			c.output[key] = &bytes.Buffer{}
		}
		c.output[key].WriteString(e.Output)
		if e.Action == "build-output" || strings.HasPrefix(e.Output, "panic:") {
			fmt.Print(e.Output)
		}
	case "pass", "skip", "fail":
		c.end(key, e)
	}
}

// end notes how a test, or a whole package, ended.
func (c *goCounter) end(key string, e goEvent) {
	if e.Test != "" {
		c.ended[key] = e.Action
		fmt.Printf("%-4s %s %s (%.1fs)\n", strings.ToUpper(e.Action), shortPackage(e.Package), e.Test, e.Elapsed)
	}
	if out := c.output[key]; out != nil && e.Action == "fail" {
		c.began[key] = beginning(out.String())
	}
	if out := c.output[key]; out != nil && (e.Action == "fail" || e.Action == "skip" && e.Test != "") {
		printIndented(out)
	}
	delete(c.output, key)
}

// beginning is the first lines of a text.
func beginning(text string) string {
	all := strings.SplitAfterN(text, "\n", linesOfFailure+1)
	return strings.TrimRight(strings.Join(all[:min(len(all), linesOfFailure)], ""), "\n")
}

func shortPackage(path string) string {
	_, short, _ := strings.Cut(path, "/")
	return short
}

func printIndented(out io.Reader) {
	for scan := bufio.NewScanner(out); scan.Scan(); {
		fmt.Fprintf(os.Stdout, "     %s\n", scan.Text())
	}
}

func (c *goCounter) count(ended error) (got count) {
	parents := map[string]bool{}
	for key := range c.ended {
		for i := strings.LastIndex(key, "/"); i > strings.Index(key, " "); i = strings.LastIndex(key[:i], "/") {
			parents[key[:i]] = true
		}
	}
	for key, how := range c.ended {
		switch {
		case parents[key]:
		case how == "pass":
			got.passed++
		case how == "fail":
			got.failed++
			got.failures = append(got.failures, shortPackage(key)+"\n"+c.began[key])
		default:
			got.skipped++
		}
	}
	return got.orOneFailure(ended)
}
