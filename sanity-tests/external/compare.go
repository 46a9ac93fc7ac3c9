package external

import (
	"maps"
	"slices"
)

// Difference is a spec that passed in the first of two runs and not in the second.
type Difference struct {
	Name string
	// Reason is why that was to be expected; empty if it was not.
	Reason string
	// Trouble is what came of it in the second run.
	Trouble string
}

// Compare names what passed in the first run and not in the second one, with the reasons of
// those differences that are expected, and says which of the expected ones there are not.
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

// byName has the specs that ran; of several with one name one that failed, if any did.
func (r Report) byName() map[string]Spec {
	named := map[string]Spec{}
	for _, spec := range r.Specs {
		if other, is := named[spec.Name]; !is || other.Passed {
			named[spec.Name] = spec
		}
	}
	return named
}
