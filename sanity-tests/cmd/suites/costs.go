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
var unmeasured = map[string]float64{"storage": 30, "fabric": 30, "external storage": 1800}

const (
	unmeasuredElsewhere = 60.
	// suiteSetUp is the time from the start of a suite to its first test, without compiling:
	// the driver is installed with other values.
	suiteSetUp = 15.
	// legsSetUp is the same for a function with legs.
	legsSetUp = 15.
	// parallelEfficiency is how many parallel tests run at the same time on two cores on average, as a fraction of
	// those that may: some end before others, and they compete for the CPU.
	parallelEfficiency = 2. / 3
)

func (c costs) of(t labTest, args string) cost {
	if known, ok := c[costKey(t.String(), args)]; ok {
		return known
	}
	if args != "" { // flags of the core shorten a test by about a third
		full := c.of(t, "")
		return cost{full.seconds * 2 / 3, full.longest * 2 / 3}
	}
	if guess, ok := unmeasured[t.suite]; ok {
		return cost{guess, guess}
	}
	return cost{unmeasuredElsewhere, unmeasuredElsewhere}
}

// load is what tests add up to in the lab.
type load struct {
	known     costs
	suites    map[string]suiteLoad
	functions map[string]bool // with legs, whose set-up is counted
}

// suiteLoad has the seconds of the tests of a suite that run alone, of those that run beside others, and of the longest
// of the latter.
type suiteLoad struct{ alone, beside, longest float64 }

func (c costs) load(tests []plannedTest) load {
	l := load{c, map[string]suiteLoad{}, map[string]bool{}}
	for _, t := range tests {
		l.add(t)
	}
	return l
}

func (l load) add(t plannedTest) {
	l.suites[t.suite] = l.with(t)
	if t.leg != "" {
		l.functions[t.suite+" "+t.function] = true
	}
}

// with returns the load of a test's suite with this test.
func (l load) with(t plannedTest) suiteLoad {
	of, known := l.suites[t.suite]
	if !known {
		of.alone = suiteSetUp
	}
	if t.leg != "" && !l.functions[t.suite+" "+t.function] {
		of.alone += l.known.setUpOf(t.labTest)
	}
	one := l.known.of(t.labTest, t.args)
	if t.atOnce == 1 {
		of.alone += one.longest // its subtests may run beside each other
		return of
	}
	of.beside += one.seconds / (float64(t.atOnce) * parallelEfficiency)
	of.longest = max(of.longest, one.longest)
	return of
}

func (l suiteLoad) minutes() float64 { return (l.alone + max(l.beside, l.longest)) / 60 }

// added returns how many minutes a test adds.
func (l load) added(t plannedTest) float64 { return l.with(t).minutes() - l.suites[t.suite].minutes() }

func (l load) minutes() (sum float64) {
	// Sorted, because the sum of floats depends on their order.
	for _, suite := range slices.Sorted(maps.Keys(l.suites)) {
		sum += l.suites[suite].minutes()
	}
	return sum
}

// minutes returns how long these tests take in the lab.
func (c costs) minutes(tests []plannedTest) float64 { return c.load(tests).minutes() }

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
	took, used := durations{}, map[string]string{}
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
		took[name], _ = strconv.ParseFloat(test[4], 64) // the pattern matches numbers only
		used[name] = argsUsed(name, args)
	}
	known, legs := costs{}, map[string][]string{}
	for _, t := range all {
		name, function := t.String(), t.suite+" "+t.function
		for _, key := range []string{name, costKey(name, argsInCore(name)), function} {
			if before, ok := c[key]; ok {
				known[key] = before
			}
		}
		if _, ran := took[name]; !ran {
			continue
		}
		known[costKey(name, used[name])] = took.cost(name)
		if t.leg != "" {
			legs[function] = append(legs[function], name)
		}
	}
	for function, legs := range legs {
		inLegs := 0.
		for _, leg := range legs {
			inLegs += took[leg]
		}
		own, passed := took[function]
		switch outside := own - inLegs; {
		case !passed || outside < 0: // or a leg was retried
		case inLegs < own/10:
			// Legs that take no time only report what the function has done; each gets an equal part of its time.
			known[function] = cost{}
			for _, leg := range legs {
				part := own / float64(len(legs))
				known[costKey(leg, used[leg])] = cost{part, part}
			}
		default:
			known[function] = cost{outside, outside}
		}
	}
	return known
}

// durations are what go prints, by suite and test, or subtest.
type durations map[string]float64

// cost returns the cost of a test. Its own time includes that of its subtests, unless these are parallel.
func (d durations) cost(name string) cost {
	printed, rows := 0., cost{}
	for other := range d {
		if d.parent(other) == name {
			row := d.cost(other)
			printed += d[other]
			rows = cost{rows.seconds + row.seconds, max(rows.longest, row.longest)}
		}
	}
	own := d[name]
	if printed <= own+.5 { // durations are rounded
		return cost{own, own}
	}
	return cost{own + rows.seconds, own + rows.longest}
}

// parent returns the test that this one is a subtest of. Not every slash in a name separates tests.
func (d durations) parent(name string) string {
	for at := strings.LastIndexByte(name, '/'); at >= 0; at = strings.LastIndexByte(name[:at], '/') {
		if _, ok := d[name[:at]]; ok {
			return name[:at]
		}
	}
	return ""
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
