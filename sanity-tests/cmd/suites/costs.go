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

// costs.txt says what lab tests took when they were last measured: a line for each with the
// suite, the test, flags if it was run with some, its seconds, and those of its longest row.
// What is set up around the legs of a function is in a line of the function.
//
//go:embed costs.txt
var costsFile string

const costsPath = "sanity-tests/cmd/suites/costs.txt"

const costsHead = `# Seconds that the lab tests take, and their longest row. This is made from the log of a run:
# cd sanity-tests && go run ./cmd/suites -costs LOG
`

type cost struct{ seconds, longest float64 }

// costs have the name of a labTest as key, with a function's flags behind it.
type costs map[string]cost

// unmeasured is what a test takes of which nothing is known.
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
	if known, is := c[costKey(t.String(), args)]; is {
		return known
	}
	if args != "" { // which are there to make it shorter
		whole := c.of(t, "")
		return cost{whole.seconds / 2, whole.longest / 2}
	}
	if guess, is := unmeasured[t.suite]; is {
		return cost{guess, guess}
	}
	return cost{unmeasuredElsewhere, unmeasuredElsewhere}
}

// share is by how much a test makes its suite longer, if there are many of them.
func (c costs) share(t labTest) float64 { return c.of(t, "").seconds / float64(t.atOnce) }

// minutes that these tests take in the lab.
func (c costs) minutes(tests []plannedTest) float64 {
	seconds := 0.
	bySuite := map[string][]plannedTest{}
	for _, t := range tests {
		bySuite[t.suite] = append(bySuite[t.suite], t)
	}
	// In order, or two sums of the same numbers would differ by a little.
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
		seconds += longest // which may be the last one to start
	}
	return seconds / 60
}

func (c costs) setUpOf(t labTest) float64 {
	if known, is := c[t.suite+" "+t.function]; is {
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
			return nil, fmt.Errorf("no suite, test, seconds and seconds of the longest row in the line %q", line)
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

// measured takes what tests took from the log of a run. Those that did not pass tell nothing.
func (c costs) measured(log string, all []labTest) costs {
	suiteOf := map[string]string{}
	for _, s := range suites {
		suiteOf[s.folder] = s.name
	}
	took := map[string]float64{} // by cost key, also of rows
	rows := map[string][]string{}
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
		key := costKey(name, shortened(name, args))
		took[key], _ = strconv.ParseFloat(test[4], 64) // the pattern admits numbers only
		for i, char := range name {
			if char == '/' {
				parent := costKey(name[:i], shortened(name[:i], args))
				rows[parent] = append(rows[parent], key)
			}
		}
	}
	known := costs{}
	for _, t := range all {
		for _, args := range []string{"", argsInCore(t.String())} {
			key := costKey(t.String(), args)
			if own, is := took[key]; is {
				known[key] = withRows(own, key, rows, took)
			} else if before, is := c[key]; is {
				known[key] = before
			}
		}
	}
	c.aroundLegs(known, took, all)
	return known
}

// withRows is what a test takes whose rows may run at once, so that its own time has none of theirs.
func withRows(own float64, key string, rows map[string][]string, took map[string]float64) cost {
	sum, longest, seen := 0., 0., map[string]bool{}
	for _, row := range rows[key] {
		if len(rows[row]) == 0 && !seen[row] {
			seen[row] = true
			sum += took[row]
			longest = max(longest, took[row])
		}
	}
	if sum <= own {
		return cost{own, own} // the rows ran one after the other
	}
	return cost{sum, longest}
}

// aroundLegs adds what functions take beside their legs. Legs that take no time are those
// that only tell what the function has done: each has an equal part of that.
func (c costs) aroundLegs(known costs, took map[string]float64, all []labTest) {
	legs := map[string][]string{}
	for _, t := range all {
		function := t.suite + " " + t.function
		if t.leg == "" {
			continue
		}
		if before, is := c[function]; is {
			known[function] = before
		}
		if _, ran := took[t.String()]; ran {
			legs[function] = append(legs[function], t.String())
		}
	}
	for function, of := range legs {
		own, passed := took[function]
		if !passed {
			continue
		}
		sum := 0.
		for _, leg := range of {
			sum += took[leg]
		}
		if sum < own/10 {
			for _, leg := range of {
				part := own / float64(len(of))
				known[leg] = cost{part, part}
			}
			known[function] = cost{}
			continue
		}
		known[function] = cost{max(0, own-sum), max(0, own-sum)}
	}
}

// argsInCore are the flags that shorten a test in the core.
func argsInCore(test string) string {
	for _, one := range core {
		if one.suite+" "+one.test == test {
			return one.args
		}
	}
	return ""
}

// shortened are these flags, if the command had them.
func shortened(test, command string) string {
	if args := argsInCore(test); args != "" && strings.Contains(command, args) {
		return args
	}
	return ""
}

// writeCosts puts what a log says into costs.txt.
func writeCosts(root, path string, before costs, all []labTest) error {
	log, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, costsPath), []byte(before.measured(string(log), all).String()), 0o644)
}
