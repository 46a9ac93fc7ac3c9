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

// Suites that take turns are all run by as many commits as there are such suites,
// by `make test-all`, and when they are asked for.
func TestSuitesInTurnAreAllRun(t *testing.T) {
	var inTurns []string
	for _, s := range suites {
		if s.tier == inTurn {
			inTurns = append(inTurns, s.name)
		}
	}
	turns := map[string]int{}
	for seed := range len(inTurns) {
		for _, name := range names(selected(false, "", int64(seed))) {
			if slices.Contains(inTurns, name) {
				turns[name]++
			}
		}
	}
	all := names(selected(true, "", 0))
	for _, name := range inTurns {
		if turns[name] != 1 {
			t.Errorf("%s runs %d times in %d successive seeds", name, turns[name], len(inTurns))
		}
		if !slices.Contains(all, name) {
			t.Errorf("make test-all does not run %s", name)
		}
		for seed := range len(inTurns) {
			if !slices.Contains(names(selected(false, name, int64(seed))), name) {
				t.Errorf("%s is asked for and not run", name)
			}
		}
	}
}

func TestEverySuiteEndsWithinAnHour(t *testing.T) {
	for _, s := range suites {
		if s.limit >= mostOfASuite {
			t.Errorf("%s may take %s", s.name, s.limit)
		}
	}
}

func TestStartingFromASuite(t *testing.T) {
	todo := []suite{{name: "a"}, {name: "faults, a sample"}, {name: "faults, all"}, {name: "z"}}
	for text, want := range map[string][]string{"": {"a", "faults, a sample", "faults, all", "z"}, "faults": {"faults, a sample", "faults, all", "z"}} {
		got, err := startingFrom(text, todo)
		if err != nil || !slices.Equal(names(got), want) {
			t.Errorf("from %q: %v, %v", text, names(got), err)
		}
	}
	if _, err := startingFrom("no such", todo); err == nil {
		t.Error("a name that no suite has is taken")
	}
}
