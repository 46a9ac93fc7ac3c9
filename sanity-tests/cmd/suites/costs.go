package main

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// costs.txt has the durations of lab tests when they were last measured: per line the suite, the
// test, its flags if any, its seconds, and those of its longest subtest. The set-up of a function
// with legs has a line of its own.
//
//go:embed costs.txt
var costsFile string

const costsPath = "sanity-tests/cmd/suites/costs.txt"

const costsHead = `# Seconds that the lab tests take, and their longest row. This is made from the log of a run:
# cd sanity-tests && go run ./cmd/suites -costs LOG
`

// cost of a test: its seconds, and those of its longest subtest.
type cost struct{ seconds, longest float64 }

// costs by labTest.String(), followed by the test's flags.
type costs map[string]cost

// Estimates in seconds of tests that were not measured, by suite.
var unmeasured = map[string]float64{"storage": 30, "fabric": 30}

const (
	unmeasuredElsewhere = 60.
	// suiteSetUp is the time from the start of a suite to its first test, without compiling:
	// the driver is installed with other values.
	suiteSetUp = 20.
	// legsSetUp is the same for a function with legs.
	legsSetUp = 15.
)

func (c costs) of(t labTest, args string) cost {
	if known, ok := c[costKey(t.String(), args)]; ok {
		return known
	}
	if args != "" { // flags in the core halve the test
		full := c.of(t, "")
		return cost{full.seconds / 2, full.longest / 2}
	}
	if guess, ok := unmeasured[t.suite]; ok {
		return cost{guess, guess}
	}
	return cost{unmeasuredElsewhere, unmeasuredElsewhere}
}

// share is how many seconds a test adds to a suite with many tests.
func (c costs) share(t labTest) float64 { return c.of(t, "").seconds / float64(t.atOnce) }

// minutes returns how long these tests take in the lab.
func (c costs) minutes(tests []plannedTest) float64 {
	seconds := 0.
	bySuite := map[string][]plannedTest{}
	for _, t := range tests {
		bySuite[t.suite] = append(bySuite[t.suite], t)
	}
	// Sorted, because the sum of floats depends on their order.
	for _, suite := range slices.Sorted(maps.Keys(bySuite)) {
		seconds += suiteSetUp
		longest, functions := 0., map[string]bool{}
		for _, t := range bySuite[suite] {
			one := c.of(t.labTest, t.args)
			if t.leg != "" && !functions[t.function] {
				functions[t.function] = true
				seconds += c.setUpOf(t.labTest)
			}
			seconds += one.seconds / float64(t.atOnce)
			if t.atOnce > 1 {
				longest = max(longest, one.longest*(1-1/float64(t.atOnce)))
			}
		}
		seconds += longest // it may start last
	}
	return seconds / 60
}

func (c costs) setUpOf(t labTest) float64 {
	if known, ok := c[t.suite+" "+t.function]; ok {
		return known.seconds
	}
	return legsSetUp
}

func costKey(test, args string) string { return strings.TrimSpace(test + " " + args) }

func parseCosts(text string) (costs, error) {
	c := costs{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		last := len(fields) - 1
		if last < 3 {
			return nil, fmt.Errorf("the line %q does not have a suite, a test, seconds and seconds of the longest subtest", line)
		}
		var numbers [2]float64
		for i := range numbers {
			var err error
			if numbers[i], err = strconv.ParseFloat(fields[last-1+i], 64); err != nil {
				return nil, fmt.Errorf("costs: %w in the line %q", err, line)
			}
		}
		c[strings.Join(fields[:last-1], " ")] = cost{numbers[0], numbers[1]}
	}
	return c, nil
}

func (c costs) String() string {
	var text strings.Builder
	text.WriteString(costsHead)
	for _, key := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&text, "%s %.1f %.1f\n", key, c[key].seconds, c[key].longest)
	}
	return text.String()
}

var (
	logCommand = regexp.MustCompile(`^=== .+: go test (.*)$`)
	logTest    = regexp.MustCompile(`^(PASS|FAIL|SKIP) +(sanity-tests/\S+) (\S+) \((\d+\.\d)s\)$`)
)

// measured returns the costs with the durations of passed tests from the log of a run.
func (c costs) measured(log string, all []labTest) costs {
	suiteOf := map[string]string{}
	for _, s := range suites {
		suiteOf[s.folder] = s.name
	}
	took := map[string]float64{} // by cost key, including subtests
	subtests := map[string][]string{}
	args := ""
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		if command := logCommand.FindStringSubmatch(line); command != nil {
			args = command[1]
		}
		test := logTest.FindStringSubmatch(line)
		if test == nil || suiteOf[test[2]] == "" || test[1] != "PASS" {
			continue
		}
		name := suiteOf[test[2]] + " " + test[3]
		key := costKey(name, argsUsed(name, args))
		took[key], _ = strconv.ParseFloat(test[4], 64) // the pattern matches numbers only
		for i, char := range name {
			if char == '/' {
				parent := costKey(name[:i], argsUsed(name[:i], args))
				subtests[parent] = append(subtests[parent], key)
			}
		}
	}
	known := costs{}
	for _, t := range all {
		for _, args := range []string{"", argsInCore(t.String())} {
			key := costKey(t.String(), args)
			if own, ok := took[key]; ok {
				known[key] = withSubtests(own, key, subtests, took)
			} else if before, ok := c[key]; ok {
				known[key] = before
			}
		}
	}
	c.addSetUps(known, took, all)
	return known
}

// withSubtests returns the cost of a test. The time of parallel subtests is not included in its own.
func withSubtests(own float64, key string, subtests map[string][]string, took map[string]float64) cost {
	printTotals, longest, seen := 0., 0., map[string]bool{}
	for _, subtest := range subtests[key] {
		if len(subtests[subtest]) == 0 && !seen[subtest] {
			seen[subtest] = true
			printTotals += took[subtest]
			longest = max(longest, took[subtest])
		}
	}
	if printTotals <= own {
		return cost{own, own} // the subtests ran sequentially
	}
	return cost{printTotals, longest}
}

// addSetUps adds the time of functions outside of their legs. Legs that take no time only report
// what the function has done; each gets an equal part of its time.
func (c costs) addSetUps(known costs, took map[string]float64, all []labTest) {
	legs := map[string][]string{}
	for _, t := range all {
		function := t.suite + " " + t.function
		if t.leg == "" {
			continue
		}
		if before, ok := c[function]; ok {
			known[function] = before
		}
		if _, ran := took[t.String()]; ran {
			legs[function] = append(legs[function], t.String())
		}
	}
	for function, legs := range legs {
		own, passed := took[function]
		if !passed {
			continue
		}
		printTotals := 0.
		for _, leg := range legs {
			printTotals += took[leg]
		}
		if printTotals < own/10 {
			for _, leg := range legs {
				part := own / float64(len(legs))
				known[leg] = cost{part, part}
			}
			known[function] = cost{}
			continue
		}
		known[function] = cost{max(0, own-printTotals), max(0, own-printTotals)}
	}
}

// argsInCore returns the flags of a test in the core.
func argsInCore(test string) string {
	for _, t := range core {
		if t.suite+" "+t.test == test {
			return t.args
		}
	}
	return ""
}

// argsUsed returns the flags of a test in the core if the command has them.
func argsUsed(test, command string) string {
	if args := argsInCore(test); args != "" && strings.Contains(command, args) {
		return args
	}
	return ""
}

// writeCosts updates costs.txt from the log of a run.
func writeCosts(root, path string, before costs, all []labTest) error {
	log, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, costsPath), []byte(before.measured(string(log), all).String()), 0o644)
}
