package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"storage.liqo.io/sanity-tests/sample"
)

func names(of []suite) []string {
	var names []string
	for _, s := range of {
		names = append(names, s.name)
	}
	return names
}

// `make test` skips a suite without planned tests; `make test-all` runs all of its tests.
func TestSuitesAreRunAsPlanned(t *testing.T) {
	p := plan{core: []plannedTest{{labTest: labTest{suite: "driver", function: "TestA"}}}}
	some, all := names(selected(false, "", p)), names(selected(true, "", p))
	for name, inSome := range map[string]bool{"rust": true, "driver": true, "remote": false, "liqo": false} {
		if slices.Contains(some, name) != inSome {
			t.Errorf("make test runs %s: %t", name, !inSome)
		}
		if !slices.Contains(all, name) {
			t.Errorf("make test-all does not run %s", name)
		}
	}
	only := selected(false, "driver", p)
	if !slices.Equal(names(only), []string{"reference driver", "driver build", "driver"}) {
		t.Errorf("-only driver: %v", names(only))
	}
	if command := only[2].command; !slices.Contains(command, "-run=^(TestA)$") {
		t.Errorf("the part of the plan is %v", command)
	}
}

// Each test is in one part, and each part takes less than its limit, which is below an hour.
func TestEveryPartOfTestAllEndsWithinAnHour(t *testing.T) {
	all, known := repositoryTests(t)
	parts := map[string]int{}
	for _, s := range selected(true, "", plan{all: all}) {
		if s.limit >= maxSuiteTime {
			t.Errorf("the limit of %s is %s", s.name, s.limit)
		}
		if minutes := known.minutes(s.tests); minutes > s.limit.Minutes() {
			t.Errorf("%s takes %.0f minutes, and its limit is %s", s.name, minutes, s.limit)
		}
		for _, one := range s.tests {
			parts[one.String()]++
		}
	}
	for _, one := range all {
		if parts[one.String()] != 1 {
			t.Errorf("%s is in %d parts", one, parts[one.String()])
		}
	}
}

// -only and -from select parts by name, and a part runs whole functions: their subtests that are no legs, too.
func TestPartsOfASuite(t *testing.T) {
	test := func(suite, function, leg string) labTest { return labTest{suite: suite, function: function, leg: leg} }
	p := plan{all: []labTest{test("faults", "TestCrash", "a"), test("faults", "TestCrash", "b"), test("faults", "TestKills", ""),
		test("faults", "TestMovesWithCrash", "a"), test("driver", "TestCrash", "")}}
	todo := selected(true, "faults", p)
	if got := names(todo); !slices.Equal(got, []string{"faults/crash-points", "faults/moves", "faults/others"}) {
		t.Fatalf("parts: %v", got)
	}
	for i, pattern := range []string{"^(TestCrash)$", "^(TestMovesWithCrash)$", "^(TestKills)$"} {
		if !slices.Contains(todo[i].command, "-run="+pattern) {
			t.Errorf("%s: %v", todo[i].name, todo[i].command)
		}
	}
	if first := todo[0]; len(first.tests) != 2 || !slices.Contains(first.again("m/p TestCrash/a"), "^TestCrash$/^a$") {
		t.Errorf("%s has %s, and runs a leg again with %v", first.name, listed(first.tests), first.again("m/p TestCrash/a"))
	}
	if from, err := startingFrom("faults/moves", selected(true, "", p)); err != nil || from[0].name != "faults/moves" {
		t.Errorf("from: %v, %v", names(from), err)
	}
	if got := names(selected(true, "faults/moves", p)); len(got) != 1 {
		t.Errorf("only: %v", got)
	}
}

func TestStartingFromASuite(t *testing.T) {
	todo := []suite{{name: "a"}, {name: "faults"}, {name: "more faults"}, {name: "z"}}
	for text, want := range map[string][]string{"": {"a", "faults", "more faults", "z"}, "faults": {"faults", "more faults", "z"}} {
		got, err := startingFrom(text, todo)
		if err != nil || !slices.Equal(names(got), want) {
			t.Errorf("from %q: %v, %v", text, names(got), err)
		}
	}
	if _, err := startingFrom("no such", todo); err == nil {
		t.Error("a name that no suite has is accepted")
	}
}

// Values of property tests follow from the seed, as all that is random.
func TestPropertyTestsUseTheSeed(t *testing.T) {
	var out strings.Builder
	s := rust()
	s.command, s.counter = []string{"sh", "-c", "echo seed $PROPTEST_RNG_SEED."}, newCheckCounter
	(&runner{out: &out, root: "."}).attempt(t.Context(), s, s.command, time.Minute)
	if want := fmt.Sprintf("seed %d.", sample.Seed()); !strings.Contains(out.String(), want) {
		t.Errorf("got %s, want %s", &out, want)
	}
}
