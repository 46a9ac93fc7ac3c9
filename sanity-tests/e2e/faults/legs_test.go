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
	seedFlag = flag.Int64("seed", 0, "seed of kills and crash points; default "+sample.SeedVariable+", or the number of commits in the history")
	cycles   = flag.Int("cycles", 50, "number of volumes in TestVolumesSurviveRandomKills")
)

func init() {
	flag.Func("short-leg", "name of a leg whose processes crash at only some of its crash points, selected by the seed", func(leg string) error {
		shortLegs = append(shortLegs, leg)
		return nil
	})
}

var shortLegs []string

// pointsOfShortLeg is the number of crash points of a process in a short leg.
const pointsOfShortLeg = 5

// reachedBy has points that are reached only after a crash at another point.
var reachedBy = map[string]string{
	"before-attachment-confirm": "after-attachment-create",
	"after-attachment-confirm":  "after-attachment-create",
}

// selectPoints returns all points, or some of them in a short leg.
func selectPoints(t *testing.T, points []string) []string {
	_, leg, _ := strings.Cut(t.Name(), "/")
	if !slices.Contains(shortLegs, leg) {
		return points
	}
	first := int(seed()%int64(len(points))) * pointsOfShortLeg % len(points)
	ring := slices.Concat(points[first:], points[:first])
	chosen := ring[:min(pointsOfShortLeg, len(ring))]
	for _, point := range chosen {
		if needed, ok := reachedBy[point]; ok && !slices.Contains(chosen, needed) {
			chosen = append(chosen, needed)
		}
	}
	return chosen
}

// seed determines the kills and the points of short legs.
func seed() int64 { return cmp.Or(*seedFlag, sample.Seed()) }

// leg is a subtest that can be run by itself: go test -run 'Test/name of the leg'. cmd/suites reads the
// names from the source, so that they must be literals.
type leg[T any] struct {
	name string
	run  func(*testing.T, T)
}
