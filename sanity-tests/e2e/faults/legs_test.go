package faults

import (
	"cmp"
	"flag"
	"testing"

	"storage.liqo.io/sanity-tests/sample"
)

var (
	seedFlag = flag.Int64("seed", 0, "seed of the kills; else "+sample.SeedVariable+", else the number of commits in the history")
	cycles   = flag.Int("cycles", 50, "volumes that live among kills")
)

// seed is what the kills of this run follow from.
func seed() int64 { return cmp.Or(*seedFlag, sample.Seed()) }

// leg is one part of a test that can be run without the others: go test -run 'Test/the name of the leg'.
// cmd/suites reads these names from the source, so that they have to be literals.
type leg[T any] struct {
	name string
	run  func(*testing.T, T)
}
