package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// flakyFile, in sanity-tests, lists tests that failed and then passed.
const flakyFile = "flaky.txt"

// maxCommits is how many commits a test may stay in the list.
const maxCommits = 100

// flakyTest is a line of the list. since is the number of commits in the history when the test was
// first flaky.
type flakyTest struct {
	suite, name string
	since       int
}

func (f flakyTest) String() string { return fmt.Sprintf("%s\t%s\t%d", f.suite, f.name, f.since) }

// parseFlaky parses the list. Lines that begin with # are comments.
func parseFlaky(text string) (list []flakyTest, err error) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "\t")
		if len(fields) != 3 || fields[0] == "" || fields[1] == "" {
			return nil, fmt.Errorf("line %d is not a suite, a test and a number of commits, separated by tabs: %q", number, line)
		}
		since, err := strconv.Atoi(fields[2])
		if err != nil || since < 1 {
			return nil, fmt.Errorf("line %d: %q is not a number of commits", number, fields[2])
		}
		list = append(list, flakyTest{fields[0], fields[1], since})
	}
	return list, nil
}

// tooOld returns the tests that have been flaky for more than maxCommits.
func tooOld(list []flakyTest, commits int) []flakyTest {
	return filter(list, func(f flakyTest) bool { return commits-f.since > maxCommits })
}

// checkFlaky reads the list of flaky tests, and makes the run fail if one is too old.
func (r *runner) checkFlaky(path string) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		r.known, err = parseFlaky(string(text))
	}
	if err != nil {
		r.fail(flakyFile, err)
		return
	}
	for _, test := range tooOld(r.known, r.commits) {
		r.fail(flakyFile, fmt.Errorf("%s: %s has been flaky since commit %d, this is %d: fix it and remove it from the list",
			test.suite, test.name, test.since, r.commits))
	}
}

func (r *runner) isKnown(test flakyTest) bool {
	return slices.ContainsFunc(r.known, func(f flakyTest) bool { return f.suite == test.suite && f.name == test.name })
}
