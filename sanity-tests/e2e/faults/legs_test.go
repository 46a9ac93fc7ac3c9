package faults

import (
	"cmp"
	"flag"
	"slices"
	"strings"
	"testing"

	"storage.liqo.io/sanity-tests/sample"
)

var (
	seedFlag = flag.Int64("seed", 0, "seed of kills and crash points; else "+sample.SeedVariable+", else the number of commits in the history")
	cycles   = flag.Int("cycles", 50, "volumes that live among kills")
)

func init() {
	flag.Func("short-leg", "name of a leg, as in its test's, whose processes die at a few of its crash points; others with the next seed", func(leg string) error {
		shortLegs = append(shortLegs, leg)
		return nil
	})
}

var shortLegs []string

// pointsOfShortLeg is at how many points a process dies in a short leg.
const pointsOfShortLeg = 5

// reachedBy is for points that are passed only by a process that takes over what another has begun:
// where that one has to have died.
var reachedBy = map[string]string{
	"before-attachment-confirm": "after-attachment-create",
	"after-attachment-confirm":  "after-attachment-create",
}

// some are the points of a process in this leg: all of them, unless the leg is a short one.
func some(t *testing.T, points []string) []string {
	_, leg, _ := strings.Cut(t.Name(), "/")
	if !slices.Contains(shortLegs, leg) {
		return points
	}
	first := int(seed()%int64(len(points))) * pointsOfShortLeg % len(points)
	ring := slices.Concat(points[first:], points[:first])
	chosen := ring[:min(pointsOfShortLeg, len(ring))]
	for _, point := range chosen {
		if needed, is := reachedBy[point]; is && !slices.Contains(chosen, needed) {
			chosen = append(chosen, needed)
		}
	}
	return chosen
}

// seed is what the kills of this run and the points of short legs follow from.
func seed() int64 { return cmp.Or(*seedFlag, sample.Seed()) }

// leg is one part of a test that can be run without the others: go test -run 'Test/the name of the leg'.
// cmd/suites reads these names from the source, so that they have to be literals.
type leg[T any] struct {
	name string
	run  func(*testing.T, T)
}
