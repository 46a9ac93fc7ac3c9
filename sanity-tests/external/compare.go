package external

import (
	"maps"
	"slices"
)

// Difference is a spec that passed in the first of two runs and not in the second.
type Difference struct {
	Name string
	// Reason is why the difference was expected; empty if it was not.
	Reason string
	// Trouble is the failure in the second run.
	Trouble string
}

// Compare returns the specs that passed in the first run and not in the second one, with the
// reasons for those that are expected, and the expected differences that did not occur.
func Compare(first, second Report, expected map[string]string) (differences []Difference, missing map[string]string) {
	before, after := first.byName(), second.byName()
	missing = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(expected)) {
		switch {
		case !before[name].Passed:
			missing[name] = "it did not pass in the first run"
		case after[name].Passed:
			missing[name] = "it passed in both runs"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if !before[name].Passed || after[name].Passed {
			continue
		}
		difference := Difference{Name: name, Reason: expected[name], Trouble: "it did not run, or found when it was to run that it does not apply"}
		if spec, ran := after[name]; ran {
			difference.Trouble = spec.Trouble
		}
		differences = append(differences, difference)
	}
	return differences, missing
}

// byName returns the specs that ran by name; of several with one name, a failed one if there is
// any.
func (r Report) byName() map[string]Spec {
	named := map[string]Spec{}
	for _, spec := range r.Specs {
		if other, is := named[spec.Name]; !is || other.Passed {
			named[spec.Name] = spec
		}
	}
	return named
}
