package faults

import (
	"cmp"
	"flag"
	"fmt"
	"testing"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/sample"
)

// sampleParts is the number of parts that the legs of a test are dealt into. A
// sample is one of the parts, so that as many samples cover every leg.
const sampleParts = 7

var (
	seedFlag = flag.Int64("seed", 0, "seed of the kills and of the sample; else "+sample.SeedVariable+", else the number of commits in the history")
	cycles   = flag.Int("cycles", 50, "volumes that live among kills; a sample has a quarter of them")
)

// seed is what every choice of this run follows from.
func seed() int64 { return cmp.Or(*seedFlag, sample.Seed()) }

// leg is one part of a test that can be run without the others.
type leg[T any] struct {
	name string
	run  func(*testing.T, T)
}

// chosen are the legs of this run, whose names the test's log shows.
func chosen[T any](t *testing.T, legs []leg[T]) []leg[T] {
	t.Helper()
	if !*user.Sampled {
		return legs
	}
	part := sample.Part(seed(), sampleParts)
	var some []leg[T]
	for index, leg := range legs {
		if index%sampleParts == part {
			some = append(some, leg)
		}
	}
	t.Run(fmt.Sprintf("a sample: %d of %d legs, part %d of %d by seed %d", len(some), len(legs), part+1, sampleParts, seed()), func(*testing.T) {})
	return some
}

// volumes is how many volumes live among kills.
func volumes() int {
	if *user.Sampled {
		return max(1, *cycles/4)
	}
	return *cycles
}
