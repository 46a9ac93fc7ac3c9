package sample

import "testing"

func TestSeedIsGivenOrTheNumberOfCommits(t *testing.T) {
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

// Successive commits take successive parts, so that as many commits as there are parts have all.
func TestSuccessiveSeedsChooseEveryPart(t *testing.T) {
	const parts = 7
	chosen, turns := map[int]bool{}, 0
	for seed := range int64(parts) {
		chosen[Part(seed, parts)] = true
		if Chosen(seed, "TestSomething", parts) {
			turns++
		}
	}
	if len(chosen) != parts || turns != 1 {
		t.Errorf("%d parts of %d are chosen, and a test %d times", len(chosen), parts, turns)
	}
}
