package main

import (
	"slices"
	"testing"
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

func TestEverySuiteEndsWithinAnHour(t *testing.T) {
	for _, s := range suites {
		if s.limit >= mostOfASuite {
			t.Errorf("the limit of %s is %s", s.name, s.limit)
		}
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
