package faults

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// sampleParts is the number of parts that the legs of a test are dealt into. A
// sample is one of the parts, so that as many samples cover every leg.
const sampleParts = 5

var (
	sample   = flag.Bool("sample", false, "run one part of the legs and fewer volumes; which part follows from the seed")
	seedFlag = flag.Int64("seed", 0, "seed of the kills and of the sample; else LIQO_CSI_SEED, else made of the commit that is checked out")
	cycles   = flag.Int("cycles", 50, "volumes that live among kills; a sample has a quarter of them")
)

// seed is what every choice of this run follows from. Each commit has its own, so
// that runs of successive commits have different samples, and one can be repeated.
var seed = sync.OnceValue(func() int64 {
	if *seedFlag != 0 {
		return *seedFlag
	}
	if given, err := strconv.ParseInt(os.Getenv("LIQO_CSI_SEED"), 10, 64); err == nil && given > 0 {
		return given
	}
	commit, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err == nil {
		if made, err := strconv.ParseInt(strings.TrimSpace(string(commit)), 16, 64); err == nil {
			return made
		}
	}
	return time.Now().UnixNano() // an archive without history
})

// leg is one part of a test that can be run without the others.
type leg[T any] struct {
	name string
	run  func(*testing.T, T)
}

// chosen are the legs of this run, whose names the test's log shows.
func chosen[T any](t *testing.T, legs []leg[T]) []leg[T] {
	t.Helper()
	if !*sample {
		return legs
	}
	part := int(seed() % sampleParts)
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
	if *sample {
		return max(1, *cycles/4)
	}
	return *cycles
}
