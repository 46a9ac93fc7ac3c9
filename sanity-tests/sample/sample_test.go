package sample

import "testing"

func TestSeedDefaultsToTheNumberOfCommits(t *testing.T) {
	for _, test := range []struct {
		variable string
		commits  int
		want     int64
	}{{"", 450, 450}, {"42", 450, 42}, {"no number", 450, 450}, {"-1", 450, 450}, {"", 0, 1}} {
		if got := seedOf(test.variable, test.commits); got != test.want {
			t.Errorf("%q and %d commits: seed %d, want %d", test.variable, test.commits, got, test.want)
		}
	}
}
