package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"storage.liqo.io/sanity-tests/sample"
)

const (
	// coreBudget and affectedBudget are minutes in the lab.
	coreBudget, affectedBudget = 10., 12.
	// slicesOfAll is into how many slices the tests are cut that are not in the core: a prime,
	// so that who always lands the same number of commits at once meets all of them, too.
	slicesOfAll = 17
)

// plannedTest is a test of a run, and why it is one.
type plannedTest struct {
	labTest
	args string // of the test program
	why  string
}

// plan is what `make test` runs in the lab.
type plan struct {
	costs                 costs
	seed                  int64
	core, affected, slice []plannedTest
	// leftOut are affected, and not run.
	leftOut []plannedTest
}

// planOf says what the tests of this commit are. It is the same each time.
func planOf(root string) (p plan, all []labTest, err error) {
	if all, err = labTests(root); err != nil {
		return plan{}, nil, err
	}
	changed, err := changedPaths(root)
	if err != nil {
		return plan{}, nil, err
	}
	known, err := parseCosts(costsFile)
	if err != nil {
		return plan{}, nil, err
	}
	p, err = newPlan(all, core, known, changed, sample.Seed())
	return p, all, err
}

// newPlan has the core, then of the affected tests those for which there is time, then
// one slice of the others.
func newPlan(all []labTest, core []coreTest, known costs, changed []string, seed int64) (plan, error) {
	p := plan{costs: known, seed: seed}
	for _, one := range core {
		at := slices.IndexFunc(all, func(t labTest) bool { return t.suite == one.suite && t.name() == one.test })
		if at < 0 {
			return plan{}, fmt.Errorf("core: there is no test %s %s", one.suite, one.test)
		}
		p.core = append(p.core, plannedTest{all[at], one.args, "core"})
	}
	whole := nameSet(filterPlanned(p.core, func(t plannedTest) bool { return t.args == "" }))
	for _, t := range affected(changed, all) {
		one := plannedTest{labTest: t.labTest, why: "affected by " + t.why()}
		switch {
		case whole[t.String()]:
		case t.isLong:
			one.why += "; make test-all runs it"
			p.leftOut = append(p.leftOut, one)
		case known.minutes(slices.Concat(p.core, p.affected, []plannedTest{one}))-known.minutes(p.core) > affectedBudget:
			p.leftOut = append(p.leftOut, one)
		default:
			p.affected = append(p.affected, one)
		}
	}
	// A test whose dice are others with each commit needs no turn beside the core.
	runs := nameSet(slices.Concat(p.core, p.affected))
	inCore := nameSet(p.core)
	rest := filter(all, func(t labTest) bool { return !t.isLong && !inCore[t.String()] })
	number := int(seed % slicesOfAll)
	for _, t := range slicesOf(rest, known, slicesOfAll)[number] {
		if !runs[t.String()] {
			p.slice = append(p.slice, plannedTest{labTest: t, why: fmt.Sprintf("slice %d of %d", number+1, slicesOfAll)})
		}
	}
	inSlice := nameSet(p.slice)
	p.leftOut = filterPlanned(p.leftOut, func(t plannedTest) bool { return !inSlice[t.String()] })
	return p, nil
}

func nameSet(tests []plannedTest) map[string]bool {
	set := map[string]bool{}
	for _, t := range tests {
		set[t.String()] = true
	}
	return set
}

func filterPlanned(tests []plannedTest, is func(plannedTest) bool) []plannedTest {
	return slices.DeleteFunc(slices.Clone(tests), func(t plannedTest) bool { return !is(t) })
}

// slicesOf deals tests into slices that take about the same time: the longest first, each to
// the slice that has least.
func slicesOf(tests []labTest, known costs, number int) [][]labTest {
	slicesOf, load := make([][]labTest, number), make([]float64, number)
	tests = slices.SortedFunc(slices.Values(tests), func(a, b labTest) int {
		return cmp.Or(cmp.Compare(known.share(b), known.share(a)), cmp.Compare(a.String(), b.String()))
	})
	for _, t := range tests {
		least := slices.Index(load, slices.Min(load))
		slicesOf[least] = append(slicesOf[least], t)
		load[least] += known.share(t)
	}
	return slicesOf
}

// of are the tests of one suite, each once: whole, if it is to be run whole for any reason.
func (p plan) of(s suite) []plannedTest {
	drawn := nameSet(p.affected)
	tests := slices.Concat(filterPlanned(p.core, func(t plannedTest) bool { return !drawn[t.String()] }), p.affected, p.slice)
	return filterPlanned(tests, func(t plannedTest) bool { return t.suite == s.name })
}

// part is the suite with some of its tests.
func (s suite) part(tests []plannedTest) suite {
	args := append([]string{"-run=" + runPattern(tests, s.selects == "")}, s.args...)
	var flags, legs []string
	for _, t := range tests {
		if t.args != "" {
			flags = append(flags, t.args)
		}
		if t.leg != "" && s.selects != "" {
			legs = append(legs, t.leg)
		}
	}
	if len(legs) > 0 {
		flags = append(flags, s.selects+"="+strings.Join(legs, ","))
	}
	if len(flags) > 0 {
		args = append(append(args, "-args"), flags...)
	}
	part := goTest(s.name, s.dir, s.needs, s.limit-compiling, args...)
	if s.hasLegs {
		part = withLegs(s.selects, part)
	}
	part.tier = s.tier
	again := part.again
	part.again = func(key string) []string {
		command := again(key)
		_, function, _ := strings.Cut(key, " ")
		of := filterPlanned(tests, func(t plannedTest) bool { return t.function == function })
		if at := slices.Index(command, "-run"); len(of) > 0 && at >= 0 {
			command[at+1] = runPattern(of, s.selects == "") // no more legs than the first time
		}
		return command
	}
	return part
}

// runPattern selects tests. Legs that go can select are named.
func runPattern(tests []plannedTest, withLegs bool) string {
	var functions []string
	legs := map[string][]string{}
	for _, t := range tests {
		if !slices.Contains(functions, t.function) {
			functions = append(functions, t.function)
		}
		if t.leg != "" && withLegs {
			legs[t.function] = append(legs[t.function], regexp.QuoteMeta(t.leg))
		}
	}
	var patterns []string
	if plain := slices.DeleteFunc(slices.Clone(functions), func(f string) bool { return legs[f] != nil }); len(plain) > 0 {
		patterns = append(patterns, anyOf(plain))
	}
	for _, function := range functions {
		if legs[function] != nil {
			patterns = append(patterns, anyOf([]string{function})+"/"+anyOf(legs[function]))
		}
	}
	return strings.Join(patterns, "|")
}

// summary says in a few lines what is going to run.
func (p plan) summary(out io.Writer) {
	coreTakes := p.costs.minutes(p.core)
	withAffected := p.costs.minutes(slices.Concat(p.core, p.affected))
	all := p.costs.minutes(slices.Concat(p.core, p.affected, p.slice))
	fmt.Fprintf(out, "=== in the lab, about %.0f minutes by seed %d (%s=%d repeats it):\n", all, p.seed, sample.SeedVariable, p.seed)
	fmt.Fprintf(out, "      the core: %d tests, %.1f minutes\n", len(p.core), coreTakes)
	fmt.Fprintf(out, "      affected by the last %d commits: %d tests, %.1f minutes; %d are left out\n",
		recentCommits, len(p.affected), withAffected-coreTakes, len(p.leftOut))
	fmt.Fprintf(out, "      slice %d of %d of the others: %d tests, %.1f minutes\n", p.seed%slicesOfAll+1, slicesOfAll, len(p.slice), all-withAffected)
}

// list shows each test, how long it takes, and why it is run or not.
func (p plan) list(out io.Writer) {
	p.summary(out)
	for _, t := range slices.Concat(p.core, p.affected, p.slice) {
		fmt.Fprintf(out, "%6.0fs %-10s %s: %s\n", p.costs.of(t.labTest, t.args).seconds, t.suite, strings.TrimSpace(t.name()+" "+t.args), t.why)
	}
	for _, t := range p.leftOut {
		fmt.Fprintf(out, "left out %-10s %s: %s\n", t.suite, t.name(), t.why)
	}
}
