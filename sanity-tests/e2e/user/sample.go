package user

import (
	"flag"
	"testing"

	"storage.liqo.io/sanity-tests/sample"
)

// Sampled is whether a run leaves tests out. Which ones follows from the seed.
var Sampled = flag.Bool("sample", false, "leave out some of the tests; which ones follows from the seed ("+sample.SeedVariable+", else the number of commits in the history)")

// LeaveOut skips a test whose turn is with one sample in so many, unless it is its turn.
func LeaveOut(t *testing.T, parts int) {
	t.Helper()
	if *Sampled && !sample.Chosen(sample.Seed(), t.Name(), parts) {
		t.Skipf("left out of this sample: its turn is with one commit in %d (seed %d), and always in make test-all", parts, sample.Seed())
	}
}
