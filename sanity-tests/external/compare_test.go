package external

import (
	"maps"
	"slices"
	"testing"
)

func TestDifferencesOfTwoRuns(t *testing.T) {
	first := Report{Specs: []Spec{
		{Name: "alike", Passed: true}, {Name: "fails in both runs"}, {Name: "expected", Passed: true}, {Name: "new", Passed: true},
		{Name: "gone", Passed: true}, {Name: "fixed", Passed: true}, {Name: "twice", Passed: true},
	}}
	second := Report{Specs: []Spec{
		{Name: "alike", Passed: true}, {Name: "fails in both runs"}, {Name: "expected", Trouble: "refused"}, {Name: "new", Trouble: "timed out"},
		{Name: "fixed", Passed: true}, {Name: "twice", Passed: true}, {Name: "twice", Trouble: "timed out"}, {Name: "better", Passed: true},
	}}
	differences, missing := Compare(first, second, map[string]string{
		"expected": "it mounts the host", "fixed": "it is slow", "fails in both runs": "no network", "renamed": "it is old",
	})
	const silent = "it did not run, or found when it was to run that it does not apply"
	want := []Difference{
		{Name: "expected", Reason: "it mounts the host", Trouble: "refused"},
		{Name: "gone", Trouble: silent},
		{Name: "new", Trouble: "timed out"},
		{Name: "twice", Trouble: "timed out"},
	}
	if !slices.Equal(differences, want) {
		t.Errorf("got %+v, want %+v", differences, want)
	}
	none := map[string]string{
		"fixed": "it passed in both runs", "fails in both runs": "it did not pass in the first run", "renamed": "it did not pass in the first run",
	}
	if !maps.Equal(missing, none) {
		t.Errorf("got %v, want %v", missing, none)
	}
}
