package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"
)

// linesOfFailure is how many lines of a failed test's output the summary repeats.
const linesOfFailure = 12

// summary prints everything that needs attention, for readers who see only the end of a log.
func (r *runner) summary() {
	for _, test := range r.red {
		if test.why == "" {
			fmt.Fprintf(r.out, "FAILED %s\n", test.name)
		} else {
			fmt.Fprintf(r.out, "FAILED %s (%s)\n", test.name, test.why)
		}
		printIndented(r.out, firstLines(test.log))
	}
	for _, test := range r.flaky {
		fmt.Fprintf(r.out, "FLAKY %s: %s: failed, and passed when it was run again\n", test.suite, test.name)
		if r.isKnown(test) {
			continue
		}
		fmt.Fprintf(r.out, "     fix it, or add this line to sanity-tests/%s:\n%s\n", flakyFile, test)
	}
	for _, what := range r.notRun {
		fmt.Fprintf(r.out, "NOT RUN %s\n", what)
	}
	fmt.Fprintf(r.out, "=== all suites in %s, including the lab's start:\n", time.Since(r.began).Round(time.Second))
	for _, suite := range r.times {
		fmt.Fprintf(r.out, "      %s\n", suite)
	}
}

// printTotals prints the last line and reports whether the run has passed.
func (r *runner) printTotals() (passed bool) {
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, len(r.red), r.skipped)
	return len(r.red) == 0 && r.passed > 0
}

// firstLines returns the first lines of a log, without go's "=== RUN" lines.
func firstLines(log string) string {
	var first []string
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, "=== ") || strings.TrimSpace(line) == "" {
			continue
		}
		if first = append(first, line); len(first) == linesOfFailure {
			break
		}
	}
	return strings.TrimRight(strings.Join(first, ""), "\n")
}

func printIndented(out io.Writer, text string) {
	scan := bufio.NewScanner(strings.NewReader(text))
	scan.Buffer(nil, len(text)+1) // a line may be as long as the text
	for scan.Scan() {
		fmt.Fprintf(out, "     %s\n", scan.Text())
	}
}
