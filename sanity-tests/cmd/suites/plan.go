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
	// coreBudget is for the core, othersBudget for the slice and the affected tests, in minutes in the lab.
	coreBudget, othersBudget = 13., 8.
	// slicesOfAll is the number of slices of the tests outside of the core. It is a prime, so that
	// pushing the same number of commits each time still runs all of them.
	slicesOfAll = 23
)

// plannedTest is a test of a run, and the reason to run it.
type plannedTest struct {
	labTest
	args   string // of the test program
	reason string
}

// plan is what `make test` runs in the lab.
type plan struct {
	costs                 costs
	all                   []labTest
	seed                  int64
	core, affected, slice []plannedTest
	// leftOut are affected, but not run.
	leftOut []plannedTest
}

// planOf returns the plan of this commit, which is deterministic.
func planOf(root string) (plan, error) {
	all, err := labTests(root)
	if err != nil {
		return plan{}, err
	}
	changed, err := changedPaths(root)
	if err != nil {
		return plan{}, err
	}
	known, err := parseCosts(costsFile)
	if err != nil {
		return plan{}, err
	}
	return newPlan(all, core, known, changed, sample.Seed())
}

// newPlan takes the core, one slice of the others, and as many affected tests as take no longer than the rest of the
// budget.
func newPlan(all []labTest, core []coreTest, known costs, changed []string, seed int64) (plan, error) {
	p, inCore := plan{costs: known, all: all, seed: seed}, map[string]bool{}
	for _, c := range core {
		at := slices.IndexFunc(all, func(t labTest) bool { return t.suite == c.suite && t.name() == c.test })
		if at < 0 {
			return plan{}, fmt.Errorf("core: there is no test %s %s", c.suite, c.test)
		}
		p.core = append(p.core, plannedTest{all[at], c.args, "core"})
		inCore[all[at].String()] = !c.inSlices
	}
	// Randomized tests of the core, which have another seed with each commit, are in no slice.
	rest := filter(all, func(t labTest) bool { return !t.isLong && !inCore[t.String()] })
	number := int(seed % slicesOfAll)
	p.slice = slicesOf(rest, p.core, known, slicesOfAll)[number]
	for i := range p.slice {
		p.slice[i].reason = fmt.Sprintf("slice %d of %d", number+1, slicesOfAll)
	}
	complete := nameSet(filter(p.tests(), func(t plannedTest) bool { return t.args == "" }))
	most := known.minutes(p.core) + othersBudget
	for _, t := range affected(changed, all) {
		planned := plannedTest{labTest: t.labTest, reason: "affected by " + t.reason()}
		switch {
		case complete[t.String()]:
		case t.isLong:
			planned.reason += "; make test-all runs it"
			p.leftOut = append(p.leftOut, planned)
		case known.minutes(append(p.tests(), planned)) > most:
			p.leftOut = append(p.leftOut, planned)
		default:
			p.affected = append(p.affected, planned)
		}
	}
	return p, nil
}

func nameSet(tests []plannedTest) map[string]bool {
	set := map[string]bool{}
	for _, t := range tests {
		set[t.String()] = true
	}
	return set
}

// slicesOf divides tests into slices, each of which runs with the core. Parallel tests of a suite take hardly longer than
// the longest of them, so that they belong together: each test, the longest first, goes to the slice to which it adds
// least, unless that would exceed the least limit with which all fit.
func slicesOf(tests []labTest, core []plannedTest, known costs, number int) [][]plannedTest {
	var planned []plannedTest
	limit, ofCore := 0., known.load(core)
	for _, t := range tests {
		one := plannedTest{labTest: t}
		planned, limit = append(planned, one), max(limit, ofCore.added(one))
	}
	slices.SortFunc(planned, func(a, b plannedTest) int {
		return cmp.Or(cmp.Compare(known.of(b.labTest, "").longest, known.of(a.labTest, "").longest), cmp.Compare(a.String(), b.String()))
	})
	for ; ; limit += .1 {
		if result := slicesWithin(limit, planned, core, known, number); result != nil {
			return result
		}
	}
}

// slicesWithin returns slices none of which adds more minutes to the core than the limit, or nil.
func slicesWithin(limit float64, tests, core []plannedTest, known costs, number int) [][]plannedTest {
	result, loads := make([][]plannedTest, number), make([]load, number)
	for i := range loads {
		loads[i] = known.load(core)
	}
	limit += known.minutes(core)
	for _, t := range tests {
		best, least, shortest := -1, 0., 0.
		for i, l := range loads {
			added, before := l.added(t), l.minutes()
			if before+added > limit {
				continue
			}
			if best < 0 || cmp.Or(cmp.Compare(added, least), cmp.Compare(before, shortest)) < 0 {
				best, least, shortest = i, added, before
			}
		}
		if best < 0 {
			return nil
		}
		result[best] = append(result[best], t)
		loads[best].add(t)
	}
	return result
}

// tests returns all tests of the plan, each once: without the flags of the core if it is affected, or in the slice.
func (p plan) tests() []plannedTest {
	others := slices.Concat(p.affected, p.slice)
	complete := nameSet(others)
	return append(filter(p.core, func(t plannedTest) bool { return !complete[t.String()] }), others...)
}

// part returns the suite with these tests only.
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
	part.tier, part.tests = s.tier, tests
	again := part.again
	part.again = func(key string) []string {
		command := again(key)
		_, function, _ := strings.Cut(key, " ")
		selected := filter(tests, func(t plannedTest) bool { return t.function == function })
		if at := slices.Index(command, "-run"); len(selected) > 0 && at >= 0 {
			command[at+1] = runPattern(selected, s.selects == "") // no more legs than the first time
		}
		return command
	}
	return part
}

// runPattern returns a pattern for -run, with legs if go can select them.
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
	if plain := filter(functions, func(f string) bool { return legs[f] == nil }); len(plain) > 0 {
		patterns = append(patterns, anyOf(plain))
	}
	for _, function := range functions {
		if legs[function] != nil {
			patterns = append(patterns, anyOf([]string{function})+"/"+anyOf(legs[function]))
		}
	}
	return strings.Join(patterns, "|")
}

// summary prints in a few lines what is going to run.
func (p plan) summary(out io.Writer) {
	coreTakes := p.costs.minutes(p.core)
	withSlice := p.costs.minutes(slices.Concat(p.core, p.slice))
	all := p.costs.minutes(p.tests())
	fmt.Fprintf(out, "=== in the lab, about %.0f minutes with seed %d (%s=%d repeats it):\n", all, p.seed, sample.SeedVariable, p.seed)
	fmt.Fprintf(out, "      the core: %d tests, %.1f minutes\n", len(p.core), coreTakes)
	fmt.Fprintf(out, "      slice %d of %d of the others: %d tests, %.1f minutes\n", p.seed%slicesOfAll+1, slicesOfAll, len(p.slice), withSlice-coreTakes)
	fmt.Fprintf(out, "      affected by the last %d commits: %d tests, %.1f minutes; %d are left out\n",
		recentCommits, len(p.affected), all-withSlice, len(p.leftOut))
}

// list prints each test, how long it takes, and why it is run or not.
func (p plan) list(out io.Writer) {
	p.summary(out)
	for _, t := range p.tests() {
		fmt.Fprintf(out, "%6.0fs %-10s %s: %s\n", p.costs.of(t.labTest, t.args).seconds, t.suite, strings.TrimSpace(t.name()+" "+t.args), t.reason)
	}
	for _, t := range p.leftOut {
		fmt.Fprintf(out, "left out %-10s %s: %s\n", t.suite, t.name(), t.reason)
	}
}
